"""One party's table: check it against the public schema, encode it, decode it, and write one of any length a block of
records at a time, in one block's memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.column import Column, Moved
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_checks import Place, closest, suggest
from vertinumpyro.data.schema_parsing import OBSERVED_SUFFIX


def check_header(
    header: Sequence[object], wanted: Sequence[str], party: str, remedies: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise a `DataError` unless a table's header has every wanted column once.

    :param header: its names.
    :param wanted: those it must have.
    :param party: whose it is.
    :param remedies: for a wanted name, what may be done instead where it is missing.
    """
    others = [str(name) for name in header if name not in wanted]
    for name in wanted:
        instead = f", or {remedies[name]}" if name in remedies else ""
        told = f" If so, {remedies[name]}" if name in remedies else ""
        if name not in header and len(others) == len(header):
            # Without a header, a file's first record stands there: nothing of it may be quoted.
            Place(party, name).fail(
                f"is not in the table, and neither is any other; does the first line hold the names?{told}"
            )
        if name not in header:
            Place(party, name).fail(f"is not in the table; add it, or rename it{instead}{closest(name, others)}")
        if sum(other == name for other in header) > 1:
            Place(party, name).fail("occurs twice in the table; keep one")


def check_table(frame: pd.DataFrame, schema: Schema, party: str, *, need_id: bool = True) -> None:
    """Raise a `DataError` unless the table has records and its header is as `check_header` wants it."""
    if need_id and schema.id_column not in frame.columns and schema.id_column in frame.index.names:
        Place(party, schema.id_column).fail("is the table's index; make it a column with reset_index()")
    check_header(list(frame.columns), [schema.id_column] * need_id + list(schema.column_names(party)), party)
    if len(frame) == 0:
        Place(party).fail("the table has no records; give at least one")


class EncodedTable(NamedTuple):
    """A party's records. Secret.

    arrays: ``{name: array [n]}``, and ``{name}_observed`` for masked columns.
    moved:  by column with ends, how many values lie beyond these. NOT DP.
    """

    arrays: dict[str, np.ndarray]
    moved: dict[str, Moved]


def encode_table(frame: pd.DataFrame, schema: Schema, party: str) -> EncodedTable:
    """Encode a party's columns.

    :raises DataError: a value breaks the schema.
    """
    arrays: dict[str, np.ndarray] = {}
    found: dict[str, Moved] = {}
    for name, column in schema.parties[party].columns.items():
        series = cast(pd.Series, frame[name])  # check_header saw the name once, so it is no DataFrame
        arrays[name], moved = column.encode_counted(series, party=party, name=name)
        found |= {} if moved is None else {name: moved}
        if column.masked:
            arrays[name + OBSERVED_SUFFIX] = column.observed(series)
    return EncodedTable(arrays, found)


def check_moved(moved: Mapping[str, Moved], party: str) -> None:
    """Refuses a column of which every value lies beyond its ends.

    :raises DataError: names it.
    """
    for name, found in moved.items():
        if found.count == found.of > 0:
            Place(party, name).fail(
                "holds no value within its bounds, so that all would count as an end; repair bounds or unit"
            )


def decode_table(schema: Schema, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> pd.DataFrame:
    """Return encoded arrays, real or synthetic, as one table in the storage types that the schema says.

    A value is missing where its code is that of the missing category, or its mask is False.

    :param schema: the public schema.
    :param arrays: ``{column: [n] model units}`` for every column; a ``{column}_observed`` mask is optional.
    :param rng: draws within bins. Public randomness: it protects nothing.
    :raises ArgumentError: an array is missing, or holds something that no table encodes to.
    """
    decoded = {}
    for name, column in schema.columns.items():
        if name not in arrays:
            raise ArgumentError(f"arrays has no column {name!r}; {suggest(name, arrays)}")
        decoded[name] = _decode(column, name, arrays, rng)
    return pd.DataFrame(decoded)


def model_units(array: np.ndarray) -> np.ndarray:
    """An encoded column in the type that models see: codes that are kept in narrower integers become int32."""
    narrow = array.dtype.kind == "i" and array.dtype.itemsize < 4
    return array.astype(np.int32) if narrow else array


def example_table(schema: Schema, party: str, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw a party's arrays from the public domains alone: stand-ins for tracing a model."""
    arrays: dict[str, np.ndarray] = {}
    for name, column in schema.parties[party].columns.items():
        arrays[name] = column.example(n, rng)
        if column.masked:
            arrays[name + OBSERVED_SUFFIX] = rng.random(n) < 0.9
    return arrays


def _decode(column: Column, name: str, arrays: Mapping[str, np.ndarray], rng: np.random.Generator) -> pd.Series:
    try:
        return column.decode(arrays[name], rng, observed=arrays.get(name + OBSERVED_SUFFIX))
    except ArgumentError as error:
        problem = str(error)
    raise ArgumentError(f"column {name!r}: {problem}")


Write: TypeAlias = Callable[[pd.DataFrame], None]


def check_target(path: Path) -> None:
    """Refuses a name that ends in neither .csv nor .parquet, and one in a folder that does not exist.

    :raises ArgumentError: says which.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"{path.name} is neither .csv nor .parquet; choose one")
    if not path.parent.is_dir():
        raise ArgumentError(f"there is no folder {str(path.parent)!r}; create it first")


@contextlib.contextmanager
def table_writer(path: Path) -> Iterator[Write]:
    """Inside, call what it gives with one block of records after the other; all have the same columns and types.

    The file is what one block with all records would be, but for Parquet's row groups, of which each block has its own.

    :raises ArgumentError: as `check_target`.
    """
    check_target(path)
    with contextlib.ExitStack() as opened:
        yield _csv(path, opened) if path.suffix == ".csv" else _parquet(path, opened)


def write_in_blocks(path: Path, blocks: Iterable[pd.DataFrame]) -> None:
    """One table, a block of its records after the other.

    :raises ArgumentError: as `check_target`.
    """
    with table_writer(path) as write:
        for frame in blocks:
            write(frame)


def _csv(path: Path, opened: contextlib.ExitStack) -> Write:
    file = opened.enter_context(path.open("w", encoding="utf-8", newline=""))

    def write(frame: pd.DataFrame) -> None:
        frame.to_csv(file, index=False, header=not file.tell())

    return write


def _parquet(path: Path, opened: contextlib.ExitStack) -> Write:
    import pyarrow as pa  # here, because a CSV user needs none of it
    import pyarrow.parquet

    writer: list[Any] = []

    def write(frame: pd.DataFrame) -> None:
        schema = writer[0].schema if writer else None
        block = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if not writer:
            writer.append(opened.enter_context(pyarrow.parquet.ParquetWriter(path, block.schema)))
        writer[0].write_table(block)

    return write
