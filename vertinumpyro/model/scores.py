"""One party's part of the log density and its scores, vectorised over a batch: which of its sites share no latent,
which are functions of one finite column, and which latents have an axis along the components, so that scores stay [n,
K, d].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vertinumpyro.core.types import Contribution, ScoreTable, Theta
from vertinumpyro.data import Schema
from vertinumpyro.model.contract import ModelStructure
from vertinumpyro.model.dummy_data import Arrays, StandInRuns

_LARGEST_TABLE = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteGroup:
    """Observed sites of one party that no other group shares a latent with.

    sites:      their names.
    latents:    the latents that they read.
    column:     the one finite column that they read, or None.
    num_values: size of that column's domain.
    """

    sites: tuple[str, ...]
    latents: tuple[str, ...]
    column: str | None
    num_values: int

    @property
    def is_table(self) -> bool:
        """Whether the group is a function of one finite column."""
        return self.column is not None

    def rows(self, columns: Mapping[str, Any]) -> tuple[Mapping[str, Any], Int[Array, " n"]]:
        """Columns to evaluate the group on, and each record's row among them.

        The domain's values where they are fewer than the batch, else the records themselves.
        """
        num_records = len(next(iter(columns.values())))
        if self.column is None or num_records <= self.num_values:
            return columns, jnp.arange(num_records)
        codes = columns[self.column]
        return {self.column: jnp.arange(self.num_values, dtype=codes.dtype)}, codes


def site_groups(
    sites: Sequence[str],
    latent_reads: Mapping[str, Sequence[str]],
    data_reads: Mapping[str, Sequence[str]],
    schema: Schema,
) -> tuple[SiteGroup, ...]:
    """Connected components of sites under "reads a common latent", in the order of their first site, tables last."""
    groups: list[tuple[list[str], set[str]]] = []
    for site in sites:
        latents = set(latent_reads[site])
        joined = [group for group in groups if group[1] & latents]
        groups = [group for group in groups if not group[1] & latents]
        members = [name for group in joined for name in group[0]]
        groups.append(([*members, site], latents.union(*(group[1] for group in joined))))
    groups.sort(key=lambda group: min(sites.index(name) for name in group[0]))
    found = [_group(members, latents, data_reads, schema) for members, latents in groups]
    return tuple(sorted(found, key=lambda group: group.is_table))


def _group(members: list[str], latents: set[str], data_reads: Mapping[str, Sequence[str]], schema: Schema) -> SiteGroup:
    read = sorted({column for site in members for column in data_reads[site]})
    column = schema.columns.get(read[0]) if len(read) == 1 else None
    finite = column is not None and column.kind in ("categorical", "binary")
    num_values = column.num_categories if column is not None and finite else 0
    is_table = 0 < num_values <= _LARGEST_TABLE
    return SiteGroup(
        sites=tuple(members),
        latents=tuple(sorted(latents)),
        column=read[0] if is_table else None,
        num_values=num_values,
    )


LogDensity = Callable[[Theta, Mapping[str, Any]], Float[Array, " K"]]
"""log density of one record's columns at one party under each component, given the latents."""


def contribution(
    log_density: LogDensity,
    theta: Theta,
    plated: Mapping[str, int],
    shared: tuple[str, ...],
    columns: Mapping[str, Any],
) -> Contribution:
    """The party's log densities [n, K] and scores [n, K, d], [n, K, s] on a batch of its own columns.

    A component-plated parameter theta_k enters l_nk only, so one reverse pass over sum_k l_nk gives the
    scores of all components at once: [n, K, d] and never the [n, K, K d] Jacobian. If a parameter were
    wrongly called plated, the scores would be another vector than the gradient, but clip and noise would
    still be computed from the very vector that is released, so privacy never rests on this structure.

    :param plated: sites with one slice per component, and the axis of the component in each.
    :param shared: sites that several components read.
    :param columns: the party's columns, each [n].
    """
    plated_theta = {name: theta[name] for name in plated}
    shared_theta = {name: theta[name] for name in shared}

    def of_record(row: Mapping[str, jax.Array]) -> Contribution:
        def summed(plated_theta: Theta) -> tuple[jax.Array, jax.Array]:
            values = log_density({**theta, **plated_theta}, row)
            return values.sum(), values

        def of_shared(shared_theta: Theta) -> jax.Array:
            return log_density({**theta, **shared_theta}, row)

        gradients, values = jax.grad(summed, has_aux=True)(plated_theta)
        jacobians = jax.jacrev(of_shared)(shared_theta) if shared else {}
        num_components = values.shape[0]
        plated_rows = [
            jnp.moveaxis(gradients[name], axis, 0).reshape(num_components, -1) for name, axis in plated.items()
        ]
        shared_rows = [jacobians[name].reshape(num_components, -1) for name in shared]
        return Contribution(values, _concatenate(plated_rows, values), _concatenate(shared_rows, values))

    return jax.vmap(of_record)(columns)


