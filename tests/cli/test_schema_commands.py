"""`schema draft`, from the files of two parties to a schema that a plan takes."""

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import invoke
from vertinumpyro.cli import schema_commands
from vertinumpyro.data import Schema


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    clinic = pd.DataFrame({"nr": range(200), "alter": rng.integers(18, 90, 200), "größe": rng.normal(170, 9, 200)})
    clinic.to_csv(tmp_path / "clinic.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    insurer = pd.DataFrame({"nr": range(200), "plan": rng.choice(["a", "b"], 200), "claims": rng.integers(0, 5, 200)})
    insurer.to_parquet(tmp_path / "insurer.parquet")
    return tmp_path


WRITTEN = ("--separator", ";", "--encoding", "cp1252", "--decimal", ",")


def drafted(files, name, party, *options):
    return invoke("schema", "draft", files / name, "--party", party, "--id", "nr", "--out", files / "s.toml", *options)


def said(result):
    return result.exit_code, " ".join(result.stderr.replace("│", " ").split())


def test_a_date_is_shown_by_its_years(files):
    admitted = pd.date_range("2019-03-04", periods=200, freq="5D").strftime("%d.%m.%Y")
    pd.DataFrame({"nr": range(200), "aufnahme": admitted}).to_csv(files / "ward.csv", index=False)
    result = drafted(files, "ward.csv", "ward")
    assert result.exit_code == 0, result.stderr
    assert "2019-01-01 to 2021-12-31" in result.output


def test_skewed_amounts_are_shown_by_their_outer_edges_and_notes_are_no_markup(files):
    amounts = np.where(np.arange(200) % 2, -999, np.where(np.arange(200) % 4, 0, np.arange(200) ** 3 / 8))
    pd.DataFrame({"nr": range(200), "betrag": amounts}).to_csv(files / "ward.csv", index=False)
    result = drafted(files, "ward.csv", "ward")
    assert result.exit_code == 0, result.stderr
    assert "0 to 1e+06" in result.output
    assert "missing_codes" in result.output
    assert "missing_codes = [-999]" in (files / "s.toml").read_text(encoding="utf-8")


def test_two_parties_drafts_make_one_schema(files, monkeypatch):
    monkeypatch.setattr(schema_commands.console, "width", 80)
    first = drafted(files, "clinic.csv", "clinic", *WRITTEN)
    assert first.exit_code == 0, first.output + first.stderr
    assert "confirmed = true" in first.output
    assert max(len(line.rstrip()) for line in first.output.splitlines() if str(files) not in line) <= 80
    second = drafted(files, "insurer.parquet", "insurer")
    assert second.exit_code == 0, second.output + second.stderr
    text = (files / "s.toml").read_text(encoding="utf-8")
    config = files / "config.toml"
    config.write_text('schema = "s.toml"\n[data]\nnum_records = 200\n[privacy]\nepsilon = 1.0\ndelta = 1e-5\n')
    code, told = said(invoke("plan", config))
    assert (code, "read from private records" in told) == (2, True)
    (files / "s.toml").write_text(text.replace("confirmed = false", "confirmed = true"), encoding="utf-8")
    schema = Schema.from_toml(files / "s.toml")
    assert {party: list(part.columns) for party, part in schema.parties.items()} == {
        "clinic": ["alter", "größe"],
        "insurer": ["plan", "claims"],
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), 'looks like cp1252 text: set encoding = "cp1252"'),
        (("--encoding", "cp1252"), 'looks separated by semicolons: set separator = ";"'),
        ((*WRITTEN[:-1], "x"), "decimal = 'x'"),
    ],
)
def test_a_file_that_is_written_otherwise_says_how(files, options, why):
    code, text = said(drafted(files, "clinic.csv", "clinic", *options))
    assert (code, why in text) == (2, True), text
    assert not (files / "s.toml").exists()


def test_a_party_is_drafted_once(files):
    assert drafted(files, "insurer.parquet", "insurer").exit_code == 0
    code, text = said(drafted(files, "insurer.parquet", "insurer"))
    assert (code, "'insurer' is in it already" in text) == (2, True)


def test_each_party_may_have_its_own_name_for_the_ids(files):
    assert drafted(files, "insurer.parquet", "insurer").exit_code == 0
    pd.DataFrame({"Kunde": range(200), "x": range(200)}).to_csv(files / "bank.csv", index=False)
    unnamed = said(invoke("schema", "draft", files / "bank.csv", "--party", "bank", "--out", files / "s.toml"))
    assert unnamed[0] == 2
    assert "name the column of ids with --id" in unnamed[1]
    second = invoke(
        "schema", "draft", files / "bank.csv", "--party", "bank", "--id", "Kunde", "--out", files / "s.toml"
    )
    assert second.exit_code == 0, second.stderr
    setting = 'id_column.bank = "Kunde"'
    assert setting in second.output
    text = (files / "s.toml").read_text(encoding="utf-8").replace("confirmed = false", "confirmed = true")
    (files / "s.toml").write_text(text, encoding="utf-8")
    config = files / "config.toml"
    tables = 'data.files = {insurer = "insurer.parquet", bank = "bank.csv"}\nprivacy.epsilon = 1.0\n'
    config.write_text(f'schema = "s.toml"\n{tables}')
    code, text = said(invoke("check", config))
    assert (code, "say what it calls the ids (id_column.bank under [data])" in text) == (2, True), text
    config.write_text(f'schema = "s.toml"\ndata.{setting}\n{tables}')
    checked = invoke("check", config)
    assert checked.exit_code == 0, checked.stderr
    assert "200" in checked.output
    config.write_text(f'schema = "s.toml"\ndata.id_column.bank = "x"\n{tables}')
    code, text = said(invoke("check", config))
    assert (code, "[data] id_column: 'x' is a column of the schema" in text) == (2, True), text
