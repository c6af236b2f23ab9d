"""DPVI at one party: its scores on a batch, and the update that all parties make alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, ring
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import Factor
from vertinumpyro.data import DatasetInfo
from vertinumpyro.data.table import model_units
from vertinumpyro.dpvi.posterior import state_leaves, state_of
from vertinumpyro.dpvi.training_loop import DPVIState, Kernel
from vertinumpyro.model.contract import stand_in_columns
from vertinumpyro.privacy import Batches, GradientPlan
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_encoding import Layout, encode_party, encode_prior
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.session import Multiply, PartyComputation, Payload, Publish, ReleaseRequest, Sum


@final
class StepsWork(PartyComputation):
    """One party's part of the steps, after its part of what they start from. In one process the jitted scan takes the
    steps' place.

    :param kernel: makes the kernel and its first state, when the first steps come.
    :param facts: schema and N.
    :param party: whose part this is.
    :param columns: its encoded columns [N]. Secret.
    :param start: its part of `plan.start`.
    """

    def __init__(
        self,
        kernel: Callable[[], tuple[Kernel, DPVIState]],
        facts: DatasetInfo,
        party: str,
        columns: Mapping[str, np.ndarray],
        plan: GradientPlan,
        source: RandomSource,
        start: PartyComputation | None = None,
    ) -> None:
        self._start = start
        self._kernel, self._facts, self._party, self._columns = kernel, facts, party, columns
        self._plan, self._source = plan, source
        self._steps: _PartyStep | None = None

    def check(self, request: ReleaseRequest) -> None:
        """Refuses everything but the start's: steps are iterated, and the party's ledger counts them."""
        if self._start is None:
            raise request.refused()
        self._start.check(request)

    def publish(self, request: Publish) -> Payload:
        return self._of_start(request).publish(request)

    def factor(self, request: Multiply) -> Factor:
        return self._of_start(request).factor(request)

    def widths(self, request: Multiply) -> tuple[int, ...]:
        return self._of_start(request).widths(request)

    def input_form(self, request: Multiply) -> InputForm | None:
        return self._of_start(request).input_form(request)

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        return self._of_start(request).noise(request, size)

    def opened(self, request: Multiply | Sum, values: np.ndarray) -> None:
        self._of_start(request).opened(request, values)

    def _of_start(self, request: ReleaseRequest) -> PartyComputation:
        if self._start is None:
            raise NotImplementedError(request.name)
        return self._start

    def iterate(self, end: PartyProtocol, batches: Batches, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `PartyComputation.iterate`: the state's leaves, and the norm of every released gradient."""
        if self._steps is None:
            self._steps = _PartyStep(*self._kernel(), self._party, self._columns, self._facts)
        if arrays:
            self._steps.state = state_of(self._steps.state, arrays)
        num_values = self._steps.kernel.guide.split.num_values
        noise = self._plan.draw_noise_share(num_values, len(batches.mask), self._source)
        norms = [
            self._steps.step(end, indices, mask, share, self._plan.grid_bits)
            for indices, mask, share in zip(batches.indices, batches.mask, noise, strict=True)
        ]
        return Payload({}, {"released_norm": np.asarray(norms), **state_leaves(self._steps.state)})


class _PartyStep:
    """The compiled halves of a step at one party."""

    def __init__(
        self, kernel: Kernel, first: DPVIState, party: str, columns: Mapping[str, np.ndarray], facts: DatasetInfo
    ) -> None:
        self.kernel, self.state = kernel, first
        self._columns = {name: jnp.asarray(model_units(column)) for name, column in columns.items()}
        self._layout = release_layout(kernel, first, facts)
        self._local = jax.jit(partial(kernel.local_of, party))
        self._prior = jax.jit(kernel.component_prior)
        self._update = jax.jit(kernel.update)

    def step(
        self, end: PartyProtocol, indices: np.ndarray, mask: np.ndarray, noise_share: np.ndarray, grid_bits: int
    ) -> float:
        """One release; the norm of the noisy gradient."""
        prior, shape = self._prior(self.state), self.kernel.shape
        own = (
            encode_party(shape, self._local(self.state, self._columns, rows), end.rank)
            for rows in shape.blocks(indices)
        )
        common = encode_prior(shape, prior)
        summed = end.clipped_noisy_sum(shape, self._layout, own, common, np.asarray(shape.blocks(mask)), noise_share)
        with compat.x64():
            released = np.asarray(ring.decode(jnp.asarray(summed), grid_bits))
        self.state, info = self._update(self.state, released.astype(prior.log_weights.dtype))
        return float(info.released_norm)


def release_layout(kernel: Kernel, state: DPVIState, facts: DatasetInfo) -> Layout:
    """The released vector's make-up, from the shapes of every party's columns."""
    columns = {
        party: {
            name: jax.ShapeDtypeStruct((facts.num_records,), jnp.asarray(column).dtype)
            for name, column in stand_in_columns(facts.schema.restrict(party), 1).items()
        }
        for party in facts.parties
    }
    indices = jax.ShapeDtypeStruct((kernel.shape.batch_size,), jnp.int32)
    contributions = jax.eval_shape(kernel.local, state, columns, indices)
    return Layout.of(contributions, jax.eval_shape(kernel.component_prior, state))
