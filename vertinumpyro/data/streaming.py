"""From the parties' files to encoded columns on disk, a block of records at a time, by any worker: memory does not grow
with columns. They lie in files without a name, which nobody else can open and which go with the process; workers on its
machine find them through it (`core.files`) and write there as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path
from typing import IO, Literal, NamedTuple, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import ElsewhereError, OpenFile, Rows, anonymous_file, mapped, rows_on_disk
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.core.workers import HERE, Workers, part_rows
from vertinumpyro.data.aggregation import records_without_rows, streamed_records
from vertinumpyro.data.alignment import (
    Ids,
    Linkage,
    Words,
    as_words,
    ascending,
    bytes_of,
    id_series,
    joined,
    orders_of_words,
    texts_of,
    words_of,
)
from vertinumpyro.data.column import Column, Moved
from vertinumpyro.data.files import CsvFormat, read_blocks, row_groups
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.data.schema_parsing import OBSERVED_SUFFIX
from vertinumpyro.data.table import check_moved, check_table, dtype_of, encode_table

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None


_FILES = 2**16


@final
class Spool:
    """A folder on a disk with room for the encoded columns: a byte to four for each value.

    :param findable: whether workers on this machine may find the files, see `core.files`.
    :raises ArgumentError: there is no such folder, or nothing can be written there.
    """

    def __init__(self, folder: str | Path, *, findable: bool = False) -> None:
        self.folder, self.findable = Path(folder), findable
        if not self.folder.is_dir():
            raise ArgumentError(f"spool: there is no folder {str(folder)!r}; create it, on a disk with room")
        _allow_many_files()

    def column(self, dtype: np.dtype) -> Kept:
        """A column without records yet."""
        try:
            return Kept(anonymous_file(self.folder), dtype, self)
        except OSError as error:
            raise ArgumentError(f"spool: cannot write to {str(self.folder)!r}: {error.strerror}") from None

    def __repr__(self) -> str:
        return "Spool()"


@final
class Kept:
    """A column that grows block by block, and is then read where it lies. Secret."""

    def __init__(self, file: IO[bytes], dtype: np.dtype, spool: Spool) -> None:
        self._file, self.dtype, self._spool, self._length = file, dtype, spool, 0

    def append(self, values: np.ndarray) -> None:
        """More records; their values fit the column's type.

        :raises ArgumentError: the disk is full.
        """
        with _writing():
            self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self._length += len(values)

    def reserve(self, length: int) -> Slot | None:
        """Makes room for so many records, which anybody who finds the file may put in its places.

        :returns: for a worker on this machine; None where it could not find the file.
        """
        with _writing():
            self._file.truncate(length * self.dtype.itemsize)
        self._length = length
        place = OpenFile.of(self._file) if self._spool.findable else None
        return None if place is None else Slot(place, self.dtype)

    def put(self, start: int, values: np.ndarray) -> None:
        """Records in their places, from `start` on; errors as `append`'s."""
        _put(self._file, self.dtype, start, values)

    def array(self) -> np.ndarray:
        """All records [n], mapped from the file; errors as `append`'s."""
        with _writing():
            self._file.flush()
        return mapped(self._file, self.dtype, self._length, findable=self._spool.findable)

    def __repr__(self) -> str:
        return "Kept()"


class Slot(NamedTuple):
    """A column's file, for whoever puts records in their places."""

    file: OpenFile
    dtype: np.dtype

    def put(self, start: int, values: np.ndarray) -> None:
        """As `Kept.put`.

        :raises ElsewhereError: the file is not on this machine.
        """
        with self.file.opened(write=True) as file:
            _put(file, self.dtype, start, values)


