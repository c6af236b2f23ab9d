"""Links of the tests: a mixture of another temperature, and the residual of a predictor that parties sum up."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from jax.scipy.special import logsumexp

from tests.recipes.toy_outcome import LogisticNoiseLink
from vertinumpyro.secure import ScoreFunction, score_functions
from vertinumpyro.secure.input_bounds import LARGEST_CONTRIBUTION, renormalised
from vertinumpyro.secure.simulation import run_worker
from vertinumpyro.secure.spu.backend import run_helper


@final
@dataclasses.dataclass(frozen=True)
class Tempered(ScoreFunction):
    """2 log sum_k exp(z_k / 2): responsibilities of temperature 2."""

    name: ClassVar[str] = "tempered"
    normalised: ClassVar[bool] = True
    signed: ClassVar[bool] = False

    def bounded(self, contribution):
        return renormalised(contribution)

    def weights(self, arithmetic, z):
        return arithmetic.exp_below_max(z, halvings=1)

    def log_density(self, z):
        return 2 * logsumexp(z / 2, axis=-1)


@final
@dataclasses.dataclass(frozen=True)
class Residual(ScoreFunction):
    """Huber regression: z = y - the sum of the parties' predictors, e = clip(z, -1, 1)."""

    name: ClassVar[str] = "residual"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    def bounded(self, contribution):
        return jnp.clip(jnp.nan_to_num(contribution), -LARGEST_CONTRIBUTION, LARGEST_CONTRIBUTION)

    def weights(self, arithmetic, z):
        return arithmetic.clip(z)

    def log_density(self, z):
        return jnp.where(jnp.abs(z) < 1, z**2 / 2, jnp.abs(z) - 0.5).sum(-1)


def _with_toys():
    """Before a rehearsal's process runs: it knows these links by name as well."""
    score_functions.LINKS.update({kind.name: kind for kind in (Tempered, Residual, LogisticNoiseLink)})


def run_worker_with_toys(seat, backend, watched):
    _with_toys()
    run_worker(seat, backend, watched)


def run_helper_with_toys(seat, num_nodes, protocol):
    _with_toys()
    run_helper(seat, num_nodes, protocol)
