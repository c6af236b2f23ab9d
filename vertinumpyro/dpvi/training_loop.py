"""The training loop: one jitted `lax.scan` per chunk of steps, and around it progress, pace and checkpoints.

Where the parties are elsewhere, the same loop asks them for each chunk.

Whether a fit had anything left to learn, from what its steps released.

At the optimum the gradient of the ELBO is zero, and a released sum holds noise alone. So the norms of the last sums,
beside those that noise of the plan's size gives, say whether the steps ended too early; nobody need look at a record.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.compat import jit_fast
from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, SystemRandomSource
from vertinumpyro.dpvi.kernel import DPVIState, InternalInfo, Kernel, StepInfo, StepInput
from vertinumpyro.dpvi.party_steps import state_leaves, state_of
from vertinumpyro.dpvi.posterior import (
    MOST_ERRORS,
    MOST_NORM,
    Diagnostics,
    Residual,
    as_numbers,
    from_numbers,
    tree_arrays,
    tree_of,
)
from vertinumpyro.dpvi.step_inputs import Chunk, Pace, chunk_length_of, chunks
from vertinumpyro.posterior.guide import Params
from vertinumpyro.posterior.predictive import Columns
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.privacy.gradient_plan import NoisySumPlan
from vertinumpyro.session import Run, Session

_LAST = 10  # of the steps, this part is looked at


def last_residual(kernel: Kernel, state: DPVIState, plan: NoisySumPlan, released_norm: np.ndarray) -> Residual | None:
    """What the last tenth of the steps still released beside the noise, with an `InferenceWarning` where it is much.

    :param state: after the last step.
    :param released_norm: of every step of this process, in clip norms per expected record.
    :returns: None after a run that went on for a few steps only.
    """
    count = max(1, plan.num_gradients // _LAST)
    if len(released_norm) < count:
        return None
    residual = residual_gradient(kernel, state, plan, released_norm[-count:])
    if not residual.is_noise:
        warnings.warn(
            f"the last {count} of {plan.num_gradients} noisy gradients still had a norm of {residual.norm:.2f} clip "
            "norms a record beside the noise: the fit has not converged. Raise num_steps or learning_rate",
            InferenceWarning,
            stacklevel=5,
        )
    return residual


def residual_gradient(kernel: Kernel, state: DPVIState, plan: NoisySumPlan, released_norm: np.ndarray) -> Residual:
    """What is left of some steps' sums beyond what noise and sampling explain.

    Of D released values with noise of standard deviation s, over clip norm C and expected batch B, the squared norm of
    the noise has mean D s^2 / (C B)^2 and variance 2 / D of its square. To that come, at most: what a batch of a
    share q of the records differs by, (1 - q) / B; what the guide's width moves the gradient by, 1 / N; and the
    gradient of the log prior, which the likelihood's balances at the optimum.
    """
    size, values = plan.expected_batch_size, kernel.shape.num_values
    noise = values * (kernel.shape.noise_stddev / (plan.clip_norm * size)) ** 2
    error = noise * math.sqrt(2 / (values * len(released_norm)))
    share = min(1.0, size / plan.num_records)
    excess = float(np.mean(released_norm**2)) - noise - (1 - share) / size - 1 / plan.num_records
    if excess > max(MOST_ERRORS * error, MOST_NORM**2):  # the prior can only explain more, and has to be compiled
        excess -= _prior_gradient(kernel, state, plan) ** 2
    return Residual(math.sqrt(max(0.0, excess)), excess / error)


def _prior_gradient(kernel: Kernel, state: DPVIState, plan: NoisySumPlan) -> float:
    """Norm of the gradient of the log prior, in clip norms a record."""

    split = kernel.guide.split
    if "prior_gradient" not in split.compiled:
        split.compiled["prior_gradient"] = jit_fast(jax.grad(split.log_prior))
    theta = jit_fast(kernel.guide.sample)(state.params, state.rng_key)
    gradient = np.asarray(split.compiled["prior_gradient"](theta))
    return float(np.linalg.norm(gradient)) / (plan.clip_norm * plan.num_records)


class ChunkRunner:
    """Runs a kernel chunk by chunk on columns that stay on the device. The program is the kernel's and knows none."""

    def __init__(self, kernel: Kernel, columns: Columns) -> None:
        self._everywhere = None if kernel.spread is None else NamedSharding(kernel.spread.mesh, PartitionSpec())
        self._columns = columns if self._everywhere is None else jax.device_put(columns, self._everywhere)
        if "chunk" not in kernel.compiled:
            kernel.compiled["chunk"] = jax.jit(partial(_scan, kernel), donate_argnums=compat.overwritable(0))
        self._run: Callable[..., tuple[DPVIState, tuple[StepInfo, InternalInfo]]] = kernel.compiled["chunk"]

    def __call__(self, state: DPVIState, chunk: Chunk) -> tuple[DPVIState, StepInfo, InternalInfo]:
        """The state after the chunk's active steps, and their infos as NumPy arrays [num_active]."""
        with compat.x64():
            if self._everywhere is not None:
                state = jax.device_put(state, self._everywhere)
            state, infos = self._run(state, self._columns, chunk.inputs, chunk.active)
            if self._everywhere is not None:  # what comes after the steps is for one device
                state = jax.tree_util.tree_map(lambda leaf: from_numbers(as_numbers(leaf), leaf), state)
            info, internal = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[: chunk.num_active], infos)
        return state, info, internal


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


