"""From a person's rows to one record, by the public rules of the schema: in memory, or of files of any length by
parts of the persons that lie on disk. A record follows from the rows of its own person alone.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pandas as pd
from pandas.util import hash_array

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import anonymous_file
from vertinumpyro.data.alignment import id_series
from vertinumpyro.data.column import Column, numbers, plain
from vertinumpyro.data.date_columns import DateColumn, read_moments
from vertinumpyro.data.row_rules import NUMBER, Rows, Take
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.data.table import check_header

_DAY = np.timedelta64(1, "D")
_FILE_BYTES, _MOST_PARTS = 2**23, 256  # of a file, whose rows take some ten times that in memory


def records_of(frame: pd.DataFrame, schema: Schema, party: str, absent: Sequence[str] = ()) -> pd.DataFrame:
    """A party's table with one record per id, in ascending order of these; the same table where it has no rules.

    :param frame: its rows.
    :param schema: the public schema.
    :param party: whose it is.
    :param absent: ids of persons without rows, whose records stand behind the others'.
    :raises DataError: a column is missing, or its values are not what the rule takes; names party, column and rule.
    """
    part = schema.parties[party]
    if part.rows is None:
        return frame
    place = Place(party)
    check_header(list(frame.columns), [schema.id_column, *part.sources], party)
    if len(frame) == 0:
        place.fail("the table has no records; give at least one")
    return _records(frame, schema, party, absent)


def _records(frame: pd.DataFrame, schema: Schema, party: str, absent: Sequence[str]) -> pd.DataFrame:
    part = schema.parties[party]
    assert part.rows is not None
    numbers_of, ids = pd.factorize(id_series(frame, schema, party), sort=True)
    ids = pd.Index([*map(str, ids), *absent], dtype=object) if absent else ids
    person = pd.Series(numbers_of, index=frame.index)
    rows = _OneParty(frame, person, len(ids), part.rows, party)
    taken = {name: rows.taken(name, take, part.columns[name]) for name, take in part.rows.take.items()}
    return pd.DataFrame({schema.id_column: ids, **{name: taken[name] for name in part.columns}})


def absent_ids(frames: Mapping[str, pd.DataFrame], schema: Schema) -> dict[str, list[str]]:
    """Of each party with rules for rows, who has none there: ids that all parties with one row each have."""
    if all(schema.parties[party].rows is None for party in frames):
        return {}
    ids = {party: set(id_series(frame, schema, party).astype(str)) for party, frame in frames.items()}
    listed = [own for party, own in ids.items() if schema.parties[party].rows is None]
    everybody = set.intersection(*listed) if listed else set()
    return {party: sorted(everybody - own) for party, own in ids.items() if schema.parties[party].rows is not None}


def records_without_rows(ids: list[str], schema: Schema, party: str) -> pd.DataFrame:
    """The records of persons of whom a party has no rows."""
    part = schema.parties[party]
    return _records(pd.DataFrame(columns=[schema.id_column, *part.sources], dtype=object), schema, party, ids)


def streamed_records(
    frames: Iterable[pd.DataFrame], schema: Schema, party: str, folder: Path, file_bytes: int
) -> Iterator[pd.DataFrame]:
    """As `records_of`, of a table that comes in blocks, with some of the persons at a time.

    Their rows lie in files without a name, a part of the persons in each, so ids may come in any order.

    :param frames: blocks of rows.
    :param schema: the public schema.
    :param party: whose they are.
    :param folder: on a disk with room.
    :param file_bytes: the file's size.
    :raises ArgumentError: the disk is full.
    """
    parts = int(np.clip(file_bytes // _FILE_BYTES, 1, _MOST_PARTS))
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(_temporary(folder)) for _ in range(parts)]
        for frame in frames:
            if len(frame):
                _write_parts(frame, id_series(frame, schema, party), files)
        for file in files:
            if pieces := list(_pieces(file)):
                yield records_of(pd.concat(pieces, ignore_index=True), schema, party)
            file.close()  # its room on the disk


def _temporary(folder: Path) -> IO[bytes]:
    with _writing():
        return anonymous_file(folder)


def _write_parts(frame: pd.DataFrame, ids: pd.Series, files: list[IO[bytes]]) -> None:
    part = hash_array(ids.to_numpy(), categorize=False) % np.uint64(len(files))  # pyright: ignore[reportCallIssue]
    order = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[order], np.arange(1, len(files) + 1, dtype=np.uint64))
    ordered, start = frame.iloc[order], 0
    for file, end in zip(files, ends, strict=True):
        if end > start:
            with _writing():
                pickle.dump(ordered.iloc[start:end], file, pickle.HIGHEST_PROTOCOL)
        start = end


def _pieces(file: IO[bytes]) -> Iterator[pd.DataFrame]:
    """What this process has written; nobody else can open the file."""
    with _writing():
        file.seek(0)
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Names a full disk."""
    try:
        yield
    except OSError as error:
        problem = str(error.strerror)
    else:
        return
    raise ArgumentError(f"spool: the rows cannot be written: {problem}")


