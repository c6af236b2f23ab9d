"""Horizontal DPVI: the pooled run's integers bit for bit, whoever holds the records; the plan; refusals."""

from __future__ import annotations

import json
import warnings
from typing import Any

import jax
import numpy as np
import optax
import pytest

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, LongFitWarning, PlanSpentError
from vertinumpyro.core.rng import InsecureRandomnessWarning, InsecureSeededSource
from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import ClientSteps, HorizontalDataset, HorizontalDPVI
from vertinumpyro.dpvi.training_loop import Chunk, ChunkRunner, StepInput
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.privacy import FitTime
from vertinumpyro.secure import FixedPoint, Plaintext
from vertinumpyro.secure.fixed_point import clipped_sum

SCHEMA = Schema(
    {
        "everyone": PartySchema(
            {
                "age": RealColumn(bounds=(0.0, 1.0), missing="mask"),
                "plan": CategoricalColumn(categories=("a", "b", "c")),
            }
        )
    }
)
N, K = 120, 2
DPVI_ = DPVI(num_components=K, optimizer=optax.adam(0.05))


@pytest.fixture(scope="module")
def records() -> VerticalDataset:
    rng = np.random.default_rng(0)
    old = rng.random(N) < 0.5
    age = np.where(old, rng.uniform(0.8, 0.9, N), rng.uniform(0.1, 0.2, N)).astype(np.float32)
    plan = np.where(old, 0, 2).astype(np.int32)
    return VerticalDataset(SCHEMA, {"everyone": {"age": age, "age_observed": rng.random(N) < 0.9, "plan": plan}})


@pytest.fixture(params=["three holders", "a record each"])
def dataset(request: Any, records: VerticalDataset) -> HorizontalDataset:
    return HorizontalDataset(records, np.arange(N) % 3 if request.param == "three holders" else None)


def make_plan(dataset: HorizontalDataset, **settings: Any) -> Any:
    defaults = {"noise_multiplier": 2.0, "batch_size": 20, "num_steps": 5, "noise_clients": 3}
    return HorizontalDPVI(DPVI_).plan(dataset, **{**defaults, **settings})


