"""`[quality]`: a score of the twin, bought with a part of the budget."""

import dataclasses
import json
import re

import pytest

from tests.cli.conftest import Project, one_line
from tests.cli.test_marginals import SETTINGS, quick
from vertinumpyro.cli.config import load_config
from vertinumpyro.cli.config_sections import FitSettings
from vertinumpyro.cli.methods import tables
from vertinumpyro.cli.methods.tables import QualityCommand, config_of_part


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    project = Project.create(tmp_path_factory.mktemp("quality"))
    project.replace("noise_multiplier = 8.0", "epsilon = 20.0\ndelta = 1e-4")
    project.replace("\n[fit]\nnum_steps = 4\nbatch_size = 50\n", f"{SETTINGS}\n[quality]\npart = 0.25\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "MarginalInference", quick)
        result = project.run("fit", project.config, "--method", "marginals")
    assert result.exit_code == 0, result.output + result.stderr
    (project.folder / "terminal.txt").write_text(result.output)
    return project


def record(folder):
    return json.loads((folder / "privacy.json").read_text())


def test_both_plans_together_cost_what_was_asked_for(fitted: Project):
    fit, score = record(fitted.run_dir), record(fitted.run_dir / "quality")
    worst = [max(row["epsilon"] for row in one["adversaries"]) for one in (fit, score)]
    assert 14.5 < worst[0] <= 15
    assert 4.9 < worst[1] <= 5
    assert sum(one["plan"]["delta"] for one in (fit, score)) <= 1e-4 * (1 + 1e-9)
    assert all(one["status"] == "finished" for one in (fit, score))
    shown = one_line((fitted.folder / "terminal.txt").read_text())
    assert shown.index("The twin's score") < shown.index("Fitting")
    assert 19 < float(re.search(r"that is at most ε = ([\d.]+)", shown)[1]) <= 20


def test_the_report_has_the_score_and_the_sum(fitted: Project):
    report = (fitted.run_dir / "report.html").read_text()
    assert "How near the twin is" in report
    assert "ε with the score" in report
    assert re.search(r"pairs across parties</th>.*?(noise only|\d+ %)", report)
    score = json.loads((fitted.run_dir / "quality" / "quality.json").read_text())
    assert (score["all"]["num_tables"], score["across"]["num_tables"]) == (6, 4)


def test_the_outputs_again_buy_no_second_score(fitted: Project):
    before = [(path, path.read_bytes()) for path in fitted.run_dir.glob("**/privacy.json")]
    assert len(before) == 2
    again = fitted.run("fit", fitted.config, "--resume")
    assert again.exit_code == 0, again.stderr
    assert [(path, path.read_bytes()) for path, _ in before] == before
    assert "How near the twin is" in (fitted.run_dir / "report.html").read_text()


def test_a_table_is_compared_at_any_later_time(fitted: Project):
    other = fitted.folder / "later.toml"
    text = fitted.config.read_text().replace("part = 0.25", 'twin = "run/synthetic.csv"').replace("20.0", "5.0")
    other.write_text(text.replace("[model]\nnum_components = 2\n", ""))
    result = fitted.run("fit", other, "--out", fitted.folder / "later")
    assert result.exit_code == 0, result.output + result.stderr
    assert "Method: quality" in one_line(result.output)
    assert (fitted.folder / "later" / "quality.json").exists()
    assert "Nothing in this report was computed on real data" in (fitted.folder / "later" / "report.html").read_text()


MISTAKES = {
    "more than all": ("part = 0.25", "part = 1.5", "[quality] part = 1.5; give a number between 0 and 1"),
    "no delta": ("\ndelta = 1e-4", "", "give [privacy] delta"),
    "both": ("part = 0.25", 'part = 0.25\ntwin = "t.csv"', "give one of them"),
    "no table": ("part = 0.25", 'twin = "t.csv"', "there is no"),
    "another file": ("part = 0.25", 'twin = "schema.toml"', "neither .csv nor .parquet"),
    "not a twin": ("part = 0.25", 'twin = "clinic.csv.parquet"', "cannot be read as .parquet"),
}


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_named_before_anything_is_spent(tmp_path, fitted: Project, old: str, new: str, message: str):
    project = Project.create(tmp_path)
    project.config.write_text(fitted.config.read_text().replace(old, new).replace("[model]\nnum_components = 2\n", ""))
    (tmp_path / "clinic.csv.parquet").write_text("no table")
    assert message in project.fails("check", project.config)
    assert message in project.fails("fit", project.config)
    assert not (project.run_dir / "privacy.json").exists()


@pytest.mark.parametrize("security", [None, "malicious", "semi-honest"])
def test_the_score_holds_against_whom_the_fit_holds(fitted: Project, security):
    config = load_config(fitted.config)
    config = dataclasses.replace(config, fit=FitSettings(backend="crypten", security=security))
    scored = QualityCommand(config_of_part(config, fitted.run_dir)).method.backend
    assert scored.security == (security or "malicious")


def test_a_regression_has_no_twin_to_compare(tmp_path, fitted: Project):
    project = Project.create(tmp_path)
    text = fitted.config.read_text().replace("[model]\nnum_components = 2\n", "")
    project.config.write_text(text.replace(SETTINGS, "") + '\n[regression]\nlabel = "ill"\n')
    assert "makes no twin to compare" in project.fails("fit", project.config, "--method", "logistic")
