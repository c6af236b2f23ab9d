"""The demonstration, a few steps of it."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import invoke
from vertinumpyro.cli import demo
from vertinumpyro.cli.comparison import compare, joined_at_random
from vertinumpyro.cli.outputs import FILES
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, load_rand_hie
from vertinumpyro.dpvi import DPVI
from vertinumpyro.evaluation.palette import NOT_DP_NOTE

NUM_RECORDS = 1_500


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "DPVI", lambda **settings: DPVI(num_components=2, **settings))
        patch.setattr(demo, "load_rand_hie", lambda: load_rand_hie().take(np.arange(NUM_RECORDS)))
        result = invoke("demo", "--out", out, "--steps", 6)
    assert result.exit_code == 0, result.output + result.stderr
    return out, result.output


def test_all_files_are_written(shown: tuple[Path, str]):
    out, _ = shown
    assert all((out / name).is_file() for name in FILES)
    assert len(pd.read_parquet(out / "synthetic.parquet")) == NUM_RECORDS
    assert json.loads((out / "privacy.json").read_text())["steps_spent"] == 6


def test_the_report_marks_what_is_not_dp(shown: tuple[Path, str]):
    report = (shown[0] / "report.html").read_text()
    assert re.search(f'<p><span class="badge">{NOT_DP_NOTE}</span> (Across|Here) ', report)  # the verdict
    assert report.count(f'class="badge">{NOT_DP_NOTE}') >= 5
    for text in (
        "outside analyst",
        "Objective of the inference",
        "Norm of each noisy gradient",
        "learned apart",
    ):
        assert text in report


def test_the_plan_comes_first_and_the_result_last(shown: tuple[Path, str]):
    text = shown[1]
    order = [
        "Schema",
        "Privacy plan",
        "Learning on",
        "For comparison",
        "Written to",
        "not DP",
        "mdvis × disea",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_a_second_demo_refuses_the_same_folder(shown: tuple[Path, str]):
    result = invoke("demo", "--out", shown[0], "--steps", 6)
    assert result.exit_code == 2
    assert "PlanSpentError" in result.stderr


SCHEMA = Schema({"left": PartySchema({"a": BinaryColumn()}), "right": PartySchema({"b": BinaryColumn()})})


def test_the_comparison_says_so_when_joint_is_not_closer():
    linked = pd.DataFrame({"a": [0, 1] * 50, "b": [0, 1] * 50})
    loose = joined_at_random([linked[["b"]], linked[["a"]]], SCHEMA, seed=0)
    assert list(loose.columns) == ["a", "b"]
    better, worse = (compare(linked, *twins, SCHEMA, ("a", "b")) for twins in [(linked, loose), (loose, linked)])
    assert better.joint_is_closer
    assert (better.link_kept, worse.link_kept) == (1.0, 0.0)
    assert "100% closer" in demo._verdict(better)
    assert not worse.joint_is_closer
    assert "not closer" in demo._verdict(worse)
