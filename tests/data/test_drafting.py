"""A draft of a schema: what it proposes, what it keeps to itself, and that nothing takes it before a person has."""

import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

from vertinumpyro.core.errors import ArgumentError, DataError, SchemaError
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    DateColumn,
    IntegerColumn,
    Schema,
    VerticalDataset,
    draft_schema,
)

N = 400
RNG = np.random.default_rng(0)


def table():
    """As a hospital's CSV file has it, every cell a text."""
    ward = np.where(np.arange(N) < 3, "isolation", np.where(RNG.random(N) < 0.5, "east", "west"))
    return pd.DataFrame(
        {
            "person_id": [f"{i:05d}" for i in range(N)],
            "age": RNG.integers(19, 87, N).astype(str),
            "visits": np.where(RNG.random(N) < 0.1, "", RNG.integers(0, 9, N).astype(str)),
            "cost": [f"{x:.2f}".replace(".", ",") for x in RNG.gamma(2.0, 900.0, N)],
            "ward": ward,
            "smoker": RNG.integers(0, 2, N).astype(str),
            "admitted": [f"{d}.03.2024" for d in RNG.integers(1, 29, N)],
            "remark": [f"text number {i}" for i in range(N)],
            "zip": [f"0{i}" for i in RNG.integers(1000, 1004, N)],
            "code": RNG.choice(["110", "121", "1300"], N),
            "empty": [""] * N,
            "country": ["de"] * N,
        }
    )


def drafted(frame=None, **settings):
    return draft_schema(table() if frame is None else frame, "clinic", id_column="person_id", decimal=",", **settings)


def confirmed(draft):
    return draft.to_toml().replace("confirmed = false", "confirmed = true")


def test_a_draft_is_refused_column_by_column_until_a_person_confirms_it():
    text = drafted().to_toml()
    with pytest.raises(SchemaError) as error:
        Schema.from_toml(text)
    told = str(error.value)
    for name in ("age", "visits", "cost", "ward", "smoker", "zip", "code"):
        assert re.search(rf"line \d+, party 'clinic', column '{name}': its domain was read from private records", told)
    half = text.replace("confirmed = false", "confirmed = true", 1)
    with pytest.raises(SchemaError, match="7 mistakes"):
        Schema.from_toml(half)
    schema = Schema.from_toml(confirmed(drafted()))
    assert schema.id_column == "person_id"
    assert "confirmed" not in schema.to_toml()  # the public schema has no trace of it
    with pytest.raises(SchemaError, match="confirmed = 'yes'; give true"):
        Schema.from_toml(text.replace("confirmed = false", 'confirmed = "yes"'))


def test_types_and_domains_are_those_that_a_person_would_begin_with():
    columns = Schema.from_toml(confirmed(drafted())).columns
    assert columns["age"] == IntegerColumn(bounds=(0, 90), bins=32, out_of_bounds="clip")
    assert columns["visits"] == IntegerColumn(bounds=(0, 8), out_of_bounds="clip", missing="category")
    assert isinstance(columns["cost"], BinnedColumn)
    assert columns["ward"] == CategoricalColumn(categories=("east", "west", "other"), unknown="other")
    assert columns["smoker"] == BinaryColumn()
    assert columns["zip"] == CategoricalColumn(categories=("01000", "01001", "01002", "01003"))
    assert columns["code"] == CategoricalColumn(categories=(110, 121, 1300))
    assert columns["admitted"] == DateColumn(
        bounds=("2024-01-01", "2024-12-31"), unit="month", format="%d.%m.%Y", out_of_bounds="clip"
    )
    assert set(columns) == {"age", "visits", "cost", "ward", "smoker", "admitted", "zip", "code"}


def test_what_is_left_out_says_why():
    draft = drafted()
    notes = {name: column.note for name, column in draft.columns.items() if not column.fields}
    assert notes.keys() == {"remark", "empty", "country"}
    assert "an id or free text" in notes["remark"]
    for name, note in notes.items():
        assert f"# {name}: {note}" in draft.to_toml()


SPREAD = [f"{x:.1f}" for x in RNG.normal(40, 8, N)]
LARGE = RNG.uniform(1000, 90000, N)
WRITTEN = {
    "thousands": ([f"{x:,.0f}" for x in LARGE], "numbers with separators of thousands"),
    "apostrophes": ([f"{x:,.2f}".replace(",", "'") for x in LARGE], "with separators of thousands"),
    "commas": ([x.replace(".", ",") for x in SPREAD], 'looks like numbers with decimal commas: set decimal = ","'),
    "percent": ([f"{x}%" for x in SPREAD], "numbers with '%' at each: leave it out"),
    "a currency": ([f"€ {x}" for x in SPREAD], "numbers with '€' at each"),
    "a unit": ([f"{x} mg/l" for x in SPREAD], "numbers with 'mg/l' at each"),
    "a limit": (["<20" if i % 9 == 0 else x for i, x in enumerate(SPREAD)], "numbers but for some texts ('<20')"),
    "words for none": (["n.d." if i < 3 else x for i, x in enumerate(SPREAD)], "numbers but for some texts: where"),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "note"), WRITTEN.values(), ids=WRITTEN.keys())
