"""A twin has the storage types of its table, where they say nothing about single values."""

import contextlib
import dataclasses
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.strategies import columns
from tests.data.test_schema import TEXT
from vertinumpyro.core.errors import DataError, SchemaError
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
    decode_table,
)
from vertinumpyro.data import storage_types as dtypes

pytest.importorskip("pyarrow", exc_type=ImportError)

WORDS = CategoricalColumn(categories=("low", "mid", "high"))
INTEGER = IntegerColumn(bounds=(0, 200))
REAL = RealColumn(bounds=(0, 1))


def schema_of(column):
    return Schema({"clinic": PartySchema({"x": column})})


def dataset_of(column, series):
    return VerticalDataset.from_pooled(schema_of(column), pd.DataFrame({"x": series}))


def twin_of(dataset, n=40):
    arrays = VerticalDataset.example(dataset.schema, n, np.random.default_rng(0)).pooled()
    return decode_table(dataset.schema, {"x": arrays["x"]}, np.random.default_rng(1))["x"]


def ordered(values, categories=("low", "mid", "high")):
    return pd.Series(pd.Categorical(values, categories=list(categories), ordered=True))


KEPT = {
    "bool": (BinaryColumn(), pd.Series([True, False])),
    "nullable bool": (BinaryColumn(missing="mask"), pd.Series([True, None], dtype="boolean")),
    "arrow bool": (BinaryColumn(), pd.Series([True, False], dtype="bool[pyarrow]")),
    "small binary": (BinaryColumn(), pd.Series([0, 1], dtype="int8")),
    "listed bool": (BinaryColumn(categories=(False, True)), pd.Series([True, False], dtype="boolean")),
    "int16": (INTEGER, pd.Series([3, 150], dtype="int16")),
    "uint8": (INTEGER, pd.Series([3, 150], dtype="uint8")),
    "Int16": (dataclasses.replace(INTEGER, missing="mask"), pd.Series([3, None], dtype="Int16")),
    "arrow int16": (dataclasses.replace(INTEGER, missing="category"), pd.Series([3, None], dtype="int16[pyarrow]")),
    "grouped": (IntegerColumn(bounds=(0, 10**6), bins=9), pd.Series([3, 150], dtype="int32")),
    "count": (CountColumn(upper=40_000), pd.Series([3, 150], dtype="uint16")),
    "numbered categories": (CategoricalColumn(categories=(3, 5)), pd.Series([3, 5], dtype="int8")),
    "float categories": (CategoricalColumn(categories=(0.5, 5)), pd.Series([0.5, 5], dtype="float32")),
    "float32": (REAL, pd.Series([0.1, 0.2], dtype="float32")),
    "float16": (REAL, pd.Series([0.1, 0.2], dtype="float16")),
    "masked float32": (dataclasses.replace(REAL, missing="mask"), pd.Series([0.1, None], dtype="float32")),
    "Float32": (dataclasses.replace(REAL, missing="mask"), pd.Series([0.1, None], dtype="Float32")),
    "arrow float": (REAL, pd.Series([0.1, 0.2], dtype="float[pyarrow]")),
    "binned float32": (BinnedColumn(edges=(0, 0, 0.1, 60)), pd.Series([0.0, 9.0], dtype="float32")),
    "string": (WORDS, pd.Series(["low", "mid"], dtype="string")),
    "python string": (WORDS, pd.Series(["low", "mid"], dtype=pd.StringDtype("python"))),
    "arrow string": (WORDS, pd.Series(["low", "mid"]).astype("utf8[pyarrow]")),
    "arrow large string": (WORDS, pd.Series(["low", "mid"]).astype("large_string[pyarrow]")),
    "object": (WORDS, pd.Series(["low", "mid"], dtype=object)),
    "masked object": (dataclasses.replace(WORDS, missing="category"), pd.Series(["low", None], dtype=object)),
    "default": (WORDS, pd.Series(["low", "mid"])),
    "category": (WORDS, pd.Series(pd.Categorical(["low", "high", "mid"], categories=["low", "mid", "high"]))),
    "ordered": (WORDS, ordered(["low", "mid"])),
    "masked ordered": (dataclasses.replace(WORDS, missing="mask"), ordered(["low", None])),
    "category of integers": (IntegerColumn(bounds=(1, 3)), pd.Series(pd.Categorical([1, 2, 3]))),
    "binary category": (BinaryColumn(categories=("low", "mid")), ordered(["low", "mid"], ["low", "mid"])),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_type_of_the_table_is_the_type_of_the_twin(case):
    column, series = KEPT[case]
    dataset = dataset_of(column, series)
    assert twin_of(dataset).dtype == series.dtype
    back = dataset.to_frame()["x"]
    assert back.dtype == series.dtype
    assert back.isna().tolist() == series.isna().tolist()
    stored = Schema.from_toml(dataset.schema.to_toml())
    assert stored == dataset.schema == pickle.loads(pickle.dumps(dataset.schema))
    empty = {"x": np.zeros(0, dataset.pooled()["x"].dtype)}
    assert decode_table(stored, empty, np.random.default_rng())["x"].dtype == series.dtype


CHANGED = {
    "booleans with None": (BinaryColumn(missing="mask"), pd.Series([True, None], dtype=object), "boolean"),
    "booleans, none missing": (BinaryColumn(missing="mask"), pd.Series([True, False]), "boolean"),
    "too narrow": (INTEGER, pd.Series([3, 100], dtype="int8"), "int64"),
    "too narrow, nullable": (INTEGER, pd.Series([3, 100], dtype="Int8"), "Int64"),
    "too narrow, arrow": (INTEGER, pd.Series([3, 100], dtype="int8[pyarrow]"), "int64[pyarrow]"),
    "whole reals": (REAL, pd.Series([0, 1]), "float64"),
    "whole reals, nullable": (REAL, pd.Series([0, 1], dtype="Int64"), "Float64"),
    "whole reals, arrow": (REAL, pd.Series([0, 1], dtype="int64[pyarrow]"), "double[pyarrow]"),
    "integers as floats": (INTEGER, pd.Series([0.0, 1.0]), "int64"),
    "integers as Floats": (INTEGER, pd.Series([0, 1], dtype="Float32"), "Int64"),
    "0.1 is no float32": (CategoricalColumn(categories=(0.1, 0.5)), pd.Series([0.5], dtype="float32"), "float64"),
    "an atom that is no float32": (BinnedColumn(edges=(0, 0.1, 0.1, 1)), pd.Series([0], dtype="float32"), "float64"),
    "bounds past float16": (RealColumn(bounds=(0, 1e6)), pd.Series([0.5], dtype="float16"), "float64"),
    "bins below float16": (BinnedColumn(bounds=(1000, 1001), bins=9), pd.Series([1e3], dtype="float16"), "float64"),
    "wide category": (CountColumn(upper=10**6), pd.Series(pd.Categorical([1, 2])), "int64"),
    "category of reals": (REAL, pd.Series(pd.Categorical([0.5, 1.0])), "float64"),
    "category of booleans": (BinaryColumn(), pd.Series(pd.Categorical([True, False])), "bool"),
    "a narrow integer that may be missing": (
        dataclasses.replace(INTEGER, missing="mask"),
        pd.Series([3, 100], dtype="int16"),
        "Int64",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_type_that_cannot_hold_the_domain_is_replaced(case):
    column, series, dtype = CHANGED[case]
    assert str(twin_of(dataset_of(column, series)).dtype) == dtype


NAMES = [
    *("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "object", "category", "category[ordered]"),
    *("boolean", "Int8", "UInt16", "Int64", "Float32", "string[python]", "string[pyarrow]"),
    *("bool[pyarrow]", "int8[pyarrow]", "halffloat[pyarrow]", "float[pyarrow]", "utf8[pyarrow]"),
]


@settings(deadline=None, max_examples=200)
@given(columns(), st.sampled_from(NAMES), st.integers(0, 30))
def test_what_a_twin_holds_is_in_the_public_domain_again(column, dtype, n):
    typed = typed_or_none(column, dtype)
    if typed is None:
        return
    encoded = typed.example(n, np.random.default_rng(0))
    twin = typed.decode(encoded, np.random.default_rng(1))
    expected = pd.CategoricalDtype(column.labels, dtype.endswith("]")) if "category" in dtype else None
    assert twin.dtype == (expected or pd.api.types.pandas_dtype(dtype))
    again = typed.encode(twin, party="clinic", name="x")  # which refuses values outside the public domain
    if column.kind == "real":
        wide = column.decode(encoded, np.random.default_rng(1))
        stored = np.finfo(dtypes.number_type(twin.dtype))
        least = float(stored.smallest_subnormal)  # the step near 0, where a relative error says nothing
        np.testing.assert_allclose(twin.to_numpy(float, na_value=np.nan), wide, rtol=2 * stored.eps, atol=least)
    else:
        np.testing.assert_array_equal(again, encoded)
    with_missing = typed.decode(encoded, np.random.default_rng(1), observed=np.arange(n) > 0)
    assert with_missing.isna().tolist()[:1] == [True][:n]


def typed_or_none(column, dtype):
    with contextlib.suppress(SchemaError):
        return dataclasses.replace(column, dtype=dtype)


TABLES = {
    "bool": ([True, False, True], BinaryColumn(missing="mask")),
    "integers": ([1, 2, 3], dataclasses.replace(INTEGER, missing="mask")),
    "small integers": (np.array([1, 2, 3], "int8"), dataclasses.replace(INTEGER, missing="category")),
    "codes": ([3, 5, 3], CategoricalColumn(categories=(3, 5), missing="category")),
    "reals": ([0.0, 1.0, 0.5], dataclasses.replace(REAL, missing="mask")),
    "whole reals": ([0, 1, 0], dataclasses.replace(REAL, missing="mask")),
    "text": (["low", "mid", "low"], dataclasses.replace(WORDS, missing="mask")),
}


@pytest.mark.parametrize("case", TABLES)
@pytest.mark.parametrize("reader", [{}, {"dtype_backend": "numpy_nullable"}, {"dtype_backend": "pyarrow"}])
def test_a_type_does_not_tell_whether_a_value_is_missing(tmp_path, case, reader):
    values, column = TABLES[case]
    complete = pd.Series(values, name="x")
    partial = complete.astype(object)
    partial[1] = None
    found = []
    for name, series in {"complete": complete, "partial": partial}.items():
        series.to_csv(tmp_path / name, index=False, na_rep="NA")
        found.append(dataset_of(column, pd.read_csv(tmp_path / name, **reader)["x"]).schema)
    found += [dataset_of(column, pd.Series(values)).schema] if not reader else []
    assert found[1:] == found[:-1]


@pytest.mark.parametrize("reader", [{}, {"dtype_backend": "numpy_nullable"}, {"dtype_backend": "pyarrow"}])
def test_a_type_does_not_tell_whether_all_reals_are_whole(tmp_path, reader):
    found = []
    for name, text in {"whole": "x\n0\n1\n", "fractions": "x\n0\n0.5\n"}.items():
        (tmp_path / name).write_text(text)
        found.append(dataset_of(REAL, pd.read_csv(tmp_path / name, **reader)["x"]).schema)
    assert found[0] == found[1]


def test_a_type_in_the_schema_wins():
    column = dataclasses.replace(INTEGER, dtype="int32")
    dataset = dataset_of(column, pd.Series([3, 150], dtype="uint8"))
    assert dataset.schema == schema_of(column)
    assert twin_of(dataset).dtype == np.int32
    assert dataset.schema.dtypes == {"x": "int32"}


def test_plain_tables_leave_the_schema_as_it_is():
    for column, values in ((INTEGER, [1, 2]), (REAL, [0.5, 1.0]), (WORDS, ["low", "mid"]), (BinaryColumn(), [0, 1])):
        assert dataset_of(column, pd.Series(values)).schema == schema_of(column)


BAD = {
    "unknown": (INTEGER, "int17", "unknown"),
    "no text": (INTEGER, 5, "give its name"),
    "time": (INTEGER, "datetime64[ns]", "integer"),
    "text for an integer": (INTEGER, "string", "integer"),
    "integer for text": (WORDS, "int8", "text"),
    "bool for text": (WORDS, "bool", "text"),
    "integer for a real": (REAL, "int64", "float"),
    "bool for an integer": (INTEGER, "bool", "integer"),
    "narrow": (INTEGER, "int8", "whole public domain"),
    "unsigned": (IntegerColumn(bounds=(-1, 5)), "uint8", "whole public domain"),
    "wide category": (CountColumn(upper=10**6), "category", "list"),
    "missing in a NumPy integer": (dataclasses.replace(INTEGER, missing="mask"), "int16", '"Int16"'),
    "missing in a NumPy bool": (BinaryColumn(missing="category"), "bool", '"boolean"'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_types_are_schema_errors_with_a_remedy(case):
    column, dtype, message = BAD[case]
    with pytest.raises(SchemaError, match=f"dtype = .*{message}"):
        dataclasses.replace(column, dtype=dtype)


def test_an_order_against_the_schemas_is_refused():
    with pytest.raises(DataError, match=r"party 'clinic', column 'x'.*order.*categories") as caught:
        dataset_of(WORDS, ordered(["low", "high"], ["high", "mid", "low"]))
    assert "low" not in str(caught.value)
    unordered = dataclasses.replace(WORDS, dtype="category")
    dataset = dataset_of(unordered, ordered(["low", "high"], ["high", "mid", "low"]))
    assert twin_of(dataset).dtype == pd.CategoricalDtype(["low", "mid", "high"])


def test_a_category_of_the_table_alone_never_reaches_the_twin():
    seen = pd.Series(pd.Categorical(["low"], categories=["low", "31337"]))
    assert twin_of(dataset_of(WORDS, seen)).dtype == pd.CategoricalDtype(["low", "mid", "high"])


def test_types_are_no_part_of_the_digest():
    plain = Schema.from_toml(TEXT)
    assert plain.digest() == "03ac7cdb448dbefa14fbbe0a8ad66584"  # as stored records have it
    typed = plain.with_dtypes({"grade": "int8", "plan": "category"})
    assert typed.digest() == plain.digest()
    assert typed != plain
    assert typed.dtypes["grade"] == "int8"
    assert typed.dtypes["visits"] is None
    assert Schema.from_dict(typed.to_dict()) == typed
    assert "dtype" not in plain.to_toml()
    with pytest.raises(SchemaError, match=r"'grad'.*did you mean 'grade'"):
        plain.with_dtypes({"grad": "int8"})


def test_files_give_the_types_that_they_have(tmp_path):
    schema = Schema({"a": PartySchema({"x": INTEGER, "y": BinaryColumn()})}, "id")
    frame = pd.DataFrame({"id": ["1", "2"], "x": pd.Series([1, 2], dtype="int16"), "y": [True, False]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert VerticalDataset.from_files(schema, {"a": tmp_path / "a.parquet"}).schema.dtypes == {
        "x": "int16",
        "y": "bool",
    }
    assert VerticalDataset.from_files(schema, {"a": tmp_path / "a.csv"}).schema.dtypes == {"x": None, "y": "bool"}


def test_missing_as_a_category_comes_back_missing():
    for column, value in ((WORDS, "mid"), (INTEGER, 3), (BinaryColumn(), True)):
        column = dataclasses.replace(column, missing="category")
        for series in (pd.Series([value, None]), pd.Series([value, None]).convert_dtypes()):
            back = dataset_of(column, series).to_frame()["x"]
            assert back.isna().tolist() == [False, True]
            assert back[0] == value
