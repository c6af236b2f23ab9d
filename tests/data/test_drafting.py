"""A draft of a schema: what it proposes, what it keeps to itself, and that nothing takes it before a person has."""

import re

import jax
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vertinumpyro as vnp
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
from vertinumpyro.data.number_texts import NumberFormat

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


def drafted(frame=None, epsilon=1e4, **settings):
    frame = table() if frame is None else frame
    return draft_schema(frame, "clinic", id_column="person_id", decimal=",", epsilon=epsilon, **settings)


def confirmed(draft):
    return draft.to_toml().replace("confirmed = false", "confirmed = true")


def test_a_draft_is_refused_column_by_column_until_a_person_confirms_it():
    text = drafted().to_toml()
    with pytest.raises(SchemaError) as error:
        Schema.from_toml(text)
    told = str(error.value)
    assert "party 'clinic', 8 columns: " in told  # one paragraph
    for name in ("age", "visits", "cost", "ward", "smoker", "zip", "code"):
        assert re.search(rf"'{name}' \(line \d+\).*: the domain of each was read from private records", told)
    half = text.replace("confirmed = false", "confirmed = true", 1)
    with pytest.raises(SchemaError, match="party 'clinic', 7 columns"):
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
    "thousands": ([f"{x:,.0f}" for x in LARGE], 'say which, number_formats = "1234,500" or "1,234"'),
    "dollars": ([f"${x:,.0f}" for x in LARGE], 'number_formats = "$1234,500" or "$1,234"'),
    "two ways": (["1,234", *[f"{x:.3f}" for x in 10 + LARGE[1:] / 1000]], "may be read in 2 ways"),
    "two signs": ([f"{'$€'[i % 2]}{x}" for i, x in enumerate(SPREAD)], "many different texts"),
    "groups of two": ([f"{x:.0f}"[:-3] + "," + f"{x:.0f}"[-2:] for x in LARGE], 'set decimal = ","'),
    "commas": ([x.replace(".", ",") for x in SPREAD], 'looks like numbers with decimal commas: set decimal = ","'),
    "a limit": (["<20" if i % 9 == 0 else x for i, x in enumerate(SPREAD)], "numbers but for some texts ('<20')"),
    "words for none": (["n.d." if i < 3 else x for i, x in enumerate(SPREAD)], "numbers but for some texts: where"),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "note"), WRITTEN.values(), ids=WRITTEN.keys())
def test_numbers_that_are_written_as_texts_are_no_categories(texts, note):
    draft = draft_schema({"id": range(N), "x": texts}, "p")
    assert not draft.columns["x"].fields
    assert note in draft.columns["x"].note
    assert "n.d." not in draft.columns["x"].note  # three records


SIGNED = np.where(np.arange(N) % 7 == 0, -1, 1) * LARGE.round(2)


def german(x, places=2):
    return f"{x:,.{places}f}".translate(str.maketrans(",.", ".,"))


PICTURES = {
    "€ 1,234.50": ([f"€ {x:,.2f}" for x in LARGE], LARGE.round(2)),
    "1.234,50 €": ([f"{german(x)} €" for x in LARGE], LARGE.round(2)),
    "-1.234,50 €": ([f"{german(x)} €" for x in SIGNED], SIGNED),
    "CHF 1'234.50": ([f"CHF {x:,.2f}".replace(",", "'") for x in LARGE], LARGE.round(2)),
    "1'234.50": ([f"{x:,.2f}".replace(",", "'") for x in LARGE], LARGE.round(2)),
    "(1,234.50)": ([f"{x:,.2f}" if x > 0 else f"({-x:,.2f})" for x in SIGNED], SIGNED),
    "$-1,234.50": ([f"${x:,.2f}" for x in SIGNED], SIGNED),
    "1.234,50-": ([german(x) if x > 0 else german(-x) + "-" for x in SIGNED], SIGNED),
    "1 234,50 kr": ([f"{x:,.2f} kr".replace(",", " ").replace(".", ",") for x in LARGE], LARGE.round(2)),
    "1\u202f234 €": ([f"{x:,.0f} €".replace(",", "\u202f") for x in LARGE], LARGE.round()),
    "1234 %": ([f"{x:.0f} %" for x in LARGE / 1000], (LARGE / 1000).round()),
    "1234.5%": ([f"{x}%" for x in SPREAD], np.array(SPREAD, float)),
    "1234.5 mg/l": ([f"{x} mg/l" for x in SPREAD], np.array(SPREAD, float)),
    "$1,234": ([f"${x:,.0f}" for x in LARGE * 100], (LARGE * 100).round()),
}


