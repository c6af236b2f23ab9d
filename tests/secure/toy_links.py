"""Links of the tests: a mixture of another temperature, and the residual of a predictor that parties sum up."""

import dataclasses
from typing import ClassVar, final

import jax.numpy as jnp
from jax.scipy.special import logsumexp

from tests.recipes.toy_outcome import LogisticNoiseLink
from vertinumpyro.core import ring
from vertinumpyro.secure import ScoreLink, links
from vertinumpyro.secure.local import LARGEST_CONTRIBUTION, renormalised
from vertinumpyro.secure.rehearsal import run_worker
from vertinumpyro.secure.spu.end import run_helper


@final
@dataclasses.dataclass(frozen=True)
class Tempered(ScoreLink):
    """2 log sum_k exp(z_k / 2): responsibilities of temperature 2."""

    name: ClassVar[str] = "tempered"
    normalised: ClassVar[bool] = True
    signed: ClassVar[bool] = False

    def bounded(self, contribution):
        return renormalised(contribution)

    def plaintext(self, z):
        return jnp.exp((z - z.max(-1, keepdims=True)) / 2)

    def ring(self, z, fractional_bits):
        return ring.exp_nonpositive(z - z.max(-1, keepdims=True), fractional_bits + 1)

    def shares(self, engine, z):
        from vertinumpyro.secure.crypten import fixed

        return fixed.exp_nonpositive(engine, fixed.truncate(engine, z - fixed.maximum(engine, z), 1))

    def spu(self, z):
        from vertinumpyro.secure.spu.program import exp_nonpositive

        return exp_nonpositive(-((z.max(-1, keepdims=True) - z) >> 1))

    def log_density(self, z):
        return 2 * logsumexp(z / 2, axis=-1)


@final
@dataclasses.dataclass(frozen=True)
class Residual(ScoreLink):
    """Huber regression: z = y - the sum of the parties' predictors, e = clip(z, -1, 1)."""

    name: ClassVar[str] = "residual"
    normalised: ClassVar[bool] = False
    signed: ClassVar[bool] = True

    def bounded(self, contribution):
        return jnp.clip(jnp.nan_to_num(contribution), -LARGEST_CONTRIBUTION, LARGEST_CONTRIBUTION)

    def plaintext(self, z):
        return jnp.clip(z, -1, 1)

    def ring(self, z, fractional_bits):
        return jnp.clip(z, -(1 << fractional_bits), 1 << fractional_bits) << (30 - fractional_bits)

    def shares(self, engine, z):
        from vertinumpyro.secure.crypten import fixed

        least = fixed.public(engine, 0 * z, -1 << 21)
        return fixed.truncate(engine, -fixed.larger(engine, -fixed.larger(engine, z, least), least), 1)

    def spu(self, z):
        return -(-jnp.clip(z, -1 << 21, 1 << 21) >> 1)

    def log_density(self, z):
        return jnp.where(jnp.abs(z) < 1, z**2 / 2, jnp.abs(z) - 0.5).sum(-1)


def _with_toys():
    """Before a rehearsal's process runs: it knows these links by name as well."""
    links.LINKS.update({kind.name: kind for kind in (Tempered, Residual, LogisticNoiseLink)})


def run_worker_with_toys(seat, backend, watched):
    _with_toys()
    run_worker(seat, backend, watched)


def run_helper_with_toys(seat, num_nodes, protocol):
    _with_toys()
    run_helper(seat, num_nodes, protocol)
