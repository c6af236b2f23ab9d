"""Randomness that several parties make together, so that none of them chooses it.

Each draws a seed and shows its SHA-256 first; once it has everybody's, it shows the seed. Nobody can choose a seed by
the others', so the key made of all seeds is uniform as long as one party's is. What is drawn under it (which records
are in a batch) is known to the parties and to nobody else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.rng import RandomSource

__all__ = ["SEED_BYTES", "TossedSource", "toss"]

SEED_BYTES = 32

Everyones = Callable[[bytes, int], list[bytes]]
"""(this party's message, its size) -> every party's, in the parties' order."""


def toss(everyones: Everyones, rank: int, seed: bytes | None = None) -> TossedSource:
    """A source that all parties draw alike from; they call this together.

    :param rank: this party's number, so that no party can show another's commitment as its own.
    :param seed: this party's; None takes one from the operating system.
    :raises BackendError: a party showed another seed than it had committed to.
    """
    own = secrets.token_bytes(SEED_BYTES) if seed is None else seed
    commitments = everyones(_commitment(rank, own), SEED_BYTES)
    seeds = everyones(own, SEED_BYTES)
    for number, (commitment, shown) in enumerate(zip(commitments, seeds, strict=True)):
        if not secrets.compare_digest(commitment, _commitment(number, shown)):
            raise BackendError(f"party {number} showed another seed than it had committed to; nothing was released")
    return TossedSource(hashlib.sha256(b"".join(seeds)).digest())


def _commitment(rank: int, seed: bytes) -> bytes:
    return hashlib.sha256(rank.to_bytes(4, "big") + seed).digest()


@final
class TossedSource(RandomSource):
    """AES-256 in counter mode under a tossed key: the same stream at every party. For batches, never for noise."""

    secure = True

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._children = Cipher(algorithms.AES(key), modes.CTR(bytes([128]) + bytes(15))).encryptor()

    @classmethod
    def fresh(cls) -> TossedSource:
        """Under a key that nobody else has, for a dry run."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def random_bytes(self, num_bytes: int) -> bytes:
        """Returns the next `num_bytes` bytes."""
        return self._stream.update(bytes(num_bytes))

    def uint64(self, size: int) -> np.ndarray:
        """Returns the next `size` 64-bit words, read-only."""
        return np.frombuffer(self.random_bytes(8 * size), "<u8")

    def spawn(self, num_sources: int) -> tuple[TossedSource, ...]:
        """Returns sources under keys of their own, alike at every party."""
        return tuple(TossedSource(self._children.update(bytes(SEED_BYTES))) for _ in range(num_sources))

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return "TossedSource()"
