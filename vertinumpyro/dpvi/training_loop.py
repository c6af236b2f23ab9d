"""One step of private variational inference, what it takes from outside, and the loop of all steps.

`Kernel` is the step, an `init`/`step` pair of pure functions. `chunks` draws its secret inputs, batches and noise
shares, in the background. `run_steps` is the loop: one jitted `lax.scan` per chunk of steps, and around it progress,
pace and checkpoints; where the parties are elsewhere, it asks them for each chunk.

At the optimum the gradient of the ELBO is zero, and a released sum holds noise alone. So the norms of the last sums,
beside those that noise of the plan's size gives, say whether the steps ended too early (`last_residual`); nobody need
look at a record.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.compat import jit_fast
from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.core.rng import InsecureSeededSource, RandomSource, SystemRandomSource
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.dpvi.posterior import (
    MOST_ERRORS,
    MOST_NORM,
    Diagnostics,
    Residual,
    as_numbers,
    from_numbers,
    state_leaves,
    state_of,
    tree_arrays,
    tree_of,
)
from vertinumpyro.dpvi.settings import first_state
from vertinumpyro.posterior.guide import Params, ReparameterisedGuide
from vertinumpyro.posterior.predictive import Columns
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.privacy.gradient_plan import NoisySumPlan
from vertinumpyro.privacy.sampling import BatchStream
from vertinumpyro.secure.backend import Backend, Contributions, in_process, over_blocks
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.session import Run, Session


class DPVIState(NamedTuple):
    """Everything that a step changes; all of it is public once the steps' releases are."""

    params: Params
    optimizer_state: Any
    rng_key: jax.Array


class StepInput(NamedTuple):
    """What a step takes from outside: the batch and the noise, both drawn by a CSPRNG. Secret."""

    indices: Any
    """Int[Array, "n"]: record numbers, 0 where padded."""
    mask: Any
    """Bool[Array, "n"]: False marks padding."""
    noise_shares: Any
    """Int[Array, "shares D"] on the backend's grid."""


class StepInfo(NamedTuple):
    """Public: computed from the released gradient only.

    released_norm: L2 norm of the noisy gradient, in clip norms per expected record.
    """

    released_norm: Float[Array, ""]