CHECKPOINT = "checkpoint.npz"

_KEPT_LATER = {"points": np.nan, "descents": np.nan, "noise": 0.0, "loose": 0.0}
"""Leaves of a `NewtonState` that earlier versions did not store, and what stands in their place: a trace that is not
known, and steps that are no longer than H has them, as theirs were."""

OnEstimate = Callable[[float], None]
"""Called with the seconds that all steps will take at least, as a step on stand-ins took."""

AfterChunk = Callable[[int, Params], None]
"""Called with the number of steps so far and the guide's parameters, which follow from what was released."""


class _Chunk(NamedTuple):
    """What a chunk of steps gave. The objective is NOT DP, internal."""

    state: DPVIState
    released_norm: np.ndarray | jax.Array
    objective: np.ndarray | jax.Array | None


def restored(run: Run, state: DPVIState) -> DPVIState:
    """The state that the run stored; the first state if it stopped before it stored one."""
    stored = run.state()
    if stored is None:
        return state
    leaves = tree_arrays(state)
    known = {f".optimizer_state.{name}": value for name, value in _KEPT_LATER.items()}
    earlier = {name: np.full_like(leaves[name], value) for name, value in known.items() if name in leaves}
    return tree_of({**earlier, **stored}, state, CHECKPOINT)


def first_step(run: Run, plan: NoisySumPlan) -> int:
    """The first noisy sum of those to come; sums that a resumed sampling cannot use are counted as spent."""
    done = max(0, run.ledger.steps_spent - plan.first_gradient)
    first = plan.sampling.resume_step(plan.num_records, done)
    run.ledger.reserve_up_to(plan.first_gradient + first)
    return first


def run_steps(
    session: Session,
    run: Run,
    kernel: Kernel,
    runner: ChunkRunner | None,
    state: DPVIState,
    *,
    insecure_seed: int | None,
    progress_bar: bool,
    after_chunk: AfterChunk | None,
) -> tuple[DPVIState, Diagnostics]:
    """All remaining steps of a plan; the first chunk is one step, and a checkpoint follows every chunk.

    :param runner: the loop, where all parties are in this process; see `preflight.rehearsed`.
    """
    assert isinstance(run.plan, NoisySumPlan)
    started = time.perf_counter()
    session.catch_up(run)
    before, first = run.plan.first_gradient, first_step(run, run.plan)
    if runner is None:
        stream = _apart(session, run, state, first)
    else:
        source = _source(insecure_seed, before + first)
        stream = _in_process(runner, run, kernel.shape.num_values, state, source, first)
    found: list[_Chunk] = []
    with tqdm(total=run.plan.num_gradients, initial=first, disable=not progress_bar, unit="step") as bar:
        for chunk in stream:
            found.append(chunk._replace(state=DPVIState({}, (), chunk.state.rng_key)))
            state = chunk.state
            if after_chunk is not None:
                after_chunk(run.ledger.steps_spent - before, state.params)
            bar.update(len(chunk.released_norm))
    norms = np.concatenate([np.zeros(0), *(chunk.released_norm for chunk in found)])
    residual = last_residual(kernel, state, run.plan, norms)
    objectives = [chunk.objective for chunk in found if chunk.objective is not None]
    return state, Diagnostics(
        released_norm=norms,
        objective=np.concatenate(objectives) if objectives else None,
        seconds=time.perf_counter() - started,
        residual=residual,
    )


def _in_process(
    runner: ChunkRunner, run: Run, num_values: int, state: DPVIState, source: RandomSource, first: int
) -> Any:
    """Chunks of the jitted scan; each is on record, and stored, before anything of it is handed on."""
    plan = run.plan
    assert isinstance(plan, GradientPlan)
    pace = Pace(chunk_length_of(plan, num_values))
    for chunk in chunks(plan, num_values, source, first, pace):
        started = time.perf_counter()
        state, info, internal = runner(state, chunk)
        pace.took(chunk.num_active, time.perf_counter() - started)
        run.commit_state(chunk.num_active, tree_arrays(state) if run.folder else {})
        yield _Chunk(state, info.released_norm, internal.objective)


def _apart(session: Session, run: Run, state: DPVIState, first: int) -> Any:
    """Chunks at the parties; each is reserved before it begins, since they see what it releases."""
    assert isinstance(run.plan, NoisySumPlan)
    pace, leaves, first = Pace(run.plan.num_gradients), state_leaves(state), run.plan.first_gradient + first
    while run.ledger.steps_left:
        count = session.broadcast(min(pace.count, run.ledger.steps_left))
        step = run.ledger.reserve(count)
        started = time.perf_counter()
        found = session.iterate(step, count, leaves if step == first else {})
        pace.took(count, time.perf_counter() - started)
        state = state_of(state, found.arrays)
        run.keep_state(tree_arrays(state))
        yield _Chunk(state, found.arrays["released_norm"], None)


def _source(insecure_seed: int | None, first: int) -> RandomSource:
    """Noise and batches; a seeded run that goes on must not draw those of its first steps again."""
    return SystemRandomSource() if insecure_seed is None else InsecureSeededSource(insecure_seed + (first << 64))
