"""Parties as real processes: a whole fit, a party that is killed, tables that do not fit."""

import dataclasses
import json
import os
import signal
import threading
import time
from functools import partial

import jax
import numpy as np
import pytest

from tests.cli.conftest import NUM_RECORDS, SCHEMA, draw_tables
from vertinumpyro.core import errors
from vertinumpyro.core.errors import AlignmentError, ArgumentError, BackendError, DataError
from vertinumpyro.data import Schema
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.run import PRIVACY_RECORD
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.runtime import PartyTask, Session
from vertinumpyro.secure import FixedPoint
from vertinumpyro.secure.crypten import Crypten
from vertinumpyro.secure.spu import Spu

INSTALLED = [backend for backend in (Crypten(), Spu()) if backend.missing() is None]

pytestmark = pytest.mark.skipif(not INSTALLED, reason=f"{Crypten().missing()}; or: {Spu().missing()}")

build = partial(DPVI, num_components=2, backend=INSTALLED[0] if INSTALLED else Crypten())


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "schema.toml"
    path.write_text(SCHEMA)
    return Schema.from_toml(path)


def tasks_for(folder, schema, tables):
    for party, table in tables.items():
        table.sample(frac=1.0, random_state=len(party)).to_csv(folder / f"{party}.csv", index=False)
    return [
        PartyTask(party=party, schema=schema.to_dict(), table=folder / f"{party}.csv", build=build)
        for party in schema.parties
    ]


def all_gone(pids):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        alive = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
        if not alive:
            return True
        time.sleep(0.1)
    return False


