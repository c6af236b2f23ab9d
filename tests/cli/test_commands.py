"""Every command end to end on a small table."""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest

from tests.cli.conftest import NUM_RECORDS, Project, copied, draw_tables, invoke, one_line
from vertinumpyro.dpvi import DPVI, training_loop
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE
from vertinumpyro.privacy import FitTime
from vertinumpyro.reports.plain_language import rounded_up
from vertinumpyro.reports.run_report import POSTERIOR_FILES

BADGE = f'class="badge">{NOT_DP_NOTE}'


def test_the_module_runs_without_importing_anything_heavy():
    code = (
        "import sys; from vertinumpyro.cli.main import app;"
        "heavy = {'jax', 'pandas', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    shown = subprocess.run([sys.executable, "-m", "vertinumpyro", "--help"], capture_output=True, text=True, check=True)
    assert all(name in shown.stdout for name in ("demo", "plan", "check", "fit", "synthesize"))


def test_version():
    assert invoke("--version").output.startswith("vertinumpyro ")


def test_plan_shows_a_row_for_each_adversary(project: Project):
    result = project.run("plan", project.config)
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.output.splitlines() if " 1e-05 " in line]
    assert [line.split()[0] for line in lines] == ["outside", "insurer", "clinic", "outside"]
    assert "compare only" in result.output.split(lines[-1].strip())[-1] + lines[-1], "beside the row, or below it"
    assert not project.run_dir.exists()


def test_the_largest_epsilon_leads_and_to_narrow_it_is_said(project: Project):
    everyone = "against everyone: outside analyst, insurer, clinic"
    project.replace("noise_multiplier = 8.0", "epsilon = 1.0")
    shown = one_line(project.run("plan", project.config).output)
    assert re.search(rf"ε ≤ (0\.99\d|1\.000), δ = 1e-05, {everyone}", shown)
    assert "calibrated to one adversary" not in shown
    project.replace("epsilon = 1.0", 'epsilon = 1.0\nadversary = "outside analyst"')
    result = project.run("fit", project.config)
    assert result.exit_code == 0, result.stderr
    shown, said = one_line(result.output), "calibrated to one adversary alone, outside analyst, ε = "
    record, report = (project.run_dir / name for name in ("privacy.json", "report.html"))
    worst = json.loads(record.read_text())["epsilon"]
    assert worst > 1.5
    assert said in shown
    assert said in report.read_text()
    assert f"ε ≤ {rounded_up(worst)}, δ = 1e-05, {everyone}" in shown
    assert f"ε against everyone</dt><dd>{rounded_up(worst)}" in report.read_text()


def test_plan_reads_ids_only(project: Project):
    ids = [f"p{i}" for i in range(NUM_RECORDS)]
    for party, own in {"insurer": ids, "clinic": ids[::-1]}.items():
        rows = "\n".join(f"{i},not a value,not a value" for i in own)
        header = (project.folder / f"{party}.csv").read_text().splitlines()[0]
        (project.folder / f"{party}.csv").write_text(f"{header}\n{rows}\n")
    result = project.run("plan", project.config)
    assert result.exit_code == 0, result.stderr
    assert f"{NUM_RECORDS} (public)" in result.output


def test_plan_reads_no_file_when_the_number_of_records_is_given(project: Project):
    for party in ("insurer", "clinic"):
        (project.folder / f"{party}.csv").unlink()
    project.replace("[data.files]", f"[data]\nnum_records = {NUM_RECORDS}\n[data.files]")
    assert f"{NUM_RECORDS} (public)" in project.run("plan", project.config).output


def test_check_ticks_every_step(project: Project):
    result = project.run("check", project.config)
    assert result.exit_code == 0, result.stderr
    ticked = [line.split()[1] for line in result.output.splitlines() if line.startswith("✓")]
    assert ticked == ["settings", "schema", "files", "records", "method", "plan", "range"]
    assert "lie outside" not in result.output
    assert not project.run_dir.exists()


