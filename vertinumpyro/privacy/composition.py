r"""What several mechanisms cost together, whatever each of them is.

Gaussian events compose in closed form. Any other one is known by an upper bound of its curve ε ↦ δ(ε), and for a
symmetric relation the curve at ε ≥ 0 says all: exchanging both tables gives
\(\delta(-\varepsilon) \le 1 - e^{-\varepsilon}(1 - \delta(\varepsilon))\). The true curve is convex in e^ε, so it lies
below the lower convex hull of any upper bounds on a grid, and the pair of laws whose curve is that hull dominates the
mechanism (Doroshenko et al. 2022, "Connect the dots"). Dominating pairs compose, also where a later mechanism was
chosen in the light of an earlier release (Zhu, Dong and Wang 2022, Theorem 10); dp-accounting convolves them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.privacy.accounting import (
    GaussianEvent,
    NeighbouringRelation,
    PoissonEvent,
    PoissonKnownEvent,
    PrivacyEvent,
    PureEvent,
)

__all__ = ["WorstEvent", "composed_epsilon", "under_replacement"]

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
