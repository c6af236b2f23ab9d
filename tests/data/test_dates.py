"""Dates and times as columns: what is read, which unit it is in, and what comes back."""

import dataclasses
import datetime
import zoneinfo

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import DataError, SchemaError
from vertinumpyro.data import DateColumn, PartySchema, Schema, VerticalDataset, draft_schema
from vertinumpyro.evaluation import pairwise_tvd

YEARS = DateColumn(bounds=("2019-01-01", "2023-12-31"), unit="month")


def encoded(column, values):
    return column.encode(pd.Series(values), party="clinic", name="admitted").tolist()


@pytest.mark.parametrize(
    ("unit", "cells", "of_april_2nd_2020"),
    [("day", 1826, 457), ("week", 261, 65), ("month", 60, 15), ("quarter", 20, 5), ("year", 5, 1)],
)
def test_units_are_the_calendar_s(unit, cells, of_april_2nd_2020):
    bins = {"bins": 1000} if unit == "day" else {}
    column = DateColumn(bounds=("2019-01-01", "2023-12-31"), unit=unit, **bins)
    assert column.num_cells == (1000 if bins else cells)
    if not bins:
        assert encoded(column, ["2020-04-02"]) == [of_april_2nd_2020]
        assert encoded(column, ["2019-01-01", "2023-12-31"]) == [0, cells - 1]


@pytest.mark.parametrize(
    "values",
    [
        ["2019-03-05", "2023-12-31"],
        ["2019-03-05T23:59:59", "2023-12-31 08:00"],
        pd.to_datetime(["2019-03-05 10:00", "2023-12-31 23:59"]),
        [datetime.date(2019, 3, 5), datetime.date(2023, 12, 31)],
        [pd.Timestamp("2019-03-05"), datetime.datetime(2023, 12, 31, 5)],
        np.array(["2019-03-05", "2023-12-31"], "datetime64[s]"),
        pd.Categorical(["2019-03-05", "2023-12-31"]),
    ],
)
def test_dates_are_read_however_they_are_stored(values):
    assert encoded(YEARS, values) == [2, 59]


def test_bounds_may_be_dates_and_cut_units_off():
    column = DateColumn(bounds=(datetime.date(1969, 12, 15), datetime.date(1970, 2, 10)), unit="month")
    assert column.bounds == ("1969-12-15", "1970-02-10")
    assert column.num_cells == 3
    drawn = column.decode(np.repeat([0, 2], 500), np.random.default_rng(0))
    assert drawn[:500].between("1969-12-15", "1969-12-31").all()
    assert drawn[500:].between("1970-02-01", "1970-02-10").all()
    assert drawn.nunique() == 17 + 10
    assert column.cell_texts(9) == ["1969-12", "1970-01", "1970-02"]


def test_times_of_day():
    column = DateColumn(bounds=("2023-05-01", "2023-05-03"), unit="hour")
    assert column.num_cells == 72
    assert encoded(column, ["2023-05-01 00:59", "2023-05-03T23:59:59"]) == [0, 71]
    assert column.cell_texts(9)[1] == "2023-05-01T01:00"
    shift = DateColumn(bounds=("2023-05-01T08:00", "2023-05-01T15:59"), unit="minute", bins=8)
    assert encoded(shift, ["2023-05-01 08:59", "2023-05-01 15:00"]) == [0, 7]
    with pytest.raises(DataError, match="outside"):
        encoded(shift, ["2023-05-01 16:00"])


def test_a_format_of_their_own_is_read_and_written():
    column = DateColumn(bounds=("2019-01-01", "2023-12-31"), unit="year", format="%d.%m.%Y")
    assert encoded(column, ["31.12.2019", " 01.01.2020"]) == [0, 1]
    drawn = column.decode(np.array([3, 3]), np.random.default_rng(0))
    assert all(text.endswith(".2022") for text in drawn)
    assert encoded(column, drawn) == [3, 3]


def test_missing_dates_come_back_missing():
    column = DateColumn(bounds=("2019-01-01", "2023-12-31"), unit="year", missing="category")
    codes = column.encode(pd.Series(["2020-05-05", None]), party="p", name="c")
    assert codes.tolist() == [1, 5]
    back = column.decode(codes, np.random.default_rng(0))
    assert back.isna().tolist() == [False, True]
    assert back.dtype == np.dtype("datetime64[ns]")


@pytest.mark.parametrize(
    "values",
    [
        ["2020-05-05", "1900-01-01", "9999-12-31T00:00:00", "n.a."],
        pd.Series([datetime.date(2020, 5, 5), datetime.date(1900, 1, 1), datetime.date(9999, 12, 31), None]),
        pd.Series(np.array(["2020-05-05", "1900-01-01", "9999-12-31", "NaT"], "datetime64[s]")),
    ],
)
def test_dates_that_stand_for_missing_ones(values):
    codes = {"missing": "category", "missing_codes": ("1900-01-01", "9999-12-31", "n.a.")}
    column = DateColumn(bounds=("2019-01-01", "2023-12-31"), unit="year", out_of_bounds="clip", **codes)
    assert encoded(column, values) == [1, 5, 5, 5]


