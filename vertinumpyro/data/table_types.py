"""Storage types that a twin takes from the parties' tables, so that it can stand in for them.

A table's types are taken as public, with one exception: what readers choose from the values. A column of integers
is stored as floats as soon as a value is missing, and booleans as objects; a CSV reader stores reals as integers
when all of them are whole. `dtype_of` gives one answer to all of these, so a type never tells of one record. It
does follow a width that was chosen from the values (``pandas.to_numeric(downcast=...)``), which tells their
range; a `dtype` in the schema comes first and keeps that out.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import SchemaError
from vertinumpyro.data import dtypes
from vertinumpyro.data.column import Column, plain
from vertinumpyro.data.wording import Place

_WIDEST = {"nullable": ("Int64", "Float64"), "pyarrow": ("int64[pyarrow]", "double[pyarrow]")}


def dtype_of(series: pd.Series, column: Column, place: Place) -> str | None:
    """Return the name of a storage type for a column like the table's; None where the default is as good.

    The first of the candidates that can hold the column's public domain.

    Raises:
        DataError: the table orders its categories otherwise than the schema.
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
        yield dtypes.ORDERED if dtype.ordered else "category"
    elif str(dtype).startswith("dictionary<"):
        yield "category"
    elif isinstance(dtype, np.dtype):
        booleans = dtype.kind == "O" and pd.api.types.infer_dtype(series, skipna=True) == "boolean"
        dtype = np.dtype(bool) if booleans else dtype
        if not (may_miss and dtype.kind in "iu"):
            yield dtypes.name_of(dtypes.nullable(dtype) if may_miss else dtype)
    elif getattr(dtype, "na_value", None) is pd.NA:
        yield dtypes.name_of(dtype)
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
