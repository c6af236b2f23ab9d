"""Several rows of a person become one record by public rules: each rule, who has no rows, and the same from disk."""

import pickle

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import AlignmentError, DataError, SchemaError
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    DateColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Rows,
    Schema,
    Take,
    VerticalDataset,
    aggregation,
    draft_schema,
    streaming,
)
from vertinumpyro.data.aggregation import records_of

WARD = CategoricalColumn(categories=("a", "b", "c"), missing="category")
MONEY = RealColumn(bounds=(0, 1000), missing="category", out_of_bounds="clip")
DAY = DateColumn(bounds=("2021-01-01", "2022-12-31"), unit="day", missing="category", format="%d.%m.%Y")
SICK = BinaryColumn(categories=("no", "yes"), missing="category")
DAYS = IntegerColumn(bounds=(0, 900), missing="category")
CODED = RealColumn(bounds=(0, 999), missing="mask", missing_codes=(-999,))
COUNT = CountColumn(upper=50)

# 1: several rows, with gaps and equal days; 2: one row; 3: only an id; 4 is no person of this party
VISITS = pd.DataFrame(
    {
        "id": ["2", "1", "1", "3", "1", "1"],
        "day": ["05.03.2021", "02.02.2022", "31.12.2021", None, "02.02.2022", "03.01.2022"],
        "ward": ["c", "a", "b", None, "b", None],
        "cost": [7.5, 100.0, np.nan, np.nan, -999.0, 20.25],
        "sick": ["no", "no", None, None, "yes", "no"],
    }
)
PERSONS = pd.DataFrame({"id": ["1", "2", "3", "4"], "age": [30, 40, 50, 60]})


def schema(column, take, **rows):
    order = {"order": "day", "order_format": "%d.%m.%Y"} | rows
    clinic = PartySchema({"x": column}, Rows(per="id", take={"x": take}, **order))
    return Schema({"clinic": clinic, "bank": PartySchema({"age": IntegerColumn(bounds=(0, 99))})})


COST = {"of": "cost", "missing_codes": (-999,)}
RULES = {
    "count": (COUNT, Take(rule="count"), [4, 1, 0]),
    "count of values": (COUNT, Take(rule="count", of="cost", missing_codes=(-999,)), [2, 1, 0]),
    "count from 5": (COUNT, Take(rule="count", without_rows=5), [4, 1, 5]),
    "sum": (MONEY, Take(rule="sum", **COST), [120.25, 7.5, None]),
    "sum or 0": (MONEY, Take(rule="sum", without_rows=0, **COST), [120.25, 7.5, 0]),
    "mean": (MONEY, Take(rule="mean", **COST), [60.125, 7.5, None]),
    "min": (CODED, Take(rule="min", of="cost"), [20.25, 7.5, None]),
    "max": (MONEY, Take(rule="max", of="cost"), [100, 7.5, None]),
    "earliest": (DAY, Take(rule="min", of="day"), ["31.12.2021", "05.03.2021", None]),
    "latest": (DAY, Take(rule="max", of="day"), ["02.02.2022", "05.03.2021", None]),
    "first": (WARD, Take(rule="first", of="ward"), ["b", "c", None]),
    "last, of equal days": (WARD, Take(rule="last", of="ward"), ["b", "c", None]),
    "any": (SICK, Take(rule="any", of="sick"), ["yes", "no", None]),
    "any or no": (SICK, Take(rule="any", of="sick", without_rows="no"), ["yes", "no", "no"]),
    "most frequent": (WARD, Take(rule="most frequent", of="ward", without_rows="a"), ["b", "c", "a"]),
    "days between": (DAYS, Take(rule="days between", of="day", format="%d.%m.%Y"), [33, 0, None]),
}  # fmt: skip


def told(records):
    return [None if pd.isna(value) else value for value in records["x"]]


@pytest.mark.parametrize(("column", "take", "expected"), RULES.values(), ids=RULES.keys())
def test_each_rule_makes_one_record_of_a_person(column, take, expected):
    found = records_of(VISITS, schema(column, take), "clinic", absent=["4"])
    assert found["id"].tolist() == ["1", "2", "3", "4"]
    assert told(found) == [*expected, expected[-1]]  # a row of an id alone is none
    again = records_of(VISITS.iloc[::-1], schema(column, take), "clinic", absent=["4"])
    pd.testing.assert_frame_equal(again, found)


