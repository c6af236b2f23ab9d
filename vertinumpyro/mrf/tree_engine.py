"""Mirror descent on a tree of many cliques, as a program that does not grow with them.

The engine compiles an oracle with a few operations for each message and a loss with a few for each table: two minutes
at a hundred columns. The descent is that of few columns, step sizes and line search included; what it is given is
other: one vector with the cells of all cliques, as `tree_layout` lays them out, in the place of a factor for each;
an oracle that passes all messages of one distance from the root at once; and a loss that reads all tables together.
The layout travels where the engine takes structure for its oracle (`constraints`), as arguments of the program rather
than constants in it, so that layouts of equal shapes are compiled once.

Upwards messages are logarithms of sums, as the engine's are; downwards, every row holds probabilities given its place
in the parent's table, so that only products and sums of numbers from 0 to N are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.mrf.descent import descended
from vertinumpyro.mrf.junction_tree import JunctionTree
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.tree_layout import Block, Layout, Stack, laid_out, places_in
from vertinumpyro.mrf.triangulation import CliqueTree, clique_tree

__all__ = ["TreeEngine", "TreeIndex"]

_CELLS = "cells"  # the one attribute of the one clique that the engine sees


@final
class TreeIndex(NamedTuple):
    """What the oracle needs to know of a tree: its stacks, and as many zeros as there are places, and one."""

    stacks: tuple[Stack, ...]
    places: Any


@final
class _Tables(NamedTuple):
    """What the loss needs to know, tables of like width of sums together: where the parts of each cell's sum are."""

    parts: tuple[Any, ...]
    counts: tuple[Any, ...]
    weights: tuple[Any, ...]


@final
class TreeEngine:
    """Mirror descent for some tables on their clique tree.

    Args:
        mbi: the engine.
        sizes: cells of every column.
        measurements: released tables, of which each lies within a clique.
        num_records: N.
    """

    def __init__(
        self, mbi: ModuleType, sizes: Mapping[str, int], measurements: Sequence[Measurement], num_records: float
    ) -> None:
        self._mbi, self._sizes, self._num_records = mbi, sizes, num_records
        self._measurements = tuple(measurements)
        self.tree = clique_tree(sizes, [m.columns for m in measurements])
        self.layout = laid_out(sizes, self.tree)
        self._domain = mbi.Domain((_CELLS,), (self.layout.length,))
        self._index = jax.device_put(TreeIndex(self.layout.stacks, np.zeros(self.layout.num_places + 1)))
        self._homes = _homes(self.tree)
        self._parts = [_part(self.layout, self.tree, self._homes, m) for m in measurements]
        self._lipschitz = _lipschitz(mbi, sizes, measurements)

    def loss(self, measurements: Sequence[Measurement]) -> Any:
        """Weighted squares of tables of the same columns, with as much noise, as the engine's own, in their order."""
        tables = _gathered(self._parts, measurements, self.layout.length - 1)
        return self._mbi.MarginalLossFn(((_CELLS,),), _squares, jax.device_put(tables), self._lipschitz)

    def begin(self, loss: Any, singles: Sequence[Measurement]) -> Any:
        """Potentials of independent columns; at least one record in every cell, as no step leaves probability zero."""
        start = np.zeros(self.layout.length)
        known = {name for m in self._measurements for name in m.columns}
        for m in (m for m in singles if m.columns[0] in known):
            place = min(self._homes[m.columns[0]], key=lambda place: self.layout.cells[place].size)
            start[places_in(self.layout, self.tree, place, m.columns)] += np.log(np.maximum(m.values, 1.0))[:, None]
        factor = self._mbi.Factor(self._domain, jnp.asarray(start))
        return self._mbi.CliqueVector(self._domain, ((_CELLS,),), {(_CELLS,): factor})

    def descend(self, loss: Any, model: Any, steps: int) -> Any:
        """The engine's model, so many steps further."""
        return descended(
            self._mbi,
            self._domain,
            loss,
            model,
            steps,
            self._num_records,
            oracle=tree_marginals,
            constraints=(self._index,),
        )

    def fitted(self, model: Any, count: int) -> list[np.ndarray]:
        """The model's counts of the first tables."""
        cells = self._cells(model)
        pairs = zip(self._measurements[:count], self._parts, strict=False)
        return [cells[part].sum(axis=1).reshape(m.values.shape) for m, part in pairs]

    def field(self, model: Any) -> tuple[tuple[tuple[str, ...], ...], tuple[np.ndarray, ...], JunctionTree]:
        """Maximal cliques, root first, each one's distribution, and what has margins that no clique has."""
        cells = np.maximum(self._cells(model), 0.0)
        tables = tuple(cells[places] / cells[places].sum() for places in self.layout.cells)
        return self.tree.cliques, tables, JunctionTree(self.tree.cliques, tables)

    def _cells(self, model: Any) -> np.ndarray:
        return np.asarray(model.marginals[(_CELLS,)].values, np.float64)


