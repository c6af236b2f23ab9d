from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.strategies import schemas
from vertinumpyro.core.errors import AlignmentError, ArgumentError, DataError
from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset, decode_table, read_table

SCHEMA = Schema.from_toml("""
[parties.insurer.columns.plan]
type = "categorical"
categories = ["NA", "b"]

[parties.insurer.columns.cost]
type = "real"
bounds = [0, 100]
missing = "mask"

[parties.clinic.columns.visits]
type = "count"
upper = 50
""")
INSURER = pd.DataFrame({"id": ["07", "01", "10"], "plan": ["b", "NA", "b"], "cost": [1.5, None, 99.0], "extra": 1})
CLINIC = pd.DataFrame({"id": ["10", "07", "01"], "visits": [3, 4, 5]})
FRAMES = {"insurer": INSURER, "clinic": CLINIC}


@pytest.fixture
def dataset():
    return VerticalDataset.from_frames(SCHEMA, FRAMES)


def written(folder, suffix):
    paths = {party: folder / f"{party}{suffix}" for party in FRAMES}
    for party, frame in FRAMES.items():
        if suffix == ".csv":
            frame.to_csv(paths[party], index=False)
        else:
            frame.to_parquet(paths[party])
    return paths


def need_pyarrow():
    pytest.importorskip("pyarrow", reason="pyarrow cannot be imported beside this numpy", exc_type=ImportError)


def assert_same(one, two):
    assert one.fingerprint() == two.fingerprint()
    for name, array in one.pooled().items():
        np.testing.assert_array_equal(array, two.pooled()[name])


def test_frames_are_aligned_by_id(dataset):
    assert dataset.num_records == 3
    assert dataset.parties == ("insurer", "clinic")
    assert dataset.arrays("clinic")["visits"].tolist() == [5, 4, 3]
    assert dataset.arrays("insurer")["plan"].tolist() == [0, 1, 1]
    assert dataset.arrays("insurer")["cost_observed"].tolist() == [False, True, True]
    assert dataset.arrays("insurer")["cost"][0] == np.float32(0.5)
    assert set(dataset.pooled()) == {"plan", "cost", "cost_observed", "visits"}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_say_what_frames_say(dataset, tmp_path, suffix):
    if suffix == ".parquet":
        need_pyarrow()
    assert_same(VerticalDataset.from_files(SCHEMA, written(tmp_path, suffix)), dataset)


def test_a_csv_keeps_leading_zeros_and_listed_categories(tmp_path):
    frame = read_table(written(tmp_path, ".csv")["insurer"], SCHEMA, "insurer")
    assert frame["id"].tolist() == ["07", "01", "10"]
    assert frame["plan"].tolist() == ["b", "NA", "b"]
    assert list(frame.columns) == ["id", "plan", "cost"]


def test_what_is_moved_to_an_end_is_counted_for_its_party_and_a_column_of_nothing_else_is_refused():
    column = RealColumn(bounds=(0, 10), out_of_bounds="clip")
    schema = Schema({"a": PartySchema({"x": column}), "b": PartySchema({"y": column})})
    frames = {"a": pd.DataFrame({"id": range(4), "x": [1.0, 12, 3, -1]}), "b": pd.DataFrame({"id": range(4), "y": 1.0})}
    dataset = VerticalDataset.from_frames(schema, frames)
    assert dataset.moved == {"a": {"x": (2, 4)}, "b": {"y": (0, 4)}}
    assert "2" not in repr(dataset)
    frames["b"]["y"] = 1000.0
    with pytest.raises(DataError, match="party 'b', column 'y': holds no value within its bounds"):
        VerticalDataset.from_frames(schema, frames)


def test_pooled_keeps_the_order_and_needs_no_id(dataset):
    pooled = INSURER.merge(CLINIC, on="id").sort_values("id")
    assert_same(VerticalDataset.from_pooled(SCHEMA, pooled), dataset)
    assert_same(VerticalDataset.from_pooled(SCHEMA, pooled.drop(columns="id")), dataset)
    with pytest.raises(AlignmentError):
        VerticalDataset.from_pooled(SCHEMA, pd.concat([pooled, pooled]))


def test_to_frame_gives_the_schema_types_back(dataset):
    frame = dataset.to_frame()
    assert frame["plan"].tolist() == ["NA", "b", "b"]
    assert frame["visits"].tolist() == [5, 4, 3]
    assert frame["visits"].dtype == np.int64
    assert frame["cost"].isna().tolist() == [True, False, False]
    np.testing.assert_allclose(frame["cost"][1:], [1.5, 99.0], rtol=1e-4)


@settings(deadline=None)
@given(schemas(), st.integers(1, 20))
def test_examples_decode_and_encode_again(schema, n):
    example = VerticalDataset.example(schema, n, np.random.default_rng(0))
    again = VerticalDataset.from_pooled(schema, example.to_frame())
    assert again.num_records == n
    for name, array in example.pooled().items():
        if not name.endswith("_observed"):
            observed = example.pooled().get(name + "_observed", np.ones(n, bool))
            np.testing.assert_allclose(again.pooled()[name][observed], array[observed], atol=1e-4)


def test_take_split_and_restrict(dataset):
    assert dataset.take(np.array([2, 0])).arrays("clinic")["visits"].tolist() == [3, 5]
    assert dataset.take(np.array([True, False, True])).num_records == 2
    first, second = dataset.split(0.67, seed=1)
    assert (first.num_records, second.num_records) == (2, 1)
    visits = [*first.arrays("clinic")["visits"], *second.arrays("clinic")["visits"]]
    assert sorted(visits) == [3, 4, 5]
    alone = dataset.restrict("clinic")
    assert alone.parties == ("clinic",)
    assert list(alone.pooled()) == ["visits"]


