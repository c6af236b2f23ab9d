"""What parties open to each other under uniform masks: as many low bytes of each word as are needed, in one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Hidden", "low_bytes", "opened"]

_WORD = 8


class Hidden(NamedTuple):
    """This party's share of an array that a uniform mask of the dealer hides.

    share:     int64, of a sum modulo 2^64; of an exclusive or where `bits`.
    num_bytes: of each word, lowest first, are opened; a mask that is uniform modulo 2^64 is so modulo any 2^8m.
    """

    share: np.ndarray
    bits: bool = False
    num_bytes: int = _WORD

    def message(self) -> bytes:
        """What goes to every other party."""
        return low_bytes(self.share, self.num_bytes).tobytes()


def opened(hidden: Sequence[Hidden], messages: Iterable[bytes | bytearray]) -> list[np.ndarray]:
    """The arrays, int64, from this party's shares and the others' messages; modulo 2^8m where m bytes were sent."""
    totals = [array.share.copy() for array in hidden]
    ends = np.cumsum([array.share.size * array.num_bytes for array in hidden])[:-1]
    for message in messages:
        pieces = np.split(np.frombuffer(message, np.uint8), ends)
        for array, total, piece in zip(hidden, totals, pieces, strict=True):
            words = np.zeros((total.size, _WORD), np.uint8)
            words[:, : array.num_bytes] = piece.reshape(-1, array.num_bytes)
            combine = np.bitwise_xor if array.bits else np.add
            combine(total, words.view("<i8").reshape(total.shape), out=total)
    return [
        total if array.num_bytes == _WORD else total & ((1 << (8 * array.num_bytes)) - 1)
        for array, total in zip(hidden, totals, strict=True)
    ]


def low_bytes(words: np.ndarray, num_bytes: int) -> np.ndarray:
    """The lowest bytes of each word, uint8 [words, num_bytes]."""
    return np.ascontiguousarray(words, "<i8").reshape(-1, 1).view(np.uint8)[:, :num_bytes]
