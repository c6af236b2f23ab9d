import errno
import json
import subprocess
import sys

import pytest

from vertinumpyro.core.errors import ArgumentError, PlanSpentError, PrivacyError
from vertinumpyro.privacy import Ledger, LedgerRegistry, ledger
from vertinumpyro.privacy.adversary import NoiseSource
from vertinumpyro.privacy.gradient_plan import GradientPlan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.privacy.sampling import DisjointBatches


def make_plan():
    return GradientPlan(
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


def record(path):
    return json.loads(path.read_text())


def test_steps_are_on_disk_before_they_are_used(path):
    plan = make_plan()
    with Ledger.start(plan, path) as ledger_:
        assert record(path)["steps_spent"] == 0
        assert ledger_.reserve(4) == 0
        assert record(path)["steps_spent"] == 4
        assert ledger_.reserve(3) == 4
        assert (ledger_.steps_spent, ledger_.steps_left) == (7, 3)
    assert record(path)["status"] == "paused"
    assert GradientPlan.from_dict(record(path)["plan"]) == plan
    assert record(path)["adversaries"][0]["adversary"] == "outside analyst"
    assert sorted(p.name for p in path.parent.iterdir()) == ["plan.json", "plan.json.lock"]


def test_a_record_can_be_read_whether_or_not_somebody_spends(path, tmp_path):
    plan = make_plan()
    with pytest.raises(PlanSpentError, match="does not exist"):
        read_record(tmp_path / "nowhere" / "plan.json")
    with Ledger.start(plan, path) as ledger:
        ledger.reserve(4)
        assert read_record(path).steps_spent == 4
        with pytest.raises(PlanSpentError, match="in use in this process"):
            Ledger.resume(plan, path)
        with pytest.raises(PlanSpentError, match="in use by another process"):
            Ledger.resume(plan, path, book=LedgerRegistry())
    before = path.read_text()
    with Ledger.resume(plan, path) as ledger:
        ledger.reserve(6)
    assert read_record(path).steps_spent == 10, "a finished plan, too"
    with pytest.raises(PlanSpentError, match="another plan"):
        Ledger.resume(make_plan(), path)
    path.write_text(before)
    with Ledger.resume(plan, path) as ledger:
        assert ledger.steps_left == 0, "what this process knows holds against an older file"


def test_no_more_steps_than_the_plan_has(path):
    ledger_ = Ledger.start(make_plan(), path)
    ledger_.reserve(8)
    with pytest.raises(PlanSpentError, match="2 of 10 steps left"):
        ledger_.reserve(3)
    assert record(path)["steps_spent"] == 8  # nothing counted
    with pytest.raises(ArgumentError, match="num_steps"):
        ledger_.reserve(0)
    ledger_.reserve(2)
    ledger_.finish()
    with pytest.raises(PlanSpentError, match="finished"):
        ledger_.reserve(1)


def test_a_plan_is_started_once(path, tmp_path):
    plan = make_plan()
    Ledger.start(plan).pause()
    for target in (None, path):
        with pytest.raises(PlanSpentError, match="already started"):
            Ledger.start(plan, target)
    twin = GradientPlan.from_dict(plan.to_dict())
    with pytest.raises(PlanSpentError):
        Ledger.start(twin, tmp_path / "elsewhere.json")
    Ledger.start(make_plan(), path).pause()
    with pytest.raises(PlanSpentError, match="already holds a record"):
        Ledger.start(make_plan(), path, book=LedgerRegistry())


def test_resume_after_a_crash_continues_at_the_recorded_step(path):
    plan = make_plan()
    crashed = Ledger.start(plan, path)
    crashed.reserve(5)
    crashed._lock.release()  # as the system does when the process dies
    resumed = Ledger.resume(GradientPlan.from_dict(record(path)["plan"]), path, book=LedgerRegistry())
    assert resumed.reserve(5) == 5
    with pytest.raises(PlanSpentError):
        resumed.reserve(1)


def test_resume_in_one_process():
    plan = make_plan()
    with pytest.raises(PlanSpentError, match="path"):
        Ledger.resume(plan)
    ledger_ = Ledger.start(plan)
    ledger_.reserve(4)
    with pytest.raises(PlanSpentError, match="in use"):
        Ledger.resume(plan)
    ledger_.pause()
    assert Ledger.resume(plan).steps_spent == 4


def test_the_larger_count_holds(path):
    plan = make_plan()
    ledger_ = Ledger.start(plan, path)
    older = path.read_text()
    ledger_.reserve(6)
    ledger_.pause()
    path.write_text(older)  # a restored backup
    assert Ledger.resume(plan, path).steps_spent == 6


@pytest.mark.parametrize("steps", [10, 3])
def test_a_finished_plan_has_nothing_left(path, steps):
    """What it released can be recovered under its ledger; not a step more, whatever it used of them."""
    plan = make_plan()
    ledger_ = Ledger.start(plan, path)
    ledger_.reserve(steps)
    ledger_.finish()
    assert record(path)["status"] == "finished"
    with Ledger.resume(plan, path, book=LedgerRegistry()) as resumed:
        assert resumed.steps_left == 0
        with pytest.raises(PlanSpentError, match="0 of 10 steps left"):
            resumed.reserve(1)
    assert record(path)["status"] == "finished"


def test_a_broken_record_says_where_to_go_from_there(path):
    path.write_text("{")
    with pytest.raises(PlanSpentError, match="untouched copy of the file, or start a new run in another folder"):
        Ledger.resume(make_plan(), path)


@pytest.mark.parametrize("change", [{"steps_spent": 11}, {"steps_spent": -1}, {"steps_spent": "4"}, {"status": "open"}])
def test_an_edited_count_or_status_is_refused(path, change):
    plan = make_plan()
    Ledger.start(plan, path).pause()
    path.write_text(json.dumps(record(path) | change))
    with pytest.raises(PlanSpentError, match="out of range"):
        Ledger.resume(plan, path, book=LedgerRegistry())


@pytest.mark.parametrize(
    "content", [None, "", "[]", '{"fingerprint": "x", "status": "paused", "steps_spent": 0}', "{}"]
)
def test_a_missing_foreign_or_broken_record_counts_as_spent(content, path):
    if content is not None:
        path.write_text(content)
    with pytest.raises(PlanSpentError):
        Ledger.resume(make_plan(), path)


def test_a_failed_write_counts_the_steps(path, monkeypatch):
    ledger_ = Ledger.start(make_plan(), path)

    def fail(*args):
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_write_durably", fail)
        with pytest.raises(PrivacyError, match=r"written \(disk full\); nothing is released before it can be"):
            ledger_.reserve(4)
    assert ledger_.steps_spent == 4
    assert ledger_.reserve(1) == 4
    assert record(path)["steps_spent"] == 5


def test_a_failed_check_closes_the_plan_and_says_which(path):
    plan = make_plan()
    ledger_ = Ledger.start(plan, path)
    ledger_.reserve(2)
    ledger_.fail("'b' failed a check: rows; nothing was opened", 3)
    assert (record(path)["steps_spent"], record(path)["status"]) == (3, "finished")
    assert read_record(path).failed == record(path)["failed_check"] == "'b' failed a check: rows; nothing was opened"
    with pytest.raises(PlanSpentError, match=r"closed when a check failed: 'b' failed .* make a new plan"):
        Ledger.resume(plan, path, book=LedgerRegistry())


def test_a_start_that_fails_leaves_the_plan_usable(tmp_path):
    plan = make_plan()
    with pytest.raises(OSError, match="missing"):
        Ledger.start(plan, tmp_path / "missing" / "plan.json")
    Ledger.start(plan, tmp_path / "plan.json").pause()


def test_another_process_is_kept_out(path):
    holder = Ledger.start(make_plan(), path)
    script = (
        "import json, sys; from vertinumpyro.privacy import Ledger, PrivacyPlan;"
        "path = sys.argv[1]; plan = PrivacyPlan.from_dict(json.load(open(path))['plan']);"
        "Ledger.resume(plan, path)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "PlanSpentError" in done.stderr
    assert "another process" in done.stderr
    holder.pause()
    assert subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True).returncode == 0
