"""A run's folder: whose it is, what is in it, and what may be run from it."""

import json
import shutil

import pytest

from tests.cli.conftest import NUM_RECORDS, Project, copied, draw_tables, invoke, one_line
from vertinumpyro.session import lock_folder

MODEL = """
import numpyro
import numpyro.distributions as dist
import vertinumpyro as vnp

def model(data, num_records):
    with open({trace!r}, "a") as file:
        file.write("ran ")
    rate = numpyro.sample("rate", dist.Beta(1.0, 1.0))
    with vnp.party_plate("clinic", num_records):
        numpyro.sample("ill", dist.Bernoulli(rate), obs=data["ill"])
"""


def record_of(project: Project) -> dict:
    return json.loads((project.run_dir / "privacy.json").read_text())


def write_record(project: Project, **changes) -> None:
    (project.run_dir / "privacy.json").write_text(json.dumps({**record_of(project), **changes}))


def test_a_fit_into_the_folder_of_another_changes_nothing_in_it(project: Project):
    project.run_dir.mkdir()
    (project.run_dir / "config.toml").write_text("the other's")
    with lock_folder(project.run_dir):  # the other fit, which has recorded nothing yet
        result = project.run("fit", project.config)
    assert result.exit_code == 2
    assert str(project.run_dir) in one_line(result.stderr).replace(" ", "") or "run" in one_line(result.stderr)
    assert sorted(path.name for path in project.run_dir.iterdir() if "lock" not in path.name) == ["config.toml"]
    assert (project.run_dir / "config.toml").read_text() == "the other's"


def test_a_refused_fit_leaves_nothing_behind(project: Project):
    tables = draw_tables()
    project.write_tables({**tables, "clinic": tables["clinic"].assign(ill=7)})
    before = sorted(path.name for path in project.folder.iterdir())
    assert "ill" in one_line(project.run("fit", project.config).stderr)
    assert sorted(path.name for path in project.folder.iterdir()) == before
    project.run_dir.mkdir()  # a folder that was there stays
    assert project.run("fit", project.config).exit_code == 2
    assert list(project.run_dir.iterdir()) == []


def test_a_posterior_of_another_plan_is_refused(fitted: Project, project: Project):
    project.replace("noise_multiplier = 8.0", "noise_multiplier = 9.0")
    assert project.run("fit", project.config).exit_code == 0
    shutil.copy(fitted.run_dir / "posterior.npz", project.run_dir / "posterior.npz")
    for command in (("fit", project.config, "--resume"), ("synthesize", project.run_dir, "--out", "t.csv")):
        result = project.run(*command)
        assert result.exit_code == 2, result.output
        assert "belongs to another plan" in one_line(result.stderr)


def test_a_finished_run_that_lost_its_posterior_gets_it_back(fitted: Project, project: Project):
    copied(fitted, project)
    (project.run_dir / "posterior.npz").unlink()
    result = project.run("fit", project.config, "--resume")
    assert result.exit_code == 0, result.stderr
    same = [(p.run_dir / "synthetic.csv").read_text() for p in (fitted, project)]
    assert same[0] == same[1]
    assert record_of(project)["steps_spent"] == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}'])
def test_a_record_that_cannot_be_read_says_so_everywhere(project: Project, text: str):
    project.run_dir.mkdir()
    (project.run_dir / "privacy.json").write_text(text)
    (project.run_dir / "config.toml").write_text("")
    for options in ([], ["--resume"]):
        shown = one_line(project.run("fit", project.config, *options).stderr)
        assert "with that version" in shown if "99" in text else "--resume" not in shown, shown


def write_model(project: Project) -> None:
    trace = project.folder / "trace"
    (project.folder / "model_of_folders.py").write_text(MODEL.format(trace=str(trace)))
    project.replace("num_components = 2", 'function = "model_of_folders:model"')


def test_drawing_a_table_runs_no_code_of_a_folder_unasked(project: Project):
    write_model(project)
    result = project.run("fit", project.config)
    assert result.exit_code == 0, result.stderr
    (project.folder / "trace").unlink()
    out = project.folder / "t.csv"
    refused = invoke("synthesize", project.run_dir, "--out", out, "-n", NUM_RECORDS)
    assert refused.exit_code == 2
    assert "--trust-model" in one_line(refused.stderr)
    assert not (project.folder / "trace").exists(), "the model's file was run"
    for options in (["--trust-model"], ["--config", project.config]):
        drawn = invoke("synthesize", project.run_dir, "--out", out, "-n", NUM_RECORDS, *options)
        assert drawn.exit_code == 0, drawn.stderr
        assert len(out.read_text().splitlines()) == 1 + NUM_RECORDS


def test_a_second_fit_of_the_same_files_says_what_both_cost(fitted: Project, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(fitted.folder, folder)
    project = Project(folder)
    assert "First release on these files" in (folder / "terminal.txt").read_text()
    assert "First release on these files" in (folder / "run" / "report.html").read_text()
    planned = project.run("plan", project.config, "--json")
    assert json.loads(planned.stdout)["account"].startswith("Second release on these files: ε = ")
    again = project.run("fit", project.config, "--out", folder / "again")
    assert again.exit_code == 0, again.output + again.stderr
    assert "Second release on these files: ε = " in again.stderr
    assert "Second release on these files: ε = " in (folder / "again" / "report.html").read_text()
    project.replace("[data.files]", "[data]\ntotal_epsilon = 0.01\n[data.files]")
    limited = project.run("fit", project.config, "--out", folder / "third")
    assert limited.exit_code == 2
    assert "allows 0.01" in one_line(limited.stderr)
    assert not (folder / "third" / "privacy.json").exists()
    project.replace("total_epsilon = 0.01", "account = false")
    assert "account = false" in project.run("plan", project.config).output
