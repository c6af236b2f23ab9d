"""A fitted field goes to a file and comes back; a fit that died goes on from what it had released."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sys

import jax
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.mrf.conftest import SCHEMA, frame
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.data.table import table_writer
from vertinumpyro.mrf import MarkovTwin, MRFPlan, VertiMRF, vertimrf
from vertinumpyro.mrf.releases import TablesWork
from vertinumpyro.privacy import OUTSIDE_ANALYST, Ledger, LedgerRegistry, PrivacyWarning, ledger
from vertinumpyro.session import InProcessSession, Run, recorded_plan

SYSTEM = VertiMRF(max_cells=3, iterations=30, clique_limit=1_000)
ADAPTIVE = dataclasses.replace(SYSTEM, selection="adaptive", num_rounds=2, tables_per_round=2)
KEY = jax.random.key(0)
GOLDEN = pathlib.Path(__file__).parent / "golden"


class Death(BaseException):
    """The process is killed: nobody tidies up behind it."""


def die(*args, **kwargs):
    raise Death


def after(calls, original):
    """The original for some calls, then death."""
    made = []

    def wrapper(*args, **kwargs):
        made.append(1)
        return die() if len(made) > calls else original(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def another_process(monkeypatch):
    """Knows nothing of the plans that this one began."""
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_OF_THIS_PROCESS", LedgerRegistry())
        yield


@contextlib.contextmanager
def killed(monkeypatch, target, name, calls=0):
    """A process that dies at a call of `name`; the system drops its locks, and it writes nothing more."""
    with another_process(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(target, name, after(calls, getattr(target, name)))
        patch.setattr(Ledger, "_close", lambda self, status: self._lock.release())
        with pytest.raises(Death):
            yield


def resumed(monkeypatch, system, dataset, plan, folder):
    with another_process(monkeypatch):
        return system.fit(dataset, plan, run_dir=folder, resume=True)


def spent(folder):
    record = json.loads((folder / "privacy.json").read_text())
    return record["status"], record["steps_spent"]


def stored(path):
    """The released arrays by step."""
    if not path.exists():
        return {}
    metadata, arrays = load_arrays(path)
    steps = {int(key): {} for key in metadata["steps"]}
    for name, values in arrays.items():
        steps[int(name.split("/")[0])][name] = values
    return steps


def same_arrays(some, others):
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


def across(twin):
    return [m.columns for m in twin.measurements if len({SCHEMA.party_of(n) for n in m.columns}) == 2]


def same_tables(some, others):
    return len(some) == len(others) and all(
        a.columns == b.columns and a.stddev == b.stddev and np.array_equal(a.values, b.values)
        for a, b in zip(some, others, strict=True)
    )


@pytest.fixture(autouse=True)
def _no_rehearsal(monkeypatch):
    """It touches no file, has tests of its own, and compiles a field every time."""
    for name in ("rehearse_field", "rehearse_tables"):
        monkeypatch.setattr(vertimrf, name, lambda *args: None)


@pytest.fixture(scope="module")
def few():
    """Two columns at each party, 200 records."""
    held = {"clinic": ("smoker", "ill"), "insurer": ("visits", "plan")}
    schema = Schema({party: PartySchema({n: SCHEMA.columns[n] for n in own}) for party, own in held.items()})
    return VerticalDataset.from_pooled(schema, frame(num_records=200)[list(schema.columns)])


@pytest.fixture(scope="module")
def twin(dataset):
    return SYSTEM.fit(dataset, SYSTEM.plan(dataset, epsilon=3.0))


@pytest.fixture
def saved(twin, tmp_path):
    twin.save(tmp_path)
    return tmp_path


def test_round_trip(twin, saved):
    loaded = MarkovTwin.load(saved)
    for name in ("schema", "columns", "plan", "secure_noise", "missing"):
        assert getattr(loaded, name) == getattr(twin, name), name
    assert same_tables(loaded.measurements, twin.measurements)
    assert twin.seconds["parties"] > 0
    assert loaded.seconds == {}
    assert "seconds" not in load_arrays(saved / "field.npz")[0]  # how long parties took follows from their records
    rewritten(saved, lambda metadata, _: metadata.update(seconds={"parties": 1.0, "server": 1.0}))
    assert MarkovTwin.load(saved).seconds == {}  # of an older file neither
    assert loaded.fine.keys() == twin.fine.keys()
    assert all(np.array_equal(loaded.fine[name], twin.fine[name]) for name in twin.fine)
    assert loaded.model.cliques == twin.model.cliques
    assert loaded.sample_synthetic(500, rng_key=KEY).equals(twin.sample_synthetic(500, rng_key=KEY))
    apart = [(a.name, b.name) for a in twin.columns for b in twin.columns if a.name < b.name]
    for pair in apart:
        np.testing.assert_allclose(loaded.model.marginal(pair), twin.model.marginal(pair), atol=1e-9)


def test_a_twin_of_any_length_is_drawn_and_written_block_by_block(twin, tmp_path):
    whole = twin.sample_synthetic(500, rng_key=KEY)
    (only,) = twin.synthetic_blocks(500, rng_key=KEY)
    pd.testing.assert_frame_equal(only, whole)
    blocks = list(twin.synthetic_blocks(500, rng_key=KEY, rows=120))
    assert [len(block) for block in blocks] == [120] * 4 + [20]
    together = pd.concat(blocks, ignore_index=True)
    assert dict(together.dtypes) == dict(whole.dtypes)
    field = dataclasses.replace(twin, measurements=())  # with nothing to rake to: by chance this noise may ask for it
    drawn = pd.concat(field.synthetic_blocks(500, rng_key=KEY, rows=120))
    apart = drawn["ill"].mean() - twin.model.marginal(("ill",))[1] / twin.model.marginal(("ill",)).sum()
    assert abs(apart) <= 5 / 500, "each block is off by a record at most"
    for suffix in (".csv", ".parquet"):
        path, at_once = tmp_path / f"blocks{suffix}", tmp_path / f"whole{suffix}"
        with table_writer(path) as write:
            for block in blocks:
                write(block)
        with table_writer(at_once) as write:
            write(together)
        read = pd.read_csv if suffix == ".csv" else pd.read_parquet
        pd.testing.assert_frame_equal(read(path), read(at_once))
        twin.write_synthetic(path, 120, rng_key=KEY)
        pd.testing.assert_frame_equal(read(path), read(at_once).iloc[:120])
    for path in (tmp_path / "t.txt", tmp_path / "none" / "t.csv"):
        with pytest.raises(ArgumentError, match=r"neither .csv nor .parquet|no folder"):
            twin.write_synthetic(path, 10, rng_key=KEY)
    with pytest.raises(ArgumentError, match="num_records=0"):
        twin.synthetic_blocks(0, rng_key=KEY)


def test_a_loaded_field_needs_no_engine(twin, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "mbi", None)  # as where it is not installed
    loaded = MarkovTwin.load(saved)
    assert loaded.sample_synthetic(500, rng_key=KEY).equals(twin.sample_synthetic(500, rng_key=KEY))
    every = [c.name for c in twin.columns]
    assert loaded.model.marginal(every[:1] + every[-1:]).sum() == pytest.approx(1)


def rewritten(folder, change):
    metadata, arrays = load_arrays(folder / "field.npz")
    change(metadata, arrays)
    save_arrays(folder / "field.npz", arrays, metadata)


def set_plan(metadata, arrays):
    metadata["plan"]["noise_multiplier"] *= 2


def set_party(metadata, arrays):
    metadata["columns"][0]["party"] = "insurer"


def drop_clique(metadata, arrays):
    metadata["model"]["cliques"] = metadata["model"]["cliques"][:1]


def negate(metadata, arrays):
    arrays["clique/0"] = -arrays["clique/0"]


def reshape(metadata, arrays):
    arrays["table/0"] = arrays["table/0"][:-1]


def forget_plan(metadata, arrays):
    del metadata["plan"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_plan, "plan was changed"),
        (set_party, "columns are not its schema's"),
        (drop_clique, "cliques do not have all columns"),
        (negate, "no distribution"),
        (reshape, "its columns' cells"),
        (forget_plan, "damaged"),
    ],
)
def test_a_changed_file_is_refused(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(ArgumentError, match=message):
        MarkovTwin.load(saved)


def test_foreign_folders_are_refused(twin, saved, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(ArgumentError, match=r"holds no field\.npz"):
        MarkovTwin.load(empty)
    with pytest.raises(ArgumentError, match="no folder"):
        twin.save(empty / "nowhere")
    shutil.copy(GOLDEN / "all" / "privacy.json", saved)
    with pytest.raises(ArgumentError, match="another plan"):
        MarkovTwin.load(saved)
    (saved / "privacy.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"privacy\.json beside it is not a readable record"):
        MarkovTwin.load(saved)
    (saved / "field.npz").write_bytes(b"no archive")
    with pytest.raises(ArgumentError, match="not a file that this library saved"):
        MarkovTwin.load(saved)


def test_a_fit_that_died_in_the_servers_fit_goes_on_without_spending(few, tmp_path, monkeypatch):
    plan = SYSTEM.plan(few, epsilon=3.0)
    with killed(monkeypatch, VertiMRF, "_field"):
        SYSTEM.fit(few, plan, run_dir=tmp_path)
    assert spent(tmp_path)[1] == 2
    results = (tmp_path / "released.npz").read_bytes()
    with another_process(monkeypatch), pytest.raises(PlanSpentError):
        SYSTEM.fit(few, plan, run_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(InProcessSession, "publish", die)
        patch.setattr(InProcessSession, "cross_products", die)
        twin = resumed(monkeypatch, SYSTEM, few, plan, tmp_path)
        again = resumed(monkeypatch, dataclasses.replace(SYSTEM, iterations=10), few, plan, tmp_path)
    assert spent(tmp_path) == ("finished", 2)
    assert (tmp_path / "released.npz").read_bytes() == results
    assert same_tables(again.measurements, twin.measurements)
    assert twin.missing == ()
    assert twin.secure_noise
    assert len(across(twin)) == plan.num_cross_pairs
    assert twin.fine


def work_of(system, step):
    """What a step calls while it computes, and how often before it gets there."""
    if step == 0:
        return InProcessSession, "publish", 0
    return (TablesWork, "noise", 0) if system is SYSTEM else (TablesWork, "summand", 2 * (step - 1))


every_step = pytest.mark.parametrize(
    ("system", "step"),
    [(SYSTEM, 0), (SYSTEM, 1), (ADAPTIVE, 0), (ADAPTIVE, 1), (ADAPTIVE, 2), (ADAPTIVE, 3)],
    ids=["own", "all", "own, then rounds", "first look", "round 1", "round 2"],
)


def whole(twin, plan, folder):
    """All that the plan paid for is there, counted once, and nothing is left lying about."""
    assert twin.missing == ()
    assert spent(folder) == ("finished", plan.num_steps)
    assert stored(folder / "released.npz").keys() == set(range(plan.num_steps))
    assert len(across(twin)) == plan.num_cross_pairs + plan.num_rounds * plan.tables_per_round
    assert not (folder / "released.npz.staged").exists()


@every_step
def test_death_while_a_step_is_computed_spends_nothing(few, tmp_path, monkeypatch, system, step):
    plan = system.plan(few, epsilon=3.0)
    with killed(monkeypatch, *work_of(system, step)):
        system.fit(few, plan, run_dir=tmp_path)
    before = stored(tmp_path / "released.npz")
    assert spent(tmp_path)[1] == step
    assert before.keys() == set(range(step))
    whole(resumed(monkeypatch, system, few, plan, tmp_path), plan, tmp_path)
    found = stored(tmp_path / "released.npz")
    assert all(same_arrays(found[done], before[done]) for done in before), "no release is repeated"


@every_step
def test_what_was_staged_and_not_counted_was_seen_by_nobody_and_is_computed_anew(
    few, tmp_path, monkeypatch, system, step
):
    plan = system.plan(few, epsilon=3.0)
    with killed(monkeypatch, Ledger, "reserve", step):
        system.fit(few, plan, run_dir=tmp_path)
    before, staged = stored(tmp_path / "released.npz"), stored(tmp_path / "released.npz.staged")
    assert spent(tmp_path)[1] == step
    assert before.keys() == set(range(step))
    assert staged.keys() == set(range(step + 1))
    whole(resumed(monkeypatch, system, few, plan, tmp_path), plan, tmp_path)
    found = stored(tmp_path / "released.npz")
    assert all(same_arrays(found[done], before[done]) for done in before), "no release is repeated"
    tables = [name for name in staged[step].keys() & found[step].keys() if "table" in name]
    assert tables
    assert not any(np.array_equal(found[step][name], staged[step][name]) for name in tables), "its noise is fresh"


@every_step
def test_what_was_counted_and_not_published_is_recovered_and_not_released_again(
    few, tmp_path, monkeypatch, system, step
):
    plan = system.plan(few, epsilon=3.0)
    with killed(monkeypatch, Run, "_publish", step):
        system.fit(few, plan, run_dir=tmp_path)
    before, staged = stored(tmp_path / "released.npz"), stored(tmp_path / "released.npz.staged")
    assert spent(tmp_path)[1] == step + 1
    assert before.keys() == set(range(step))
    with monkeypatch.context() as patch:
        if step == 0:
            patch.setattr(InProcessSession, "publish", die)  # counted, so the parties' own columns are not asked again
        twin = resumed(monkeypatch, system, few, plan, tmp_path)
    whole(twin, plan, tmp_path)
    found = stored(tmp_path / "released.npz")
    assert all(same_arrays(found[done], staged[done]) for done in range(step + 1))


@pytest.mark.parametrize("system", [SYSTEM, ADAPTIVE], ids=["all", "adaptive"])
def test_the_record_never_counts_less_than_the_results_hold(few, tmp_path, monkeypatch, system):
    seen = []

    def replace(source, target, original=os.replace):
        original(source, target)
        if (tmp_path / "privacy.json").exists():
            held = stored(tmp_path / "released.npz").keys()
            assert held <= set(range(spent(tmp_path)[1]))
            seen.append(len(held))

    monkeypatch.setattr(os, "replace", replace)
    plan = system.plan(few, epsilon=3.0)
    system.fit(few, plan, run_dir=tmp_path)
    assert set(seen) == set(range(plan.num_steps + 1))


def test_a_half_written_staged_file_is_no_result(few, tmp_path, monkeypatch):
    plan = SYSTEM.plan(few, epsilon=3.0)
    with killed(monkeypatch, Ledger, "reserve", 1):
        SYSTEM.fit(few, plan, run_dir=tmp_path)
    staged = tmp_path / "released.npz.staged"
    staged.write_bytes(staged.read_bytes()[:100])
    whole(resumed(monkeypatch, SYSTEM, few, plan, tmp_path), plan, tmp_path)


def dies_in(system, step, few, folder, monkeypatch, **budget):
    """A run that dies while it computes a step; gives its plan."""
    plan = system.plan(few, epsilon=3.0, **budget)
    with killed(monkeypatch, *work_of(system, step)):
        system.fit(few, plan, run_dir=folder)
    assert spent(folder)[1] == step
    return plan


@pytest.mark.parametrize(
    ("system", "step", "missing", "tables"),
    [
        (SYSTEM, 1, ("the parties' own tables",), 4),
        (ADAPTIVE, 1, ("the parties' own tables",), 4 + 2 * 2),
        (ADAPTIVE, 2, ("the parties' own tables", "the first look across parties"), 2 * 2),
        (ADAPTIVE, 3, ("the parties' own tables", "the first look across parties", "round 1"), 2),
    ],
)
def test_results_that_were_deleted_stay_spent_and_lost(few, tmp_path, monkeypatch, system, step, missing, tables):
    plan = dies_in(system, step, few, tmp_path, monkeypatch)
    (tmp_path / "released.npz").unlink()
    with pytest.warns(PrivacyWarning, match=f"not stored: {', '.join(missing)}"):
        twin = resumed(monkeypatch, system, few, plan, tmp_path)
    assert spent(tmp_path) == ("finished", plan.num_steps)
    assert stored(tmp_path / "released.npz").keys() == set(range(step, plan.num_steps)), "none is released again"
    assert twin.missing == missing
    assert len(across(twin)) == tables
    assert len(twin.sample_synthetic(100, rng_key=KEY)) == 100
    twin.save(tmp_path)
    assert MarkovTwin.load(tmp_path).missing == missing


@pytest.mark.parametrize(
    ("system", "step", "missing", "tables"),
    [
        (SYSTEM, 1, ("the tables across parties",), 0),
        (ADAPTIVE, 1, ("the first look across parties",), 2 * 2),
        (ADAPTIVE, 2, ("round 1",), 4 + 2),
    ],
)
def test_an_older_copy_of_the_results_leaves_what_it_lacks_lost(
    few, tmp_path, monkeypatch, system, step, missing, tables
):
    plan = dies_in(system, step, few, tmp_path, monkeypatch)
    older = (tmp_path / "released.npz").read_bytes()
    with killed(monkeypatch, Run, "_publish"):
        system.fit(few, plan, run_dir=tmp_path, resume=True)
    (tmp_path / "released.npz.staged").unlink()
    assert (tmp_path / "released.npz").read_bytes() == older
    with pytest.warns(PrivacyWarning, match=f"not stored: {missing[0]}"):
        twin = resumed(monkeypatch, system, few, plan, tmp_path)
    assert twin.missing == missing
    assert len(across(twin)) == tables


def test_sketches_go_on_without_the_parties_own_counts(few, tmp_path, monkeypatch):
    system = dataclasses.replace(SYSTEM, encoder="sketch", num_keys=50)
    with pytest.warns(PrivacyWarning, match="narrows"):
        plan = system.plan(few, epsilon=3.0, adversary=OUTSIDE_ANALYST)
    with killed(monkeypatch, Ledger, "reserve", 1):
        system.fit(few, plan, run_dir=tmp_path)
    (tmp_path / "released.npz").unlink()
    with pytest.warns(PrivacyWarning, match="own tables"):
        twin = resumed(monkeypatch, system, few, plan, tmp_path)
    assert len(twin.measurements) == plan.num_cross_pairs


@pytest.mark.parametrize("cross_share", [0.0, 0.6, 1.0])
def test_nothing_left_is_said(few, tmp_path, monkeypatch, cross_share):
    """With no budget of their own the parties' step is stored and holds no table."""
    plan = SYSTEM.plan(few, epsilon=3.0, cross_share=cross_share)
    with killed(monkeypatch, VertiMRF, "_field"):
        SYSTEM.fit(few, plan, run_dir=tmp_path)
    results = tmp_path / "released.npz"
    if cross_share < 1:
        results.unlink()
    else:
        metadata, arrays = load_arrays(results)
        del metadata["steps"]["1"]
        save_arrays(results, {name: a for name, a in arrays.items() if name[0] == "0"}, metadata)
    with pytest.raises(PlanSpentError, match="none of the tables was stored"):
        resumed(monkeypatch, SYSTEM, few, plan, tmp_path)


