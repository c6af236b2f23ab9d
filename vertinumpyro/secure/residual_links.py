"""Links of regressions: the residual of an outcome at a predictor that the parties sum up.

A residual has a sign, and there is one component for each outcome. What the outcome adds, its party knows and
contributes as it is. `model.outcomes` has the same distributions as the models write them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.core import ring
from vertinumpyro.secure.formats import EXP_BITS, LOG_BITS
from vertinumpyro.secure.link import ScoreLink
from vertinumpyro.secure.local import LARGEST_CONTRIBUTION

if TYPE_CHECKING:
    from vertinumpyro.secure.crypten.engine import Engine

__all__ = ["BernoulliLogitLink", "NormalLink", "OrderedLogitLink", "PoissonLink"]


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
        from vertinumpyro.secure.crypten.waves import sigmoids

        return z[..., 1:] - sigmoids(engine, z[..., :1])

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        from vertinumpyro.secure.spu.program import sigmoid

        return z[..., 1:] - sigmoid(z[..., :1])

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome with z as its log odds."""
        return z[..., 1] * z[..., 0] - jax.nn.softplus(z[..., 0])


@final
@dataclasses.dataclass(frozen=True)
class OrderedLogitLink(ScoreLink):
    """Ordered categories: e = 1 - sigmoid(z_1) - sigmoid(z_2).

    The sums are the predictor less the cut points above and below the outcome's category, of which the last has none
    above and the first none below: there the bound stands for infinity. -1 <= e <= 1, as each sigmoid is from 0 to 1.
    """

    name: ClassVar[str] = "ordered_logit"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 2
    error_factor: ClassVar[float] = 2.0

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0."""
        return bounded_sums(contribution, 2)

    def plaintext(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.plaintext`."""
        return 1 - jax.nn.sigmoid(z).sum(axis=-1, keepdims=True)

    def ring(self, z: jax.Array, fractional_bits: int) -> jax.Array:
        """See `ScoreLink.ring`."""
        return (1 << ring.EXP_FRACTIONAL_BITS) - ring_sigmoid(z, fractional_bits).sum(axis=-1, keepdims=True)

    def shares(self, engine: Engine, z: Any) -> Any:
        """See `ScoreLink.shares`."""
        from vertinumpyro.secure.crypten.fixed import public
        from vertinumpyro.secure.crypten.waves import sigmoids

        return public(engine, -sigmoids(engine, z), 1 << EXP_BITS)

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        from vertinumpyro.secure.spu.program import sigmoid

        return (1 << EXP_BITS) - sigmoid(z).sum(axis=-1, keepdims=True)

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome's category: log(1 - sigmoid(z_1)) + log sigmoid(z_2)."""
        return -jax.nn.softplus(z[..., 0]) - jax.nn.softplus(-z[..., 1])


@final
@dataclasses.dataclass(frozen=True)
class NormalLink(ScoreLink):
    """Linear regression of a public scale: e = clip(-z, -1, 1), z = (eta - y) / (width scale).

    The outcome is part of the sum. Beyond `width` scales the residual is cut off, as in Huber's regression; the clip
    cuts a record off where its gradient is that long anyway.

    :param width: in scales.
    """

    name: ClassVar[str] = "normal"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 1

    width: float

    @property
    def computed_as(self) -> str:
        """The width is in z."""
        return self.name

    @property
    def unit(self) -> float:
        """The scores are those of eta, times width / scale, and z is eta over as much."""
        return self.width**2

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0."""
        return bounded_sums(contribution, 1)

    def plaintext(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.plaintext`."""
        return jnp.clip(-z, -1, 1)

    def ring(self, z: jax.Array, fractional_bits: int) -> jax.Array:
        """See `ScoreLink.ring`."""
        one = 1 << fractional_bits
        return jnp.clip(-z, -one, one) << (ring.EXP_FRACTIONAL_BITS - fractional_bits)

    def shares(self, engine: Engine, z: Any) -> Any:
        """See `ScoreLink.shares`."""
        from vertinumpyro.secure.crypten.fixed import clipped

        return clipped(engine, -z)

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        one = 1 << LOG_BITS
        return -(jnp.clip(z, -one, one) >> (LOG_BITS - EXP_BITS))

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant: Huber's, in units of the scale."""
        far = jnp.abs(z[..., 0])
        return -self.unit * jnp.where(far < 1, far**2 / 2, far - 0.5)


@final
@dataclasses.dataclass(frozen=True)
class PoissonLink(ScoreLink):
    """Counts: e = y / most - exp(min(z, 0)), z = eta - log(most), of which y / most is the outcome's party's own.

    A rate above `most` counts as `most`, and so does a count: their residuals are bounded by it.

    :param most: the largest rate.
    """

    name: ClassVar[str] = "poisson"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    most: float

    @property
    def computed_as(self) -> str:
        """The largest rate is in z."""
        return self.name

    @property
    def unit(self) -> float:
        """The residual is y - exp(eta)."""
        return self.most

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0."""
        return bounded_sums(contribution, 1, least_own=0.0)

    def plaintext(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.plaintext`."""
        return z[..., 1:] - jnp.exp(jnp.minimum(z[..., :1], 0))

    def ring(self, z: jax.Array, fractional_bits: int) -> jax.Array:
        """See `ScoreLink.ring`."""
        return z[..., 1:] - ring.exp_nonpositive(jnp.minimum(z[..., :1], 0), fractional_bits)

    def shares(self, engine: Engine, z: Any) -> Any:
        """See `ScoreLink.shares`."""
        from vertinumpyro.secure.crypten.fixed import capped_exp

        return z[..., 1:] - capped_exp(engine, z[..., :1])

    def spu(self, z: jax.Array) -> jax.Array:
        """See `ScoreLink.spu`."""
        from vertinumpyro.secure.spu.program import exp_nonpositive

        return z[..., 1:] - exp_nonpositive(jnp.minimum(z[..., :1], 0))

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome: y z - exp(z), or what goes on straight above 0, in units of `most`."""
        below, count = jnp.minimum(z[..., 0], 0), z[..., 1]
        return self.most * (count * z[..., 0] - jnp.exp(below) - jnp.maximum(z[..., 0], 0))


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
