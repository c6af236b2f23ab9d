"""An outcome of a `party_sum` as a user adds one: linear regression with logistic noise, from its derivative."""

import dataclasses
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.model.outcomes import Outcome
from vertinumpyro.secure import ScoreFunction


@final
@dataclasses.dataclass(frozen=True)
class LogisticNoise(Outcome):
    """tanh((y - eta) / 2 spread) / spread, with a public spread."""

    kind: ClassVar[str] = "logistic_noise"
    instead: ClassVar[str] = "Logistic(eta, spread) with a public spread"
    spread: float

    @property
    def unit(self):
        return 1 / self.spread

    @property
    def scale(self):
        return 1 / self.spread

    def offsets(self, value):
        return value[..., None] / self.spread

    def own(self, value):
        return jnp.zeros((*value.shape, 0))

    def residual(self, eta, value):
        return jnp.tanh((value - eta) / (2 * self.spread)) / self.spread

    @classmethod
    def of(cls, fn, largest):
        return cls(float(jnp.max(fn.scale))) if type(fn).__name__ == "Logistic" else None


@final
@dataclasses.dataclass(frozen=True)
class LogisticNoiseLink(ScoreFunction):
    """1 - 2 sigmoid(z), z = (eta - y) / spread."""

    name: ClassVar[str] = "logistic_noise"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    num_sums: ClassVar[int] = 1
    error_factor: ClassVar[float] = 2.0

    def weights(self, arithmetic, z):
        return arithmetic.plus(-2 * arithmetic.sigmoid_sum(z), 1)

    def log_density(self, z):
        return (jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)).sum(-1)
