"""Exact products of integer matrices at the speed of floating-point ones, on one thread where threads would wait for
each other longer than they compute.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import ThreadpoolController

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
