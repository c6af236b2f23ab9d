"""`--method vertimrf` end to end on a small table."""

import json
import re

import pandas as pd
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.cli.conftest import NUM_RECORDS, Project, one_line
from vertinumpyro.cli.terminal import console
from vertinumpyro.data import streaming
from vertinumpyro.mrf import vertimrf
from vertinumpyro.privacy import ledger

SETTINGS = """
schema = "schema.toml"

[data.files]
insurer = "insurer.csv"
clinic = "clinic.csv"

[privacy]
epsilon = 4.0
delta = 1e-4

[mrf]
iterations = 50
max_cells = 4
bins = { visits = 3 }
"""


@pytest.fixture
def field(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr(console, "_width", 160)  # no cell of a table is wrapped
    project.config.write_text(SETTINGS)
    return project


def test_plan_and_check_spend_nothing(field: Project):
    shown = field.run("plan", field.config, "--method", "vertimrf")
    assert shown.exit_code == 0, shown.output
    assert all(name in shown.output for name in ("outside analyst", "insurer", "clinic", "secure_marginals"))
    checked = field.run("check", field.config, "--method", "vertimrf")
    assert "Ready to fit" in checked.output
    foreseen = [re.search(r"will hold: about (\d) of 6", one_line(told.output)) for told in (shown, checked)]
    assert all(foreseen)
    told = json.loads(field.run("plan", field.config, "--method", "vertimrf", "--json").stdout)
    kept = told["forecast"].pop("kept_of_correlations")
    assert f"{100 * kept['0.2']:.0f} % if it is 0.2" in one_line(shown.output)
    assert told["forecast"] == {"held_pairs": int(foreseen[0][1]), "pairs": 6}
    by_records = re.search(
        r"By these records about (\d) of 6 pairs will show an association, .* within insurer.* NOT DP",
        one_line(checked.output),
    )
    assert by_records
    told = json.loads(field.run("check", field.config, "--method", "vertimrf", "--json").stdout)
    assert told["not_dp"]["forecast"] == {"showing_pairs": int(by_records[1]), "pairs": 6}
    field.replace("[data.files]", '[data]\nspool = "."\n\n[data.files]')
    assert f"{NUM_RECORDS}" in field.run("plan", field.config, "--method", "vertimrf").output
    assert "Ready to fit" in field.run("check", field.config, "--method", "vertimrf").output
    assert not field.run_dir.exists()


def test_an_encoder_without_a_claim_against_parties_says_so(field: Project):
    field.replace("max_cells = 4", 'max_cells = 4\nencoder = "sketch"\nnum_keys = 100')
    refused = field.run("plan", field.config, "--method", "vertimrf")
    assert "parties know hash keys" in one_line(refused.stderr)
    field.replace("epsilon = 4.0", 'epsilon = 4.0\nadversary = "outside analyst"')
    shown = field.run("plan", field.config, "--method", "vertimrf").output
    assert "No guarantee against insurer" in shown
    rows = [
        line for line in shown.splitlines() if line.strip().startswith(("insurer  ", "clinic  ")) and "VPDP" in line
    ]
    assert len(rows) == 2
    assert all("hash keys" in row and "∞" in row for row in rows)


def test_fit_writes_everything_once(field: Project):
    result = field.run("fit", field.config, "--method", "vertimrf")
    assert result.exit_code == 0, result.output
    assert result.output.index("Privacy plan") < result.output.index("Fitting") < result.output.index("Written to")
    assert "2 of 2 steps recorded as spent" in result.output
    assert result.output.index("will hold: about") < result.output.index("Fitting")
    again = one_line(field.run("plan", field.config, "--method", "vertimrf", "--earlier", field.run_dir).output)
    held = re.search(r"The twin holds (\d|all) .* (\d) pairs? shows? one\.", one_line(result.output))
    foreseen = re.search(r"hold: about (\d) of 6: .* About (\d) pairs will show one, as the earlier release has", again)
    assert held
    assert foreseen
    assert abs(int(foreseen[1]) - int(held[1].replace("all", "6"))) <= 1
    assert abs(int(foreseen[2]) - int(held[2])) <= 2
    record = json.loads((field.run_dir / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 2)
    table = pd.read_csv(field.run_dir / "synthetic.csv")
    assert list(table.columns) == ["plan", "visits", "age", "ill"]
    assert len(table) == NUM_RECORDS
    report = (field.run_dir / "report.html").read_text()
    assert "outside analyst" in report
    assert re.search(r"<header>.*?The twin holds (\d of|all) 6 pairs of columns.*?</header>", report, re.DOTALL)
    assert str(field.folder) not in report
    check_report(report)
    again = field.run("fit", field.config, "--method", "vertimrf")
    assert again.exit_code == 2
    assert "PlanSpentError" in again.stderr


def check_report(report: str) -> None:
    """What a reader needs who was not there: words, the twin beside what was released, records, code; all DP."""
    headings = re.findall(r"<h2>([^<]*)</h2>", report)
    assert headings == [
        *("Warnings", "Privacy", "Is the twin like what was released?", "Synthetic data", "What was learned"),
        *("How to load it", "Timing and configuration"),
    ]
    assert "a test whether one person" in report
    assert "read_parquet" in report
    assert "noise in a share, ± 2 sd" in report
    assert "of 6 tables say more than their noise" in report
    images = re.findall(r"<img [^>]*>", report)
    assert len(images) == 3
    assert all(len(re.search(r'alt="([^"]*)"', image)[1]) > 20 for image in images)
    assert "Nothing in this report was computed on real data outside the mechanism" in report


def test_diagnostics_are_marked_and_files_read_in_blocks_are_the_same_records(
    field: Project, monkeypatch: pytest.MonkeyPatch
):
    field.config.write_text(SETTINGS + "\n[run]\ndiagnostics = true\nnum_synthetic = 50\n")
    field.replace("[data.files]", '[data]\nspool = "."\n\n[data.files]')
    monkeypatch.setattr(streaming, "ROWS_READ", 40)
    result = field.run("fit", field.config, "--method", "vertimrf")
    assert len(pd.read_parquet(field.run_dir / "synthetic.parquet")) == 50
    assert "not DP" in result.output
    assert "not DP" in (field.run_dir / "report.html").read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[mrf]", "[fit]\nnum_steps = 3\n\n[mrf]", "[fit] num_steps is nothing that --method vertimrf reads"),
        ("max_cells = 4", 'encoder = "sketch_shared_key"', "reconstructed"),
        ("max_cells = 4", "clique_limit = 5", "bin them"),
        ("max_cells = 4", "refinement_rounds = 1", "refinement_rounds"),
    ],
)
def test_wrong_settings(field: Project, old: str, new: str, message: str):
    field.replace(old, new)
    assert message in field.fails("plan", field.config, "--method", "vertimrf")


