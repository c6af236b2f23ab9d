"""Matrices that are made a block of rows at a time, and never whole: what a table of many records is multiplied as.

A party's factor in a product is a function of its columns, many times as wide as they are. A `RowBlocks` says how to
make some of its rows, so a product takes the columns and a block, whatever N is.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from vertinumpyro.core.integer_product import ring_product

__all__ = ["ROWS", "Factor", "OneHot", "RowBlocks", "block_bytes", "products", "rows_at_a_time", "rows_of", "slices"]

ROWS = 2**16
"""The most records at a time."""

_CELLS = 2**23  # of all factors' blocks together
_UNTHREADED = 2**17  # multiplications of a product that OpenBLAS does not divide among threads: half of its bound
_LEAST_ROWS = 64
_FLOATS = ((np.float32, 24), (np.float64, 53))  # and the bits of the largest integers that they count without a gap


def slices(num_rows: int, rows: int | None = None) -> Iterator[slice]:
    """Consecutive blocks of `rows` rows, `ROWS` by default, the last one shorter."""
    rows = ROWS if rows is None else rows
    return (slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows))


def rows_of(columns: Mapping[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    """Some rows of a party's columns [N], views of them."""
    return {name: column[rows] for name, column in columns.items()}


def rows_at_a_time(width: int) -> int:
    """How many rows of matrices that are so wide together `products` makes at a time: a power of two."""
    return 2 ** max(6, min(ROWS.bit_length(), (_CELLS // max(width, 1)).bit_length()) - 1)


def block_bytes(width: int) -> int:
    """The most that `products` holds at a time of factors that are so wide together: int64, then floats of them."""
    return 3 * 8 * rows_at_a_time(width) * width


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OneHot:
    """Where the 1 of each group is: products of two such matrices are counted, which takes fewer operations.

    :ivar sizes: columns of each group, one group after the other.
    :ivar codes: from a slice of rows to each group's place of the 1, int64 [rows]. Secret.
    """

    sizes: tuple[int, ...]
    codes: Callable[[slice], list[np.ndarray]]


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RowBlocks:
    """An integer matrix [n, d] as a function of a slice of its rows. Secret where its rows are.

    :ivar shape: (n, d).
    :ivar largest: a public bound of the magnitude of what `make` gives.
    :ivar make: some rows as integers or whole floats [rows, d], in units of 2^bits.
    :ivar bits: see there.
    :ivar one_hot: of a matrix that is groups of columns with a single 1 in each row of a group: see `OneHot`.
    """

    shape: tuple[int, int]
    largest: int
    make: Callable[[slice], np.ndarray]
    bits: int = 0
    one_hot: OneHot | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, rows: slice) -> np.ndarray:
        """Some rows, int64."""
        return self.make(rows).astype(np.int64) << self.bits

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, for whoever needs them at once; a copy."""
        out = np.empty(self.shape, np.int64 if dtype is None else dtype)
        for rows in slices(len(self)):
            out[rows] = self.rows(rows)
        return out


Factor: TypeAlias = np.ndarray | RowBlocks
"""A party's integer matrix in a product, in memory or in blocks."""


def products(factors: Sequence[Factor], pairs: Iterable[tuple[int, int]] | None = None) -> list[np.ndarray]:
    """A_i^T A_j modulo 2^64, int64, of some pairs of factors; all i < j by default. One pass over the rows.

    Where all are one-hot, by counting; else by matrix products of floats, where every partial sum within a block is a
    whole number that they hold, in whatever order; in limbs otherwise.
    """
    blocks = [as_blocks(factor) for factor in factors]
    chosen = list(itertools.combinations(range(len(blocks)), 2) if pairs is None else pairs)
    out = [np.zeros((blocks[i].shape[1], blocks[j].shape[1]), np.int64) for i, j in chosen]
    at_a_time = rows_at_a_time(sum(block.shape[1] for block in blocks))
    counted = all(block.one_hot is not None for block in blocks)
    add = _counting(blocks) if counted else _multiplying(blocks, at_a_time)
    for rows in slices(max(map(len, blocks), default=0), at_a_time):
        add(rows, out, chosen)
    return [total << (blocks[i].bits + blocks[j].bits) for total, (i, j) in zip(out, chosen, strict=True)]


_Add: TypeAlias = Callable[[slice, list[np.ndarray], list[tuple[int, int]]], None]


def _multiplying(blocks: Sequence[RowBlocks], at_a_time: int) -> _Add:
    largest = max((block.largest for block in blocks), default=0)
    kind = next((kind for kind, bits in _FLOATS if at_a_time * largest**2 <= 2**bits), np.int64)

    def add(rows: slice, out: list[np.ndarray], chosen: list[tuple[int, int]]) -> None:
        made = [block.make(rows).astype(kind, copy=False) for block in blocks]
        for total, (i, j) in zip(out, chosen, strict=True):
            a, b = made[i], made[j]
            total += ring_product(a, b) if kind is np.int64 else _float_product(a, b).astype(np.int64)

    return add


def _float_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a^T b of narrow matrices in many small products, which BLAS computes without threads that wait for each other."""
    num_rows, width = a.shape
    rows = _UNTHREADED // max(1, width * b.shape[1])
    if rows < _LEAST_ROWS:
        return a.T @ b
    whole = num_rows - num_rows % rows
    left, right = (m[:whole].reshape(whole // rows, rows, m.shape[1]) for m in (a, b))
    return (left.transpose(0, 2, 1) @ right).sum(axis=0) + a[whole:].T @ b[whole:]


def _counting(blocks: Sequence[RowBlocks]) -> _Add:
    hot = [block.one_hot for block in blocks if block.one_hot is not None]
    groups = [list(zip(one.sizes, np.cumsum([0, *one.sizes]).tolist(), strict=False)) for one in hot]

    def add(rows: slice, out: list[np.ndarray], chosen: list[tuple[int, int]]) -> None:
        codes = [one.codes(rows) for one in hot]
        for total, (i, j) in zip(out, chosen, strict=True):
            for (height, top), own in zip(groups[i], codes[i], strict=True):
                for (width, left), other in zip(groups[j], codes[j], strict=True):
                    found = np.bincount(own * width + other, minlength=height * width)
                    total[top : top + height, left : left + width] += found.reshape(height, width)

    return add


def as_blocks(matrix: Factor) -> RowBlocks:
    """A matrix of integers in memory in blocks of its own rows; its largest element is looked up."""
    if isinstance(matrix, RowBlocks):
        return matrix
    held = np.asarray(matrix)
    largest = max(int(held.max()), -int(held.min())) if held.size else 0
    return RowBlocks((held.shape[0], held.shape[1]), largest, lambda rows: held[rows])
