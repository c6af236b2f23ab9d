"""Ids of many records as machine words, which sort as their texts do: what aligns tables that are read in blocks.

An id is its UTF-8, filled up with zeros to a multiple of eight bytes, as big-endian integers: these compare as the
texts compare, code point by code point. An id of up to eight bytes is one word.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, final, overload

import numpy as np
import pandas as pd

from vertinumpyro.core.row_blocks import slices
from vertinumpyro.data.column import plain
from vertinumpyro.data.wording import Place

__all__ = ["Ids", "Words", "ascending", "joined", "matching_orders", "texts_of", "words_of"]

Words: TypeAlias = np.ndarray
"""uint64 [n, k], the most significant word first. Secret."""

_BYTES = 8
_TOLD = 2**14


def words_of(ids: pd.Series, place: Place) -> Words:
    """The words of ids that `record_ids` accepts.

    Raises:
        DataError: an id holds the character NUL, with which it would read as a shorter one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = plain(ids)
    if isinstance(ids.dtype, np.dtype) and ids.dtype.kind in "iu":
        texts = pc.cast(pa.array(ids.to_numpy()), pa.large_string())
    else:
        texts = pa.array(ids.astype(str).to_numpy(object), pa.large_string())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    if not content.all():
        place.fail("holds ids with the character NUL; write them without it")
    lengths = np.diff(ends)
    padded = np.zeros((len(texts), -(-max(int(lengths.max(initial=1)), 1) // _BYTES) * _BYTES), np.uint8)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = content
    return padded.view(">u8").astype(np.uint64)


def joined(blocks: Sequence[Words]) -> Words:
    """Blocks one after the other, as wide as the widest."""
    width = max(block.shape[1] for block in blocks)
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate([_as_wide(block, width) for block in blocks])


def texts_of(words: Words) -> list[str]:
    """The ids again."""
    content = words.astype(">u8").view(f"S{_BYTES * words.shape[1]}").ravel()
    return [identifier.decode() for identifier in content.tolist()]


@final
class Ids(Sequence[str]):
    """Ids in ascending order, kept as words and told as texts, a block at a time. Secret."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __len__(self) -> int:
        return len(self._words)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return texts_of(self._words[index]) if isinstance(index, slice) else texts_of(self._words[index][None])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _TOLD):
            yield from texts_of(self._words[start : start + _TOLD])

    def __repr__(self) -> str:
        """Shows no id."""
        return f"Ids({len(self)})"


def ascending(words: Words) -> np.ndarray | None:
    """Record numbers in ascending order of their ids, int64 [n]; None where they stand so."""
    if _steps(words).all():
        return None
    if words.shape[1] == 1:
        return np.argsort(words[:, 0])
    return np.lexsort(words.T[::-1])


def matching_orders(ids: Mapping[str, Words]) -> dict[str, np.ndarray | None] | None:
    """Each party's order, where all have the same ids and none twice; None otherwise."""
    with ThreadPoolExecutor(min(len(ids), os.cpu_count() or 1)) as pool:  # sorting lets go of Python's lock
        orders = dict(zip(ids, pool.map(ascending, ids.values()), strict=True))
    width, (length, *others) = max(words.shape[1] for words in ids.values()), (len(words) for words in ids.values())
    if any(other != length for other in others):
        return None
    for rows in slices(length):
        rows = slice(max(rows.start - 1, 0), rows.stop)  # with the last id of those before
        first, *found = (_as_wide(_some(words, orders[party], rows), width) for party, words in ids.items())
        if not _steps(first).all() or not all(np.array_equal(own, first) for own in found):
            return None
    return orders


def _some(words: Words, order: np.ndarray | None, rows: slice) -> Words:
    return words[rows] if order is None else np.take(words, order[rows], axis=0)


def _steps(words: Words) -> np.ndarray:
    """Whether each id is greater than the one before it, bool [n - 1]."""
    greater = np.zeros(len(words) - 1, bool)
    for word in words.T[::-1]:
        greater = (word[1:] > word[:-1]) | ((word[1:] == word[:-1]) & greater)
    return greater


def _as_wide(words: Words, width: int) -> Words:
    return np.pad(words, ((0, 0), (0, width - words.shape[1]))) if words.shape[1] < width else words
