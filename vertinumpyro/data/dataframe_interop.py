"""Tables of other libraries as pandas DataFrames and back, with a dependency on none of them; and the storage types
that a twin takes from the parties' tables, so that it can stand in for them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from vertinumpyro.core.errors import ArgumentError, DataError, SchemaError
from vertinumpyro.data import storage_types
from vertinumpyro.data.column import Column, plain
from vertinumpyro.data.schema_checks import Place

_TAKEN = "give a pandas or polars DataFrame, a pyarrow.Table, or a dict of arrays"


class ArrowStream(Protocol):
    """A table that exports itself through Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the capsule."""
        ...


Table: TypeAlias = pd.DataFrame | ArrowStream | Mapping[str, Any]


def as_frame(table: Table, place: str) -> pd.DataFrame:
    """Return a table as a DataFrame; Arrow's types become pandas' arrow-backed ones, dictionaries categories.

    :param table: one of the kinds that the module names.
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
