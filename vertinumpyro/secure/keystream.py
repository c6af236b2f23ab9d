"""The randomness of masks and shares: AES-256 in counter mode under keys that two processes share.

CrypTen's own generator is not used. It is a Mersenne Twister, which its outputs give away, and the seeds that
its dealer hands out come from torch's default generator, which starts the same in every process.

What one party alone is shown: the sum of everybody's vectors, or of everybody's shares of something else.

Party p sends the receiver

    s_p = x_p + sum_q F(k_pq) - F(k_qp)    (modulo 2^64)

under keys that each two parties share, made for this one sum, and the receiver adds what it gets to its own s_p: the
pseudo-random terms add up to zero. Two rounds: keys, and one vector from each party to the receiver.

**What it reveals.** The receiver, together with any other parties, learns the sum of the remaining parties' vectors,
and nothing else, as long as AES-256 is a pseudo-random permutation (`ZeroSharing`): that is all that follows from the
sum itself and from what they hold. With two parties the remaining one is alone, so the receiver learns its vector.
Nobody else is sent anything. Semi-honest: who does not follow the protocol can spoil the sum. There is no noise, so
this is not DP.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.transport import Link, exchange

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


def exchanged_keys(links: Mapping[int, Link]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """(the key that went to each other party, the key that came from it), all fresh; one round."""
    sent = {rank: fresh_key() for rank in links}
    received = exchange(links, sent, dict.fromkeys(sent, KEY_BYTES))
    return sent, {rank: bytes(key) for rank, key in received.items()}


@final
class ZeroSharing:
    """One party's summands of zero, modulo 2^64: everybody's add up to it, and hide how much of a sum is whose.

    Of a coalition's view: each two parties share a key of their own, so any two outside of it have a key that it does
    not know, and what they send is uniform among all that have their sum, as long as AES-256 is a pseudo-random
    permutation. All parties must ask for the same sizes, in the same order.

    :param sent: the key that went to each other party.
    :param received: the key that came from it.
    """

    def __init__(self, sent: Mapping[int, bytes], received: Mapping[int, bytes]) -> None:
        self._streams = [
            tuple(KeyStream(derived_key(key, "reveal")) for key in (sent[rank], received[rank])) for rank in sent
        ]

    def share(self, shape: tuple[int, ...]) -> np.ndarray:
        """The next summand, int64 of this shape."""
        total = np.zeros(shape, np.int64)
        for own, other in self._streams:
            total += own.words(shape) - other.words(shape)
        return total


def sum_to_one(links: Mapping[int, Link], rank: int, receiver: int, vector: np.ndarray) -> np.ndarray | None:
    """The sum of all parties' vectors modulo 2^64, int64 [n], at the receiver; None at all others.

    Every party calls it with its own vector, of the same length. NOT DP: nothing is added to the sum.

    :param links: to all other parties, by number.
    :param rank: this party's number.
    :param receiver: the number of the party that is shown the sum.
    :param vector: this party's, int64 [n]. Secret.
    :raises ArgumentError: the vector is no int64, or there is no such receiver.
    :raises BackendError: a party is gone, or its vector has another length.
    """
    if vector.dtype != np.int64 or vector.ndim != 1:
        raise ArgumentError(f"vector must be int64 [n], got {vector.dtype} {list(vector.shape)}")
    if receiver != rank and receiver not in links:
        raise ArgumentError(f"receiver={receiver} must be a party's number, {sorted({rank, *links})}")
    share = vector + ZeroSharing(*exchanged_keys(links)).share(vector.shape)
    if rank != receiver:
        message = np.ascontiguousarray(share, "<i8").tobytes()
        exchange({receiver: links[receiver]}, {receiver: message}, {receiver: 0})
        return None
    for theirs in exchange(links, dict.fromkeys(links, b""), dict.fromkeys(links, share.nbytes)).values():
        share = share + np.frombuffer(theirs, "<i8")
    return share
