"""`--backend crypten` and `spu`: every table in its party's process; what it refuses; what it costs before it runs."""

import json

import pytest

from tests.cli.conftest import invoke, one_line
from tests.cli.test_demo import few_people, small_tables
from vertinumpyro.cli import demo
from vertinumpyro.cli.config import load_config
from vertinumpyro.dpvi import DPVI
from vertinumpyro.secure.crypten import Crypten, compat
from vertinumpyro.secure.spu import Spu

INSTALLED = {name: kind for name, kind in (("crypten", Crypten), ("spu", Spu)) if kind().missing() is None}
NAMES = [
    pytest.param(name, marks=[] if name in INSTALLED else [pytest.mark.skip(reason=kind().missing() or "")])
    for name, kind in (("crypten", Crypten), ("spu", Spu))
]
each_backend = pytest.mark.parametrize("backend", NAMES)


def test_the_command_line_overrides_the_configuration(project):
    assert load_config(project.config).fit.backend == "fixed_point"
    assert load_config(project.config, "crypten").fit.backend == "crypten"
    assert "did you mean 'crypten'" in project.fails("fit", project.config, "--backend", "cryptem")


def test_says_what_to_install(project, monkeypatch):
    monkeypatch.setattr(compat, "is_installed", lambda: False)
    assert "vertinumpyro[crypten]" in project.fails("fit", project.config, "--backend", "crypten")


def test_refuses_diagnostics_on_a_table_that_no_process_holds(project):
    project.replace("[fit]", "[run]\ndiagnostics = true\n\n[fit]")
    assert "[run] diagnostics" in project.fails("fit", project.config, "--backend", "crypten")


@each_backend
def test_a_fit_with_a_process_for_each_party(project, backend):
    planned = project.run("plan", project.config, "--backend", backend)
    assert planned.exit_code == 0, planned.output + planned.stderr
    assert "rounds" in planned.output
    assert "on a WAN (50 ms round trip, 100 Mbit/s)" in one_line(planned.output)
    checked = project.run("check", project.config, "--backend", backend)
    assert checked.exit_code == 0, checked.output + checked.stderr
    assert "keyed digest" in one_line(checked.output)
    assert "on a LAN (1 ms round trip, 1 Gbit/s)" in one_line(checked.output)
    result = project.run("fit", project.config, "--backend", backend)
    assert result.exit_code == 0, result.output + result.stderr
    assert json.loads((project.run_dir / "privacy.json").read_text())["steps_spent"] == 4
    report = (project.run_dir / "report.html").read_text()
    assert "semi-honest" in report
    assert "One process held every party" not in report
    assert load_config(project.run_dir / "config.toml").fit.backend == backend


@each_backend
def test_the_demo_with_a_process_for_each_party(tmp_path, monkeypatch, backend):
    monkeypatch.setattr(demo, "load_rand_hie", lambda: few_people(400))
    monkeypatch.setattr(demo, "demo_inference", lambda name: DPVI(backend=INSTALLED[name](), num_components=2))
    monkeypatch.setattr(demo, "MarginalInference", small_tables)
    result = invoke("demo", "--backend", backend, "--steps", 2, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output + result.stderr
    assert "rounds" in result.output
    assert json.loads((tmp_path / "out" / "privacy.json").read_text())["steps_spent"] == 2


def test_the_demo_knows_its_backends(tmp_path):
    result = invoke("demo", "--backend", "plaintext", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "fixed_point, crypten and spu" in one_line(result.stderr)
