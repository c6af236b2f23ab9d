"""Bits, 64 to a word: what is done to one is done to all of them at once."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

__all__ = ["Bits", "packed", "plane_words", "unpacked"]

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
