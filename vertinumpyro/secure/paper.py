"""The paper's formulation of the clipped sum: Eqs. 20-30, in floating point and in its own fixed point.

Kept as the reference that the fused protocol is compared with. Every gradient coordinate of every record is
computed, clipped and only then summed: about 4 n D multiplications, against the fused protocol's few n K.

What differs from the paper, on purpose: Eq. 23 has its missing factor F_p; the coordinates are the library's
unconstrained theta, so the block of pi is sum_k r_nk d log pi_k / d theta with r_nk = pi_k GP(n, k) (Eq. 25);
Algorithm 4's loop is max-subtraction in closed form; any number of parties.

Local bounds, all public, keep Newton's divisions inside their range (`paper_ring.LARGEST_DIVISOR` = 512):

- scores: at most `score_bound` clip norms, so that ||g|| / C <= sqrt(P + 1) score_bound <= 512 (as sum_k r_nk
<= 1) and
  ||g||^2 <= 2^30, which still fits the ring at 2^32;
- densities without renormalisation: at most 512^(1/P), so that den <= 512. With it they are at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure import paper_ring
from vertinumpyro.secure.backend import BatchShape, check_shape
from vertinumpyro.secure.local import as_float64, bounded, bounded_prior
from vertinumpyro.secure.paper_ring import LARGEST_DIVISOR, mult
from vertinumpyro.secure.range_proof import check_paper_range

__all__ = [
    "UNPROVEN",
    "PartyInputs",
    "PriorInputs",
    "check_formulation",
    "clipped_sum",
    "ring_clipped_sum",
    "ring_party",
    "ring_prior",
    "score_bound",
]

UNPROVEN = (
    "formulation='paper': products of local exponentials and squares of gradients are truncated at 2^-32, "
    "so no bound on a clipped gradient's norm is proved (many tiny coordinates pass clip_norm)"
)
"""What `BackendInfo.unproven` says of this formulation."""

_LONGEST_GRADIENT = 2.0**15


def check_formulation(formulation: str, renormalise: bool) -> None:
    """Checks a backend's settings.

    :raises ArgumentError: for the fused one without renormalisation.
    """
    if formulation == "fused" and not renormalise:
        raise ArgumentError(
            "renormalise=False needs formulation='paper': the fused protocol always subtracts the maximum"
        )


def score_bound(shape: BatchShape) -> float:
    """Largest norm of a party's scores for a record and component, in clip norms."""
    return min(LARGEST_DIVISOR, _LONGEST_GRADIENT / shape.clip_norm) / math.sqrt(shape.num_parties + 1)


def clipped_sum(
    shape: BatchShape,
    contributions: Sequence[Contribution],
    prior: ComponentPrior,
    mask: jax.Array,
    *,
    renormalise: bool,
) -> Float[Array, " D"]:
    """Eqs. 20-29 in floating point: the sum of the clipped gradients, without the noise."""
    parties, pi, prior_scores = _local(shape, contributions, prior, renormalise)
    joint = pi * math.prod(jnp.exp(c.log_density) for c in parties)  # pi_k times Eq. 22
    den = joint.sum(-1)  # Eq. 24
    r = jnp.where(den > 0, 1 / jnp.where(den > 0, den, 1), 0)[:, None] * joint
    blocks = [r @ prior_scores]
    for c in parties:  # Eqs. 23 and 26
        blocks.append((r[..., None] * c.plated_scores).reshape(len(r), -1))
        blocks.append((r[..., None] * c.shared_scores).sum(1))
    g = jnp.concatenate(blocks, axis=1)  # Eq. 27
    longer = jnp.sqrt((g**2).sum(-1)) / shape.clip_norm
    return ((mask / jnp.maximum(1, longer))[:, None] * g).sum(0)  # Eqs. 28 and 29


