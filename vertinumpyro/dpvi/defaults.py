"""Settings chosen from public facts alone: N, the privacy target and the schema, never the data.

| whom ε is for | batch | steps |
|---|---|---|
| someone who knows who is in a batch, as parties do | N | 25 from tables, 150 from random values |
| nobody who does: one party alone, hidden batches, `adversary="outside analyst"` | N / 30, at least 100 | 1,000 |

Towards somebody who knows the batches sub-sampling buys nothing: noise against a step's signal is least with everybody
in it, and every further step costs in full. Towards the others batches of N / 30 amplify: sqrt(T) n / sigma, the
signal-to-noise ratio of the whole run, is within 2% of its limit from there on, and smaller batches compute less.

| setting | default | why |
|---|---|---|
| clip norm | 0.6 sqrt(columns) | see `default_clip_norm`, and `dpvi.clipping` for a `party_sum` |
| K of the mixture | 20; N / 400 from tables, from 20 to 200 | noisy steps from random values find few components |
| rate of Adam | 0.1 sqrt(1000 / T), at most 0.3; 0.02 from tables | fewer steps go further each |
| guide's scale at the start | 0.1; 0.02 from tables | a start that is known is not to be drawn past |
| start | noisy tables where they can be had (`DPVI.warm_start`) | see `dpvi.warm_start` |
| part of the budget for tables | 0.8 of mu^2 | one release of tables says more than as much for gradients |

From tables a step's work is that of K = 20 with N / 400 components and a quarter of the steps, and what is learned is
more: the start has to find nothing, so what is left to the steps is small against a parameter's own noise, and a rate
that moved every parameter far would lose what the tables said.

Tried on Adult and not kept, as the held-out NLL moved by less than two runs differ (0.03): the mean of the last 10 or
of all iterates, a rate that stays, more of the budget for early or for late steps, momenta shrunk by their noise. Noise
that is correlated between steps has nothing to give here: a record that is in every step moves the sum of T gradients
by T C, and independent noise of sqrt(T) C a step already adds up to T C. Batches whose indices stay hidden among
the parties would count against nobody, and reach at best what a budget for the outside analyst alone reaches: 9.29,
where full batches from tables come to 8.74.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import optax
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.initialization import init_to_uniform

from vertinumpyro.data import Schema
from vertinumpyro.posterior.guide import GuideFactory

__all__ = [
    "START_SHARE",
    "WARM_STEPS",
    "default_batch",
    "default_clip_norm",
    "default_components",
    "default_guide",
    "default_init",
    "default_optimizer",
    "default_rate",
    "num_scores",
    "warm_guide",
]

START_SHARE = 0.8
"""Part of μ² for the tables that a fit starts from."""

WARM_STEPS = 25
"""From tables."""

_KNOWN_STEPS, _AMPLIFIED_STEPS = 150, 1000
_LARGEST_RATE, _WARM_RATE = 0.3, 0.02
_COMPONENTS, _MOST_COMPONENTS, _RECORDS_A_COMPONENT = 20, 200, 400
_NUM_BATCHES_AN_EPOCH = 30
_SMALLEST_BATCH = 100

default_guide: GuideFactory = partial(AutoDiagonalNormal, init_scale=0.1)
"""Mean-field Normal, narrow at the start."""

warm_guide: GuideFactory = partial(AutoDiagonalNormal, init_scale=0.02)
"""The same, narrower, for steps that start from tables."""

default_init: Callable[..., Any] = partial(init_to_uniform, **{"radius": 0.1})
"""Small random unconstrained values, so that the components of a mixture differ."""


def default_batch(num_records: int, *, amplified: bool) -> tuple[int, int]:
    """(batch size, number of steps), as the module's table has them, of steps from random values.

    :param amplified: whether sub-sampling counts against everyone whom ε is for: nobody of them knows the batches.
    """
    if not amplified:
        return num_records, _KNOWN_STEPS
    return min(num_records, max(_SMALLEST_BATCH, round(num_records / _NUM_BATCHES_AN_EPOCH))), _AMPLIFIED_STEPS


def default_components(num_records: int, *, warm: bool) -> int:
    """K of the library's mixture, as the module's table has it.

    :param warm: whether the steps start from tables.
    """
    if not warm:
        return _COMPONENTS
    return min(_MOST_COMPONENTS, max(_COMPONENTS, num_records // _RECORDS_A_COMPONENT))


def default_clip_norm(num_scores: int | float) -> float:
    """0.6 sqrt(columns and learned masks): somewhat below the norm of a typical record's gradient.

    Each adds a score of norm near one. A clip norm far below rescales every record, which biases what is
    learned (rare records count too much); one far above buys noise for nothing.

    :param num_scores: how many there are, `num_scores` of a schema.
    """
    return round(0.6 * math.sqrt(num_scores), 3)


def num_scores(schema: Schema) -> int:
    """Columns, and masks that are learned besides."""
    return len(schema.columns) + sum(column.mask_is_learned for column in schema.columns.values())


def default_rate(num_steps: int, *, warm: bool = False) -> float:
    """Of Adam at its first step."""
    return _WARM_RATE if warm else min(_LARGEST_RATE, 0.1 * math.sqrt(_AMPLIFIED_STEPS / num_steps))


def default_optimizer(num_steps: int, learning_rate: float | None = None) -> optax.GradientTransformation:
    """Adam whose step size falls by a cosine, so that the last iterates average out the noise."""
    if learning_rate is None:
        learning_rate = default_rate(num_steps)
    return optax.adam(optax.cosine_decay_schedule(learning_rate, num_steps, alpha=0.05))
