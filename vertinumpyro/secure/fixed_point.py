"""The secure computation's arithmetic, bit for bit, jitted, in one process: the default for research."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vertinumpyro.core import ring
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, NORM_FRACTIONAL_BITS
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import BackendInfo, BackendStats, BatchShape, SecureBackend, total
from vertinumpyro.secure.local import SCORE_BOUND, bounded, bounded_prior
from vertinumpyro.secure.range_proof import LOG_BITS, fixed_point_format

__all__ = ["FixedPoint"]

_ONE = 1 << EXP_FRACTIONAL_BITS
_LIMB = 16  # scores are split into limbs, so that e (30 bits) times a limb, summed over K, fits 63 bits


@dataclasses.dataclass(frozen=True)
class FixedPoint(SecureBackend):
    """Integers modulo 2^64 in one process.

    Formal guarantee: every record adds an integer vector whose L2 norm is at most clip_norm 2^f, f the grid's
    fractional bits, whatever the columns hold. The norm is computed from the very integers that are released
    and every rounding in it goes up, the reciprocal square root goes down; nothing is truncated after the
    clip. The accuracy of the exponential changes responsibilities, never the bound.
    """

    def info(self) -> BackendInfo:
        """Same integers as a secure run, no security."""
        return BackendInfo(
            name="fixed_point",
            security_model="none (simulates the secure computation in one process)",
            who_learns_what="the process that runs it learns everything; a secure run reveals the noisy sum only",
            dealer="none",
            ring="integers modulo 2^64, products of 128 bits",
            precision=f"weights {EXP_FRACTIONAL_BITS} fractional bits, scores 12 to 24, log densities {LOG_BITS}",
        )

    def stats(self) -> BackendStats:
        """Nothing is sent."""
        return BackendStats()

    def grid_bits(self, shape: BatchShape) -> int:
        """30 bits of the weights and as many of the scores as the range proof allows."""
        return fixed_point_format(shape).grid_bits

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Sequence[Contribution],
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: jax.Array,
    ) -> jax.Array:
        """See `SecureBackend.clipped_noisy_sum`."""
        exact = clipped_sum(shape, contributions, prior, mask)
        return ring.decode(exact + total(noise_shares), self.grid_bits(shape))

    def noisy_cross_product(self, a: jax.Array, b: jax.Array, noise_shares: jax.Array) -> jax.Array:
        """See `SecureBackend.noisy_cross_product`."""
        return a.astype(jnp.int64).T @ b.astype(jnp.int64) + total(noise_shares)

    def noisy_sum(self, vectors: jax.Array, noise_shares: jax.Array) -> jax.Array:
        """See `SecureBackend.noisy_sum`."""
        return vectors.astype(jnp.int64).sum(axis=0) + total(noise_shares)


def clipped_sum(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, mask: jax.Array
) -> Int[Array, " D"]:
    """The exact integer sum of the clipped contributions, on the grid 2^-f."""
    bits, clip_norm = fixed_point_format(shape).score_bits, shape.clip_norm
    prior = bounded_prior(prior, clip_norm)
    contributions = [bounded(contribution, clip_norm) for contribution in contributions]
    e = _weights([c.log_density for c in contributions], prior.log_weights)
    plated = [ring.encode(c.plated_scores, bits) for c in contributions]
    shared = [ring.encode(c.shared_scores, bits) for c in contributions]
    prior_scores = ring.encode(prior.scores, bits)
    inner_clip = clip_norm * (1 - _clip_slack(shape))
    squared_norm = _shared_norm(e, prior_scores, bits, inner_clip)
    for block in plated:
        squared_norm += _plated_norm(e, block, bits, inner_clip)
    for block in shared:
        squared_norm += _shared_norm(e, block, bits, inner_clip)
    W = _clipped_weights(e, squared_norm, mask)
    blocks = [(W.sum(0)[:, None] * prior_scores).sum(0)]
    for plated_block, shared_block in zip(plated, shared, strict=True):
        blocks += [(W[..., None] * plated_block).sum(0).ravel(), (W[..., None] * shared_block).sum((0, 1))]
    return jnp.concatenate(blocks)


def _weights(log_densities: Sequence[Float[Array, "n K"]], log_prior: Float[Array, " K"]) -> Int[Array, "n K"]:
    """e = exp(z - max_k z), z the sum of all log densities, with 30 fractional bits; the largest is exactly 1."""
    z = sum((ring.encode(value, LOG_BITS) for value in log_densities), start=ring.encode(log_prior, LOG_BITS))
    return ring.exp_nonpositive(z - z.max(axis=-1, keepdims=True), LOG_BITS)


def _clip_slack(shape: BatchShape) -> float:
    """Share of the clip norm kept back for the rounding of W in coordinates that components share.

    There W_k = floor(w e_k) is off by less than 2^-30 for every component, which adds a vector of norm at most
    K SCORE_BOUND C 2^-30 for each of the P + 1 blocks. Plated coordinates only shrink by that rounding.
    """
    return (shape.num_parties + 1) * shape.num_components * SCORE_BOUND / _ONE


def _plated_norm(e: jax.Array, scores: jax.Array, bits: int, clip_norm: float) -> Int[Array, " n"]:
    """sum_k e_k^2 ||s_k||^2 / C^2 with 24 fractional bits, rounded up. The party computes ||s_k||^2 itself."""
    square = (scores.astype(jnp.float64) ** 2).sum(-1)
    rounding_margin = 1.0 + (scores.shape[-1] + 8) * 2.0**-52
    scale = rounding_margin * 2.0 ** (NORM_FRACTIONAL_BITS - 2 * bits) / clip_norm**2
    q = jnp.ceil(square * scale).astype(jnp.int64)
    weighted = ring.multiply_shift(e, q, EXP_FRACTIONAL_BITS, round_up=True)
    return ring.multiply_shift(e, weighted, EXP_FRACTIONAL_BITS, round_up=True).sum(-1)


def _shared_norm(e: jax.Array, scores: jax.Array, bits: int, clip_norm: float) -> Int[Array, " n"]:
    """|| sum_k e_k s_k ||^2 / C^2 with 24 fractional bits, rounded up, for scores [n, K, s] or [K, s].

    The sum y is exact in two limbs; floor(y 2^-16) and its successor bracket it, and the larger one is squared.
    """
    high, low = scores >> _LIMB, scores & ((1 << _LIMB) - 1)
    sums_low = (e[..., None] * low).sum(-2)
    floor = (e[..., None] * high).sum(-2) + (sums_low >> _LIMB)
    magnitude = jnp.maximum(jnp.abs(floor), jnp.abs(floor + 1))
    clip_exponent = math.floor(math.log2(clip_norm))
    shift = 2 * (EXP_FRACTIONAL_BITS + bits - _LIMB + clip_exponent) - NORM_FRACTIONAL_BITS
    square = ring.multiply_shift(magnitude, magnitude, shift, round_up=True).sum(-1)
    inverse = math.ceil((2.0**clip_exponent / clip_norm) ** 2 * (1 + 2.0**-50) * _ONE)
    return ring.multiply_shift(square, jnp.int64(inverse), EXP_FRACTIONAL_BITS, round_up=True)


def _clipped_weights(e: jax.Array, squared_norm: jax.Array, mask: jax.Array) -> Int[Array, "n K"]:
    """W = mask floor(w e), w = floor(1 / sqrt(max(den^2, nn / C^2))): clip factor times responsibility."""
    den = e.sum(-1)
    den_squared = ring.multiply_shift(den, den, 2 * EXP_FRACTIONAL_BITS - NORM_FRACTIONAL_BITS)
    w = ring.reciprocal_sqrt(jnp.maximum(den_squared, squared_norm))
    return ((w[:, None] * e) >> EXP_FRACTIONAL_BITS) * mask[:, None].astype(jnp.int64)
