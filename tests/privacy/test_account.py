"""What plans cost together, and the account of one data set that they go to."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core.errors import PlanSpentError, PrivacyError
from vertinumpyro.mrf import MRFPlan
from vertinumpyro.privacy import (
    ClientPlan,
    DisjointBatches,
    GaussianEvent,
    GradientPlan,
    Ledger,
    LedgerRegistry,
    NeighbouringRelation,
    NoiseSource,
    Plan,
    PoissonEvent,
    PoissonSampling,
    PureEvent,
)
from vertinumpyro.privacy.account import ACCOUNT, ALL_OTHERS, Account, TotalLimit, accounts
from vertinumpyro.privacy.accounting import WorstEvent, composed_epsilon, rounded_up, under_replacement
from vertinumpyro.privacy.files_account import AccountWarning, FilesAccount

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE
GAUSSIAN = GaussianEvent(noise_multiplier=10.0, count=3)
SECOND = GaussianEvent(noise_multiplier=6.0, count=1)
POISSON = PoissonEvent(noise_multiplier=1.5, sampling_prob=0.02, num_steps=100)


# -- composition -------------------------------------------------------------------------------------


def test_gaussian_events_compose_in_closed_form():
    assert composed_epsilon([GAUSSIAN, SECOND], 1e-5, REPLACE) == GAUSSIAN.after(SECOND).epsilon(1e-5, REPLACE)
    assert composed_epsilon([], 1e-5, REPLACE) == 0
    assert composed_epsilon([POISSON], 1e-5, REPLACE) == POISSON.epsilon(1e-5, REPLACE)


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_curves_compose_to_the_exact_value_from_above(relation, delta):
    exact = GAUSSIAN.after(SECOND).epsilon(delta, relation)
    found = composed_epsilon([WorstEvent((GAUSSIAN,)), WorstEvent((SECOND,))], delta, relation)
    assert exact <= found <= 1.003 * exact + 1e-6


def test_poisson_batches_and_tables_cost_what_dp_accounting_says():
    found = composed_epsilon([POISSON, GAUSSIAN], 1e-5, ADD_REMOVE)
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp_event.ComposedDpEvent([POISSON.dp_event(), GAUSSIAN.dp_event()]))
    assert accountant.get_epsilon(1e-5) == pytest.approx(found, rel=5e-3)
    half = PoissonEvent(noise_multiplier=1.5, sampling_prob=0.02, num_steps=50)
    whole = POISSON.epsilon(1e-5, REPLACE)
    assert composed_epsilon([half, half], 1e-5, REPLACE) == pytest.approx(whole, rel=3e-3)


def test_pure_events_compose_as_randomised_responses_do():
    pure = PureEvent(pure_epsilon=0.5)
    assert composed_epsilon([pure] * 40, 0.0, REPLACE) == pytest.approx(20.0)
    found = composed_epsilon([pure] * 40, 1e-5, REPLACE)
    response = pld_lib.from_randomized_response(2 / (1 + math.exp(0.5)), 2, value_discretization_interval=1e-3)
    assert found == pytest.approx(response.self_compose(40).get_epsilon_for_delta(1e-5), rel=2e-2)
    assert found < 20.0
    assert composed_epsilon([pure, GAUSSIAN], 0.0, REPLACE) == math.inf
    assert composed_epsilon([pure, PureEvent(pure_epsilon=math.inf)], 1e-5, REPLACE) == math.inf


def test_a_replacement_is_a_removal_and_an_addition():
    assert under_replacement(GAUSSIAN, ADD_REMOVE) is GAUSSIAN
    assert under_replacement(PureEvent(pure_epsilon=0.5), ADD_REMOVE) == PureEvent(pure_epsilon=1.0)
    unknown = under_replacement(WorstEvent((GAUSSIAN,)), ADD_REMOVE)
    assert unknown.epsilon(1e-5, REPLACE) >= GAUSSIAN.epsilon(1e-5, REPLACE)  # whose shift doubles
    assert unknown.epsilon(1e-5, REPLACE) < 2.5 * GAUSSIAN.epsilon(1e-5, ADD_REMOVE)


# -- accounts ----------------------------------------------------------------------------------------


def dpvi(parties=("clinic", "bank"), **changes):
    arguments = {
        "sampling": DisjointBatches(batch_size=10, num_epochs=2), "clip_norm": 1.0, "noise_multiplier": 12.0,
        "noise": NoiseSource(num_parties=len(parties)), "grid_bits": 16, "num_records": 50, "parties": parties,
        "delta": 1e-4,
    }  # fmt: skip
    return GradientPlan(**{**arguments, **changes})


def tables(parties=("clinic", "insurer"), **changes):
    settings = {
        "noise_multiplier": 8.0, "num_records": 50, "parties": parties, "num_columns": (2,) * len(parties),
        "num_binned": (0,) * len(parties), "delta": 1e-5, "noise": NoiseSource(num_parties=len(parties)),
    }  # fmt: skip
    return MRFPlan(**{**settings, **changes})


@pytest.fixture
def account(tmp_path):
    return Account(tmp_path / ACCOUNT, "clinic", "patients")


def run_whole(plan, account, folder, **settings):
    with Ledger.start(
        plan, folder / f"{plan.plan_id}.json", book=LedgerRegistry(), account=account, **settings
    ) as ledger:
        ledger.reserve(plan.num_steps)


def test_steps_are_on_account_before_they_are_used(account, tmp_path):
    plan = dpvi()
    path = tmp_path / "privacy.json"
    assert account.entries() == []
    with Ledger.start(plan, path, account=account) as ledger:
        ledger.reserve(4)
        (entry,) = Account(account.path, "clinic", "patients").entries()
        assert (entry.plan, entry.steps_spent, entry.finished, entry.counts) == (plan, 4, False, True)
    with Ledger.resume(plan, path, account=account) as ledger:
        assert ledger.steps_spent == 4
        ledger.reserve(ledger.steps_left)
    (entry,) = account.entries()
    assert (entry.steps_spent, entry.finished) == (plan.num_steps, True)


def test_a_failed_check_counts_in_full_and_keeps_its_reason(account, tmp_path):
    kept, failed = dpvi(), dpvi()
    run_whole(kept, account, tmp_path)
    with account._written() as database:
        database.execute("DROP TABLE failed_checks")  # as an earlier version has it
    assert [entry.failed for entry in account.entries()] == [""]
    ledger = Ledger.start(failed, tmp_path / "privacy.json", account=account)
    ledger.fail("'insurer' failed a check", 1)
    first, second = account.entries()
    assert (first.failed, second.failed) == ("", "'insurer' failed a check")
    assert (second.steps_spent, second.finished, second.counts) == (1, True, True)
    assert account.begin(failed, secure_noise=True) == failed.num_steps
    assert account.totals()[0].epsilon > Account(account.path, "clinic", "patients").totals()[0].epsilon / 2


def test_an_older_record_or_none_is_caught_by_the_account(account, tmp_path):
    plan, path = dpvi(), tmp_path / "privacy.json"
    with Ledger.start(plan, path, book=LedgerRegistry(), account=account) as ledger:
        ledger.reserve(2)
        older = path.read_text()
        ledger.reserve(3)
    path.write_text(older)
    with Ledger.resume(plan, path, book=LedgerRegistry(), account=account) as ledger:
        assert ledger.steps_spent == 5
    path.unlink()
    with pytest.raises(PlanSpentError, match=r"5 steps of this plan are on account, and .* is gone"):
        Ledger.start(plan, path, book=LedgerRegistry(), account=account)


def test_one_plan_is_on_one_data_sets_account(account, tmp_path):
    plan = dpvi()
    account.begin(plan, secure_noise=True)
    other = Account(account.path, "clinic", "staff")
    with pytest.raises(PlanSpentError, match="on account for the data set 'patients'"):
        other.begin(plan, secure_noise=True)
    with pytest.raises(PlanSpentError, match="has changed since"):
        account.begin(dataclasses.replace(plan, noise_multiplier=13.0), secure_noise=True)
    other.begin(dpvi(), secure_noise=True)
    assert [found.data_set for found in accounts(account.path)] == ["patients", "staff"]


def test_the_total_is_of_all_plans_for_each_adversary(account, tmp_path):
    first, second = dpvi(), tables()
    run_whole(first, account, tmp_path)
    assert [(t.adversary, t.epsilon) for t in account.totals()] == [
        ("outside analyst", pytest.approx(first.epsilon("outside analyst"))),
        ("bank", pytest.approx(first.epsilon("bank"))),
    ]
    before = {t.adversary: t.epsilon for t in account.totals(second)}
    run_whole(second, account, tmp_path)
    totals = {t.adversary: t for t in account.totals()}
    assert {name: t.epsilon for name, t in totals.items()} == before
    assert {t.delta for t in totals.values()} == {1e-4}

    def together(one, other):
        events = [plan.event(next(o for o in plan.observers if o.name == name)) for plan, name in (one, other)]
        return events[0].after(events[1]).epsilon(1e-4, REPLACE)

    outside = "outside analyst"
    assert totals[outside].epsilon == pytest.approx(together((first, outside), (second, outside)))
    # where the bank took no part it sees what everybody sees
    assert totals["bank"].epsilon == pytest.approx(together((first, "bank"), (second, outside)))
    assert totals["insurer"].epsilon == pytest.approx(together((first, outside), (second, "insurer")))
    assert totals[ALL_OTHERS].epsilon == pytest.approx(together((first, "bank"), (second, "insurer")))


def test_all_others_together_have_a_row_where_there_were_several(account):
    plan = dpvi(("clinic", "bank", "shop"))
    names = [total.adversary for total in account.totals(plan)]
    assert names == ["outside analyst", "bank", "shop", ALL_OTHERS]
    assert account.totals(plan)[-1].epsilon == pytest.approx(plan.epsilon("any 2 colluding parties"))


def test_a_plan_beyond_the_limit_does_not_begin(account, tmp_path):
    run_whole(dpvi(), account, tmp_path)
    spent = max(total.epsilon for total in account.totals())
    limited = Account(account.path, "clinic", "patients", TotalLimit(epsilon=1.2 * spent))
    with pytest.raises(PrivacyError, match=r"total ε of the data set 'patients' would be .* against bank.*allows"):
        Ledger.start(dpvi(), tmp_path / "more.json", account=limited)
    assert len(account.entries()) == 1
    assert not (tmp_path / "more.json").exists()
    with pytest.raises(PrivacyError, match="nothing was begun"):
        limited.check(dpvi())
    small = dpvi(noise_multiplier=200.0)
    run_whole(small, limited, tmp_path)  # what fits begins, and goes on where it stopped
    assert limited.begin(small, secure_noise=True) == small.num_steps
    with pytest.raises(PrivacyError, match="noise from a seed protects nobody"):
        limited.begin(dpvi(noise_multiplier=1e4), secure_noise=False)


def test_an_account_whose_first_plan_was_refused_is_empty(account, tmp_path):
    limited = Account(account.path, "clinic", "patients", TotalLimit(epsilon=1e-3))
    with pytest.raises(PrivacyError, match="nothing was begun"):
        Ledger.start(dpvi(), tmp_path / "privacy.json", account=limited)
    assert account.path.exists()
    assert account.entries() == accounts(account.path) == []
    assert [total.epsilon for total in account.totals()] == [0.0]


def test_what_never_released_anything_costs_nothing_once_it_is_over(account, tmp_path):
    ledger = Ledger.start(dpvi(), tmp_path / "privacy.json", account=account)
    assert account.totals()[0].epsilon > 0  # it may be continued
    ledger.finish()
    assert account.totals()[0].epsilon == 0
    assert not account.entries()[0].counts


def test_a_plan_closed_unused_and_begun_again_is_held_against_the_limit(account, tmp_path):
    plan, other = dpvi(), dpvi()
    limited = Account(account.path, "clinic", "patients", TotalLimit(epsilon=1.2 * plan.epsilon("bank")))
    Ledger.start(plan, tmp_path / "closed.json", book=LedgerRegistry(), account=limited).finish()
    with Ledger.start(other, tmp_path / "other.json", book=LedgerRegistry(), account=limited) as ledger:
        for begin in (
            limited.check,
            lambda p: Ledger.start(p, tmp_path / "again.json", book=LedgerRegistry(), account=limited),
        ):
            with pytest.raises(PrivacyError, match="nothing was begun"):
                begin(plan)
        with pytest.raises(PrivacyError, match="nothing was begun"):
            Ledger.resume(plan, tmp_path / "closed.json", book=LedgerRegistry(), account=limited)
        ledger.finish()
    assert sorted(path.name for path in tmp_path.glob("again*")) == []
    with Ledger.start(
        plan, tmp_path / "again.json", book=LedgerRegistry(), account=limited
    ):  # the other one costs nothing now
        assert limited.totals()[1].epsilon == pytest.approx(plan.epsilon("bank"))
        with pytest.raises(PrivacyError, match="nothing was begun"):
            limited.check(dpvi())


def test_two_runs_of_one_plan_share_its_steps(account, tmp_path):
    plan = dpvi()
    one, other = (Ledger.start(plan, tmp_path / f"{n}.json", book=LedgerRegistry(), account=account) for n in range(2))
    assert one.reserve(4) == 0
    with pytest.raises(PlanSpentError, match="its steps from 0 on were spent, by another run"):
        other.reserve(1)
    assert other.steps_spent == 0, "nothing was counted"
    other.finish()
    with pytest.raises(PlanSpentError, match="was closed"):
        one.reserve(1)
    one.pause()
    with Ledger.resume(plan, tmp_path / "0.json", book=LedgerRegistry(), account=account) as again:
        assert again.steps_left == 0, "closed for good"


def test_a_limit_is_not_left_by_losing_the_noise_or_by_another_plans_delta(account, tmp_path):
    plan = dpvi()
    spent = plan.epsilon("bank")
    limited = Account(account.path, "clinic", "patients", TotalLimit(epsilon=spent))
    Ledger.start(plan, tmp_path / "a.json", book=LedgerRegistry(), account=limited).pause()
    with pytest.raises(PrivacyError, match="noise from a seed protects nobody"):
        Ledger.resume(plan, tmp_path / "a.json", book=LedgerRegistry(), account=limited, secure_noise=False)
    loose = dpvi(delta=1e-2, noise_multiplier=100.0)  # under whose δ there is room for more
    ledger = Ledger.start(loose, tmp_path / "b.json", book=LedgerRegistry(), account=limited)
    Ledger.start(dpvi(noise_multiplier=40.0), tmp_path / "c.json", book=LedgerRegistry(), account=limited).pause()
    ledger.finish()
    assert limited.totals()[1].epsilon <= spent


def test_another_plan_under_a_known_id_is_refused_before_it_begins(account):
    plan = dpvi()
    account.begin(plan, secure_noise=True)
    for at in (account, Account(account.path, "clinic", "staff")):
        changed = plan if at is not account else dataclasses.replace(plan, noise_multiplier=13.0)
        with pytest.raises(PlanSpentError, match="make a new plan"):
            at.check(changed)


ACTIONS = st.tuples(
    st.sampled_from(["begin", "begin", "reserve", "finish", "die"]),
    st.integers(0, 1),  # which plan
    st.integers(0, 1),  # in which folder
)


def act(ledgers, released, plan, account, action, path):
    """What a run does, as far as it is let."""
    ledger = ledgers.get(path)
    if action == "begin":
        begin = Ledger.resume if path.exists() else Ledger.start
        ledgers[path] = begin(plan, path, book=LedgerRegistry(), account=account)
    elif action == "reserve" and ledger:
        first = ledger.reserve(4)
        released[plan.plan_id] += range(first, first + 4)
    elif action == "die" and ledger:
        ledgers.pop(path)._lock.release()  # as the system does
    elif ledger:
        ledger.finish()


@settings(max_examples=30, deadline=None)
@example([("begin", 0, 0), ("finish", 0, 0), ("begin", 1, 0), ("reserve", 1, 0), ("begin", 0, 1), ("reserve", 0, 1)])
@example([("begin", 0, 0), ("begin", 0, 1), ("reserve", 0, 0), ("reserve", 0, 1), ("reserve", 0, 0)])
@example([("begin", 0, 0), ("begin", 0, 1), ("finish", 0, 0), ("begin", 1, 0), ("reserve", 1, 0), ("reserve", 0, 1)])
@given(st.lists(ACTIONS, min_size=4, max_size=14))
def test_whatever_is_begun_closed_and_begun_again_the_limit_holds_and_no_step_comes_twice(actions):
    plans = [dpvi(), dpvi(noise_multiplier=20.0)]
    limit = TotalLimit(epsilon=1.1 * plans[0].epsilon("bank"), delta=1e-4)
    ledgers, released = {}, {plan.plan_id: [] for plan in plans}
    with tempfile.TemporaryDirectory() as name:
        account = Account(Path(name, ACCOUNT), "clinic", "patients", limit)
        for action, number, folder in actions:
            with contextlib.suppress(PrivacyError):
                act(ledgers, released, plans[number], account, action, Path(name, f"{number}-{folder}"))
            assert all(total.epsilon <= limit.epsilon for total in account.totals())
        for ledger in ledgers.values():
            ledger.pause()
    assert all(len(steps) == len(set(steps)) for steps in released.values())
    spent = [p.event(next(o for o in p.observers if o.name == "bank")) for p in plans if released[p.plan_id]]
    assert composed_epsilon(spent, 1e-4, REPLACE) <= limit.epsilon


def test_noise_from_a_seed_leaves_no_claim(account, tmp_path):
    run_whole(dpvi(), account, tmp_path, secure_noise=False)
    assert [total.epsilon for total in account.totals()] == [math.inf, math.inf]


def test_a_plan_of_another_relation_counts_as_a_replacement(account):
    plan = tables(relation=ADD_REMOVE)
    total = account.totals(plan)[0]
    assert total.epsilon > 1.5 * plan.epsilon("outside analyst")


def test_clients_plans_go_to_an_account_too(account, tmp_path):
    plan = ClientPlan(
        sampling=PoissonSampling(sampling_prob=0.1, num_steps=5, max_batch_size=50), clip_norm=1.0,
        noise_multiplier=4.0, num_clients=20, grid_bits=16, num_records=200, delta=1e-4,
    )  # fmt: skip
    run_whole(plan, account, tmp_path)
    assert account.totals()[0].epsilon == pytest.approx(plan.epsilon("outside analyst"), rel=1e-6)


def test_what_cannot_be_written_is_refused_before_anything_is_released(account, tmp_path):
    account.path.write_text("this is no database, and long enough to be taken for a damaged one" * 20)
    with pytest.raises(PrivacyError, match=r"cannot be used .*nothing is released before it can be"):
        Ledger.start(dpvi(), tmp_path / "privacy.json", account=account)
    account.path.unlink()
    ledger = Ledger.start(dpvi(), tmp_path / "privacy.json", account=account)
    with sqlite3.connect(account.path, isolation_level=None) as database:
        (pages,) = database.execute("PRAGMA page_count").fetchone()
    original = account._opened

    def full():
        """As a full disk: the file may not grow, and nothing of it may be rewritten."""
        context = original()
        database = context.__enter__()
        database.execute(f"PRAGMA max_page_count = {pages}")
        database.execute("PRAGMA query_only = 1")
        return _Entered(context, database)

    account._opened = full
    with pytest.raises(PrivacyError, match="nothing is released before it can be"):
        ledger.reserve(1)


class _Entered:
    def __init__(self, context, value):
        self.context, self.value = context, value

    def __enter__(self):
        return self.value

    def __exit__(self, *exception):
        return self.context.__exit__(*exception)


def test_the_account_is_kept_by_several_processes_at_once(account):
    code = f"""
