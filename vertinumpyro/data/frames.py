"""Tables of other libraries as pandas DataFrames and back, with a dependency on none of them.

Taken are a pandas DataFrame, a mapping from column names to arrays, and whatever has Arrow's PyCapsule method
``__arrow_c_stream__``, as tables of polars, pyarrow and DuckDB do. Arrow carries types, nulls and categories exactly,
so no adapter library is needed. Other frames make a DataFrame of themselves, by ``to_pandas`` or the older interchange
protocol ``__dataframe__``.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from vertinumpyro.core.errors import ArgumentError, DataError

_TAKEN = "give a pandas or polars DataFrame, a pyarrow.Table, or a dict of arrays"


class ArrowStream(Protocol):
    """A table that exports itself through Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the capsule."""
        ...


Table: TypeAlias = pd.DataFrame | ArrowStream | Mapping[str, Any]


def as_frame(table: Table, place: str) -> pd.DataFrame:
    """Return a table as a DataFrame; Arrow's types become pandas' arrow-backed ones, dictionaries categories.

    Args:
        table: one of the kinds that the module names.
        place: what the table is, for the error message, e.g. ``party 'clinic'``.

    Raises:
        ArgumentError: it is of another kind, or lazy; the message says what to call.
        DataError: the arrays of a mapping are not columns of one length.
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
