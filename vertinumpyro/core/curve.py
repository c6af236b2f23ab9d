"""Texts as points of Curve25519 whose logarithm nobody knows, and their masking by secret keys that commute.

A point is the u-coordinate of X25519, 32 bytes. `point` hashes a text to the field (SHA-512, so the remainder is as
good as uniform) and maps that to the curve by Elligator 2 (RFC 9380, section 6.7.1): always to the curve and never to
its twist, which masking keeps, so that a masked point does not tell on which of both its text had come to lie.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

__all__ = ["POINT_BYTES", "fresh_key", "in_parallel", "masked", "points"]

POINT_BYTES = 32

_FIELD = 2**255 - 19
_J = 486662
_EXPONENT = (_FIELD - 1) // 2
_CHUNK = 4096
_WORTH_PROCESSES = 20_000

Work = Callable[[Sequence[bytes]], list[bytes]]


def fresh_key() -> bytes:
    """A secret key, from the operating system."""
    return secrets.token_bytes(POINT_BYTES)


def points(texts: Sequence[bytes], *, domain: bytes) -> list[bytes]:
    """The point of each text.

    :param domain: what they are hashed for; points of another domain have nothing to do with them.
    """
    return [_elligator(hashlib.sha512(domain + text).digest()) for text in texts]


def masked(found: Sequence[bytes], *, key: bytes) -> list[bytes]:
    """Each point times the key: whoever has not the key cannot tell it from a random one (decisional Diffie-Hellman).

    :raises ValueError: one of them is no point that hashing gives.
    """
    secret = X25519PrivateKey.from_private_bytes(key)
    return [secret.exchange(X25519PublicKey.from_public_bytes(bytes(point))) for point in found]


def in_parallel(work: Work, items: Sequence[bytes], done: Callable[[int], None] = lambda count: None) -> list[bytes]:
    """`work` on all items in their order, in processes of its own where that pays.

    :param work: `points` or `masked` with its keyword, as a `functools.partial`.
    :param done: called with how many items are through.
    """
    chunks = [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]
    out: list[bytes] = []
    if len(items) < _WORTH_PROCESSES or (os.cpu_count() or 1) == 1:
        for chunk in chunks:
            out += work(chunk)
            done(len(out))
        return out
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(partial(_called, work), chunks):
            out += found
            done(len(out))
    return out


def _called(work: Work, chunk: Sequence[bytes]) -> list[bytes]:
    return work(chunk)


def _elligator(hashed: bytes) -> bytes:
    """A square or not, u or -u - J: one of both is on the curve, and it is the one that is returned."""
    r = int.from_bytes(hashed, "little") % _FIELD
    u = -_J * pow(1 + 2 * r * r, -1, _FIELD) % _FIELD
    if pow(u * (u * u + _J * u + 1) % _FIELD, _EXPONENT, _FIELD) == _FIELD - 1:
        u = (-u - _J) % _FIELD
    return u.to_bytes(POINT_BYTES, "little")
