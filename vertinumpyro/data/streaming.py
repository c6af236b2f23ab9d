"""From the parties' files to encoded columns on disk, a block of records at a time: memory does not grow with columns.

Each file is read once. Its columns are checked and encoded as `encode_table` does, in the narrowest integers that hold
them, and kept in the file's order; once all ids are known, each column is put in the common order. What grows with N in
memory are the ids, eight bytes for every eight characters, and two orders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, final

import numpy as np
import pandas as pd

from vertinumpyro.data.alignment import id_series, orders_of_words
from vertinumpyro.data.column import Column
from vertinumpyro.data.files import CsvFormat, read_blocks
from vertinumpyro.data.record_order import Words, joined, words_of
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_spec import OBSERVED_SUFFIX
from vertinumpyro.data.spool import Kept, Spool
from vertinumpyro.data.table import check_table, encode_table
from vertinumpyro.data.table_types import dtype_of
from vertinumpyro.data.wording import Place

__all__ = ["ROWS_READ", "count_common", "encoded_files"]

ROWS_READ = 2**17
_VALUES_READ = 2**22  # at a time: fewer records of many columns
"""Records that are read, checked and encoded at a time."""

_SAMPLE = 100

Encoded = dict[str, dict[str, np.ndarray]]


def encoded_files(
    schema: Schema,
    paths: Mapping[str, str | Path],
    written: Mapping[str, CsvFormat],
    spool: Spool,
    unmatched: Literal["refuse", "drop"] = "refuse",
) -> tuple[dict[str, str | None], Encoded]:
    """Every party's storage types, and its columns mapped from disk, aligned.

    Args:
        schema: the public schema.
        paths: each party's file.
        written: how each is written.
        spool: where the columns go.
        unmatched: as in `align`.

    Raises:
        DataError, AlignmentError: as `VerticalDataset.from_frames`.
    """
    read = {party: _Reading(schema, party, spool) for party in schema.parties}
    for party, reading in read.items():
        rows = min(ROWS_READ, max(1, _VALUES_READ // len(schema.parties[party].columns)))
        for frame in read_blocks(paths[party], schema, party, written[party], rows=rows):
            reading.take(frame)
    ids = {party: reading.ids() for party, reading in read.items()}
    orders = orders_of_words(ids, schema, unmatched=unmatched)
    dtypes = {name: dtype for reading in read.values() for name, dtype in reading.dtypes().items()}
    columns = {p: {name: kept.taken(orders[p]) for name, kept in own.kept.items()} for p, own in read.items()}
    return dtypes, columns


def count_common(
    schema: Schema,
    paths: Mapping[str, str | Path],
    written: Mapping[str, CsvFormat],
    unmatched: Literal["refuse", "drop"] = "refuse",
) -> int:
    """N from the id columns alone, after matching them; errors as `encoded_files`."""
    ids: dict[str, Words] = {}
    for party in schema.parties:
        place = Place(party, schema.id_column)
        blocks = read_blocks(paths[party], schema, party, written[party], rows=ROWS_READ, columns=False)
        found = [words_of(id_series(frame, schema, party), place) for frame in blocks if len(frame)]
        if not found:
            Place(party).fail("the table has no records; give at least one")
        ids[party] = joined(found)
    party, order = next(iter(orders_of_words(ids, schema, unmatched=unmatched).items()))
    return len(ids[party] if order is None else order)


def narrowest(column: Column) -> np.dtype:
    """The type in which a column's encoded values are kept: of codes, the narrowest signed integers."""
    usual = column.placeholder().dtype
    if usual.kind != "i":
        return usual
    return next(
        np.dtype(kind) for kind in (np.int8, np.int16, np.int32) if column.encoded_range[1] <= np.iinfo(kind).max
    )


@final
class _Reading:
    """One party's file, so far."""

    def __init__(self, schema: Schema, party: str, spool: Spool) -> None:
        self._schema, self._party, self._columns = schema, party, schema.parties[party].columns
        self._ids: list[Words] = []
        self._types = {name: _Types(Place(party, name), column) for name, column in self._columns.items()}
        self.kept: dict[str, Kept] = {}
        for name, column in self._columns.items():
            self.kept[name] = spool.column(narrowest(column))
            if column.masked:
                self.kept[name + OBSERVED_SUFFIX] = spool.column(np.dtype(bool))

    def take(self, frame: pd.DataFrame) -> None:
        """More records."""
        if not len(frame):
            return
        check_table(frame, self._schema, self._party)
        place = Place(self._party, self._schema.id_column)
        self._ids.append(words_of(id_series(frame, self._schema, self._party), place))
        for name, array in encode_table(frame, self._schema, self._party).items():
            self.kept[name].append(array)
        for name, types in self._types.items():
            types.see(pd.Series(frame[name]))

    def ids(self) -> Words:
        """Of all records."""
        if not self._ids:
            Place(self._party).fail("the table has no records; give at least one")
        words, self._ids = joined(self._ids), []
        return words

    def dtypes(self) -> dict[str, str | None]:
        """The columns' storage types, as the whole table has them."""
        return {name: types.dtype() for name, types in self._types.items()}


@dataclasses.dataclass
class _Types:
    """A column's storage types in its blocks, and a few values that stand for each."""

    place: Place
    column: Column
    seen: dict[str, pd.Series] = dataclasses.field(default_factory=dict, repr=False)

    def see(self, series: pd.Series) -> None:
        """One more block."""
        kind = str(series.dtype)
        if kind == "object":
            kind += pd.api.types.infer_dtype(series, skipna=True)
        elif isinstance(series.dtype, pd.CategoricalDtype):
            kind += str(list(series.dtype.categories)) + str(series.dtype.ordered)
        if kind not in self.seen:
            self.seen[kind] = series.dropna().iloc[:_SAMPLE] if series.dtype == object else series.iloc[:1]

    def dtype(self) -> str | None:
        """As `dtype_of` the whole column."""
        found = [dtype_of(sample, self.column, self.place) for sample in self.seen.values()]
        if len(found) == 1 or all(isinstance(sample.dtype, pd.CategoricalDtype) for sample in self.seen.values()):
            return found[0]
        return dtype_of(pd.concat(list(self.seen.values()), ignore_index=True), self.column, self.place)
