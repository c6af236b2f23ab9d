"""What a party does to its own numbers before they enter a protocol: public bounds on secret values.

These bounds make the range proof possible. They never weaken privacy: the clip is computed on the bounded
values, so a bound that bites costs accuracy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from vertinumpyro.core.types import ComponentPrior, Contribution, ScoreTable

__all__ = [
    "LARGEST_CONTRIBUTION",
    "LOG_DENSITY_FLOOR",
    "SCORE_BOUND",
    "as_float64",
    "bounded",
    "bounded_prior",
    "renormalised",
    "weight_of_values",
]

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
    contribution: Contribution, clip_norm: float, limit: Limit, *, score_bound: float = SCORE_BOUND
) -> Contribution:
    """Contributions under the link's limit, and scores that are finite and at most `score_bound` clip norms long.

    Each of the party's blocks, the scores of every record and each table, gets an equal part of the squared bound, so
    a table is bounded row by row; one without a column gets none. The bound holds up to the rounding of the scores'
    dtype; a proof needs float64 scores.
    """
    widths = [contribution.plated_scores.shape[-1] + contribution.shared_scores.shape[-1]]
    widths += [table.scores.shape[-1] for table in contribution.tables]
    bound = score_bound * clip_norm / math.sqrt(max(1, sum(width > 0 for width in widths)))
    plated, shared = _bounded_blocks(bound, contribution.plated_scores, contribution.shared_scores)
    tables = tuple(t._replace(scores=_bounded_blocks(bound, t.scores)[0]) for t in contribution.tables)
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


def _largest(scores: jax.Array) -> jax.Array:
    return jnp.abs(scores).max(axis=-1, keepdims=True, initial=0.0)