@pytest.mark.parametrize("name", RULES)
def test_files_and_blocks_on_disk_say_what_frames_say(name, tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "ROWS_READ", 2)
    monkeypatch.setattr(aggregation, "_FILE_BYTES", 50)
    public = schema(*RULES[name][:2])
    whole = VerticalDataset.from_frames(public, {"clinic": VISITS, "bank": PERSONS})
    assert whole.num_records == 4
    for suffix in ("csv", "parquet"):
        paths = {"clinic": tmp_path / f"visits.{suffix}", "bank": tmp_path / f"persons.{suffix}"}
        for frame, path in zip((VISITS, PERSONS), paths.values(), strict=True):
            frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
        for spool in (None, tmp_path):
            found = VerticalDataset.from_files(public, paths, spool=spool)
            for array in ("x", "age"):
                np.testing.assert_array_equal(found.pooled()[array], whole.pooled()[array])
            assert found.schema.restrict("clinic") == whole.schema.restrict("clinic") == public.restrict("clinic")


def test_many_persons_in_any_order_are_the_same_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "ROWS_READ", 100)
    monkeypatch.setattr(aggregation, "_FILE_BYTES", 500)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"id": rng.integers(0, 150, 1000), "cost": rng.gamma(1.0, 50.0, 1000)})
    rows.to_parquet(tmp_path / "c.parquet")
    pd.DataFrame({"id": range(160), "age": 3}).to_parquet(tmp_path / "b.parquet")
    paths = {"clinic": tmp_path / "c.parquet", "bank": tmp_path / "b.parquet"}
    public = schema(MONEY, Take(rule="sum", of="cost", without_rows=0), order=None, order_format=None)
    expected = rows.groupby("id")["cost"].sum().reindex(range(160), fill_value=0).clip(0, 1000)
    expected = expected[sorted(expected.index, key=str)]
    found = [VerticalDataset.from_files(public, paths, spool=spool).pooled()["x"] for spool in (None, tmp_path)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], np.clip(expected / 1000, 1e-6, 1 - 1e-6), atol=2e-6)
    workers = VerticalDataset.from_files(public, paths, spool=tmp_path, workers=2).pooled()["x"]
    np.testing.assert_array_equal(workers, found[0])


def test_rows_of_money_texts_are_added_up_and_a_twin_writes_the_sum_alike(tmp_path):
    rows = pd.DataFrame({"id": ["1", "1", "2"], "cost": ["€ 1,000.50", "-€ 0.25", None]})
    money = RealColumn(bounds=(0, 2000), missing="category", number_format="€ 1,234.50")
    public = schema(money, Take(rule="sum", of="cost"), order=None, order_format=None)
    rows.to_csv(tmp_path / "c.csv", index=False)
    pd.DataFrame({"id": ["1", "2"], "age": 3}).to_csv(tmp_path / "b.csv", index=False)
    for spool in (None, tmp_path):
        paths = {"clinic": tmp_path / "c.csv", "bank": tmp_path / "b.csv"}
        twin = VerticalDataset.from_files(public, paths, spool=spool).to_frame()["x"]
        assert twin.fillna("none").tolist() == ["€ 1,000.25", "none"]


def test_a_schema_keeps_its_rules_and_its_digest_covers_them():
    public = schema(MONEY, Take(rule="sum", **COST))
    assert Schema.from_toml(public.to_toml()) == public == pickle.loads(pickle.dumps(public))
    assert public.with_dtypes({}) == public
    assert public.restrict("clinic").parties["clinic"].rows == public.parties["clinic"].rows
    plain = Schema({party: PartySchema(part.columns) for party, part in public.parties.items()})
    digests = {s.digest() for s in (public, plain, schema(MONEY, Take(rule="mean", **COST)))}
    assert len(digests) == 3
    assert "rows" not in plain.to_toml()
    with pytest.raises(AlignmentError, match="duplicate ids"):
        VerticalDataset.from_frames(plain, {"clinic": VISITS.assign(x=1.0), "bank": PERSONS})


BAD = {
    "a rule that is none": ("rule = 'sum'", "rule = 'total'", "take.x: rule = 'total'; choose one of 'count'"),
    "a key that is none": ("of = 'cost'", "off = 'cost'", "take.x: unknown key 'off'; did you mean 'of'?"),
    "another type": ("rule = 'sum'", "rule = 'any'", "column 'x': rule \"any\" makes no real column"),
    "no order": ("rule = 'sum'", "rule = 'first'", 'rule "first" needs an order'),
    "no rule": ("take.x]", "take.y]", "'x': has no rule"),
    "a stranger": ("take.x]", "take.y]", "there is no column 'y'; known: 'x'"),
    "another id": ("per = 'id'", "per = 'nr'", "per = 'nr'; give the id column, 'id'"),
    "no id": ("per = 'id'", "", "needs per"),
    "out of the domain": ("of = 'cost'", "without_rows = 11", "without_rows = 11 is no value of the column"),
    "codes at the column": ("bounds", "missing_codes = [-9]\nbounds", "move them from the column to the rule"),
    "drafted": ("per = 'id'", "per = 'id'\nconfirmed = false", "the rules follow from private records"),
}
TEXT = """
[parties.p.rows]
per = 'id'
[parties.p.rows.take.x]
rule = 'sum'
of = 'cost'
[parties.p.columns.x]
type = 'real'
bounds = [0, 10]
missing = 'mask'
"""


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
def test_rules_that_do_not_fit_are_refused_by_name(old, new, message):
    Schema.from_toml(TEXT)
    with pytest.raises(SchemaError) as caught:
        Schema.from_toml(TEXT.replace(old, new))
    assert message in str(caught.value)
    assert "party 'p'" in str(caught.value)


