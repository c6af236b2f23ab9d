"""The randomness of masks and shares: AES-256 in counter mode under keys that two processes share.

CrypTen's own generator is not used. It is a Mersenne Twister, which its outputs give away, and the seeds that
its dealer hands out come from torch's default generator, which starts the same in every process.
"""

from __future__ import annotations

import hashlib
import os
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

__all__ = ["KEY_BYTES", "KeyStream", "derived_key", "fresh_key"]

KEY_BYTES = 32


def fresh_key() -> bytes:
    """A key from the operating system's CSPRNG."""
    return os.urandom(KEY_BYTES)


def derived_key(key: bytes, purpose: str) -> bytes:
    """A key for one purpose; without `key` it tells nothing about any other purpose's."""
    return hashlib.blake2b(purpose.encode(), key=key, digest_size=KEY_BYTES).digest()


@final
class KeyStream:
    """Uniform 64-bit words that every holder of the key draws alike, in the same order."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def words(self, shape: tuple[int, ...]) -> np.ndarray:
        """The next words, int64 of this shape: uniform on the whole ring."""
        zeros = bytes(8 * int(np.prod(shape, dtype=np.int64)))
        return np.frombuffer(self._encryptor.update(zeros), "<i8").reshape(shape)

    def bits(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform bits, int64 0 or 1; a word each."""
        return self.words(shape) & 1

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return "KeyStream()"