import json, secrets
from pathlib import Path
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.account import Account
account = Account(Path({str(account.path)!r}), "clinic", "patients")
record = json.loads({json.dumps(dpvi().to_dict())!r})
for _ in range(5):
    plan = Plan.from_dict({{**record, "plan_id": secrets.token_hex(16)}})
    account.begin(plan, secure_noise=True)
    account.note(plan, 3, finished=False, secure_noise=True)
"""
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    assert [entry.steps_spent for entry in account.entries()] == [3] * 10


def test_a_plan_is_restored_before_its_method_was_ever_imported():
    record = json.dumps(tables().to_dict())
    code = f"""
import json, sys
from vertinumpyro.privacy import Plan
assert "vertinumpyro.mrf" not in sys.modules
print(Plan.from_dict(json.loads({record!r})).kind)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "vertimrf"


def test_every_kind_of_plan_is_found_where_it_stands():
    import vertinumpyro.dpvi
    import vertinumpyro.mrf
    import vertinumpyro.regression  # noqa: F401
    from vertinumpyro.privacy.plan import _METHODS

    for kind, made in Plan._kinds.items():
        if not made.__module__.startswith("vertinumpyro.privacy"):
            assert made.__module__.startswith(_METHODS[kind] + ".")
    assert set(_METHODS) <= set(Plan._kinds)


