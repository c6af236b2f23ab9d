"""Blocks of a party's file, checked and encoded: what any worker can do for a block, without knowing the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import pandas as pd

from vertinumpyro.core.open_files import ElsewhereError
from vertinumpyro.data.alignment import id_series
from vertinumpyro.data.column import Column
from vertinumpyro.data.files import CsvFormat, read_blocks
from vertinumpyro.data.record_order import Words, ascending, words_of
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.spool import Slot
from vertinumpyro.data.table import check_table, encode_table
from vertinumpyro.data.table_types import dtype_of
from vertinumpyro.data.wording import Place

__all__ = ["EncodedBlock", "GroupSource", "Groups", "Types", "encoded_block", "encoded_groups"]

_SAMPLE = 100


class EncodedBlock(NamedTuple):
    """Some records. Secret.

    ids:    their words [n, k]; [n, 0] where they were put in their places already.
    arrays: the encoded columns, but for those that were put in their places already.
    seen:   by column, the name of its storage type in this block and a few values that stand for it.
    """

    ids: Words
    arrays: dict[str, np.ndarray]
    seen: dict[str, tuple[str, pd.Series]]


def encoded_block(schema: Schema, party: str, frame: pd.DataFrame) -> EncodedBlock:
    """Some records of a party's table, as `check_table` and `encode_table` do; errors as theirs.

    In ascending order of their ids: to sort all records then is to merge blocks, which takes half the time.
    """
    check_table(frame, schema, party)
    ids = words_of(id_series(frame, schema, party), Place(party, schema.id_column))
    seen = {name: _storage(pd.Series(frame[name])) for name in schema.parties[party].columns}
    arrays = encode_table(frame, schema, party)
    if (order := ascending(ids)) is not None:
        ids, arrays = np.take(ids, order, axis=0), {name: np.take(array, order) for name, array in arrays.items()}
    return EncodedBlock(ids, arrays, seen)


class GroupSource(NamedTuple):
    """A file whose row groups are encoded, and where to. Public but for what the paths lead to.

    stamp: the file's size and the time of its last change: another machine's file of that name is another file.
    """

    path: Path
    stamp: tuple[int, int]
    schema: Schema
    party: str
    written: CsvFormat
    rows: int
    slots: Mapping[str, Slot | None]
    ids: Slot | None

    @classmethod
    def of(
        cls, path: Path, schema: Schema, party: str, written: CsvFormat, rows: int, slots: Mapping[str, Slot | None],
        ids: Slot | None,
    ) -> GroupSource:  # fmt: skip
        """A file of this machine, read so many records at a time."""
        path = path.resolve()
        return cls(path, _stamp(path), schema.restrict(party), party, written, rows, slots, ids)


@final
@dataclasses.dataclass(frozen=True, repr=False)
class Groups:
    """Some of them, which follow one another: their numbers, and that of their first record in the file."""

    source: GroupSource
    numbers: tuple[int, ...]
    start: int

    def moved(self) -> None:
        """Nobody who does not find the file can encode it."""


def encoded_groups(groups: Groups) -> list[EncodedBlock]:
    """Their records, block by block; the columns go to their places, where these are on this machine.

    :raises ElsewhereError: the file is not on this machine.
    :raises DataError: as `encoded_block`, and where the file cannot be read.
    """
    source, start, found = groups.source, groups.start, []
    try:
        stamp = _stamp(source.path)
    except OSError:
        raise ElsewhereError from None
    if stamp != source.stamp:
        raise ElsewhereError
    of_groups = {"rows": source.rows, "groups": groups.numbers}
    frames = read_blocks(source.path, source.schema, source.party, source.written, **of_groups)
    for frame in frames:
        if len(frame):
            block = encoded_block(source.schema, source.party, frame)
            ids = _ids_not_put(source.ids, start, block.ids)
            found.append(block._replace(ids=ids, arrays=_not_put(source.slots, start, block.arrays)))
            start += len(frame)
    return found


def _ids_not_put(slot: Slot | None, start: int, words: Words) -> Words:
    """Puts ids of a single word in their places; what is left of them."""
    if slot is None or words.shape[1] != 1:
        return words
    try:
        slot.put(start, words[:, 0])
    except ElsewhereError:
        return words
    return words[:, :0]


def _not_put(slots: Mapping[str, Slot | None], start: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Puts arrays in their places; those whose place is not on this machine."""
    left = {}
    for name, array in arrays.items():
        slot = slots[name]
        if slot is None:
            left[name] = array
            continue
        try:
            slot.put(start, array)
        except ElsewhereError:
            left[name] = np.ascontiguousarray(array, slot.dtype)
    return left


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _storage(series: pd.Series) -> tuple[str, pd.Series]:
    """The name of a column's storage type, and values that stand for it."""
    kind = str(series.dtype)
    if kind == "object":
        kind += pd.api.types.infer_dtype(series, skipna=True)
    elif isinstance(series.dtype, pd.CategoricalDtype):
        kind += str(list(series.dtype.categories)) + str(series.dtype.ordered)
    return kind, series.dropna().iloc[:_SAMPLE] if series.dtype == object else series.iloc[:1]


@dataclasses.dataclass
class Types:
    """A column's storage types in its blocks, and a few values that stand for each."""

    place: Place
    column: Column
    seen: dict[str, pd.Series] = dataclasses.field(default_factory=dict, repr=False)

    def see(self, kind: str, sample: pd.Series) -> None:
        """One more block's."""
        self.seen.setdefault(kind, sample)

    def dtype(self) -> str | None:
        """As `dtype_of` the whole column."""
        found = [dtype_of(sample, self.column, self.place) for sample in self.seen.values()]
        if len(found) == 1 or all(isinstance(sample.dtype, pd.CategoricalDtype) for sample in self.seen.values()):
            return found[0]
        return dtype_of(pd.concat(list(self.seen.values()), ignore_index=True), self.column, self.place)