class InternalInfo(NamedTuple):
    """NOT DP, internal: computed from the records outside the mechanism. It must never leave the parties.

    objective: estimate of the negative ELBO per record on the step's batch; None unless asked for.
    """

    objective: Float[Array, ""] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """DPVI's step (Algorithm 1) for a split model, a guide, an optimiser and a backend that computes in process.

    `step` is pure and jittable under 64-bit mode; `local` and `update` are its two halves, for a backend that
    runs in other processes.

    :ivar diagnostics: compute `InternalInfo.objective`, which is not DP.
    :ivar whitens: whether the optimiser's state has a whitening of the scores.
    :ivar reaches: whether it has how far the link reaches (`Outcome.reaching`).
    :ivar spread: how the numbers of a block's records lie on several devices; None is one device.
    """

    guide: ReparameterisedGuide
    optimizer: optax.GradientTransformation
    backend: Backend
    shape: BatchShape
    num_records: int
    expected_batch_size: float
    diagnostics: bool = False
    whitens: bool = False
    reaches: bool = False
    spread: NamedSharding | None = None
    user_x64: bool = dataclasses.field(default_factory=compat.user_has_x64)

    @cached_property
    def compiled(self) -> dict[str, Any]:
        """Compiled programs of whoever runs the steps, by their names: all fits of the kernel share them."""
        return {}

    def init(self, rng_key: jax.Array, params: Params) -> DPVIState:
        """The state before the first step, strongly typed: a weak type would compile the loop twice."""
        state = DPVIState(params, first_state(self.optimizer, params), rng_key)
        return jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, jnp.asarray(leaf).dtype), state)

    def step(
        self, state: DPVIState, columns: Columns, inputs: StepInput
    ) -> tuple[DPVIState, tuple[StepInfo, InternalInfo]]:
        """One release: local contributions, the cross-party protocol, the update."""
        local, prior_of, update = (
            compat.at_precision(self.user_x64, part) for part in (self.local, self.component_prior, self.update)
        )
        indices, mask, prior = inputs.indices, inputs.mask, prior_of(state)
        if self.shape.num_blocks > 1 or self.spread is not None:
            indices, mask = self.shape.blocks(indices), self.shape.blocks(mask)
        contributions = _by_block(partial(local, state, columns), indices)
        with compat.x64():
            released = (
                in_process(self.backend)
                .clipped_noisy_sum(self.shape, contributions, prior, mask, inputs.noise_shares)
                .astype(prior.log_weights.dtype)
            )
        objective = compat.at_precision(self.user_x64, partial(self._objective, contributions))
        internal = InternalInfo(objective(state, prior, mask) if self.diagnostics else None)
        new_state, info = update(state, released)
        return new_state, (info, internal)

    def component_prior(self, state: DPVIState) -> ComponentPrior:
        """The public component prior of a step."""
        return self.guide.split.component_prior(self.guide.sample(state.params, _eta_key(state)))

    def local(self, state: DPVIState, columns: Columns, indices: Int[Array, " n"]) -> list[Contribution]:
        """Each party's contribution from its own columns."""
        theta = self.guide.sample(state.params, _eta_key(state))
        if self.spread is not None:
            indices = jax.lax.with_sharding_constraint(indices, self.spread)
        return [self._contribution(party, theta, columns[party], indices, state) for party in self.guide.split.parties]

    def local_of(
        self, party: str, state: DPVIState, own_columns: Mapping[str, jax.Array], indices: Int[Array, " n"]
    ) -> Contribution:
        """What one party computes in its own process, from its columns [N] alone."""
        return self._contribution(party, self.guide.sample(state.params, _eta_key(state)), own_columns, indices, state)

    def _contribution(
        self, party: str, theta: jax.Array, own_columns: Mapping[str, jax.Array], indices: jax.Array, state: DPVIState
    ) -> Contribution:
        batch = {name: column[indices] for name, column in own_columns.items()}
        split, found = self.guide.split, self.guide.split.contribution(party, theta, batch)
        if self.reaches:
            found = split.reaching(party, found, state.optimizer_state.reach)
        if not self.whitens:
            return found
        whitening = state.optimizer_state.whitening
        return split.whitened(party, found, whitening.to, whitening.bounds[split.parties.index(party)])

    def update(self, state: DPVIState, released: Float[Array, " D"]) -> tuple[DPVIState, StepInfo]:
        """Post-processing: scale to all records, pull back through the guide, optimiser step."""
        info = StepInfo(jnp.linalg.norm(released) / (self.shape.clip_norm * self.expected_batch_size))
        back = state.optimizer_state.whitening.back if self.whitens else None
        released = released * state.optimizer_state.reach.astype(released.dtype) if self.reaches else released
        gradient = self.guide.split.gather(released, back) * (self.num_records / self.expected_batch_size)
        ascent = self.guide.pull_back(state.params, _eta_key(state), gradient)
        descent = jax.tree_util.tree_map(lambda g: -g / self.num_records, ascent)
        updates, optimizer_state = self.optimizer.update(descent, state.optimizer_state, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        return DPVIState(params, optimizer_state, _next_key(state)), info

    def _objective(
        self, contributions: Contributions, state: DPVIState, prior: ComponentPrior, mask: jax.Array
    ) -> jax.Array:
        """Negative ELBO per record, estimated on the batch. Not DP."""

        def log_density(contributions: Sequence[Contribution], mask: jax.Array) -> jax.Array:
            z = self.shape.link.total(prior.log_weights, [c.log_density for c in contributions])
            return jnp.where(mask, self.shape.link.log_density(z), 0.0).sum()

        batch = over_blocks(log_density, contributions, mask) / self.expected_batch_size
        batch = batch * state.optimizer_state.reach if self.reaches else batch  # the link's is in its own units
        public = self.guide.entropy_bound(state.params, _eta_key(state)) / self.num_records
        return -(batch + public)


def _by_block(local: Callable[[jax.Array], Sequence[Contribution]], indices: jax.Array) -> Contributions:
    """What `local` gives for a batch's records [n]; by the number of a block where they come in blocks [b, n]."""
    return local(indices) if indices.ndim == 1 else lambda number: local(indices[number])


def _eta_key(state: DPVIState) -> jax.Array:
    return jax.random.fold_in(state.rng_key, 0)


def _next_key(state: DPVIState) -> jax.Array:
    return jax.random.fold_in(state.rng_key, 1)


_BYTES = 2**24
_BYTES_OF_AN_INDEX = 5  # and its place in the mask
_MAX_CHUNK = 200
_CHUNK_S = 3.0


class Chunk(NamedTuple):
    """Inputs of several steps, padded to one static number of steps."""

    inputs: StepInput
    active: np.ndarray
    """bool [num_steps]: False marks steps that only pad the chunk; nothing is released for them."""

    @property
    def num_active(self) -> int:
        """Steps that release something."""
        return int(self.active.sum())

    def __repr__(self) -> str:
        return f"Chunk(num_active={self.num_active})"


@final
class Pace:
    """How many steps the next chunk takes: one at first, then as many as a few seconds hold.

    What dies with a chunk is lost, and what follows the first step may fail for reasons that no rehearsal shows.

    :param longest: most steps in a chunk.
    """

    def __init__(self, longest: int) -> None:
        self._longest, self.count, self._chunks = longest, 1, 0

    def took(self, num_steps: int, seconds: float) -> None:
        """Told how long a chunk took; the first one includes compilation and says nothing."""
        self._chunks += 1
        if self._chunks > 1:
            fits = int(_CHUNK_S * num_steps / max(seconds, 1e-9))
            self.count = max(1, min(self._longest, _MAX_CHUNK, 2 * self.count, fits))


def chunk_length(num_steps: int, num_values: int, num_shares: int, batch_size: int) -> int:
    """Steps in a chunk at most: noise and batches take 16 MiB each, and progress shows at least every 200 steps."""
    room = min(_BYTES // (8 * num_values * num_shares), _BYTES // (_BYTES_OF_AN_INDEX * batch_size))
    longest = max(1, min(room, _MAX_CHUNK, num_steps))
    return -(-num_steps // -(-num_steps // longest))


def chunk_length_of(plan: GradientPlan, num_values: int) -> int:
    """A plan's."""
    return chunk_length(plan.num_gradients, num_values, plan.num_shares, plan.sampling.max_batch_size)


def chunks(
    plan: GradientPlan, num_values: int, source: RandomSource, first_step: int, pace: Pace | None = None
) -> Iterator[Chunk]:
    """All remaining chunks of a plan, as long as `pace` says; while one is used, the next is drawn in another thread.

    NumPy's generators and the operating system's CSPRNG release the interpreter lock, so the noise costs
    little wall time on a second core.
    """
    batch_source, *share_sources = source.spawn(1 + plan.num_shares)
    batches = plan.sampling.start(plan.num_records, batch_source, first_step=first_step)
    length, num_steps, noise = chunk_length_of(plan, num_values), plan.num_gradients, plan.noise_sampler()

    def draw(wanted: int) -> Chunk | None:
        count = min(wanted, length, num_steps - batches.step)
        return None if count <= 0 else _padded(draw_inputs(noise, num_values, batches, share_sources, count), length)

    with ThreadPoolExecutor(max_workers=1) as background:
        pending = background.submit(draw, length if pace is None else pace.count)
        while (chunk := pending.result()) is not None:
            pending = background.submit(draw, length if pace is None else pace.count)
            yield chunk


def draw_inputs(
    noise: Callable[[int, RandomSource], np.ndarray],
    num_values: int,
    batches: BatchStream,
    share_sources: list[RandomSource],
    num_steps: int,
) -> StepInput:
    """Batches and noise of `num_steps` steps; every party's noise comes from its own source.

    :param noise: the plan's `noise_sampler`.
    """
    indices, mask = batches.next(num_steps)
    shares = [noise(num_steps * num_values, source).reshape(num_steps, num_values) for source in share_sources]
    return StepInput(indices, mask, np.stack(shares, axis=1))


def chunk_over_nobody(plan: GradientPlan, num_values: int, noise: np.ndarray) -> Chunk:
    """A chunk of one step, in the form of every other, whose batch is empty: its sum is `noise` [D], on the grid."""
    shares = np.zeros((1, plan.num_shares, num_values), np.int64)
    shares[0, 0] = noise
    drawn = plan.sampling.start(plan.num_records, SystemRandomSource()).next(1)
    nobody = StepInput(np.zeros_like(drawn.indices), np.zeros_like(drawn.mask), shares)
    return _padded(nobody, chunk_length_of(plan, num_values))


def _padded(inputs: StepInput, length: int) -> Chunk:
    """Every chunk is as long as the others, so that the loop compiles once."""
    count = len(inputs.mask)
    active = np.arange(length) < count
    pad = [(0, length - count)]
    padded = (np.pad(leaf, pad + [(0, 0)] * (leaf.ndim - 1)) for leaf in inputs)
    return Chunk(StepInput(*padded), active)


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

_KEPT_LATER = {"points": np.nan, "descents": np.nan, "noise": 0.0, "loose": 0.0, "centre": 0.0, "intercept": 0.0,
               "reach": 1.0, "baseline.by_spread": 0.0, "baseline.covariance": 0.0}  # fmt: skip
"""Leaves of a `NewtonState` that earlier versions did not store, and what stands in their place: a trace that is not
known, steps that are no longer than H has them, as theirs were, unmoved scores, and a baseline that stays."""

OnEstimate = Callable[[float], None]
"""Called with the seconds that all steps will take at least, as a step on stand-ins took."""

AfterChunk = Callable[[int, Params], None]
"""Called with the number of steps so far and the guide's parameters, which follow from what was released."""


class _Steps(NamedTuple):
    """What a chunk of them gave. The objective is NOT DP, internal."""

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
    found: list[_Steps] = []
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


def end_without_steps(session: Session, run: Run, state: DPVIState) -> Diagnostics:
    """What `run_steps` is where the plan has none: the start's state is the result, and is stored as such."""
    session.catch_up(run)
    if run.folder:
        run.keep_state(tree_arrays(state))
    return Diagnostics.empty()


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
        yield _Steps(state, info.released_norm, internal.objective)


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
        yield _Steps(state, found.arrays["released_norm"], None)


def _source(insecure_seed: int | None, first: int) -> RandomSource:
    """Noise and batches; a seeded run that goes on must not draw those of its first steps again."""
    return SystemRandomSource() if insecure_seed is None else InsecureSeededSource(insecure_seed + (first << 64))


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
