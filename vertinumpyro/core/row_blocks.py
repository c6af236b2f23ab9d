"""Exact products of integer matrices, at the speed of floating-point ones, of factors that are never whole.

A party's factor in a product is a function of its columns, many times as wide as they are. A `RowBlocks` says how to
make some of its rows, so a product takes the columns and a block, whatever N is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from threadpoolctl import ThreadpoolController

from vertinumpyro.core.workers import Block, total

_SMALL = 2**28  # multiplications, some 10 ms: what waiting costs is then no more than computing

_limiting = threading.Lock()


@contextlib.contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """NumPy's products inside, of so many multiplications each, on one thread unless they are large.

    The library's setting is the whole process's: one thread at a time changes it, and puts it back.
    """
    if multiplications >= _SMALL or not _limiting.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1):
            yield
    finally:
        _limiting.release()


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


_LIMB_BITS = (22, 21, 21)
_LIMB_SHIFTS = (0, 22, 43)
_LIMB_ROWS = 1024  # sums of that many products of two limbs, each at most 2^21, are at most 2^52: float64 holds them
_WORTH_THREADS = 2**26  # multiplications, some 20 ms


def ring_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a^T b `[da, db]` modulo 2^64, for any int64 `[n, da]`, `[n, db]`; its work depends on shapes alone.

    Six products of float64 limbs of 21 or 22 bits, in blocks of records, so that memory beyond a and b is small. Of
    many records by a thread for each core, each some of them.
    """
    multiplications = a.shape[1] * b.size
    num_threads = (os.cpu_count() or 1) if multiplications >= _WORTH_THREADS else 1
    rows = -(-a.shape[0] // (num_threads * _LIMB_ROWS)) * _LIMB_ROWS or 1
    parts = [(a[start : start + rows], b[start : start + rows]) for start in range(0, a.shape[0], rows)]
    with threads_for(a.shape[1] * b.shape[1] * min(a.shape[0], _LIMB_ROWS)):
        if len(parts) < 2:
            return _limb_product(a, b)
        with ThreadPoolExecutor(len(parts)) as pool:
            return sum(pool.map(_limb_product, *zip(*parts, strict=True)), np.zeros((a.shape[1], b.shape[1]), np.int64))


def pair_products(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """a_i^T a_j of all i < j modulo 2^64, in the order of `itertools.combinations`, flat and one after another."""
    products = [ring_product(a, b).ravel() for a, b in itertools.combinations(matrices, 2)]
    return np.concatenate([np.zeros(0, np.int64), *products])


def _limb_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    out = np.zeros((a.shape[1], b.shape[1]), np.int64)
    for start in range(0, a.shape[0], _LIMB_ROWS):
        left, right = (_limbs(m[start : start + _LIMB_ROWS]) for m in (a, b))
        for i, j in itertools.product(range(3), repeat=2):
            if i + j < 3:  # the others are multiples of 2^64
                out += (left[i].T @ right[j]).astype(np.int64) << (_LIMB_SHIFTS[i] + _LIMB_SHIFTS[j])
    return out


def _limbs(m: np.ndarray) -> list[np.ndarray]:
    """float64 matrices with m = sum_i limb_i 2^shift_i modulo 2^64, none above 2^21 in magnitude."""
    found, rest = [], m
    for bits in _LIMB_BITS[:-1]:
        half = 1 << (bits - 1)
        low = ((rest + half) & ((1 << bits) - 1)) - half  # wraps around where the ring does
        found.append(low.astype(np.float64))
        rest = (rest - low) >> bits
    return [*found, rest.astype(np.float64)]


ROWS = 2**15
"""The most records at a time: a few columns of int64 then stay in a core's own caches, whatever the other cores do."""

_CELLS = 2**23  # of all factors' blocks together
_FLOATS = ((np.float32, 24), (np.float64, 53))  # and the bits of the largest integers that they count without a gap


def slices(num_rows: int, rows: int | None = None) -> Iterator[slice]:
    """Consecutive blocks of `rows` rows, `ROWS` by default, the last one shorter."""
    rows = ROWS if rows is None else rows
    return (slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows))


def rows_of(columns: Mapping[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    """Some rows of a party's columns [N], views of them."""
    return {name: column[rows] for name, column in columns.items()}


def rows_at_a_time(width: int, most: int | None = None) -> int:
    """How many rows of matrices that are so wide together `products` makes at a time: a power of two.

    :param most: of rows, `ROWS` by default.
    """
    most = ROWS if most is None else most
    return 2 ** max(6, min(most.bit_length(), (_CELLS // max(width, 1)).bit_length()) - 1)


def block_bytes(width: int) -> int:
    """The most that `products` holds at a time of factors that are so wide together: int64, then floats of them."""
    return 3 * 8 * rows_at_a_time(width) * width


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class OneHot:
    """Where the 1 of each group is: products of two such matrices are counted, which takes fewer operations.

    :ivar sizes: columns of each group, one group after the other.
    :ivar codes: from a block of columns to each group's place of the 1, int64 [rows].
    """

    sizes: tuple[int, ...]
    codes: Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RowBlocks:
    """An integer matrix [n, d] as a function of a block of columns. Secret, but for its functions, which are public.

    Workers are sent the functions, so these pickle: a module's own, or a `functools.partial` of one.

    :ivar shape: (n, d).
    :ivar largest: a public bound of the magnitude of what `make` gives.
    :ivar columns: what it is made of, each [n].
    :ivar make: from some rows of them to integers or whole floats [rows, d], in units of 2^bits.
    :ivar bits: see there.
    :ivar one_hot: of a matrix that is groups of columns with a single 1 in each row of a group: see `OneHot`.
    """

    shape: tuple[int, int]
    largest: int
    columns: Mapping[str, np.ndarray]
    make: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    bits: int = 0
    one_hot: OneHot | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, rows: slice) -> np.ndarray:
        """Some rows, int64."""
        return self.make(rows_of(self.columns, rows)).astype(np.int64) << self.bits

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, for whoever needs them at once; a copy."""
        out = np.empty(self.shape, np.int64 if dtype is None else dtype)
        for rows in slices(len(self)):
            out[rows] = self.rows(rows)
        return out


Factor: TypeAlias = np.ndarray | RowBlocks
"""A party's integer matrix in a product, in memory or in blocks."""


def factor_rows(factor: Factor, rows: slice) -> np.ndarray:
    """Some rows of a factor, int64."""
    return factor.rows(rows) if isinstance(factor, RowBlocks) else np.asarray(factor[rows], np.int64)


def products(factors: Sequence[Factor], pairs: Iterable[tuple[int, int]] | None = None) -> list[np.ndarray]:
    """A_i^T A_j modulo 2^64, int64, of some pairs of factors; all i < j by default. One pass over the rows.

    Where all are one-hot, by counting; else by matrix products of floats, where every partial sum within a block is a
    whole number that they hold, in whatever order; in limbs otherwise. By the workers of the factors' columns.
    """
    blocks = [as_blocks(factor) for factor in factors]
    chosen = list(itertools.combinations(range(len(blocks)), 2) if pairs is None else pairs)
    at_a_time = rows_at_a_time(sum(block.shape[1] for block in blocks))
    hot = [block.one_hot for block in blocks if block.one_hot is not None]
    counted = len(hot) == len(blocks)
    way = _Counting(hot) if counted else _Multiplying([block.make for block in blocks], _kind(blocks, at_a_time))
    widths = [block.shape[1] for block in blocks]
    found = total(functools.partial(_summed, way, widths, chosen), at_a_time, *(block.columns for block in blocks))
    return [one << (blocks[i].bits + blocks[j].bits) for one, (i, j) in zip(found, chosen, strict=True)]


def _summed(way: _Way, widths: Sequence[int], chosen: Sequence[tuple[int, int]], blocks: Iterator[Block]) -> list:
    out = [np.zeros((widths[i], widths[j]), np.int64) for i, j in chosen]
    for block in blocks:
        way.add(block, out, chosen)
    return out


def _kind(blocks: Sequence[RowBlocks], at_a_time: int) -> type:
    """The floats that hold every partial sum of a block; int64 where none do."""
    largest = max((block.largest for block in blocks), default=0)
    return next((kind for kind, bits in _FLOATS if at_a_time * largest**2 <= 2**bits), np.int64)


class _Multiplying(NamedTuple):
    makes: Sequence[Callable[[Mapping[str, np.ndarray]], np.ndarray]]
    kind: type

    def add(self, block: Block, out: Sequence[np.ndarray], chosen: Sequence[tuple[int, int]]) -> None:
        made = [make(columns).astype(self.kind, copy=False) for make, columns in zip(self.makes, block, strict=True)]
        for so_far, (i, j) in zip(out, chosen, strict=True):
            a, b = made[i], made[j]
            so_far += ring_product(a, b) if self.kind is np.int64 else _float_product(a, b).astype(np.int64)


def _float_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with threads_for(a.shape[1] * b.size):
        return a.T @ b


class _Counting(NamedTuple):
    hot: Sequence[OneHot]

    def add(self, block: Block, out: Sequence[np.ndarray], chosen: Sequence[tuple[int, int]]) -> None:
        codes = [one.codes(columns) for one, columns in zip(self.hot, block, strict=True)]
        groups = [list(zip(one.sizes, np.cumsum([0, *one.sizes]).tolist(), strict=False)) for one in self.hot]
        for so_far, (i, j) in zip(out, chosen, strict=True):
            for (height, top), own in zip(groups[i], codes[i], strict=True):
                for (width, left), other in zip(groups[j], codes[j], strict=True):
                    found = np.bincount(own * width + other, minlength=height * width)
                    so_far[top : top + height, left : left + width] += found.reshape(height, width)


_Way: TypeAlias = _Counting | _Multiplying


def as_blocks(matrix: Factor) -> RowBlocks:
    """A matrix of integers in memory in blocks of its own rows; its largest element is looked up."""
    if isinstance(matrix, RowBlocks):
        return matrix
    held = np.asarray(matrix)
    largest = max(int(held.max()), -int(held.min())) if held.size else 0
    return RowBlocks((held.shape[0], held.shape[1]), largest, {"held": held}, operator.itemgetter("held"))
