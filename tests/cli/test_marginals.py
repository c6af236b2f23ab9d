"""`--method marginals`: tables, then a NumPyro model."""

import json

import pandas as pd
import pytest

from tests.cli.conftest import NUM_RECORDS, Project, invoke, one_line
from vertinumpyro.cli.methods import tables
from vertinumpyro.marginals import MarginalInference, inference

SETTINGS = """
[mrf]
max_cells = 4
iterations = 100
"""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    project = Project.create(tmp_path_factory.mktemp("marginals"))
    project.replace("noise_multiplier = 8.0", "epsilon = 20.0")
    project.replace("\n[fit]\nnum_steps = 4\nbatch_size = 50\n", SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "MarginalInference", quick)
        result = project.run("fit", project.config, "--method", "marginals")
    assert result.exit_code == 0, result.output + result.stderr
    return project


def quick(**settings):
    """The tables' law, with few steps."""
    return MarginalInference(**{**settings, "law": "tables", "num_steps": 100})


def test_the_run_s_folder_has_twin_posterior_and_tables(fitted):
    names = {path.name for path in fitted.run_dir.iterdir()}
    assert {"synthetic.csv", "synthetic.parquet", "posterior.npz", "released.npz", "privacy.json"} <= names
    assert len(pd.read_csv(fitted.run_dir / "synthetic.csv")) == NUM_RECORDS
    assert json.loads((fitted.run_dir / "privacy.json").read_text())["steps_spent"] == 2
    report = (fitted.run_dir / "report.html").read_text()
    assert "the posterior of a NumPyro model and this synthetic table" in report
    assert "Nothing in this report was computed on real data outside the mechanism" in report


def test_more_records_and_the_outputs_again_cost_nothing(fitted, tmp_path):
    before = (fitted.run_dir / "privacy.json").read_bytes()
    drawn = invoke("synthesize", fitted.run_dir, "-n", 7, "--out", tmp_path / "t.csv")
    assert drawn.exit_code == 0, drawn.stderr
    assert len(pd.read_csv(tmp_path / "t.csv")) == 7
    again = fitted.run("fit", fitted.config, "--resume")  # the run's folder knows the method
    assert "This run is complete" in again.output, again.stderr
    assert (fitted.run_dir / "privacy.json").read_bytes() == before


def test_a_model_that_fails_afterwards_goes_on_from_the_stored_tables(fitted, tmp_path, monkeypatch):
    project = Project.create(tmp_path)
    project.config.write_text(fitted.config.read_text())
    monkeypatch.setattr(tables, "MarginalInference", quick)
    with monkeypatch.context() as patch:
        patch.setattr(inference.MarginalInference, "fit", lambda *args, **kwargs: 1 / 0)
        assert project.run("fit", project.config, "--method", "marginals").exit_code != 0
    spent = json.loads((project.run_dir / "privacy.json").read_text())["steps_spent"]
    done = project.run("fit", project.config, "--resume")
    assert done.exit_code == 0, done.stderr
    assert json.loads((project.run_dir / "privacy.json").read_text())["steps_spent"] == spent == 2
    assert (project.run_dir / "synthetic.csv").is_file()


def test_what_has_no_tables_is_refused_before_anything_is_spent(tmp_path):
    project = Project.create(tmp_path)
    project.replace("noise_multiplier = 8.0", "epsilon = 3.0")
    project.replace("[fit]\nnum_steps = 4\nbatch_size = 50\n", '[mrf]\nencoder = "sketch"\n')
    assert '"secure_marginals"' in project.fails("fit", project.config, "--method", "marginals")
    project.replace('[mrf]\nencoder = "sketch"\n', "[fit]\nnum_steps = 4\n")
    assert "[fit] num_steps" in one_line(project.fails("fit", project.config, "--method", "marginals"))
