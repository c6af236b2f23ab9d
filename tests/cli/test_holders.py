"""The commands where organisations hold whole records, each other ones, and no process holds two tables."""

import json

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import Project, one_line

SCHEMA = """
id_column = "person"

[parties.patients.columns.dose]
type = "real"
bounds = [-2, 2]

[parties.patients.columns.ill]
type = "binary"

[parties.patients.columns.pressure]
type = "real"
bounds = [-10, 10]
"""
SETTINGS = """
schema = "schema.toml"

[data]
holders = ["north", "south", "west"]

[data.files]
north = "north.csv"
south = "south.csv"
west = "west.csv"

[privacy]
epsilon = 50.0
delta = 1e-4

[fit]
num_steps = 3
"""
SIZES = {"north": 120, "south": 80, "west": 50}


def tables():
    rng = np.random.default_rng(0)
    for name, count in SIZES.items():
        dose, ill = rng.uniform(-2, 2, count).round(3), rng.integers(0, 2, count)
        pressure = np.clip(2 * dose + 3 * ill + rng.normal(0, 1, count), -10, 10).round(3)
        ids = [f"{name}{i}" for i in range(count)]
        yield name, pd.DataFrame({"person": ids, "dose": dose, "ill": ill, "pressure": pressure})


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    made.config.write_text(SETTINGS)
    made.write_tables(dict(tables()))
    return made


def test_a_regression_from_plan_to_coefficients(project):
    project.replace("[fit]\nnum_steps = 3", '[regression]\nlabel = "pressure"')
    shown = project.run("plan", project.config)
    assert shown.exit_code == 0, shown.output
    assert "bayesian_linear" in shown.output
    assert "rows hold against parties that cheat" in one_line(shown.output)
    assert "250, together at north, south, west" in one_line(shown.output)
    checked = project.run("check", project.config)
    assert checked.exit_code == 0, checked.output
    assert "250 records together" in one_line(checked.output)
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.output + fitted.stderr
    found = pd.read_csv(project.run_dir / "coefficients.csv", index_col="term")
    assert list(found.index) == ["dose", "ill"]
    assert found["estimate"]["dose"] == pytest.approx(2.0, abs=0.7)
    assert (found["low 95%"] < found["estimate"]).all()
    assert (found["estimate"] < found["high 95%"]).all()
    record = json.loads((project.run_dir / "privacy.json").read_text())
    assert record["status"] == "finished"
    assert {row["adversary"] for row in record["adversaries"]} >= {"outside analyst", *SIZES}
    assert "One process held" not in (project.run_dir / "report.html").read_text()
    again = project.run("fit", project.config)
    assert again.exit_code == 2
    assert "begun to spend" in one_line(again.stderr)
    refused = project.run("synthesize", project.run_dir, "-n", 5, "--out", project.folder / "t.csv")
    assert "is a regression" in one_line(refused.stderr)


def test_a_model_from_plan_to_twin(project):
    fitted = project.run("fit", project.config)
    assert fitted.exit_code == 0, fitted.output + fitted.stderr
    assert "the holders have whole records" in one_line(fitted.output).lower()
    assert len(pd.read_parquet(project.run_dir / "synthetic.parquet")) == 250
    drawn = project.run("synthesize", project.run_dir, "-n", 250, "--out", project.folder / "t.csv")
    assert drawn.exit_code == 0, drawn.output + drawn.stderr
    assert len(pd.read_csv(project.folder / "t.csv")) == 250
    resumed = project.run("fit", project.config, "--resume")
    assert resumed.exit_code == 0, resumed.output + resumed.stderr
    assert "This run is complete" in resumed.output


@pytest.mark.parametrize(
    ("old", "new", "method", "says"),
    [
        ('holders = ["north", "south", "west"]', "", "horizontal", "[data.files]: no party 'north' in the schema"),
        ("", "", "dpvi", "for parties with columns of the same records"),
        ("[fit]\nnum_steps = 3", "", "bayesian_linear", "[regression] label: name the column"),
        ('["north", "south", "west"]', '["north", "north"]', None, "two or more names, each once"),
        ('["north", "south", "west"]', '["north", "east"]', None, "no party 'south' among the holders"),
        ('west = "west.csv"', "", None, "[data.files] has no file for party 'west'"),
        ("num_steps = 3", "warm_start = true", None, "[fit] warm_start is nothing that --method horizontal reads"),
        ("[fit]\nnum_steps = 3", '[regression]\nlabel = "dosis"', None, "no column 'dosis'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_spent(project, old, new, method, says):
    if old:
        project.replace(old, new)
    assert says in project.fails("fit", project.config, *([] if method is None else ["--method", method]))


def test_a_schema_that_divides_the_columns_is_refused(project):
    path = project.folder / "schema.toml"
    path.write_text(path.read_text().replace("patients.columns.pressure", "lab.columns.pressure"))
    assert "put all columns under one party" in project.fails("plan", project.config)


def test_methods_for_holders_want_holders(project):
    path = project.folder / "schema.toml"
    path.write_text(path.read_text().replace("patients.columns.pressure", "lab.columns.pressure"))
    project.config.write_text('schema = "schema.toml"\n[data]\nnum_records = 9\n[privacy]\nepsilon = 1.0\n')
    assert "name them, [data] holders" in project.fails("plan", project.config, "--method", "horizontal")
