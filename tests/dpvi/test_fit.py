"""The loop end to end: equality with a centralised step, chunks, resume, save and load, a plan is spent once."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpyro.infer.autoguide import (
    AutoBNAFNormal,
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from tests.compilations import compilations
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, PlanSpentError, RangeError, UnprovenError
from vertinumpyro.core.files import load_arrays, read_metadata
from vertinumpyro.core.rng import InsecureRandomnessWarning, InsecureSeededSource
from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI, StepInput
from vertinumpyro.dpvi.training_loop import CHECKPOINT, Chunk, ChunkRunner, Pace, chunk_length, chunks
from vertinumpyro.model import mixture_model
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.privacy import DisjointBatches, GradientPlan, Ledger, LedgerRegistry, PrivacyWarning, ledger
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.secure import Plaintext
from vertinumpyro.session import PRIVACY_RECORD

SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0.0, 1.0), missing="mask")}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)
NUM_RECORDS, K = 120, 2
ADAM = optax.adam(0.05)


@pytest.fixture(scope="module")
def dataset() -> VerticalDataset:
    """Older people have plan "a", younger ones plan "c"."""
    rng = np.random.default_rng(0)
    old = rng.random(NUM_RECORDS) < 0.5
    age = np.where(old, rng.uniform(0.8, 0.9, NUM_RECORDS), rng.uniform(0.1, 0.2, NUM_RECORDS)).astype(np.float32)
    ages = {"age": age, "age_observed": rng.random(NUM_RECORDS) < 0.9}
    return VerticalDataset(SCHEMA, {"clinic": ages, "insurer": {"plan": np.where(old, 0, 2).astype(np.int32)}})


@pytest.fixture(scope="module")
def dpvi() -> DPVI:
    return DPVI(num_components=K, optimizer=ADAM)


def make_plan(dpvi: DPVI, dataset: VerticalDataset, **settings: Any) -> GradientPlan:
    defaults = {"noise_multiplier": 2.0, "batch_size": 20, "num_steps": 7}
    return dpvi.plan(dataset, **{**({} if "sampling" in settings else defaults), "noise_multiplier": 2.0, **settings})


def fit(dpvi: DPVI, dataset: VerticalDataset, plan: GradientPlan, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return dpvi.fit(dataset, plan, compat.random_key(0), progress_bar=False, **kwargs)


def same(a: Any, b: Any) -> bool:
    leaves = zip(jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in leaves)


@pytest.mark.promise
def test_a_step_without_noise_or_clip_is_a_centralised_step(dataset: VerticalDataset) -> None:
    """Full batch, huge clip, zero noise: the update is optax on the gradient of the pooled ELBO."""
    dpvi = DPVI(num_components=K, optimizer=ADAM, backend=Plaintext())
    plan = make_plan(dpvi, dataset, batch_size=NUM_RECORDS, num_steps=1, clip_norm=1000.0, allow_unproven=True)
    kernel, state = dpvi.kernel(dataset, plan, compat.random_key(3))
    columns = device_columns(dataset)
    eta = jax.random.fold_in(state.rng_key, 0)

    def negative_elbo(params: Any) -> jax.Array:
        theta = kernel.guide.sample(params, eta)
        split = kernel.guide.split
        z = sum(
            (split.log_density(p, theta, columns[p]) for p in split.parties),
            start=split.component_prior(theta)[0],
        )
        likelihood = jax.scipy.special.logsumexp(z, axis=1).sum()
        return -(likelihood + kernel.guide.entropy_bound(params, eta)) / NUM_RECORDS

    gradient = jax.jit(jax.grad(negative_elbo))(state.params)
    updates, _ = ADAM.update(gradient, ADAM.init(state.params), state.params)
    expected = optax.apply_updates(state.params, updates)
    shares = np.zeros((1, plan.num_shares, kernel.guide.split.num_values), np.int64)
    inputs = StepInput(np.arange(NUM_RECORDS, dtype=np.int32)[None], np.ones((1, NUM_RECORDS), bool), shares)
    after, _, _ = ChunkRunner(kernel, columns)(state, Chunk(inputs, np.ones(1, bool)))
    for name, value in expected.items():
        np.testing.assert_allclose(after.params[name], value, rtol=2e-4, atol=2e-5)


def test_the_loop_compiles_once_and_padding_changes_nothing(dpvi: DPVI, dataset: VerticalDataset) -> None:
    plan = make_plan(dpvi, dataset)
    kernel, state = dpvi.kernel(dataset, plan, compat.random_key(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        pace = Pace(7)
        pace.count = 7
        whole = next(chunks(plan, kernel.guide.split.num_values, InsecureSeededSource(1), 0, pace))
    runner = ChunkRunner(kernel, device_columns(dataset))
    expected, info, _ = runner(jax.tree_util.tree_map(jnp.copy, state), whole)
    assert len(info.released_norm) == 7
    pieces = [
        Chunk(
            StepInput(*(np.concatenate([x[i : i + 1], np.zeros_like(x[:6])]) for x in whole.inputs)),
            np.arange(7) < 1,
        )
        for i in range(7)
    ]
    with compilations() as compiled:
        for piece in pieces:
            state, _, _ = runner(state, piece)
    assert same(expected.params, state.params)
    assert not compiled


def test_the_librarys_own_mixture_is_compiled_once_for_whoever_has_its_settings(dataset: VerticalDataset) -> None:
    one, other = (DPVI(num_components=K, warm_start=False) for _ in range(2))
    expected = fit(one, dataset, make_plan(one, dataset), insecure_seed=3)
    with compilations() as compiled:
        found = fit(other, dataset, make_plan(other, dataset), insecure_seed=3)
    assert not {"_each_alone", "_all_together", "_scan", "local"} & set(compiled)
    assert same(expected.params, found.params)
    plan, key = make_plan(one, dataset), compat.random_key(0)
    kernel, _ = one.kernel(dataset, plan, key)
    assert other.kernel(dataset, plan, key)[0] is kernel
    changes = ({"learning_rate": 0.2}, {"diagnostics": True}, {"optimizer": ADAM}, {"guide": AutoNormal})
    others = [dataclasses.replace(one, **change).kernel(dataset, plan, key)[0] for change in changes]
    assert len({id(made) for made in (kernel, *others)}) == 1 + len(changes)


@pytest.mark.skipif(
    "xla_cpu_use_fusion_emitters=false" in os.environ.get("XLA_FLAGS", ""),
    reason="other emitters round differently in two programs: asked of programs as users compile them",
)
@pytest.mark.parametrize(("size", "settings"), [(7, {}), (50, {"batch_size": NUM_RECORDS})], ids=["batches", "full"])
def test_a_step_in_blocks_is_the_same_step(
    dpvi: DPVI, dataset: VerticalDataset, size: int, settings: dict[str, Any]
) -> None:
    """Sums of integers are the same in any order, so whatever follows from them is, bit for bit."""
    at_once = dataclasses.replace(dpvi, block_size=10 * NUM_RECORDS, diagnostics=True)
    in_blocks = dataclasses.replace(at_once, block_size=size)
    plan = make_plan(at_once, dataset, **settings)
    assert in_blocks.kernel(dataset, plan, compat.random_key(0))[0].shape.num_blocks > 1
    expected, found = (fit(d, dataset, plan if d is at_once else renewed(plan), insecure_seed=5)
                       for d in (at_once, in_blocks))  # fmt: skip
    assert same(expected.params, found.params)
    np.testing.assert_allclose(found.diagnostics.objective, expected.diagnostics.objective, rtol=1e-5)


def renewed(plan: GradientPlan) -> GradientPlan:
    """The same plan as a budget of its own."""
    return dataclasses.replace(plan, plan_id=plan.plan_id[::-1])


@pytest.mark.parametrize(
    ("steps", "values", "shares", "batch"),
    [(2000, 2240, 2, 1000), (7, 10, 2, 8), (20000, 10**7, 6, 100), (1, 1, 1, 1), (150, 10, 2, 10**6)],
)
def test_chunks_cover_all_steps_with_little_padding(steps: int, values: int, shares: int, batch: int) -> None:
    length = chunk_length(steps, values, shares, batch)
    count = -(-steps // length)
    assert 1 <= length <= 200
    assert 0 <= count * length - steps < count
    assert length == 1 or max(length * values * shares * 8, length * batch * 5) <= 2**24


@pytest.mark.promise
def test_resume_continues_as_if_nothing_had_happened(dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any) -> None:
    """A run that dies after its first chunk, resumed, has spent every step once and holds the checkpoint's state."""
    plan = make_plan(dpvi, dataset, num_steps=401)

    class CrashError(Exception):
        pass

    original = ChunkRunner.__call__
    calls = []

    def crash(self: ChunkRunner, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:  # after two rehearsals and the first chunk
            raise CrashError
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkRunner, "__call__", crash)
        with pytest.raises(CrashError):
            fit(dpvi, dataset, plan, run_dir=tmp_path, insecure_seed=1)
    posterior = fit(dpvi, dataset, plan, run_dir=tmp_path, resume=True)
    assert not posterior.secure_noise, "the steps before the crash had an insecure seed"
    assert len(posterior.diagnostics.released_norm) == 400, "the first step is not repeated; nobody saw the dead chunk"
    assert optimiser_steps(tmp_path) == 401, "every step is in the result, once"
    again = fit(dpvi, dataset, plan, run_dir=tmp_path, resume=True)
    assert same(posterior.params, again.params), "a run that is complete is recovered"
    assert len(again.diagnostics.released_norm) == 0