# -- the files that one process reads ------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    (folder := tmp_path / "records").mkdir()
    paths = {name: folder / f"{name}.csv" for name in ("clinic", "bank")}
    for name, path in paths.items():
        path.write_text(f"id,{name}\n1,2\n")
    return paths


def release(files, account=True, total_epsilon=None, plan=None):
    """A run in a process of its own, and what its record says of the account."""
    plan = dpvi() if plan is None else plan
    kept = FilesAccount.of(files, account, total_epsilon)
    with Ledger.start(plan, book=LedgerRegistry(), account=kept) as ledger:
        ledger.reserve(plan.num_steps)
    return kept.said(plan)


def test_runs_on_the_same_files_add_up(files):
    with warnings_are_errors():
        assert release(files) == "First release on these files (on account in clinic.csv.ledger, bank.csv.ledger)."
    own = Account(files["clinic"].with_name("clinic.csv.ledger") / ACCOUNT, "clinic", "clinic.csv")  # as a process's
    assert [entry.steps_spent for entry in own.entries()] == [dpvi().num_steps]
    with pytest.warns(AccountWarning, match="Second release on these files"):
        said = release(files)
    largest = max(total.epsilon for total in own.totals())
    assert f"ε = {rounded_up(largest)} in all against everyone, δ = 0.0001" in said
    assert largest > max(row.epsilon for row in dpvi().adversaries)
    (other := files["bank"].with_name("other.csv")).write_text("id,y\n1,2\n")
    with pytest.warns(AccountWarning, match=r"Third release on clinic\.csv: "):
        release({"clinic": files["clinic"], "bank": other})


