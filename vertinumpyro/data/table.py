"""One party's table: read it, check it against the public schema, encode it, decode it."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.column import Column
from vertinumpyro.data.schema import OBSERVED_SUFFIX, PartySchema, Schema
from vertinumpyro.data.wording import Place, suggest

#: Texts that a CSV cell may hold for a missing value, unless the schema lists them as categories.
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "<NA>", "#N/A")

_READ_ERRORS = (
    *(OSError, ValueError, TypeError, KeyError, ArithmeticError, RuntimeError, StopIteration),
    csv.Error,
)


def read_table(path: str | Path, schema: Schema, party: str) -> pd.DataFrame:
    """Read a party's id column and its schema columns from a CSV or a Parquet file, nothing else.

    Ids and text categories are read as text, so "007" stays "007". An empty cell, or one of
    `MISSING_TEXTS`, is a missing value.

    Raises:
        DataError: the file is missing, is neither ``.csv`` nor ``.parquet``, cannot be parsed, or lacks a
            column. The message names party and file, never a cell.
    """
    path, place = Path(path), Place(party)
    if not path.is_file():
        place.fail(f"there is no file {str(path)!r}")
    readers = {".csv": (_csv_header, _read_csv), ".parquet": (_parquet_header, _read_parquet)}
    if path.suffix not in readers:
        place.fail(f"{path.name!r} is neither .csv nor .parquet; convert it")
    if path.suffix == ".parquet" and not _has_pyarrow():
        place.fail(f"reading {path.name!r} needs pyarrow; install one that fits your numpy, or use CSV")
    header_of, read = readers[path.suffix]
    header = _quietly(header_of, path)
    if header is None:
        place.fail(f"{path.name!r} cannot be read as {path.suffix}; check its format")
    check_header(header, schema, party)
    frame = _quietly(read, path, schema.id_column, schema.parties[party])
    if frame is None:
        place.fail(f"{path.name!r} cannot be read as {path.suffix}; check its format")
    return frame


def check_header(header: Sequence[object], schema: Schema, party: str, *, need_id: bool = True) -> None:
    """Raise a `DataError` unless the header has the id and every schema column, each once."""
    wanted = [schema.id_column] * need_id + list(schema.column_names(party))
    for name in wanted:
        if name not in header:
            hint = suggest(name, [str(h) for h in header if h not in wanted])
            Place(party, name).fail(f"is not in the table; add it, or rename it ({hint})")
        if sum(h == name for h in header) > 1:
            Place(party, name).fail("occurs twice in the table; keep one")


def check_table(frame: pd.DataFrame, schema: Schema, party: str, *, need_id: bool = True) -> None:
    """Raise a `DataError` unless the table has records and its header is as `check_header` wants it."""
    check_header(list(frame.columns), schema, party, need_id=need_id)
    if len(frame) == 0:
        Place(party).fail("the table has no records; give at least one")


def encode_table(frame: pd.DataFrame, schema: Schema, party: str) -> dict[str, np.ndarray]:
    """Encode a party's columns: ``{name: array [n]}``, and ``{name}_observed`` for masked columns.

    Raises:
        DataError: a value breaks the schema.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, column in schema.parties[party].columns.items():
        series = cast(pd.Series, frame[name])  # check_header saw the name once, so it is no DataFrame
        arrays[name] = column.encode(series, party=party, name=name)
        if column.missing == "mask":
            arrays[name + OBSERVED_SUFFIX] = column.observed(series)
    return arrays


def decode_table(schema: Schema, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> pd.DataFrame:
    """Return encoded arrays, real or synthetic, as one table in the schema's own types.

    Args:
        schema: the public schema.
        arrays: ``{column: [n] model units}`` for every column; a ``{column}_observed`` mask is optional.
        rng: draws within bins. Public randomness: it protects nothing.

    Raises:
        ArgumentError: an array is missing, or holds something that no table encodes to.
    """
    decoded = {}
    for name, column in schema.columns.items():
        if name not in arrays:
            raise ArgumentError(f"arrays has no column {name!r}; {suggest(name, arrays)}")
        decoded[name] = _decode(column, name, arrays, rng)
    return pd.DataFrame(decoded)


def example_table(schema: Schema, party: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw a party's arrays from the public domains alone: stand-ins for tracing a model."""
    arrays: dict[str, np.ndarray] = {}
    for name, column in schema.parties[party].columns.items():
        arrays[name] = column.example(n, rng)
        if column.missing == "mask":
            arrays[name + OBSERVED_SUFFIX] = rng.random(n) < 0.9
    return arrays


def _decode(column: Column, name: str, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> pd.Series:
    try:
        return column.decode(arrays[name], rng, observed=arrays.get(name + OBSERVED_SUFFIX))
    except ArgumentError as error:
        problem = str(error)
    raise ArgumentError(f"column {name!r}: {problem}")


def _quietly(read: Any, *arguments: Any) -> Any:
    # Parsers quote cells in their errors, so theirs are dropped before ours is raised.
    try:
        return read(*arguments)
    except _READ_ERRORS:
        return None


def _csv_header(path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        return next(csv.reader(lines))


def _read_csv(path: Path, id_column: str, part: PartySchema) -> pd.DataFrame:
    labels = {name: getattr(column, "categories", None) or () for name, column in part.columns.items()}
    texts = [name for name, listed in labels.items() if any(isinstance(c, str) for c in listed)]
    missing = {name: [t for t in MISSING_TEXTS if t not in labels[name]] for name in labels}
    return pd.read_csv(
        path,
        usecols=[id_column, *labels],
        dtype=dict.fromkeys([id_column, *texts], str),
        na_values={id_column: [""], **missing},
        keep_default_na=False,
        encoding="utf-8-sig",
        index_col=False,
        low_memory=False,
    )


def _has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _parquet_header(path: Path) -> list[str]:
    import pyarrow.parquet  # here, because a CSV user needs none of it

    return pyarrow.parquet.read_schema(path).names


def _read_parquet(path: Path, id_column: str, part: PartySchema) -> pd.DataFrame:
    return pd.read_parquet(path, columns=[id_column, *part.columns])