def test_a_fit_between_processes_learns_what_fixed_point_learns(tmp_path, schema):
    from vertinumpyro.data import VerticalDataset

    tables = draw_tables()
    with Session(tasks_for(tmp_path, schema, tables)) as session:
        assert session.num_records == NUM_RECORDS
        pids = session.pids
        dpvi, key = build(), jax.random.PRNGKey(3)
        everyone = PoissonSampling(sampling_prob=1.0, num_steps=6, max_batch_size=NUM_RECORDS)
        little_noise = {"noise_multiplier": 1e-4, "sampling": everyone, "clip_norm": 1.0}
        plan = dpvi.plan(session.stand_in, **little_noise)
        with pytest.raises(ArgumentError, match="batch_indices"):
            session.fit(dpvi, dataclasses.replace(plan, batch_indices="hidden"), key, run_dir=tmp_path / "hidden")
        seen = []
        posterior = session.fit(
            dpvi, plan, key, run_dir=tmp_path / "run", progress_bar=False, after_chunk=lambda *facts: seen.append(facts)
        )
        stats = session.stats()
    assert [steps for steps, _ in seen] == sorted({steps for steps, _ in seen})
    assert seen[-1][0] == 6
    jax.tree_util.tree_map(np.testing.assert_array_equal, dict(seen[-1][1]), dict(posterior.params))
    assert all_gone(pids)
    assert stats.rounds > 6 * 50
    assert stats.bytes_per_party > 0
    assert len(posterior.diagnostics.released_norm) == 6
    record = json.loads((tmp_path / "run" / PRIVACY_RECORD).read_text())
    assert (record["steps_spent"], record["status"]) == (6, "finished")
    reference = DPVI(num_components=2, backend=FixedPoint())
    dataset = VerticalDataset.from_frames(schema, tables)
    other = reference.fit(dataset, reference.plan(dataset, **little_noise), key, progress_bar=False)
    for ours, theirs in zip(
        jax.tree_util.tree_leaves(posterior.params), jax.tree_util.tree_leaves(other.params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=0.02)
        assert np.abs(np.asarray(theirs)).max() > 0.2  # it moved by more than that


def test_a_killed_party_is_named_and_the_run_goes_on_after_it(tmp_path, schema):
    dpvi, key, run_dir = build(), jax.random.PRNGKey(0), tmp_path / "run"
    tasks = tasks_for(tmp_path, schema, draw_tables())
    with Session(tasks, timeout_s=30.0) as session:
        plan = dpvi.plan(session.stand_in, noise_multiplier=8.0, num_steps=60, batch_size=20)
        pids = session.pids

        def kill_in_the_middle():
            while not (run_dir / "checkpoint.npz").exists():
                time.sleep(0.01)
            os.kill(pids[1], signal.SIGKILL)

        threading.Thread(target=kill_in_the_middle).start()
        started = time.monotonic()
        with pytest.raises(BackendError, match=r"party 'clinic' was killed by signal 9") as caught:
            session.fit(dpvi, plan, key, run_dir=run_dir, progress_bar=False)
        if isinstance(dpvi.backend, Crypten):  # SPU's own links do not say who is gone
            assert "party 'insurer' saw: party 'clinic' stopped" in str(caught.value)
        assert time.monotonic() - started < 120
        assert all_gone(pids)
    record = json.loads((run_dir / PRIVACY_RECORD).read_text())
    assert record["status"] == "paused"
    assert 0 < record["steps_spent"] < 60
    assert 0 < optimiser_steps(run_dir) <= record["steps_spent"]  # every step that was released is counted
    with Session(tasks) as session:
        posterior = session.fit(dpvi, plan, key, run_dir=run_dir, resume=True, progress_bar=False)
    after = json.loads((run_dir / PRIVACY_RECORD).read_text())
    assert (after["status"], after["steps_spent"]) == ("finished", 60)
    assert len(posterior.diagnostics.released_norm) == 60 - record["steps_spent"]  # none is released twice
    assert posterior.secure_noise


def optimiser_steps(run_dir):
    """How many releases went into the checkpoint, by the optimiser's own count."""
    released = np.load(run_dir / "checkpoint.npz")
    return max(int(released[name]) for name in released.files if "count" in name)


def silent(*parties):
    """The inference of parties of whom some leave out their noise; runs in every party's process."""
    from vertinumpyro.privacy import PrivacyPlan

    honest = PrivacyPlan.draw_noise_share
    PrivacyPlan.draw_noise_share = lambda plan, *arguments: 0 * honest(plan, *arguments)
    return build()


def released_noise(folder, schema, silent_parties):
    """The released norms' mean square, over what all parties' noise alone would give; of about 500 draws."""
    folder.mkdir()
    tasks = [
        dataclasses.replace(task, build=partial(silent, task.party)) if task.party in silent_parties else task
        for task in tasks_for(folder, schema, draw_tables(20))
    ]
    with Session(tasks) as session:
        dpvi = build()
        plan = dpvi.plan(session.stand_in, noise_multiplier=100.0, num_steps=40, batch_size=10, clip_norm=1.0)
        posterior = session.fit(dpvi, plan, jax.random.PRNGKey(0), run_dir=folder / "run", progress_bar=False)
        num_values = dpvi.kernel(session.stand_in, plan, jax.random.PRNGKey(0))[0].guide.split.num_values
    norms = posterior.diagnostics.released_norm
    stddev = plan.noise_multiplier * plan.clip_norm / plan.expected_batch_size
    return float((norms**2).mean() / (num_values * stddev**2))


def test_every_party_draws_its_own_noise(tmp_path, schema):
    """Without a party's share the other's is left: half of the variance, and not less. Limits of 6 deviations."""
    assert released_noise(tmp_path / "none", schema, ()) == pytest.approx(1.0, abs=0.4)
    assert released_noise(tmp_path / "clinic", schema, ("clinic",)) == pytest.approx(0.5, abs=0.2)
    assert released_noise(tmp_path / "both", schema, ("clinic", "insurer")) < 0.01


def test_tables_that_do_not_fit_end_the_run_before_anything_is_spent(tmp_path, schema):
    tables = draw_tables(30)
    tables["clinic"] = tables["clinic"].iloc[1:]
    with pytest.raises(AlignmentError, match="differ from those at"):
        Session(tasks_for(tmp_path, schema, tables))
    tables = draw_tables(30)
    tables["clinic"].loc[3, "age"] = 4711.0
    with pytest.raises(DataError, match=r"party 'clinic'.*age") as caught:
        Session(tasks_for(tmp_path, schema, tables))
    assert "4711" not in str(caught.value)
    assert isinstance(caught.value, errors.DataError)


def test_an_inference_in_one_process_is_refused(tmp_path, schema):
    tasks = [
        dataclasses.replace(task, build=partial(DPVI, num_components=2))
        for task in tasks_for(tmp_path, schema, draw_tables(5))
    ]
    with pytest.raises(ArgumentError, match=r"Crypten\(\) or Spu\(\)"):
        Session(tasks)


def test_tasks_are_the_schemas_parties(tmp_path, schema):
    tasks = tasks_for(tmp_path, schema, draw_tables(5))
    with pytest.raises(ArgumentError, match="in the order"):
        Session(tasks[::-1])


def test_a_task_names_its_own_table_only(tmp_path, schema):
    import pickle

    first, second = tasks_for(tmp_path, schema, draw_tables(5))
    assert second.table.name.encode() not in pickle.dumps(first)
