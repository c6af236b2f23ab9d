"""What a party does to its own numbers before they enter a protocol: public bounds on secret values.

These bounds make the range proof possible. They never weaken privacy: the clip is computed on the bounded
values, so a bound that bites costs accuracy only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import reduce
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Num

from vertinumpyro.core.types import ComponentPrior, Contribution, ScoreTable

Arrays = TypeVar("Arrays", Contribution, ComponentPrior)

Limit = Callable[[jax.Array], jax.Array]
"""What a link makes of what a party contributes, [n, Z]: `BatchShape.contributed`."""

LARGEST_CONTRIBUTION = 1024.0
"""Largest magnitude of what a party contributes to a record under a component, on the scale of log densities."""

LOG_DENSITY_FLOOR = -LARGEST_CONTRIBUTION
"""B: a component this much below the party's best one on a record counts as this much below."""

SCORE_BOUND = 1024.0
"""A party's scores for one record and component are scaled down to this many clip norms."""

_HUGE = 1e30


def renormalised(log_density: Float[Array, "n K"]) -> Float[Array, "n K"]:
    """l - max_k l, floored at `LOG_DENSITY_FLOOR`: Algorithm 4 in closed form. The maximum cancels later.

    A record with a density that is not a number, or zero under every component, counts as undecided (all 0).
    """
    clean = jnp.where(jnp.isnan(log_density), -jnp.inf, log_density)
    best = clean.max(axis=-1, keepdims=True)
    relative = jnp.where(jnp.isfinite(best), clean - best, 0.0)
    return jnp.maximum(relative, LOG_DENSITY_FLOOR)


def bounded(
    contribution: Contribution,
    clip_norm: float,
    limit: Limit,
    *,
    score_bound: float = SCORE_BOUND,
    weights: tuple[float, ...] | None = None,
) -> Contribution:
    """Contributions under the link's limit, and scores that are finite and at most `score_bound` clip norms long.

    Each of the party's blocks, the scores of every record and each table, gets an equal part of the squared bound, so
    a table is bounded row by row; one without a column gets none. The bound holds up to the rounding of the scores'
    dtype; a proof needs float64 scores.

    :param weights: with them the bound is of sum_k e_k s_k for every |e_k| <= weights_k, else of each component's
        scores.
    """
    widths = [contribution.plated_scores.shape[-1] + contribution.shared_scores.shape[-1]]
    widths += [table.scores.shape[-1] for table in contribution.tables]
    bound = score_bound * clip_norm / math.sqrt(max(1, sum(width > 0 for width in widths)))

    def blocks(plated: jax.Array, shared: jax.Array) -> tuple[jax.Array, ...]:
        if weights is None:
            return _bounded_blocks(bound, plated, shared)
        return _bounded_together(bound, weights, plated, shared)

    plated, shared = blocks(contribution.plated_scores, contribution.shared_scores)
    tables = tuple(t._replace(scores=blocks(t.scores, t.scores[..., :0])[0]) for t in contribution.tables)
    return Contribution(limit(contribution.log_density), plated, shared, tables)


def bounded_prior(
    prior: ComponentPrior, clip_norm: float, limit: Limit, *, score_bound: float = SCORE_BOUND
) -> ComponentPrior:
    """The public component prior under the same bounds, so that one range proof covers it."""
    (scores,) = _bounded_blocks(score_bound * clip_norm, prior.scores)
    return ComponentPrior(limit(prior.log_weights[None])[0], scores)


def weight_of_values(weights: Num[Array, "n K"], table: ScoreTable) -> Num[Array, "V K"]:
    """The sum of the weights of all records that have a value: sum_n W_nk s_nk = sum_v weight_vk scores_vk."""
    num_values = table.scores.shape[0]
    return jnp.zeros((num_values, weights.shape[1]), weights.dtype).at[table.codes].add(weights)


def as_float64(arrays: Arrays) -> Arrays:
    """The same contribution or prior in float64, so that its bounds hold to float64's rounding."""

    def widened(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree_util.tree_map(widened, arrays)


def _finite(scores: jax.Array) -> jax.Array:
    """Scores of at most `_HUGE`: beyond it, reciprocals are subnormal and processors flush them to zero."""
    return jnp.clip(jnp.where(jnp.isfinite(scores), scores, 0.0), -_HUGE, _HUGE)


def _bounded_blocks(bound: float, *blocks: jax.Array) -> tuple[jax.Array, ...]:
    """Blocks of scores [..., K, d_i], finite and scaled down until their joint norm is at most the bound.

    They are divided by their largest entry first, or the squares of huge scores overflow to infinity. Then the
    sum of squares is about 1 or more, but for scores so small that nothing needs to be scaled.
    """
    finite = [_finite(block) for block in blocks]
    largest = reduce(jnp.maximum, (_largest(block) for block in finite))
    inverse = 1 / jnp.clip(largest, 1 / _HUGE, _HUGE)
    square = reduce(jnp.add, (((block * inverse) ** 2).sum(-1, keepdims=True) for block in finite))
    scale = jnp.minimum(1.0, (bound * inverse) / jnp.sqrt(jnp.maximum(square, 0.5)))
    return tuple(block * scale for block in finite)


def _bounded_together(
    bound: float, weights: tuple[float, ...], plated: jax.Array, shared: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Plated and shared scores [..., K, d_i], finite and scaled down alike until no weights make them too long.

    That is, until || sum_k e_k s_k || is at most the bound for every |e_k| <= weights_k. Divided by their largest entry
    first, as in `_bounded_blocks`; the largest square over all signs is at least the sum of all squares.
    """
    factors = jnp.asarray(weights, plated.dtype)[:, None]
    finite = [_finite(block) for block in (plated, shared)]
    largest = reduce(jnp.maximum, (_largest(block * factors).max(axis=-2, keepdims=True) for block in finite))
    inverse = 1 / jnp.clip(largest, 1 / _HUGE, _HUGE)
    square = _largest_square(*(block * factors * inverse for block in finite))[..., None, None]
    scale = jnp.minimum(1.0, (bound * inverse) / jnp.sqrt(jnp.maximum(square, 0.5)))
    return finite[0] * scale, finite[1] * scale


def _largest_square(plated: jax.Array, shared: jax.Array) -> jax.Array:
    """max || sum_k +-s_k ||^2 over all signs, of plated scores, which stand apart, and of shared ones, which add up."""
    squares = (plated**2).sum((-2, -1)) + (shared**2).sum((-2, -1))
    pairs = list(itertools.combinations(range(shared.shape[-2]), 2))
    if not pairs:
        return squares
    products = jnp.stack([(shared[..., i, :] * shared[..., j, :]).sum(-1) for i, j in pairs], axis=-1)
    signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=shared.shape[-2] - 1)])
    patterns = np.stack([signs[:, i] * signs[:, j] for i, j in pairs], axis=-1)
    return squares + 2 * (products[..., None, :] * patterns).sum(-1).max(-1)


def _largest(scores: jax.Array) -> jax.Array:
    return jnp.abs(scores).max(axis=-1, keepdims=True, initial=0.0)