def test_a_part_of_the_records_or_columns_is_charged_to_the_same_files(tmp_path):
    paths = written(tmp_path, ".csv")
    dataset = VerticalDataset.from_files(SCHEMA, paths)
    assert dataset.take(np.array([0, 1])).computed_by(None).source == dataset.source
    assert dataset.source is not None
    assert dataset.source.files == {party: Path(paths[party]) for party in SCHEMA.parties}
    alone = dataset.restrict("clinic").source
    assert alone is not None
    assert list(alone.files) == ["clinic"]


def test_arrays_are_read_only(dataset):
    with pytest.raises(ValueError, match="read-only"):
        dataset.arrays("clinic")["visits"][0] = 1


def test_repr_and_fingerprint_show_public_facts_alone(dataset):
    assert repr(dataset) == (
        "VerticalDataset(3 records)\n  insurer: plan (categorical), cost (real)\n  clinic: visits (count)"
    )
    other = VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": CLINIC.assign(visits=0)})
    assert other.fingerprint() == dataset.fingerprint()
    assert dataset.fingerprint().endswith("-3")


@pytest.mark.parametrize("call", [lambda d: d.take(np.array([0.5])), lambda d: d.take(np.array([[0]])),
                                  lambda d: d.split(0.0, 1), lambda d: d.split(1.0, 1),
                                  lambda d: d.arrays("bank")])  # fmt: skip
def test_bad_arguments(dataset, call):
    with pytest.raises(ArgumentError):
        call(dataset)


def test_encoded_arrays_must_match_the_schema(dataset):
    arrays = {party: dataset.arrays(party) for party in dataset.parties}
    with pytest.raises(ArgumentError, match="'clinic'"):
        VerticalDataset(SCHEMA, {**arrays, "clinic": {}})
    with pytest.raises(ArgumentError, match="shape"):
        VerticalDataset(SCHEMA, {**arrays, "clinic": {"visits": np.zeros(2, np.int32)}})


@pytest.mark.parametrize("frames", [{"insurer": INSURER}, {**FRAMES, "bank": CLINIC}])
def test_parties_must_match_the_schema(frames):
    with pytest.raises(ArgumentError, match=r"clinic|bank"):
        VerticalDataset.from_frames(SCHEMA, frames)


def test_decode_table_names_the_column(dataset):
    rng = np.random.default_rng(0)
    with pytest.raises(ArgumentError, match="'visits'"):
        decode_table(SCHEMA, dataset.arrays("insurer"), rng)
    with pytest.raises(ArgumentError, match="column 'plan'"):
        decode_table(SCHEMA, {**dataset.pooled(), "plan": np.array([9])}, rng)


BAD_TABLES = {
    "NaN": CLINIC.assign(visits=[1, None, 31337]),
    "inf": CLINIC.assign(visits=[1, np.inf, 31337]),
    "out of bounds": CLINIC.assign(visits=[1, 2, 31337]),
    "wrong dtype": CLINIC.assign(visits=["1", "2", "31337"]),
    "fraction": CLINIC.assign(visits=[1, 2, 31337.5]),
    "missing column": CLINIC.drop(columns="visits").assign(visit=31337),
    "duplicate column": pd.concat([CLINIC, CLINIC[["visits"]]], axis=1),
    "missing id column": CLINIC.drop(columns="id"),
    "duplicated id": CLINIC.assign(id=["31337", "31337", "1"]),
    "unmatched id": CLINIC.assign(id=["31337", "07", "01"]),
    "missing id": CLINIC.assign(id=[None, "07", "31337"]),
    "empty": CLINIC.iloc[:0],
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_name_the_party_and_never_a_value(case):
    with pytest.raises(DataError) as caught:
        VerticalDataset.from_frames(SCHEMA, {**FRAMES, "clinic": BAD_TABLES[case]})
    _assert_no_canary(caught.value)


BAD_FILES = {
    "no file": None,
    "missing column": "id,visit\n07,31337\n",
    "duplicate column": "id,visits,visits\n07,31337,1\n",
    "no header": "",
    "text": "id,visits\n07,31337x\n01,1\n10,1\n",
    "empty cell": "id,visits\n07,\n01,31337\n10,1\n",
    "ragged": 'id,visits\n07,1\n01,31337,1,2\n"10,1\n',
    "not text": b"id,visits\n\xff\xfe31337,1\n",
    "empty": "id,visits\n",
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_name_the_party_and_never_a_value(tmp_path, case):
    paths, content = written(tmp_path, ".csv"), BAD_FILES[case]
    paths["clinic"].unlink()
    if content is not None:
        paths["clinic"].write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        VerticalDataset.from_files(SCHEMA, paths)
    _assert_no_canary(caught.value)


def test_other_formats_and_broken_parquet(tmp_path):
    paths = written(tmp_path, ".csv")
    for name in ("clinic.xlsx", "clinic.parquet"):
        (tmp_path / name).write_bytes(b"31337")
        with pytest.raises(DataError) as caught:
            VerticalDataset.from_files(SCHEMA, {**paths, "clinic": tmp_path / name})
        _assert_no_canary(caught.value)


def _assert_no_canary(error):
    assert "clinic" in str(error)
    assert "31337" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
