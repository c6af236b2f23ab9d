"""Tables read in blocks onto disk are those that are read at once: values, types, order, errors; nothing has a name."""

import gc
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import AlignmentError, ArgumentError, DataError
from vertinumpyro.core.files import rows_on_disk
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    DateColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
    streaming,
)
from vertinumpyro.data.alignment import ascending, texts_of, words_of
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.data.streaming import Kept, Spool
from vertinumpyro.data.table import model_units

SCHEMA = Schema({
    "clinic": PartySchema({
        "dose": RealColumn(bounds=(0, 1), missing="mask"),
        "sex": CategoricalColumn(categories=("f", "m", "None"), missing="category"),
        "visits": CountColumn(upper=200, missing="category"),
        "born": DateColumn(bounds=("1990-01-01", "1999-12-31"), unit="year"),
        "seen": DateColumn(bounds=("2021-01-01", "2022-12-31"), unit="month"),
    }),
    "bank": PartySchema({
        "late": BinaryColumn(missing="category"),
        "debt": BinnedColumn(bounds=(-5.0, 5.0), bins=7, out_of_bounds="clip"),
        "age": IntegerColumn(bounds=(18, 98)),
        "code": CountColumn(upper=40_000, missing="mask", missing_codes=(-1,)),
    }),
})  # fmt: skip
N = 57
PLACE = Place("clinic", "id")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(streaming, "ROWS_READ", 10)


def frames(texts=False):
    """Both parties' tables, in different orders; whole blocks of a column have no missing value, one has only such."""
    rng = np.random.default_rng(3)
    ids = rng.permutation(10**6)[:N]
    ids = np.array([f"r{i}" * (1 + i % 3) for i in ids]) if texts else ids
    clinic = pd.DataFrame({"id": ids, "dose": rng.random(N), "visits": rng.integers(0, 201, N).astype(float)})
    clinic.loc[10:25, ["dose", "visits"]] = np.nan
    clinic["sex"] = np.array(["f", "m", "None", None], object)[rng.integers(0, 4, N)]
    clinic["born"] = pd.to_datetime("1990-01-01") + pd.to_timedelta(rng.integers(0, 3650, N), unit="D")
    midnights = pd.Series(pd.date_range("2021-01-01", periods=N, freq="11D") + pd.Timedelta("30min"))
    clinic["seen"] = midnights.dt.tz_localize("Europe/Helsinki")  # winter and summer; of the month before in UTC
    bank = pd.DataFrame({"late": rng.integers(0, 2, N).astype(bool), "id": ids, "debt": rng.normal(0, 4, N)})
    bank["age"], bank["code"], bank["unused"] = rng.integers(18, 99, N), rng.integers(0, 40_001, N), "x"
    bank.loc[5:9, "code"] = -1
    bank = bank.astype({"late": object, "age": "category"})
    bank.loc[40:, "late"] = None
    return {"clinic": clinic, "bank": bank.sample(frac=1, random_state=1)}


def written(folder, tables, suffix):
    paths = {party: folder / f"{party}{suffix}" for party in tables}
    for party, table in tables.items():
        if suffix == ".parquet":
            table.to_parquet(paths[party], index=False, row_group_size=13)
        else:
            table.to_csv(paths[party], index=False)
    return paths


@pytest.mark.parametrize("texts", [False, True], ids=["integer ids", "text ids"])
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz"])
def test_a_spooled_dataset_equals_the_one_in_memory(tmp_path, suffix, texts):
    paths = written(tmp_path, frames(texts), suffix)
    whole = VerticalDataset.from_files(SCHEMA, paths)
    before = sorted(tmp_path.iterdir())
    spooled = VerticalDataset.from_files(SCHEMA, paths, spool=tmp_path)
    assert sorted(tmp_path.iterdir()) == before, "the encoded columns have no name"
    assert spooled.schema.to_dict() == whole.schema.to_dict()
    for party in SCHEMA.parties:
        for name, array in whole.arrays(party).items():
            kept = spooled.arrays(party)[name]
            np.testing.assert_array_equal(kept, array, err_msg=name)
            assert not kept.flags.writeable
            assert model_units(kept).dtype == array.dtype
    months = frames(texts)["clinic"].sort_values("id", key=lambda ids: ids.astype(str))["seen"]
    np.testing.assert_array_equal(whole.arrays("clinic")["seen"], months.dt.month + 12 * (months.dt.year - 2021) - 1)
    assert whole.arrays("bank")["code_observed"].sum() == N - 5
    pd.testing.assert_frame_equal(spooled.to_frame(), whole.to_frame())
    widths = {name: array.dtype for name, array in spooled.pooled().items()}
    assert widths["sex"] == widths["late"] == np.int8, "three codes take one byte"
    assert widths["visits"] == np.int16
    assert widths["code"] == np.int32
    assert widths["dose"] == np.float32


