"""Without the engine of Markov fields: arguments are checked first, a fit says what to install and spends nothing."""

import sys

import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf import VertiMRF

SYSTEM = VertiMRF(max_cells=3)


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    monkeypatch.setitem(sys.modules, "mbi", None)


def test_a_fit_says_what_to_install_and_its_plan_is_not_spent(dataset, tmp_path):
    plan = SYSTEM.plan(dataset, epsilon=1.0)
    assert "not in it: the field" in plan.time.words
    with pytest.raises(ArgumentError, match=r"pip install 'vertinumpyro\[mrf\]'"):
        SYSTEM.fit(dataset, plan, run_dir=tmp_path)
    assert not any(tmp_path.iterdir())
    assert SYSTEM.release(dataset, plan, run_dir=tmp_path).measurements  # which needs no engine


@pytest.mark.parametrize("name", ["data", "plan"])
def test_a_wrong_argument_is_named_before(dataset, name):
    arguments = {"data": dataset, "plan": SYSTEM.plan(dataset, epsilon=1.0), name: "table.csv"}
    with pytest.raises(ArgumentError, match=name):
        SYSTEM.fit(**arguments)