def test_the_first_chunk_is_one_step_and_a_checkpoint_follows_every_chunk(
    dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any
) -> None:
    plan, seen = make_plan(dpvi, dataset, num_steps=60), []

    def look(steps: int, params: Any) -> None:
        stored = read_metadata(tmp_path / CHECKPOINT)
        seen.append((steps, stored["steps_spent"], read_record(tmp_path / PRIVACY_RECORD).steps_spent))

    fit(dpvi, dataset, plan, run_dir=tmp_path, after_chunk=look)
    assert seen[0][0] == 1
    assert seen[-1][0] == 60
    assert all(steps == stored == recorded for steps, stored, recorded in seen)
    assert all(after[0] <= 2 * before[0] + 1 for before, after in itertools.pairwise(seen)), "chunks at most double"


@pytest.mark.parametrize("before", [True, False], ids=["staged", "counted"])
def test_whenever_it_dies_a_step_is_lost_to_nobody_and_released_once(
    dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any, before: bool, monkeypatch: Any
) -> None:
    """The process dies in its third chunk: once the state is staged or once it is counted; while it computes, above."""
    plan, calls = make_plan(dpvi, dataset, num_steps=20), []

    class DeadError(BaseException):
        pass

    def third(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            if before and len(calls) == 3:
                raise DeadError
            found = function(*args, **kwargs)
            if not before and len(calls) == 3:
                raise DeadError
            return found

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "reserve", third(Ledger.reserve))
        with pytest.raises(DeadError):
            fit(dpvi, dataset, plan, run_dir=tmp_path)
    counted = read_record(tmp_path / PRIVACY_RECORD).steps_spent
    posterior = fit(dpvi, dataset, plan, run_dir=tmp_path, resume=True)
    assert len(posterior.diagnostics.released_norm) == 20 - counted, "whatever is counted was kept"
    assert optimiser_steps(tmp_path) == 20, "every step is in the result, once"


