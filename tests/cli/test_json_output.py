"""`--json` at every command: one object on stdout, what people read on stderr."""

import json

import pytest
import typer

from tests.cli.conftest import Project, invoke
from vertinumpyro.cli.main import app


def answered(result) -> dict:
    return json.loads(result.stdout)


def commands(group: typer.Typer, words: tuple[str, ...] = ()):
    for command in group.registered_commands:
        yield (*words, command.name or command.callback.__name__.replace("_", "-"))
    for sub in group.registered_groups:
        yield from commands(sub.typer_instance, (*words, sub.name))


@pytest.mark.parametrize("words", list(commands(app)), ids=" ".join)
def test_every_command_has_it(words):
    assert "--json" in invoke(*words, "--help").stdout


def test_a_plan_and_a_check(project: Project):
    planned = project.run("plan", project.config, "--json")
    assert planned.exit_code == 0, planned.stderr
    plan = answered(planned)
    assert plan["ok"] is True
    assert plan["method"] == "dpvi"
    assert [row["adversary"] for row in plan["adversaries"] if row["claim"]] == ["outside analyst", "insurer", "clinic"]
    assert plan["epsilon"] == max(row["epsilon"] for row in plan["adversaries"] if row["claim"])
    assert list(plan["schema"]["parties"]) == ["insurer", "clinic"]
    assert plan["time"]["seconds"] > 0
    assert "4 steps" in plan["time"]["before"]
    assert "A fit takes about " in planned.stderr
    assert "Privacy plan" in planned.stderr
    checked = answered(project.run("check", project.config, "--json"))
    assert (checked["num_records"], checked["ok"]) == (200, True)
    assert "Ready to fit" in project.run("check", project.config).stdout  # without it nothing has changed


def test_a_fit_and_a_further_table(project: Project):
    fitted = project.run("fit", project.config, "--json")
    assert fitted.exit_code == 0, fitted.stderr
    found = answered(fitted)
    assert found["folder"] == str(project.run_dir)
    assert {"synthetic.csv", "report.html"} <= set(found["files"])
    assert all((project.run_dir / name).exists() for name in found["files"])
    more = answered(project.run("synthesize", project.run_dir, "-n", 200, "--out", project.folder / "m.csv", "--json"))
    assert more == {"ok": True, "file": str(project.folder / "m.csv"), "num_records": 200}


def test_an_error(project: Project):
    project.replace("[fit]", "[fits]")
    result = project.run("plan", project.config, "--json")
    assert result.exit_code == 2
    found = answered(result)
    assert (found["ok"], found["error"]) == (False, "ArgumentError")
    assert found["message"] == "config.toml: unknown key 'fits'; did you mean 'fit'?"


def test_a_command_that_answers_in_words_gives_these(project: Project):
    found = answered(project.run("schema", "json", "--out", project.folder, "--json"))
    assert found["ok"] is True
    assert any("schema.schema.json" in line for line in found["text"])