class _OneParty:
    """A party's rows, and which person each is of. Secret."""

    def __init__(self, frame: pd.DataFrame, person: pd.Series, num_persons: int, rows: Rows, party: str) -> None:
        self._frame, self._person, self._num_persons, self._rows, self._party = frame, person, num_persons, rows, party
        named = {take.source(name) for name, take in rows.take.items()} | {rows.order}
        sources = [source for source in named if source is not None]
        filled = frame[sources].notna().to_numpy().any(axis=1) if sources else np.ones(len(frame), bool)
        self._filled = filled  # a row of an id alone says that there are none
        self._has_rows = np.bincount(person[self._filled], minlength=num_persons) > 0

    def taken(self, name: str, take: Take, column: Column) -> pd.Series:
        """One column of the records."""
        source = take.source(name)
        place = Place(self._party, name if source is None else source)
        if source is None:
            found = pd.Series(np.bincount(self._person[self._filled], minlength=self._num_persons))
        else:
            series = pd.Series(self._frame[source])
            present = take.read_as(column).observed(series)
            found = pd.Series(dtype=float)
            if present.any():
                found = self._by_rule(
                    take, column, plain(pd.Series(series[present])), pd.Series(self._person[present]), place
                )
            found = found.reindex(range(self._num_persons))
            found = found.where(~self._has_rows | found.notna(), 0) if take.rule == "count" else found
        if not self._has_rows.all() and take.without_rows is not None:
            found = found.astype(object if isinstance(take.without_rows, str) else found.dtype)
            found = found.where(self._has_rows, take.without_rows)
        if column.missing == "forbid" and found.isna().any():
            Place(self._party, name).fail(
                f'rule "{take.rule}" finds no value for some ids; set without_rows, or missing = "category"'
            )
        return _stored(found, column)

    def _by_rule(self, take: Take, column: Column, series: pd.Series, person: pd.Series, place: Place) -> pd.Series:
        """By person, of those that have values."""
        if take.rule == "count":
            return pd.Series(series.groupby(person).size())
        if take.rule == "any":
            codes = column.encode(series, party=place.party, name=place.column)
            highest = pd.Series(pd.Series(codes, series.index).groupby(person).max())
            return pd.Series(np.asarray(column.labels, object)[highest.to_numpy()], highest.index).infer_objects()
        if take.rule == "days between":
            days = pd.Series(_moments(series, take.format, place), series.index).groupby(person)
            return (pd.Series(days.max()) - pd.Series(days.min())) // _DAY
        if take.rule in ("first", "last"):
            return self._at_end(series, person, take.rule)
        if take.rule == "most frequent":
            return _most_frequent(series, person)
        if isinstance(column, DateColumn):
            key = pd.Series(_moments(series, column.format, place, column.timezone), series.index)
            return _picked(series, person, key, last=take.rule == "max")
        values = numbers(series, place, take.read_as(column).written)
        return pd.Series(pd.Series(values, series.index).groupby(person).agg(take.rule))

    def _at_end(self, series: pd.Series, person: pd.Series, rule: str) -> pd.Series:
        order, place = self._rows.order, Place(self._party, str(self._rows.order))
        written = pd.Series(self._frame.loc[series.index, order])
        if written.isna().any():
            place.fail(f'orders the rows for rule "{rule}" and has missing values; fill them, or drop those rows')
        if self._rows.order_format == NUMBER:
            keys = numbers(written, place)
        else:
            keys = _moments(written, self._rows.order_format, place)
        return _picked(series, person, pd.Series(keys, series.index), last=rule == "last")


def _picked(series: pd.Series, person: pd.Series, key: pd.Series, *, last: bool) -> pd.Series:
    """Of each person the value with the smallest key or the largest; of equal keys, that of the smaller text or the
    larger.
    """
    rows = pd.DataFrame({"person": person, "key": key, "text": series.astype(str), "value": series})
    rows = rows.sort_values(["person", "key", "text"], kind="stable")
    ends = rows.drop_duplicates("person", keep="last" if last else "first")
    return pd.Series(ends.set_index("person")["value"])


def _most_frequent(series: pd.Series, person: pd.Series) -> pd.Series:
    codes, values = pd.factorize(series, sort=True)
    counts = pd.DataFrame({"person": person.to_numpy(), "code": codes}).value_counts().rename("count").reset_index()
    counts = counts.sort_values(["person", "count", "code"], ascending=[True, False, True])
    best = counts.drop_duplicates("person").set_index("person")["code"]
    return pd.Series(values.take(best.to_numpy()), best.index)


def _moments(series: pd.Series, written: str | None, place: Place, timezone: str | None = None) -> np.ndarray:
    if pd.api.types.is_numeric_dtype(series.dtype) and len(series):
        place.fail('holds numbers, the rules say dates; convert the column, or set order_format = "number" of an order')
    found = read_moments(series, written, timezone)
    if np.isnat(found).any():
        how = "ISO 8601 (2023-12-31)" if written is None else f"the format {written!r}"
        place.fail(f"holds a value that is no date in {how}; repair it, or set its format under rows")
    return found


def _stored(found: pd.Series, column: Column) -> pd.Series:
    """Whole numbers as such, whichever persons have values: blocks of one table are of one type."""
    if column.type_name in ("integer", "count") and pd.api.types.is_float_dtype(found.dtype):
        whole = found.dropna()
        if (whole == np.rint(whole)).all():
            return found.astype("Int64" if column.missing != "forbid" else "int64")
    return found