def test_a_changed_file_and_a_copy_are_the_same_people(files):
    alone = {"clinic": files["clinic"]}
    release(alone)
    copy = shutil.copy(files["clinic"], files["clinic"].with_name("copy.csv"))
    with pytest.warns(AccountWarning, match="Second release on this file"):
        release({"clinic": Path(copy)})
    files["clinic"].write_text("id,clinic\n1,3\n")
    with pytest.warns(AccountWarning, match=r"Third release .* clinic\.csv changed since, and counts as the same"):
        release(alone)
    with pytest.warns(AccountWarning) as fourth:
        release(alone)
    assert "changed since" not in str(fourth[0].message)


def test_an_account_alone_says_nothing_of_the_file(files, tmp_path, monkeypatch):
    alone = {"clinic": files["clinic"]}
    release(alone)
    key = tmp_path / "user" / "vertinumpyro" / "files.key"
    assert os.stat(key).st_mode & 0o077 == 0
    stored = (files["clinic"].with_name("clinic.csv.ledger") / ACCOUNT).read_bytes()
    assert not any(secret in stored for secret in (key.read_bytes(), key.read_bytes().hex().encode()))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))  # whose digest of the same file is another one
    copy = Path(shutil.copy(files["clinic"], files["clinic"].with_name("copy.csv")))
    assert release({"clinic": copy}).startswith("First")


