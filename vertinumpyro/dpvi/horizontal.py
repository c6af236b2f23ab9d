"""DPVI on horizontally partitioned data: each client holds whole records, the clipped gradients go through DCA.

The same NumPyro model, guide, optimiser and update as `DPVI`. A step: public parameters go to all clients; each
clips the gradients of its records in the batch and adds them up, in the integers of `FixedPoint`; `noisy_sum` adds
the clients' vectors and noise shares; the noisy sum is pulled back through the guide. So with the same batches and
the same total noise, the revealed integers are those of `DPVI` on the pooled table, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi.arguments import check_dataset, check_plan
from vertinumpyro.dpvi.checkpoint import tree_arrays
from vertinumpyro.dpvi.defaults import default_batch, default_clip_norm
from vertinumpyro.dpvi.fitting import CHECKPOINT, restored
from vertinumpyro.dpvi.inference import DPVI
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.optimizers import as_optax
from vertinumpyro.dpvi.posterior import Diagnostics, Posterior
from vertinumpyro.dpvi.rehearsal import rehearse_update
from vertinumpyro.dpvi.stream import Pace
from vertinumpyro.posterior.columns import Columns, device_columns, score_link
from vertinumpyro.posterior.guide import ReparameterisedGuide
from vertinumpyro.posterior.keys import checked_key
from vertinumpyro.privacy import OUTSIDE_ANALYST, ClientPlan, PoissonSampling, neighbouring
from vertinumpyro.privacy.sampling import Batches
from vertinumpyro.secure import BatchShape, FixedPoint
from vertinumpyro.secure.dca import CipherSource, DistributedCompute, SumBackend
from vertinumpyro.secure.fixed_point import Encoded, encoded, ring_sum
from vertinumpyro.session import Run, party_sources

__all__ = ["HorizontalDPVI", "HorizontalDataset"]

_PROVISIONAL_GRID_BITS = 24  # coarser than the real grid: a multiplier that holds here holds there
_DEFAULT_NOISE_CLIENTS = 100
_MOST_VALUES = 2**26  # of all vectors of a step together, by default: half a GiB


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
        return cls(VerticalDataset(schema, arrays), np.repeat(np.arange(len(clients)), sizes))

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


@dataclasses.dataclass(frozen=True)
class HorizontalDPVI:
    """Differentially private variational inference where every client holds whole records.

    :ivar dpvi: the model, guide, optimiser and initial values; its backend is not used.
    :ivar backend: how the clients' vectors are added up.
    """

    dpvi: DPVI = dataclasses.field(default_factory=DPVI)
    backend: SumBackend = dataclasses.field(default_factory=DistributedCompute)

    def plan(
        self,
        dataset: HorizontalDataset,
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

        :param epsilon: what everyone gets at most, a client and colluding nodes too; `adversary` narrows it to one row.
        :param noise_clients: how many clients add noise to each sum: None takes every big holder, or 100 of many
            clients with a record each, who need not be those whose records are drawn.
        :param max_unreliable: T of those may drop out or collude.
        :param participation: None takes "hidden" for big holders, who draw from their own records unseen, and
            "known" for a record each, where the nodes see who sends.
        :raises ArgumentError: names the argument and the fix.
        :raises RangeError: if clip, batch or noise could wrap the ring.
        """
        check_dataset(dataset, HorizontalDataset)
        if (epsilon is None) == (noise_multiplier is None):
            raise ArgumentError("give either epsilon, to calibrate the noise, or noise_multiplier")
        self.dpvi.twin_columns(dataset.records.schema).warn(stacklevel=2)
        many = dataset.owners is None
        participation = participation or ("known" if many else "hidden")
        amplified = participation == "hidden" or adversary == OUTSIDE_ANALYST
        size, steps = default_batch(dataset.num_records, amplified=amplified)
        if many:  # every record of a batch is a vector of its own
            size = min(size, max(1, _MOST_VALUES // self.dpvi.split(dataset.records.schema).num_values))
        size, steps = batch_size if batch_size is not None else size, num_steps if num_steps is not None else steps
        default_noise = min(_DEFAULT_NOISE_CLIENTS, dataset.num_clients) if many else dataset.num_clients
        settings: dict[str, Any] = {
            "sampling": PoissonSampling.for_batch_size(size, dataset.num_records, steps),
            "clip_norm": default_clip_norm(dataset.records.schema) if clip_norm is None else clip_norm,
            "num_clients": default_noise if noise_clients is None else noise_clients,
            "max_unreliable": max_unreliable,
            "num_records": dataset.num_records,
            "delta": delta,
            "relation": neighbouring(relation),
            "participation": participation,
            "adversary": adversary,
        }
        if settings["num_clients"] > dataset.num_clients:
            raise ArgumentError(f"noise_clients must be at most the {dataset.num_clients} clients there are")
        if epsilon is not None:
            rough = ClientPlan.calibrated(epsilon=epsilon, grid_bits=_PROVISIONAL_GRID_BITS, **settings)
            noise_multiplier = rough.noise_multiplier
        assert noise_multiplier is not None
        rough = ClientPlan(noise_multiplier=noise_multiplier, grid_bits=_PROVISIONAL_GRID_BITS, **settings)
        grid_bits = FixedPoint().grid_bits(self._shape(dataset, rough))
        plan = ClientPlan(noise_multiplier=noise_multiplier, grid_bits=grid_bits, **settings)
        plan.warn_if_narrowed(stacklevel=2)
        return plan

    def kernel(self, dataset: HorizontalDataset, plan: ClientPlan, rng_key: jax.Array) -> tuple[Kernel, DPVIState]:
        """`DPVI`'s kernel for this plan, of which a step uses `local` and `update`, and its first state.

        :raises ArgumentError: if the plan was made for other records or another model.
        """
        check_dataset(dataset, HorizontalDataset)
        check_plan(plan, ClientPlan)
        rng_key = checked_key(rng_key)
        shape = self._shape(dataset, plan)
        if plan.num_records != dataset.num_records or plan.grid_bits != FixedPoint().grid_bits(shape):
            raise ArgumentError("plan was made for another dataset or model; make a new plan")
        guide_key, step_key = jax.random.split(rng_key)
        split = self.dpvi.split(dataset.records.schema)
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

    def fit(
        self,
        dataset: HorizontalDataset,
        plan: ClientPlan,
        rng_key: jax.Array,
        *,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress_bar: bool = True,
        insecure_seed: int | None = None,
    ) -> Posterior:
        """Spend the plan: run its steps and return the posterior over the global latents.

        :param rng_key: model randomness, public.
        :param run_dir: folder for `privacy.json`, which counts every step before it is handed on, and a checkpoint.
        :param resume: continue the run of `run_dir`; a run that is complete costs nothing.
        :param insecure_seed: noise and batches from a seeded generator, for tests: no privacy at all.
        :raises PlanSpentError: if the plan was spent before.
        """
        kernel, state = self.kernel(dataset, plan, rng_key)
        rehearse_update(kernel, state)
        steps, secure = ClientSteps(kernel, dataset), insecure_seed is None
        started, norms = time.perf_counter(), []
        with (
            Run.opened(plan, run_dir, results=CHECKPOINT, resume=resume, secure_noise=secure) as run,
            tqdm(total=plan.num_steps, initial=run.first_step, disable=not progress_bar, unit="step") as bar,
        ):
            state, pace = restored(run, state), Pace(plan.num_steps)
            draw = self._inputs(plan, kernel, insecure_seed, run)
            while run.ledger.steps_left:
                began, count = time.perf_counter(), min(pace.count, run.ledger.steps_left)
                for _ in range(count):
                    batch, noise = draw()
                    released = self.backend.noisy_sum(steps.vectors(state, batch), noise)
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

    @staticmethod
    def _inputs(
        plan: ClientPlan, kernel: Kernel, insecure_seed: int | None, run: Run
    ) -> Callable[[], tuple[Batches, np.ndarray]]:
        """Draws a step's batch and its noise shares. Secret."""
        first = plan.sampling.resume_step(plan.num_records, run.ledger.steps_spent)
        run.ledger.reserve_up_to(first)
        (source,) = party_sources(1, insecure_seed, first)
        noise_source = CipherSource() if insecure_seed is None else source
        batches, num_values = (
            plan.sampling.start(plan.num_records, source, first_step=first),
            kernel.guide.split.num_values,
        )
        return lambda: (batches.next(1), plan.draw_noise_shares(num_values, noise_source))

    def _shape(self, dataset: HorizontalDataset, plan: ClientPlan) -> BatchShape:
        """The range proof is of the whole sum: the batch of all clients together."""
        split = self.dpvi.split(dataset.records.schema)
        noise = plan.noise
        return BatchShape(
            batch_size=plan.sampling.max_batch_size,
            num_components=split.num_components,
            num_parties=len(split.parties),
            num_values=split.num_values,
            clip_norm=plan.clip_norm,
            noise_stddev=plan.noise_multiplier * plan.clip_norm * (noise.num_shares / noise.num_covering) ** 0.5,
            link=score_link(split),
        )


class ClientSteps:
    """The two halves of a step, compiled: what clients compute, and what everybody does with the noisy sum."""

    def __init__(self, kernel: Kernel, dataset: HorizontalDataset) -> None:
        self._kernel, self._owners = kernel, dataset.owners
        self._columns: Columns = device_columns(dataset.records)
        self._num_clients = dataset.num_clients
        self._local = jax.jit(self._client_vectors)
        self._update = jax.jit(self._updated)

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
