"""Links of regressions: the residual of an outcome at a predictor that the parties sum up.

A residual has a sign, and there is one component. What the outcome adds, its party knows and contributes as it is.
`model.outcomes` has the same distributions as the models write them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.core import ring
from vertinumpyro.secure.link import ScoreLink
from vertinumpyro.secure.local import LARGEST_CONTRIBUTION

if TYPE_CHECKING:
    from vertinumpyro.secure.crypten.engine import Engine

__all__ = ["BernoulliLogitLink"]


@final
@dataclasses.dataclass(frozen=True)
class BernoulliLogitLink(ScoreLink):
    """Logistic regression: e = y - sigmoid(z), of which y in [0, 1] is the outcome's party's own.

    |e| <= 1 in every arithmetic, as y and the computed sigmoid both lie in [0, 1]; sigmoid moves by a quarter of what
    z does.
    """

    name: ClassVar[str] = "bernoulli_logit"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0."""
        return bounded_sums(contribution, 1, least_own=0.0)

    def plaintext(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.plaintext`."""
        return z[..., 1:] - jax.nn.sigmoid(z[..., :1])

    def ring(self, z: jax.Array, fractional_bits: int) -> jax.Array:
        """See `ScoreLink.ring`."""
        return z[..., 1:] - ring_sigmoid(z[..., :1], fractional_bits)

    def shares(self, engine: Engine, z: Any) -> Any:
        """See `ScoreLink.shares`."""
        from vertinumpyro.secure.crypten.waves import sigmoid

        return z[..., 1:] - sigmoid(engine, z[..., :1])

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        from vertinumpyro.secure.spu.program import sigmoid

        return z[..., 1:] - sigmoid(z[..., :1])

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome with z as its log odds."""
        return z[..., 1] * z[..., 0] - jax.nn.softplus(z[..., 0])


def bounded_sums(contribution: jax.Array, num_sums: int, *, least_own: float = -1.0) -> jax.Array:
    """Contributions to sums within `LARGEST_CONTRIBUTION`, and a party's own numbers, behind them, up to 1."""
    numbers = jnp.where(jnp.isnan(contribution), 0.0, contribution)
    sums = jnp.clip(numbers[..., :num_sums], -LARGEST_CONTRIBUTION, LARGEST_CONTRIBUTION)
    return jnp.concatenate([sums, jnp.clip(numbers[..., num_sums:], least_own, 1.0)], axis=-1)


def ring_sigmoid(z: jax.Array, fractional_bits: int) -> jax.Array:
    """sigmoid(z) of ring elements with 30 fractional bits, in [0, 1]; within 3 units, so `EXP_MAX_ERROR_ULP` holds.

    1 / (1 + u), u = exp(-|z|). Where u is at least 1/2, `ring.exp_nonpositive` is off by 3.7 units, which the
    derivative, at most 1 / (1 + 1/2)^2, makes 1.7; below it is off by at most 2.9, and that makes 1.9 above 1/4, and
    less further down. The quotient, 60 bits over 31, is cut off: one more unit.
    """
    one = 1 << ring.EXP_FRACTIONAL_BITS
    upper = (one * one) // (one + ring.exp_nonpositive(-jnp.abs(z), fractional_bits))
    return jnp.where(z < 0, one - upper, upper)
