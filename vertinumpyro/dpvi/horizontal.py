"""DPVI on horizontally partitioned data: each client holds whole records, the clipped gradients go through DCA.

The same NumPyro model, guide, optimiser and update as `DPVI`. A step: public parameters go to all clients; each
clips the gradients of its records in the batch and adds them up, in the integers of `FixedPoint`; `noisy_sum` adds
the clients' vectors and noise shares; the noisy sum is pulled back through the guide. So with the same batches and
the same total noise, the revealed integers are those of `DPVI` on the pooled table, bit for bit.

Clients are simulated in one process (`HorizontalDataset`), or a few holders run it each in a process of its own, or on
machines of their own: a session whose parties are holders (`PartyTask.holders`) takes the dataset's place.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import checked
from vertinumpyro.data import DatasetInfo, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.dataset import Source
from vertinumpyro.dpvi.clipping import check_one_outcome
from vertinumpyro.dpvi.inference import DPVI
from vertinumpyro.dpvi.posterior import Diagnostics, Posterior, state_leaves, state_of, tree_arrays
from vertinumpyro.dpvi.preflight import MOST_RECORDS, OF_COMPILING, StepTime, rehearse_update
from vertinumpyro.dpvi.settings import as_optax, check_dataset, check_plan, default_batch, default_clip_norm, num_scores
from vertinumpyro.dpvi.training_loop import CHECKPOINT, DPVIState, Kernel, Pace, restored, run_steps
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.posterior.guide import ReparameterisedGuide
from vertinumpyro.posterior.predictive import Columns, checked_key, device_columns, score_link
from vertinumpyro.privacy import OUTSIDE_ANALYST, Batches, ClientPlan, FitTime, Plan, PoissonSampling, neighbouring
from vertinumpyro.secure import BatchShape, BetweenProcesses, FixedPoint
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.dca import CipherSource, DistributedCompute, SumBackend
from vertinumpyro.secure.fixed_point import Encoded, encoded, ring_sum
from vertinumpyro.secure.number_formats import most_records
from vertinumpyro.session import (
    HorizontalMethod,
    PartyComputation,
    Payload,
    ReleaseRequest,
    Run,
    Session,
    account_of,
    party_sources,
)
from vertinumpyro.session.cost_estimate import announce, drawing_seconds

_PROVISIONAL_GRID_BITS = 24  # coarser than the real grid: a multiplier that holds here holds there
_DEFAULT_NOISE_CLIENTS = 100
_MOST_VALUES = 2**26  # of all vectors of a step together, by default: half a GiB


def _source_of_all(clients: Sequence[VerticalDataset]) -> Source | None:
    """All clients' files, where everybody knows its own."""
    sources = [dataset.source for dataset in clients if dataset.source is not None]
    if len(sources) < len(clients):
        return None
    files = {f"{party} {i}": file for i, source in enumerate(sources) for party, file in source.files.items()}
    return dataclasses.replace(sources[0], files=files)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HorizontalDataset:
    """Whole records at several clients, on one machine: a simulation of the clients.

    :ivar records: all clients' records, under one schema. The schema's parties group columns and nothing else.
    :ivar owners: the client of each record, int `[N]`, from 0; None where every record is a client of its own.
    """

    records: VerticalDataset
    owners: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Checks that every record has an owner and every client a record."""
        if self.owners is None:
            return
        owners = np.asarray(self.owners)
        if owners.shape != (self.records.num_records,) or not np.issubdtype(owners.dtype, np.integer):
            raise ArgumentError("owners must be one integer for each record")
        if not np.array_equal(np.unique(owners), np.arange(owners.max() + 1)):
            raise ArgumentError("owners must number the clients 0, 1, ..., each with at least one record")
        object.__setattr__(self, "owners", owners.astype(np.int32))

    @classmethod
    def from_clients(cls, clients: Sequence[VerticalDataset]) -> HorizontalDataset:
        """A few big holders, each with a dataset under the same schema."""
        if len({dataset.schema.digest() for dataset in clients}) != 1:
            raise ArgumentError("clients must hold datasets of one schema; load them with the same one")
        schema = clients[0].schema
        arrays = {
            party: {
                name: np.concatenate([dataset.arrays(party)[name] for dataset in clients])
                for name in clients[0].arrays(party)
            }
            for party in schema.parties
        }
        sizes = [dataset.num_records for dataset in clients]
        records = VerticalDataset(schema, arrays, source=_source_of_all(clients))
        return cls(records, np.repeat(np.arange(len(clients)), sizes))

    @property
    def num_records(self) -> int:
        """Records over all clients, public."""
        return self.records.num_records

    @property
    def num_clients(self) -> int:
        """Clients that hold at least one record."""
        return self.num_records if self.owners is None else int(self.owners.max()) + 1

    def __repr__(self) -> str:
        """Public facts alone."""
        return f"HorizontalDataset({self.num_records} records at {self.num_clients} clients)"


class _Clients(NamedTuple):
    """What of clients is public. many: whether every record is a client of its own."""

    schema: Schema
    num_records: int
    count: int
    many: bool
    holders: tuple[str, ...]

    @classmethod
    def of(cls, dataset: HorizontalDataset | DatasetInfo) -> _Clients:
        if isinstance(dataset, Session | TableFacts):
            if dataset.parties == tuple(dataset.schema.parties):
                raise ArgumentError("dataset: its parties hold columns of the same records; DPVI(...) is for those")
            return cls(dataset.schema, dataset.num_records, len(dataset.parties), False, dataset.parties)
        check_dataset(dataset, HorizontalDataset)
        assert isinstance(dataset, HorizontalDataset)
        return cls(dataset.records.schema, dataset.num_records, dataset.num_clients, dataset.owners is None, ())


@dataclasses.dataclass(frozen=True)
class HorizontalDPVI(HorizontalMethod):
    """Differentially private variational inference where every client holds whole records.

    :ivar dpvi: the model, guide, optimiser and initial values; its backend is not used.
    :ivar backend: how the clients' vectors are added up; of a session `SecureAggregation()`, or another with a process
        for each holder.
    """

    dpvi: DPVI = dataclasses.field(default_factory=DPVI)
    backend: SumBackend | BetweenProcesses = dataclasses.field(default_factory=DistributedCompute)

    @checked
    def plan(
        self,
        dataset: HorizontalDataset | DatasetInfo,
        *,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float = 1e-5,
        adversary: str | None = None,
        relation: Literal["replace", "add_remove"] = "replace",
        clip_norm: float | None = None,
        batch_size: int | None = None,
        num_steps: int | None = None,
        noise_clients: int | None = None,
        max_unreliable: int = 0,
        participation: Literal["hidden", "known"] | None = None,
    ) -> ClientPlan:
        """The privacy plan of one fit; reads public facts only. As `DPVI.plan`, but for the clients.

        :param dataset: the clients' records; or a session of holders, or its `TableFacts`.
        :param epsilon: what everyone gets at most, a client and colluding nodes too; `adversary` narrows it to one row.
        :param noise_clients: how many clients add noise to each sum: None takes every big holder, or 100 of many
            clients with a record each, who need not be those whose records are drawn.
        :param max_unreliable: T of those may drop out or collude.
        :param participation: None takes "hidden" for big holders, who draw from their own records unseen, and
            "known" for a record each, where the nodes see who sends.
        :raises ArgumentError: names the argument and the fix.
        :raises RangeError: if clip, batch or noise could wrap the ring.
        """
        clients = _Clients.of(dataset)
        if (epsilon is None) == (noise_multiplier is None):
            raise ArgumentError("give either epsilon, to calibrate the noise, or noise_multiplier")
        check_one_outcome(self.dpvi.split(clients.schema), "hold columns of the same records at several parties")
        self.dpvi.twin_columns(clients.schema).warn(stacklevel=3)
        participation = participation or ("known" if clients.many else "hidden")
        amplified = participation == "hidden" or adversary == OUTSIDE_ANALYST
        clip_norm = default_clip_norm(num_scores(clients.schema)) if clip_norm is None else clip_norm
        most = most_records(clip_norm) // max(1, len(clients.holders))  # as each may draw the largest batch
        size, steps = default_batch(clients.num_records, amplified=amplified, most=max(1, most))
        if clients.many:  # every record of a batch is a vector of its own
            size = min(size, max(1, _MOST_VALUES // self.dpvi.split(clients.schema).num_values))
        size, steps = batch_size if batch_size is not None else size, num_steps if num_steps is not None else steps
        default_noise = min(_DEFAULT_NOISE_CLIENTS, clients.count) if clients.many else clients.count
        settings: dict[str, Any] = {
            "sampling": PoissonSampling.for_batch_size(size, clients.num_records, steps),
            "clip_norm": clip_norm,
            "num_clients": default_noise if noise_clients is None else noise_clients,
            "max_unreliable": max_unreliable,
            "num_records": clients.num_records,
            "delta": delta,
            "relation": neighbouring(relation),
            "participation": participation,
            "adversary": adversary,
            "holders": clients.holders,
        }
        if settings["num_clients"] > clients.count:
            raise ArgumentError(f"noise_clients must be at most the {clients.count} clients there are")
        if epsilon is not None:
            rough = ClientPlan.calibrated(epsilon=epsilon, grid_bits=_PROVISIONAL_GRID_BITS, **settings)
            noise_multiplier = rough.noise_multiplier
        assert noise_multiplier is not None
        rough = ClientPlan(noise_multiplier=noise_multiplier, grid_bits=_PROVISIONAL_GRID_BITS, **settings)
        grid_bits = FixedPoint().grid_bits(self._shape(clients.schema, rough))
        plan = ClientPlan(noise_multiplier=noise_multiplier, grid_bits=grid_bits, **settings)
        plan.warn_if_narrowed()
        plan.keep_time(partial(self._time, clients, plan))
        return plan

    def time(self, dataset: HorizontalDataset | DatasetInfo, plan: ClientPlan) -> FitTime:
        """How long a fit and a twin take here, a step tried on stand-ins; `plan.time` is this of its own plan."""
        return self._time(_Clients.of(dataset), plan)

    def _time(self, clients: _Clients, plan: ClientPlan, steps: ClientSteps | None = None) -> FitTime:
        """By the fit's own steps, which are compiled then, or by others."""
        tried = self._tried(clients, plan, steps)
        drawing = drawing_seconds(TableFacts(clients.schema, clients.num_records))
        return FitTime(
            before={"compiling": tried.compiling, f"{plan.num_gradients:,} steps": plan.num_gradients * tried.step},
            after={"the synthetic table": drawing + OF_COMPILING * tried.compiling},
            unknown="what the holders add up together" if clients.holders else "",
            shorter="Give fewer num_steps, a smaller batch_size, or a model of fewer components or parameters. ",
        )

    def _tried(self, clients: _Clients, plan: ClientPlan, steps: ClientSteps | None) -> StepTime:
        """A step of clients who hold nobody's records; of one holder where each computes at home."""
        kernel, state = self._kernel(clients, plan, compat.random_key(0))
        num_records = min(-(-clients.num_records // max(1, len(clients.holders))), MOST_RECORDS)
        parts = {p: stand_in_columns(clients.schema.restrict(p), num_records) for p in clients.schema.parties}
        records, apart = VerticalDataset(clients.schema, parts), 1 if clients.holders else clients.count
        owners = None if clients.many else np.arange(num_records, dtype=np.int32) % apart
        steps = ClientSteps(kernel, records, owners) if steps is None else steps.of(records)
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            batch, noise = self._inputs(plan, kernel, None, 0, num_records)()
            if isinstance(self.backend, SumBackend) and not clients.holders:
                released = np.asarray(self.backend.noisy_sum(steps.vectors(state, batch), noise))
            else:
                released = steps.sum_of(state, batch.indices[0], batch.mask[0])
            steps.update(state, released)
            seconds.append(time.perf_counter() - started)
        return StepTime(max(0.0, seconds[0] - seconds[1]), seconds[1])

    def kernel(
        self, dataset: HorizontalDataset | DatasetInfo, plan: ClientPlan, rng_key: jax.Array
    ) -> tuple[Kernel, DPVIState]:
        """`DPVI`'s kernel for this plan, of which a step uses `local` and `update`, and its first state.

        :raises ArgumentError: if the plan was made for other records or another model.
        """
        return self._kernel(_Clients.of(dataset), plan, rng_key)

    def _kernel(self, clients: _Clients, plan: ClientPlan, rng_key: jax.Array) -> tuple[Kernel, DPVIState]:
        check_plan(plan, ClientPlan)
        rng_key = checked_key(rng_key)
        shape = self._shape(clients.schema, plan)
        if plan.num_records != clients.num_records or plan.grid_bits != FixedPoint().grid_bits(shape):
            raise ArgumentError("plan was made for another dataset or model; make a new plan")
        if plan.holders != clients.holders:
            made_for = ", ".join(plan.holders) or "clients in one process"
            raise ArgumentError(f"plan was made for {made_for}; make one for {', '.join(clients.holders) or 'these'}")
        guide_key, step_key = jax.random.split(rng_key)
        split = self.dpvi.split(clients.schema)
        guide, params = ReparameterisedGuide.create(self.dpvi.guide, split, self.dpvi.init_loc_fn, guide_key)
        kernel = Kernel(
            guide=guide,
            optimizer=as_optax(self.dpvi.optimizer, plan.num_steps, self.dpvi.learning_rate),
            backend=FixedPoint(),
            shape=shape,
            num_records=plan.num_records,
            expected_batch_size=plan.expected_batch_size,
        )
        return kernel, kernel.init(step_key, params)

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this inference among these holders.

        :raises ArgumentError: names what differs.
        """
        check_plan(plan, ClientPlan)
        assert isinstance(plan, ClientPlan)
        if not isinstance(plan.sampling, PoissonSampling):
            raise ArgumentError("plan: each holder draws its own records, so its sampling must be Poisson's")
        self.kernel(dataset, plan, compat.random_key(0))

    def work(
        self, facts: DatasetInfo, party: str, columns: Mapping[str, np.ndarray], plan: ClientPlan, source: RandomSource
    ) -> PartyComputation:
        """One holder's part; see `session.Method`."""
        return HolderWork(*self.kernel(facts, plan, compat.random_key(0)), columns, plan, source)

    @checked
    def fit(
        self,
        dataset: HorizontalDataset | Session,
        plan: ClientPlan,
        rng_key: jax.Array,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress_bar: bool = True,
        insecure_seed: int | None = None,
        allow_long: bool = False,
    ) -> Posterior:
        """Spend the plan: run its steps and return the posterior over the global latents.

        :param dataset: the clients' records, or a session of holders, who then each have a ledger of their own.
        :param rng_key: model randomness, public.
        :param run_dir: folder for `privacy.json`, which counts every step before it is handed on, and a checkpoint.
        :param resume: continue the run of `run_dir`; a run that is complete costs nothing.
        :param insecure_seed: noise and batches from a seeded generator, for tests: no privacy at all.
        :param allow_long: fit even where it will take more than ten minutes, as a step took on stand-ins. From one
            minute on a `LongFitWarning` says how long, and where the time goes.
        :raises PlanSpentError: if the plan was spent before.
        """
        kernel, state = self.kernel(dataset, plan, rng_key)
        rehearse_update(kernel, state)
        asked = {"run_dir": run_dir, "resume": resume, "allow_long": allow_long}
        if isinstance(dataset, Session):
            announce(dataset, plan, partial(self.time, dataset, plan), **asked)
            return self._fit_session(dataset, plan, kernel, state, run_dir, resume, progress_bar, insecure_seed)
        if not isinstance(backend := self.backend, SumBackend):
            raise ArgumentError("backend: clients in one process are added up by DistributedCompute() or FixedPoint()")
        steps, secure = ClientSteps(kernel, dataset.records, dataset.owners), insecure_seed is None
        announce(None, plan, partial(self._time, _Clients.of(dataset), plan, steps), **asked)
        started, norms = time.perf_counter(), []
        with (
            Run.opened(
                plan,
                run_dir,
                results=CHECKPOINT,
                resume=resume,
                secure_noise=secure,
                account=account_of(dataset.records),
            ) as run,
            tqdm(total=plan.num_steps, initial=run.first_step, disable=not progress_bar, unit="step") as bar,
        ):
            state, pace = restored(run, state), Pace(plan.num_steps)
            first = plan.sampling.resume_step(plan.num_records, run.ledger.steps_spent)
            run.ledger.reserve_up_to(first)
            draw = self._inputs(plan, kernel, insecure_seed, first, plan.num_records)
            while run.ledger.steps_left:
                began, count = time.perf_counter(), min(pace.count, run.ledger.steps_left)
                for _ in range(count):
                    batch, noise = draw()
                    released = backend.noisy_sum(steps.vectors(state, batch), noise)
                    state, norm = steps.update(state, np.asarray(released))
                    norms.append(norm)
                run.commit_state(count, tree_arrays(state) if run.folder else {})
                pace.took(count, time.perf_counter() - began)
                bar.update(count)
        return Posterior(
            guide=kernel.guide,
            params=state.params,
            plan=plan,
            diagnostics=Diagnostics(np.array(norms), None, time.perf_counter() - started),
            secure_noise=run.secure_noise,
        )

    def _fit_session(
        self,
        session: Session,
        plan: ClientPlan,
        kernel: Kernel,
        state: DPVIState,
        run_dir: str | Path | None,
        resume: bool,
        progress_bar: bool,
        insecure_seed: int | None,
    ) -> Posterior:
        with session.open(
            self, plan, run_dir=run_dir, results=CHECKPOINT, resume=resume, insecure_seed=insecure_seed
        ) as run:
            state, diagnostics = run_steps(
                session,
                run,
                kernel,
                None,
                restored(run, state),
                insecure_seed=insecure_seed,
                progress_bar=progress_bar,
                after_chunk=None,
            )
        return Posterior(
            guide=kernel.guide, params=state.params, plan=plan, diagnostics=diagnostics, secure_noise=run.secure_noise
        )

    @staticmethod
    def _inputs(
        plan: ClientPlan, kernel: Kernel, insecure_seed: int | None, first: int, num_records: int
    ) -> Callable[[], tuple[Batches, np.ndarray]]:
        """Draws a step's batch of so many records, and its noise shares. Secret."""
        (source,) = party_sources(1, insecure_seed, first)
        noise_source = CipherSource() if insecure_seed is None else source
        batches, num_values = (
            plan.sampling.start(num_records, source, first_step=first),
            kernel.guide.split.num_values,
        )
        return lambda: (batches.next(1), plan.draw_noise_shares(num_values, noise_source))

    def _shape(self, schema: Schema, plan: ClientPlan) -> BatchShape:
        """The range proof is of the whole sum: the batch of all clients together.

        Holders draw each for itself, up to the largest batch each.
        """
        split = self.dpvi.split(schema)
        noise, largest = plan.noise, plan.sampling.max_batch_size * max(1, len(plan.holders))
        return BatchShape(
            batch_size=min(largest, plan.num_records),
            num_components=split.num_components,
            num_parties=len(split.parties),
            num_values=split.num_values,
            clip_norm=plan.clip_norm,
            noise_stddev=plan.noise_multiplier * plan.clip_norm * (noise.num_shares / noise.num_covering) ** 0.5,
            link=score_link(split),
        )


_BLOCK_VALUES = 2**24  # records times released values that a holder computes at a time


class ClientSteps:
    """The two halves of a step, compiled: what clients compute, and what everybody does with the noisy sum.

    :param records: all clients' records.
    :param owners: the client of each, int [N], from 0; None where every record is a client of its own.
    """

    def __init__(self, kernel: Kernel, records: VerticalDataset, owners: np.ndarray | None) -> None:
        self._kernel, self._owners = kernel, owners
        self._columns: Columns = device_columns(records)
        self._num_clients = records.num_records if owners is None else int(owners.max()) + 1
        self._local = jax.jit(self._client_vectors)
        self._update = jax.jit(self._updated)

    def of(self, records: VerticalDataset) -> ClientSteps:
        """The same programs, of other records of the same clients."""
        other = copy.copy(self)
        other._columns = device_columns(records)
        return other

    def vectors(self, state: DPVIState, batch: Batches) -> np.ndarray:
        """Each client's integer vector `[clients, D]` on the grid; of clients with a record each, the batch's.

        A record's vector has L2 norm at most clip_norm 2^f, whatever it holds (`secure.fixed_point`). Secret.
        """
        (indices,), (mask,) = batch.indices, batch.mask
        if self._owners is None:
            members = mask[:, None]
        else:
            members = mask & (self._owners[indices] == np.arange(self._num_clients)[:, None])
        with compat.x64():
            return np.asarray(self._local(state, self._columns, indices, members))

    def sum_of(self, state: DPVIState, indices: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """One holder's integer vector `[D]`, of its batch; memory holds some of its records at a time. Secret."""
        rows = max(1, _BLOCK_VALUES // self._kernel.shape.num_values)
        num_blocks = -(-len(indices) // rows)
        size = -(-len(indices) // num_blocks)
        total = np.zeros(self._kernel.shape.num_values, np.int64)
        for start in range(0, len(indices), size):
            piece, valid = indices[start : start + size], mask[start : start + size]
            if not valid.any():
                break
            padding = (0, size - len(piece))
            with compat.x64():
                members = jnp.asarray(np.pad(valid, padding))[None]
                total += np.asarray(self._local(state, self._columns, np.pad(piece, padding), members))[0]
        return total

    def update(self, state: DPVIState, released: np.ndarray) -> tuple[DPVIState, float]:
        """The state after the noisy sum int64 `[D]`, and the norm of the noisy gradient per expected record."""
        with compat.x64():
            state, norm = self._update(state, jnp.asarray(released))
            return state, float(norm)

    def _client_vectors(self, state: DPVIState, columns: Columns, indices: jax.Array, members: jax.Array) -> jax.Array:
        kernel = self._kernel
        local, prior_of = (compat.at_precision(kernel.user_x64, f) for f in (kernel.local, kernel.component_prior))
        contributions, prior = local(state, columns, indices), prior_of(state)
        with compat.x64():
            inputs = encoded(kernel.shape, contributions, prior)
            if self._owners is None:
                return _record_vectors(kernel.shape, inputs, members)
            return jax.lax.map(lambda mask: ring_sum(kernel.shape, inputs, mask), members)

    def _updated(self, state: DPVIState, released: jax.Array) -> tuple[DPVIState, jax.Array]:
        kernel = self._kernel
        with compat.x64():
            real = released.astype(jnp.float64) * 2.0 ** -kernel.backend.grid_bits(kernel.shape)
        dtype = jax.tree_util.tree_leaves(state.params)[0].dtype
        update = compat.at_precision(kernel.user_x64, kernel.update)
        new_state, info = update(state, real.astype(dtype))
        return new_state, info.released_norm

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"ClientSteps({self._num_clients} clients)"


def _record_vectors(shape: BatchShape, inputs: Encoded, masks: jax.Array) -> jax.Array:
    """Every record's own clipped vector `[n, D]`; `masks` is [n, 1]. The integers of `ring_sum`, not yet added up."""
    parties = zip(inputs.plated, inputs.tables, strict=True)
    plated = tuple(jnp.concatenate([own, *(t.per_record() for t in tables)], axis=-1) for own, tables in parties)
    *of_parties, of_prior = inputs.log_densities

    def of_record(own: tuple[Any, Any, Any], mask: jax.Array) -> jax.Array:
        log_densities, scores, shared = jax.tree_util.tree_map(lambda leaf: leaf[None], own)
        one = Encoded((*log_densities, of_prior), scores, shared, tuple(() for _ in scores), inputs.prior_scores)
        return ring_sum(shape, one, mask)

    return jax.vmap(of_record)((tuple(of_parties), plated, inputs.shared), masks)


@final
class HolderWork(PartyComputation):
    """One holder's part of the steps: its batches are its own, and it shows the sum of what it drew to nobody.

    How long it computes tells the others roughly how many records it has.

    :param kernel: of all holders alike.
    :param state: before the first step.
    :param columns: its encoded columns. Secret.
    """

    def __init__(
        self,
        kernel: Kernel,
        state: DPVIState,
        columns: Mapping[str, np.ndarray],
        plan: ClientPlan,
        source: RandomSource,
    ) -> None:
        self._plan, self._source, self._state = plan, source, state
        schema = kernel.guide.split.schema
        (name,) = schema.parties
        records = VerticalDataset(schema, {name: dict(columns)})
        self._steps = ClientSteps(kernel, records, np.zeros(records.num_records, np.int32))
        self._num_values = kernel.shape.num_values

    def check(self, request: ReleaseRequest) -> None:
        """Refuses everything: steps are iterated, and the holder's ledger counts them."""
        raise request.refused()

    def iterate(self, end: PartyProtocol, batches: Batches, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `PartyComputation.iterate`: the state's leaves, and the norm of every released gradient."""
        state = state_of(self._state, arrays) if arrays else self._state
        noise = self._plan.draw_noise_share(self._num_values, len(batches.mask), self._source)
        norms = []
        for indices, mask, share in zip(batches.indices, batches.mask, noise, strict=True):
            released = end.noisy_sum(self._steps.sum_of(state, indices, mask), share)
            state, norm = self._steps.update(state, released)
            norms.append(norm)
        self._state = state
        return Payload({}, {"released_norm": np.asarray(norms), **state_leaves(state)})

    def __repr__(self) -> str:
        """Nothing secret."""
        return "HolderWork()"
