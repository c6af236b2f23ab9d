r"""What parts add to the predictor without a coefficient: a column's offset, or the logarithm of an exposure.

How much a record says depends on it: of counts over a time t the curvature by the predictor is t exp(x'beta). So
second moments have it beside the scores, as one more number of the party whose part has it (`dpvi.second_moments`): o,
moved and scaled to u = (o - middle) / half and cut to [-1, 1]. What is released says then where offsets lie, how far
they are spread and how they go with the columns of all parties, and the posterior has the sum of middles and half u in
its predictor, with coefficients that are known (`dpvi.noise_aware`).

Middle and half are public: what offsets stand-in records have, but for the outermost hundredth on each side. A count
over a hundredth of the longest time says almost nothing, so of counts what is below counts as that. What is cut is u
alone; the steps have every record's own offset as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.model import SplitModel
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.outcomes import NegativeBinomial, Poisson
from vertinumpyro.model.party_sums import parts_at

_TRIED, _OUTERMOST = 1024, 0.01
_LONGEST_TIMES = 100.0
_NOTHING = 1e-4


class Offset(NamedTuple):
    """Of one party's part: where its offsets lie, and half of how far they reach; 0 where they are all alike."""

    middle: float = 0.0
    half: float = 0.0

    def scaled(self, offsets: Any) -> np.ndarray:
        """U `[n, 1]`, or `[n, 0]` where there is nothing to know."""
        if not self.half:
            return np.zeros((len(offsets), 0))
        return np.clip((np.asarray(offsets, np.float64) - self.middle) / self.half, -1.0, 1.0)[:, None]


def offsets_at(split: SplitModel, party: str) -> Callable[[Mapping[str, Any]], jax.Array]:
    """From the party's columns [n] to what its part is where all latents are 0 [n], compiled once."""
    key = f"offsets of {party}"
    if key not in split.compiled:
        zeros = split.constrain(jnp.zeros(split.num_parameters))

        def added(columns: Mapping[str, Any]) -> jax.Array:
            return parts_at(split.model, split.structure.summed, party, zeros, columns, split.stand_ins(1))[:, 0]

        split.compiled[key] = jax.jit(added)
    return split.compiled[key]


def public_offsets(split: SplitModel) -> tuple[Offset, ...]:
    """Each party's, by its public domains; () where no part has any."""
    if "public offsets" not in split.compiled:
        found = tuple(_of_stand_ins(split, party) for party in split.parties)
        split.compiled["public offsets"] = found if any(offset != Offset() for offset in found) else ()
    return split.compiled["public offsets"]


def may_be_times(split: SplitModel) -> bool:
    """Whether the outcome is whether an event was seen: what is added to its predictor may be the time until then,
    which is no column that the outcome follows from."""
    (summed,) = split.structure.summed
    return isinstance(summed.outcome, Poisson) and summed.outcome.events


def _of_stand_ins(split: SplitModel, party: str) -> Offset:
    columns = stand_in_columns(split.schema.restrict(party), _TRIED, seed=15)
    found = np.asarray(offsets_at(split, party)({name: jnp.asarray(column) for name, column in columns.items()}))
    low, high = np.quantile(found.astype(np.float64), [_OUTERMOST, 1 - _OUTERMOST])
    if max(abs(low), abs(high)) <= _NOTHING:
        return Offset()
    (summed,) = split.structure.summed
    if isinstance(summed.outcome, Poisson | NegativeBinomial):
        low = max(low, high - math.log(_LONGEST_TIMES))
    half = (high - low) / 2
    return Offset(_rounded((low + high) / 2), _rounded(half) if half > _NOTHING else 0.0)


def _rounded(number: float) -> float:
    """To what machines agree on."""
    return float(f"{number:.4g}")
