"""The smallest noise that reaches a target: one search for every plan."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy.accounting import GaussianEvent, NeighbouringRelation

__all__ = ["gaussian_noise_multiplier", "rounded_up_multiplier", "smallest_multiplier"]

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
