"""The plan of private variational inference: sampler, clip, noise and accounting together, never a loose σ."""

import dataclasses
import functools
import secrets
from collections.abc import Mapping
from typing import Any, Literal, final

import dp_accounting
import numpy as np

from vertinumpyro.core.errors import ArgumentError, UnprovenError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.accounting import NeighbouringRelation
from vertinumpyro.privacy.adversary import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    NoiseSource,
    NoisySum,
    list_adversaries,
)
from vertinumpyro.privacy.calibration import rounded_up_multiplier
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.noisy_sum_plan import NoisySumPlan
from vertinumpyro.privacy.plan import check_delta, check_party_names, check_target, targeted
from vertinumpyro.privacy.sampling import Sampling

__all__ = ["PrivacyPlan", "calibrate_noise_multiplier"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan(NoisySumPlan, kind="dpvi", own_field="batch_indices"):
    """Everything public about one run's privacy, fixed before any data is touched.

    Formal guarantee: a run that draws its batches by `sampling`, clips every record's vector to L2 norm
    `clip_norm` (in the units of the revealed sum, rounding included), adds `draw_noise_shares` and reveals
    nothing else satisfies every row of `adversaries`: against the outside analyst (ε, δ)-DP, against parties
    (ε, δ)-VPDP, for `relation`, when it runs once. `vertinumpyro.privacy.ledger` sees to "once".

    Attributes:
        sampling: which records enter which step.
        clip_norm: C > 0.
        noise_multiplier: σ > 0; the total noise has standard deviation σ·C, more with a collusion threshold.
        noise: who adds the noise.
        grid_bits: f, the fractional bits of the revealed sum.
        num_records: N, public.
        parties: their names; as many as `noise.num_parties`.
        delta: δ in (0, 1); at 1/N and above it warns, since publishing one whole record would satisfy it.
        relation: the neighbouring relation of the table.
        batch_indices: "known" when the parties see which records enter a step, "hidden" when the protocol
            keeps that from them as well. The outside analyst never sees it.
        unproven: the steps of the formulation whose clip or noise bound is not proved.
        allow_unproven: must be True for a plan with such steps.
        adversary: whom alone a target ε was for; None for everyone (`covered`).
        plan_id: a random name, made here; a plan with another id is another budget.
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    noise: NoiseSource
    grid_bits: int
    num_records: int
    parties: tuple[str, ...]
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    batch_indices: Literal["known", "hidden"] = "known"
    unproven: tuple[str, ...] = ()
    allow_unproven: bool = False
    adversary: str | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", tuple(self.parties))
        object.__setattr__(self, "unproven", tuple(self.unproven))
        check_party_names(self.parties, self.noise)
        if self.batch_indices not in ("known", "hidden"):
            raise ArgumentError(f'batch_indices must be "known" or "hidden", got {self.batch_indices!r}')
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        check_delta(self.delta, self.num_records)
        if self.unproven and not self.allow_unproven:
            raise UnprovenError(
                f"the privacy bound is not proved for: {', '.join(self.unproven)}. "
                "Choose a proved formulation, or pass allow_unproven=True and publish nothing of it"
            )
        _ = self.noisy_sum, self.targets()  # validates clip, noise, grid and sampling; the adversary's name

    @classmethod
    def calibrated(cls, *, epsilon: float, adversary: str | None = None, **settings: Any) -> "PrivacyPlan":
        """A plan with the smallest σ that gives everyone, or `adversary` alone, at most `epsilon`."""
        if "noise_multiplier" in settings:
            raise ArgumentError("noise_multiplier is what calibration chooses: leave it out")
        names = {field.name for field in dataclasses.fields(_Calibration)}
        chosen = {key: value for key, value in settings.items() if key in names}
        sigma = calibrate_noise_multiplier(epsilon=epsilon, adversary=adversary, **chosen)
        return cls(noise_multiplier=sigma, adversary=adversary, **settings)

    @property
    def observers(self) -> tuple[Adversary, ...]:
        """The outside analyst, each party, coalitions of 2 to P − 1."""
        return list_adversaries(self.parties, batch_indices=self.batch_indices)

    def row(self, observer: Adversary) -> AdversaryRow:
        """See `Plan.row`."""
        return self.noisy_sum.row(observer, self.delta, self.relation, self.unproven)

    @property
    def comparisons(self) -> tuple[AdversaryRow, ...]:
        """The outside analyst under add/remove, as most papers report it."""
        return () if self.relation is NeighbouringRelation.ADD_REMOVE else (self.comparison,)

    @functools.cached_property
    def comparison(self) -> AdversaryRow:
        """The outside analyst under add/remove. Not the claim of this plan."""
        outside, relation = Adversary(name=OUTSIDE_ANALYST), NeighbouringRelation.ADD_REMOVE
        return self.noisy_sum.row(outside, self.delta, relation, self.unproven)

    def draw_noise_shares(self, num_values: int, num_steps: int, source: RandomSource) -> np.ndarray:
        """All parties' noise, for simulations: int64 `[num_steps, num_shares, num_values]`. Secret."""
        size = num_steps * self.num_shares * num_values
        flat = sample_discrete_gaussian(self.noise_variance_per_share(), size, source)
        return flat.reshape(num_steps, self.num_shares, num_values)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The outside analyst's event for dp-accounting; batch truncation is not part of it."""
        return self.noisy_sum.event(Adversary(name=OUTSIDE_ANALYST)).dp_event()

    def describe(self) -> dict:
        """Everything that a report should say, as plain data; for a printer."""
        return {
            "settings": self.to_dict(),
            "num_steps": self.num_steps,
            "expected_batch_size": self.expected_batch_size,
            "noise_variance_per_share": self.noise_variance_per_share(),
            "fingerprint": self.fingerprint(),
            "adversaries": self.table_rows(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Calibration:
    """The settings that a calibration needs: a plan's, without σ and without the proof flags."""

    sampling: Sampling
    clip_norm: float
    noise: NoiseSource
    grid_bits: int
    num_records: int
    parties: tuple[str, ...]
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    batch_indices: Literal["known", "hidden"] = "known"

    def noisy_sum(self, sigma: float) -> NoisySum:
        names = ("sampling", "clip_norm", "noise", "grid_bits", "num_records")
        return NoisySum(noise_multiplier=sigma, **{name: getattr(self, name) for name in names})


def calibrate_noise_multiplier(*, epsilon: float, adversary: str | None = None, **settings: Any) -> float:
    """The smallest σ, rounded up to 4 decimals, for which everyone's ε is at most `epsilon`.

    Args:
        epsilon: the target, > 0.
        adversary: the name of a row of the privacy table, whom alone it is for; None for the outside analyst, every
            party, and coalitions of up to `noise.collusion_threshold`.
        **settings: the fields of `PrivacyPlan` up to `batch_indices`, without `noise_multiplier`.

    Raises:
        ArgumentError: no σ up to 1e6 reaches the target, or a setting is wrong.
    """
    check_target(epsilon)
    task = _Calibration(**settings)
    check_delta(task.delta, task.num_records, warn=False)
    observers = list_adversaries(task.parties, batch_indices=task.batch_indices)
    targets = targeted(observers, task.noise.covered(observers), adversary)

    def events(sigma: float) -> Mapping[Any, None]:
        """What the targets observe; parties observe the same."""
        return dict.fromkeys(map(task.noisy_sum(sigma).event, targets))

    def likely(sigma: float) -> bool:
        return all(event.delta(epsilon, task.relation) <= task.delta for event in events(sigma))

    def enough(sigma: float) -> bool:
        return all(event.epsilon(task.delta, task.relation) <= epsilon for event in events(sigma))

    return rounded_up_multiplier(enough, likely=likely)
