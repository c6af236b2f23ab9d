"""From raw files with many rows of a person to a twin with one row each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import vertinumpyro as vnp
from tests.cli.conftest import invoke
from vertinumpyro.cli import schema_commands
from vertinumpyro.data import CsvFormat, Schema
from vertinumpyro.data.streaming import count_common
from vertinumpyro.mrf.field import has_engine


def test_claims_of_persons_become_a_twin_of_persons(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(schema_commands.console, "width", 80)
    rng = np.random.default_rng(0)
    person = rng.permutation(np.repeat(np.arange(300), rng.integers(0, 5, 300)))
    claims = pd.DataFrame({"nr": person, "amount": rng.gamma(2.0, 40.0, len(person)).round(2)})
    claims["ward"] = rng.choice(["east", "west"], len(person))
    claims.to_csv(tmp_path / "claims.csv", index=False)
    persons = pd.DataFrame({"nr": range(300), "sex": rng.choice(["f", "m"], 300)})
    persons.to_csv(tmp_path / "persons.csv", index=False)
    schema, config = tmp_path / "schema.toml", tmp_path / "config.toml"
    for party in ("claims", "persons"):
        drafted = invoke("schema", "draft", tmp_path / f"{party}.csv", "--party", party, "--id", "nr", "--out", schema)
        assert drafted.exit_code == 0, drafted.output + drafted.stderr
        assert ("The epsilon is then a person's" in " ".join(drafted.output.split())) == (party == "claims")
        lines = [line for line in drafted.output.splitlines() if str(tmp_path) not in line]
        assert max(len(line.rstrip()) for line in lines) <= 80
    schema.write_text(schema.read_text().replace("confirmed = false", "confirmed = true"))
    files = "\n".join(f'{party} = "{party}.csv"' for party in ("claims", "persons"))
    config.write_text(f'schema = "schema.toml"\n[data.files]\n{files}\n[privacy]\nepsilon = 50.0\ndelta = 1e-5\n')
    planned = invoke("plan", config)
    assert planned.exit_code == 0, planned.output + planned.stderr
    checked = " ".join(invoke("check", config).output.split())
    assert f"claims: {len(person):,} rows of {claims['nr'].nunique()} persons" in checked
    assert "persons: 300 records" in checked
    paths = {party: tmp_path / f"{party}.csv" for party in ("claims", "persons")}
    assert count_common(Schema.from_toml(schema), paths, dict.fromkeys(paths, CsvFormat())) == 300
    fitted = invoke("fit", config, "--out", tmp_path / "run")
    assert fitted.exit_code == 0, fitted.output + fitted.stderr
    twin = pd.read_csv(tmp_path / "run" / "synthetic.csv")
    assert len(twin) == 300
    assert abs(twin["num_rows"].mean() - len(person) / 300) < 0.3
    without = twin["num_rows"] == 0  # has nothing that follows from rows
    assert without.sum() > 20
    assert twin.loc[without, ["amount", "ward"]].isna().all(axis=None)
    assert abs(twin["amount"].isna().mean() - (1 - claims["nr"].nunique() / 300)) < 0.05


# -- ten kinds of files with several rows of a person ----------------------------------------------

NUM = 3000
SEMICOLONS = {"separator": ";", "decimal": ",", "encoding": "latin-1"}


def money(rng: np.random.Generator, num: int, middle: float, zeros: float = 0.0) -> np.ndarray:
    return np.where(rng.random(num) < zeros, 0.0, np.exp(np.log(middle) + 0.7 * rng.normal(size=num)).round(2))


def words(*names: str, first: float) -> Any:
    others = [(1 - first) / (len(names) - 1)] * (len(names) - 1)
    return lambda rng, num: rng.choice(names, num, p=[first, *others])


def days(rng: np.random.Generator, num: int) -> Any:
    return (pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 700, num), "D")).strftime("%Y-%m-%d")


def glucose(rng: np.random.Generator, num: int) -> np.ndarray:
    return np.where(rng.random(num) < 0.3, -999.0, rng.normal(5.5, 0.8, num).round(1))


RULES: Mapping[str, Any] = {
    "count": lambda rows: rows.size(),
    "sum": lambda rows: rows.sum(min_count=1),
    "max": lambda rows: rows.max(),
    "words": lambda rows: rows.agg(lambda one: one.mode().iloc[0]),
}
KINDS: Mapping[str, tuple[str, Mapping[str, str], float, Mapping[str, tuple[str, Any]]]] = {
    # the file's suffix, how it is written, rows of a person beyond the first, columns: what a record has of them
    "claims": ("csv", {}, 0.6, {"paid": ("sum", lambda rng, num: money(rng, num, 900, 0.4)),
                                "garage": ("words", words("own", "other", first=0.7))}),
    "visits": ("csv", {}, 0.8, {"cost": ("sum", lambda rng, num: money(rng, num, 80)), "seen": ("max", days)}),
    "prescriptions": ("tsv", {}, 1.5, {"drug": ("words", words("A10", "C09", "N02", first=0.5)),
                                       "doses": ("max", lambda rng, num: rng.poisson(30, num))}),
    "loans": ("csv", {}, 0.3, {"amount": ("max", lambda rng, num: money(rng, num, 9000).round(-2).astype(int)),
                               "late_fees": ("sum", lambda rng, num: money(rng, num, 25, 0.75))}),
    "stays": ("parquet", {}, 0.4, {"nights": ("max", lambda rng, num: 1 + rng.poisson(3, num)),
                                   "theatre": ("sum", lambda rng, num: money(rng, num, 2000, 0.6))}),
    "laboratory": ("csv", {}, 0.5, {"glucose": ("sum", glucose), "unit": ("words", words("a", "b", first=0.5))}),
    "calls": ("csv.gz", {}, 3.0, {"minutes": ("sum", lambda rng, num: money(rng, num, 6, 0.3)),
                                  "evening": ("words", words("yes", "no", first=0.4))}),
    "donations": ("csv", SEMICOLONS, 1.0, {"given": ("sum", lambda rng, num: money(rng, num, 40)),
                                           "way": ("words", words("\u00dcberweisung", "bar", first=0.8))}),
    "absences": ("csv", {}, 2.0, {"hours": ("max", lambda rng, num: rng.integers(1, 9, num)),
                                  "excused": ("words", words("yes", "no", first=0.85))}),
    "payments": ("csv", {}, 6.0, {"amount": ("sum", lambda rng, num: money(rng, num, 30, 0.1)),
                                  "place": ("words", words("shop", "net", "abroad", first=0.6))}),
}  # fmt: skip


@pytest.mark.skipif(not has_engine(), reason="Markov random fields: extra `mrf`")
@pytest.mark.parametrize("kind", KINDS)
def test_files_of_many_rows_become_records_that_a_twin_has_as_they_are(kind: str, tmp_path: Path):
    """From `schema draft` as it stands but for `confirmed`: medians, zeros, missing values, words, rows of a person."""
    suffix, written, more, columns = KINDS[kind]
    rng = np.random.default_rng(list(KINDS).index(kind))
    person = rng.permutation(np.repeat(np.arange(NUM), (rng.random(NUM) < 0.8) * (1 + rng.poisson(more, NUM))))
    rows = pd.DataFrame({"id": person, **{name: make(rng, len(person)) for name, (_, make) in columns.items()}})
    persons = pd.DataFrame({"id": range(NUM), "sex": rng.choice(["f", "m"], NUM)})
    paths = {"events": tmp_path / f"events.{suffix}", "people": tmp_path / "people.csv"}
    out, options = tmp_path / "schema.toml", [text for key, value in written.items() for text in (f"--{key}", value)]
    how = {"sep": written.get("separator", "\t" if suffix == "tsv" else ","), "decimal": written.get("decimal", ".")}
    if suffix == "parquet":
        rows.to_parquet(paths["events"])
    else:
        rows.to_csv(paths["events"], index=False, encoding=written.get("encoding", "utf-8"), **how)
    persons.to_csv(paths["people"], index=False, sep=written.get("separator", ","))
    for party, path in paths.items():
        drafted = invoke("schema", "draft", path, "--party", party, "--out", out, *options)
        assert drafted.exit_code == 0, drafted.output + drafted.stderr
    schema = Schema.from_toml(out.read_text().replace("confirmed = false", "confirmed = true"))
    dataset = vnp.VerticalDataset.from_files(schema, paths, **written)
    assert dataset.num_records == NUM
    method = vnp.VertiMRF(iterations=100)
    fitted = method.fit(dataset, method.plan(dataset, epsilon=20.0, delta=1e-5))
    twin = fitted.sample_synthetic(20_000, rng_key=jax.random.key(0))
    by_person = rows.replace(-999.0, np.nan).groupby("id")
    for name, rule in {"num_rows": "count", **{name: rule for name, (rule, _) in columns.items()}}.items():
        made = RULES[rule](by_person[name] if rule != "count" else by_person)
        made, drawn = made.reindex(range(NUM), fill_value=0 if rule == "count" else None), pd.Series(twin[name])
        assert abs(made.isna().mean() - drawn.isna().mean()) < 0.04, name
        made, drawn = made.dropna(), drawn.dropna()
        if rule == "words":
            assert (made.value_counts(normalize=True) - drawn.value_counts(normalize=True)).abs().max() < 0.04, name
            continue
        if name == "seen":
            made, drawn = (pd.to_datetime(one).astype("datetime64[ns]").astype("int64") for one in (made, drawn))
        assert abs((made == 0).mean() - (drawn == 0).mean()) < 0.04, name
        below, up_to = (made < drawn.median()).mean(), (made <= drawn.median()).mean()
        assert max(below - 0.5, 0.5 - up_to) < 0.05, name  # the twin's median is one of the records
