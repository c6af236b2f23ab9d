"""Tables of other libraries: the same records give the same dataset, whatever holds them."""

import numpy as np
import pandas as pd
import pytest

from tests.data.test_dataset import assert_same
from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.evaluation import pairwise_tvd

SCHEMA = Schema.from_toml("""
[parties.insurer.columns.plan]
type = "categorical"
categories = ["a", "b"]
missing = "category"

[parties.insurer.columns.cost]
type = "real"
bounds = [0, 100]
missing = "mask"

[parties.clinic.columns.visits]
type = "count"
upper = 50

[parties.clinic.columns.ill]
type = "binary"
""")
COLUMNS = {
    "insurer": {"id": [7, 1, 10], "plan": ["b", None, "a"], "cost": [1.5, None, 99.0], "extra": ["x", "y", "z"]},
    "clinic": {"id": [10, 7, 1], "visits": [3, 4, 5], "ill": [True, False, True]},
}
FRAMES = {party: pd.DataFrame(columns) for party, columns in COLUMNS.items()}


def polars_frame(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def arrow_table(columns):
    return pytest.importorskip("pyarrow", exc_type=ImportError).table(columns)


class OnlyCapsule:
    """An Arrow stream and nothing else, as DuckDB's and others' results are."""

    def __init__(self, columns):
        self._table = arrow_table(columns)

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


def dictionary_frame(columns):
    table = arrow_table(columns)
    import pyarrow as pa

    texts = [n for n in table.column_names if pa.types.is_string(table.schema.field(n).type)]
    for name in texts:
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].dictionary_encode())
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def string_views(columns):
    pa = pytest.importorskip("pyarrow", exc_type=ImportError)
    table = pa.table(columns)
    arrays = {name: pa.array(table[name].to_pylist(), pa.string_view()) for name in ("plan",) if name in columns}
    return pa.table({name: arrays.get(name, table[name]) for name in columns})


MAKERS = {
    "pandas": pd.DataFrame,
    "odd index": lambda columns: pd.DataFrame(columns, index=[5, 5, -1]),
    "index of labels": lambda columns: pd.DataFrame(columns, index=pd.MultiIndex.from_product([["u"], [3, 1, 2]])),
    "nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pyarrow-backed": lambda columns: pd.DataFrame(columns).convert_dtypes(dtype_backend="pyarrow"),
    "arrow dictionaries": dictionary_frame,
    "categories": lambda columns: pd.DataFrame(columns).astype({n: "category" for n in ("plan", "id") if n in columns}),
    "polars": polars_frame,
    "pyarrow": arrow_table,
    "string views": string_views,
    "Arrow capsule": OnlyCapsule,
    "lists": dict,
    "arrays": lambda columns: {name: np.asarray(values, object) for name, values in columns.items()},
    "series of any index": lambda columns: {n: pd.Series(v, index=[2, 0, 2]) for n, v in columns.items()},
}


@pytest.mark.parametrize("maker", MAKERS)
def test_every_kind_of_table_gives_the_same_dataset(maker):
    make, expected = MAKERS[maker], VerticalDataset.from_frames(SCHEMA, FRAMES)
    assert expected.arrays("insurer")["plan"].tolist() == [2, 0, 1]
    assert_same(VerticalDataset.from_frames(SCHEMA, {party: make(c) for party, c in COLUMNS.items()}), expected)


@pytest.mark.parametrize("maker", MAKERS)
def test_every_kind_of_pooled_table_too(maker):
    pooled = {**COLUMNS["insurer"], "visits": [4, 5, 3], "ill": [False, True, True]}
    expected = VerticalDataset.from_pooled(SCHEMA, pd.DataFrame(pooled))
    assert_same(VerticalDataset.from_pooled(SCHEMA, MAKERS[maker](pooled)), expected)


def test_parties_may_hold_different_kinds():
    mixed = {"insurer": polars_frame(COLUMNS["insurer"]), "clinic": COLUMNS["clinic"]}
    assert_same(VerticalDataset.from_frames(SCHEMA, mixed), VerticalDataset.from_frames(SCHEMA, FRAMES))


def test_a_nan_inside_nullable_storage_is_missing():
    frame = polars_frame({**COLUMNS["insurer"], "cost": [1.5, float("nan"), 99.0]})
    dataset = VerticalDataset.from_frames(SCHEMA, {"insurer": frame, "clinic": FRAMES["clinic"]})
    assert dataset.arrays("insurer")["cost_observed"].tolist() == [False, True, True]


def test_a_masked_array_keeps_its_mask():
    cost = np.ma.masked_array([1.5, 31337.0, 99.0], mask=[False, True, False])
    dataset = VerticalDataset.from_frames(SCHEMA, {**FRAMES, "insurer": {**COLUMNS["insurer"], "cost": cost}})
    assert dataset.arrays("insurer")["cost_observed"].tolist() == [False, True, True]


def test_a_lazy_table_is_refused_with_the_call_that_is_missing():
    lazy = polars_frame(COLUMNS["clinic"]).lazy()
    with pytest.raises(ArgumentError, match=r"party 'clinic'.*LazyFrame.*\.collect\(\)"):
        VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": lazy})


@pytest.mark.parametrize("table", [[["31337"]], np.zeros((3, 2)), 5, None, "clinic.csv"])
def test_anything_else_is_refused_by_name(table):
    with pytest.raises(ArgumentError, match=r"party 'clinic'.*pandas or polars DataFrame") as caught:
        VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": table})
    assert "31337" not in str(caught.value)


@pytest.mark.parametrize("visits", [5, np.zeros((3, 2)), [1, 2]])
def test_arrays_of_other_shapes_name_the_column(visits):
    with pytest.raises(DataError, match=r"party 'clinic', column 'visits'.*(one-dimensional|of one length)"):
        VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": {**COLUMNS["clinic"], "visits": visits}})


def test_one_table_in_the_place_of_all_is_refused():
    with pytest.raises(ArgumentError, match=r"frames.*from_pooled"):
        VerticalDataset.from_frames(SCHEMA, FRAMES["clinic"])  # type: ignore[arg-type]


def test_ids_in_the_index_are_found_out():
    with pytest.raises(DataError, match=r"party 'clinic', column 'id'.*reset_index\(\)"):
        VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": FRAMES["clinic"].set_index("id")})


def test_a_twin_is_compared_with_a_table_of_any_kind():
    dataset = VerticalDataset.from_frames(SCHEMA, FRAMES)
    twin, pooled = dataset.to_frame(), {**COLUMNS["insurer"], "visits": [4, 5, 3], "ill": [False, True, True]}
    expected = pairwise_tvd(pd.DataFrame(pooled), twin, SCHEMA)
    assert expected.to_numpy().max() < 1e-12
    pd.testing.assert_frame_equal(pairwise_tvd(polars_frame(pooled), twin, SCHEMA), expected)
    with pytest.raises(ArgumentError, match=r"real: the table is a lazy LazyFrame"):
        pairwise_tvd(polars_frame(pooled).lazy(), twin, SCHEMA)
