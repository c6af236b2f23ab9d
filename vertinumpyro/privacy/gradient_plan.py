"""The plan of private variational inference: sampler, clip, noise and accounting together, never a loose σ; and what
all plans of noisy sums share, one mechanism, its steps and the noise of each share.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, final

import dp_accounting
import numpy as np

from vertinumpyro.core.errors import ArgumentError, UnprovenError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.accounting import GaussianEvent, NeighbouringRelation, PrivacyEvent, rounded_up_multiplier
from vertinumpyro.privacy.adversary import (
    OUTSIDE_ANALYST,
    Adversary,
    AdversaryRow,
    NoiseSource,
    NoisySum,
    Release,
    list_adversaries,
)
from vertinumpyro.privacy.discrete_gaussian import sample_discrete_gaussian
from vertinumpyro.privacy.forecast import Forecast
from vertinumpyro.privacy.plan import (
    LARGEST_ACCOUNTED,
    Plan,
    check_delta,
    check_party_names,
    check_target,
    select_adversaries,
)
from vertinumpyro.privacy.sampling import Sampling

LEAST_RESIDUAL_BOUND = 2.0**-10
"""A party's scores are at most C / b long, which the number formats are proved for up to 1024 C."""


def bounds_of_outcomes(residual_bound: float | Sequence[float]) -> tuple[float, ...]:
    """Each outcome's b, as a plan has them: a number where there is one outcome."""
    return (residual_bound,) if isinstance(residual_bound, int | float) else tuple(residual_bound)


def check_local_clip(
    clip_parts: Sequence[int] | None, residual_bound: float | Sequence[float], num_parties: int
) -> None:
    """Refuses parts of C^2 and a bound of the residual that no clip can have; see `secure.number_formats`.

    :param clip_parts: whole numbers, to which the parties' parts of C^2 are in proportion: so they add up to 1.
    :param residual_bound: b, of the link's unit; of several outcomes each one's.
    :raises ArgumentError: names which, and the fix.
    """
    for bound in bounds_of_outcomes(residual_bound):
        if not (math.isfinite(bound) and LEAST_RESIDUAL_BOUND <= bound <= 1):
            raise ArgumentError(
                f"residual_bound must be at least {LEAST_RESIDUAL_BOUND:g} and at most 1, the largest residual, got "
                f"{bound:g}"
            )
    if clip_parts is None:
        if residual_bound != 1:
            raise ArgumentError(
                f"residual_bound is {residual_bound}, and a record that is clipped as a whole has no such bound; "
                'choose clip="local", or leave it out'
            )
        return
    if not all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in clip_parts):
        raise ArgumentError("clip_parts must be whole numbers of at least 0, in the parties' order")
    if len(clip_parts) != num_parties or not sum(clip_parts):
        raise ArgumentError(
            f"clip_parts must be {num_parties} numbers, one for each party, of which one is above 0, got "
            f"{list(clip_parts)}"
        )


_LARGEST = 1e12
"""Of what scores are divided by, and its inverse, of the least."""


def _checked_standardisation(
    centres: Sequence[float], scales: Sequence[float], intercept: int
) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """A standardisation as plans hold it.

    :raises ArgumentError: it is none.
    """
    centres, scales = tuple(map(float, centres)), tuple(map(float, scales))
    is_one = all(map(math.isfinite, centres)) and all(1 / _LARGEST <= abs(scale) <= _LARGEST for scale in scales)
    if len(centres) != len(scales) or not is_one or not -1 <= intercept < len(scales):
        raise ArgumentError(
            "standardisation must be as many finite centres as scales, which are not 0, and the intercept's place"
        )
    if any(centres) and (intercept < 0 or centres[intercept]):
        raise ArgumentError("standardisation moves scores, and names no intercept that takes it up")
    return centres, scales, int(intercept)


