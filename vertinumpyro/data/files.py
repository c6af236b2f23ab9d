"""A party's file: CSV or Parquet, read as far as the schema wants it, or named for what it looks like.

Parsers quote cells in their errors, so theirs are dropped, and a guess takes their place: at the encoding, at the
separator, at how numbers are written. A guess is only ever told, never followed: it would be one about data.
"""

import csv
import dataclasses
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import checked
from vertinumpyro.data import text_formats
from vertinumpyro.data.column import Column
from vertinumpyro.data.schema import Schema, check_schema
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.data.table import check_header
from vertinumpyro.data.text_formats import numbers_as_text

#: Texts that a CSV cell may hold for a missing value, unless the schema lists them as categories.
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_OF_CSV = {".csv": ",", ".tsv": "\t", ".csv.gz": ",", ".tsv.gz": "\t"}
_READ_ERRORS = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, ArithmeticError, RuntimeError, StopIteration),
    *(csv.Error, zlib.error),
)
_EXCELS_SEPARATOR = re.compile(r'\A\ufeff?"?sep=."?\r?\n', re.IGNORECASE)  # a line that only Excel writes
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """How a file is written; of Parquet its ids' name alone.

    :param separator: the character between fields; None is a tab in a ``.tsv`` and a comma otherwise.
    :param encoding: Python's name of the text's encoding.
    :param decimal: the decimal mark, "." or ",".
    :param id_column: what the file calls its ids; None is the schema's name for them.
    :raises ArgumentError: names the argument.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    id_column: str | None = None

    def ids(self, schema: Schema, party: str) -> str:
        """The ids' name in the file.

        :raises ArgumentError: it is the name of another column.
        """
        found = schema.id_column if self.id_column is None else self.id_column
        if found in schema.restrict(party).columns:
            raise ArgumentError(
                f"id_column = {found!r} is a column of the schema; {Place(party)}'s ids need one of their own"
            )
        return found

    def __post_init__(self) -> None:
        """Check each argument."""
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise ArgumentError(f"separator = {self.separator!r}; give one character, no quote and no end of line")
        if self.decimal not in (".", ","):
            raise ArgumentError(f'decimal = {self.decimal!r}; give "." or ","')
        if self.separator == self.decimal == ".":
            raise ArgumentError("separator and decimal are both '.'; they must differ")
        if not text_formats.is_known(self.encoding):
            raise ArgumentError(f'encoding = {self.encoding!r} is unknown; give e.g. "utf-8", "cp1252" or "utf-16"')


@checked
def read_table(
    path: str | Path,
    schema: Schema,
    party: str,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
    id_column: str | None = None,
) -> pd.DataFrame:
    """Read a party's id column and its schema columns from a CSV or a Parquet file, nothing else.

    Ids and text categories are read as text, so "007" stays "007". An empty cell, or one of
    `MISSING_TEXTS`, is a missing value.

    :param path: ends in ``.csv``, ``.tsv``, one of these with ``.gz``, or ``.parquet``.
    :param schema: the public schema.
    :param party: whose table it is.
    :param separator: as in `CsvFormat`, and so are `encoding` and `decimal`.
    :param encoding: see there.
    :param decimal: see there.
    :param id_column: the ids' name in this file, where it is not the schema's, which the returned table has.
    :raises ArgumentError: an argument names no separator, encoding or decimal mark, or the id column is another column.
    :raises DataError: the file is missing, has another ending, cannot be parsed, or lacks a column. The message names
        party, file and what the file looks like, never a cell.
    """
    csv_format = CsvFormat(separator=separator, encoding=encoding, decimal=decimal, id_column=id_column)
    check_schema(schema)
    return _read(Path(path), schema, party, schema.restrict(party).parties[party].sources, csv_format)


def read_blocks(
    path: str | Path, schema: Schema, party: str, csv_format: CsvFormat, *, rows: int, columns: bool = True,
    groups: Sequence[int] | None = None,
) -> Iterator[pd.DataFrame]:  # fmt: skip
    """Read what `read_table` reads, `rows` records at a time; without `columns` the ids alone.

    Of some of a file's `row_groups` alone, if `groups` has their numbers.

    A block's storage types may differ from the next one's where the whole file's follow from all of its values.
    Errors as `read_table`'s, raised as far into the file as its reader gets.
    """
    wanted = schema.parties[party].sources if columns else {}
    own_ids = csv_format.ids(schema, party)
    file = _checked_file(Path(path), own_ids, party, wanted, csv_format)
    blocks = file.blocks(own_ids, wanted, rows, groups)
    while (more := _quietly(lambda: list(itertools.islice(blocks, 1)))) is not None:
        if not more:
            return
        yield _readable(more[0], schema, wanted, party, csv_format)
    _unreadable(file, [own_ids, *wanted], party)


def row_groups(path: str | Path, party: str) -> list[int]:
    """How many records each group of a file has that can be read by itself; empty where it has none such."""
    file = _file(Path(path), CsvFormat(), Place(party))
    return [] if isinstance(file, _Csv) else _quietly(file.groups) or []


def read_ids(
    path: str | Path,
    schema: Schema,
    party: str,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
    id_column: str | None = None,
) -> pd.DataFrame:
    """Read a party's id column alone, as `read_table` does; each id once, ascending, where rows become records."""
    csv_format = CsvFormat(separator=separator, encoding=encoding, decimal=decimal, id_column=id_column)
    ids = _read(Path(path), schema, party, {}, csv_format)
    if schema.parties[party].rows is None:
        return ids
    return ids.drop_duplicates().sort_values(schema.id_column, ignore_index=True)


