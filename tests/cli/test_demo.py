"""The demonstration, a few steps of it."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.cli.conftest import invoke
from vertinumpyro.cli import demo
from vertinumpyro.cli.demo import APART, compare, joined_at_random
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset, load_rand_hie
from vertinumpyro.dpvi import DPVI
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.reports.run_report import POSTERIOR_FILES

NUM_RECORDS = 1_500


def few_people(num_records: int) -> VerticalDataset:
    """Some records of two columns of each party, which compile sooner than ten."""
    whole = load_rand_hie().take(np.arange(num_records))
    held = {"insurer": ("idp", "mdvis"), "clinic": ("physlm", "disea")}
    schema = Schema({p: PartySchema({n: whole.schema.columns[n] for n in names}) for p, names in held.items()})
    return VerticalDataset.from_pooled(schema, pd.DataFrame(whole.to_frame()[list(schema.columns)]))


def small_tables(law: str, settings: VertiMRF) -> MarginalInference:
    few = dataclasses.replace(settings, max_cells=3, clique_limit=1_000)
    return MarginalInference(law="tables", num_components=2, num_steps=100, settings=few)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "DPVI", lambda **settings: DPVI(num_components=2, warm_start=False, **settings))
        patch.setattr(demo, "MarginalInference", small_tables)
        patch.setattr(demo, "load_rand_hie", lambda: few_people(NUM_RECORDS))
        result = invoke("demo", "--out", out, "--steps", 6)
    assert result.exit_code == 0, result.output + result.stderr
    return out, result.output


def test_all_files_are_written(shown: tuple[Path, str]):
    out, _ = shown
    assert all((out / name).is_file() for name in POSTERIOR_FILES)
    assert len(pd.read_parquet(out / "synthetic.parquet")) == NUM_RECORDS
    assert json.loads((out / "privacy.json").read_text())["steps_spent"] == 2  # the parties' own tables, those across
    assert json.loads((out / "dpvi" / "privacy.json").read_text())["steps_spent"] == 6
    assert all((out / "dpvi" / name).is_file() for name in ("synthetic.csv", "posterior.npz"))


def test_the_report_marks_what_is_not_dp(shown: tuple[Path, str]):
    report = (shown[0] / "report.html").read_text()
    assert re.search(f'<p><span class="badge">{NOT_DP_NOTE}</span> (Take|Here) ', report)  # the verdict
    assert report.count(f'class="badge">{NOT_DP_NOTE}') >= 5
    for text in (
        "outside analyst",
        "Objective of the inference",
        "Norm of each noisy gradient",
        "learned apart",
        "DPVI&#x27;s own plan",
    ):
        assert text in report


def test_the_plan_comes_first_and_the_result_last(shown: tuple[Path, str]):
    text = shown[1]
    order = [
        "Schema",
        "First way: one release of noisy tables",
        "Second way: DPVI",
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
    better, worse = (
        compare(linked, {demo.FROM_TABLES: joint, APART: apart}, SCHEMA, ("a", "b"))
        for joint, apart in [(linked, loose), (loose, linked)]
    )
    assert better.joint_is_closer
    assert (better.link_kept(demo.FROM_TABLES), worse.link_kept(demo.FROM_TABLES)) == (1.0, 0.0)
    assert "100% closer" in demo._verdict(better)
    assert not worse.joint_is_closer
    assert "no joint twin is closer" in demo._verdict(worse)


def test_the_verdict_names_the_nearer_twin_and_why():
    linked = pd.DataFrame({"a": [0, 1] * 50, "b": [0, 1] * 50})
    loose = joined_at_random([linked[["b"]], linked[["a"]]], SCHEMA, seed=0)
    for names, why in (
        ((demo.FROM_TABLES, demo.BY_DPVI), "tables once"),
        ((demo.BY_DPVI, demo.FROM_TABLES), "gradients"),
    ):
        found = compare(linked, {names[0]: linked, names[1]: loose, APART: loose}, SCHEMA, ("a", "b"))
        assert found.best == names[0]
        assert f"learned {names[0]}:" in demo._verdict(found)
        assert why in demo._verdict(found)
