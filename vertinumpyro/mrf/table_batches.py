"""Tables that are fitted together: one projection of the model, and one matrix, for many of them.

The engine compiles a projection for every table that it fits, forwards and backwards, each from a maximal clique of up
to a million cells. Tables of few columns are instead projected from a common margin of at most `_MOST_CELLS` cells
within that clique, all by one matrix of zeros and ones. The field and its objective stay the same, so does the path
of mirror descent, which only ever adds functions of the tables; NLTCS's 232 tables take a dozen projections.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from vertinumpyro.mrf.measurements import Measurement

Columns = tuple[str, ...]

_MOST_CELLS = 1024
_MOST_ENTRIES = 2**24  # of all matrices of a fit together
MATRIX_BYTES = 3 * 8 * _MOST_ENTRIES
"""What these take, with the copies in the engine's compiled program."""


@final
@dataclasses.dataclass(frozen=True)
class TablesOf:
    """Tables of some columns, read off a margin, one after the other. Equal queries compile once.

    :ivar columns: the margin's, with their cells.
    :ivar tables: each table's columns.
    """

    columns: tuple[tuple[str, int], ...]
    tables: tuple[Columns, ...]

    def __call__(self, factor: Any) -> Any:
        """The tables' cells, from the engine's factor of the margin."""
        if len(self.tables) == 1 and len(self.tables[0]) == len(self.columns):
            return factor.transpose(self.tables[0]).datavector()  # the margin itself, however many cells it has
        names = tuple(name for name, _ in self.columns)
        return matrix_of(self) @ factor.transpose(names).datavector()

    @property
    def num_entries(self) -> int:
        """Of the matrix."""
        sizes = dict(self.columns)
        rows = sum(math.prod(sizes[name] for name in table) for table in self.tables)
        return rows * math.prod(sizes.values()) if len(self.tables) > 1 else 0

    def op_norm_sq(self) -> float:
        """The largest eigenvalue, which the engine's first step size needs, or a bound of it."""
        cells = math.prod(cells for _, cells in self.columns)
        sizes = dict(self.columns)
        return float(sum(cells / math.prod(sizes[n] for n in table) for table in self.tables))


@functools.lru_cache(maxsize=256)
def matrix_of(query: TablesOf) -> np.ndarray:
    """Zeros and ones, float64 `[cells of all tables, cells of the margin]`."""
    shape = tuple(cells for _, cells in query.columns)
    names = [name for name, _ in query.columns]
    index = np.indices(shape).reshape(len(shape), -1)
    parts = []
    for table in query.tables:
        axes = [names.index(name) for name in table]
        codes = np.ravel_multi_index(tuple(index[a] for a in axes), tuple(shape[a] for a in axes))
        parts.append(np.arange(math.prod(shape[a] for a in axes))[:, None] == codes)
    return np.concatenate(parts).astype(np.float64)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Tables with equally much noise within one margin."""

    measurements: tuple[Measurement, ...]
    query: TablesOf

    @property
    def columns(self) -> Columns:
        """The margin's columns."""
        return tuple(name for name, _ in self.query.columns)

    @property
    def stddev(self) -> float:
        """Of the noise in a cell."""
        return self.measurements[0].stddev

    def counts(self) -> np.ndarray:
        """All tables' cells, as the query orders them."""
        return np.concatenate([m.values.ravel() for m in self.measurements])


def batched(
    sizes: Mapping[str, int], measurements: Sequence[Measurement], maximal_cliques: Sequence[Columns]
) -> list[Batch]:
    """The tables in batches, largest first into the margin that grows least.

    :param sizes: cells of every column.
    :param measurements: each within some maximal clique; what would make the matrices too large stays on its own.
    :param maximal_cliques: of the model; a margin that stays within one of them leaves them as they are.
    """
    batches: list[tuple[Batch, set[str]]] = []
    left = _MOST_ENTRIES
    for m in sorted(measurements, key=lambda m: (-m.values.size, m.columns)):
        fitting = [
            (_cells(sizes, {*batch.columns, *m.columns}), i)
            for i, (batch, clique) in enumerate(batches)
            if batch.stddev == m.stddev and {*batch.columns, *m.columns} <= clique
        ]
        cells, best = min(fitting, default=(math.inf, 0))
        if cells <= _MOST_CELLS:
            batch, clique = batches[best]
            grown = _batch(sizes, {*batch.columns, *m.columns}, (*batch.measurements, m))
            if (more := grown.query.num_entries - batch.query.num_entries) <= left:
                batches[best], left = (grown, clique), left - more
                continue
        batches.append((_batch(sizes, {*m.columns}, (m,)), next({*c} for c in maximal_cliques if {*m.columns} <= {*c})))
    return [batch for batch, _ in batches]


def _cells(sizes: Mapping[str, int], columns: set[str]) -> int:
    return math.prod(sizes[name] for name in columns)


def _batch(sizes: Mapping[str, int], margin: set[str], tables: Sequence[Measurement]) -> Batch:
    columns = tuple((name, size) for name, size in sizes.items() if name in margin)
    return Batch(measurements=tuple(tables), query=TablesOf(columns, tuple(m.columns for m in tables)))
