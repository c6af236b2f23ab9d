"""From noisy clipped sums to (ε, δ): one frozen event per mechanism, one meaning per event, what several of them cost
together, and the smallest noise that reaches a target.
"""

from __future__ import annotations

import abc
import dataclasses
import decimal
import enum
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, final

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.rdp import RdpAccountant
from scipy import special, stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import shown

_TOLERANCE = 1e-7
_LARGEST_EPSILON = 1e7
_LOST_MASS = 1e-18


class NeighbouringRelation(enum.Enum):
    """Which two tables the guarantee makes hard to tell apart.

    REPLACE: one record becomes any other record; N is public. The honest default between parties who know
    who is in the table. ADD_REMOVE: one record's contribution is there or zeroed; N is public all the same, since
    every plan, and many a release, states it.
    """

    REPLACE = "replace"
    ADD_REMOVE = "add_remove"

    @property
    def sensitivity(self) -> int:
        """How far one record moves the sum, in units of the clip norm C."""
        return 2 if self is NeighbouringRelation.REPLACE else 1

    @property
    def _dp_accounting(self) -> dp_accounting.NeighboringRelation:
        names = dp_accounting.NeighboringRelation
        return names.REPLACE_ONE if self is NeighbouringRelation.REPLACE else names.ADD_OR_REMOVE_ONE


def neighbouring(relation: NeighbouringRelation | str) -> NeighbouringRelation:
    """A relation, or the one of that name.

    :raises ArgumentError: there is none; the message lists the names.
    """
    try:
        return NeighbouringRelation(relation)
    except (TypeError, ValueError):
        choices = [known.value for known in NeighbouringRelation]
        raise ArgumentError(f"relation={shown(relation)} is unknown; choose one of {choices}") from None