def read_everything(
    path: str | Path,
    party: str,
    id_column: str,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    decimal: str = ".",
) -> pd.DataFrame:
    """Read all columns of a file, those of a CSV file as texts, for a draft of a schema; errors as `read_table`'s."""
    file = _file(Path(path), CsvFormat(separator=separator, encoding=encoding, decimal=decimal), Place(party))
    header = _checked_header(file, [id_column], party, "name the column of ids with --id")
    for name in header:
        if name and header.count(name) > 1:
            Place(party, name).fail("occurs twice in the table; rename one")
    frame = _quietly(file.read_everything)
    if frame is None:
        _unreadable(file, [id_column], party)
    # what a separator at the end of each line makes, or a table's index, has no name
    return pd.DataFrame(frame.loc[:, [bool(name) for name in header]])


def _read(path: Path, schema: Schema, party: str, columns: Mapping[str, Column], csv_format: CsvFormat) -> pd.DataFrame:
    own_ids = csv_format.ids(schema, party)
    file = _checked_file(path, own_ids, party, columns, csv_format)
    frame = _quietly(file.read, own_ids, columns)
    if frame is None:
        _unreadable(file, [own_ids, *columns], party)
    return _readable(frame, schema, columns, party, csv_format)


def _checked_file(
    path: Path, own_ids: str, party: str, columns: Mapping[str, Column], csv_format: CsvFormat
) -> "_Csv | _Parquet":
    file = _file(path, csv_format, Place(party))
    of_ids = f"say what it calls the ids (id_column.{party} under [data])"
    header = _checked_header(file, [own_ids, *columns], party, of_ids)
    if _quietly(file.overflows, header):
        Place(party).fail(
            f"{path.name!r} has rows of more fields than the header; set the separator, or quote numbers with "
            'decimal commas and set decimal = ","'
        )
    return file


def _readable(
    frame: pd.DataFrame, schema: Schema, columns: Mapping[str, Column], party: str, csv_format: CsvFormat
) -> pd.DataFrame:
    frame = frame.rename(columns={csv_format.ids(schema, party): schema.id_column})
    for name, column in columns.items():
        if written := numbers_as_text(pd.Series(frame[name]), column, csv_format.decimal):
            Place(party, name).fail(written)
    return frame


def _checked_header(file: "_Csv | _Parquet", wanted: Sequence[str], party: str, of_ids: str) -> list[str]:
    """The names of a file's columns, all that are wanted among them.

    :param wanted: the ids' name first.
    :param of_ids: what to do where that is missing.
    """
    header = _quietly(file.header)
    if (header is None or not set(wanted) <= set(header)) and (looks := _quietly(file.looks, wanted)):
        Place(party).fail(f"{file.path.name!r} {looks}")
    if header is None:
        _unreadable(file, wanted, party)
    check_header(header, wanted, party, {wanted[0]: of_ids})
    return header


def _unreadable(file: "_Csv | _Parquet", wanted: Sequence[str], party: str) -> NoReturn:
    looks = _quietly(file.looks, wanted)
    Place(party).fail(f"{file.path.name!r} {looks or f'cannot be read as {file.suffix}; check its format'}")


def _file(path: Path, csv_format: CsvFormat, place: Place) -> "_Csv | _Parquet":
    if path.is_dir():
        place.fail(f"{str(path)!r} is a folder; give the file in it")
    if not path.is_file():
        place.fail(f"there is no file {str(path)!r}")
    for suffix, separator in _OF_CSV.items():
        if path.name.lower().endswith(suffix):
            usual = separator if csv_format.separator is None else csv_format.separator
            return _Csv(path, suffix, dataclasses.replace(csv_format, separator=usual))
    if path.suffix.lower() != ".parquet":
        place.fail(f"{path.name!r} is neither {', '.join(_OF_CSV)} nor .parquet; convert it")
    if not _has_pyarrow():
        place.fail(f"reading {path.name!r} needs pyarrow; install one that fits your numpy, or use CSV")
    return _Parquet(path)


def _quietly(read: Callable[..., _Result], *arguments: Any) -> _Result | None:
    try:
        return read(*arguments)
    except _READ_ERRORS:
        return None