def ring_clipped_sum(
    shape: BatchShape,
    contributions: Sequence[Contribution],
    prior: ComponentPrior,
    mask: jax.Array,
    *,
    renormalise: bool,
) -> Int[Array, " D"]:
    """Eqs. 20-29 with Algorithms 2 and 3 on integers at scale 2^32. Needs 64-bit mode."""
    check_paper_range(shape)
    check_shape(shape, contributions, prior, mask)
    parties = [ring_party(shape, c, renormalise=renormalise) for c in contributions]
    pi, prior_scores = ring_prior(shape, prior)
    joint = mult(pi, reduce(mult, (own.mat for own in parties)))  # pi_k times Eq. 22
    q = paper_ring.reciprocal(joint.sum(-1))  # 1 / Eq. 24
    g = [mult(mult(q[:, None], joint)[..., None], prior_scores).sum(1)]
    for own in parties:  # Eq. 23: dmat = pi_k mat_nk times the scores; Eq. 26: dmat / den
        plated = mult(joint[..., None], own.plated)
        shared = mult(joint[..., None], own.shared)
        g += [mult(q[:, None, None], plated), mult(q[:, None], shared.sum(1))]
    factor = _clip_factor(g, shape.clip_norm) * mask.astype(jnp.int64)
    return jnp.concatenate([_scaled_sum(block, factor).ravel() for block in g])


class PartyInputs(NamedTuple):
    """What a party puts in, at scale 2^32: mat [n, K] (Eq. 31) and its scores [n, K, d] and [n, K, s]. Secret.

    NumPy's, or jax's while a program is traced; so are the public ones.
    """

    mat: Any
    plated: Any
    shared: Any


class PriorInputs(NamedTuple):
    """The public component prior at scale 2^32: pi [K] and its scores [K, d0]."""

    pi: Any
    scores: Any


def ring_party(shape: BatchShape, contribution: Contribution, *, renormalise: bool) -> PartyInputs:
    """One party's inputs, from its own columns. Needs 64-bit mode."""
    own = _bounded_party(shape, as_float64(contribution), renormalise)
    return PartyInputs(
        *(paper_ring.encode(x) for x in (jnp.exp(own.log_density), own.plated_scores, own.shared_scores))
    )


def ring_prior(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """What every party knows. Needs 64-bit mode."""
    pi, scores = _bounded_prior(shape, as_float64(prior))
    return PriorInputs(paper_ring.encode(pi), paper_ring.encode(scores))


def _local(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, renormalise: bool
) -> tuple[list[Contribution], jax.Array, jax.Array]:
    """(contributions under the public bounds, pi, the prior's bounded scores)."""
    return [_bounded_party(shape, c, renormalise) for c in contributions], *_bounded_prior(shape, prior)


def _bounded_party(shape: BatchShape, contribution: Contribution, renormalise: bool) -> Contribution:
    own = contribution.without_tables()
    ceiling = math.log(LARGEST_DIVISOR) / shape.num_parties
    limit = shape.link.bounded if renormalise else partial(_density_below, ceiling=ceiling)
    return bounded(own, shape.clip_norm, limit, score_bound=score_bound(shape))


def _bounded_prior(shape: BatchShape, prior: ComponentPrior) -> tuple[jax.Array, jax.Array]:
    prior = bounded_prior(prior, shape.clip_norm, shape.link.bounded, score_bound=score_bound(shape))
    return jax.nn.softmax(prior.log_weights), prior.scores


def _density_below(log_density: jax.Array, ceiling: float) -> jax.Array:
    """A density that is not a number counts as zero."""
    return jnp.minimum(jnp.where(jnp.isnan(log_density), -jnp.inf, log_density), ceiling)


def _clip_factor(g: Sequence[jax.Array], clip_norm: float) -> Int[Array, " n"]:
    """1 / max(1, ||g|| / C) (Eq. 28); each square is truncated to a multiple of 2^-32."""
    squares = sum((mult(b, b).reshape(len(b), -1).sum(-1) for b in g), start=jnp.zeros(len(g[0]), jnp.int64))
    inverse = jnp.int64(math.floor(paper_ring.SCALE / clip_norm))
    longer = mult(paper_ring.norm(squares), inverse)
    return paper_ring.reciprocal(jnp.maximum(paper_ring.SCALE, longer))


def _scaled_sum(block: jax.Array, factor: jax.Array) -> jax.Array:
    """sum_n factor_n g_n (Eq. 29) for one block of coordinates."""
    return mult(block, factor.reshape((-1,) + (1,) * (block.ndim - 1))).sum(0)