GROUPED = re.compile(r"\d{1,3}(?:[,.' \u202f]\d{3})+(?!\d)|\d+")


@pytest.mark.parametrize("picture", PICTURES)
def test_texts_of_money_are_numbers_that_a_twin_writes_alike(picture):
    texts, numbers = PICTURES[picture]
    draft = draft_schema({"id": range(N), "x": texts}, "p")
    assert draft.columns["x"].fields["number_format"] == picture
    assert f"texts are read as numbers, {picture} as " in draft.columns["x"].note
    schema = Schema.from_toml(confirmed(draft))
    np.testing.assert_array_equal(schema.columns["x"].quantities(pd.Series(texts)), numbers)
    dataset = VerticalDataset.from_frames(schema, {"p": pd.DataFrame({"id": range(N), "x": texts})})
    twin = dataset.to_frame()["x"]
    again = VerticalDataset.from_pooled(schema, pd.DataFrame({"x": twin}))
    np.testing.assert_array_equal(again.arrays("p")["x"], dataset.arrays("p")["x"])
    assert {GROUPED.sub("0", text) for text in twin} <= {GROUPED.sub("0", text) for text in texts}


def test_what_may_be_read_in_two_ways_is_drafted_as_somebody_says():
    frame = {"id": range(N), "x": [f"${x:,.0f}" for x in LARGE]}
    thousands = draft_schema(frame, "p", number_formats={"x": "$1,234"}).columns["x"].fields
    decimals = draft_schema(frame, "p", number_formats={"x": "$1234,567"}).columns["x"].fields
    assert (thousands["type"], decimals["type"]) == ("integer", "real")
    assert thousands["edges"][-1] > 1000 * decimals["edges"][-1] / 1.1
    assert draft_schema(frame, "p", decimal=",").columns["x"].fields["number_format"] == "$1234,500"
    with pytest.raises(SchemaError, match="show how the number 1234 is written"):
        draft_schema(frame, "p", number_formats={"x": "$1,000"})
    with pytest.raises(ArgumentError, match="no column 'y'"):
        draft_schema(frame, "p", number_formats={"y": "$1,234"})


def test_points_that_may_group_thousands_are_asked_about_and_never_dropped():
    frame = {"id": range(N), "x": [german(x, 0) for x in LARGE]}
    assert (
        'if its points group thousands, draft it with number_formats = "1.234"'
        in draft_schema(frame, "p").columns["x"].note
    )
    stated = draft_schema(frame, "p", decimal=",").columns["x"].fields  # then a point groups
    assert stated["number_format"] == "1.234"
    assert stated["edges"][-1] > 10_000


OTHERWISE = {
    "€ 1,234.50": ("€ 1,23", "€ 1.234", "$ 5", "5", "€ 1,234,50", "€ 0,123", "€ 12.345,50", "€ 1234 5", "€ -", "(€ 5)"),
    "1.234,50": ("1.5,2", "1,234", "1.23", "1_000", "1e3", "1.٢٣٤"),
    "(1,234)": ("(5", "5)", "1,2345"),
}


@pytest.mark.parametrize(("picture", "text"), [(picture, text) for picture in OTHERWISE for text in OTHERWISE[picture]])
def test_a_text_that_is_written_otherwise_is_refused_and_never_guessed(picture, text):
    column = BinnedColumn(bounds=(0, 10**6), bins=4, number_format=picture)
    with pytest.raises(DataError, match="is not written as number_format"):
        column.encode(pd.Series([text]), party="p", name="x")


@given(st.floats(-1e6, 1e6), st.sampled_from(list(PICTURES)))
def test_whatever_number_a_picture_writes_it_reads(number, picture):
    written = NumberFormat.of(picture)
    (text,) = written.write(np.array([number]))
    (read,) = written.read(pd.Series([text], dtype=object))
    assert read == pytest.approx(round(number, written.places), abs=0.51 * 10.0**-written.places)


