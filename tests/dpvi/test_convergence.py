"""A fit that ended too early says so, from what it released; one that did not is quiet."""

from __future__ import annotations

import warnings

import jax
import numpy as np
import pytest

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.training_loop import residual_gradient

N = 4000
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def dataset() -> VerticalDataset:
    """Two groups of people, far apart."""
    rng = np.random.default_rng(0)
    group = rng.random(N) < 0.3
    ward = np.where(group, 0, rng.integers(1, 3, N)).astype(np.int32)
    claim = (group ^ (rng.random(N) < 0.1)).astype(np.int32)
    clinic = PartySchema({"ward": CategoricalColumn(categories=("a", "b", "c"))})
    schema = Schema({"clinic": clinic, "insurer": PartySchema({"claim": BinaryColumn()})})
    return VerticalDataset(schema, {"clinic": {"ward": ward}, "insurer": {"claim": claim}})


def dpvi(**settings) -> DPVI:
    return DPVI(num_components=3, warm_start=False, **settings)


def test_steps_that_end_too_early_say_so(dataset):
    inference = dpvi(learning_rate=1e-4)
    plan = inference.plan(dataset, epsilon=4.0, batch_size=N, num_steps=40, delta=1e-4)
    with pytest.warns(InferenceWarning, match=r"the last 4 of 40 noisy gradients .* not converged. Raise"):
        inference.fit(dataset, plan, KEY, progress_bar=False)


@pytest.mark.parametrize(("batch", "epsilon"), [(N, 0.5), (N, 20.0), (N // 30, 20.0)])
def test_a_fit_at_its_optimum_is_quiet_whatever_the_noise_and_the_batch(dataset, batch, epsilon):
    inference = dpvi()
    plan = inference.plan(dataset, epsilon=epsilon, batch_size=batch, num_steps=150 if batch == N else 400, delta=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InferenceWarning)
        inference.fit(dataset, plan, KEY, progress_bar=False)


def test_noise_alone_is_within_its_standard_error(dataset):
    inference = dpvi()
    plan = inference.plan(dataset, noise_multiplier=500.0, batch_size=N, num_steps=30)  # far more noise than signal
    kernel, state = inference.kernel(dataset, plan, KEY)
    rng, found = np.random.default_rng(0), []
    for _ in range(50):
        noise = rng.normal(0.0, kernel.shape.noise_stddev, (3, kernel.shape.num_values))
        norms = np.linalg.norm(noise, axis=1) / (plan.clip_norm * plan.expected_batch_size)
        found.append(residual_gradient(kernel, state, plan, norms).standard_errors)
    assert abs(np.mean(found)) < 0.6
    assert np.std(found) == pytest.approx(1.0, abs=0.35)
