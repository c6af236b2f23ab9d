"""Settings chosen from public facts alone: N, the privacy target and the schema, never the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform

from vertinumpyro.data import Schema
from vertinumpyro.dpvi.guide import GuideFactory

__all__ = [
    "DEFAULT_NUM_STEPS",
    "default_batch_size",
    "default_clip_norm",
    "default_guide",
    "default_init",
    "default_optimizer",
]

DEFAULT_NUM_STEPS = 1000
"""At a given epsilon the signal-to-noise ratio of all steps together hardly depends on their number once
batches are large, so the number of steps is what convergence needs and the time allows."""

_NUM_BATCHES_AN_EPOCH = 30
_SMALLEST_BATCH = 100

default_guide: GuideFactory = partial(AutoDiagonalNormal, init_scale=0.1)
"""Mean-field Normal, narrow at the start."""

default_init: Callable[..., Any] = partial(init_to_uniform, **{"radius": 0.1})
"""Small random unconstrained values, so that the components of a mixture differ."""


def default_batch_size(num_records: int) -> int:
    """About N / 30, at least 100: large batches pay, because noise does not grow with the batch.

    sqrt(T) n / sigma, the signal-to-noise ratio of the whole run at a fixed epsilon, is within 2% of its limit
    from there on, and smaller batches compute less.
    """
    return min(num_records, max(_SMALLEST_BATCH, round(num_records / _NUM_BATCHES_AN_EPOCH)))


def default_clip_norm(schema: Schema) -> float:
    """0.6 sqrt(number of columns): somewhat below the norm of a typical record's gradient.

    Each column adds a score of norm near one. A clip norm far below rescales every record, which biases what is
    learned (rare records count too much); one far above buys noise for nothing.
    """
    return round(0.6 * math.sqrt(len(schema.columns)), 3)


def default_optimizer(num_steps: int, learning_rate: float = 0.1) -> optax.GradientTransformation:
    """Adam whose step size falls by a cosine, so that the last iterates average out the noise."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.05))
