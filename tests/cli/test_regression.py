"""`--method logistic` and `linear` end to end on a small table."""

import json

import pandas as pd
import pytest

from tests.cli.conftest import Project, one_line
from vertinumpyro.secure.crypten import Crypten

SETTINGS = """
schema = "schema.toml"

[data.files]
insurer = "insurer.csv"
clinic = "clinic.csv"

[privacy]
epsilon = 4.0
delta = 1e-4

[regression]
label = "ill"
"""


@pytest.fixture
def regression(project: Project) -> Project:
    project.config.write_text(SETTINGS)
    return project


@pytest.mark.parametrize(("method", "label"), [("logistic", "ill"), ("linear", "visits")])
def test_a_regression_from_the_command_line(regression: Project, method: str, label: str):
    regression.replace('label = "ill"', f'label = "{label}"')
    planned = regression.run("plan", regression.config, "--method", method)
    assert planned.exit_code == 0, planned.stderr
    assert all(name in planned.output for name in ("outside analyst", "insurer", "clinic"))
    told = json.loads(regression.run("plan", regression.config, "--method", method, "--json").stdout)["forecast"]
    assert all(0 < least < 0.5 for least in told["smallest_correlations"].values())
    checked = regression.run("check", regression.config, "--method", method)
    assert checked.exit_code == 0, checked.stderr
    foreseen = f"Noise will hide correlations with {label} below about"
    assert all(foreseen in one_line(told.output) for told in (planned, checked))
    assert not regression.run_dir.exists()
    result = regression.run("fit", regression.config, "--method", method)
    assert result.exit_code == 0, result.stderr
    assert "Of 5 coefficients" in one_line(result.output) or "hides every association" in one_line(result.output)
    table = pd.read_csv(regression.run_dir / "coefficients.csv")
    assert table["term"][0] == "(intercept)"
    assert len(table) > 4
    record = json.loads((regression.run_dir / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 2)
    again = regression.run("fit", regression.config, "--method", method, "--resume")
    assert again.exit_code == 0, again.stderr
    pd.testing.assert_frame_equal(pd.read_csv(regression.run_dir / "coefficients.csv"), table)
    refused = regression.run("synthesize", regression.run_dir, "--out", regression.folder / "t.csv")
    assert "gives coefficients and no table" in one_line(refused.stderr)


@pytest.mark.parametrize(
    ("method", "label", "number"), [("logistic", "ill", "Brier score"), ("linear", "visits", "R²")]
)
def test_diagnostics_say_how_well_it_predicts_and_that_this_is_not_dp(regression, method, label, number):
    pytest.importorskip("sklearn")
    regression.replace('label = "ill"', f'label = "{label}"\n\n[run]\ndiagnostics = true')
    result = regression.run("fit", regression.config, "--method", method)
    assert result.exit_code == 0, result.stderr
    assert "not DP" in one_line(result.output)
    report = (regression.run_dir / "report.html").read_text()
    assert number in report
    assert "not DP - internal</span> Calibration" in report


@pytest.mark.skipif(Crypten().missing() is not None, reason=Crypten().missing() or "")
def test_a_regression_with_a_process_for_each_party(regression: Project):
    arguments = ("--method", "logistic", "--backend", "crypten")
    planned = regression.run("plan", regression.config, *arguments)
    assert planned.exit_code == 0, planned.stderr
    assert "rounds" in one_line(planned.output)
    result = regression.run("fit", regression.config, *arguments)
    assert result.exit_code == 0, result.output + result.stderr
    assert "One process held every party" not in (regression.run_dir / "report.html").read_text()
    ledgers = sorted(regression.folder.glob("*.csv.ledger/*/privacy.json"))
    assert [json.loads(path.read_text())["steps_spent"] for path in ledgers] == [2, 2]
