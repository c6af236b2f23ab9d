"""What a party does to its own numbers before they enter a protocol: public bounds on secret values.

These bounds make the range proof possible. They never weaken privacy: the clip is computed on the bounded
values, so a bound that bites costs accuracy only.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vertinumpyro.core.types import ComponentPrior, Contribution

__all__ = ["LOG_DENSITY_FLOOR", "SCORE_BOUND", "bounded", "bounded_prior", "renormalised"]

LOG_DENSITY_FLOOR = -1024.0
"""B: a component this much below the party's best one on a record counts as this much below."""

SCORE_BOUND = 1024.0
"""A party's scores for one record and component are scaled down to this many clip norms."""


def renormalised(log_density: Float[Array, "n K"]) -> Float[Array, "n K"]:
    """l - max_k l, floored at `LOG_DENSITY_FLOOR`: Algorithm 4 in closed form. The maximum cancels later.

    A record with a density that is not a number, or zero under every component, counts as undecided (all 0).
    """
    clean = jnp.where(jnp.isnan(log_density), -jnp.inf, log_density)
    best = clean.max(axis=-1, keepdims=True)
    relative = jnp.where(jnp.isfinite(best), clean - best, 0.0)
    return jnp.maximum(relative, LOG_DENSITY_FLOOR)


def bounded(contribution: Contribution, clip_norm: float, *, renormalise: bool = True) -> Contribution:
    """Renormalised log densities, and scores that are finite and at most `SCORE_BOUND` clip norms long."""
    log_density, plated, shared = contribution
    plated = jnp.where(jnp.isfinite(plated), plated, 0.0)
    shared = jnp.where(jnp.isfinite(shared), shared, 0.0)
    scale = _scale_to(SCORE_BOUND * clip_norm, plated, shared)
    log_density = renormalised(log_density) if renormalise else log_density
    return Contribution(log_density, plated * scale, shared * scale)


def bounded_prior(prior: ComponentPrior, clip_norm: float) -> ComponentPrior:
    """The public component prior under the same bounds, so that one range proof covers it."""
    scores = jnp.where(jnp.isfinite(prior.scores), prior.scores, 0.0)
    scale = _scale_to(SCORE_BOUND * clip_norm, scores, scores[..., :0])
    return ComponentPrior(renormalised(prior.log_weights[None])[0], scores * scale)


def _scale_to(bound: float, plated: jax.Array, shared: jax.Array) -> jax.Array:
    """Factor [..., K, 1] <= 1 that brings the joint norm of two score blocks to the bound.

    Each block is divided by its largest entry first, or the squares of huge scores overflow to infinity.
    """
    largest = jnp.maximum(
        jnp.abs(plated).max(axis=-1, keepdims=True, initial=0.0), jnp.abs(shared).max(axis=-1, keepdims=True, initial=0.0)
    )
    safe = jnp.where(largest > 0, largest, 1.0)
    square = ((plated / safe) ** 2).sum(-1, keepdims=True) + ((shared / safe) ** 2).sum(-1, keepdims=True)
    return jnp.minimum(1.0, (bound / safe) / jnp.sqrt(jnp.maximum(square, 1e-30)))