@dataclasses.dataclass(frozen=True)
class _Csv:
    path: Path
    suffix: str
    written: CsvFormat

    def header(self) -> list[str]:
        with self._open("rt") as lines:
            return next(csv.reader(lines, delimiter=str(self.written.separator)))

    def overflows(self, header: Sequence[str]) -> bool:
        """Whether a row has more fields than the header, empty ones at its end left out.

        pandas drops them without a word where it reads chosen columns: "1,5" would become 1.
        """
        with self._open("rt") as lines:
            rows = csv.reader(lines, delimiter=str(self.written.separator))
            return any(len(row) > len(header) and any(row[len(header) :]) for row in rows)

    def read(self, id_column: str, columns: Mapping[str, Column]) -> pd.DataFrame:
        with self._open("rt") as lines:
            return pd.read_csv(lines, **self._options(id_column, columns))

    def blocks(
        self, id_column: str, columns: Mapping[str, Column], rows: int, groups: Sequence[int] | None
    ) -> Iterator[pd.DataFrame]:
        with self._open("rt") as lines:
            yield from pd.read_csv(lines, chunksize=rows, **self._options(id_column, columns))

    def _options(self, id_column: str, columns: Mapping[str, Column]) -> dict[str, Any]:
        texts = [name for name, column in columns.items() if "text" in column.dtype_kinds]
        missing = {
            name: [*(t for t in MISSING_TEXTS if t not in column.labels), *map(str, column.missing_codes)]
            for name, column in columns.items()
        }
        return {
            "usecols": [id_column, *columns],
            "dtype": dict.fromkeys([id_column, *texts], str),
            "na_values": {id_column: [""], **missing},
            "keep_default_na": False,
            "sep": self.written.separator,
            "decimal": self.written.decimal,
            "index_col": False,
            "low_memory": False,
        }

    def read_everything(self) -> pd.DataFrame:
        """Every cell as its text."""
        with self._open("rt") as lines:
            return pd.read_csv(lines, dtype=str, keep_default_na=False, sep=self.written.separator, index_col=False)

    def looks(self, wanted: Sequence[str]) -> str:
        """What the file looks like, other than `written`; empty where it looks like that."""
        with self.path.open("rb") as file:
            begins = text_formats.other_format(file.read(2))
        if self.suffix.endswith(".gz") and begins != text_formats.GZIP:
            return f"is not compressed: let its name end in {self.suffix.removesuffix('.gz')}"
        with self._open("rb") as file:
            content: bytes = file.read()
        if other := text_formats.other_format(content):
            return f"is {other}"
        found, encoding = [], self.written.encoding
        if text_formats.contradicts(content, encoding):
            encoding = text_formats.suspected(content)
            found.append(f'looks like {encoding} text: set encoding = "{encoding}", or save it as UTF-8')
        text = content.decode(encoding, errors="replace").lstrip("\ufeff")
        first_line = _EXCELS_SEPARATOR.sub("", text, count=1).partition("\n")[0]
        marks = dict.fromkeys([str(self.written.separator), *_SEPARATORS])  # of two that fit alike, the stated one
        fields = {mark: next(csv.reader([first_line], delimiter=mark), []) for mark in marks}
        best = max(fields, key=lambda mark: len(set(fields[mark]) & set(wanted)))
        if best != self.written.separator:
            shown = best.replace("\t", "\\t")
            renamed = ", or name it .tsv" if best == "\t" else ""
            found.append(f'looks separated by {_SEPARATORS[best]}: set separator = "{shown}"{renamed}')
        if not found and content.count(b'"') % 2:
            found.append("has a quote that does not close: look for a field that begins with one")
        return "; ".join(found)

    def _open(self, mode: str) -> IO[Any]:
        opened: Any = gzip.open if self.suffix.endswith(".gz") else open
        if mode == "rb":
            return opened(self.path, mode)
        encoding = "utf-8-sig" if text_formats.same(self.written.encoding, "utf-8") else self.written.encoding
        lines = opened(self.path, mode, encoding=encoding, newline="")
        if _EXCELS_SEPARATOR.fullmatch(lines.readline()):
            return lines
        lines.close()
        return opened(self.path, mode, encoding=encoding, newline="")


@dataclasses.dataclass(frozen=True)
class _Parquet:
    path: Path
    suffix: str = ".parquet"

    def header(self) -> list[str]:
        import pyarrow.parquet  # here, because a CSV user needs none of it

        return pyarrow.parquet.read_schema(self.path).names

    def overflows(self, header: Sequence[str]) -> bool:
        return False

    def read(self, id_column: str, columns: Mapping[str, Column]) -> pd.DataFrame:
        return pd.read_parquet(self.path, columns=[id_column, *columns])

    def groups(self) -> list[int]:
        import pyarrow.parquet

        found = pyarrow.parquet.read_metadata(self.path)
        return [found.row_group(number).num_rows for number in range(found.num_row_groups)]

    def blocks(
        self, id_column: str, columns: Mapping[str, Column], rows: int, groups: Sequence[int] | None
    ) -> Iterator[pd.DataFrame]:
        import pyarrow as pa
        import pyarrow.parquet

        alone = groups is None  # who reads some groups is one of several
        wanted = {"row_groups": groups, "columns": [id_column, *columns], "use_threads": alone}
        with pyarrow.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=rows, **wanted):
                yield pa.Table.from_batches([batch]).to_pandas(use_threads=alone)

    def read_everything(self) -> pd.DataFrame:
        """As stored."""
        return pd.read_parquet(self.path)

    def looks(self, wanted: Sequence[str]) -> str:
        return ""


def _has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True