class NoisySumPlan(Plan):
    """A plan that releases one noisy sum of clipped vectors at every step.

    A subclass is a frozen dataclass with these fields, and says who adds the noise.
    """

    sampling: Sampling
    clip_norm: float
    noise_multiplier: float
    grid_bits: int
    noise: NoiseSource

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
    def covered(self) -> tuple[Adversary, ...]:
        return self.noise.covered(self.observers)

    @property
    def releases(self) -> tuple[Release, ...]:
        """The noisy sums of all steps."""
        return (self.noisy_sum,)

    def event(self, observer: Adversary) -> PrivacyEvent:
        return self.noisy_sum.event(observer)

    @property
    def first_gradient(self) -> int:
        """How many steps of the ledger come before the first noisy sum."""
        return 0

    @property
    def num_gradients(self) -> int:
        """How many noisy sums there are."""
        return self.noisy_sum.num_steps

    @property
    def expected_batch_size(self) -> float:
        """The public divisor of a noisy sum; never divide by the realised size."""
        return self.sampling.expected_batch_size(self.num_records)

    @property
    def num_shares(self) -> int:
        """How many noise vectors are added to each sum."""
        return self.noise.num_shares

    def noise_variance_per_share(self) -> int:
        """⌈C²σ²4^f/(n − c)⌉ of n shares of which c may not count, in grid units²."""
        return self.noisy_sum.share_variance

    def noise_sampler(self) -> Callable[[int, RandomSource], np.ndarray]:
        """What draws so many values of one share, int64: a loop works the variance out once."""
        return functools.partial(sample_discrete_gaussian, self.noise_variance_per_share())

    def draw_noise_share(self, num_values: int, num_steps: int, source: RandomSource) -> np.ndarray:
        """One share of the noise: int64 `[num_steps, num_values]`, in units of 2^-grid_bits. Secret."""
        flat = self.noise_sampler()(num_steps * num_values, source)
        return flat.reshape(num_steps, num_values)


NO_STEPS = (
    "none, since they would add nothing: the noisy tables have all of the budget, as what this model says beyond pairs "
    "of columns would be below the steps' noise, or so many records have no room in a step's sum. Ask for steps by "
    "num_steps"
)
"""What a plan without them says."""

