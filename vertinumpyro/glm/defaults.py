"""How a generalised linear model is stepped, chosen from public numbers alone, never from the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from vertinumpyro.dpvi.second_moments import NUM_STEPS as FEW_STEPS

__all__ = ["Steps", "default_steps", "one_scale_adam"]

_NUM_STEPS, _CLIP_FACTOR = 200, 0.4


class Steps(NamedTuple):
    """How many steps, with what.

    Attributes:
        num_steps: with all records in each, so that sub-sampling has nothing to add.
        clip_norm: of a record's gradient, over the family's usual residual.
        learning_rate: of Adam at its first step, over the family's usual coefficient.
    """

    num_steps: int
    clip_norm: float
    learning_rate: float


def default_steps(num_columns: int, num_steps: int | None = None, *, curvature: bool = False) -> Steps:
    """The settings of a fit that names none; `benchmarks/glm.py` has what they reach at epsilon from 0.1 to 10.

    Noise of T steps that is averaged costs what noise of one does, so T is as large as patience allows. A record is
    clipped where its outcome was half expected: its gradient's norm is the residual times sqrt(columns), as each
    column adds a number in [-1, 1] or a one, and 0.4 of a bounded residual is a clip norm of 0.4 sqrt(columns). With
    the rate 1 / sqrt(T) steps of noise alone move a coefficient by some 0.6 of its usual size. Where second moments say
    how far to go, 20 steps come as far, and a step of every party's records between organisations is what takes time.

    Args:
        num_columns: features and label.
        num_steps: T; None takes 200, or 20 with second moments.
        curvature: whether steps go by noisy second moments.
    """
    steps = num_steps or (FEW_STEPS if curvature else _NUM_STEPS)
    return Steps(steps, round(_CLIP_FACTOR * math.sqrt(num_columns), 3), 1 / math.sqrt(steps))


def one_scale_adam(num_steps: int, learning_rate: float) -> optax.GradientTransformation:
    """Adam whose second moment is the mean over all coefficients, and whose rate falls by a cosine.

    Privacy's noise is the same in all of them; Adam's own scales would blow up those that hardly have a gradient. A
    guide's widths, whose gradients are of another kind, have a scale of their own.

    Args:
        num_steps: T.
        learning_rate: at the first step.
    """
    kinds: Mapping[Any, Any] = {
        "coefficients": _one_scale(num_steps, learning_rate),
        "widths": _one_scale(num_steps, learning_rate),
    }
    return optax.multi_transform(kinds, _kinds)


def _kinds(params: Any) -> Any:
    return {name: "widths" if name.endswith("_scale") else "coefficients" for name in params}


def _one_scale(num_steps: int, learning_rate: float) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.05)

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jax.tree_util.tree_map(jnp.zeros_like, params), jnp.zeros(())

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        count, momentum, square = state[0] + 1, state[1], state[2]
        momentum = jax.tree_util.tree_map(lambda m, g: 0.9 * m + 0.1 * g, momentum, updates)
        leaves = jax.tree_util.tree_leaves(updates)
        size = max(1, sum(leaf.size for leaf in leaves))
        square = 0.999 * square + 0.001 * sum(jnp.sum(jnp.square(leaf)) for leaf in leaves) / size
        scale = rate(count - 1) / (1 - 0.9**count) / (jnp.sqrt(square / (1 - 0.999**count)) + 1e-8)
        return jax.tree_util.tree_map(lambda m: -scale * m, momentum), (count, momentum, square)

    return optax.GradientTransformation(init, update)
