"""A fitted field goes to a file and comes back; a fit that died goes on from what it had released."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from tests.mrf.conftest import SCHEMA
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.stored_arrays import load_arrays, save_arrays
from vertinumpyro.mrf import MarkovTwin, VertiMRF
from vertinumpyro.mrf.cross_tables import SharedTables
from vertinumpyro.mrf.spending import Run
from vertinumpyro.privacy import PrivacyWarning, ledger

SYSTEM = VertiMRF(max_cells=4, iterations=30, clique_limit=1_000)
ADAPTIVE = dataclasses.replace(SYSTEM, selection="adaptive", num_rounds=2, tables_per_round=3)
KEY = jax.random.PRNGKey(0)


class CrashError(Exception):
    pass


def crash(*args, **kwargs):
    raise CrashError


def after(calls, original):
    """The original for some calls, then a crash."""
    made = []

    def wrapper(*args, **kwargs):
        made.append(1)
        return crash() if len(made) > calls else original(*args, **kwargs)

    return wrapper


def die(monkeypatch, target, name, calls, system, dataset, folder):
    """A fit that dies at a call of `name`, and is forgotten as by a new process; returns its plan."""
    plan = system.plan(dataset, epsilon=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(target, name, after(calls, getattr(target, name)))
        with pytest.raises(CrashError):
            system.fit(dataset, plan, run_dir=folder)
    ledger._registry.clear()
    return plan


def spent(folder):
    record = json.loads((folder / "privacy.json").read_text())
    return record["status"], record["steps_spent"]


def same_tables(some, others):
    return len(some) == len(others) and all(
        a.columns == b.columns and a.stddev == b.stddev and np.array_equal(a.values, b.values)
        for a, b in zip(some, others, strict=True)
    )


@pytest.fixture(scope="module")
def twin(dataset):
    return SYSTEM.fit(dataset, SYSTEM.plan(dataset, epsilon=3.0))


@pytest.fixture
def saved(twin, tmp_path):
    twin.save(tmp_path)
    return tmp_path


def test_round_trip(twin, saved):
    loaded = MarkovTwin.load(saved)
    for name in ("schema", "columns", "plan", "secure_noise", "seconds", "missing"):
        assert getattr(loaded, name) == getattr(twin, name), name
    assert same_tables(loaded.measurements, twin.measurements)
    assert loaded.fine.keys() == twin.fine.keys()
    assert all(np.array_equal(loaded.fine[name], twin.fine[name]) for name in twin.fine)
    assert loaded.model.cliques == twin.model.cliques
    assert loaded.sample_synthetic(500, rng_key=KEY).equals(twin.sample_synthetic(500, rng_key=KEY))
    apart = [(a.name, b.name) for a in twin.columns for b in twin.columns if a.name < b.name]
    for pair in apart:
        np.testing.assert_allclose(loaded.model.marginal(pair), twin.model.marginal(pair), atol=1e-9)


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
    (saved / "privacy.json").write_text(json.dumps({"fingerprint": "of another plan"}))
    with pytest.raises(ArgumentError, match="another plan"):
        MarkovTwin.load(saved)
    (saved / "privacy.json").write_text("{")
    with pytest.raises(ArgumentError, match=r"privacy\.json beside it is not a readable record"):
        MarkovTwin.load(saved)
    (saved / "field.npz").write_bytes(b"no archive")
    with pytest.raises(ArgumentError, match="not a file that this library saved"):
        MarkovTwin.load(saved)


def test_a_fit_that_died_in_the_servers_fit_goes_on_without_spending(dataset, tmp_path, monkeypatch):
    plan = die(monkeypatch, VertiMRF, "_field", 0, SYSTEM, dataset, tmp_path)
    assert spent(tmp_path) == ("finished", 2)
    before, stored = (tmp_path / "privacy.json").read_text(), (tmp_path / "released.npz").read_bytes()
    with pytest.raises(PlanSpentError):
        SYSTEM.fit(dataset, plan, run_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_own_tables", crash)
        patch.setattr(Run, "_all_tables", crash)
        twin = SYSTEM.fit(dataset, plan, run_dir=tmp_path, resume=True)
        again = dataclasses.replace(SYSTEM, iterations=10).fit(dataset, plan, run_dir=tmp_path, resume=True)
    assert (tmp_path / "privacy.json").read_text() == before
    assert (tmp_path / "released.npz").read_bytes() == stored
    assert same_tables(again.measurements, twin.measurements)
    assert twin.missing == ()
    assert twin.secure_noise
    across = [m for m in twin.measurements if len({SCHEMA.party_of(n) for n in m.columns}) == 2]
    assert len(across) == plan.num_cross_pairs
    assert twin.fine


def test_a_fit_that_died_between_releases_spends_the_rest_only(dataset, tmp_path, monkeypatch):
    """It dies in the fit that chooses the first round's tables, with two of four steps spent."""
    plan = die(monkeypatch, VertiMRF, "_field", 0, ADAPTIVE, dataset, tmp_path)
    assert spent(tmp_path) == ("paused", 2)
    _, stored = load_arrays(tmp_path / "released.npz")
    twin = ADAPTIVE.fit(dataset, plan, run_dir=tmp_path, resume=True)
    assert spent(tmp_path) == ("finished", 4)
    assert twin.missing == ()
    _, found = load_arrays(tmp_path / "released.npz")
    assert all(np.array_equal(found[name], values) for name, values in stored.items()), "no release is repeated"
    across = [m.columns for m in twin.measurements if len({SCHEMA.party_of(n) for n in m.columns}) == 2]
    assert len(across) == 12 + 2 * 3


