"""Bits, 64 to a word: what is done to one is done to all. And masked words, cut to the bytes that are opened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Bits", "Hidden", "low_bytes", "opened", "packed", "plane_words", "unpacked"]


_WORD_BITS = 64


class Bits(NamedTuple):
    """A party's exclusive-or shares of an array of bits.

    planes: int64 [num_words], in the order of the flat array; beyond its end whatever.
    shape:  of the array.
    """

    planes: np.ndarray
    shape: tuple[int, ...]

    def rows(self) -> np.ndarray:
        """Each row of the array by itself, int64 [shape[0], words]."""
        return packed(unpacked(self.planes, self.shape))


def plane_words(num_bits: int) -> int:
    """How many words hold so many bits."""
    return -(-num_bits // _WORD_BITS)


def packed(bits: np.ndarray) -> np.ndarray:
    """Bits 0 or 1 [num_rows, num_bits] as int64 [num_rows, num_words], zeros at the end."""
    room = np.zeros((len(bits), 8 * plane_words(bits[0].size)), np.uint8)
    whole = np.packbits(bits.reshape(len(bits), -1).astype(np.uint8), axis=-1, bitorder="little")
    room[:, : whole.shape[1]] = whole
    return room.view("<i8")


def unpacked(planes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The bits of words, uint8 of this shape."""
    data = np.ascontiguousarray(planes, "<i8").view(np.uint8)
    return np.unpackbits(data, count=math.prod(shape), bitorder="little").reshape(shape)


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
