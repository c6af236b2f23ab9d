"""The parties' local part of a full-batch step on JAX's device, against the time to read and write its arrays there."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scale_parts.shared import full_batch, read, seconds_of

from vertinumpyro.core import compat
from vertinumpyro.posterior.predictive import device_columns

__all__ = ["device"]

ROUNDS = 5
COPIED = 2**26  # floats, more than a cache holds


def device(folder: Path, num_records: int, num_columns: int) -> dict[str, float | str]:
    """All blocks of a step, one after the other; bytes are those of the columns, and of what is made of them."""
    dataset = read(folder, num_columns)
    method, plan = full_batch(dataset)
    kernel, state = method.kernel(dataset, plan, compat.random_key(0))
    blocks = kernel.shape.blocks(np.arange(num_records))
    local = jax.jit(kernel.local)
    columns = device_columns(dataset)
    of_a_block = jax.tree_util.tree_leaves(jax.eval_shape(local, state, columns, blocks[0]))
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in of_a_block) * len(blocks)
    num_bytes += sum(column.nbytes for column in jax.tree_util.tree_leaves(columns))

    def seconds_on(place: Any) -> float:
        held, *indices = jax.device_put([(state, columns), *blocks], place)
        return _median(lambda: _one_ahead(partial(local, *held), indices))

    seconds, at_bandwidth = seconds_on(jax.devices()[0]), num_bytes / _bytes_per_s()
    found: dict[str, float | str] = {
        "platform": jax.devices()[0].device_kind,
        "seconds": seconds,
        "gigabytes": num_bytes / 1e9,
        "at_bandwidth": at_bandwidth,
        "over_bandwidth": seconds / at_bandwidth,
    }
    if jax.default_backend() != "cpu":
        found["cpu_over_device"] = seconds_on(jax.devices("cpu")[0]) / seconds
    return found


def _one_ahead(of_a_block: Callable[[jax.Array], Any], blocks: Sequence[jax.Array]) -> None:
    """What is made of two blocks at most is there at a time, as in a step, which adds it up."""
    before: Any = ()
    for rows in blocks:
        made = of_a_block(rows)
        jax.block_until_ready(before)
        before = made
    jax.block_until_ready(before)


def _bytes_per_s() -> float:
    """Of a copy, which reads as much as it writes."""
    copied = jnp.zeros(COPIED, jnp.float32)
    copy = jax.jit(lambda held: held + 1)
    return 2 * copied.nbytes / _median(lambda: jax.block_until_ready(copy(copied)))


def _median(work: Callable[[], object]) -> float:
    work()  # which compiles
    return statistics.median(seconds_of(work) for _ in range(ROUNDS))
