"""Rounds that measure again the cross-party tables which the model so far gets most wrong.

As in AIM (McKenna, Mullins, Sheldon and Miklau 2022), but nothing exact is ever looked at: the first release shows all
pair tables with much noise, and each round compares those, and what later rounds revealed, with the model that they
gave. So a choice is post-processing and costs no budget; AIM pays for an exponential mechanism on exact errors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.cross_tables import Pair
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.release import Measurement

__all__ = ["Estimate", "merged", "run_rounds", "worst_fitted"]

Estimate = Callable[[Sequence[CellColumn], Sequence[Measurement]], GraphicalModel]
"""Fits a field of some columns to released tables."""


def run_rounds(
    measurements: Sequence[Measurement],
    counts: Sequence[int],
    estimate: Callable[[Sequence[Measurement]], GraphicalModel],
    reveal: Callable[[int, Callable[[], Sequence[Pair]]], Sequence[Measurement]],
    candidates: Sequence[Pair],
    num_records: int,
) -> list[Measurement]:
    """All tables, those of the rounds included.

    Args:
        measurements: what is released so far.
        counts: how many tables each round may choose.
        estimate: fits the field; post-processing.
        reveal: spends round i on the pairs that a function gives it; a round that was spent before needs none.
        candidates: the pairs to choose from.
        num_records: N.
    """
    tables = list(measurements)

    def worst(count: int) -> list[Pair]:
        return worst_fitted(estimate(tables), tables, candidates, num_records)[:count]

    for index, count in enumerate(counts):
        tables.extend(reveal(index, functools.partial(worst, count)))
    return tables


def worst_fitted(
    model: GraphicalModel, measurements: Sequence[Measurement], candidates: Sequence[Pair], num_records: int
) -> list[Pair]:
    """Pairs by how far the model is from their noisy tables, less what the noise alone would give; worst first.

    A pair without a table, where a crash lost the first look, comes before all others.
    """
    found = {m.columns: m for m in merged(measurements)}

    def error(pair: Pair) -> float:
        return _excess_error(model, found[pair], num_records) if pair in found else math.inf

    return sorted(candidates, key=lambda pair: -error(pair))


def _excess_error(model: GraphicalModel, measured: Measurement, num_records: int) -> float:
    gap = np.abs(num_records * model.marginal(measured.columns) - measured.values).sum()
    return float(gap) - math.sqrt(2 / math.pi) * measured.stddev * measured.values.size


def merged(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One table for each set of columns: the inverse-variance mean of all that there are."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(m.columns, []).append(m)
    return [_mean(columns, group) for columns, group in groups.items()]


def _mean(columns: tuple[str, ...], group: Sequence[Measurement]) -> Measurement:
    weights = [m.stddev**-2 for m in group]
    values = sum((w * m.values for w, m in zip(weights, group, strict=True)), start=np.zeros(()))
    return Measurement(columns=columns, values=values / sum(weights), stddev=sum(weights) ** -0.5)
