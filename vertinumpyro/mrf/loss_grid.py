"""Privacy profiles as distributions of losses on a grid, which dp-accounting's FFT composes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from scipy import special

__all__ = ["gaussian_pld", "on_grid"]

_TAIL = 12.0  # standard deviations of the loss: what lies beyond, 1e-33, counts as infinite loss


def on_grid(
    profile: Callable[[np.ndarray], np.ndarray], lowest: float, highest: float, interval: float
) -> pld_pmf.PLDPmf:
    """A loss distribution whose profile is at least `profile` everywhere (connect the dots, pessimistic).

    Args:
        profile: δ at each ε of an array; upper bounds of it will do.
        lowest: the grid begins here; smaller losses count as this.
        highest: the grid ends here; larger losses count as infinite.
        interval: between two losses of the grid.
    """
    steps = np.arange(math.floor(lowest / interval) - 1, math.ceil(highest / interval) + 2)
    deltas = np.maximum(profile(steps * interval), -np.expm1(np.minimum(steps * interval, 0.0)))
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # undoes what rounding does to a falling function, upwards
    return pld_pmf.create_pmf_pessimistic_connect_dots(interval, steps, deltas)


def gaussian_pld(mu: float, interval: float) -> pld_lib.PrivacyLossDistribution:
    """N(0, 1) against N(μ, 1), as dp-accounting's own, without a Python loop over the grid."""

    def profile(epsilons: np.ndarray) -> np.ndarray:
        first = special.log_ndtr(mu / 2 - epsilons / mu)
        second = epsilons + special.log_ndtr(-mu / 2 - epsilons / mu)
        return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))

    middle, reach = mu**2 / 2, _TAIL * mu
    return pld_lib.PrivacyLossDistribution(on_grid(profile, middle - reach, middle + reach, interval))
