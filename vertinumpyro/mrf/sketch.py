r"""Flajolet-Martin sketches of a pair of columns at two parties, with hash keys that no other pair shares.

Record i has, under hash key k, a geometric hash: P(h > s) = 2^-s, cut to [lower, upper]. The sketch of a value is
the largest hash of the records that have it, or of `phantoms` records that never existed, which are what hides the
real ones. Two parties hash the same record alike, so the records that two values share show as ties. The server,
which holds the sketches, holds no key.

In the VertiMRF paper all columns share each key. Then one record's hash enters every sketch, and ties across all
columns spell out its whole row (`shared_key`). Here a key belongs to one pair of columns at two parties, so a hash
enters exactly two sketches, and the upper cut bounds what a large hash tells; `sketch_loss` has the exact accounting.

The hash is a pseudo-random function of (key, record): both parties expand a 32-byte key that they share and that the
server never sees into a stream of AES-256 in counter mode, one word for every hash.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource

__all__ = ["KEY_BYTES", "SketchDesign", "sketch_column_pair", "sketch_columns"]

KEY_BYTES = 32
_WORD_BITS = 32
_CHUNK_WORDS = 2**22
_LEAST_MASS = 1e-9


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SketchDesign:
    """The public parameters of one pair's sketches.

    Attributes:
        num_keys: m, how many hash keys each pair of columns has.
        phantoms: k_p, how many records that never existed enter each sketch.
        lower: the smallest level that a sketch shows.
        upper: the largest.
    """

    num_keys: int
    phantoms: int
    lower: int
    upper: int

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        if self.num_keys < 1 or self.phantoms < 1:
            raise ArgumentError(f"num_keys and phantoms must be at least 1, got {self.num_keys} and {self.phantoms}")
        if not 1 <= self.lower < self.upper <= _WORD_BITS:
            raise ArgumentError(f"levels must satisfy 1 <= lower < upper <= 32, got {self.lower} and {self.upper}")

    @property
    def bounded(self) -> bool:
        """Whether phantoms reach every level often enough for the accounting to be of any use."""
        return bool(self.phantom_law().min() >= _LEAST_MASS)

    def log_cdf(self) -> np.ndarray:
        """ln P(h ≤ s) of one hash for every level s in [lower, upper]; 0 at the last."""
        levels = np.arange(self.lower, self.upper + 1, dtype=np.float64)
        with np.errstate(divide="ignore"):
            out = np.log1p(-np.exp2(-levels))
        out[-1] = 0.0
        return out

    def phantom_law(self) -> np.ndarray:
        """P(level) of a sketch without any record, as `draw_phantoms` draws it."""
        return np.diff(self._thresholds(), prepend=0.0)

    def _thresholds(self) -> np.ndarray:
        return np.exp(self.phantoms * self.log_cdf())

    def draw_phantoms(self, shape: tuple[int, ...], source: RandomSource) -> np.ndarray:
        """Levels of sketches without any record, int8. Secret until real records have joined."""
        # floats are dyadic: the law of these draws is `phantom_law` up to 2^-64
        steps = np.array([min(int(math.ldexp(t, 64)), 2**64 - 1) for t in self._thresholds()[:-1]], np.uint64)
        words = source.uint64(math.prod(shape))
        return (self.lower + np.searchsorted(steps, words, side="right")).astype(np.int8).reshape(shape)


def sketch_column_pair(
    codes: tuple[np.ndarray, np.ndarray],
    sizes: tuple[int, int],
    design: SketchDesign,
    key: bytes,
    sources: tuple[RandomSource, RandomSource],
) -> tuple[np.ndarray, np.ndarray]:
    """Both parties' sketches of one pair of columns: int8 `[num_keys, cells]` each, which the server sees.

    Args:
        codes: the cell of every record in either column. Secret.
        sizes: cells of either column.
        design: levels, keys and phantoms.
        key: 32 bytes that the two parties share. Secret.
        sources: each party's own randomness, for its phantoms.
    """
    first, second = sketch_columns(list(codes), list(sizes), design, key, list(sources))
    return first, second


def sketch_columns(
    codes: list[np.ndarray],
    sizes: list[int],
    design: SketchDesign,
    key: bytes,
    sources: list[RandomSource],
) -> list[np.ndarray]:
    """Sketches of columns that share one key set; with more than two columns nothing is proved (`shared_key`)."""
    shapes = [(design.num_keys, size) for size in sizes]
    out = [design.draw_phantoms(shape, source) for shape, source in zip(shapes, sources, strict=True)]
    for keys, records, levels in _large_hashes(design, len(codes[0]), key):
        for sketch, code in zip(out, codes, strict=True):
            np.maximum.at(sketch, (keys, code[records]), levels)
    return out


def _large_hashes(
    design: SketchDesign, num_records: int, key: bytes
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Every hash above the lower cut, as (key's number, record, level), a few keys at a time."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    at_once = max(1, _CHUNK_WORDS // num_records)
    for start in range(0, design.num_keys, at_once):
        count = min(at_once, design.num_keys - start)
        words = np.frombuffer(stream.update(bytes(4 * count * num_records)), "<u4")
        found = np.flatnonzero(words < np.uint32(2 ** (_WORD_BITS - design.lower)))
        bits = np.frexp(words[found].astype(np.float64))[1]  # 32 less the number of leading zeros, exactly
        levels = np.minimum(_WORD_BITS - bits + 1, design.upper).astype(np.int8)
        yield start + found // num_records, found % num_records, levels
