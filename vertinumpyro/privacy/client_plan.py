"""The plan of noisy sums over clients that hold records: who adds how much noise, and what ε each adversary gets."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Mapping
from typing import Any, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.accounting import NeighbouringRelation
from vertinumpyro.privacy.adversary import OUTSIDE_ANALYST, Adversary, AdversaryRow, NoiseSource, NoisySum
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.noise_shares import draw_noise_share
from vertinumpyro.privacy.plan import fingerprint_of, plain, sampling_from_dict, smallest_sigma
from vertinumpyro.privacy.sampling import Sampling

_SIGMA_DIGITS = 4


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """Everything public about the privacy of sums over clients, fixed before any data is touched.

    The noise of one sum comes from `num_clients` clients. Each adds a discrete Gaussian of variance C²σ²4^f/(N -
    T - 1): with up to T clients dropped out or colluding, and the observing client knowing its own share, the
    others still add σ²C² (Theorem 1 of the DCA paper).

    Formal guarantee: a run that draws its batches by `sampling`, adds at most `clip_norm` in L2 norm for each
    record (in the units of the revealed sum, rounding included), lets every client add `draw_noise_share` and
    reveals no sum with more than T of the shares missing satisfies every row of `adversaries` for `relation`,
    when it runs once. Towards compute nodes it holds while at least one of them does not collude.

    Attributes:
        sampling: which records enter which sum.
        clip_norm: C > 0. For one release of sensitivity Δ under replace, C = Δ/2.
        noise_multiplier: σ > 0.
        num_clients: N, the clients that add noise to every sum.
        max_unreliable: T, 0 <= T <= N - 2.
        grid_bits: f, the fractional bits of the revealed sum.
        num_records: records over all clients, public.
        delta: δ in (0, 1).
        relation: the neighbouring relation of the union of the clients' records.
        participation: "known" when the compute nodes see who takes part in which sum; "hidden" when every client
            sends something in every round, or draws from many records of its own. The outside analyst never sees it.
        plan_id: a random name, made here; a plan with another id is another budget.
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    num_clients: int
    max_unreliable: int = 0
    grid_bits: int
    num_records: int
    delta: float
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    participation: Literal["hidden", "known"] = "known"
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if not 0 < self.delta < 1:
            raise ArgumentError(f"delta must lie in (0, 1), got {self.delta}")
        if not isinstance(self.relation, NeighbouringRelation):
            raise ArgumentError("relation must be a NeighbouringRelation")
        if self.participation not in ("hidden", "known"):
            raise ArgumentError(f'participation must be "hidden" or "known", got {self.participation!r}')
        _ = self.noisy_sum  # validates clip, noise, grid and sampling

    @classmethod
    def calibrated(cls, *, epsilon: float, outside: bool = False, **settings: Any) -> ClientPlan:
        """The plan with the smallest σ, rounded up to 4 decimals, that gives at most this ε.

        Args:
            epsilon: the target, > 0.
            outside: towards the outside analyst only; otherwise towards every row of the table.
            **settings: all other fields.
        """
        if not 0 < epsilon < float("inf"):
            raise ArgumentError(f"epsilon must be positive and finite, got {epsilon}")
        if "noise_multiplier" in settings:
            raise ArgumentError("noise_multiplier is what calibration chooses: leave it out")

        def enough(sigma: float) -> bool:
            plan = cls(noise_multiplier=sigma, **settings)
            observers = plan._observers[: 1 if outside else None]
            events = (plan.noisy_sum.event(observer) for observer in observers)
            return all(event.delta(epsilon, plan.relation) <= plan.delta for event in events)

        units = int(np.ceil(smallest_sigma(enough) * 10**_SIGMA_DIGITS))
        while True:
            plan = cls(noise_multiplier=units / 10**_SIGMA_DIGITS, **settings)
            if (plan.adversaries[0].epsilon if outside else plan.epsilon) <= epsilon:
                return plan
            units += 1  # ε is not monotone in σ below the accounting's own precision

    @functools.cached_property
    def noise(self) -> NoiseSource:
        """All clients, of which T + 1 do not count."""
        if not 0 <= self.max_unreliable <= self.num_clients - 2:
            raise ArgumentError(
                f"max_unreliable must lie between 0 and num_clients - 2 = {self.num_clients - 2}, got "
                f"{self.max_unreliable}: the observing client knows its own noise, and another's must remain"
            )
        return NoiseSource(num_parties=self.num_clients, collusion_threshold=self.max_unreliable + 1)

    @functools.cached_property
    def noisy_sum(self) -> NoisySum:
        """The released mechanism, as the accounting sees it."""
        return NoisySum(
            sampling=self.sampling,
            num_records=self.num_records,
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            grid_bits=self.grid_bits,
            noise=self.noise,
        )

    @property
    def _observers(self) -> tuple[Adversary, ...]:
        """Who is watching; colluders are noise shares that are missing or known to the adversary."""
        lost, known = self.max_unreliable, self.participation == "known"
        unreliable = f" and {lost} unreliable clients" if lost else ""
        return (
            Adversary(name=OUTSIDE_ANALYST, colluders=lost),
            Adversary(name=f"one client{unreliable}", colluders=lost + 1),
            Adversary(name=f"all nodes but one, one client{unreliable}", colluders=lost + 1, knows_indices=known),
        )

    @functools.cached_property
    def adversaries(self) -> tuple[AdversaryRow, ...]:
        """The privacy table. Each row's guarantee is DP for every record that the adversary does not hold."""
        return tuple(self._row(observer) for observer in self._observers)

    def _row(self, observer: Adversary) -> AdversaryRow:
        row = self.noisy_sum.row(observer, self.delta, self.relation)
        return dataclasses.replace(row, guarantee="DP", knows=self._knowledge(observer))

    def _knowledge(self, observer: Adversary) -> tuple[str, ...]:
        knows = []
        if self.max_unreliable:
            knows.append(f"the noise of up to {self.max_unreliable} clients that collude, or dropped out")
        if observer.colluders > self.max_unreliable:
            knows += ["its own records", "its own noise"]
        if observer.name.startswith("all nodes"):
            knows.append("all shares but one node's")
        if observer.knows_indices:
            knows.append("who took part in which sum")
        return tuple(knows)

    @property
    def epsilon(self) -> float:
        """The largest ε of the table."""
        return max(row.epsilon for row in self.adversaries)

    @property
    def num_steps(self) -> int:
        """The number of noisy sums that the plan pays for."""
        return self.sampling.total_steps(self.num_records)

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a noisy sum."""
        return self.sampling.expected_batch_size(self.num_records)

    @property
    def num_shares(self) -> int:
        """How many noise vectors are added to each sum."""
        return self.noise.num_shares

    def noise_variance_per_share(self) -> int:
        """⌈C²σ²4^f/(N − T − 1)⌉, in grid units²."""
        return self.noisy_sum.share_variance

    def draw_noise_share(self, num_values: int, num_steps: int, source: RandomSource) -> np.ndarray:
        """One client's noise: int64 `[num_steps, num_values]`, in units of 2^-grid_bits. Secret."""
        flat = sample_discrete_gaussian(self.noise_variance_per_share(), num_steps * num_values, source)
        return flat.reshape(num_steps, num_values)

    def draw_noise_shares(self, num_values: int, source: RandomSource) -> np.ndarray:
        """All clients' noise for one sum, for simulations: int64 `[num_shares, num_values]`. Secret.

        From `privacy.noise_shares`, whose law is within a factor e^{±1e-75} of `draw_noise_share`'s.
        """
        size = self.num_shares * num_values
        return draw_noise_share(self.noise_variance_per_share(), size, source).reshape(self.num_shares, num_values)

    def table_rows(self) -> list[dict]:
        """The privacy table as plain data."""
        return [{**row.to_dict(), "claim": True} for row in self.adversaries]

    def to_dict(self) -> dict:
        """Plain data for JSON; `from_dict` restores an equal plan."""
        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> ClientPlan:
        """Restores a plan with its id, so its budget is the same budget."""
        settings = dict(record)
        unknown = set(settings) - {field.name for field in dataclasses.fields(cls)}
        if unknown or "plan_id" not in settings:
            raise ArgumentError(f"a stored plan has its plan_id and no field {sorted(unknown)}")
        settings["sampling"] = sampling_from_dict(settings["sampling"])
        settings["relation"] = NeighbouringRelation(settings["relation"])
        return cls(**settings)

    def fingerprint(self) -> str:
        """The plan's id and a digest of its contents."""
        return fingerprint_of(self.plan_id, self.to_dict())