def optimiser_steps(run_dir: Any) -> int:
    _, arrays = load_arrays(run_dir / CHECKPOINT)
    (counts,) = {int(array) for name, array in arrays.items() if name.endswith(".count")}
    return counts


def test_a_record_below_its_results_is_refused(dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any) -> None:
    """An older copy of the record, put back, would give the same steps out again."""
    plan = make_plan(dpvi, dataset, num_steps=6)
    fit(dpvi, dataset, plan, run_dir=tmp_path)
    record = tmp_path / PRIVACY_RECORD
    changed = json.loads(record.read_text()) | {"steps_spent": 2, "status": "paused"}
    record.write_text(json.dumps(changed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_OF_THIS_PROCESS", LedgerRegistry())
        with pytest.raises(PlanSpentError, match=r"counts 2 steps and checkpoint\.npz holds 6"):
            fit(dpvi, dataset, plan, run_dir=tmp_path, resume=True)


def test_a_folder_that_cannot_be_written_to_costs_nothing(dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any) -> None:
    plan = make_plan(dpvi, dataset)
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot write to the run's folder"):
        fit(dpvi, dataset, plan, run_dir=tmp_path / "file" / "run")
    fit(dpvi, dataset, plan, run_dir=tmp_path / "run")


@pytest.mark.promise
def test_save_and_load(dpvi: DPVI, dataset: VerticalDataset, tmp_path: Any) -> None:
    posterior = fit(dpvi, dataset, make_plan(dpvi, dataset))
    posterior.save(tmp_path / "posterior.npz")
    loaded = dpvi.load(tmp_path / "posterior.npz")
    assert same(posterior.params, loaded.params)
    assert loaded.plan == posterior.plan
    key = compat.random_key(5)
    table = posterior.sample_synthetic(50, rng_key=key)
    assert table.equals(loaded.sample_synthetic(50, rng_key=key))
    assert list(table.columns) == list(SCHEMA.columns)
    assert set(table["plan"]) <= {"a", "b", "c"}
    with pytest.raises(ArgumentError, match="this model needs"):
        dataclasses.replace(dpvi, num_components=3).load(tmp_path / "posterior.npz")


MIXTURE = mixture_model(SCHEMA, K)


@pytest.mark.promise
@pytest.mark.parametrize(
    "guide",
    [
        AutoDelta,
        AutoNormal(MIXTURE),
        AutoDiagonalNormal,
        AutoMultivariateNormal(MIXTURE, init_scale=0.05),
        partial(AutoLowRankMultivariateNormal, rank=2),
        AutoIAFNormal,
        AutoBNAFNormal(MIXTURE, hidden_factors=[2]),
    ],
    ids=["point", "mean_field", "diagonal", "full_rank", "low_rank", "flow", "block_flow"],
)
def test_every_guide_learns_and_is_stored(dataset: VerticalDataset, guide: Any, tmp_path: Any) -> None:
    """With hardly any noise the objective falls, whatever the guide; its posterior comes back from a file."""
    dpvi = DPVI(MIXTURE, guide=guide, optimizer=optax.adam(0.03), diagnostics=True)
    plan = make_plan(dpvi, dataset, noise_multiplier=0.01, batch_size=NUM_RECORDS, num_steps=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        posterior = fit(dpvi, dataset, plan)
    objective = posterior.diagnostics.objective
    assert np.isfinite(objective).all()
    assert objective[-10:].mean() < objective[:10].mean() - 0.1
    posterior.save(tmp_path / "posterior.npz")
    loaded = dpvi.load(tmp_path / "posterior.npz")
    key = compat.random_key(5)
    draws = posterior.sample(key, 3)
    assert same(draws, loaded.sample(key, 3))
    assert same(posterior.centre(), loaded.centre())
    assert same(posterior.guide_params, loaded.guide_params)
    if guide is AutoDelta:
        for site, drawn in draws.items():
            np.testing.assert_allclose(drawn, np.stack(3 * [posterior.guide_params[f"{site}_auto_loc"]]), rtol=1e-5)


def test_disjoint_batches_trusted_noise_and_collusion(dpvi: DPVI, dataset: VerticalDataset) -> None:
    plan = make_plan(dpvi, dataset, sampling=DisjointBatches(batch_size=50, num_epochs=2), noise="trusted")
    assert plan.num_steps == 6
    assert plan.num_shares == 1
    assert len(fit(dpvi, dataset, plan).diagnostics.released_norm) == 6
    covered = make_plan(dpvi, dataset, collusion_threshold=1)
    assert covered.epsilon("clinic") < make_plan(dpvi, dataset).epsilon("clinic")
    fit(dpvi, dataset, covered)


def test_calibration_meets_the_target_for_the_named_adversary(dpvi: DPVI, dataset: VerticalDataset) -> None:
    settings = {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3}
    for adversary in ("outside analyst", "clinic"):
        plan = make_plan(dpvi, dataset, adversary=adversary, **settings)
        assert 1.9 < plan.epsilon(adversary) <= 2.0


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"epsilon": 0.0, "noise_multiplier": None}, ArgumentError, "epsilon"),
        ({"epsilon": -1.0, "noise_multiplier": None}, ArgumentError, "epsilon"),
        ({"epsilon": 1.0}, ArgumentError, "noise_multiplier"),
        ({"delta": 0.0}, ArgumentError, "delta"),
        ({"clip_norm": -1.0}, (ArgumentError, RangeError), "clip_norm"),
        ({"clip_norm": 1e12}, RangeError, "clip_norm"),
        ({"noise_multiplier": 1e18}, (ArgumentError, RangeError), "wrap|noise"),
        ({"batch_size": 0}, ArgumentError, "batch_size"),
        ({"num_steps": 0}, ArgumentError, "num_steps"),
        ({"collusion_threshold": 2}, ArgumentError, "collusion_threshold"),
        ({"adversary": "nobody", "epsilon": 1.0, "noise_multiplier": None}, ArgumentError, "adversary"),
    ],
)
def test_bad_settings(dpvi: DPVI, dataset: VerticalDataset, settings: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        make_plan(dpvi, dataset, **settings)


def test_plaintext_needs_an_opt_in(dataset: VerticalDataset) -> None:
    with pytest.raises(UnprovenError, match="allow_unproven"):
        make_plan(DPVI(num_components=K, backend=Plaintext()), dataset)


def test_a_plan_of_another_table_or_backend_is_refused(dpvi: DPVI, dataset: VerticalDataset) -> None:
    plan = make_plan(dpvi, dataset)
    with pytest.raises(ArgumentError, match="records"):
        fit(dpvi, dataset.take(np.arange(50)), plan)
    with pytest.raises(ArgumentError, match="parties"):
        fit(dpvi, dataset.restrict("clinic"), plan)
    with pytest.raises(ArgumentError, match="backend"):
        fit(dataclasses.replace(dpvi, backend=Plaintext()), dataset, plan)
    fit(dpvi, dataset, plan)  # nothing was spent by the refusals


def test_insecure_seed_says_so_and_repeats(dpvi: DPVI, dataset: VerticalDataset) -> None:
    with pytest.warns(InsecureRandomnessWarning):
        first = dpvi.fit(dataset, make_plan(dpvi, dataset), compat.random_key(0), progress_bar=False, insecure_seed=3)
    second = fit(dpvi, dataset, make_plan(dpvi, dataset), insecure_seed=3)
    assert not first.secure_noise
    assert same(first.params, second.params)
    assert fit(dpvi, dataset, make_plan(dpvi, dataset)).secure_noise
