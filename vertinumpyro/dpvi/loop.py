"""The loop: one jitted `lax.scan` per chunk, with donated state and no recompilation between chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.dpvi.kernel import DPVIState, InternalInfo, Kernel, StepInfo, StepInput
from vertinumpyro.dpvi.stream import Chunk
from vertinumpyro.posterior.columns import Columns

__all__ = ["ChunkRunner", "spread_over"]


class ChunkRunner:
    """Runs a kernel chunk by chunk on columns that stay on the device."""

    def __init__(self, kernel: Kernel, columns: Columns) -> None:
        self._everywhere = None if kernel.spread is None else NamedSharding(kernel.spread.mesh, PartitionSpec())
        self._columns = columns if self._everywhere is None else jax.device_put(columns, self._everywhere)
        self._run: Callable[..., tuple[DPVIState, tuple[StepInfo, InternalInfo]]] = jax.jit(
            partial(_scan, kernel), donate_argnums=compat.overwritable(0)
        )

    def __call__(self, state: DPVIState, chunk: Chunk) -> tuple[DPVIState, StepInfo, InternalInfo]:
        """The state after the chunk's active steps, and their infos as NumPy arrays [num_active]."""
        with compat.x64():
            if self._everywhere is not None:
                state = jax.device_put(state, self._everywhere)
            state, infos = self._run(state, self._columns, chunk.inputs, chunk.active)
            if self._everywhere is not None:  # what comes after the steps is for one device
                state = jax.tree_util.tree_map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
            info, internal = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[: chunk.num_active], infos)
        return state, info, internal

    def __repr__(self) -> str:
        """Nothing secret."""
        return "ChunkRunner()"


def _scan(
    kernel: Kernel, state: DPVIState, columns: Columns, inputs: StepInput, active: jax.Array
) -> tuple[DPVIState, tuple[StepInfo, InternalInfo]]:
    """Step over a chunk; steps that only pad it leave the state as it is, and cost nothing."""
    step_of = jax.jit(kernel.step)  # one trace serves the shapes and the branch

    def body(state: DPVIState, step: tuple[StepInput, jax.Array]) -> tuple[DPVIState, tuple[StepInfo, InternalInfo]]:
        step_input, is_active = step
        _, infos = jax.eval_shape(step_of, state, columns, step_input)
        nothing = jax.tree_util.tree_map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), infos)
        return jax.lax.cond(
            is_active,
            lambda state: step_of(state, columns, step_input),
            lambda state: (state, nothing),
            state,
        )

    return jax.lax.scan(body, state, (inputs, active))


def spread_over(num_devices: int) -> NamedSharding | None:
    """The records of a block over so many devices; None is JAX's own choice of one.

    :raises ArgumentError: this process has fewer.
    """
    if num_devices == 1:
        return None
    found = jax.local_devices()
    if len(found) < num_devices:
        raise ArgumentError(
            f"num_devices={num_devices}: JAX sees {len(found)} {found[0].platform.upper()} here; give as many at most"
        )
    return NamedSharding(Mesh(np.array(found[:num_devices]), ("records",)), PartitionSpec("records"))