@pytest.mark.parametrize(
    ("name", "calls", "system", "missing", "tables"),
    [
        ("_own_tables", 0, SYSTEM, ("the parties' own tables",), 12),
        ("_all_tables", 0, SYSTEM, ("the tables across parties",), 0),
        ("reveal", 0, ADAPTIVE, ("the first look across parties",), 6),
        ("reveal", 1, ADAPTIVE, ("round 1",), 12 + 3),
        ("reveal", 2, ADAPTIVE, ("round 2",), 12 + 3),
    ],
)
def test_a_release_that_was_reserved_and_not_stored_stays_lost(
    dataset, tmp_path, monkeypatch, name, calls, system, missing, tables
):
    plan = die(monkeypatch, SharedTables if name == "reveal" else Run, name, calls, system, dataset, tmp_path)
    with pytest.warns(PrivacyWarning, match=f"not stored: {missing[0]}"):
        twin = system.fit(dataset, plan, run_dir=tmp_path, resume=True)
    assert spent(tmp_path) == ("finished", plan.num_steps)
    assert twin.missing == missing
    across = [m for m in twin.measurements if len({SCHEMA.party_of(n) for n in m.columns}) == 2]
    assert len(across) == tables
    assert len(twin.sample_synthetic(100, rng_key=KEY)) == 100
    twin.save(tmp_path)
    assert MarkovTwin.load(tmp_path).missing == missing


def test_sketches_go_on_without_the_parties_own_counts(dataset, tmp_path, monkeypatch):
    system = dataclasses.replace(SYSTEM, encoder="sketch", num_keys=50)
    plan = die(monkeypatch, Run, "_own_tables", 0, system, dataset, tmp_path)
    with pytest.warns(PrivacyWarning, match="own tables"):
        twin = system.fit(dataset, plan, run_dir=tmp_path, resume=True)
    assert len(twin.measurements) == plan.num_cross_pairs


def test_nothing_left_is_said(dataset, tmp_path, monkeypatch):
    plan = SYSTEM.plan(dataset, epsilon=3.0, cross_share=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_own_tables", crash)
        with pytest.raises(CrashError):
            SYSTEM.fit(dataset, plan, run_dir=tmp_path)
    ledger._registry.clear()
    with pytest.warns(PrivacyWarning), pytest.raises(PlanSpentError, match="none of the tables was stored"):
        SYSTEM.fit(dataset, plan, run_dir=tmp_path, resume=True)


def test_only_local_tables_lost_where_nothing_else_was_measured_first(dataset, tmp_path, monkeypatch):
    """No local budget and no first look: the rounds choose without a model, and the field has their tables."""
    plan = ADAPTIVE.plan(dataset, epsilon=3.0, cross_share=1.0)
    with monkeypatch.context() as patch:
        patch.setattr(SharedTables, "reveal", crash)
        with pytest.raises(CrashError):
            ADAPTIVE.fit(dataset, plan, run_dir=tmp_path)
    ledger._registry.clear()
    with pytest.warns(PrivacyWarning):
        twin = ADAPTIVE.fit(dataset, plan, run_dir=tmp_path, resume=True)
    assert len(twin.measurements) == 6
    assert len(twin.sample_synthetic(100, rng_key=KEY)) == 100


def test_only_its_own_run_goes_on(dataset, tmp_path, monkeypatch):
    with pytest.raises(ArgumentError, match="run_dir"):
        SYSTEM.fit(dataset, SYSTEM.plan(dataset, epsilon=3.0), resume=True)
    with pytest.raises(PlanSpentError, match="does not exist"):
        SYSTEM.fit(dataset, SYSTEM.plan(dataset, epsilon=3.0), run_dir=tmp_path, resume=True)
    plan = die(monkeypatch, VertiMRF, "_field", 0, SYSTEM, dataset, tmp_path)
    other = SYSTEM.plan(dataset, epsilon=3.0)
    with pytest.raises(PlanSpentError, match="another plan"):
        SYSTEM.fit(dataset, other, run_dir=tmp_path, resume=True)
    with pytest.raises(ArgumentError, match="other cells"):
        dataclasses.replace(SYSTEM, max_cells=5).fit(dataset, plan, run_dir=tmp_path, resume=True)
    whole = (tmp_path / "released.npz").read_bytes()
    (tmp_path / "released.npz").write_bytes(whole[:100])
    with pytest.raises(ArgumentError, match="not a file that this library saved"):
        SYSTEM.fit(dataset, plan, run_dir=tmp_path, resume=True)


def test_a_seeded_run_that_goes_on_draws_other_noise_and_stays_marked(dataset, tmp_path, monkeypatch):
    plan = ADAPTIVE.plan(dataset, epsilon=3.0)
    with monkeypatch.context() as patch:
        patch.setattr(VertiMRF, "_field", crash)
        with pytest.warns(UserWarning, match="no privacy"), pytest.raises(CrashError):
            ADAPTIVE.fit(dataset, plan, run_dir=tmp_path, insecure_seed=1)
    ledger._registry.clear()
    assert not ADAPTIVE.fit(dataset, plan, run_dir=tmp_path, resume=True).secure_noise
