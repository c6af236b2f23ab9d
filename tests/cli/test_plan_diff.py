"""`diff`: what two plans differ in."""

from __future__ import annotations

import json
import types

import pytest

from tests.cli.conftest import invoke
from vertinumpyro.cli.plan_table import plan_at
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy.ledger import Ledger
from vertinumpyro.session import PRIVACY_RECORD
from vertinumpyro.study import Agreement

CONFIG = """
[schema.parties.clinic.columns.ill]
type = "binary"
[schema.parties.shop.columns.kind]
type = "categorical"
categories = ["a", "b", "c"]
[data]
num_records = 5000
[run]
method = "vertimrf"
[privacy]
delta = 1e-5
"""


@pytest.fixture
def two(tmp_path):
    (tmp_path / "one.toml").write_text(CONFIG + "epsilon = 1.0\n")
    (tmp_path / "two.toml").write_text(CONFIG.replace("5000", "6000") + "epsilon = 2.0\n")
    return tmp_path / "one.toml", tmp_path / "two.toml"


def test_settings_and_every_epsilon_stand_side_by_side(two):
    result = invoke("diff", *two)
    assert result.exit_code == 0, result.output
    lines = {line.split()[0]: line.split()[1:] for line in result.output.splitlines() if line.strip()}
    assert lines["num_records"] == ["5000", "6000"]
    assert lines["clinic"][0] == "1.000"
    assert lines["shop"][1] == "2.000"
    assert "plan_id" not in result.output
    found = json.loads(invoke("diff", *two, "--json").stdout)
    assert found["settings"]["num_records"] == [5000, 6000]
    assert found["epsilon"]["outside analyst"][0] < 1.0 < found["epsilon"]["outside analyst"][1]


def test_a_configuration_agrees_with_itself(two):
    assert "none, but for the plans' own ids" in invoke("diff", two[0], two[0]).output


def test_records_and_agreements_have_plans_and_linkages_have_none(two, tmp_path, monkeypatch):
    plan = plan_at(two[0])
    (tmp_path / "run").mkdir()
    Ledger.start(plan, tmp_path / "run" / PRIVACY_RECORD, secure_noise=True).finish()
    assert plan_at(tmp_path / "run") == plan_at(tmp_path / "run" / PRIVACY_RECORD) == plan
    with pytest.raises(ArgumentError, match=r"does not exist; give a run's folder"):
        plan_at(tmp_path / "nothing")
    (tmp_path / "study.toml").write_text("[members]\n")
    monkeypatch.setattr(Agreement, "load", lambda path: types.SimpleNamespace(plan=plan))
    assert plan_at(tmp_path / "study.toml") == plan
    monkeypatch.setattr(Agreement, "load", lambda path: types.SimpleNamespace(plan=None))
    with pytest.raises(ArgumentError, match=r"study.toml is an agreement on a linkage, which has no plan"):
        plan_at(tmp_path / "study.toml")
