"""The loop: one jitted `lax.scan` per chunk, with donated state and no recompilation between chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.dpvi.kernel import DPVIState, InternalInfo, Kernel, StepInfo, StepInput
from vertinumpyro.dpvi.stream import Chunk
from vertinumpyro.posterior.columns import Columns

__all__ = ["ChunkRunner"]


class ChunkRunner:
    """Runs a kernel chunk by chunk on columns that stay on the device."""

    def __init__(self, kernel: Kernel, columns: Columns) -> None:
        self._columns = columns
        self._run: Callable[..., tuple[DPVIState, tuple[StepInfo, InternalInfo]]] = jax.jit(
            partial(_scan, kernel), donate_argnums=compat.overwritable(0)
        )

    def __call__(self, state: DPVIState, chunk: Chunk) -> tuple[DPVIState, StepInfo, InternalInfo]:
        """The state after the chunk's active steps, and their infos as NumPy arrays [num_active]."""
        with compat.x64():
            state, infos = self._run(state, self._columns, chunk.inputs, chunk.active)
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