@pytest.mark.parametrize("in_blocks", [False, True])
def test_check_counts_what_is_moved_to_a_bound_for_its_party_alone(project: Project, in_blocks: bool):
    schema = project.folder / "schema.toml"
    schema.write_text(schema.read_text().replace("bounds = [0, 100]", 'bounds = [0, 60]\nout_of_bounds = "clip"'))
    if in_blocks:
        project.replace("[data.files]", '[data]\nspool = "."\n[data.files]')
    shown = one_line(project.run("check", project.config).output)
    beyond = int((draw_tables()["clinic"]["age"] > 60).sum())
    assert f"party 'clinic', column 'age': {beyond} of {NUM_RECORDS} values lie outside its bounds" in shown
    assert "NOT DP: for clinic alone" in shown


def test_check_stops_at_the_first_cross(project: Project):
    (project.folder / "clinic.csv").unlink()
    result = project.run("check", project.config)
    assert result.exit_code == 2
    assert [line.split()[:2] for line in result.stdout.splitlines()][-1] == ["✗", "files"]


@pytest.mark.promise
def test_a_fit_that_takes_long_wants_a_flag_or_a_key(project: Project, monkeypatch):
    long = FitTime(before={"4 steps": 7000.0}, shorter="Give fewer num_steps. ")
    monkeypatch.setattr(DPVI, "time", lambda self, facts, plan: long)
    message = project.fails("fit", project.config)
    assert "allow_long: the fit would take about 1.9 h" in message
    assert "4 steps 1.9 h" in message
    assert "Give fewer num_steps" in message
    assert "--allow-long" in message
    assert "It will want --allow-long" in one_line(project.run("plan", project.config).output)
    assert project.run("fit", project.config, "--allow-long", "--out", project.folder / "other").exit_code == 0
    project.config.write_text(project.config.read_text() + "\n[run]\nallow_long = true\n")
    assert project.run("fit", project.config).exit_code == 0