class PrivacyEvent(abc.ABC):
    """A mechanism as the accounting sees it. Abstract; the frozen dataclasses below are final."""

    @abc.abstractmethod
    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """An upper bound of δ(ε)."""

    @abc.abstractmethod
    def dp_event(self) -> dp_accounting.DpEvent:
        """The same mechanism, or one that dominates it, in dp-accounting's words."""

    @final
    def epsilon(self, delta: float, relation: NeighbouringRelation) -> float:
        """The smallest ε, up to 1e-7 and from above, with δ(ε) ≤ `delta`; infinite when there is none."""
        if not 0 < delta < 1:
            raise ArgumentError(f"delta must lie in (0, 1), got {delta}")
        return _epsilon(self, delta, relation)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent(PrivacyEvent):
    r"""`count` releases in which the record takes part for certain: disjoint batches, full batches.

    \(\delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)\)
    with μ = s√count/σ, exactly (Balle and Wang 2018); s = 2 for replace, 1 for add/remove. Knowing in
    which releases it takes part does not help.
    """

    noise_multiplier: float
    count: int

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_count("count", self.count)

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The closed form, in log space."""
        shift = relation.sensitivity * math.sqrt(self.count) / self.noise_multiplier
        return float(gaussian_delta(epsilon, np.array([shift]))[0])

    def after(self, earlier: GaussianEvent) -> GaussianEvent:
        """Both, this one chosen in the light of the earlier: 1/σ² adds up (Dong, Roth and Su 2022, Corollary 3.3)."""
        precision = sum(event.count / event.noise_multiplier**2 for event in (self, earlier))
        return GaussianEvent(noise_multiplier=precision**-0.5 * (1 - 2.0**-50), count=1)

    def dp_event(self) -> dp_accounting.DpEvent:
        """A self-composed Gaussian event."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(gaussian, self.count)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonKnownEvent(PrivacyEvent):
    r"""Poisson batches, towards an adversary who sees the batch indices.

    The indices have the same law whatever the data, so given them the record takes part in n known releases:
    \(\delta(\varepsilon) = E_{n \sim Bin(T, q)}\,\delta_{Gauss}(\varepsilon;\ s\sqrt{n}/\sigma)\), exactly.
    Truncation only takes participations away: n falls, pathwise, and δ with it, so no term is added for it.
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: int

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_prob(self.sampling_prob)
        _check_count("num_steps", self.num_steps)

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The mixture over the number of participations."""
        counts, weights, above = _participations(self.num_steps, self.sampling_prob)
        shifts = relation.sensitivity * np.sqrt(counts) / self.noise_multiplier
        return min(1.0, float(weights @ gaussian_delta(epsilon, shifts)) + above)

    def dp_event(self) -> dp_accounting.DpEvent:
        """T releases without amplification: dp-accounting has no event for known indices."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        return dp_accounting.SelfComposedDpEvent(gaussian, self.num_steps)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonEvent(PrivacyEvent):
    """Poisson batches, towards an adversary who sees no batch index: amplified by sampling.

    Per release and given the other records, the outputs are P = (1−q)N(0) + q·N(u) and, by relation:

    - add/remove: Q = N(0), |u| ≤ C; the worst pair is one-dimensional with |u| = C, both directions.
    - replace: Q = (1−q)N(0) + q·N(v), |u|, |v| ≤ C; the worst pair has v = −u, |u| = C. Proof: by advanced
      joint convexity, for ε ≥ 0 it is enough to bound the divergence of N(u) from (1−β)N(0) + βN(v), that is
      E(1 − αr)₊ with r = (1−β)e^A + βe^B under N(u), where A and B are normal with variances |u|²/σ² and
      |u−v|²/σ² and e^A, e^B have mean 1. A convex function of a sum is largest for comonotone terms that are
      each largest in convex order: A = −gC/σ − ½(C/σ)², B = −2gC/σ − ½(2C/σ)², which v = −u attains. ε < 0
      follows by swapping P and Q. Mixing over the other records' inclusion is joint convexity.

    Truncated batches: let M be the real mechanism, M' the one without truncation. They agree unless some step
    truncates, so their laws are within τ = `truncation_delta` in total variation, and
    M(D)(S) ≤ M'(D)(S) + τ ≤ e^ε·M'(D')(S) + δ' + τ ≤ e^ε·M(D')(S) + δ' + (1 + e^ε)τ.
    Under replace, M is also a post-processing of itself with indices shown, so `PoissonKnownEvent`'s δ holds
    too, and the smaller of both is returned: it matters where e^ε·τ is large.

    The FFT behind the composition rounds: it was measured to err by less than T·2^-53 in δ, which is added.
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    truncation_delta: float = 0.0

    def __post_init__(self) -> None:
        _check_noise(self.noise_multiplier)
        _check_prob(self.sampling_prob)
        _check_count("num_steps", self.num_steps)
        if not 0 <= self.truncation_delta <= 1:
            raise ArgumentError(f"truncation_delta must lie in [0, 1], got {self.truncation_delta}")

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The amplified bound with its truncation term, or the unamplified one where that is smaller."""
        pld = _poisson_pld(self.noise_multiplier, self.sampling_prob, self.num_steps, relation)
        amplified = float(pld.get_delta_for_epsilon(epsilon)) + self.num_steps * 2.0**-53
        truncated = (1 + math.exp(min(epsilon, 700.0))) * self.truncation_delta
        total = min(1.0, amplified + truncated)
        if truncated > amplified and relation is NeighbouringRelation.REPLACE:
            return min(total, self._known.delta(epsilon, relation))
        return total

    def dp_event(self) -> dp_accounting.DpEvent:
        """A self-composed Poisson-sampled Gaussian event, without the truncation term."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        sampled = dp_accounting.PoissonSampledDpEvent(self.sampling_prob, gaussian)
        return dp_accounting.SelfComposedDpEvent(sampled, self.num_steps)

    def rdp_epsilon(self, delta: float) -> float:
        """ε by Rényi DP, add/remove, without truncation: what the DPVI paper reports. For comparison only."""
        accountant = RdpAccountant()
        accountant.compose(self.dp_event())
        return float(accountant.get_epsilon(delta))

    @property
    def _known(self) -> PoissonKnownEvent:
        return PoissonKnownEvent(
            noise_multiplier=self.noise_multiplier,
            sampling_prob=self.sampling_prob,
            num_steps=self.num_steps,
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PureEvent(PrivacyEvent):
    """A mechanism of which nothing but pure ε is claimed, for the relation that it was made for.

    δ(ε') = 0 from ε on, and below it the randomised response that dominates every such mechanism has
    δ(ε') = (e^ε − e^ε')/(1 + e^ε).
    """

    pure_epsilon: float

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The dominating mechanism's."""
        if not math.isfinite(self.pure_epsilon):
            return 1.0
        # (e^a − e^b)/(1 + e^a) = (1 − e^(b − a))/(1 + e^(−a))
        return max(0.0, -math.expm1(epsilon - self.pure_epsilon) / (1 + math.exp(-self.pure_epsilon)))

    def dp_event(self) -> dp_accounting.DpEvent:
        """Laplace noise of scale 1/ε has the same pure ε."""
        return dp_accounting.LaplaceDpEvent(1 / self.pure_epsilon)


def gaussian_delta(epsilon: float, shifts: np.ndarray) -> np.ndarray:
    """δ(ε) of N(0, 1) against N(μ, 1) for each μ ≥ 0 in `shifts`; 0 where μ = 0 and ε ≥ 0."""
    shifts = np.asarray(shifts, dtype=np.float64)
    out = np.full(shifts.shape, -math.expm1(min(epsilon, 0.0)))
    mu = shifts[shifts > 0]
    # Φ(a) − e^ε·Φ(b) = Φ(a)·(1 − e^{ε + ln Φ(b) − ln Φ(a)}): no overflow of e^ε, no cancellation.
    first = special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    out[shifts > 0] = np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return out


@functools.lru_cache(maxsize=32)
def _participations(num_steps: int, prob: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The counts n that matter, their weights under Bin(T, q), and the mass above them.

    The mass below the window is moved up to its lower end, the mass above it counts as δ = 1: both upwards.
    """
    low = int(stats.binom.ppf(_LOST_MASS, num_steps, prob))
    high = int(stats.binom.isf(_LOST_MASS, num_steps, prob))
    counts = np.arange(low, high + 1)
    weights = np.asarray(stats.binom.pmf(counts, num_steps, prob))
    weights[0] += stats.binom.cdf(low - 1, num_steps, prob) if low > 0 else 0.0
    for array in (counts, weights):
        array.flags.writeable = False  # cached, so shared
    return counts, weights, float(stats.binom.sf(high, num_steps, prob))


@functools.lru_cache(maxsize=16)
def _poisson_pld(
    noise_multiplier: float, prob: float, num_steps: int, relation: NeighbouringRelation
) -> pld_lib.PrivacyLossDistribution:
    single = pld_lib.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=prob,
        value_discretization_interval=_discretisation(noise_multiplier, prob, num_steps),
        neighboring_relation=relation._dp_accounting,
    )
    return single.self_compose(num_steps)


def _discretisation(noise_multiplier: float, prob: float, num_steps: int) -> float:
    """A grid of losses on which ε is too large by about a few 1e-4 of itself, for T steps.

    Each step adds about h² to ε, so h² ≈ 2e-4·ε/T, with ε from the central limit of composed sampling. The
    choice affects precision and time only: every h gives an upper bound.
    """
    mu = prob * math.sqrt(num_steps * math.expm1(min(noise_multiplier**-2, 40.0)))
    rough_epsilon = max(mu * (4 + mu / 2), 0.05)
    return min(1e-2, math.sqrt(2e-4 * rough_epsilon / num_steps))


@functools.lru_cache(maxsize=256)
def _epsilon(event: PrivacyEvent, delta: float, relation: NeighbouringRelation) -> float:
    """The upper end of a bracket of the smallest ε with δ(ε) ≤ delta; the upper end is always feasible."""

    def delta_of(epsilon: float) -> float:
        return event.delta(epsilon, relation)

    if delta_of(0.0) <= delta:
        return 0.0
    high = _feasible(delta_of, delta)
    low = 0.0
    while math.isfinite(high) and high - low > _TOLERANCE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return high


def _feasible(delta_of: Callable[[float], float], delta: float) -> float:
    """Some ε with delta_of(ε) ≤ delta, or infinity. Small steps: truncation can make the feasible ε few."""
    candidate = 0.05
    while candidate < _LARGEST_EPSILON:
        if delta_of(candidate) <= delta:
            return candidate
        candidate *= 1.2
    return math.inf


def _check_noise(noise_multiplier: float) -> None:
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ArgumentError(f"noise_multiplier must be positive and finite, got {noise_multiplier}")


def _check_prob(sampling_prob: float) -> None:
    if not 0 < sampling_prob < 1:
        raise ArgumentError(
            f"sampling_prob must lie in (0, 1), got {sampling_prob}; at 1 use GaussianEvent(count=num_steps)"
        )


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(f"{name} must be at least 1, got {value}")


_GRID = 600  # cells of losses in the total ε: on it, ε is too large by less than 1e-3 of itself
_LOST = 1e-3  # of δ: how much of it all curves' ends together may take
_SMALLEST_TOTAL = 0.01
_FURTHEST = 60.0  # a loss beyond which a curve is cut, and its δ counted in full


@final
@dataclass(frozen=True)
class WorstEvent(PrivacyEvent):
    """One of several events, nobody knows which: what the worst of several coalitions observes."""

    events: tuple[PrivacyEvent, ...]

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The largest of theirs."""
        return max(event.delta(epsilon, relation) for event in self.events)

    def dp_event(self) -> dp_accounting.DpEvent:
        """None of dp-accounting's."""
        return dp_accounting.UnsupportedDpEvent()


@final
@dataclass(frozen=True)
class _Replacement(PrivacyEvent):
    """A replacement as a removal and an addition: δ(ε) ≤ (1 + e^{ε/2}) δ'(ε/2), δ' under add/remove."""

    event: PrivacyEvent

    def delta(self, epsilon: float, relation: NeighbouringRelation) -> float:
        """The bound of group privacy for two steps."""
        half = epsilon / 2
        return min(1.0, (1 + math.exp(min(half, 700.0))) * self.event.delta(half, NeighbouringRelation.ADD_REMOVE))

    def dp_event(self) -> dp_accounting.DpEvent:
        """None of dp-accounting's."""
        return dp_accounting.UnsupportedDpEvent()


def under_replacement(event: PrivacyEvent, made_for: NeighbouringRelation) -> PrivacyEvent:
    """A plan's event when one record is replaced, for whatever relation the plan was made.

    Noisy sums know the shift of a replacement themselves, and the shift of a Gaussian release at most doubles; a pure
    ε counts twice; of any other mechanism the bound for groups of two holds.
    """
    if made_for is NeighbouringRelation.REPLACE or isinstance(event, GaussianEvent | PoissonEvent | PoissonKnownEvent):
        return event
    if isinstance(event, PureEvent):
        return PureEvent(pure_epsilon=2 * event.pure_epsilon)
    return _Replacement(event)


def composed_epsilon(events: Sequence[PrivacyEvent], delta: float, relation: NeighbouringRelation) -> float:
    """An upper bound of the ε of all events together, chosen one in the light of the other; infinite without a claim.

    :param delta: δ of all of them together; at 0 there is a claim for pure events alone.
    """
    if not events:
        return 0.0
    if delta == 0:
        return math.fsum(event.pure_epsilon if isinstance(event, PureEvent) else math.inf for event in events)
    gaussian = [event for event in events if isinstance(event, GaussianEvent)]
    others = [event for event in events if not isinstance(event, GaussianEvent)]
    merged: list[PrivacyEvent] = others
    if gaussian:
        first, *rest = gaussian
        for event in rest:
            first = first.after(event)
        merged = [first, *others]
    singles = [event.epsilon(delta, relation) for event in merged]
    if len(merged) == 1 or not all(map(math.isfinite, singles)):
        return singles[0] if len(merged) == 1 else math.inf
    interval = max(_SMALLEST_TOTAL, math.hypot(*singles)) / _GRID
    total = _loss(merged[0], relation, interval, delta / len(merged))
    for event in merged[1:]:
        total = total.compose(_loss(event, relation, interval, delta / len(merged)))
    rounding = len(merged) * 2.0**-50  # of the convolutions, as for `PoissonEvent`
    return float(total.get_epsilon_for_delta(delta - rounding)) if delta > rounding else math.inf


def _loss(
    event: PrivacyEvent, relation: NeighbouringRelation, interval: float, delta: float
) -> pld_lib.PrivacyLossDistribution:
    """The pair that the hull of the event's curve stands for."""
    last = math.ceil(min(event.epsilon(_LOST * delta, relation), _FURTHEST) / interval)
    above = np.array([min(1.0, event.delta(step * interval, relation)) for step in range(last + 1)])
    above = np.minimum.accumulate(above)
    below = -np.expm1(-interval * np.arange(1, last + 1)) + np.exp(-interval * np.arange(1, last + 1)) * above[1:]
    deltas = np.concatenate([np.minimum(1.0, below)[::-1], above])
    steps = np.arange(-last, last + 1)
    kept = _hull(np.exp(interval * steps), deltas)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, steps[kept], deltas[kept])
    return pld_lib.PrivacyLossDistribution(pmf)


def _hull(x: np.ndarray, y: np.ndarray) -> list[int]:
    """The points of the lower convex hull, from left to right."""
    kept: list[int] = []
    for index in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (y[b] - y[a]) * (x[index] - x[a]) < (y[index] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(index)
    return kept


_DIGITS = 4
_LARGEST = 1e6


def rounded_up_multiplier(enough: Callable[[float], bool], *, likely: Callable[[float], bool] | None = None) -> float:
    """The smallest σ, rounded up to 4 decimals, for which `enough` holds.

    :param enough: whether a σ reaches the target; asked of the answer itself.
    :param likely: a cheaper test for the search; None takes `enough`.
    :raises ArgumentError: no σ up to 1e6 reaches it.
    """
    units = math.ceil(smallest_multiplier(likely or enough) * 10**_DIGITS)
    while not enough(units / 10**_DIGITS):
        units += max(1, units // 10**6)  # ε is not monotone in σ below the accounting's own precision
    return units / 10**_DIGITS


@functools.lru_cache(maxsize=64)
def gaussian_noise_multiplier(epsilon: float, delta: float, relation: NeighbouringRelation) -> float:
    """The smallest standard deviation over Δ, up to 1e-4 and from above, of one Gaussian release with δ(ε) <= delta."""

    def enough(sigma: float) -> bool:
        return GaussianEvent(noise_multiplier=sigma, count=1).delta(epsilon, relation) <= delta

    return smallest_multiplier(enough) / relation.sensitivity


def smallest_multiplier(enough: Callable[[float], bool]) -> float:
    """The smallest σ with `enough`, to well below the last decimal and from above, by bisection between powers."""
    high = 1.0
    while not enough(high):
        high *= 2
        if high > _LARGEST:
            raise ArgumentError(
                "epsilon is out of reach: lower num_steps or the batch size, or raise max_batch_size or delta"
            )
    low = high / 2
    step = 10.0**-_DIGITS
    while low > step and enough(low):
        low, high = low / 2, low
    while high - low > step / 4:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


_SMALLEST_DECIMAL = 0.001
_TWO_DIGITS = decimal.Context(prec=2, rounding=decimal.ROUND_CEILING)
_THREE_DECIMALS = decimal.Context(prec=400, rounding=decimal.ROUND_CEILING)  # of any float


def rounded_up(epsilon: Any) -> str:
    """An ε to three decimals, or two digits where it is below 0.001; never below its value, "∞" without a guarantee."""
    value = float(epsilon)
    if not math.isfinite(value):
        return "∞"
    exact = Decimal(repr(value))  # the shortest decimal that reads as this float: 0.1 stays 0.1
    if 0 < value < _SMALLEST_DECIMAL:
        return f"{float(_TWO_DIGITS.create_decimal(exact)):.2g}"
    return str(exact.quantize(Decimal("0.001"), context=_THREE_DECIMALS))
