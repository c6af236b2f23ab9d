"""Probit."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr

from vertinumpyro.secure.arithmetic import MILLS_REACH, MOST_MILLS, Arithmetic, mills
from vertinumpyro.secure.link import ScoreLink
from vertinumpyro.secure.residual_links import bounded_sums

__all__ = ["BernoulliProbitLink"]


@final
@dataclasses.dataclass(frozen=True)
class BernoulliProbitLink(ScoreLink):
    """Probit regression: e = s L(s z) / `MOST_MILLS`, s = 2 y - 1, of which y is the outcome's party's own.

    The residual is s L(s z), L the Mills ratio (`arithmetic`). The sign s is one party's own, so that t = s z is one
    product of integers, exact.
    """

    name: ClassVar[str] = "bernoulli_probit"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int | None] = 1
    own_inputs: ClassVar[int] = 1

    @property
    def unit(self) -> float:
        """The largest residual."""
        return MOST_MILLS

    def bounded(self, contribution: jax.Array) -> jax.Array:
        """See `ScoreLink.bounded`; what is no number counts as 0, and y is one or the other."""
        numbers = bounded_sums(contribution, 1)
        return jnp.concatenate([numbers[..., :1], jnp.where(numbers[..., 1:] < 0.5, 0.0, 1.0)], axis=-1)

    def weights(self, arithmetic: Arithmetic, z: Any) -> Any:
        """See `ScoreFunction.weights`."""
        sign = arithmetic.sign(z[..., 1:])
        return arithmetic.times(sign, arithmetic.mills_ratio(arithmetic.times(sign, z[..., :1])))

    def log_density(self, z: jax.Array) -> jax.Array:
        """Of a Bernoulli outcome of probability Phi(z); straight beyond `MILLS_REACH`."""
        t = z[..., 0] * (2 * z[..., 1] - 1)
        within = jnp.clip(t, -MILLS_REACH, MILLS_REACH)
        return log_ndtr(within) + mills(within) * (t - within)
