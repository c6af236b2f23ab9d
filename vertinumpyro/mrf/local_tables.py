"""How a party's part of the budget is divided between the releases of its own columns.

One party's tables of its own columns, measured with its own noise: what VertiMRF calls the local model.

With a budget μ²: finer histograms of binned columns; a first look at all pairs, which gives a noisy graph; then the
triples within it that are θ-useful (PrivMRF's rule: a cell holds more records than six times the noise of a cell,
|dom| < N / (6σ√(2/π))), strongest first, and the pairs that no triple covers. Later choices look at released tables
only, so the parameters of the parts add up as squares.

Where noise would drown the columns' own counts, too, as pairs have them, only pairs are measured that may show a large
association if the pairs got all of it once, or that have few cells; the columns of no such pair are measured alone,
with √(k/2) times less noise than from all pairs of columns of k cells. Which these are follows from public numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import exact_tables, fine_tables
from vertinumpyro.mrf.measurements import (
    Measurement,
    TableRelease,
    cells_that_show,
    dependence,
    noise_per_cell,
    useful_cells,
)
from vertinumpyro.privacy import NeighbouringRelation


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalBudget:
    """A party's part of a plan.

    :ivar mu: the Gaussian parameter of everything that `measure_locally` returns.
    :ivar recovery_share: part of μ² for finer histograms, where there are binned columns.
    :ivar num_records: N.
    :ivar relation: the neighbouring relation.
    """

    mu: float
    recovery_share: float
    num_records: int
    relation: NeighbouringRelation

    def release(self, num_tables: int, share: float) -> TableRelease:
        """A release of some tables for a share of μ²."""
        return TableRelease(num_tables=num_tables, mu=self.mu * math.sqrt(share), relation=self.relation)


_GRAPH_SHARE = 0.2
MOST_TRIPLES = 200
_DROWNED = 0.1  # total variation distance of a column's counts by noise, on the mean of columns
_FEW_CELLS = 8  # of a pair, which has its columns' counts with hardly more noise than they alone would have


@final
class LocalTables(NamedTuple):
    """What one party releases about its own columns.

    :ivar measurements: tables of one to three columns, in cells.
    :ivar fine: noisy histograms of the values within cells, for the columns that are binned.
    """

    measurements: tuple[Measurement, ...]
    fine: dict[str, np.ndarray]


def measure_locally(
    columns: Sequence[CellColumn],
    arrays: Mapping[str, np.ndarray],
    budget: LocalBudget,
    source: RandomSource,
    named: Sequence[tuple[str, str]] | None = None,
) -> LocalTables:
    """Spends a party's budget on its own columns; everything returned is released.

    :param columns: the party's columns.
    :param arrays: its encoded table. Secret.
    :param budget: its part of the plan.
    :param source: its own noise.
    :param named: the pairs of a workload, which are then measured once, and nothing beside them.
    """
    binned = [column for column in columns if column.binned and budget.recovery_share]
    places = {column.name: place for place, column in enumerate(columns)}
    pairs: list[tuple[int, ...]] = list(itertools.combinations(range(len(columns)), 2))
    if named is not None:
        pairs = [(places[a], places[b]) for a, b in named]
    recovery = budget.recovery_share if binned and pairs else float(bool(binned))
    fine = {}
    if recovery:
        tables = [((c.name,), table) for c, table in zip(binned, fine_tables(binned, arrays), strict=True)]
        fine = {m.columns[0]: m.values for m in budget.release(len(tables), recovery).noisy(tables, source)}
    if not pairs:
        single = [] if recovery else [(0,)]
        return LocalTables(_measured(columns, arrays, single, budget, 1.0, source), fine)
    if named is not None:
        return LocalTables(_measured(columns, arrays, pairs, budget, 1.0 - recovery, source), fine)
    left = 1.0 - recovery
    pairs, alone = _pairs_that_show(columns, pairs, budget, left)
    if not pairs:
        return LocalTables(_measured(columns, arrays, alone, budget, left, source), fine)
    first = _measured(columns, arrays, [*pairs, *alone], budget, left * _GRAPH_SHARE, source)
    chosen = _choose(columns, pairs, first[: len(pairs)], budget, left * (1 - _GRAPH_SHARE))
    second = _measured(columns, arrays, [*chosen, *alone], budget, left * (1 - _GRAPH_SHARE), source)
    return LocalTables((*first, *second), fine)


def _pairs_that_show(
    columns: Sequence[CellColumn], pairs: Sequence[tuple[int, ...]], budget: LocalBudget, share: float
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The pairs to measure with so much of the budget, and single columns in the place of others. From public facts."""
    stddev = budget.release(len(pairs), share).stddev
    sizes = np.array([column.num_cells for column in columns], float)
    beside = (1 / sizes).sum() - 1 / sizes  # a column's counts by a pair have the noise of the other one's cells
    noise = noise_per_cell(stddev) * sizes / np.sqrt(beside) / (2 * budget.num_records)
    if noise.mean() <= _DROWNED:
        return list(pairs), []
    most = max(_FEW_CELLS, cells_that_show(budget.num_records, stddev))
    shown = [pair for pair in pairs if math.prod(columns[i].num_cells for i in pair) <= most]
    held = {i for pair in shown for i in pair}
    return shown, [(i,) for i in range(len(columns)) if i not in held]


def _measured(
    columns: Sequence[CellColumn],
    arrays: Mapping[str, np.ndarray],
    sets: Sequence[tuple[int, ...]],
    budget: LocalBudget,
    share: float,
    source: RandomSource,
) -> tuple[Measurement, ...]:
    """Tables of some sets of columns for a share of the budget."""
    if not sets or not share:
        return ()
    names = [tuple(columns[i].name for i in s) for s in sets]
    tables = list(zip(names, exact_tables(columns, arrays, sets), strict=True))
    return budget.release(len(sets), share).noisy(tables, source)


def _choose(
    columns: Sequence[CellColumn],
    pairs: Sequence[tuple[int, ...]],
    looked_at: Sequence[Measurement],
    budget: LocalBudget,
    share: float,
) -> list[tuple[int, ...]]:
    """The θ-useful triples, strongest first, and the pairs that they leave. From released tables alone."""
    triples, cells = _by_strength(columns, pairs, [dependence(m, budget.num_records) for m in looked_at])
    chosen: list[tuple[int, ...]] = []
    for count in range(min(len(triples), MOST_TRIPLES), 0, -1):
        stddev = budget.release(count, share).stddev
        useful = np.flatnonzero(cells < useful_cells(budget.num_records, stddev))[:count]
        if len(useful) == count or count == 1:
            chosen = [tuple(triple) for triple in triples[useful].tolist()]
            break
    covered = {pair for triple in chosen for pair in itertools.combinations(triple, 2)}
    return chosen + [pair for pair in pairs if pair not in covered]


def _by_strength(
    columns: Sequence[CellColumn], pairs: Sequence[tuple[int, ...]], scores: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """All triples of columns `[T, 3]`, strongest first, and their cells; at once, as 200 columns have a million."""
    strength, size = np.zeros((len(columns), len(columns))), np.array([float(c.num_cells) for c in columns])
    for (a, b), score in zip(pairs, scores, strict=True):
        strength[a, b] = score
    a, b, c = np.array(list(itertools.combinations(range(len(columns)), 3)), np.int64).reshape(-1, 3).T
    order = np.argsort(-(strength[a, b] + strength[a, c] + strength[b, c]), kind="stable")
    return np.stack([a, b, c], axis=1)[order], (size[a] * size[b] * size[c])[order]
