"""Storage types of columns: those of decoded ones by name, as the public schema may say them, and what values are.

A name is pandas' own (``"int16"``, ``"boolean"``, ``"string[python]"``, ``"float[pyarrow]"``), ``"category"``, or
``"category[ordered]"`` for categories in the schema's order. ``"utf8[pyarrow]"`` is Arrow's plain string, whose own
name pandas reads as something else.
"""

import datetime
import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vertinumpyro.core.errors import SchemaError

Dtype = np.dtype | ExtensionDtype
DtypeKind = Literal["boolean", "integer", "float", "text", "time", "category", "object", "other"]

ORDERED = "category[ordered]"


@functools.cache
def parse(name: str) -> Dtype:
    """Return the type of a name, or raise a `SchemaError`."""
    if name == ORDERED:
        return pd.CategoricalDtype(ordered=True)
    try:
        return pd.api.types.pandas_dtype(name)
    except (TypeError, ValueError, NotImplementedError, ImportError):
        pass
    needs = "; types of pyarrow need pyarrow" if "pyarrow" in name else ""
    raise SchemaError(f'dtype = {name!r} is unknown{needs}; give e.g. "int16", "float32", "boolean" or "category"')


def kind(dtype: Dtype) -> DtypeKind:
    """Return what a type stores."""
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if isinstance(dtype, pd.StringDtype) or (isinstance(dtype, pd.ArrowDtype) and dtype.type is str):
        return "text"
    if isinstance(dtype, pd.SparseDtype):
        return "other"
    if _is_time(dtype):
        return "time"
    if dtype == np.dtype(object):
        return "object"
    if pd.api.types.is_bool_dtype(dtype):
        return "boolean"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    return "float" if pd.api.types.is_float_dtype(dtype) and number_type(dtype).itemsize <= 8 else "other"


def _is_time(dtype: Dtype) -> bool:
    """Dates, and times without a zone."""
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.type in (datetime.date, datetime.datetime, pd.Timestamp) and not getattr(
            dtype.pyarrow_dtype, "tz", None
        )
    return isinstance(dtype, np.dtype) and dtype.kind == "M"


def number_type(dtype: Dtype) -> np.dtype:
    """Return the NumPy type that holds a numeric type's values."""
    of_extension: Any = getattr(dtype, "numpy_dtype", dtype)
    return np.dtype(of_extension)


def holds(number_type: np.dtype, numbers: Sequence[object]) -> bool:
    """Whether a type of numbers holds all of these exactly."""
    exact = np.asarray(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((exact.astype(number_type) == exact).all())


def nullable(dtype: Dtype) -> Dtype:
    """Return the type itself where it can hold a missing value, otherwise pandas' type of the same width that can."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biu":
        return dtype
    name = "boolean" if dtype.kind == "b" else dtype.name.replace("i", "I").replace("u", "U")
    return parse(name)


def name_of(dtype: Dtype) -> str:
    """Return the name that `parse` reads back; only of types that are not categories."""
    if isinstance(dtype, pd.StringDtype):
        return f"string[{dtype.storage}]"
    return "utf8[pyarrow]" if str(dtype) == "string[pyarrow]" else dtype.name


def are_present(series: pd.Series) -> np.ndarray:
    """Which of the values are not missing."""
    if pd.api.types.is_float_dtype(series.dtype) and pd.api.types.is_extension_array_dtype(series.dtype):
        # Nullable and Arrow storage tell NaN from NA; both are missing values here.
        return ~np.isnan(series.to_numpy(dtype=np.float64, na_value=np.nan))
    return series.notna().to_numpy(dtype=bool)


def are_texts(series: pd.Series) -> np.ndarray:
    """Which of the values, none missing, are texts."""
    if pd.api.types.infer_dtype(series, skipna=False) == "string":
        return np.ones(len(series), bool)
    return series.map(lambda value: isinstance(value, str)).to_numpy(bool)
