r"""What a score function may do with numbers, whichever arithmetic they are in: floats, integers of a ring, shares.

A score function is one formula over an `Arithmetic`, which every backend fills in for its own numbers. z, the sums of
the parties' contributions, has one number format of its own, and the weights e have another; a party's own numbers
behind the sums are in that of e.

**The Mills ratio.** L(t) = phi(t) / Phi(t), the derivative of log Phi, falls from about -t to 0. t below -6 counts as
-6, and above 6 as 6, so that L is bounded by `MOST_MILLS` = L(-6). L / `MOST_MILLS` is a Chebyshev sum in t / 6 where
there is one process or SPU, of 40 or of 30 terms: within 6e-10 or 7e-8. Clenshaw's recurrence multiplies a rounding by
at most the square of that many; ring: 1700 2^-40 and 40 2^-41 for the coefficients, with the last cut 3.2e-9 in all,
below 4 2^-30; SPU: 1000 2^-34, and 2^-20: 1.2e-6. On CrypTen's shares it is a series of the waves of `crypten.sigmoid`,
within 1.4e-8 and 1.2e-7 for their roundings. The coefficients are fitted, so their error is looked at and not derived:
the waves' on a grid whose gaps a second derivative bounds, the ring's on one of 2^-13, SPU's at 300 points. Accuracy
alone rests on that, no bound of the clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

MILLS_REACH = 6
MOST_MILLS = 6.158482604544618

MILLS_COEFFICIENT_BITS = 40
MILLS_COEFFICIENTS = (
    *(372971733328, -558314736221, 198127025003, 13397084233, -26108676968, -7318456576, 5743512541, 3600982849),
    *(-1018957027, -1549820414, -74903062, 557064908, 202691114, -148976732, -127604255, 15240849, 55074570, 13005807),
    *(-17075603, -11088971, 2788483, 5336909, 805102, -1803033, -959348, 361684, 504370, 39583, -182580, -80909, 42134),
    *(46622, 309, -18036, -6583, 4659, 4229, -298, -1751, -512, 498),
)
"""Of L(6 x) / `MOST_MILLS` on [-1, 1], times 2^40."""


@runtime_checkable
class Arithmetic(Protocol):
    """Operations on a batch's numbers [n, ...]. Beside them there are +, - and products with public whole numbers.

    What gives e is off by no more than the stated error of the arithmetic: `ring.EXP_MAX_ERROR_ULP` units of 2^-30 on
    integers, `crypten.number_formats.EXP_ERROR` on CrypTen's shares, 4e-6 with SPU. Its bounds are exact everywhere,
    but for one unit with CrypTen where it says so. Nothing that is not uniformly masked is opened.
    """

    def exp_below_max(self, z: Any, halvings: int = 0) -> Any:
        """exp((z - max z) 2^-halvings) over the last axis, in the format of e: from 0 to 1, and 1 where z is largest.

        With CrypTen the largest may be a unit more.
        """
        ...

    def capped_exp(self, z: Any) -> Any:
        """exp(min(z, 0)) in the format of e, from 0 to 1; with CrypTen it may be a unit more."""
        ...

    def sigmoid_sum(self, z: Any) -> Any:
        """The sum of sigmoid(z) over the last axis, kept, in the format of e: from 0 to the axis's length."""
        ...

    def clip(self, z: Any) -> Any:
        """clip(z, -1, 1) in the format of e."""
        ...

    def mills_ratio(self, t: Any) -> Any:
        """phi(t) / Phi(t) over `MOST_MILLS`, t in the format of z, in that of e; with CrypTen it may be a unit off."""
        ...

    def sign(self, own: Any) -> Any:
        """2 y - 1 as a whole number, of y in {0, 1} that one party alone has, in the format of e."""
        ...

    def times(self, sign: Any, x: Any) -> Any:
        """Such a sign times a number of any format, exactly."""
        ...

    def portion(self, x: Any, e: Any) -> Any:
        """A number of [0, 2] times e of [0, 1], both in the format of e: off by less than a unit, and not below 0."""
        ...

    def plus(self, e: Any, number: float | int) -> Any:
        """A public number added, rounded to the format of e."""
        ...

    def stack(self, arrays: Sequence[Any], axis: int) -> Any:
        """As NumPy's."""
        ...

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """As NumPy's."""
        ...


def mills(t: jax.Array) -> jax.Array:
    """phi(t) / Phi(t) in floating point."""
    return jnp.exp(-(t**2) / 2 - math.log(2 * math.pi) / 2 - log_ndtr(t))


def chebyshev_sum(x: jax.Array, coefficients: Any, product: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """The Chebyshev sum at x by Clenshaw's recurrence, in the format of its coefficients.

    :param product: x times such a number.
    """
    after, now = jnp.zeros_like(x), jnp.full_like(x, int(coefficients[-1]))
    for coefficient in np.asarray(coefficients)[-2:0:-1].tolist():
        after, now = now, coefficient + 2 * product(x, now) - after
    return int(coefficients[0]) + product(x, now) - after