@pytest.mark.parametrize("stored", [str, "datetime64[s]", "date32[day][pyarrow]"])
def test_a_draft_names_dates_that_stand_for_missing_ones(stored):
    texts = pd.Series([*(f"2020-{month:02}-15" for month in range(1, 13)), "9999-12-31", *["1900-01-01"] * 10])
    values = texts.astype("datetime64[s]").astype(stored) if stored is not str else texts
    frame = pd.DataFrame({"id": range(len(values)), "seen": values})
    draft = draft_schema(frame, "p", epsilon=1e6)
    assert draft.columns["seen"].fields["missing_codes"] == ["1900-01-01", "9999-12-31"]
    schema = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true"))
    assert schema.columns["seen"].bounds == ("2020-01-01", "2020-12-31")
    assert (VerticalDataset.from_frames(schema, {"p": frame}).arrays("p")["seen"] == 12).sum() == 11


HELSINKI = zoneinfo.ZoneInfo("Europe/Helsinki")
MIDNIGHTS = [datetime.datetime(2022, month, 1, 0, 30, tzinfo=HELSINKI) for month in (3, 7)]  # +02:00 and +03:00
ZONED = {
    "texts": ([time.isoformat() for time in MIDNIGHTS], None),
    "with a space": ([f"{time:%Y-%m-%d %H:%M %z}" for time in MIDNIGHTS], None),
    "a format": ([f"{time:%d.%m.%Y %H:%M%z}" for time in MIDNIGHTS], "%d.%m.%Y %H:%M%z"),
    "an offset within": ([f"{time:%a %b %d %H:%M:%S %z %Y}" for time in MIDNIGHTS], "%a %b %d %H:%M:%S %z %Y"),
    "objects": (pd.Series(MIDNIGHTS, dtype=object), None),
    "objects and texts": (pd.Series([MIDNIGHTS[0], MIDNIGHTS[1].isoformat()], dtype=object), None),
    "pandas": (pd.Series(MIDNIGHTS).astype("datetime64[us, Europe/Helsinki]"), None),
    "arrow": (pd.Series(MIDNIGHTS).astype("timestamp[us, tz=Europe/Helsinki][pyarrow]"), None),
    "a category": (pd.Categorical([time.isoformat() for time in MIDNIGHTS]), None),
}


@pytest.mark.parametrize(("values", "form"), ZONED.values(), ids=ZONED.keys())
def test_a_time_with_a_zone_keeps_its_own_date_or_moves_to_one_place_s(values, form):
    column = DateColumn(bounds=("2021-01-01", "2022-12-31"), unit="month", format=form)
    assert encoded(column, values) == [14, 18]
    moved = {name: dataclasses.replace(column, timezone=name) for name in ("UTC", "Europe/Helsinki", "Asia/Tokyo")}
    assert [encoded(column, values) for column in moved.values()] == [[13, 17], [14, 18], [14, 18]]
    twin = column.decode(np.array([14, 18]), np.random.default_rng(0))
    assert encoded(column, twin) == encoded(moved["UTC"], twin) == [14, 18]  # a twin's times are there already


