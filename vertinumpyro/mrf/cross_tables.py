"""Tables of column pairs at different parties, from the secure cross products of one-hot columns.

Party i's columns as one-hot integers A_i `[N, cells_i]`: the tables of all its pairs with party j's columns are blocks
of A_iᵀA_j. A session's `cross_products` reveals them with noise for every two parties.

Kept secret-shared instead, for rounds that reveal chosen tables only: every party's "noise" is then a uniform element
of Z_{2^64} for every cell, a pad that only it knows. What is opened is the sum, uniform whatever the tables hold; to a
coalition that lacks one party it stays so, given its own pads. The first party's share is that sum less its pad,
everyone else's is minus the pad: they add up to the tables, and a `sum` of shares and noise shares reveals a table
with noise, never without.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import OneHot, RowBlocks
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.release import GRID_BITS, Measurement, TableRelease

__all__ = ["Pair", "check_range", "cross_pairs", "measured_pairs", "one_hot", "pads", "party_columns", "table_slices"]

Pair = tuple[str, str]

_HALF_GRID = GRID_BITS // 2
assert 2 * _HALF_GRID == GRID_BITS


def party_columns(columns: Sequence[CellColumn], parties: Sequence[str]) -> list[list[CellColumn]]:
    """Each party's columns."""
    return [[c for c in columns if c.party == party] for party in parties]


def cross_pairs(columns: Sequence[CellColumn], parties: Sequence[str]) -> list[Pair]:
    """Every pair of columns at different parties, in the order of their tables."""
    held = party_columns(columns, parties)
    return [(a.name, b.name) for own, other in itertools.combinations(held, 2) for a in own for b in other]


def one_hot(columns: Sequence[CellColumn], arrays: Mapping[str, np.ndarray], num_records: int) -> RowBlocks:
    """One party's columns side by side, integers `[N, cells]`: half of the grid's factor where a record is. Secret."""
    sizes = tuple(c.num_cells for c in columns)
    codes = functools.partial(_codes, tuple(columns))
    return RowBlocks(
        shape=(num_records, sum(sizes)),
        largest=1,
        columns=arrays,
        make=functools.partial(_ones, tuple(columns)),
        bits=_HALF_GRID,
        one_hot=OneHot(sizes=sizes, codes=codes),
    )


def _codes(columns: Sequence[CellColumn], block: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [column.codes(block) for column in columns]


def _ones(columns: Sequence[CellColumn], block: Mapping[str, np.ndarray]) -> np.ndarray:
    """The one-hot rows of a block, int8."""
    out = np.zeros((len(next(iter(block.values()))), sum(c.num_cells for c in columns)), np.int8)
    for own, place in zip(_codes(columns, block), _slices(columns), strict=True):
        out[np.arange(len(out)), place.start + own] = 1
    return out


def measured_pairs(
    columns: Sequence[CellColumn],
    parties: Sequence[str],
    release: TableRelease,
    products: Mapping[tuple[int, int], np.ndarray],
    named: Collection[Pair] | None = None,
) -> list[Measurement]:
    """All pair tables, or those of a workload, cut out of the revealed products of every two parties."""
    held, found = party_columns(columns, parties), []
    for i, j in itertools.combinations(range(len(parties)), 2):
        rows, cols = _slices(held[i]), _slices(held[j])
        found += [
            release.measured((a.name, b.name), products[i, j][row, col])
            for a, row in zip(held[i], rows, strict=True)
            for b, col in zip(held[j], cols, strict=True)
            if named is None or (a.name, b.name) in named
        ]
    return found


def table_slices(columns: Sequence[CellColumn], parties: Sequence[str]) -> dict[Pair, np.ndarray]:
    """Where every pair's cells stand in the flat vector of all products: integers `[cells_a, cells_b]`."""
    held, start, found = party_columns(columns, parties), 0, {}
    for own, other in itertools.combinations(held, 2):
        shape = (sum(c.num_cells for c in own), sum(c.num_cells for c in other))
        places = np.arange(start, start + math.prod(shape)).reshape(shape)
        for a, row in zip(own, _slices(own), strict=True):
            found |= {(a.name, b.name): places[row, col] for b, col in zip(other, _slices(other), strict=True)}
        start += math.prod(shape)
    return found


def pads(size: int, source: RandomSource) -> np.ndarray:
    """One-time pads, int64 `[size]`, uniform on the ring. Secret."""
    return source.uint64(size).astype("<u8").view(np.int64)


def check_range(num_records: int, release: TableRelease) -> None:
    """A count plus twelve standard deviations of noise stays below 2^62 grid units.

    Raises:
        RangeError: N or the noise is too large.
    """
    if (num_records + 12 * release.stddev) * 2**GRID_BITS >= 2**62:
        raise RangeError(f"{num_records} records with this noise could wrap around the ring; raise epsilon")


def _slices(columns: Sequence[CellColumn]) -> list[slice]:
    ends = np.cumsum([c.num_cells for c in columns]).tolist()
    return [slice(end - c.num_cells, end) for c, end in zip(columns, ends, strict=True)]
