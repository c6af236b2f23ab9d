"""A vertically partitioned table, encoded: every party's arrays over the same records."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NoReturn

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.core.validation import checked, shown
from vertinumpyro.core.workers import HERE, Columns, Workers, workers_of
from vertinumpyro.data.aggregation import absent_ids, records_of
from vertinumpyro.data.alignment import align, record_ids
from vertinumpyro.data.column import Moved
from vertinumpyro.data.files import CsvFormat, read_table
from vertinumpyro.data.schema import Schema, check_schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.data.schema_parsing import OBSERVED_SUFFIX
from vertinumpyro.data.streaming import Spool, encoded_files
from vertinumpyro.data.table import (
    Table,
    as_frame,
    check_moved,
    check_table,
    decode_table,
    dtype_of,
    encode_table,
    example_table,
)

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where records came from, and the account that runs on them in one process are charged to. Public.

    :ivar files: by party; empty where they came from no file.
    :ivar account: True keeps each file's beside it, False none; one folder for all, or by party a file's.
    :ivar total_epsilon: what all runs on an account may cost together.
    """

    files: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    account: bool | Path | Mapping[str, Path] = True
    total_epsilon: float | None = None

    def __post_init__(self) -> None:
        """Refuse a limit without an account to hold it against."""
        kept = self.account is not False and (self.account is not True or self.files)
        if self.total_epsilon is not None and not (kept and self.total_epsilon > 0):
            raise ArgumentError("total_epsilon must be above 0, and needs an account: give account= a folder")

    def of(self, parties: Iterable[str]) -> "Source":
        """Some parties' part."""
        kept = set(parties)
        return dataclasses.replace(self, files={name: file for name, file in self.files.items() if name in kept})


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class VerticalDataset:
    """Every party's columns of the same N records, in model units.

    Build it with `from_frames`, `from_files` or `from_pooled`; they check every value against the public
    schema before anything else is computed. The number of records N is public.

    On one machine this object holds all parties' data: that is a simulation of the parties. A party that
    runs as its own process holds `restrict`'s result, a dataset of its own columns.

    :param schema: the public schema.
    :param encoded: per party, ``{column: [N]}``, and ``{column}_observed`` (bool [N]) where it is masked.
    :param workers: who computes on blocks of the records, see `from_files`; None is this process.
    :param source: where they came from, and whose account is charged; None charges none.
    :param moved: by party and column, how many values of its table `out_of_bounds = "clip"` moves. NOT DP: it is for
        that party alone. Of files in blocks before unmatched records are dropped.
    :raises ArgumentError: the arrays do not match the schema or each other in length.
    """

    schema: Schema
    encoded: Mapping[str, Arrays]
    workers: Workers = HERE
    source: Source | None = None
    moved: Mapping[str, Mapping[str, Moved]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check names and lengths, and make the arrays read-only."""
        for party in self.schema.parties:
            expected, found = _array_names(self.schema, party), tuple(self.encoded.get(party, {}))
            if sorted(expected) != sorted(found):
                raise ArgumentError(f"party {party!r} has arrays {sorted(found)}; give {sorted(expected)}")
        shapes = {array.shape for party in self.schema.parties for array in self.encoded[party].values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ArgumentError("the arrays are not all of one shape [N]; align the parties first")
        frozen = {party: _frozen(self.encoded[party]) for party in self.schema.parties}
        object.__setattr__(self, "encoded", MappingProxyType(frozen))

    @classmethod
    @checked
    def from_frames(
        cls,
        schema: Schema,
        frames: Mapping[str, Table],
        *,
        unmatched: Literal["refuse", "drop"] = "refuse",
        account: str | Path | None = None,
        total_epsilon: float | None = None,
    ) -> "VerticalDataset":
        """Check, align by id and encode one table per party.

        Records end up in ascending order of their ids as text. Columns outside the schema are ignored, and so
        is the index of a pandas DataFrame. The dataset's schema is the given one with the tables' storage types
        (`data.table` says which), so that a twin comes back in them; types that the schema has stay.
        Several rows of an id become one record first, where the schema has rules for them, and ids that all parties
        with a row each have are persons without rows at one that has none of theirs.

        :param schema: the public schema.
        :param frames: for each party a pandas or polars DataFrame, a `pyarrow.Table`, another table that exports Arrow,
            or a dict of arrays.
        :param unmatched: what to do with records that not all parties have; "drop" makes the number of common ones
            public.
        :param account: a folder for the account of these people: what all runs in one process on it cost is added up.
            Tables in memory have no place to be known by, so None keeps none, and the report says so.
        :param total_epsilon: what those may cost together: a run beyond it is refused before it begins.
        :raises ArgumentError: a party has no table, a table has no party, or is lazy or of an unknown kind.
        :raises DataError: a table breaks the schema; the message names party and column, never a value.
        :raises AlignmentError: the parties' ids do not match.
        """
        if isinstance(frames, pd.DataFrame) or not isinstance(frames, Mapping):
            raise ArgumentError("frames is not a mapping; give {party: table}, or use from_pooled for one joined table")
        _check_parties(schema, frames)
        ordered = {party: as_frame(frames[party], str(Place(party))) for party in schema.parties}
        absent = absent_ids(ordered, schema)
        records = {party: records_of(frame, schema, party, absent.get(party, ())) for party, frame in ordered.items()}
        source = Source(account=True if account is None else Path(account), total_epsilon=total_epsilon)
        return cls.from_records(schema, records, unmatched=unmatched).charged_to(source)

    @classmethod
    def from_records(
        cls, schema: Schema, frames: Mapping[str, pd.DataFrame], *, unmatched: Literal["refuse", "drop"] = "refuse"
    ) -> "VerticalDataset":
        """`from_frames` where each id has one record already, whatever rules the schema has for rows."""
        for party, frame in frames.items():
            check_table(frame, schema, party)
        aligned = align(frames, schema, unmatched=unmatched)
        tables = {party: encode_table(frame, schema, party) for party, frame in aligned.items()}
        for party, table in tables.items():
            check_moved(table.moved, party)
        encoded = {party: table.arrays for party, table in tables.items()}
        moved = {party: table.moved for party, table in tables.items()}
        return cls(schema.with_dtypes(_dtypes(schema, aligned)), encoded, moved=moved)

    @classmethod
    @checked
    def from_files(
        cls,
        schema: Schema,
        paths: Mapping[str, str | Path],
        *,
        separator: str | None = None,
        encoding: str = "utf-8",
        decimal: str = ".",
        unmatched: Literal["refuse", "drop"] = "refuse",
        spool: str | Path | None = None,
        workers: object = None,
        account: bool | str | Path = True,
        total_epsilon: float | None = None,
    ) -> "VerticalDataset":
        """Read one CSV or Parquet file per party, then do as `from_frames`.

        `separator`, `encoding` and `decimal` are those of every CSV file (`read_table`); where the parties' differ,
        use `read_table` for each and `from_frames`.

        With `spool` files are read, checked and encoded a block of records at a time, and the encoded columns stay on
        disk, in the narrowest type that holds them: memory has the ids and a block. The dataset equals the one in
        memory, value for value, and so do all releases from it.

        :param schema: the public schema.
        :param paths: each party's file.
        :param separator: see above.
        :param encoding: see above.
        :param decimal: see above.
        :param unmatched: as in `from_frames`.
        :param spool: a folder on a disk with room, for the encoded columns: one to four bytes a value, twice while they
            are put in order. They lie there in files without a name, so they go with the process, however it ends.
        :param workers: who computes on blocks of the records: a number of processes, which are started here and end
            with this one; a Dask cluster, by its `distributed.Client` or its scheduler's address; None is this process.
            The results are the same, bit for bit. With a `spool`, they encode Parquet files as well, some row groups
            each. Needs the extra `dask`.
        :param account: True adds up what all runs in one process on a file cost, in the folder ``<file>.ledger`` beside
            it; False keeps no account. Reports say which. A folder is for one account of all these files.
        :param total_epsilon: what those may cost together: a run beyond it is refused before it begins.
        :raises ArgumentError, DataError, AlignmentError: as in `from_frames`; also a `DataError` when a file is missing
            or cannot be parsed, and an `ArgumentError` when there is no such folder, or there are no such workers.
        """
        _check_parties(schema, paths)
        by = workers_of(workers)
        written = {"separator": separator, "encoding": encoding, "decimal": decimal}
        files = {party: Path(paths[party]) for party in schema.parties}
        kept = account if isinstance(account, bool) else Path(account)
        source = Source(files=files, account=kept, total_epsilon=total_epsilon)
        if spool is None:
            frames = {p: read_table(paths[p], schema, p, **written) for p in schema.parties}
            return cls.from_frames(schema, frames, unmatched=unmatched).computed_by(by).charged_to(source)
        formats = dict.fromkeys(schema.parties, CsvFormat(**written))
        return cls.spooled(schema, paths, formats, spool, unmatched=unmatched, workers=by).charged_to(source)

    @classmethod
    def spooled(
        cls,
        schema: Schema,
        paths: Mapping[str, str | Path],
        written: Mapping[str, CsvFormat],
        spool: str | Path,
        *,
        unmatched: Literal["refuse", "drop"] = "refuse",
        workers: Workers = HERE,
    ) -> "VerticalDataset":
        """`from_files` with a `spool`, where each party's file is `written` in a way of its own."""
        _check_parties(schema, paths)
        into = Spool(spool, findable=workers.count > 0)
        dtypes, encoded, moved = encoded_files(schema, paths, written, into, unmatched, workers)
        return cls(schema.with_dtypes(dtypes), encoded, workers, moved=moved)

    def computed_by(self, workers: object) -> "VerticalDataset":
        """Return the same records, on whose blocks these workers compute: see `from_files`."""
        return dataclasses.replace(self, workers=workers_of(workers))

    def charged_to(self, source: Source | None) -> "VerticalDataset":
        """Return the same records, whose runs in one process are charged to this account."""
        return dataclasses.replace(self, source=source)

    @classmethod
    def from_pooled(cls, schema: Schema, frame: Table) -> "VerticalDataset":
        """Split one pooled table between the parties. Research only: nobody should hold this table.

        The order of records stays. The id column is optional; where it stands it must be unique. The table
        may be of any kind that `from_frames` takes.

        :raises ArgumentError: the table is lazy or of an unknown kind.
        :raises DataError: the table breaks the schema.
        """
        check_schema(schema)
        frame = as_frame(frame, "the pooled table")
        for party, part in schema.parties.items():
            if part.rows is not None:
                raise ArgumentError(f"{Place(party)} has rows, of which a pooled table has none; use from_frames")
        with_id = schema.id_column in frame.columns
        for party in schema.parties:
            check_table(frame, schema, party, need_id=with_id)
        if with_id:
            record_ids(frame, schema, next(iter(schema.parties)))
        encoded = {party: encode_table(frame, schema, party).arrays for party in schema.parties}
        return cls(schema.with_dtypes(_dtypes(schema, dict.fromkeys(schema.parties, frame))), encoded)

    @classmethod
    @checked
    def example(cls, schema: Schema, num_records: int, rng: np.random.Generator) -> "VerticalDataset":
        """Draw records from the public domains alone: a stand-in for tracing models, with no one in it."""
        return cls(schema, {p: example_table(schema, p, num_records, rng) for p in schema.parties})

    @property
    def num_records(self) -> int:
        """Number of records N, the same at every party, public."""
        return len(next(iter(self.encoded[self.parties[0]].values())))

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the schema's order."""
        return tuple(self.schema.parties)

    def arrays(self, party: str) -> dict[str, np.ndarray]:
        """Return one party's arrays ``{column: [N]}``, read-only; masks as ``{column}_observed``.

        Columns that lie on disk are mapped, and narrower than the model's int32: `model_units` widens them.
        """
        if party not in self.encoded:
            raise ArgumentError(f"no party {party!r}; {suggest(party, self.encoded)}")
        return Columns(self.encoded[party], self.workers)

    def pooled(self) -> dict[str, np.ndarray]:
        """Return all parties' arrays together. Research only, not DP: no party may hold this."""
        return {name: array for party in self.parties for name, array in self.encoded[party].items()}

    def take(self, indices: np.ndarray) -> "VerticalDataset":
        """Return the records at integer `indices` (or where a bool mask [N] is True), in that order."""
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or not (chosen.dtype == bool or np.issubdtype(chosen.dtype, np.integer)):
            raise ArgumentError("indices must be a one-dimensional array of integers or booleans")
        taken = {p: {name: a[chosen] for name, a in arrays.items()} for p, arrays in self.encoded.items()}
        return dataclasses.replace(self, encoded=taken)

    @checked
    def split(self, fraction: float, seed: int) -> tuple["VerticalDataset", "VerticalDataset"]:
        """Split the records at random, `fraction` of them first. Research only: the seed is public.

        :raises ArgumentError: one of the parts would be empty.
        """
        if not (0 < fraction < 1 and seed >= 0):
            raise ArgumentError(f"fraction={fraction} must lie between 0 and 1, and seed={seed} be 0 or more")
        first = round(fraction * self.num_records)
        if not 0 < first < self.num_records:
            raise ArgumentError(f"fraction={fraction} leaves a part without records; choose another")
        order = np.random.default_rng(seed).permutation(self.num_records)
        return self.take(order[:first]), self.take(order[first:])

    def restrict(self, party: str) -> "VerticalDataset":
        """Return what one party holds: its own columns under a schema of that party alone."""
        return dataclasses.replace(
            self,
            schema=self.schema.restrict(party),
            encoded={party: self.arrays(party)},
            source=None if self.source is None else self.source.of([party]),
            moved={party: self.moved.get(party, {})},
        )

    def to_frame(self, seed: int = 0) -> pd.DataFrame:
        """Decode the pooled table back to the schema's types. Research only, not DP.

        Bins come back as uniform draws (hence `seed`), and values as the schema clipped or mapped them.
        """
        return decode_table(self.schema, self.pooled(), np.random.default_rng(seed))

    def fingerprint(self) -> str:
        """Return a text that names the public schema and N. Nothing in it depends on a value."""
        return f"{self.schema.digest()}-{self.num_records}"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be pickled: a copy would hold all secret columns, in a file or a process that nobody planned.

        :raises PrivacyError: always.
        """
        raise PrivacyError(
            "a VerticalDataset is not pickled or deep-copied, as its columns are secret and a copy would lie wherever "
            "pickles do; load it from its files where it is needed, or share this one, which nothing changes"
        )

    def __copy__(self) -> "VerticalDataset":
        """Return itself: nothing of it changes."""
        return self

    def __repr__(self) -> str:
        """Show public facts alone: parties, columns, types and N."""
        lines = [f"VerticalDataset({self.num_records} records)"]
        for party, part in self.schema.parties.items():
            described = (f"{name} ({column.kind})" for name, column in part.columns.items())
            lines.append(f"  {party}: {', '.join(described)}")
        return "\n".join(lines)


def _array_names(schema: Schema, party: str) -> list[str]:
    columns = schema.parties[party].columns
    masks = [name + OBSERVED_SUFFIX for name, column in columns.items() if column.masked]
    return [*columns, *masks]


def _dtypes(schema: Schema, frames: Mapping[str, pd.DataFrame]) -> dict[str, str | None]:
    return {
        name: column.dtype if part.rows else dtype_of(pd.Series(frames[party][name]), column, Place(party, name))
        for party, part in schema.parties.items()
        for name, column in part.columns.items()
    }


def _frozen(arrays: Arrays) -> Arrays:
    views = {name: np.asarray(array).view() for name, array in arrays.items()}
    for view in views.values():
        view.setflags(write=False)
    return MappingProxyType(views)


def _check_parties(schema: Schema, tables: Mapping[str, object]) -> None:
    check_schema(schema)
    if not isinstance(tables, Mapping):
        raise ArgumentError(f"{shown(tables)} is no mapping; give {{party: table}} or {{party: path}}")
    for party in schema.parties:
        if party not in tables:
            raise ArgumentError(f"{Place(party)}: has no table; pass one under this name")
    for party in tables:
        if party not in schema.parties:
            raise ArgumentError(f"no party {party!r} in the schema; {suggest(party, schema.parties)}")