def in_order(
    columns: Mapping[str, Kept], order: np.ndarray | None, spool: Spool, workers: Workers = HERE
) -> dict[str, np.ndarray]:
    """The columns' records of these numbers, in this order, mapped from files of their own; None is all as they are.

    :param order: int64 [n].
    :param workers: each takes some of these rows from all columns; this process takes a column in each thread.
    :raises ArgumentError: the disk is full.
    :raises BackendError: the workers are lost.
    """
    held = {name: kept.array() for name, kept in columns.items()}
    if order is None:
        return held
    made = {name: spool.column(kept.dtype) for name, kept in columns.items()}
    slots = {name: kept.reserve(len(order)) for name, kept in made.items()}
    found = tuple((rows, slot) for name, slot in slots.items() if slot and (rows := rows_on_disk(held[name])))
    if workers.count and len(found) == len(held):
        numbers = spool.column(order.dtype)
        numbers.append(order)
        on_disk = numbers.array()
        place = rows_on_disk(on_disk)
        assert place is not None  # as those of the columns
        blocks = slices(len(order), part_rows(len(order), workers))
        for _ in workers.map(_gathered, [_Gather(place, rows, found) for rows in blocks]):
            pass
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: _gather(held[name], order, 0, made[name].put), made))
    return {name: kept.array() for name, kept in made.items()}


@final
@dataclasses.dataclass(frozen=True, repr=False)
class _Gather:
    """An order, which of its rows, and from and to where each column's records go."""

    order: Rows
    rows: slice
    columns: tuple[tuple[Rows, Slot], ...]

    def moved(self) -> None:
        """Whoever does not find the files cannot write there either."""


def _gathered(part: _Gather) -> None:
    order = part.order.array()[part.rows]
    for own, slot in part.columns:
        _gather(own.array(), order, part.rows.start, slot.put)


def _gather(own: np.ndarray, order: np.ndarray, start: int, put: Callable[[int, np.ndarray], None]) -> None:
    for rows in slices(len(order)):
        put(start + rows.start, np.take(own, order[rows]))


def _put(file: IO[bytes], dtype: np.dtype, start: int, values: np.ndarray) -> None:
    content, offset = memoryview(np.ascontiguousarray(values, dtype).data).cast("B"), start * dtype.itemsize
    with _writing():
        while len(content):
            written = os.pwrite(file.fileno(), content, offset)
            content, offset = content[written:], offset + written


def _allow_many_files() -> None:
    """As many as the system lets this process have: a mapped column is an open file, and 1,024 is a common limit."""
    if resource is not None:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)
        if now != resource.RLIM_INFINITY and now < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"spool: the encoded columns cannot be written: {error.strerror}") from None


_SAMPLE = 100


class EncodedBlock(NamedTuple):
    """Some records. Secret.

    ids:    their words [n, k]; [n, 0] where they were put in their places already.
    arrays: the encoded columns, but for those that were put in their places already.
    seen:   by column, the name of its storage type in this block and a few values that stand for it.
    moved:  by column with ends, how many values lie beyond these. NOT DP.
    """

    ids: Words
    arrays: dict[str, np.ndarray]
    seen: dict[str, tuple[str, pd.Series]]
    moved: dict[str, Moved]


def encoded_block(schema: Schema, party: str, frame: pd.DataFrame) -> EncodedBlock:
    """Some records of a party's table, as `check_table` and `encode_table` do; errors as theirs.

    In ascending order of their ids: to sort all records then is to merge blocks, which takes half the time.
    """
    check_table(frame, schema, party)
    ids = words_of(id_series(frame, schema, party), Place(party, schema.id_column))
    seen = {name: _storage(pd.Series(frame[name])) for name in schema.parties[party].columns}
    arrays, moved = encode_table(frame, schema, party)
    if (order := ascending(ids)) is not None:
        ids, arrays = np.take(ids, order, axis=0), {name: np.take(array, order) for name, array in arrays.items()}
    return EncodedBlock(ids, arrays, seen, moved)


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
) -> tuple[dict[str, str | None], Encoded, dict[str, dict[str, Moved]]]:
    """Every party's storage types, its columns mapped from disk, aligned, and what its columns with ends move.

    :param schema: the public schema.
    :param paths: each party's file.
    :param written: how each is written.
    :param spool: where the columns go.
    :param unmatched: as in `align`.
    :param workers: encode the row groups of Parquet files, and put the columns in the common order.
    :raises DataError, AlignmentError: as `VerticalDataset.from_frames`.
    """
    read = {party: _Reading(schema, party, spool) for party in schema.parties}
    for party, reading in read.items():
        reading.read(Path(paths[party]), written[party], workers)
    ids = {party: reading.ids() for party, reading in read.items()}
    for party, absent in _absent(ids, schema).items():
        ids[party] = joined([ids[party], *read[party].without_rows(texts_of(absent))])
    orders = orders_of_words(ids, schema, unmatched=unmatched)
    dtypes = {name: dtype for reading in read.values() for name, dtype in reading.dtypes().items()}
    columns = {party: own.columns(orders[party], workers) for party, own in read.items()}
    return dtypes, columns, {party: own.moved() for party, own in read.items()}


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
    reading.moved()
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
        if schema.parties[party].rows is not None:
            ids[party] = _one_each(ids[party])
    for party, absent in _absent(ids, schema).items():
        ids[party] = joined([ids[party], absent])
    party, order = next(iter(orders_of_words(ids, schema, unmatched=unmatched).items()))
    return len(ids[party] if order is None else order)