def test_a_draft_of_times_with_zones_reads_them():
    texts = [*(["2022-03-01T00:30:00+02:00", "2022-07-01 00:30:00+03:00"] * 20), "2022-01-01"]
    tables = {"texts": texts, "objects": pd.Series(MIDNIGHTS * 20, dtype=object), "zoned": pd.Series(MIDNIGHTS * 20)}
    tables |= {"days": pd.Series([datetime.date(2022, 3, day) for day in range(1, 29)]).astype("date32[day][pyarrow]")}
    tables |= {"a format": [f"{time:%d.%m.%Y %H:%M %z}" for time in MIDNIGHTS * 20]}
    for name, values in tables.items():
        frame = pd.DataFrame({"id": range(len(values)), "seen": values})
        draft = draft_schema(frame, "p", epsilon=1e6)
        assert draft.columns["seen"].fields["bounds"] == ["2022-01-01", "2022-12-31"], name
        assert ("keeps its own date" in draft.columns["seen"].note) == (name != "days")
        schema = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true"))
        assert VerticalDataset.from_frames(schema, {"p": frame}).arrays("p")["seen"][0] == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["05.03.2019"], r"no date in ISO 8601 \(2023-12-31\); repair it, or set format"),
        (["2019-02-30"], "no date"),
        ([20190305], "holds numbers"),
        (["2018-12-31"], "outside"),
        ([True], "numbers|no date"),
    ],
)
def test_what_is_no_date_here_is_refused_without_being_quoted(values, says):
    with pytest.raises(DataError, match=says) as found:
        encoded(YEARS, values)
    assert "clinic" in str(found.value)
    assert str(values[0]) not in str(found.value)
    assert found.value.__cause__ is None


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bounds": ("2019-01-01",)}, "give"),
        ({"bounds": ("1500-01-01", "2018-01-01")}, "give dates from 1678"),
        ({"bounds": ("2019-01-01T00:00+01:00", "2020-01-01")}, "without a zone"),
        ({"bounds": (1, 2)}, "bounds hold 1"),
        ({"bounds": ("2019-01-01", "2019-05-01"), "unit": "year"}, "hold one year"),
        ({"bounds": ("2000-01-01", "2019-05-01")}, "days are too many; give bins, or a longer unit"),
        ({"bounds": ("1900-01-01", "2019-05-01"), "unit": "minute", "bins": 9}, "take longer ones"),
        ({"bounds": ("2019-01-01", "2019-05-01"), "bins": 1}, "bins = 1"),
        ({"bounds": ("2019-01-01", "2019-05-01"), "timezone": "Helsinki"}, "timezone = 'Helsinki' is no known place"),
        ({"bounds": ("2019-01-01", "2019-05-01"), "dtype": "int64"}, "stored as time or text"),
    ],
)
def test_wrong_domains_are_refused(settings, says):
    with pytest.raises(SchemaError, match=says):
        DateColumn(**settings)


def test_a_schema_in_toml_takes_texts_and_toml_s_own_dates():
    text = """
    [parties.clinic.columns.admitted]
    type = "date"
    bounds = [2019-01-01, "2023-12-31"]
    unit = "month"
    """
    schema = Schema.from_toml(text)
    assert schema.columns["admitted"] == YEARS
    assert Schema.from_toml(schema.to_toml()) == schema
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize(
    "stored", ["datetime64[ns]", "datetime64[s]", "string[python]", "timestamp[us][pyarrow]", "date32[day][pyarrow]"]
)
def test_a_twin_has_the_table_s_type(stored):
    values = pd.Series(pd.to_datetime(["2019-03-05", "2023-12-31", "2020-07-07"]))
    series = values.dt.strftime("%Y-%m-%d").astype(stored) if stored.startswith("string") else values.astype(stored)
    frame = pd.DataFrame({"id": [1, 2, 3], "admitted": series})
    schema = Schema({"clinic": PartySchema({"admitted": YEARS})}, id_column="id")
    dataset = VerticalDataset.from_frames(schema, {"clinic": frame})
    back = dataset.to_frame()["admitted"]
    assert str(back.dtype) == str(frame["admitted"].dtype)
    again = VerticalDataset.from_pooled(dataset.schema, dataset.to_frame())
    assert again.arrays("clinic")["admitted"].tolist() == [2, 59, 18]


def test_tables_with_dates_are_compared():
    schema = Schema(
        {"clinic": PartySchema({"admitted": YEARS}), "insurer": PartySchema({"paid": DateColumn(
            bounds=("2019-01-01", "2023-12-31"), unit="year")})}
    )  # fmt: skip
    frame = VerticalDataset.example(schema, 50, np.random.default_rng(0)).to_frame()
    assert pairwise_tvd(frame, frame, schema).to_numpy().max() == 0


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2019-03-05", "2021-12-30"], {"bounds": ["2019-01-01", "2021-12-31"], "unit": "month"}),
        (["05.03.1990", "30.12.2021"], {"bounds": ["1990-01-01", "2021-12-31"], "unit": "year", "format": "%d.%m.%Y"}),
        (
            ["03/25/2015", "12/30/2021"],
            {"bounds": ["2015-01-01", "2021-12-31"], "unit": "quarter", "format": "%m/%d/%Y"},
        ),
    ],
)
def test_a_draft_proposes_whole_years(texts, expected):
    frame = pd.DataFrame({"id": range(40), "day": texts * 20})
    draft = draft_schema(frame, "clinic", epsilon=1e6)
    fields = dict(draft.columns["day"].fields)
    assert fields == {"type": "date", "out_of_bounds": "clip", **expected}
    confirmed = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true"))
    assert len(VerticalDataset.from_frames(confirmed, {"clinic": frame}).arrays("clinic")["day"]) == 40


def test_a_draft_asks_whether_the_day_comes_first():
    frame = pd.DataFrame({"id": range(40), "day": ["03/05/2019", "01/02/2020"] * 20})
    column = draft_schema(frame, "clinic").columns["day"]
    assert column.fields["format"] == "%d/%m/%Y"
    assert "is the day written before the month?" in column.note
