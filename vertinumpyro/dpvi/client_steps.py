"""What holders of whole records compute in a step of DPVI: sums of their records' clipped gradients, in integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.work import state_leaves, state_of
from vertinumpyro.posterior.columns import Columns, device_columns
from vertinumpyro.privacy import Batches, ClientPlan
from vertinumpyro.secure import BatchShape
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.fixed_point import Encoded, encoded, ring_sum
from vertinumpyro.session import Payload, Work

__all__ = ["ClientSteps", "HolderWork"]

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
class HolderWork(Work):
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

    def check(self, step: int | None, do: str, what: str, words: Mapping[str, Any]) -> None:
        """Refuses everything: steps are iterated, and the holder's ledger counts them."""
        raise self.refused(step, do, what)

    def iterate(self, end: PartyProtocol, batches: Batches, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `Work.iterate`: the state's leaves, and the norm of every released gradient."""
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
