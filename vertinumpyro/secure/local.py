"""What a party does to its own numbers before they enter a protocol: public bounds on secret values.

These bounds make the range proof possible. They never weaken privacy: the clip is computed on the bounded
values, so a bound that bites costs accuracy only.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vertinumpyro.core.types import ComponentPrior, Contribution

__all__ = ["LOG_DENSITY_FLOOR", "SCORE_BOUND", "as_float64", "bounded", "bounded_prior", "renormalised"]

Arrays = TypeVar("Arrays", Contribution, ComponentPrior)

LOG_DENSITY_FLOOR = -1024.0
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
    *,
    score_bound: float = SCORE_BOUND,
    renormalise: bool = True,
) -> Contribution:
    """Renormalised log densities, and scores that are finite and at most `score_bound` clip norms long.

    The bound holds up to the rounding of the scores' dtype; a proof needs float64 scores.
    """
    log_density, plated, shared = contribution
    plated, shared = _finite(plated), _finite(shared)
    scale = _scale_to(score_bound * clip_norm, plated, shared)
    log_density = renormalised(log_density) if renormalise else log_density
    return Contribution(log_density, plated * scale, shared * scale)


def bounded_prior(prior: ComponentPrior, clip_norm: float, *, score_bound: float = SCORE_BOUND) -> ComponentPrior:
    """The public component prior under the same bounds, so that one range proof covers it."""
    scores = _finite(prior.scores)
    scale = _scale_to(score_bound * clip_norm, scores, scores[..., :0])
    return ComponentPrior(renormalised(prior.log_weights[None])[0], scores * scale)


def as_float64(arrays: Arrays) -> Arrays:
    """The same contribution or prior in float64, so that its bounds hold to float64's rounding."""
    return jax.tree_util.tree_map(lambda x: x.astype(jnp.float64), arrays)


def _finite(scores: jax.Array) -> jax.Array:
    """Scores of at most `_HUGE`: beyond it, reciprocals are subnormal and processors flush them to zero."""
    return jnp.clip(jnp.where(jnp.isfinite(scores), scores, 0.0), -_HUGE, _HUGE)


def _scale_to(bound: float, plated: jax.Array, shared: jax.Array) -> jax.Array:
    """Factor [..., K, 1] <= 1 that brings the joint norm of two score blocks to the bound.

    Each block is divided by its largest entry first, or the squares of huge scores overflow to infinity. Then
    the sum of squares is at least 1, but for blocks so small that nothing needs to be scaled.
    """
    largest = jnp.maximum(_largest(plated), _largest(shared))
    unit = jnp.clip(largest, 1 / _HUGE, _HUGE)
    square = ((plated / unit) ** 2).sum(-1, keepdims=True) + ((shared / unit) ** 2).sum(-1, keepdims=True)
    return jnp.minimum(1.0, (bound / unit) / jnp.sqrt(jnp.maximum(square, 1.0)))


def _largest(scores: jax.Array) -> jax.Array:
    return jnp.abs(scores).max(axis=-1, keepdims=True, initial=0.0)
