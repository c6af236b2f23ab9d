"""Integers modulo the prime 2^61 - 1, as int64 arrays of numbers 0 <= x < p: exact products at floating point's speed.

A check that is a random linear combination is worth as much as a field's size: modulo 2^64 half of all multiples of an
error of 2^63 are 0, modulo a prime of 61 bits no multiple is but one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np

from vertinumpyro.core.errors import CheckFailedError
from vertinumpyro.core.row_blocks import threads_for
from vertinumpyro.secure.keystream import KeyStream

PRIME_BITS = 61
PRIME = 2**PRIME_BITS - 1

_LIMB = 21
_LOW = (1 << _LIMB) - 1
_ROWS = 512  # sums of that many products of two numbers below 2^22 are at most 2^53: float64 holds them
_MOST_ROWS = 2**16  # sums of as many blocks' sums are below 2^61


def uniform(stream: KeyStream, shape: tuple[int, ...]) -> np.ndarray:
    """The stream's next elements, exactly uniform."""
    return uniform_from(stream.words, shape)


def uniform_from(draw: Callable[[tuple[int, ...]], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Exactly uniform elements: a word of 61 ones, of which there is one in 2^61, is drawn again.

    :param draw: the next words of a shape, int64 uniform on the ring.
    """
    words = draw(shape) & PRIME
    while (again := words == PRIME).any():
        words[again] = draw((int(again.sum()),)) & PRIME
    return words


def from_integers(values: np.ndarray) -> np.ndarray:
    """Signed integers int64 as elements."""
    return np.mod(values, PRIME)


def to_integers(elements: np.ndarray) -> np.ndarray:
    """The integers of least magnitude, within p / 2."""
    return np.where(elements > PRIME // 2, elements - PRIME, elements)


def to_bytes(elements: np.ndarray) -> bytes:
    """Eight bytes an element."""
    return np.ascontiguousarray(elements, "<i8").tobytes()


def from_bytes(data: bytes | bytearray | memoryview, shape: tuple[int, ...], party: int | None = None) -> np.ndarray:
    """What `to_bytes` wrote.

    :param party: who sent it, for the error.
    :raises CheckFailedError: another length, or a word that stands for no element.
    """
    words = np.frombuffer(data, "<u8")
    if words.size != np.prod(shape, dtype=np.int64) or (words >= PRIME).any():
        said = "a message holds" if party is None else "sent"
        raise CheckFailedError(f"{said} other numbers than the protocol's; nothing was opened", party)
    return words.view("<i8").reshape(shape)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b."""
    return _raised(a + b - PRIME)


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b."""
    return _raised(a - b)


def _raised(x: np.ndarray) -> np.ndarray:
    """p more where x is negative; the sign, shifted, is a mask of all bits."""
    return x + ((x >> 63) & PRIME)


def multiply(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """a b elementwise, with broadcasting.

    In halves of 31 and 30 bits: 2^62 counts as 2, and what is multiplied by 2^31 is cut at its bit 30. Before they are
    reduced the terms are below 2^61, 2^32, 2^61 and 2^62, so uint64 holds their sum.
    """
    x, y = np.asarray(a, np.int64).view(np.uint64), np.asarray(b, np.int64).view(np.uint64)
    x_high, x_low, y_high, y_low = x >> 31, x & (2**31 - 1), y >> 31, y & (2**31 - 1)
    middle = x_high * y_low + x_low * y_high
    return _reduced(2 * (x_high * y_high) + (middle >> 30) + ((middle & (2**30 - 1)) << 31) + x_low * y_low)


def total(elements: np.ndarray) -> int:
    """The sum of all."""
    return (int((elements >> 32).sum()) << 32) % PRIME + int((elements & (2**32 - 1)).sum()) % PRIME


def dot(a: np.ndarray, b: np.ndarray) -> int:
    """The sum of all a b."""
    return total(multiply(a, b)) % PRIME


def product(a: np.ndarray, b: np.ndarray, *, small: bool = False) -> np.ndarray:
    """a^T b `[da, db]`, of elements `[n, da]`, `[n, db]`; its work depends on shapes alone.

    Both in three limbs of 21 bits, and a_i b_j + a_j b_i = (a_i + a_j) (b_i + b_j) - a_i b_i - a_j b_j: six products of
    matrices in the place of nine.

    :param small: a holds integers within 2^20 with their signs, so that three products do.
    """
    found = np.zeros((a.shape[1], b.shape[1]), np.int64)
    with threads_for(a.shape[1] * b.shape[1] * min(len(a), _ROWS)):
        for start in range(0, len(a), _MOST_ROWS):
            rows = slice(start, start + _MOST_ROWS)
            found = add(found, _by_shift((_small if small else _whole)(a[rows], b[rows])))
    return found


def weighted_sums(a: np.ndarray, weights: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Of elements a `[n, d]` the sums of weights_j a_j from each start to the next: elements `[n, starts]`.

    :param weights: from 0 on; those of a sum add up to at most 2^30, so that sums of 32 bits of a and of 29 fit a word.
    """
    low, high = (np.add.reduceat(part * weights, starts, axis=1) for part in (a & (2**32 - 1), a >> 32))
    raised = (high >> 29) + ((high & (2**29 - 1)) << 32)  # 2^61 counts as 1
    return add(_reduced(low.view(np.uint64)), _reduced(raised.view(np.uint64)))


def row_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a b `[n, m]`, of elements `[n, d]`, `[d, m]`, some rows at a time."""
    parts = [product(a[start : start + 8 * _ROWS].T, b) for start in range(0, len(a), 8 * _ROWS)]
    return np.concatenate([np.zeros((0, b.shape[1]), np.int64), *parts])


def _whole(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """For each shift the signed sum of what has it."""
    sums = [np.zeros((a.shape[1], b.shape[1]), np.int64) for _ in range(6)]
    for start in range(0, len(a), _ROWS):
        x, y = (_limbs(m[start : start + _ROWS]) for m in (a, b))
        for so_far, (i, j) in zip(sums, ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2)), strict=True):
            left, right = (x[i], y[i]) if i == j else (x[i] + x[j], y[i] + y[j])
            so_far += (left.T @ right).astype(np.int64)
    low, middle, high, low_middle, low_high, middle_high = sums
    return [low, low_middle - low - middle, low_high - low - high + middle, middle_high - middle - high, high]


def _small(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    sums = [np.zeros((a.shape[1], b.shape[1]), np.int64) for _ in range(3)]
    for start in range(0, len(a), 8 * _ROWS):
        left = a[start : start + 8 * _ROWS].astype(np.float64)
        for so_far, right in zip(sums, _limbs(b[start : start + 8 * _ROWS]), strict=True):
            so_far += (left.T @ right).astype(np.int64)
    return sums


def _limbs(m: np.ndarray) -> list[np.ndarray]:
    return [((m >> shift) & _LOW).astype(np.float64) for shift in (0, _LIMB, 2 * _LIMB)]


def _by_shift(sums: list[np.ndarray]) -> np.ndarray:
    """sum_s sums_s 2^(21 s); to multiply by a power of two is to rotate the 61 bits."""
    found = np.zeros(sums[0].shape, np.int64)
    for index, signed in enumerate(sums):
        shift, x = index * _LIMB % PRIME_BITS, from_integers(signed).view(np.uint64)
        rotated = ((x << shift) & PRIME) | (x >> (PRIME_BITS - shift))
        found = add(found, _reduced(rotated))
    return found


def _reduced(x: np.ndarray) -> np.ndarray:
    """Of any 64 bits."""
    x = (x & PRIME) + (x >> PRIME_BITS)
    return np.where(x >= PRIME, x - PRIME, x).view(np.int64)


@final
class ZeroSums:
    """One party's summands of zero, everybody's: who lacks a key of two others cannot tell their shares from uniform.

    :param sent: the key that went to each other party.
    :param received: the key that came from it.
    """

    def __init__(self, sent: dict[int, bytes], received: dict[int, bytes]) -> None:
        self._streams = [(KeyStream(sent[rank]), KeyStream(received[rank])) for rank in sent]

    def share(self, shape: tuple[int, ...]) -> np.ndarray:
        """The next summand."""
        found = np.zeros(shape, np.int64)
        for own, other in self._streams:
            found = add(found, subtract(uniform(own, shape), uniform(other, shape)))
        return found