def test_beside_files_that_nobody_can_write_the_account_lies_with_the_user(files, tmp_path, monkeypatch):
    allowed, folder = os.access, files["clinic"].parent
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))
    alone = {"clinic": files["clinic"]}
    with pytest.warns(AccountWarning, match=r"nothing can be written beside clinic\.csv"):
        release(alone)
    with pytest.warns(AccountWarning, match="Second release"):
        release(alone)
    assert sorted(path.name for path in folder.iterdir()) == ["bank.csv", "clinic.csv"]
    (tmp_path / "user" / "vertinumpyro").rename(tmp_path / "gone")
    (tmp_path / "user" / "vertinumpyro").write_text("no folder")
    with pytest.warns(AccountWarning, match="could not be written to, so this run is missing"):
        assert release(alone) == "The account could not be written to, so this run is missing from it."


def test_a_run_that_has_begun_does_not_fail_for_its_account(files):
    kept, plan = FilesAccount.of(files, True), dpvi()
    with Ledger.start(plan, book=LedgerRegistry(), account=kept) as ledger:
        shutil.rmtree(files["clinic"].with_name("clinic.csv.ledger"))
        (damaged := files["bank"].with_name("bank.csv.ledger") / ACCOUNT).write_bytes(b"no database")
        with pytest.warns(AccountWarning, match="could not be written to"):
            ledger.reserve(plan.num_steps)
    damaged.unlink()
    release(files)


