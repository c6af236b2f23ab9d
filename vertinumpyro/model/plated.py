"""Which latents have an axis of length K whose slice k moves component k only: their scores stay [n, K, d]."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from vertinumpyro.model.contract import ModelStructure
from vertinumpyro.model.stand_in_runs import Arrays, StandInRuns

__all__ = ["plated_sites"]

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