def fit(horizontal: HorizontalDPVI, dataset: HorizontalDataset, plan: Any, **settings: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return horizontal.fit(dataset, plan, compat.random_key(0), progress_bar=False, **settings)


def a_batch(plan: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return plan.sampling.start(N, InsecureSeededSource(1)).next(1)


def test_clients_vectors_add_up_to_the_pooled_integers(dataset: HorizontalDataset) -> None:
    plan = make_plan(dataset)
    kernel, state = HorizontalDPVI(DPVI_).kernel(dataset, plan, compat.random_key(0))
    batch = a_batch(plan)
    vectors = ClientSteps(kernel, dataset.records, dataset.owners).vectors(state, batch)

    def pooled(state: Any, columns: Any, indices: jax.Array, mask: jax.Array) -> jax.Array:
        contributions = compat.at_precision(False, kernel.local)(state, columns, indices)
        prior = compat.at_precision(False, kernel.component_prior)(state)
        return clipped_sum(kernel.shape, contributions, prior, mask)

    with compat.x64():
        columns = device_columns(dataset.records)
        expected = np.asarray(jax.jit(pooled)(state, columns, batch.indices[0], batch.mask[0]))
    np.testing.assert_array_equal(vectors.sum(0), expected)
    rows = plan.sampling.max_batch_size if dataset.owners is None else 3
    assert vectors.shape == (rows, kernel.guide.split.num_values)
    if dataset.owners is None:  # every record by itself is within the clip
        lengths = np.sqrt((vectors.astype(float) ** 2).sum(1))
        assert lengths.max() <= plan.clip_norm * 2.0**plan.grid_bits * (1 + 1e-12)
        assert not vectors[~batch.mask[0]].any()


def test_a_client_only_sends_its_own_records(records: VerticalDataset) -> None:
    """Changing one holder's data moves its own vector and no other's."""
    owners = np.arange(N) % 3
    arrays = records.arrays("everyone")
    changed = VerticalDataset(SCHEMA, {"everyone": {**arrays, "plan": np.where(owners == 1, 1, arrays["plan"])}})
    plan = make_plan(HorizontalDataset(records, owners))
    vectors = []
    for data in (records, changed):
        dataset = HorizontalDataset(data, owners)
        kernel, state = HorizontalDPVI(DPVI_).kernel(dataset, plan, compat.random_key(0))
        vectors.append(ClientSteps(kernel, dataset.records, dataset.owners).vectors(state, a_batch(plan)))
    same = [np.array_equal(*pair) for pair in zip(*vectors, strict=True)]
    assert same == [True, False, True]


def test_a_step_is_the_pooled_step(dataset: HorizontalDataset) -> None:
    """The same batch and total noise give the parameters of the pooled run."""
    plan = make_plan(dataset)
    kernel, state = HorizontalDPVI(DPVI_).kernel(dataset, plan, compat.random_key(0))
    run, batch = ClientSteps(kernel, dataset.records, dataset.owners), a_batch(plan)
    noise = np.random.default_rng(0).integers(-(2**40), 2**40, (3, kernel.guide.split.num_values))
    released = HorizontalDPVI(DPVI_).backend.noisy_sum(run.vectors(state, batch), noise)
    after, norm = run.update(state, np.asarray(released))
    inputs = StepInput(batch.indices, batch.mask, noise[None])
    pooled = ChunkRunner(kernel, device_columns(dataset.records))
    expected, info, _ = pooled(state, Chunk(inputs, np.ones(1, bool)))
    for name, value in expected.params.items():
        np.testing.assert_allclose(after.params[name], value, rtol=1e-6, atol=1e-7)
    assert norm == pytest.approx(float(info.released_norm[0]), rel=1e-5)


@pytest.mark.promise
def test_a_fit_learns_and_keeps_a_record(records: VerticalDataset, tmp_path: Any) -> None:
    dataset = HorizontalDataset(records, np.arange(N) % 3)
    horizontal = HorizontalDPVI(DPVI_)
    plan = make_plan(dataset, noise_multiplier=0.05, batch_size=60, num_steps=80)
    posterior = fit(horizontal, dataset, plan, insecure_seed=3, run_dir=tmp_path)
    before = posterior.held_out_nll(records)
    assert np.isfinite(before)
    assert before < -0.5  # two sharp clusters; the prior's guide starts above 0.5
    assert posterior.diagnostics.released_norm.shape == (80,)
    assert not posterior.secure_noise
    assert len(posterior.sample_synthetic(10, rng_key=compat.random_key(1))) == 10
    record = json.loads((tmp_path / "privacy.json").read_text())
    assert (record["status"], record["steps_spent"]) == ("finished", 80)
    with pytest.raises(PlanSpentError):
        fit(horizontal, dataset, plan)


def test_any_backend_with_a_noisy_sum_gives_the_same_run(records: VerticalDataset) -> None:
    dataset = HorizontalDataset(records, np.arange(N) % 3)
    found = []
    for backend in (HorizontalDPVI(DPVI_).backend, FixedPoint(), Plaintext()):
        posterior = fit(HorizontalDPVI(DPVI_, backend), dataset, make_plan(dataset), insecure_seed=3)
        found.append(posterior.params)
    for other in found[1:]:
        assert all(np.array_equal(found[0][name], other[name]) for name in other)


def test_secure_noise_is_the_default(records: VerticalDataset) -> None:
    dataset = HorizontalDataset(records)
    assert fit(HorizontalDPVI(DPVI_), dataset, make_plan(dataset, num_steps=1)).secure_noise


def test_plans_follow_theorem_one(dataset: HorizontalDataset) -> None:
    plan = make_plan(dataset, noise_multiplier=None, epsilon=2.0, num_steps=50, max_unreliable=1)
    assert 1.99 < plan.epsilon() <= 2
    assert plan.noise.num_covering == 1
    assert plan.participation == ("known" if dataset.owners is None else "hidden")


def test_defaults_follow_who_knows_the_batches(dataset: HorizontalDataset) -> None:
    plan = HorizontalDPVI(DPVI_).plan(dataset, noise_multiplier=2.0, noise_clients=3)
    known = dataset.owners is None
    assert plan.sampling.full_batch == known
    assert plan.num_steps == (150 if known else 1000)


def test_big_holders_become_one_dataset(records: VerticalDataset) -> None:
    parts = [records.take(np.arange(0, 50)), records.take(np.arange(50, N))]
    dataset = HorizontalDataset.from_clients(parts)
    assert (dataset.num_clients, dataset.num_records) == (2, N)
    assert "120 records at 2 clients" in repr(dataset)
    for name, column in records.arrays("everyone").items():
        np.testing.assert_array_equal(dataset.records.arrays("everyone")[name], column)


def test_refusals(records: VerticalDataset) -> None:
    for owners in (np.zeros(3, int), np.zeros(N), np.ones(N, int), np.arange(N) * 2):
        with pytest.raises(ArgumentError, match="owners"):
            HorizontalDataset(records, owners)
    dataset = HorizontalDataset(records, np.arange(N) % 3)
    with pytest.raises(ArgumentError, match="noise_clients"):
        make_plan(dataset, noise_clients=4)
    with pytest.raises(ArgumentError, match="either epsilon"):
        make_plan(dataset, epsilon=1.0)
    other = make_plan(HorizontalDataset(records.take(np.arange(60)), np.arange(60) % 3))
    with pytest.raises(ArgumentError, match="another dataset"):
        HorizontalDPVI(DPVI_).fit(dataset, other, compat.random_key(0))
    elsewhere = Schema({"everyone": PartySchema({"plan": CategoricalColumn(categories=("a", "b"))})})
    stranger = VerticalDataset(elsewhere, {"everyone": {"plan": np.zeros(5, np.int32)}})
    with pytest.raises(ArgumentError, match="one schema"):
        HorizontalDataset.from_clients([records, stranger])


def test_a_plan_says_how_long_a_fit_takes_and_what_is_long_is_asked_for(dataset: HorizontalDataset):
    plan = make_plan(dataset)
    found = plan.time
    assert set(found.before) == {"compiling", "5 steps"}
    assert all(seconds > 0 for seconds in (*found.before.values(), *found.after.values()))
    plan.keep_time(FitTime(before={"5 steps": 4000.0}))
    with pytest.raises(ArgumentError, match=r"allow_long: .* 67 min"):
        fit(HorizontalDPVI(DPVI_), dataset, plan)
    with pytest.warns(LongFitWarning):
        fit(HorizontalDPVI(DPVI_), dataset, plan, allow_long=True)


def test_a_batch_of_very_many_records_is_one_that_the_sum_has_room_for():
    plan = HorizontalDPVI(DPVI(num_components=2)).plan(
        TableFacts(SCHEMA, 100_000_000, ("east", "west")), epsilon=1.0, delta=1e-9
    )
    assert 1e5 < plan.sampling.max_batch_size < 1e6  # of N / 30 it would be 3 million of each


def test_a_holders_time_is_of_its_own_part(records: VerticalDataset):
    plan = HorizontalDPVI(DPVI_).plan(
        TableFacts(SCHEMA, N, ("east", "west")), noise_multiplier=2.0, batch_size=20, num_steps=5
    )
    assert plan.time.before["5 steps"] > 0
    assert "add up together" in plan.time.words