def _one_each(words: Words) -> Words:
    order = ascending(words)
    ordered = words if order is None else words[order]
    return ordered[np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))]


def _absent(ids: Mapping[str, Words], schema: Schema) -> dict[str, Words]:
    """As `absent_ids`, of ids as words; none where there is nobody."""
    of_rows = [party for party in ids if schema.parties[party].rows is not None]
    listed = [bytes_of(words) for party, words in ids.items() if party not in of_rows]
    if not of_rows or not listed:
        return {}
    everybody = reduce(np.intersect1d, listed)
    absent = {party: np.setdiff1d(everybody, bytes_of(ids[party])) for party in of_rows}
    return {party: as_words(found) for party, found in absent.items() if len(found)}


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
        self._moved: dict[str, Moved] = {}
        self.kept: dict[str, Kept] = {}
        for name, column in columns.items():
            self.kept[name] = spool.column(narrowest(column))
            if column.masked:
                self.kept[name + OBSERVED_SUFFIX] = spool.column(np.dtype(bool))

    def read(self, path: Path, written: CsvFormat, workers: Workers, linkage: Linkage | None = None) -> None:
        """All of its records, or those that are linked."""
        of_rows = self._schema.parties[self._party].rows is not None
        groups = row_groups(path, self._party) if workers.count and linkage is None and not of_rows else []
        if len(groups) > 1:
            self._by_workers(path, written, workers, groups)
            return
        frames = read_blocks(path, self._schema, self._party, written, rows=self._rows)
        if of_rows:
            size = path.stat().st_size if path.is_file() else 0
            frames = streamed_records(frames, self._schema, self._party, self._spool.folder, size)
            # a linkage has the numbers of all records in the order of their ids, as `read_ids` has them
            frames = [pd.concat(frames).sort_values(self._schema.id_column)] if linkage is not None else frames
        for frame in frames if linkage is None else linkage.applied_to_blocks(frames, self._schema, self._party):
            if len(frame):
                self._append(frame)

    def without_rows(self, ids: list[str]) -> list[Words]:
        """More records, of persons without rows; their words."""
        for part in slices(len(ids), self._rows):
            self._append(records_without_rows(ids[part], self._schema, self._party))
        words, self._ids = self._ids, []
        return words

    def _append(self, frame: pd.DataFrame) -> None:
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
        for name, moved in found.moved.items():
            self._moved[name] = self._moved[name].and_of(moved) if name in self._moved else moved
        for name, seen in found.seen.items():
            self._types[name].see(*seen)

    def ids(self) -> Words:
        """Of all records."""
        if not self._ids:
            Place(self._party).fail("the table has no records; give at least one")
        words, self._ids = joined(self._ids), []
        return words

    def moved(self) -> dict[str, Moved]:
        """What its columns with ends move; errors as `check_moved`'s."""
        check_moved(self._moved, self._party)
        return self._moved

    def columns(self, order: np.ndarray | None, workers: Workers) -> dict[str, np.ndarray]:
        """Its columns in an order, mapped from disk."""
        return in_order(self.kept, order, self._spool, workers)

    def dtypes(self) -> dict[str, str | None]:
        """The columns' storage types, as the whole table has them."""
        if self._schema.parties[self._party].rows is not None:  # rules make the records, in no table's types
            return {name: types.column.dtype for name, types in self._types.items()}
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
