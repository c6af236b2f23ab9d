"""From the parties' files to encoded columns on disk, a block of records at a time: memory does not grow with columns.

Each file is read once. Its columns are checked and encoded as `encode_table` does, in the narrowest integers that hold
them, and kept block by block; once all ids are known, each column is put in the common order. What grows with N in
memory are the ids, eight bytes for every eight characters, and two orders.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, final

import numpy as np

from vertinumpyro.core.workers import HERE, Workers, part_rows
from vertinumpyro.data.alignment import id_series, orders_of_words
from vertinumpyro.data.column import Column
from vertinumpyro.data.encoded_blocks import EncodedBlock, Groups, GroupSource, Types, encoded_block, encoded_groups
from vertinumpyro.data.files import CsvFormat, read_blocks, row_groups
from vertinumpyro.data.linkage import Linkage
from vertinumpyro.data.record_order import Ids, Words, joined, words_of
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_spec import OBSERVED_SUFFIX
from vertinumpyro.data.spool import Kept, Spool, in_order
from vertinumpyro.data.wording import Place

__all__ = ["ROWS_READ", "count_common", "encoded_file", "encoded_files"]

ROWS_READ = 2**17
"""Records that are read, checked and encoded at a time."""

_VALUES_READ = 2**22  # at a time: fewer records of many columns

Encoded = dict[str, dict[str, np.ndarray]]


def encoded_files(
    schema: Schema,
    paths: Mapping[str, str | Path],
    written: Mapping[str, CsvFormat],
    spool: Spool,
    unmatched: Literal["refuse", "drop"] = "refuse",
    workers: Workers = HERE,
) -> tuple[dict[str, str | None], Encoded]:
    """Every party's storage types, and its columns mapped from disk, aligned.

    Args:
        schema: the public schema.
        paths: each party's file.
        written: how each is written.
        spool: where the columns go.
        unmatched: as in `align`.
        workers: encode the row groups of Parquet files, and put the columns in the common order.

    Raises:
        DataError, AlignmentError: as `VerticalDataset.from_frames`.
    """
    read = {party: _Reading(schema, party, spool) for party in schema.parties}
    for party, reading in read.items():
        reading.read(Path(paths[party]), written[party], workers)
    ids = {party: reading.ids() for party, reading in read.items()}
    orders = orders_of_words(ids, schema, unmatched=unmatched)
    dtypes = {name: dtype for reading in read.values() for name, dtype in reading.dtypes().items()}
    return dtypes, {party: own.columns(orders[party], workers) for party, own in read.items()}


def encoded_file(
    schema: Schema,
    party: str,
    path: str | Path,
    written: CsvFormat,
    spool: Spool,
    workers: Workers = HERE,
    linkage: Linkage | None = None,
) -> tuple[dict[str, str | None], dict[str, np.ndarray], Ids]:
    """One party's own file: storage types, columns mapped from disk in ascending order of the ids, and these.

    Arguments and errors as `encoded_files`.

    :param linkage: what picks its common records, by this process as it reads them.
    :raises AlignmentError: as `Linkage.applied`.
    """
    reading = _Reading(schema, party, spool)
    reading.read(Path(path), written, workers, linkage)
    words = reading.ids()
    order = orders_of_words({party: words}, schema)[party]
    return reading.dtypes(), reading.columns(order, workers), Ids(words if order is None else words[order])


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
        self._schema, self._party, self._spool = schema, party, spool
        columns = schema.parties[party].columns
        self._ids: list[Words] = []
        self._rows = min(ROWS_READ, max(1, _VALUES_READ // len(columns)))
        self._types = {name: Types(Place(party, name), column) for name, column in columns.items()}
        self.kept: dict[str, Kept] = {}
        for name, column in columns.items():
            self.kept[name] = spool.column(narrowest(column))
            if column.masked:
                self.kept[name + OBSERVED_SUFFIX] = spool.column(np.dtype(bool))

    def read(self, path: Path, written: CsvFormat, workers: Workers, linkage: Linkage | None = None) -> None:
        """All of its records, or those that are linked."""
        groups = row_groups(path, self._party) if workers.count and linkage is None else []
        if len(groups) > 1:
            self._by_workers(path, written, workers, groups)
            return
        frames = read_blocks(path, self._schema, self._party, written, rows=self._rows)
        for frame in frames if linkage is None else linkage.applied_to_blocks(frames, self._schema, self._party):
            if len(frame):
                found = encoded_block(self._schema, self._party, frame)
                self._see(found)
                for name, array in found.arrays.items():
                    self.kept[name].append(array)

    def _by_workers(self, path: Path, written: CsvFormat, workers: Workers, groups: list[int]) -> None:
        starts = np.cumsum([0, *groups]).tolist()
        slots = {name: kept.reserve(starts[-1]) for name, kept in self.kept.items()}
        ids = self._spool.column(np.dtype(np.uint64))
        source = GroupSource.of(path, self._schema, self._party, written, self._rows, slots, ids.reserve(starts[-1]))
        rows = max(1, part_rows(starts[-1], workers))
        runs = itertools.groupby(range(len(groups)), lambda number: starts[number] // rows)
        parts = [Groups(source, numbers, starts[numbers[0]]) for numbers in (tuple(run) for _, run in runs)]
        for part, blocks in zip(parts, workers.map(encoded_groups, parts), strict=True):
            start = part.start
            for found in blocks:
                self._see(found)
                for name, array in found.arrays.items():
                    self.kept[name].put(start, array)
                start += len(found.ids)
        self._ids = _with_placed(self._ids, ids.array())

    def _see(self, found: EncodedBlock) -> None:
        self._ids.append(found.ids)
        for name, seen in found.seen.items():
            self._types[name].see(*seen)

    def ids(self) -> Words:
        """Of all records."""
        if not self._ids:
            Place(self._party).fail("the table has no records; give at least one")
        words, self._ids = joined(self._ids), []
        return words

    def columns(self, order: np.ndarray | None, workers: Workers) -> dict[str, np.ndarray]:
        """Its columns in an order, mapped from disk."""
        return in_order(self.kept, order, self._spool, workers)

    def dtypes(self) -> dict[str, str | None]:
        """The columns' storage types, as the whole table has them."""
        return {name: types.dtype() for name, types in self._types.items()}


def _with_placed(blocks: Sequence[Words], placed: np.ndarray) -> list[Words]:
    """All blocks' ids, of those that workers put in their places as they stand there."""
    if blocks and not any(block.shape[1] for block in blocks):
        return [placed[:, None]]
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    return [
        block if block.shape[1] else placed[end - len(block) : end, None]
        for block, end in zip(blocks, ends, strict=True)
    ]