@jax.jit
def tree_marginals(potentials: Any, total: Any = 1.0, *, constraints: Sequence[TreeIndex]) -> Any:
    """The marginals of all cliques: an oracle of the engine's, for vectors in a `Layout`.

    Args:
        potentials: logarithms, up to a constant; zero in what is no cell.
        total: N.
        constraints: the layout.
    """
    (index,) = constraints
    ((clique, factor),) = potentials.tables.items()
    blocks = _split(factor.values, index.stacks)
    given = _upwards(blocks, index)
    cells = jnp.concatenate([*_downwards(given, index, total), jnp.zeros(1)])
    return type(potentials)(potentials.domain, potentials.cliques, {clique: type(factor)(factor.domain, cells)})


def _split(values: Any, stacks: Sequence[Stack]) -> list[list[Any]]:
    found, start = [], 0
    for stack in stacks:
        found.append([])
        for block in stack:
            size = block.inside.size
            found[-1].append(values[start : start + size].reshape(block.inside.shape))
            start += size
    return found


def _upwards(blocks: Sequence[Sequence[Any]], index: TreeIndex) -> list[Any]:
    """Every row's probabilities given its place in the parent, from the leaves on."""
    messages, found = index.places, []
    for stack, values in zip(reversed(index.stacks), reversed(blocks), strict=True):
        messages, given = jax.lax.scan(_step_up, messages, (stack, values), reverse=True)
        found.append(given)
    return found[::-1]


def _step_up(messages: Any, step: tuple[Sequence[Block], Sequence[Any]]) -> tuple[Any, list[Any]]:
    """No place is both read and written in a step: so that the messages need not be copied, there is one of them."""
    given = []
    for block, values in zip(*step, strict=True):
        for places in block.down:
            values = values + messages.at[places].get(mode="clip")
        values = jnp.where(block.inside, values, -jnp.inf)
        largest = jnp.max(values, axis=-1, keepdims=True)
        largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
        weights = jnp.exp(values - largest)
        mass = weights.sum(axis=-1, keepdims=True)
        mass = jnp.where(mass > 0, mass, 1.0)  # what is padded has none
        given.append(weights / mass)
        messages = messages.at[block.up].add((largest + jnp.log(mass))[..., 0], mode="drop")
    return messages, given


def _downwards(given: Sequence[Any], index: TreeIndex, total: Any) -> list[Any]:
    """Every cell's mass, from the root on, flat."""
    masses, found = index.places.at[0].set(total), []
    for stack, values in zip(index.stacks, given, strict=True):
        masses, cells = jax.lax.scan(_step_down, masses, (stack, values))
        found += [block.ravel() for block in cells]
    return found


def _step_down(masses: Any, step: tuple[Sequence[Block], Sequence[Any]]) -> tuple[Any, list[Any]]:
    found = []
    for block, values in zip(*step, strict=True):
        cells = values * masses.at[block.up].get(mode="clip")[..., None]
        if block.sources is None:
            for places in block.down:
                masses = masses.at[places].add(cells, mode="drop")
        else:
            padded = jnp.append(cells.ravel(), 0.0)
            masses = masses.at[block.fed].set(padded[block.sources].sum(axis=-1), mode="drop")
        found.append(cells)
    return masses, found


def _squares(marginals: Any, tables: _Tables) -> Any:
    ((_, factor),) = marginals.tables.items()
    loss = 0.0
    for parts, counts, weights in zip(*tables, strict=True):
        loss += 0.5 * jnp.sum((weights * (factor.values[parts].sum(axis=-1) - counts)) ** 2)
    return loss


def _gathered(parts: Sequence[np.ndarray], measurements: Sequence[Measurement], nowhere: int) -> _Tables:
    """Tables of like width of sums together, padded with what is no cell."""
    by_width: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        by_width.setdefault(1 << (part.shape[1] - 1).bit_length(), []).append(i)
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for width, places in sorted(by_width.items()):
        padded = [np.pad(parts[i], ((0, 0), (0, width - parts[i].shape[1])), constant_values=nowhere) for i in places]
        found[0].append(np.concatenate(padded))
        found[1].append(np.concatenate([measurements[i].values.ravel() for i in places]))
        found[2].append(np.concatenate([np.full(parts[i].shape[0], 1 / measurements[i].stddev) for i in places]))
    return _Tables(*(tuple(arrays) for arrays in found))


def _homes(tree: CliqueTree) -> dict[str, dict[int, None]]:
    """The cliques that have each column."""
    found: dict[str, dict[int, None]] = {}
    for place, clique in enumerate(tree.cliques):
        for name in clique:
            found.setdefault(name, {})[place] = None
    return found


def _part(layout: Layout, tree: CliqueTree, homes: Mapping[str, Mapping[int, None]], m: Measurement) -> np.ndarray:
    """Where a table's cells are in the smallest clique that has its columns."""
    rarest = min(m.columns, key=lambda name: len(homes[name]))
    fitting = [place for place in homes[rarest] if set(m.columns) <= set(tree.cliques[place])]
    smallest = min(fitting, key=lambda place: layout.cells[place].size)
    return places_in(layout, tree, smallest, m.columns).astype(np.int32)


def _lipschitz(mbi: ModuleType, sizes: Mapping[str, int], measurements: Sequence[Measurement]) -> float:
    """The engine's own, from which its first step size follows."""
    domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
    single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measurements]
    return mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(domain, single)