def test_records_of_some_parties_are_left_out_alike(tmp_path):
    tables = frames()
    tables["bank"] = tables["bank"].iloc[5:]
    paths = written(tmp_path, tables, ".parquet")
    with pytest.raises(AlignmentError, match="5 of party 'clinic'"):
        VerticalDataset.from_files(SCHEMA, paths, spool=tmp_path)
    whole = VerticalDataset.from_files(SCHEMA, paths, unmatched="drop")
    spooled = VerticalDataset.from_files(SCHEMA, paths, unmatched="drop", spool=tmp_path)
    assert spooled.num_records == N - 5
    np.testing.assert_array_equal(spooled.arrays("clinic")["dose"], whole.arrays("clinic")["dose"])


@pytest.mark.parametrize(
    ("column", "value", "error", "told"),
    [
        ("code", 40_001, DataError, "party 'bank', column 'code': holds a value outside the public bounds"),
        ("age", None, DataError, "party 'bank', column 'age': has missing values"),
        ("id", None, DataError, "party 'bank', column 'id': has missing ids"),
        ("id", "twice", AlignmentError, "party 'bank', column 'id': has duplicate ids"),
    ],
)
def test_a_mistake_in_the_last_block_is_named_as_in_memory(tmp_path, column, value, error, told):
    tables = frames(texts=True)
    bank = tables["bank"].astype({"age": float}).reset_index(drop=True)
    bank.loc[N - 1, column] = bank.loc[0, "id"] if value == "twice" else value
    paths = written(tmp_path, {**tables, "bank": bank}, ".csv")
    for spool in (None, tmp_path):
        with pytest.raises(error, match=told):
            VerticalDataset.from_files(SCHEMA, paths, spool=spool)


def test_a_file_without_records_and_a_spool_that_is_none_are_refused(tmp_path):
    paths = written(tmp_path, {party: table.iloc[:0] for party, table in frames().items()}, ".csv")
    with pytest.raises(DataError, match="the table has no records"):
        VerticalDataset.from_files(SCHEMA, paths, spool=tmp_path)
    with pytest.raises(ArgumentError, match="spool: there is no folder"):
        VerticalDataset.from_files(SCHEMA, paths, spool=tmp_path / "none")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is Linux'")
def test_a_full_disk_is_named():
    with Path("/dev/full").open("w+b") as file:
        kept = Kept(file, np.dtype(np.int8), Spool("."))
        kept.append(np.zeros(10, np.int8))  # as far as a buffer
        with pytest.raises(ArgumentError, match="spool: the encoded columns cannot be written"):
            kept.array()
        with pytest.raises(OSError, match=r"."):
            file.close()


@pytest.mark.parametrize("findable", [False, True])
def test_files_close_without_a_word_when_the_last_that_reads_them_goes(tmp_path, findable):
    kept = Spool(tmp_path, findable=findable).column(np.dtype(np.int8))
    kept.append(np.arange(10, dtype=np.int8))
    array = kept.array()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del kept
        gc.collect()
        assert array.tolist() == list(range(10))
        if findable:
            assert rows_on_disk(array[2:]).array().tolist() == list(range(2, 10))
        del array
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_words_sort_and_come_back_as_texts():
    texts = ["", "a", "ab", "b", "abcdefgh", "abcdefghi", "abcdefgi", "é", "zz", "\U0001f600", "10", "9"]
    words = words_of(pd.Series(texts), PLACE)
    assert texts_of(words) == texts
    order = ascending(words)
    assert order is not None
    assert [texts[i] for i in order] == sorted(texts)
    assert ascending(words[order]) is None
    numbers = pd.Series([3, -10, 2**62, 7], dtype="Int64")
    assert texts_of(words_of(numbers, PLACE)) == ["3", "-10", str(2**62), "7"]
    with pytest.raises(DataError, match="NUL"):
        words_of(pd.Series(["a\0"]), PLACE)