@pytest.mark.parametrize("form", ["%d-%b-%Y", "%d %b %Y", "%Y%m%d", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d-%m-%Y"])
def test_dates_are_known_as_they_are_written(form):
    days = pd.DatetimeIndex(pd.Timestamp("2019-02-03") + pd.to_timedelta(RNG.integers(0, 900, N), "D"))
    frame = {"id": range(N), "x": days.strftime(form)}
    text = draft_schema(frame, "p").to_toml().replace("confirmed = false", "confirmed = true")
    column = Schema.from_toml(text).columns["x"]
    assert isinstance(column, DateColumn)
    assert column.format == form
    assert VerticalDataset.from_frames(Schema.from_toml(text), {"p": pd.DataFrame(frame)}).num_records == N


LABELS = {
    "quarters": ["Q1", "Q2", "Q3", "Q4"],
    "diagnoses": ["J40", "J44.1", "J45"],
    "plans": ["Plan 1", "Plan 2", "Plan 3"],
    "behind": ["1A", "2A", "3A"],
    "doses": ["5 mg", "10 mg", "20 mg"],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS.keys())
def test_few_labels_with_numbers_in_them_are_categories(labels):
    draft = draft_schema({"id": range(N), "x": RNG.choice(labels, N)}, "p").columns["x"]
    assert draft.fields == {"type": "categorical", "categories": sorted(labels)}


def test_many_labels_with_numbers_in_them_are_given_no_advice_that_spoils_them():
    note = draft_schema({"id": range(N), "x": [f"J{i % 90}" for i in range(N)]}, "p").columns["x"].note
    assert "leave it out" not in note


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
    frame = table()
    text = drafted(frame).to_toml()
    assert "isolation" not in text  # three records
    assert not re.search(r"\b\d+ missing", text)  # how many is nobody's business who reads the schema later
    costs = frame["cost"].str.replace(",", ".").astype(float)
    low, high = Schema.from_toml(confirmed(drafted(frame))).columns["cost"].limits
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
    text = draft_schema(frame, "p", epsilon=1e4).to_toml().replace("confirmed = false", "confirmed = true")
    for name, column in Schema.from_toml(text).columns.items():
        low, high = column.limits
        assert low <= frame[name].min()
        assert high >= frame[name].max()
        assert high - low <= 40 * (frame[name].max() - frame[name].min()) or low == 0


M = 20_000


def log_normal(mean, sigma, seed=1):
    return np.exp(np.random.default_rng(seed).normal(mean, sigma, M)).round(2)


def mixed(share, of, others, seed=2):
    return np.where(np.random.default_rng(seed).random(M) < share, of, others)


def pareto(scale, seed=3):
    return (scale * (1 + np.random.default_rng(seed).pareto(2.5, M))).round(2)


AMOUNTS = {
    "a tail": log_normal(6, 2),
    "zeros and a tail": mixed(0.7, 0, log_normal(6, 2)),
    "hardly anything but zeros": mixed(0.99, 0, log_normal(6, 1)),
    "pareto": pareto(1000),
    "pareto and zeros": mixed(0.3, 0, pareto(100)),
    "negative": -log_normal(6, 2),
    "gains and losses": mixed(0.5, log_normal(6, 1.5), -log_normal(5, 1.5, 4)),
    "two groups": mixed(0.5, log_normal(4.6, 0.05), log_normal(8.5, 0.2, 5)),
    "three prices": mixed(0.4, np.resize([10.0, 20.0, 49.99], M), log_normal(4, 1)),
    "normal": np.random.default_rng(6).normal(26, 5, M).round(1),
    "exponential": np.random.default_rng(7).exponential(50, M),
    "small numbers": log_normal(0, 2) * 1e-6,
    "counts": mixed(0.3, 0, log_normal(6, 2).round()),
    "scores": np.minimum(np.random.default_rng(8).integers(0, 180, M), 100.0),
}


@pytest.mark.parametrize("values", AMOUNTS.values(), ids=AMOUNTS.keys())
def test_what_is_drawn_from_drafted_bins_has_the_records_mean_median_and_zeros(values):
    draft = draft_schema({"id": range(M), "x": values}, "p")
    column = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true")).columns["x"]
    series = pd.Series(values)
    drawn = column.decode(column.encode(series, party="p", name="x"), np.random.default_rng(0))
    assert 1 / 1.15 < drawn.mean() / series.mean() < 1.15
    assert (drawn == 0).mean() == pytest.approx((series == 0).mean(), abs=0.01)
    assert series.quantile([0.45, 0.55]).is_monotonic_increasing
    assert series.quantile(0.45) <= drawn.median() <= series.quantile(0.55)
    assert column.num_values <= 40
    shares = np.bincount(column.encode(series, party="p", name="x"), minlength=column.num_values) / M
    said = {text for text in draft.columns["x"].note.split("; ") if "most of the records" in text}
    assert bool(said) == bool(shares.max() > 0.5)
    assert str(int(series.max())) not in draft.to_toml() or series.max() <= 100  # no record's own


def test_bins_are_as_few_as_the_noise_of_many_columns_asks_for_and_zero_stays_apart():
    rng = np.random.default_rng(0)
    frame = {
        "id": range(M),
        "claim": AMOUNTS["zeros and a tail"],
        "weight": AMOUNTS["normal"],
        "visits": rng.poisson(6, M),
        "seen": pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 1800, M), "D"),
        "born": pd.Timestamp("1930-01-01") + pd.to_timedelta(rng.integers(0, 25000, M), "D"),
        "town": rng.choice([f"town {k}" for k in range(20)], M),
    }
    cells = {}
    for num_columns in (5, 30):
        draft = draft_schema(frame, "p", num_columns=num_columns)
        schema = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true"))
        cells[num_columns] = {name: column.num_values for name, column in schema.columns.items()}
        assert "merge in the file what belongs together" in draft.columns["town"].note or num_columns == 5
    for name in ("claim", "weight", "visits", "seen"):
        assert 3 <= cells[30][name] <= 7 < 9 < cells[5][name]
    assert cells[30]["born"] <= 10
    claim, values = schema.columns["claim"], pd.Series(frame["claim"])
    drawn = claim.decode(claim.encode(values, party="p", name="claim"), np.random.default_rng(0))
    assert (drawn == 0).mean() == (values == 0).mean()
    edges = draft.columns["weight"].fields["edges"]
    assert all(edge == round(edge) for edge in edges)  # as a person would write them
    assert draft_schema(frame, "p", num_columns=30, epsilon=20.0).columns["weight"].fields.keys() >= {"bins"}
    with pytest.raises(ArgumentError, match="epsilon=0"):
        draft_schema(frame, "p", epsilon=0.0)


