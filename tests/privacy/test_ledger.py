import json
import subprocess
import sys

import pytest

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.privacy import ledger
from vertinumpyro.privacy.adversary import NoiseSource
from vertinumpyro.privacy.ledger import recorded_steps, resume_spending, start_spending
from vertinumpyro.privacy.plan import PrivacyPlan
from vertinumpyro.privacy.sampling import DisjointBatches


def make_plan():
    return PrivacyPlan(
        sampling=DisjointBatches(batch_size=10, num_epochs=2),
        clip_norm=1.0,
        noise_multiplier=2.0,
        noise=NoiseSource(num_parties=2),
        grid_bits=16,
        num_records=50,
        parties=("a", "b"),
        delta=1e-3,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


def forget():
    """What a new process knows."""
    ledger._registry.clear()


def record(path):
    return json.loads(path.read_text())


def test_steps_are_on_disk_before_they_are_used(path):
    plan = make_plan()
    with start_spending(plan, path) as spending:
        assert record(path)["steps_spent"] == 0
        assert spending.reserve(4) == 0
        assert record(path)["steps_spent"] == 4
        assert spending.reserve(3) == 4
        assert (spending.steps_spent, spending.steps_left) == (7, 3)
    assert record(path)["status"] == "paused"
    assert PrivacyPlan.from_dict(record(path)["plan"]) == plan
    assert record(path)["adversaries"][0]["adversary"] == "outside analyst"
    assert sorted(p.name for p in path.parent.iterdir()) == ["plan.json", "plan.json.lock"]


def test_recorded_steps_can_be_read_of_a_plan_that_nobody_spends(path, tmp_path):
    plan = make_plan()
    with pytest.raises(PlanSpentError, match="does not exist"):
        recorded_steps(plan, tmp_path / "nowhere" / "plan.json")
    with start_spending(plan, path) as spending:
        spending.reserve(4)
        with pytest.raises(PlanSpentError, match="in use in this process"):
            recorded_steps(plan, path)
        forget()
        with pytest.raises(PlanSpentError, match="in use by another process"):
            recorded_steps(plan, path)
    before = path.read_text()
    assert recorded_steps(plan, path) == 4
    with resume_spending(plan, path) as spending:
        spending.reserve(6)
    assert recorded_steps(plan, path) == 10, "a finished plan, too"
    with pytest.raises(PlanSpentError, match="another plan"):
        recorded_steps(make_plan(), path)
    path.write_text(before)
    assert recorded_steps(plan, path) == 10, "what this process knows holds against an older file"


def test_no_more_steps_than_the_plan_has(path):
    spending = start_spending(make_plan(), path)
    spending.reserve(8)
    with pytest.raises(PlanSpentError, match="2 of 10 steps left"):
        spending.reserve(3)
    assert record(path)["steps_spent"] == 8  # nothing counted
    with pytest.raises(ArgumentError, match="num_steps"):
        spending.reserve(0)
    spending.reserve(2)
    spending.finish()
    with pytest.raises(PlanSpentError, match="finished"):
        spending.reserve(1)


def test_a_plan_is_started_once(path, tmp_path):
    plan = make_plan()
    start_spending(plan).pause()
    for target in (None, path):
        with pytest.raises(PlanSpentError, match="already started"):
            start_spending(plan, target)
    twin = PrivacyPlan.from_dict(plan.to_dict())
    with pytest.raises(PlanSpentError):
        start_spending(twin, tmp_path / "elsewhere.json")
    start_spending(make_plan(), path).pause()
    forget()
    with pytest.raises(PlanSpentError, match="already holds a record"):
        start_spending(make_plan(), path)


def test_resume_after_a_crash_continues_at_the_recorded_step(path):
    plan = make_plan()
    crashed = start_spending(plan, path)
    crashed.reserve(5)
    crashed._lock.release()  # as the system does when the process dies
    forget()
    resumed = resume_spending(PrivacyPlan.from_dict(record(path)["plan"]), path)
    assert resumed.reserve(5) == 5
    with pytest.raises(PlanSpentError):
        resumed.reserve(1)


def test_resume_in_one_process():
    plan = make_plan()
    with pytest.raises(PlanSpentError, match="path"):
        resume_spending(plan)
    spending = start_spending(plan)
    spending.reserve(4)
    with pytest.raises(PlanSpentError, match="in use"):
        resume_spending(plan)
    spending.pause()
    assert resume_spending(plan).steps_spent == 4


def test_the_larger_count_holds(path):
    plan = make_plan()
    spending = start_spending(plan, path)
    older = path.read_text()
    spending.reserve(6)
    spending.pause()
    path.write_text(older)  # a restored backup
    assert resume_spending(plan, path).steps_spent == 6


def test_spent_plans_are_not_resumed(path):
    plan = make_plan()
    with start_spending(plan, path) as spending:
        spending.reserve(10)
    assert record(path)["status"] == "finished"
    forget()
    with pytest.raises(PlanSpentError, match="spent"):
        resume_spending(plan, path)


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"fingerprint": "x", "status": "paused", "steps_spent": 0}', "{}"]
)
def test_a_missing_foreign_or_broken_record_counts_as_spent(content, path):
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlanSpentError):
        resume_spending(make_plan(), path)


def test_a_failed_write_counts_the_steps(path, monkeypatch):
    spending = start_spending(make_plan(), path)

    def fail(*args):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write_durably", fail)
        with pytest.raises(OSError, match="disk full"):
            spending.reserve(4)
    assert spending.steps_spent == 4
    assert spending.reserve(1) == 4
    assert record(path)["steps_spent"] == 5


def test_a_start_that_fails_leaves_the_plan_usable(tmp_path):
    plan = make_plan()
    with pytest.raises(OSError, match="missing"):
        start_spending(plan, tmp_path / "missing" / "plan.json")
    start_spending(plan, tmp_path / "plan.json").pause()


def test_another_process_is_kept_out(path):
    holder = start_spending(make_plan(), path)
    script = (
        "import json, sys; from vertinumpyro.privacy.ledger import resume_spending;"
        "from vertinumpyro.privacy.plan import PrivacyPlan;"
        "path = sys.argv[1]; plan = PrivacyPlan.from_dict(json.load(open(path))['plan']);"
        "resume_spending(plan, path)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "PlanSpentError" in done.stderr
    assert "another process" in done.stderr
    holder.pause()
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode == 0
