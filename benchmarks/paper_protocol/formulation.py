"""The paper's formulation of the clipped sum: Eqs. 20-30, in floating point and in its own fixed point.

Kept as the reference that the fused protocol is compared with. Every gradient coordinate of every record is
computed, clipped and only then summed: about 4 n D multiplications, against the fused protocol's few n K.

What differs from the paper, on purpose: Eq. 23 has its missing factor F_p; the coordinates are the library's
unconstrained theta, so the block of pi is sum_k r_nk d log pi_k / d theta with r_nk = pi_k GP(n, k) (Eq. 25);
Algorithm 4's loop is max-subtraction in closed form; any number of parties.

Local bounds, all public, keep Newton's divisions inside their range (`ring.LARGEST_DIVISOR` = 512):

- scores: at most `score_bound` clip norms, so that ||g|| / C <= sqrt(P + 1) score_bound <= 512 (as sum_k r_nk
<= 1) and
  ||g||^2 <= 2^30, which still fits the ring at 2^32;
- densities without renormalisation: at most 512^(1/P), so that den <= 512. With it they are at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from paper_protocol import ring
from paper_protocol.ring import LARGEST_DIVISOR, PAPER_BITS, mult
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import check_shape
from vertinumpyro.secure.input_bounds import as_float64, bounded, bounded_prior
from vertinumpyro.secure.number_formats import check_common_range
from vertinumpyro.secure.score_functions import SOFTMAX
from vertinumpyro.secure.shape import BatchShape

__all__ = [
    "UNPROVEN",
    "PartyInputs",
    "PriorInputs",
    "check_range",
    "clipped_sum",
    "error_bound",
    "ring_clipped_sum",
    "ring_party",
    "ring_prior",
    "score_bound",
]

UNPROVEN = (
    "the paper's formulation: products of local exponentials and squares of gradients are truncated at 2^-32, "
    "so no bound on a clipped gradient's norm is proved (many tiny coordinates pass clip_norm)"
)
"""What `BackendInfo.unproven` says of it."""

_LONGEST_GRADIENT = 2.0**15
_VALUE_BITS = 62  # values stay below 2^62, so that a sum of two never wraps
_NOISE_STDDEVS = 12
_FLOAT64 = 2.0**-40  # float64's own rounding of a density, per party, with room to spare


def check_range(shape: BatchShape) -> None:
    """Proves that the formulation cannot wrap at scale 2^32, for this shape.

    `score_bound` keeps a record's gradient below 2^15, so its squared norm fits 62 bits; Newton's q is at most
    8.16 2^26 whatever it divides by; a clipped gradient is shorter than C + sqrt(D) 2^-16, up to 1 %.

    :raises ArgumentError: for another link than the mixture's, of which the paper's equations are.
    :raises RangeError: when the sum could wrap; the message says what to lower.
    """
    if shape.link != SOFTMAX:
        raise ArgumentError(f"the paper's formulation computes a mixture's responsibilities, no {shape.link.name!r}")
    check_common_range(shape)
    longest = 1.01 * (shape.clip_norm + math.sqrt(shape.num_values) * 2.0**-16)
    largest = shape.num_padded * longest + _NOISE_STDDEVS * shape.noise_stddev
    if largest > 2.0 ** (_VALUE_BITS - PAPER_BITS):
        raise RangeError(
            f"batch size {shape.num_padded}, clip_norm {shape.clip_norm:g} and noise standard deviation "
            f"{shape.noise_stddev:g} do not fit the {PAPER_BITS} fractional bits of the paper's formulation; lower "
            "clip_norm, the batch size or the noise"
        )


def error_bound(shape: BatchShape, *, score_norm: float, least_evidence: float) -> float:
    """Bound on the L2 distance of `ring_clipped_sum` from `clipped_sum`.

    Given den >= least_evidence (at least 2^-20), renormalised; with u = 2^-32, per record:

    1. responsibilities: P truncated densities, P - 1 products, pi and its product are off by (2P + 1) u for
       each k, in the numerator and in den; Newton's quotient by 4 u. So 2 K (2P + 1) u / den + 4 u, times M;
    2. each coordinate: scores u, dmat K u / den, products (K + 1) u, where K counts truncations summed over
    components;
    3. the clip, relative to C: squares D u / (2 C^2), 1 / C by C u, the root u / C, Newton's quotient 2 (1 +
    512) u.
    """
    if least_evidence < 2.0**-20:
        return math.inf
    P, K, D, C = shape.num_parties, shape.num_components, shape.num_values, shape.clip_norm
    unit = 2.0**-PAPER_BITS
    longest = score_norm * C * math.sqrt(P + 1)
    responsibilities = 2.02 * K * (2 * P + 1) * unit / least_evidence + 4 * unit + (P + 1) * _FLOAT64
    coordinates = math.sqrt(D) * unit * (3 + K + K / least_evidence) + K * unit * longest
    clip = unit * (D / (2 * C**2) + C + 1 / C + 1026)
    return shape.num_padded * (responsibilities * longest + 1.01 * coordinates + 1.01 * clip * C)


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
    check_range(shape)
    check_shape(shape, contributions, prior, mask)
    parties = [ring_party(shape, c, renormalise=renormalise) for c in contributions]
    pi, prior_scores = ring_prior(shape, prior)
    joint = mult(pi, reduce(mult, (own.mat for own in parties)))  # pi_k times Eq. 22
    q = ring.reciprocal(joint.sum(-1))  # 1 / Eq. 24
    g = [mult(mult(q[:, None], joint)[..., None], prior_scores).sum(1)]
    for own in parties:  # Eq. 23: dmat = pi_k mat_nk times the scores; Eq. 26: dmat / den
        plated = mult(joint[..., None], own.plated)
        shared = mult(joint[..., None], own.shared)
        g += [mult(q[:, None, None], plated), mult(q[:, None], shared.sum(1))]
    factor = _clip_factor(g, shape.clip_norm) * mask.astype(jnp.int64)
    return jnp.concatenate([_scaled_sum(block, factor).ravel() for block in g])


class PartyInputs(NamedTuple):
    """What a party puts in, at scale 2^32: mat [n, K] (Eq. 31) and its scores [n, K, d] and [n, K, s]. Secret."""

    mat: jax.Array
    plated: jax.Array
    shared: jax.Array


class PriorInputs(NamedTuple):
    """The public component prior at scale 2^32: pi [K] and its scores [K, d0]."""

    pi: jax.Array
    scores: jax.Array


def ring_party(shape: BatchShape, contribution: Contribution, *, renormalise: bool) -> PartyInputs:
    """One party's inputs, from its own columns. Needs 64-bit mode."""
    own = _bounded_party(shape, as_float64(contribution), renormalise)
    return PartyInputs(*(ring.encode(x) for x in (jnp.exp(own.log_density), own.plated_scores, own.shared_scores)))


def ring_prior(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """What every party knows. Needs 64-bit mode."""
    pi, scores = _bounded_prior(shape, as_float64(prior))
    return PriorInputs(ring.encode(pi), ring.encode(scores))


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
    inverse = jnp.int64(math.floor(ring.SCALE / clip_norm))
    longer = mult(ring.norm(squares), inverse)
    return ring.reciprocal(jnp.maximum(ring.SCALE, longer))


def _scaled_sum(block: jax.Array, factor: jax.Array) -> jax.Array:
    """sum_n factor_n g_n (Eq. 29) for one block of coordinates."""
    return mult(block, factor.reshape((-1,) + (1,) * (block.ndim - 1))).sum(0)
