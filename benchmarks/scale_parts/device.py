"""The parties' local part of a full-batch step on JAX's device, against the time to read and write its arrays there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scale_parts.tables import paths_of, schema_of

from vertinumpyro.core import compat
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.posterior.columns import device_columns

__all__ = ["device"]

ROUNDS = 5
EPSILON, DELTA = 1.0, 1e-9
CLIP_NORM = 0.1  # as a full-batch step's
COPIED = 2**26  # floats, more than a cache holds


def device(folder: Path, num_records: int, num_columns: int) -> dict[str, float | str]:
    """All blocks of a step, one after the other; bytes are those of the columns, and of what is made of them."""
    dataset = VerticalDataset.from_files(schema_of(num_columns), paths_of(folder), spool=folder)
    method = DPVI(warm_start=False)
    plan = method.plan(dataset, epsilon=EPSILON, delta=DELTA, batch_size=num_records, num_steps=4, clip_norm=CLIP_NORM)
    kernel, state = method.kernel(dataset, plan, compat.random_key(0))
    blocks = kernel.shape.blocks(np.arange(num_records))
    local = jax.jit(kernel.local)
    of_a_block = jax.eval_shape(local, state, device_columns(dataset), blocks[0])
    made = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree_util.tree_leaves(of_a_block)) * len(blocks)
    read = sum(column.nbytes for own in device_columns(dataset).values() for column in own.values())

    def seconds_on(place: Any) -> float:
        with jax.default_device(place):
            columns, indices = device_columns(dataset), [jnp.asarray(rows) for rows in blocks]
            return _median(lambda: [jax.block_until_ready(local(state, columns, rows)) for rows in indices])

    seconds, at_bandwidth = seconds_on(jax.devices()[0]), (read + made) / _bytes_per_s()
    found: dict[str, float | str] = {
        "platform": jax.devices()[0].device_kind,
        "seconds": seconds,
        "gigabytes": (read + made) / 1e9,
        "at_bandwidth": at_bandwidth,
        "over_bandwidth": seconds / at_bandwidth,
    }
    if jax.default_backend() != "cpu":
        found["cpu_over_device"] = seconds_on(jax.devices("cpu")[0]) / seconds
    return found


def _bytes_per_s() -> float:
    """Of a copy, which reads as much as it writes."""
    copied = jnp.zeros(COPIED, jnp.float32)
    copy = jax.jit(lambda held: held + 1)
    return 2 * copied.nbytes / _median(lambda: jax.block_until_ready(copy(copied)))


def _median(work: Callable[[], object]) -> float:
    work()  # which compiles
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
