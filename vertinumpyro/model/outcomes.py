"""What an observed site says about a `party_sum`: distributions whose derivative by their predictor is one residual.

A record's gradient is the residual d log p(y | eta) / d eta times the scores d eta / d theta, which stand side by side,
each at its own party. `secure.residual_links` computes the same residuals on shares.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution

__all__ = ["OUTCOMES", "BernoulliLogit", "Outcome", "outcome_of"]


class Outcome(abc.ABC):
    """A distribution of the outcome y at the predictor eta, with public numbers alone.

    The residual d log p / d eta is `unit` times the weight e of the link, |e| <= 1. The sum enters the link as `scale`
    times eta, once or several times, each less a number that the outcome's party takes off (`offsets`); besides, this
    party gives `own` numbers in [-1, 1].

    :cvar kind: the link's name.
    :cvar instead: how the site is written, for errors.
    :cvar num_sums: S, how many sums enter the link.
    """

    kind: ClassVar[str]
    instead: ClassVar[str]
    num_sums: ClassVar[int] = 1

    @property
    def unit(self) -> float:
        """What scores are multiplied by, so that |e| <= 1."""
        return 1.0

    @property
    def scale(self) -> float:
        """What eta is multiplied by, so that the link's numbers are of magnitude 1."""
        return 1.0

    @abc.abstractmethod
    def offsets(self, value: jax.Array) -> jax.Array:
        """[..., S]: what is taken off each of the link's sums, from the outcome alone."""

    @abc.abstractmethod
    def own(self, value: jax.Array) -> jax.Array:
        """[..., O]: the outcome's own numbers in the link, in [-1, 1]."""

    @abc.abstractmethod
    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        """D log p(value | eta) / d eta: what the model's own density must have."""

    @classmethod
    @abc.abstractmethod
    def of(cls, fn: Distribution) -> Outcome | None:
        """The outcome of a site's distribution, whose public parameters it reads; None for another kind."""

    @final
    def described(self) -> dict[str, Any]:
        """As plain data: what `secure.links.link_of` reads."""
        return {"name": self.kind, **vars(self)}


@final
@dataclasses.dataclass(frozen=True)
class BernoulliLogit(Outcome):
    """Logistic regression: y - sigmoid(eta)."""

    kind: ClassVar[str] = "bernoulli_logit"
    instead: ClassVar[str] = "Bernoulli(logits=eta)"

    def offsets(self, value: jax.Array) -> jax.Array:
        """None."""
        return jnp.zeros((*value.shape, 1))

    def own(self, value: jax.Array) -> jax.Array:
        """Y."""
        return jnp.asarray(value, float)[..., None]

    def residual(self, eta: jax.Array, value: jax.Array) -> jax.Array:
        """Y - sigmoid(eta)."""
        return value - jax.nn.sigmoid(eta)

    @classmethod
    def of(cls, fn: Distribution) -> BernoulliLogit | None:
        """Of a Bernoulli distribution, by logits or by probabilities."""
        return cls() if type(fn).__name__ in ("BernoulliLogits", "BernoulliProbs") else None


OUTCOMES: tuple[type[Outcome], ...] = (BernoulliLogit,)
"""All of them."""


def outcome_of(fn: Any) -> list[Outcome]:
    """What a site's distribution may be; which one it is, its derivative says."""
    while type(fn).__name__ in ("ExpandedDistribution", "MaskedDistribution"):
        fn = fn.base_dist
    return [outcome for kind in OUTCOMES if (outcome := kind.of(fn)) is not None]
