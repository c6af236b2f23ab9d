"""Fits on one device and on four: `python -m tests.dpvi.four_devices`, in a process where JAX has four."""

import warnings

import jax
import numpy as np
import optax

from vertinumpyro.core import compat
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.training_loop import ChunkRunner, Pace, chunks
from vertinumpyro.posterior.predictive import device_columns

NUM_RECORDS = 121  # no multiple of four


def table() -> VerticalDataset:
    rng = np.random.default_rng(0)
    clinic = PartySchema({"age": RealColumn(bounds=(0.0, 1.0))})
    insurer = PartySchema({"plan": CategoricalColumn(categories=("a", "b"))})
    plan = rng.integers(2, size=NUM_RECORDS).astype(np.int32)
    columns = {"clinic": {"age": rng.random(NUM_RECORDS, np.float32)}, "insurer": {"plan": plan}}
    return VerticalDataset(Schema({"clinic": clinic, "insurer": insurer}), columns)


def parameters_on(num_devices: int, block_size: int | None) -> list[jax.Array]:
    method = DPVI(num_components=2, optimizer=optax.adam(0.05), block_size=block_size, num_devices=num_devices)
    plan = method.plan(table(), noise_multiplier=2.0, batch_size=NUM_RECORDS, num_steps=5)
    kernel, state = method.kernel(table(), plan, compat.random_key(0))
    assert kernel.shape.batch_size % num_devices == 0
    runner = ChunkRunner(kernel, device_columns(table()))
    chunk = next(iter(chunks(plan, kernel.shape.num_values, InsecureSeededSource(1), 0, Pace(1))))
    with compat.x64():
        begun = state if kernel.spread is None else jax.device_put(state, runner._everywhere)
        program = runner._run.lower(begun, runner._columns, chunk.inputs, chunk.active).compile().as_text()
    assert ("all-reduce" in program) == (num_devices > 1), "the devices' sums are not added up"
    fitted = method.fit(table(), plan, compat.random_key(0), insecure_seed=5, progress_bar=False)
    return jax.tree_util.tree_leaves(fitted.params)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    one = parameters_on(1, None)  # and in blocks the same, bit for bit: tests/dpvi/test_fit.py
    for size in (None, 50):
        four = parameters_on(4, size)
        for a, b in zip(one, four, strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=1e-6)
        assert all(len(leaf.sharding.device_set) == 1 for leaf in four)
    print("alike")
