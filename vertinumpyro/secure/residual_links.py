"""Links of regressions: the residual of an outcome at a predictor that the parties sum up.

A residual has a sign, and there is one component for each outcome. What the outcome adds, its party knows and
contributes as it is. `model.outcomes` has the same distributions as the models write them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.secure.arithmetic import Arithmetic
from vertinumpyro.secure.link import ScoreLink
from vertinumpyro.secure.local import LARGEST_CONTRIBUTION

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

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`."""
        return z[..., 1:] - arithmetic.sigmoid_sum(z[..., :1])

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

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`."""
        return arithmetic.plus(-arithmetic.sigmoid_sum(z), 1)

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

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`."""
        return arithmetic.clip(-z)

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

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`."""
        return z[..., 1:] - arithmetic.capped_exp(z[..., :1])

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant of the outcome: y z - exp(z), or what goes on straight above 0, in units of `most`."""
        below, count = jnp.minimum(z[..., 0], 0), z[..., 1]
        return self.most * (count * z[..., 0] - jnp.exp(below) - jnp.maximum(z[..., 0], 0))


def bounded_sums(contribution: jax.Array, num_sums: int, *, least_own: float = -1.0) -> jax.Array:
    """Contributions to sums within `LARGEST_CONTRIBUTION`, and a party's own numbers, behind them, up to 1."""
    numbers = jnp.where(jnp.isnan(contribution), 0.0, contribution)
    sums = jnp.clip(numbers[..., :num_sums], -LARGEST_CONTRIBUTION, LARGEST_CONTRIBUTION)
    return jnp.concatenate([sums, jnp.clip(numbers[..., num_sums:], least_own, 1.0)], axis=-1)
