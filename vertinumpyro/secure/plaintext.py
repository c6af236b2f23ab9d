"""The oracle: the protocols in floating point, in one process, with no security at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, final

import jax
import jax.numpy as jnp

from vertinumpyro.core import compat, ring
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import (
    AnyArray,
    BackendInfo,
    Contributions,
    InProcess,
    check_shape,
    over_blocks,
    total,
)
from vertinumpyro.secure.input_bounds import SCORE_BOUND, bounded, bounded_prior, weight_of_values
from vertinumpyro.secure.number_formats import check_local_range, exact_score_bound, fixed_point_format, weight_bounds
from vertinumpyro.secure.score_contract import MILLS_REACH, MOST_MILLS, Arithmetic, mills
from vertinumpyro.secure.shape import BatchShape

_UNPROVEN = "floating-point sums have no proved sensitivity"


@final
class FloatArithmetic(Arithmetic):
    """`Arithmetic` in floating point, z and e alike."""

    stack = staticmethod(jnp.stack)
    concatenate = staticmethod(jnp.concatenate)

    def exp_below_max(self, z: jax.Array, halvings: int = 0) -> jax.Array:
        return jnp.exp((z - z.max(axis=-1, keepdims=True)) / 2**halvings)

    def capped_exp(self, z: jax.Array) -> jax.Array:
        return jnp.exp(jnp.minimum(z, 0))

    def sigmoid_sum(self, z: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(z).sum(axis=-1, keepdims=True)

    def clip(self, z: jax.Array) -> jax.Array:
        return jnp.clip(z, -1, 1)

    def mills_ratio(self, t: jax.Array) -> jax.Array:
        """Over what it is at -6."""
        return mills(jnp.clip(t, -MILLS_REACH, MILLS_REACH)) / MOST_MILLS

    def sign(self, own: jax.Array) -> jax.Array:
        return 2 * own - 1

    def times(self, sign: jax.Array, x: jax.Array) -> jax.Array:
        return sign * x

    def portion(self, x: jax.Array, e: jax.Array) -> jax.Array:
        return x * e

    def plus(self, e: jax.Array, number: float | int) -> jax.Array:
        return e + number


@dataclasses.dataclass(frozen=True)
class Plaintext(InProcess):
    """Floating point in one process: what the other backends are compared with.

    The noise is the same integer noise on the same grid as `FixedPoint`'s, but a floating-point sum has no
    sensitivity proof (rounding depends on the data), so a plan made for it is marked unproven.
    """

    option: ClassVar[str] = "plaintext"

    def info(self) -> BackendInfo:
        return BackendInfo(
            name="plaintext",
            security_model="none (one process holds every party's columns)",
            who_learns_what="the process that runs it learns everything",
            dealer="none",
            ring="none (floating point)",
            precision="the dtype of the log densities",
            unproven=(_UNPROVEN,),
        )

    def grid_bits(self, shape: BatchShape) -> int:
        check_local_range(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        """Float64's own rounding, with room to spare."""
        return 1e-11 * shape.num_padded * shape.clip_norm

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Contributions,
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: AnyArray,
    ) -> jax.Array:
        bits = self.grid_bits(shape)

        def summed(contributions: Sequence[Contribution], mask: jax.Array) -> jax.Array:
            check_shape(shape, contributions, prior, mask)
            return clipped_sum(shape, contributions, prior, mask)

        with compat.x64():
            exact = over_blocks(summed, contributions, mask)
            return exact + ring.decode(total(noise_shares), bits).astype(exact.dtype)


def clipped_sum(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, mask: jax.Array
) -> jax.Array:
    """sum_n W_nk s_nk with W = mask e / sqrt(max(den^2, nn / C^2)), e and den the link's, in floating point.

    Where each party clips its own scores, W = mask clip(e, -b, b), b of each component.
    """
    link, clip_norm = shape.link, shape.clip_norm
    prior = bounded_prior(prior, clip_norm, shape.contributed)
    contributions = [
        bounded(
            c,
            clip_norm,
            partial(shape.contributed, party=party),
            score_bound=exact_score_bound(shape, party),
            weights=weight_bounds(shape),
        )
        for party, c in enumerate(contributions)
    ]
    e = link.weights(FloatArithmetic(), sum((c.log_density for c in contributions), start=prior.log_weights))
    if shape.clips_locally:
        largest = jnp.asarray(shape.residual_bounds, e.dtype)
        W = mask[:, None] * jnp.clip(e, -largest, largest)
    else:
        W = (mask * _clip_factor(shape, e, contributions, prior))[:, None] * e
    blocks = [W.sum(0) @ prior.scores]
    for c in contributions:
        weighted = ((W, c.plated_scores), *((weight_of_values(W, t), t.scores) for t in c.tables))
        plated = [jnp.einsum("nk,nkd->kd", weights, scores) for weights, scores in weighted]
        blocks += [jnp.concatenate(plated, axis=-1).ravel(), jnp.einsum("nk,nks->s", W, c.shared_scores)]
    return jnp.concatenate(blocks)


def _clip_factor(
    shape: BatchShape, e: jax.Array, contributions: Sequence[Contribution], prior: ComponentPrior
) -> jax.Array:
    """1 / sqrt(max(den^2, nn / C^2)) of each record."""
    squared_norm = _shared_norm(e, prior.scores)
    for c in contributions:
        squares = sum(((t.scores**2).sum(-1)[t.codes] for t in c.tables), start=(c.plated_scores**2).sum(-1))
        squared_norm += (e**2 * squares).sum(-1) + _shared_norm(e, c.shared_scores)
    den = e.sum(-1) if shape.link.normalised else 1.0
    return jax.lax.rsqrt(jnp.maximum(den**2, squared_norm / shape.clip_norm**2))


def _shared_norm(e: jax.Array, scores: jax.Array) -> jax.Array:
    """|| sum_k e_nk s_nk ||^2 for scores [n, K, s] or [K, s]."""
    return (jnp.einsum("nk,ks->ns" if scores.ndim == 2 else "nk,nks->ns", e, scores) ** 2).sum(-1)