def test_further_tables_cost_nothing(field: Project):
    assert field.run("fit", field.config, "--method", "vertimrf").exit_code == 0
    before = (field.run_dir / "privacy.json").read_text()
    out = field.folder / "more.csv"
    drawn = field.run("synthesize", field.run_dir, "-n", 50, "--out", out, "--seed", 3)
    assert drawn.exit_code == 0, drawn.output
    assert "no further privacy is spent" in drawn.output
    table = pd.read_csv(out)
    assert (list(table.columns), len(table)) == (["plan", "visits", "age", "ill"], 50)
    field.run("synthesize", field.run_dir, "-n", 50, "--out", field.folder / "again.csv", "--seed", 3)
    assert pd.read_csv(field.folder / "again.csv").equals(table)
    assert (field.run_dir / "privacy.json").read_text() == before


def die_in_the_servers_fit(field: Project) -> None:
    fits = iter([vertimrf.fit_graphical_model, lambda *args, **kwargs: 1 / 0])  # the first is the rehearsal's
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vertimrf, "fit_graphical_model", lambda *args, **kwargs: next(fits)(*args, **kwargs))
        result = field.run("fit", field.config, "--method", "vertimrf")
    assert result.exit_code == 70, result.output
    ledger._OF_THIS_PROCESS = ledger.LedgerRegistry()  # the run goes on in another process


def test_a_fit_that_died_in_the_servers_fit_is_continued(field: Project):
    die_in_the_servers_fit(field)
    before = (field.run_dir / "privacy.json").read_text()
    unfinished = field.run("synthesize", field.run_dir)
    assert "`vertinumpyro fit --resume`" in one_line(unfinished.stderr)
    field.replace("iterations = 50", "iterations = 20")  # the server's own affair
    result = field.run("fit", field.config, "--resume")  # the run's folder knows the method
    assert result.exit_code == 0, result.output + result.stderr
    assert "Continuing" in result.output
    assert (field.run_dir / "privacy.json").read_text() == before
    assert len(pd.read_csv(field.run_dir / "synthetic.csv")) == NUM_RECORDS
    again = field.run("fit", field.config, "--method", "vertimrf", "--resume")
    assert "This run is complete" in again.output
    assert (field.run_dir / "privacy.json").read_text() == before


def test_a_run_goes_on_as_it_began(field: Project):
    assert "no run to continue" in one_line(field.run("fit", field.config, "--method", "vertimrf", "--resume").stderr)
    die_in_the_servers_fit(field)
    other = field.run("fit", field.config, "--method", "dpvi", "--resume")
    assert "plan is of kind 'vertimrf'" in one_line(other.stderr)
    field.replace("max_cells = 4", "max_cells = 5")
    changed = field.run("fit", field.config, "--method", "vertimrf", "--resume")
    assert "[mrf] max_cells has changed" in one_line(changed.stderr)


def test_tables_of_three_columns_are_in_the_plan_and_the_report(field: Project):
    field.replace("max_cells = 4", 'max_cells = 4\ntriples = 1\ntarget = "ill"')
    field.replace("epsilon = 4.0", "epsilon = 1000.0")
    shown = one_line(field.run("plan", field.config, "--method", "vertimrf").output)
    assert "tables of three columns across parties 1 of ill, after a first look at the pairs with 65%" in shown
    fitted = field.run("fit", field.config, "--method", "vertimrf")
    assert fitted.exit_code == 0, fitted.output
    report = (field.run_dir / "report.html").read_text()
    chosen = re.search(r"tables of three columns across parties, chosen.{0,40}?(\w+ × \w+ × \w+)", report, re.DOTALL)
    assert chosen
    assert "ill" in chosen[1]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('"many"', r"\[mrf\] triples = 'many'"),
        ("true", "triples=True must be 'auto' or"),
        ("-1", "must not be negative"),
    ],
)
def test_what_is_no_number_of_triples_is_refused(field: Project, value, why):
    field.replace("max_cells = 4", f"max_cells = 4\ntriples = {value}")
    assert re.search(why, one_line(field.run("plan", field.config, "--method", "vertimrf").stderr))