CODED = {
    "income": (np.where(np.arange(N) % 9 == 0, -999, RNG.normal(30000, 8000, N).clip(0).round(2)), [-999]),
    "age": (np.where(np.arange(N) % 9 == 0, 999, RNG.integers(18, 95, N)), [999]),
    "few are coded": (np.where(np.arange(N) < 2, 9999, RNG.integers(18, 95, N)), [9999]),
    "answers": (np.where(np.arange(N) % 9 < 2, np.arange(N) % 9 + 8, RNG.integers(1, 6, N)), [8, 9]),
    "yes or no": (np.where(np.arange(N) % 9 == 0, 9, RNG.integers(0, 2, N)), [9]),
    "amounts": (np.where(np.arange(N) % 9 == 0, -1, RNG.gamma(2, 100, N).round(1)), [-1]),
    "temperatures": (np.where(np.arange(N) % 9 == 0, -99.9, RNG.normal(5, 9, N).round(1)), [-99.9]),
    "children's ages": (np.where(np.arange(N) % 9 == 0, 8, RNG.integers(20, 95, N)), []),
    "digits": (RNG.integers(0, 10, N), []),
    "below zero": (RNG.normal(0, 5, N).round(1), []),
    "a scale": (RNG.integers(-2, 3, N), []),
    "months behind": (RNG.choice(np.arange(-2, 8), N, p=[0.13, 0.2, 0.52, 0.01, 0.12, 0.008, *[0.003] * 4]), []),
    "percent": (RNG.integers(0, 100, N), []),
}


@pytest.mark.parametrize(("values", "codes"), CODED.values(), ids=CODED.keys())
def test_numbers_that_look_like_codes_for_missing_are_named_and_are_no_bounds(values, codes):
    draft = draft_schema({"id": range(N), "x": values}, "p")
    fields = draft.columns["x"].fields
    assert fields.get("missing_codes", []) == codes
    assert ("code for a missing value" in draft.columns["x"].note) == bool(codes)
    assert ("if -2, -1 means missing" in draft.columns["x"].note) == (set(values[values < 0]) == {-2, -1})
    column = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true")).columns["x"]
    present = values[~np.isin(values, codes)]
    if column.limits:
        width = present.max() - present.min()
        assert column.limits[0] >= min(0, present.min()) - width / 2
        assert column.limits[1] <= present.max() + width
    coded = column.encode(pd.Series(values), party="p", name="x")
    assert (coded == column.num_values).sum() == np.isin(values, codes).sum()