def test_rounds_choose_without_a_model_where_nothing_was_measured_first(few, tmp_path, monkeypatch):
    """No local budget, and the first look is lost: the field has the rounds' tables alone."""
    plan = dies_in(ADAPTIVE, 2, few, tmp_path, monkeypatch, cross_share=1.0)
    (tmp_path / "released.npz").unlink()
    with pytest.warns(PrivacyWarning):
        twin = resumed(monkeypatch, ADAPTIVE, few, plan, tmp_path)
    assert len(twin.measurements) == 4
    assert len(twin.sample_synthetic(100, rng_key=KEY)) == 100


def test_only_its_own_run_goes_on(few, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match="run_dir"):
        SYSTEM.fit(few, SYSTEM.plan(few, epsilon=3.0), resume=True)
    with pytest.raises(PlanSpentError, match="does not exist"):
        SYSTEM.fit(few, SYSTEM.plan(few, epsilon=3.0), run_dir=tmp_path, resume=True)
    plan = SYSTEM.plan(few, epsilon=3.0)
    with killed(monkeypatch, VertiMRF, "_field"):
        SYSTEM.fit(few, plan, run_dir=tmp_path)
    other = SYSTEM.plan(few, epsilon=3.0)
    with pytest.raises(PlanSpentError, match="another plan"):
        resumed(monkeypatch, SYSTEM, few, other, tmp_path)
    with pytest.raises(ArgumentError, match="columns are not this run's"):
        resumed(monkeypatch, dataclasses.replace(SYSTEM, max_cells=5), few, plan, tmp_path)
    results = (tmp_path / "released.npz").read_bytes()
    (tmp_path / "released.npz").write_bytes(results[:100])
    with pytest.raises(ArgumentError, match="not a file that this library saved"):
        resumed(monkeypatch, SYSTEM, few, plan, tmp_path)


