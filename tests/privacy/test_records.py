"""Every kind of plan has one JSON form, and records that earlier versions wrote load with the same fingerprint."""

import json
import pathlib
import shutil

import pytest

import vertinumpyro  # noqa: F401 (registers every kind of plan)
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.dpvi.second_moments import MomentsPlan
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.privacy import OUTSIDE_ANALYST, Adversary, GradientPlan, Ledger, LedgerRegistry, Plan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.regression.bayesian_linear_plan import BayesianLinearPlan
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan

GOLDEN = sorted((pathlib.Path(__file__).parent / "golden").glob("*.json"))
KINDS = {"dpvi", "horizontal", "vertimrf", "functional_mechanism", "bayesian_linear", "second_moments"}
every_record = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)


def test_there_is_a_record_of_every_kind():
    imported = {plan.kind for plan in (FunctionalMechanismPlan, MomentsPlan, BayesianLinearPlan, MRFPlan)}
    assert imported < KINDS == set(Plan._kinds) - {"toy"}
    assert {read_record(path).plan.kind for path in GOLDEN} == KINDS


@every_record
def test_an_old_record_loads_with_its_fingerprint_table_and_count(path):
    stored = json.loads(path.read_text())
    assert "kind" not in stored["plan"], "written before plans named their kind"
    plan = Plan.from_dict(stored["plan"])
    assert plan.fingerprint() == stored["fingerprint"]
    record = read_record(path)
    assert (record.plan, record.status, record.steps_spent) == (plan, stored["status"], stored["steps_spent"])
    assert [row.adversary for row in plan.adversaries] == [
        row["adversary"] for row in stored["adversaries"] if row["relation"] == plan.relation.value
    ]
    # Markov random fields had noise a little above the least that keeps their budget
    for row, old in zip(plan.table_rows(), stored["adversaries"], strict=True):
        assert row["epsilon"] == pytest.approx(old["epsilon"], rel=5e-6) if old["epsilon"] != "inf" else True


@every_record
def test_the_json_form_names_the_kind_and_restores_an_equal_plan(path):
    plan = read_record(path).plan
    form = json.loads(json.dumps(plan.to_dict()))
    assert form["kind"] == plan.kind
    assert Plan.from_dict(form) == plan == type(plan).from_dict(form)
    assert Plan.from_dict(form).fingerprint() == plan.fingerprint()


@every_record
def test_epsilon_is_asked_the_same_way(path):
    plan = read_record(path).plan
    for row in plan.adversaries:
        assert plan.epsilon(row.adversary) == row.epsilon
    names = {observer.name for observer in plan.covered}
    assert plan.epsilon() == plan.worst.epsilon == max(r.epsilon for r in plan.adversaries if r.adversary in names)
    with pytest.raises(ArgumentError, match=f"one of {OUTSIDE_ANALYST}"):
        plan.epsilon("nobody")


@every_record
def test_releases_cover_the_steps_and_state_their_cost(path):
    plan = read_record(path).plan
    assert plan.num_steps == len(plan.step_names) == sum(release.num_steps for release in plan.releases)
    for release in plan.releases:
        event = release.event(Adversary(name=OUTSIDE_ANALYST))
        delta = plan.delta or 1e-9
        assert event.epsilon(delta, plan.relation) <= plan.epsilon() * (1 + 1e-6)


@every_record
def test_a_run_that_an_earlier_version_began_goes_on(path, tmp_path):
    record = tmp_path / "privacy.json"
    shutil.copy(path, record)
    plan = read_record(record).plan
    before = read_record(record).steps_spent
    with Ledger.resume(plan, record, book=LedgerRegistry()) as ledger:
        assert ledger.steps_spent >= before
        if ledger.steps_left:
            ledger.reserve(1)
    stored = json.loads(record.read_text())
    assert stored["format"] == 2
    assert stored["plan"]["kind"] == plan.kind
    assert read_record(record).plan.fingerprint() == plan.fingerprint()


def test_a_plan_of_another_kind_is_refused_by_name():
    (path,) = (p for p in GOLDEN if p.stem == "horizontal")
    with pytest.raises(ArgumentError, match="kind 'horizontal', not 'dpvi'"):
        GradientPlan.from_dict(json.loads(path.read_text())["plan"])
    with pytest.raises(ArgumentError, match="no plan of kind 'tomorrow'"):
        Plan.from_dict({"kind": "tomorrow"})
    with pytest.raises(ArgumentError, match="no plan of kind None"):
        Plan.from_dict({})


def test_a_newer_format_is_refused_and_says_what_to_do(tmp_path):
    path = tmp_path / "privacy.json"
    path.write_text(GOLDEN[0].read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(PlanSpentError, match=r"format 99.*with that version"):
        read_record(path)


def test_noise_from_a_seed_claims_nothing_and_stays_so(tmp_path):
    plan = read_record(next(p for p in GOLDEN if p.stem == "dpvi_poisson")).plan
    path = tmp_path / "privacy.json"
    with Ledger.start(plan, path, secure_noise=False, book=LedgerRegistry()) as ledger:
        ledger.reserve(1)
    stored = json.loads(path.read_text())
    assert "insecure seed" in stored["noise"]
    assert not any(row["claim"] for row in stored["adversaries"])
    with Ledger.resume(plan, path, secure_noise=True, book=LedgerRegistry()) as ledger:
        assert not ledger.secure_noise
    assert not any(row["claim"] for row in json.loads(path.read_text())["adversaries"])