@pytest.mark.parametrize("n", [12, 19, 25, 40])
def test_few_skewed_records_make_a_schema_all_the_same(n):
    tail = np.exp(np.linspace(0, 12, n))
    for values in (tail.round(2), tail.round(), -tail, np.where(np.arange(n) % 2, 0, tail)):
        draft = draft_schema({"id": range(n), "x": values}, "p")
        column = Schema.from_toml(draft.to_toml().replace("confirmed = false", "confirmed = true")).columns["x"]
        assert column.encode(pd.Series(values), party="p", name="x").max() < column.num_values


def test_a_frequent_code_among_the_values_is_asked_about():
    values = np.where(np.arange(N) % 5 == 0, -999, RNG.normal(0, 3000, N).round(2))
    assert "if -999 means missing, write missing_codes = [-999]" in draft_schema(
        {"id": range(N), "x": values}, "p"
    ).columns["x"].note  # fmt: skip


def test_texts_for_missing_among_numbers_may_be_listed(tmp_path):
    path = tmp_path / "p.csv"
    pd.DataFrame({"id": range(N), "x": ["n.d." if i < 20 else f"{i}.5" for i in range(N)]}).to_csv(path, index=False)
    column = {"type": "real", "bounds": [0, 500], "missing": "category"}
    schema = Schema.from_dict({"parties": {"p": {"columns": {"x": column}}}})
    with pytest.raises(DataError, match="list them there as missing_codes too"):
        VerticalDataset.from_files(schema, {"p": path})
    schema = Schema.from_dict({"parties": {"p": {"columns": {"x": column | {"missing_codes": ["n.d."]}}}}})
    assert (~VerticalDataset.from_files(schema, {"p": path}).arrays("p")["x_observed"]).sum() == 20


def test_a_drafted_schema_confirmed_as_it_stands_makes_a_twin_with_the_tables_mean_median_and_zeros():
    pytest.importorskip("mbi")
    claim = AMOUNTS["zeros and a tail"]
    income = np.where(np.arange(M) % 10 == 0, -999, log_normal(10, 0.5, 9))
    tables = {
        "a": pd.DataFrame({"id": range(M), "claim": claim}),
        "b": pd.DataFrame({"id": range(M), "income": income}),
    }
    texts = [draft_schema(table, party).to_toml(with_id=party == "a") for party, table in tables.items()]
    schema = Schema.from_toml("\n".join(texts).replace("confirmed = false", "confirmed = true"))
    twin = vnp.twin(tables, epsilon=1.0, schema=schema, rng_key=jax.random.key(0)).table
    assert 1 / 1.3 < twin["claim"].mean() / claim.mean() < 1.3
    assert 1 / 1.3 < twin["income"].mean() / income[income > 0].mean() < 1.3
    assert twin["claim"].median() == 0
    assert (twin["claim"] == 0).mean() == pytest.approx((claim == 0).mean(), abs=0.03)
    assert twin["income"].isna().mean() == pytest.approx(0.1, abs=0.03)
    assert twin["income"].min() >= 0
    assert (twin["claim"] == twin["claim"].round(2)).all()


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


@pytest.mark.parametrize("value", ["می\u200cخ", "\U0001f468\u200d\U0001f467"])  # a non-joiner, and a joiner
def test_a_value_with_a_character_that_no_schema_takes_is_not_drafted(value):
    made = draft_schema(pd.DataFrame({"id": range(100), "name": [value, "b"] * 50}), "a").to_toml()
    assert "a value holds a character that is not seen, \\u200" in made
    assert "categories" not in made


@pytest.mark.parametrize("most", [2, 3, 9, 30])
def test_whole_numbers_from_one_on_are_drafted_without_a_zero(most):
    values = pd.Series(np.resize(np.arange(1, most + 1), 1000))
    drafted = draft_schema(pd.DataFrame({"id": range(1000), "grade": values}), "p").to_toml()
    column = Schema.from_toml(drafted.replace("confirmed = false", "confirmed = true")).columns["grade"]
    assert column.encoded_range[0] == 0
    assert float(column.decode(np.zeros(1, np.int64), np.random.default_rng(0)).iloc[0]) >= 1