def empty(num_records: int, num_components: int, dtype: Any) -> Contribution:
    """The contribution of no site at all."""
    zeros = jnp.zeros((num_records, num_components), dtype)
    return Contribution(zeros, zeros[..., None][..., :0], zeros[..., None][..., :0])


def looked_up(rows: Contribution, codes: Int[Array, " n"]) -> Contribution:
    """The records' contribution from one that was evaluated on a column's values; plated scores stay a table."""
    nothing = rows.plated_scores[..., :0][codes]
    table = ScoreTable(rows.plated_scores, codes)
    return Contribution(rows.log_density[codes], nothing, rows.shared_scores[codes], (table,))


def combined(groups: Sequence[Contribution]) -> Contribution:
    """The contribution of all groups together: log densities add up, scores stand side by side."""
    return Contribution(
        sum((group.log_density for group in groups[1:]), start=groups[0].log_density),
        jnp.concatenate([group.plated_scores for group in groups], axis=-1),
        jnp.concatenate([group.shared_scores for group in groups], axis=-1),
        tuple(table for group in groups for table in group.tables),
    )


def _concatenate(blocks: list[jax.Array], like: jax.Array) -> jax.Array:
    """Blocks [K, d_i] side by side; [K, 0] where there are none."""
    return jnp.concatenate([jnp.zeros((like.shape[0], 0), like.dtype), *blocks], axis=-1)


_SEEDS = (0, 1)


def plated_sites(
    runs: StandInRuns, structure: ModelStructure, read: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, int]]:
    """For each party, the component-plated latents among those that it reads, and the axis of the component.

    Found by changing the slices of some components at random parameters and stand-in records, public numbers all, and
    looking for another component whose log density changes.
    """
    probes = [_Probe.create(runs, structure, seed) for seed in _SEEDS]
    axes = {
        name: [axis for axis, size in enumerate(shape) if size == structure.num_components]
        for name, shape in structure.latents.items()
    }
    # Nearly always every first such axis is the component's, which one change of all of them together tells.
    first = {name: found[0] for name, found in axes.items() if found}
    all_plated = set(read).intersection(*(probe.unmoved_parties(first) for probe in probes))

    @functools.cache
    def parties_with(name: str, axis: int) -> set[str]:
        return set(read).intersection(*(probe.unmoved_parties({name: axis}) for probe in probes))

    def axis_at(party: str, name: str) -> int | None:
        if party in all_plated:
            return first.get(name)
        return next((axis for axis in axes[name] if party in parties_with(name, axis)), None)

    found = {party: {name: axis_at(party, name) for name in names} for party, names in read.items()}
    return {party: {n: axis for n, axis in at.items() if axis is not None} for party, at in found.items()}


@dataclasses.dataclass(frozen=True)
class _Probe:
    """The parties' log densities at random parameters, and a second set of parameters to take slices from."""

    runs: StandInRuns
    sites: Mapping[str, Sequence[str]]
    columns: Arrays
    theta: Arrays
    other: Arrays
    baseline: Arrays

    @classmethod
    def create(cls, runs: StandInRuns, structure: ModelStructure, seed: int) -> _Probe:
        columns, theta, other = runs.columns(seed), runs.theta(2 * seed), runs.theta(2 * seed + 1)
        return cls(runs, structure.party_sites, columns, theta, other, runs.alone(theta, columns))

    def unmoved_parties(self, axes: Mapping[str, int]) -> set[str]:
        """Parties at which slice k of these latents moves component k alone, for every k."""
        unmoved = set(self.sites)
        for chosen in _separating(self.runs.num_components):
            changed = {name: self._with_other_slices(name, axis, chosen) for name, axis in axes.items()}
            moved = set(self._moved(self.runs.alone({**self.theta, **changed}, self.columns), ~chosen))
            unmoved = {party for party in unmoved if not moved.intersection(self.sites[party])}
        return unmoved

    def _with_other_slices(self, name: str, axis: int, chosen: np.ndarray) -> np.ndarray:
        changed = np.moveaxis(self.theta[name].copy(), axis, 0)
        changed[chosen] = np.moveaxis(self.other[name], axis, 0)[chosen]
        return np.moveaxis(changed, 0, axis)

    def _moved(self, log_densities: Arrays, others: np.ndarray) -> Iterable[str]:
        """Sites of which another component has changed, however little."""
        for name, before in self.baseline.items():
            if not np.array_equal(log_densities[name][others], before[others]):
                yield name


def _separating(num_components: int) -> Iterator[np.ndarray]:
    """Sets of components, bool [K] each, so that of any two one set has the first alone: 2 log2 K of them."""
    numbers = np.arange(num_components)
    for bit in range((num_components - 1).bit_length()):
        has_bit = (numbers >> bit) % 2 == 1
        yield from (has_bit, ~has_bit)