def test_a_seeded_run_that_goes_on_draws_other_noise_and_stays_marked(few, tmp_path, monkeypatch):
    plan = ADAPTIVE.plan(few, epsilon=3.0)
    with pytest.warns(UserWarning, match="no privacy"), killed(monkeypatch, TablesWork, "summand", 2):
        ADAPTIVE.fit(few, plan, run_dir=tmp_path, insecure_seed=1)
    assert not resumed(monkeypatch, ADAPTIVE, few, plan, tmp_path).secure_noise


# -- folders of earlier versions ---------------------------------------------------------------------


@pytest.mark.parametrize(("name", "done"), [("all", 2), ("adaptive", 2)])
def test_a_run_that_an_earlier_version_began_goes_on(few, tmp_path, monkeypatch, name, done):
    """One that died in the server's fit, and one that was killed before its first round."""
    system = SYSTEM if name == "all" else ADAPTIVE
    shutil.copytree(GOLDEN / name, tmp_path, dirs_exist_ok=True)
    before = stored(tmp_path / "released.npz")
    assert before.keys() == set(range(done))
    plan = recorded_plan(tmp_path, MRFPlan)
    with monkeypatch.context() as patch:
        patch.setattr(InProcessSession, "publish", die)
        twin = resumed(monkeypatch, system, few, plan, tmp_path)
    whole(twin, plan, tmp_path)
    found = stored(tmp_path / "released.npz")
    assert all(same_arrays(found[step], before[step]) for step in before)
    resumed(monkeypatch, system, few, plan, tmp_path)
