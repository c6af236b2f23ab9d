"""One step of private variational inference, as an `init`/`step` pair of pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jaxtyping import Array, Float, Int

from vertinumpyro.core import compat
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.dpvi.settings import first_state
from vertinumpyro.posterior.guide import Params, ReparameterisedGuide
from vertinumpyro.posterior.predictive import Columns
from vertinumpyro.secure.backend import Backend, Contributions, in_process, over_blocks
from vertinumpyro.secure.shape import BatchShape


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
    :ivar spread: how the numbers of a block's records lie on several devices; None is one device.
    """

    guide: ReparameterisedGuide
    optimizer: optax.GradientTransformation
    backend: Backend
    shape: BatchShape
    num_records: int
    expected_batch_size: float
    diagnostics: bool = False
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
        return [self._contribution(party, theta, columns[party], indices) for party in self.guide.split.parties]

    def local_of(
        self, party: str, state: DPVIState, own_columns: Mapping[str, jax.Array], indices: Int[Array, " n"]
    ) -> Contribution:
        """What one party computes in its own process, from its columns [N] alone."""
        return self._contribution(party, self.guide.sample(state.params, _eta_key(state)), own_columns, indices)

    def _contribution(
        self, party: str, theta: jax.Array, own_columns: Mapping[str, jax.Array], indices: jax.Array
    ) -> Contribution:
        batch = {name: column[indices] for name, column in own_columns.items()}
        return self.guide.split.contribution(party, theta, batch)

    def update(self, state: DPVIState, released: Float[Array, " D"]) -> tuple[DPVIState, StepInfo]:
        """Post-processing: scale to all records, pull back through the guide, optimiser step."""
        gradient = self.guide.split.gather(released) * (self.num_records / self.expected_batch_size)
        ascent = self.guide.pull_back(state.params, _eta_key(state), gradient)
        descent = jax.tree_util.tree_map(lambda g: -g / self.num_records, ascent)
        updates, optimizer_state = self.optimizer.update(descent, state.optimizer_state, state.params)
        params = cast(Params, optax.apply_updates(state.params, updates))
        info = StepInfo(jnp.linalg.norm(released) / (self.shape.clip_norm * self.expected_batch_size))
        return DPVIState(params, optimizer_state, _next_key(state)), info

    def _objective(
        self, contributions: Contributions, state: DPVIState, prior: ComponentPrior, mask: jax.Array
    ) -> jax.Array:
        """Negative ELBO per record, estimated on the batch. Not DP."""

        def log_density(contributions: Sequence[Contribution], mask: jax.Array) -> jax.Array:
            z = self.shape.link.total(prior.log_weights, [c.log_density for c in contributions])
            return jnp.where(mask, self.shape.link.log_density(z), 0.0).sum()

        batch = over_blocks(log_density, contributions, mask) / self.expected_batch_size
        public = self.guide.entropy_bound(state.params, _eta_key(state)) / self.num_records
        return -(batch + public)


def _by_block(local: Callable[[jax.Array], Sequence[Contribution]], indices: jax.Array) -> Contributions:
    """What `local` gives for a batch's records [n]; by the number of a block where they come in blocks [b, n]."""
    return local(indices) if indices.ndim == 1 else lambda number: local(indices[number])


def _eta_key(state: DPVIState) -> jax.Array:
    return jax.random.fold_in(state.rng_key, 0)


def _next_key(state: DPVIState) -> jax.Array:
    return jax.random.fold_in(state.rng_key, 1)
