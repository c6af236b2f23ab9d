"""Uniform ring elements at the speed of the processor's AES unit."""

from __future__ import annotations

import os
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource

__all__ = ["SPARE_WORDS", "CipherSource", "words_buffer"]

_KEY_BYTES = 32  # what a mask hides must stay hidden for good, so no 128-bit keys
_BYTES_PER_KEY = 2**32  # 2^28 blocks: AES-CTR differs from uniform by at most 2^(2 * 28 - 129) = 2^-73
_BYTES_PER_CALL = 2**28
_ZEROS = bytes(2**20)
SPARE_WORDS = 2
"""Words behind a buffer, as the cipher may ask for room for a block more than it writes."""


@final
class CipherSource(RandomSource):
    """The key stream of AES-256 in counter mode, keyed by `os.urandom`: about 20 times as fast as that alone.

    A fresh key for every source, replaced after 4 GiB. Secure as long as AES is a pseudo-random permutation:
    whoever sees any part of the stream learns nothing about the rest. Not for several threads at a time; after a
    fork, the child takes a key of its own.
    """

    secure = True

    def __init__(self) -> None:
        self._left, self._owner = 0, os.getpid()

    def refresh(self, words: np.ndarray) -> None:
        """Adds the stream (exclusive or) to all but the last two words of a contiguous uint64 array, in place.

        What comes out is uniform and independent of what was there, so a buffer serves again and again, and
        nothing but the buffer passes through the processor's cache.
        """
        self._add_into(memoryview(words.data).cast("B"), words.nbytes - 8 * SPARE_WORDS)

    def random_bytes(self, num_bytes: int) -> bytes:
        """Returns `num_bytes` bytes of the stream."""
        if num_bytes < 0:
            raise ArgumentError(f"num_bytes must not be negative, got {num_bytes}")
        if num_bytes > len(_ZEROS):
            return self.uint64(-(-num_bytes // 8)).tobytes()[:num_bytes]
        self._count(num_bytes)
        return self._encryptor.update(memoryview(_ZEROS)[:num_bytes])

    def uint64(self, size: int) -> np.ndarray:
        """Returns `size` 64-bit words of the stream."""
        if size < 0:
            raise ArgumentError(f"size must not be negative, got {size}")
        words = words_buffer(size)
        self.refresh(words)
        return words[:size]

    def spawn(self, num_sources: int) -> tuple[CipherSource, ...]:
        """Returns sources with keys of their own."""
        return tuple(CipherSource() for _ in range(num_sources))

    def _add_into(self, data: memoryview, num_bytes: int) -> None:
        for start in range(0, num_bytes, _BYTES_PER_CALL):
            piece = min(num_bytes - start, _BYTES_PER_CALL)
            self._count(piece)
            self._encryptor.update_into(data[start : start + piece], data[start:])

    def _count(self, num_bytes: int) -> None:
        """Takes `num_bytes` off what the key may still give, or takes a new key."""
        if num_bytes > self._left or os.getpid() != self._owner:  # a forked child must not repeat the stream
            self._new_key()
        self._left -= num_bytes

    def _new_key(self) -> None:
        cipher = Cipher(algorithms.AES(os.urandom(_KEY_BYTES)), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()
        self._left, self._owner = _BYTES_PER_KEY, os.getpid()

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return "CipherSource()"


def words_buffer(size: int) -> np.ndarray:
    """uint64 `[size + 2]`: `CipherSource.refresh` makes the first `size` of them uniform."""
    return np.empty(size + SPARE_WORDS, np.uint64)