_MOST_OF_START = 0.999  # of ε: beyond, the steps' noise is found within the precision of ε alone


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientPlan(NoisySumPlan, kind="dpvi", own_field="batch_indices"):
    """Everything public about one run's privacy, fixed before any data is touched.

    Formal guarantee: a run that draws its batches by `sampling`, clips every record's vector to L2 norm
    `clip_norm` (in the units of the revealed sum, rounding included), adds `draw_noise_shares` and reveals
    nothing else satisfies every row of `adversaries`: against the outside analyst (ε, δ)-DP, against parties
    (ε, δ)-VPDP, for `relation`, when it runs once. `vertinumpyro.privacy.ledger` sees to "once".

    :ivar sampling: which records enter which step; `NoSteps` where a start has all of the budget, and then clip and
        noise are of nothing.
    :ivar clip_norm: C > 0.
    :ivar clip_parts: where the residual of a `party_sum` is bounded, the parties' parts of C², in proportion to these
        whole numbers: each party clips its own scores. None where a record is clipped as a whole.
    :ivar residual_bound: b, with `clip_parts`: a residual is cut to this share of the largest one; of several outcomes
        the share of each, in the order of their sums.
    :ivar noise_multiplier: σ > 0; the total noise has standard deviation σ·C, more with a collusion threshold.
    :ivar noise: who adds the noise.
    :ivar grid_bits: f, the fractional bits of the revealed sum.
    :ivar num_records: N, public.
    :ivar parties: their names; as many as `noise.num_parties`.
    :ivar delta: δ in (0, 1); at 1/N and above it warns, since publishing one whole record would satisfy it.
    :ivar relation: the neighbouring relation of the table.
    :ivar batch_indices: "known" when the parties see which records enter a step, "hidden" when the protocol keeps that
        from them as well. The outside analyst never sees it.
    :ivar unproven: the steps of the formulation whose clip or noise bound is not proved.
    :ivar allow_unproven: must be True for a plan with such steps.
    :ivar adversary: whom alone a target ε was for; None for everyone (`covered`).
    :ivar start: what is released before the first step, to begin from there; its cost is in every row of this plan, and
        its own id is no budget besides. Needs full or disjoint batches, whose steps are Gaussian.
    :ivar standardisation: of the scores of a `party_sum`, before they are clipped, public: what is taken off each, what
        each is divided by, and which is the intercept's; None where they are as they are.
    :ivar plan_id: a random name, made here; a plan with another id is another budget.
    """

    earlier: ClassVar[Mapping[str, Any]] = {
        **NoisySumPlan.earlier,
        "start": None,
        "clip_parts": None,
        "residual_bound": 1.0,
        "standardisation": None,
    }

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
    start: Plan | None = None
    clip_parts: tuple[int, ...] | None = None
    residual_bound: float | tuple[float, ...] = 1.0
    standardisation: tuple[tuple[float, ...], tuple[float, ...], int] | None = None
    plan_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", tuple(self.parties))
        object.__setattr__(self, "unproven", tuple(self.unproven))
        check_party_names(self.parties, self.noise)
        if self.clip_parts is not None:
            object.__setattr__(self, "clip_parts", tuple(self.clip_parts))
        if not isinstance(self.residual_bound, int | float):
            object.__setattr__(self, "residual_bound", tuple(self.residual_bound))
        check_local_clip(self.clip_parts, self.residual_bound, len(self.parties))
        if self.standardisation is not None:
            object.__setattr__(self, "standardisation", _checked_standardisation(*self.standardisation))
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
        if self.start is not None:
            _check_start(self.start, self)
        elif not self.num_gradients:
            raise ArgumentError("sampling: a plan without steps needs a start, or it releases nothing; give steps")

    @classmethod
    def calibrated(cls, *, epsilon: float, adversary: str | None = None, **settings: Any) -> GradientPlan:
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

    @property
    def releases(self) -> tuple[Release, ...]:
        """What the steps start from, then the noisy sums of all steps."""
        return (*(() if self.start is None else self.start.releases), self.noisy_sum)

    @property
    def first_gradient(self) -> int:
        """How many steps of the ledger come before the first noisy sum."""
        return 0 if self.start is None else self.start.num_steps

    def event(self, observer: Adversary) -> PrivacyEvent:
        """See `Plan.event`: the start and the steps."""
        return _event(self.noisy_sum, self.start, observer)

    def row(self, observer: Adversary) -> AdversaryRow:
        """See `Plan.row`; σ_eff is the noisy sums', or the start's where it is all."""
        if self.start is not None and not self.num_gradients:
            return self.start.row(observer)
        row = self.noisy_sum.row(observer, self.delta, self.relation, self.unproven)
        if self.start is None:
            return row
        return dataclasses.replace(row, epsilon=self.event(observer).epsilon(self.delta, self.relation))

    @property
    def comparisons(self) -> tuple[AdversaryRow, ...]:
        """The outside analyst under add/remove, as most papers report it.

        None where steps start from tables: their event is stated for the plan's relation, under which a record moves
        them by √(2k), and √k under add/remove, where a sum moves by half as much.
        """
        if self.relation is NeighbouringRelation.ADD_REMOVE or self.start is not None:
            return ()
        return (self.comparison,)

    @functools.cached_property
    def comparison(self) -> AdversaryRow:
        """The outside analyst under add/remove, of steps without a start. Not the claim of this plan.

        :raises ArgumentError: there is a start.
        """
        if self.start is not None:
            raise ArgumentError("comparison: no ε under add/remove is stated for steps that start from tables")
        return self.noisy_sum.row(
            Adversary(name=OUTSIDE_ANALYST), self.delta, NeighbouringRelation.ADD_REMOVE, self.unproven
        )

    @property
    def steps_note(self) -> str:
        """Why there are no steps; empty where there are some."""
        return "" if self.num_gradients else NO_STEPS

    @property
    def forecast(self) -> Forecast | None:
        """The standard errors that fits will have, where they know the noise; None of a plan read from a record."""
        return self.__dict__.get("_forecast")

    def keep_forecast(self, forecast: Forecast | None) -> None:
        """For who makes the plan. It is beside what the plan says: in no record, and in no comparison."""
        object.__setattr__(self, "_forecast", forecast)

    def __str__(self) -> str:
        """With a forecast, or without steps, that and what the plan costs, within 80 columns; else all fields."""
        costs = f"ε ≤ {self.worst.epsilon:.4g}, δ = {self.delta:g}, N = {self.num_records:,}"
        if not self.num_gradients:
            return f"{costs}\n" + "\n".join(textwrap.wrap(f"Steps: {NO_STEPS}", 80))
        return repr(self) if self.forecast is None else f"{costs}, {self.num_gradients} steps\n{self.forecast}"

    def __repr__(self) -> str:
        """All fields; without steps what that means."""
        shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self)]
        return f"GradientPlan({', '.join(shown)}{'' if self.num_gradients else f'; steps: {NO_STEPS}'})"

    def draw_noise_shares(self, num_values: int, num_steps: int, source: RandomSource) -> np.ndarray:
        """All parties' noise, for simulations: int64 `[num_steps, num_shares, num_values]`. Secret."""
        size = num_steps * self.num_shares * num_values
        flat = self.noise_sampler()(size, source)
        return flat.reshape(num_steps, self.num_shares, num_values)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The outside analyst's event for dp-accounting; batch truncation is not part of it."""
        return self.event(Adversary(name=OUTSIDE_ANALYST)).dp_event()

    @classmethod
    def _decoded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        start = fields.get("start")
        return super()._decoded({**fields, "start": None if start is None else Plan.from_dict(start)})

    def _encoded(self, name: str, value: Any) -> Any:
        return value.to_dict() if isinstance(value, Plan) else super()._encoded(name, value)

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
    start: Plan | None = None

    def noisy_sum(self, sigma: float) -> NoisySum:
        names = ("sampling", "clip_norm", "noise", "grid_bits", "num_records")
        return NoisySum(noise_multiplier=sigma, **{name: getattr(self, name) for name in names})


