r"""Probit regression: the residual s L(s z) with s = 2 y - 1 and L(t) = phi(t) / Phi(t), the derivative of log Phi.

L falls from about -t to 0, and a residual is bounded by `MOST` = L(-6): t below -6 counts as -6, and above 6 as 6. The
sign s is one party's own, so that t = s z is one product of integers, exact.

L / `MOST` is a Chebyshev sum in t / 6 where there is one process or SPU, of 40 or of 30 terms: within 6e-10 or 7e-8.
Clenshaw's recurrence multiplies a rounding by at most the square of that many; ring: 1700 2^-40 and 40 2^-41 for the
coefficients, with the last cut 3.2e-9 in all, below 4 2^-30; SPU: 1000 2^-34, and 2^-20: 1.2e-6. On CrypTen's shares
it is a series of the waves of `crypten.waves`, within 1.4e-8 and 1.2e-7 for their roundings. The coefficients are
fitted, so their error is looked at and not derived: the waves' on a grid whose gaps a second derivative bounds, the
ring's on one of 2^-13, SPU's at 300 points. Accuracy alone rests on that, no bound of the clip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from vertinumpyro.core import ring
from vertinumpyro.secure.formats import EXP_BITS, LOG_BITS
from vertinumpyro.secure.link import ScoreLink
from vertinumpyro.secure.residual_links import bounded_sums

if TYPE_CHECKING:
    from vertinumpyro.secure.crypten.engine import Engine

__all__ = ["BernoulliProbitLink"]

REACH = 6
MOST = 6.158482604544618

# Of L(6 x) / MOST on [-1, 1], times 2^40.
_CHEBYSHEV = (
    *(372971733328, -558314736221, 198127025003, 13397084233, -26108676968, -7318456576, 5743512541, 3600982849),
    *(-1018957027, -1549820414, -74903062, 557064908, 202691114, -148976732, -127604255, 15240849, 55074570, 13005807),
    *(-17075603, -11088971, 2788483, 5336909, 805102, -1803033, -959348, 361684, 504370, 39583, -182580, -80909, 42134),
    *(46622, 309, -18036, -6583, 4659, 4229, -298, -1751, -512, 498),
)
_RING_BITS, _SPU_BITS, _SPU_TERMS = 40, 34, 31


@final
@dataclasses.dataclass(frozen=True)
class BernoulliProbitLink(ScoreLink):
    """e = s L(s z) / `MOST`, s = 2 y - 1, of which y is the outcome's party's own."""

    name: ClassVar[str] = "bernoulli_probit"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    @property
    def unit(self) -> float:
        """The largest residual."""
        return MOST

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0, and y is one or the other."""
        numbers = bounded_sums(contribution, 1)
        return jnp.concatenate([numbers[..., :1], jnp.where(numbers[..., 1:] < 0.5, 0.0, 1.0)], axis=-1)

    def plaintext(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.plaintext`."""
        sign = 2 * z[..., 1:] - 1
        return sign * _slope(jnp.clip(sign * z[..., :1], -REACH, REACH)) / MOST

    def ring(self, z: jax.Array, fractional_bits: int) -> jax.Array:
        """See `ScoreLink.ring`."""
        sign, reach = 2 * (z[..., 1:] >> ring.EXP_FRACTIONAL_BITS) - 1, REACH << fractional_bits
        t = jnp.clip(sign * z[..., :1], -reach, reach)
        found = _clenshaw(
            (t << (_RING_BITS - fractional_bits)) // REACH,
            _CHEBYSHEV,
            lambda x, b: ring.multiply_shift(x, b, _RING_BITS),
        )
        return sign * jnp.clip(found >> (_RING_BITS - ring.EXP_FRACTIONAL_BITS), 0, 1 << ring.EXP_FRACTIONAL_BITS)

    def shares(self, engine: Engine, z: Any) -> Any:
        """See `ScoreLink.shares`; six rounds. y has one owner, whose share is all of it, so it may be shifted."""
        from vertinumpyro.secure.crypten.fixed import multiply, public
        from vertinumpyro.secure.crypten.waves import mills_ratio

        sign = public(engine, 2 * (z[..., 1:] >> EXP_BITS), -1)
        return multiply(sign, mills_ratio(engine, multiply(sign, z[..., :1])))

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        from vertinumpyro.secure.spu.program import shifted_down

        reach, one = REACH << LOG_BITS, 1 << EXP_BITS
        sign = 2 * shifted_down(z[..., 1:], EXP_BITS) - 1
        t = jnp.clip(sign * z[..., :1], -reach, reach)
        x = shifted_down(t * round(2.0**39 / REACH), LOG_BITS + 9)  # with 30 bits
        coefficients = [(c + (1 << 5)) >> (_RING_BITS - _SPU_BITS) for c in _CHEBYSHEV[:_SPU_TERMS]]
        found = _clenshaw(x, coefficients, lambda x, b: shifted_down(x * b, 30))
        return sign * jnp.clip(shifted_down(found, _SPU_BITS - EXP_BITS), 0, one)

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome of probability Phi(z); straight beyond `REACH`."""
        t = z[..., 0] * (2 * z[..., 1] - 1)
        within = jnp.clip(t, -REACH, REACH)
        return log_ndtr(within) + _slope(within) * (t - within)


def _slope(t: jax.Array) -> jax.Array:
    """L(t)."""
    return jnp.exp(-(t**2) / 2 - math.log(2 * math.pi) / 2 - log_ndtr(t))


def _clenshaw(x: jax.Array, coefficients: Any, product: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """The Chebyshev sum at x, in the format of its coefficients; `product` is x times such a number."""
    after, now = jnp.zeros_like(x), jnp.full_like(x, int(coefficients[-1]))
    for coefficient in np.asarray(coefficients)[-2:0:-1].tolist():
        after, now = now, coefficient + 2 * product(x, now) - after
    return int(coefficients[0]) + product(x, now) - after