def test_one_file_of_two_parties_has_one_account(files):
    both = {"clinic": files["clinic"], "bank": files["clinic"]}
    assert "on this file" in release(both)
    with pytest.warns(AccountWarning, match="Second release on this file"):
        release(both)


def test_a_limit_of_files_is_held_before_anything_is_spent(files):
    release(files)
    spent = max(total.epsilon for total in FilesAccount.of(files, True)._accounts.popitem()[0].totals())
    plan = dpvi()
    with pytest.raises(PrivacyError, match="allows"):
        release(files, total_epsilon=1.01 * spent, plan=plan)
    assert "Second release" in FilesAccount.of(files, True).statement(plan)  # that one is on no account
    release(files, total_epsilon=10 * spent, plan=plan)
    with pytest.raises(PlanSpentError, match="steps of this plan are on account, make a new plan"):
        release(files, plan=plan)


def test_who_wants_no_account_says_so_and_a_folder_is_one_for_all(files, tmp_path):
    assert release(files, account=False).startswith("No account was kept (account = false)")
    assert release({}).startswith("The records came from no file")
    assert not list(tmp_path.rglob(ACCOUNT))
    assert "on these records" in release({}, account=tmp_path / "people")
    with pytest.warns(AccountWarning, match="Second release on these records"):
        release(files, account=tmp_path / "people")
    ledgers = {"clinic": tmp_path / "of the clinic"}
    release(files, account=ledgers)
    assert {path.parent.name for path in tmp_path.rglob(ACCOUNT)} == {"people", "of the clinic", "bank.csv.ledger"}
