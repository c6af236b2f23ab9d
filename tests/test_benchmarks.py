"""The benchmarks' shared parts and command lines; `--quick` runs take longer than a unit test may."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the benchmarks draw figures: extra `report`")

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(p for p in FOLDER.glob("*.py") if p.name != "common.py")


def load(name):
    """A benchmark as a module; the scripts import their neighbour `common`."""
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


common = load("common")


def test_there_are_benchmarks():
    assert {"dpvi_adult.py", "dpvi_speed.py"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_names_the_common_arguments_and_the_keys(script):
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in ("--quick", "--json", "--out", "python benchmarks/"))
    assert "keys" in done.stdout.lower()


def test_results_are_one_json_line_and_parts_are_merged(tmp_path, capsys):
    path = tmp_path / "deeper" / "results.json"
    args = common.parser("").parse_args(["--json", str(path)])
    common.finish({"a": float("nan"), "b": True}, args, {})
    common.finish({"c": {"d": [1, 2.5]}}, args, {})
    last = capsys.readouterr().out.splitlines()[-1]
    expected = {"a": None, "b": True, "c": {"d": [1, 2.5]}}
    assert json.loads(last) == json.loads(path.read_text()) == expected


def test_figures_are_beside_the_json(tmp_path):
    figure = common.Figure()
    args = common.parser("").parse_args(["--json", str(tmp_path / "results.json")])
    common.finish({}, args, {"box": figure})
    assert (tmp_path / "box.png").read_bytes().startswith(b"\x89PNG")


def test_arms_take_turns():
    order = []
    arms = {name: lambda name=name: order.append(name) or 1.0 for name in ("a", "b")}
    times = common.interleaved(arms, rounds=2, label="test")
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0]}
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:4] == order[4:6][::-1]


def test_growth_fit_recovers_a_line():
    speed = load("dpvi_speed")

    def cell(n, K, columns):
        milliseconds = 0.5 + 0.1 * K + 3e-6 * n * K * columns
        return {"padded_n": n, "K": K, "columns": columns, "D": 140 * K, "processor_ms": milliseconds}

    fit = speed._fit([cell(184, 20, 13), cell(184, 10, 13), cell(1240, 20, 13), cell(1240, 20, 6)])
    assert fit["fixed_ms"] == pytest.approx(0.5)
    assert fit["ms_per_component"] == pytest.approx(0.1)
    assert fit["ns_per_weight"] == pytest.approx(3.0)
    assert fit["largest_relative_error"] < 1e-9
    assert fit["slowest_per_unit_over_base"] == 1  # the fixed part makes the base the slowest for its size