def calibrate_noise_multiplier(*, epsilon: float, adversary: str | None = None, **settings: Any) -> float:
    """The smallest σ, rounded up to 4 decimals, for which everyone's ε is at most `epsilon`.

    :param epsilon: the target, > 0.
    :param adversary: the name of a row of the privacy table, whom alone it is for; None for the outside analyst, every
        party, and coalitions of up to `noise.collusion_threshold`.
    :param settings: the fields of `GradientPlan` up to `batch_indices`, without `noise_multiplier`, and `start`.
    :raises ArgumentError: no σ up to 1e6 reaches the target, or a setting is wrong.
    """
    check_target(epsilon, LARGEST_ACCOUNTED)
    task = _Calibration(**settings)
    check_delta(task.delta, task.num_records, warn=False)
    observers = list_adversaries(task.parties, batch_indices=task.batch_indices)
    targets = select_adversaries(observers, task.noise.covered(observers), adversary)

    def events(sigma: float) -> Mapping[Any, None]:
        """What the targets observe; parties observe the same."""
        steps = task.noisy_sum(sigma)
        return dict.fromkeys(_event(steps, task.start, target) for target in targets)

    if task.start is not None:
        spent = max(task.start.event(target).epsilon(task.delta, task.relation) for target in targets)
        if spent > _MOST_OF_START * epsilon:
            raise ArgumentError(f"start: it takes {spent:.3g} of epsilon={epsilon:g} already; give it less")

    def likely(sigma: float) -> bool:
        return all(event.delta(epsilon, task.relation) <= task.delta for event in events(sigma))

    def enough(sigma: float) -> bool:
        return all(event.epsilon(task.delta, task.relation) <= epsilon for event in events(sigma))

    return rounded_up_multiplier(enough, likely=likely)


def _event(steps: NoisySum, start: Plan | None, observer: Adversary) -> PrivacyEvent:
    """What the observer sees of the start and the steps together."""
    if start is not None and not steps.num_steps:
        return start.event(observer)
    event = steps.event(observer)
    if start is None:
        return event
    before = start.event(observer)
    if not isinstance(event, GaussianEvent):
        raise ArgumentError(
            "start: steps after it must be Gaussian; let every step take all records, or use disjoint batches"
        )
    if not isinstance(before, GaussianEvent):
        raise ArgumentError(f"start: a plan of kind {start.kind!r} that is not Gaussian cannot come before the steps")
    return event.after(before)


def _check_start(start: Plan, plan: GradientPlan) -> None:
    """Refuses what was planned for other tables, or for noise that would not be composed as the rows say."""
    for name in ("num_records", "parties", "relation"):
        if getattr(start, name, None) != getattr(plan, name):
            raise ArgumentError(f"start was planned for another {name}")
    for observer in plan.observers:
        _ = _event(plan.noisy_sum, start, observer)
