"""Tables of column pairs at different parties, from the secure cross products of one-hot columns.

Party i's columns as one-hot integers A_i `[N, cells_i]`: the tables of all its pairs with party j's columns are blocks
of A_iᵀA_j. A session's `cross_products` reveals them with noise for every two parties.

Kept secret-shared instead, for rounds that reveal chosen tables only: every party's "noise" is then a uniform element
of Z_{2^64} for every cell (of Z_p where tables are verified), a pad that only it knows. What is opened is the sum,
uniform whatever the tables hold; to a coalition that lacks one party it stays so, given its own pads. The first party's
share is that sum less its pad, everyone else's is minus the pad: they add up to the tables, and a `sum` of shares and
noise shares reveals a table with noise, never without.

Exact contingency tables of one party's columns, counted in one pass over blocks of its records.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import OneHot, RowBlocks, rows_at_a_time
from vertinumpyro.core.workers import Block, total
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.measurements import GRID_BITS, Measurement, TableRelease
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.input_form import InputForm

Pair = tuple[str, str]

_HALF_GRID = GRID_BITS // 2
assert 2 * _HALF_GRID == GRID_BITS


class Crossed(Protocol):
    """A column of a product: a party's, or two of them as one."""

    @property
    def name(self) -> Hashable:
        """Of which there are no two."""
        ...

    @property
    def party(self) -> str:
        """Who holds it."""
        ...

    @property
    def num_cells(self) -> int:
        """Of the column."""
        ...

    def codes(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Every record's cell, int64 `[N]`. Secret."""
        ...


_Column = TypeVar("_Column", bound=Crossed)


def party_columns(columns: Sequence[_Column], parties: Sequence[str]) -> list[list[_Column]]:
    """Each party's columns."""
    return [[c for c in columns if c.party == party] for party in parties]


def cross_pairs(columns: Sequence[CellColumn], parties: Sequence[str]) -> list[Pair]:
    """Every pair of columns at different parties, in the order of their tables."""
    held = party_columns(columns, parties)
    return [(a.name, b.name) for own, other in itertools.combinations(held, 2) for a in own for b in other]


def one_hot(columns: Sequence[Crossed], arrays: Mapping[str, np.ndarray], num_records: int) -> RowBlocks:
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


def tables_form(columns: Sequence[Crossed], parties: Sequence[str]) -> InputForm:
    """What every party's `one_hot` is, in public."""
    groups = [[c.num_cells for c in own] for own in party_columns(columns, parties)]
    return InputForm.of_tables(groups, _HALF_GRID)


def product_widths(columns: Sequence[Crossed], parties: Sequence[str]) -> tuple[int, ...]:
    """Every party's cells."""
    return tuple(sum(column.num_cells for column in own) for own in party_columns(columns, parties))


def _codes(columns: Sequence[Crossed], block: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return [column.codes(block) for column in columns]


def _ones(columns: Sequence[Crossed], block: Mapping[str, np.ndarray]) -> np.ndarray:
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


def table_slices(columns: Sequence[Crossed], parties: Sequence[str]) -> dict[tuple[Any, Any], np.ndarray]:
    """Where every pair's cells stand in the flat vector of all products: integers `[cells_a, cells_b]`."""
    held, start, found = party_columns(columns, parties), 0, {}
    for own, other in itertools.combinations(held, 2):
        shape = (sum(c.num_cells for c in own), sum(c.num_cells for c in other))
        places = np.arange(start, start + math.prod(shape)).reshape(shape)
        for a, row in zip(own, _slices(own), strict=True):
            found |= {(a.name, b.name): places[row, col] for b, col in zip(other, _slices(other), strict=True)}
        start += math.prod(shape)
    return found


def pads(size: int, source: RandomSource, *, verified: bool = False) -> np.ndarray:
    """One-time pads, int64 `[size]`, exactly uniform: on the ring, or modulo 2^61 - 1 of tables that are verified.

    Secret.
    """

    def words(shape: tuple[int, ...]) -> np.ndarray:
        return source.uint64(math.prod(shape)).astype("<u8").view(np.int64)

    return field.uniform_from(words, (size,)) if verified else words((size,))


def check_range(num_records: int, release: TableRelease) -> None:
    """A count plus twelve standard deviations of noise stays below 2^59 grid units, of 60 that verified tables have.

    :raises RangeError: N or the noise is too large.
    """
    if (num_records + 12 * release.stddev) * 2**GRID_BITS >= 2**59:
        raise RangeError(f"{num_records} records with this noise could wrap around the ring; raise epsilon")


def _slices(columns: Sequence[Crossed]) -> list[slice]:
    ends = np.cumsum([c.num_cells for c in columns]).tolist()
    return [slice(end - c.num_cells, end) for c, end in zip(columns, ends, strict=True)]


ColumnSet = tuple[int, ...]
"""Places of columns in a party's list."""


def exact_tables(
    columns: Sequence[CellColumn], arrays: Mapping[str, np.ndarray], sets: Sequence[ColumnSet]
) -> list[np.ndarray]:
    """The table of each set of columns, int64, one axis for each of them. Secret.

    Memory beyond the columns and the tables is a block of records, whatever N is. By the columns' workers, if any.

    :param columns: the party's columns.
    :param arrays: its encoded table.
    :param sets: places in `columns`.
    """
    count = functools.partial(_counted, tuple(columns), tuple(sets))
    shapes = [_shape(columns, chosen) for chosen in sets]
    found = total(count, rows_at_a_time(len({i for chosen in sets for i in chosen})), arrays)
    return [table.reshape(shape) for table, shape in zip(found, shapes, strict=True)]


def _shape(columns: Sequence[CellColumn], chosen: ColumnSet) -> tuple[int, ...]:
    return tuple(columns[i].num_cells for i in chosen)


def _counted(columns: Sequence[CellColumn], sets: Sequence[ColumnSet], blocks: Iterator[Block]) -> list[np.ndarray]:
    """Each table over some blocks of records, flat."""
    out = [np.zeros(math.prod(_shape(columns, chosen)), np.int64) for chosen in sets]
    needed = sorted({i for chosen in sets for i in chosen})
    in_turn = sorted(zip(sets, out, strict=True), key=lambda one: one[0])
    for (block,) in blocks:
        codes = {i: columns[i].codes(block) for i in needed}
        prefix, flat = (), np.zeros(0, np.int64)
        for chosen, table in in_turn:
            if chosen[:-1] != prefix:  # sets with the same first columns follow each other
                prefix, flat = chosen[:-1], _flat(columns, codes, chosen[:-1])
            cells = flat * columns[chosen[-1]].num_cells + codes[chosen[-1]] if prefix else codes[chosen[-1]]
            table += np.bincount(cells, minlength=table.size)
    return out


def fine_tables(columns: Sequence[CellColumn], arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The histogram of each column in its finer cells, int64 `[num_fine]`. Secret."""
    return total(functools.partial(_fine, tuple(columns)), rows_at_a_time(len(columns)), arrays)


def _fine(columns: Sequence[CellColumn], blocks: Iterator[Block]) -> list[np.ndarray]:
    out = [np.zeros(column.num_fine, np.int64) for column in columns]
    for (block,) in blocks:
        for table, column in zip(out, columns, strict=True):
            table += np.bincount(column.codes(block, fine=True), minlength=column.num_fine)
    return out


def _flat(columns: Sequence[CellColumn], codes: Mapping[int, np.ndarray], chosen: ColumnSet) -> np.ndarray:
    """Every record's cell in the table of some columns."""
    flat = codes[chosen[0]] if chosen else np.zeros(0, np.int64)
    for i in chosen[1:]:
        flat = flat * columns[i].num_cells + codes[i]
    return flat