def test_rows_that_break_a_rule_name_party_column_and_rule_and_no_value():
    required = schema(CategoricalColumn(categories=("a", "b", "c")), Take(rule="last", of="ward"))
    with pytest.raises(DataError, match="party 'clinic', column 'x': rule \"last\" finds no value for some ids"):
        records_of(VISITS, required, "clinic")
    public = schema(WARD, Take(rule="last", of="ward"))
    with pytest.raises(DataError, match="column 'day': orders the rows for rule \"last\" and has missing values"):
        records_of(VISITS.assign(day=None), public, "clinic")
    with pytest.raises(DataError, match="column 'day': holds a value that is no date in the format") as caught:
        records_of(VISITS.assign(day="secret"), public, "clinic")
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="column 'cost': is not in the table"):
        records_of(VISITS.drop(columns="cost"), schema(MONEY, Take(rule="sum", **COST)), "clinic")


def test_an_id_that_others_do_not_have_is_unmatched_as_ever():
    public, bank = schema(COUNT, Take(rule="count")), PERSONS.iloc[1:]
    with pytest.raises(AlignmentError, match="1 of party 'clinic'"):
        VerticalDataset.from_frames(public, {"clinic": VISITS, "bank": bank})
    found = VerticalDataset.from_frames(public, {"clinic": VISITS, "bank": bank}, unmatched="drop")
    assert found.arrays("clinic")["x"].tolist() == [1, 0, 0]


def test_who_has_no_row_has_a_cell_of_the_count():
    rows = pd.DataFrame({"id": np.repeat(np.arange(400), np.arange(400) % 40 + 1), "x": 0.5})
    rows["x"] += np.arange(len(rows)) % 7
    edges = draft_schema(rows, "clinic", num_columns=40).columns["num_rows"].fields["edges"]
    assert edges[:2] == [0, 1]
    assert sorted(set(edges)) == edges


def test_a_draft_of_repeated_ids_proposes_rules_that_the_rows_keep():
    rng = np.random.default_rng(1)
    person = np.repeat(np.arange(300), rng.integers(1, 6, 300))
    n = len(person)
    rows = pd.DataFrame({
        "id": [f"{i:04d}" for i in person],
        "born": [str(1940 + i % 60) for i in person],
        "amount": [f"{x:.2f}" for x in np.where(rng.random(n) < 0.1, -999.0, rng.gamma(2.0, 40.0, n).round(2))],
        "grade": rng.integers(1, 30, n).astype(str),
        "urgent": rng.integers(0, 2, n).astype(str),
        "ward": rng.choice(["east", "west"], n),
        "seen": [f"{d:02d}.03.2024" for d in rng.integers(1, 29, n)],
        "remark": [f"text number {i}" for i in range(n)],
    })  # fmt: skip
    draft = draft_schema(rows, "clinic")
    rules = {name: column.take.get("rule") for name, column in draft.columns.items()}
    assert rules == {
        **{"num_rows": "count", "born": "most frequent", "amount": "sum", "grade": "max", "urgent": "any"},
        **{"ward": "most frequent", "seen": "max", "remark": None},
    }
    assert draft.columns["amount"].take["missing_codes"] == [-999]
    text = draft.to_toml()
    with pytest.raises(SchemaError, match="the rules follow from private records"):
        Schema.from_toml(text)
    public = Schema.from_toml(text.replace("confirmed = false", "confirmed = true"))
    frame = rows.astype({"amount": float, "born": int, "grade": int, "urgent": int})
    records = records_of(frame, public, "clinic")
    money = frame["amount"].where(frame["amount"] > 0).groupby(person).sum(min_count=1)
    np.testing.assert_allclose(records["amount"].astype(float), money, rtol=1e-9)
    assert records["grade"].tolist() == frame["grade"].groupby(person).max().tolist()
    assert VerticalDataset.from_frames(public, {"clinic": frame}).num_records == 300
