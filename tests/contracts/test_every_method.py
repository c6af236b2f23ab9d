"""What every method keeps in one process: a plan is spent once, a run that died goes on, another table is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="regressions are scikit-learn's estimators: extra `report`")

from tests.canonical import METHODS, NUM_RECORDS, drawn
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import Ledger, LedgerRegistry, ledger
from vertinumpyro.session import PRIVACY_RECORD

pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning")
without_engine = pytest.mark.skipif(not has_engine(), reason="the engine of Markov fields: extra `mrf`")
every_method = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[without_engine] if name == "vertimrf" else []) for name in METHODS]
)


@pytest.fixture(scope="module")
def data():
    return drawn()


def record_of(folder):
    record = json.loads((folder / PRIVACY_RECORD).read_text())
    return record["status"], record["steps_spent"], record["fingerprint"]


def alike(method, one, other):
    pairs = zip(method.released(one), method.released(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.promise
@every_method
def test_a_plan_is_spent_once_and_what_it_released_is_had_again(name, data, tmp_path):
    method = METHODS[name]
    plan = method.plan(data)
    first = method.fit(data, plan, run_dir=tmp_path)
    assert record_of(tmp_path) == ("finished", plan.num_steps, plan.fingerprint())
    for run in ({}, {"run_dir": tmp_path}, {"run_dir": tmp_path / "other"}):
        with pytest.raises(PlanSpentError):
            method.fit(data, plan, **run)
    again = method.fit(data, plan, run_dir=tmp_path, resume=True)
    assert alike(method, first, again)
    assert record_of(tmp_path) == ("finished", plan.num_steps, plan.fingerprint())


class Death(BaseException):
    """The process is killed: nobody tidies up behind it."""


@pytest.mark.promise
@every_method
@pytest.mark.parametrize("counted", [False, True], ids=["before a step is counted", "after"])
def test_a_run_that_died_goes_on_and_counts_every_step_once(name, counted, data, tmp_path, monkeypatch):
    method, reserve = METHODS[name], Ledger.reserve

    def dies(own, *args, **kwargs):
        if counted:
            reserve(own, *args, **kwargs)
        raise Death

    plan = method.plan(data)
    with monkeypatch.context() as patch:
        patch.setattr(
            ledger, "_OF_THIS_PROCESS", LedgerRegistry()
        )  # another process, which knows nothing of this one's plans
        patch.setattr(Ledger, "reserve", dies)
        patch.setattr(Ledger, "_close", lambda own, status: own._lock.release())
        with pytest.raises(Death):
            method.fit(data, plan, run_dir=tmp_path)
    before = record_of(tmp_path)[1]
    assert (before > 0) == counted
    method.fit(data, plan, run_dir=tmp_path, resume=True)
    assert record_of(tmp_path) == ("finished", plan.num_steps, plan.fingerprint())


@pytest.mark.promise
@every_method
def test_the_plan_of_another_table_is_refused_and_stays_unspent(name, data, tmp_path):
    method = METHODS[name]
    plan = method.plan(drawn(NUM_RECORDS - 1))
    with pytest.raises(ArgumentError, match=r"records|another dataset"):
        method.fit(data, plan, run_dir=tmp_path / "run")
    assert not list(tmp_path.rglob("*.npz"))
    with Ledger.start(plan):
        pass  # it can still be spent
