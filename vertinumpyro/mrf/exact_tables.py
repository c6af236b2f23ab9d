"""Exact contingency tables of one party's columns, counted in one pass over blocks of its records."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vertinumpyro.core.row_blocks import rows_at_a_time
from vertinumpyro.core.workers import Block, total
from vertinumpyro.mrf.cells import CellColumn

__all__ = ["ColumnSet", "exact_tables", "fine_tables"]

ColumnSet = tuple[int, ...]
"""Places of columns in a party's list."""


def exact_tables(
    columns: Sequence[CellColumn], arrays: Mapping[str, np.ndarray], sets: Sequence[ColumnSet]
) -> list[np.ndarray]:
    """The table of each set of columns, int64, one axis for each of them. Secret.

    Memory beyond the columns and the tables is a block of records, whatever N is. By the columns' workers, if any.

    Args:
        columns: the party's columns.
        arrays: its encoded table.
        sets: places in `columns`.
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
