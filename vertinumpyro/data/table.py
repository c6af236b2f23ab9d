"""One party's table: taken from any library's DataFrames and given back in them, checked against the public schema,
encoded, decoded, and one of any length written a block of records at a time, in one block's memory.

No other library than pandas is needed for its tables. What a twin takes of the parties' own tables is their storage
types, so that it can stand in for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from vertinumpyro.core.errors import ArgumentError, DataError, SchemaError
from vertinumpyro.data import storage_types
from vertinumpyro.data.column import Column, Moved, plain
from vertinumpyro.data.schema import Schema
from vertinumpyro.data.schema_checks import Place, closest, suggest
from vertinumpyro.data.schema_parsing import OBSERVED_SUFFIX

_TAKEN = "give a pandas or polars DataFrame, a pyarrow.Table, or a dict of arrays"


class ArrowStream(Protocol):
    """A table that exports itself through Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the capsule."""
        ...


Table: TypeAlias = pd.DataFrame | ArrowStream | Mapping[str, Any]


def as_frame(table: Table, place: str) -> pd.DataFrame:
    """Return a table as a DataFrame; Arrow's types become pandas' arrow-backed ones, dictionaries categories.

    :param table: of one of the kinds in `Table`.
    :param place: what the table is, for the error message, e.g. ``party 'clinic'``.
    :raises ArgumentError: it is of another kind, or lazy; the message says what to call.
    :raises DataError: the arrays of a mapping are not columns of one length.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if isinstance(table, Mapping):
        return _from_arrays(table, place)
    for method in ("collect", "compute"):  # of polars and narwhals; of Dask
        if hasattr(table, method):
            raise ArgumentError(f"{place}: the table is a lazy {type(table).__name__}; pass what .{method}() returns")
    if hasattr(table, "__arrow_c_stream__"):
        return _from_arrow(pa.table(table))
    if to_pandas := getattr(table, "to_pandas", None):
        return to_pandas()
    if hasattr(table, "__dataframe__"):
        return pd.api.interchange.from_dataframe(table)
    raise ArgumentError(f"{place}: the table is a {type(table).__name__}; {_TAKEN}")


def in_kind_of(kind: type, frame: pd.DataFrame) -> Any:
    """Return a DataFrame as a table of the library of a type of tables: polars, pyarrow, or pandas for all others."""
    library = kind.__module__.partition(".")[0]
    if library == "polars":
        import polars

        return polars.from_pandas(frame)
    if library == "pyarrow":
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    return frame


def _from_arrays(arrays: Mapping[str, Any], place: str) -> pd.DataFrame:
    columns = {}
    for name, values in arrays.items():
        # An index is no part of a column: pandas would align two columns by it.
        column = values.reset_index(drop=True) if isinstance(values, pd.Series) else _series(values)
        if column is None:
            raise DataError(f"{place}, column {name!r}: is not a one-dimensional array; give one value per record")
        columns[name] = column
    if len({len(column) for column in columns.values()}) > 1:
        raise DataError(f"{place}, column {_odd_one(columns)!r}: the arrays are not all of one length; align them")
    return pd.DataFrame(columns)


def _series(values: Any) -> pd.Series | None:
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return pd.Series(values)
    array = values if isinstance(values, np.ma.MaskedArray | list | tuple) else np.asarray(values)
    return pd.Series(array) if np.ndim(array) == 1 else None


def _odd_one(columns: Mapping[str, pd.Series]) -> str:
    lengths = [len(column) for column in columns.values()]
    return min(columns, key=lambda name: lengths.count(len(columns[name])))


def _from_arrow(table: Any) -> pd.DataFrame:
    types = [pa.large_string() if kind == pa.string_view() else kind for kind in table.schema.types]  # as polars has
    plain = table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))
    return plain.to_pandas(types_mapper=_storage, ignore_metadata=True)


def _storage(arrow_type: Any) -> Any:
    return None if pa.types.is_dictionary(arrow_type) else pd.ArrowDtype(arrow_type)


_WIDEST = {"nullable": ("Int64", "Float64"), "pyarrow": ("int64[pyarrow]", "double[pyarrow]")}


def dtype_of(series: pd.Series, column: Column, place: Place) -> str | None:
    """Return the name of a storage type for a column like the table's; None where the default is as good.

    The first of the candidates that can hold the column's public domain.

    :raises DataError: the table orders its categories otherwise than the schema.
    """
    if column.dtype is not None:
        return column.dtype
    if isinstance(series.dtype, pd.CategoricalDtype):
        _check_order(series.dtype, column, place)
    default = _stored(column)
    for name in _candidates(series, column):
        try:
            stored = _stored(dataclasses.replace(column, dtype=name))
        except SchemaError:
            continue
        return None if stored == default else name
    return None


def _stored(column: Column) -> Any:
    rng = np.random.default_rng(0)
    return column.decode(column.example(0, rng), rng).dtype


def _candidates(series: pd.Series, column: Column) -> Iterator[str]:
    may_miss, dtype = column.missing != "forbid", series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        listed = any(isinstance(label, bool) for label in column.labels)
        if pd.api.types.is_bool_dtype(dtype.categories.dtype) and not listed:
            yield from _candidates(plain(series.dropna()), column)
        yield storage_types.ORDERED if dtype.ordered else "category"
    elif str(dtype).startswith("dictionary<"):
        yield "category"
    elif isinstance(dtype, np.dtype):
        booleans = dtype.kind == "O" and pd.api.types.infer_dtype(series, skipna=True) == "boolean"
        dtype = np.dtype(bool) if booleans else dtype
        if not (may_miss and dtype.kind in "iu"):
            yield storage_types.name_of(storage_types.nullable(dtype) if may_miss else dtype)
    elif getattr(dtype, "na_value", None) is pd.NA:
        yield storage_types.name_of(dtype)
        yield from _WIDEST["pyarrow" if isinstance(dtype, pd.ArrowDtype) else "nullable"]


def _check_order(dtype: pd.CategoricalDtype, column: Column, place: Place) -> None:
    if not dtype.ordered:
        return
    known = {label: rank for rank, label in enumerate(column.labels)}
    ranks = [known[label] for label in dtype.categories if label in known]
    if ranks != sorted(ranks):
        place.fail(
            "is an ordered category whose order is not the schema's; list the schema's categories in that order, "
            'or set dtype = "category" in the schema'
        )


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