def test_fit_writes_everything(fitted: Project):
    assert all((fitted.run_dir / name).is_file() for name in POSTERIOR_FILES)
    record = json.loads((fitted.run_dir / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 4)
    table = pd.read_csv(fitted.run_dir / "synthetic.csv")
    assert list(table.columns) == ["plan", "visits", "age", "ill"]
    assert len(table) == NUM_RECORDS


def test_the_plan_is_printed_before_the_fit_and_then_how_far_it_is(fitted: Project):
    shown = (fitted.folder / "terminal.txt").read_text()
    said = ["Privacy plan", "Fitting", "4 of 4 steps recorded as spent (100%)", "Written to"]
    places = [shown.index(text) for text in said]
    assert places == sorted(places)


def test_a_release_report_holds_nothing_internal(fitted: Project):
    report = (fitted.run_dir / "report.html").read_text()
    assert "compilation" not in report  # times follow from the records
    assert BADGE not in report
    assert "Nothing in this report was computed on real data" in report
    assert "spread of a share, ± 2 sd" in report
    assert "What the posterior says of the twin" in report


def test_no_output_names_the_machine_or_a_record(fitted: Project):
    outputs = [p for p in fitted.run_dir.iterdir() if p.suffix in (".toml", ".json", ".html")]
    assert len(outputs) == 4
    for path in outputs:
        text = path.read_text()
        assert str(fitted.folder) not in text
        assert "p0001" not in text


def test_a_second_fit_refuses(fitted: Project):
    before = (fitted.run_dir / "privacy.json").read_text()
    result = fitted.run("fit", fitted.config)
    assert result.exit_code == 2
    assert "PlanSpentError" in result.stderr
    assert "--resume" in result.stderr
    assert (fitted.run_dir / "privacy.json").read_text() == before


def test_resume_of_a_complete_run_writes_its_outputs_again(fitted: Project, project: Project):
    copied(fitted, project)
    (project.run_dir / "report.html").unlink()
    result = project.run("fit", project.config, "--resume")
    assert result.exit_code == 0, result.stderr
    assert "complete" in result.output
    assert (project.run_dir / "report.html").exists()
    same = [(p.run_dir / "synthetic.csv").read_text() for p in (fitted, project)]
    assert same[0] == same[1]


@pytest.mark.promise
def test_resume_continues_an_interrupted_run(project: Project, monkeypatch: pytest.MonkeyPatch):
    project.replace("num_steps = 4", "num_steps = 6")
    monkeypatch.setattr(training_loop, "_MAX_CHUNK", 2)
    step, calls = training_loop.ChunkRunner.__call__, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 6:  # after two of the estimate, two rehearsals and the first chunk
            raise KeyboardInterrupt
        return step(self, *arguments)

    monkeypatch.setattr(training_loop.ChunkRunner, "__call__", interrupted)
    stopped = project.run("fit", project.config)
    assert stopped.exit_code == 130
    assert "recorded as spent" in stopped.stderr
    record = json.loads((project.run_dir / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("paused", 1)

    refused = project.run("synthesize", project.run_dir, "--out", project.folder / "t.csv")
    assert "is not complete" in one_line(refused.stderr)

    resumed = project.run("fit", project.config, "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    after = json.loads((project.run_dir / "privacy.json").read_text())
    assert (after["status"], after["steps_spent"], after["plan"]) == ("finished", 6, record["plan"])
    assert len(calls) > 9
    assert "Norm of each noisy gradient" in (project.run_dir / "report.html").read_text()


def test_resume_refuses_other_settings(fitted: Project, project: Project):
    copied(fitted, project).replace("noise_multiplier = 8.0", "noise_multiplier = 2.0")
    result = project.run("fit", project.config, "--resume")
    assert result.exit_code == 2
    assert "[privacy] noise_multiplier has changed" in one_line(result.stderr)


def test_diagnostics_are_marked(project: Project):
    project.config.write_text(project.config.read_text() + "\n[run]\ndiagnostics = true\nnum_synthetic = 50\n")
    result = project.run("fit", project.config, "--out", project.folder / "internal")
    assert result.exit_code == 0, result.stderr
    report = (project.folder / "internal" / "report.html").read_text()
    assert BADGE in report
    assert "negative ELBO" in report or "Objective of the inference" in report
    assert len(pd.read_parquet(project.folder / "internal" / "synthetic.parquet")) == 50
    assert "not DP" in result.output


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_synthesize_draws_further_tables(fitted: Project, tmp_path, elsewhere, suffix: str):
    out = tmp_path / f"more.{suffix}"
    result = invoke("synthesize", fitted.run_dir, "-n", 30, "--out", out)
    assert result.exit_code == 0, result.stderr
    table = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert len(table) == 30
    assert set(table["plan"]) <= {"a", "b", "c"}


def test_synthesize_repeats_a_seed_only(fitted: Project, tmp_path):
    texts = []
    for seed in (["--seed", 1], ["--seed", 1], []):
        assert invoke("synthesize", fitted.run_dir, "-n", 30, "--out", tmp_path / "t.csv", *seed).exit_code == 0
        texts.append((tmp_path / "t.csv").read_text())
    assert texts[0] == texts[1] != texts[2]


def test_a_table_has_a_format_that_is_known(fitted: Project, tmp_path):
    result = invoke("synthesize", fitted.run_dir, "--out", tmp_path / "t.txt")
    assert result.exit_code == 2
    assert "neither .csv nor .parquet" in one_line(result.stderr)


def test_the_copy_of_the_configuration_is_one(fitted: Project, elsewhere):
    result = invoke("plan", fitted.run_dir / "config.toml")
    assert result.exit_code == 0, result.stderr
    assert "200 (public)" in result.output