def test_numbers_that_are_written_as_texts_are_no_categories(texts, note):
    draft = draft_schema({"id": range(N), "x": texts}, "p")
    assert not draft.columns["x"].fields
    assert note in draft.columns["x"].note
    assert "n.d." not in draft.columns["x"].note  # three records


@pytest.mark.parametrize("form", ["%d-%b-%Y", "%d %b %Y", "%Y%m%d", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d-%m-%Y"])
def test_dates_are_known_as_they_are_written(form):
    days = pd.DatetimeIndex(pd.Timestamp("2019-02-03") + pd.to_timedelta(RNG.integers(0, 900, N), "D"))
    frame = {"id": range(N), "x": days.strftime(form)}
    text = draft_schema(frame, "p").to_toml().replace("confirmed = false", "confirmed = true")
    column = Schema.from_toml(text).columns["x"]
    assert isinstance(column, DateColumn)
    assert column.format == form
    assert VerticalDataset.from_frames(Schema.from_toml(text), {"p": pd.DataFrame(frame)}).num_records == N


def test_labels_among_numbers_stay_labels_and_doses_become_some():
    frame = {
        "id": range(N),
        "triage": RNG.choice(["1", "2", "3", "U"], N),
        "dose": RNG.choice([0.5, 1.0, 2.5], N),
        "sex": RNG.choice(["f", "m", " f"], N),
    }
    draft = draft_schema(frame, "p")
    assert draft.columns["triage"].fields["categories"] == ["1", "2", "3", "U"]
    assert draft.columns["dose"].fields["categories"] == [0.5, 1.0, 2.5]
    assert "some differ in spaces or capital letters alone" in draft.columns["sex"].note
    assert "some have spaces around them" in draft.columns["sex"].note


def test_no_record_stands_out_in_a_draft():
    text = drafted().to_toml()
    assert "isolation" not in text  # three records
    assert not re.search(r"\b\d+ missing", text)  # how many is nobody's business who reads the schema later
    costs = table()["cost"].str.replace(",", ".").astype(float)
    low, high = Schema.from_toml(confirmed(drafted())).columns["cost"].limits
    assert low <= costs.min()
    assert high >= costs.max()
    assert high not in set(costs)
    assert repr(drafted()) == "SchemaDraft('clinic', " + ", ".join(table().columns[1:]) + ")"


def test_the_table_that_was_drafted_from_fits_the_confirmed_schema():
    schema = Schema.from_toml(confirmed(drafted()))
    frame = table()
    frame["cost"] = frame["cost"].str.replace(",", ".").astype(float)
    for name in ("age", "visits", "smoker", "code"):
        frame[name] = pd.to_numeric(frame[name])
    dataset = VerticalDataset.from_frames(schema, {"clinic": frame})
    assert dataset.num_records == N


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_all_records_and_are_rounded(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(rng.normal(0, 50), 10.0 ** rng.integers(-6, 7), 50)
    frame = {"id": np.arange(50), "x": values, "k": np.round(values).astype(int)}
    text = draft_schema(frame, "p").to_toml().replace("confirmed = false", "confirmed = true")
    for name, column in Schema.from_toml(text).columns.items():
        low, high = column.limits
        assert low <= frame[name].min()
        assert high >= frame[name].max()
        assert high - low <= 40 * (frame[name].max() - frame[name].min()) or low == 0


def test_frames_of_every_library_are_drafted():
    plain = pd.DataFrame({"id": range(40), "sex": pd.Categorical(["f", "m"] * 20), "ok": [True, False] * 20, "x": 1.5})
    plain["x"] *= np.arange(40)
    as_texts = plain.assign(sex=plain["sex"].astype(str))  # older pyarrow reads no categories of polars
    for frame in (plain, pl.from_pandas(as_texts), dict(plain)):
        text = draft_schema(frame, "p").to_toml().replace("confirmed = false", "confirmed = true")
        schema = Schema.from_toml(text)
        assert schema.columns["ok"].kind == "binary"
        assert schema.columns["sex"].labels == ("f", "m")
        assert VerticalDataset.from_frames(schema, {"p": frame}).num_records == 40


def test_a_name_that_needs_quotes_is_quoted():
    frame = {"id": range(20), 'odd "name"': [0, 1] * 10, "two\nlines": [0, 1] * 10}
    text = draft_schema(frame, "my party").to_toml().replace("confirmed = false", "confirmed = true")
    assert list(Schema.from_toml(text).columns) == ['odd "name"']
    assert r"# two\nlines: its name holds a character that is not seen, \n: rename it in the file" in text


@pytest.mark.parametrize(
    ("frame", "settings", "error", "why"),
    [
        ({"key": [1], "x": [2]}, {}, ArgumentError, r"id_column: party 'p' has no column 'id'"),
        ({"id": [], "x": []}, {}, DataError, "no records"),
        ({"id": [1, 2]}, {}, DataError, "no column beside the ids"),
        ([1, 2], {}, ArgumentError, "give a pandas or polars DataFrame"),
    ],
)
def test_what_is_no_table_of_people_is_refused(frame, settings, error, why):
    with pytest.raises(error, match=why):
        draft_schema(frame, "p", **settings)
