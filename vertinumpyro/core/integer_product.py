"""Exact products of integer matrices at the speed of floating-point ones."""

from __future__ import annotations

import numpy as np

__all__ = ["exact_in_float64", "integer_product"]

_ROWS = 4096  # at a time, so that the float64 copies are small and used again


def exact_in_float64(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether every partial sum of a^T b, in any order, is an integer that float64 holds."""
    if not (a.size and b.size):
        return True
    largest = [max(int(m.max()), -int(m.min())) for m in (a, b)]
    return a.shape[0] * largest[0] * largest[1] <= 2**53


def integer_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a^T b `[da, db]` in int64, for integers `[n, da]`, `[n, db]` that `exact_in_float64` accepts.

    By float64 matrix products in blocks of records; where b is a, BLAS computes one half. Fastest where a and b lie in
    memory column by column.
    """
    out = np.zeros((a.shape[1], b.shape[1]))
    rows = min(_ROWS, a.shape[0])
    left = np.empty((rows, a.shape[1]), order="F")
    right = left if b is a else np.empty((rows, b.shape[1]), order="F")
    for start in range(0, a.shape[0], _ROWS):
        stop = min(start + _ROWS, a.shape[0])
        left[: stop - start] = a[start:stop]
        if b is not a:
            right[: stop - start] = b[start:stop]
        out += left[: stop - start].T @ right[: stop - start]
    return out.astype(np.int64)
