"""Mirror descent on a tree of many cliques, as a program that does not grow with them.

The engine compiles an oracle with a few operations for each message and a loss with a few for each table: two minutes
at a hundred columns. The descent is that of few columns, step sizes and line search included; what it is given is
other: one vector with the cells of all cliques, as `tree_layout` lays them out, in the place of a factor for each;
an oracle that passes all messages of one distance from the root at once; and a loss that reads all tables together.
The layout travels where the engine takes structure for its oracle (`constraints`), as arguments of the program rather
than constants in it, so that layouts of equal shapes are compiled once.

Upwards messages are logarithms of sums, as the engine's are; downwards, every row holds probabilities given its place
in the parent's table, so that only products and sums of numbers from 0 to N are left.

A clique tree laid out in a few arrays, so that one program passes all its messages, however many cliques it has.

A clique's table is a matrix: a row for each cell of what it shares with its parent, as wide as the rest has cells.
Rows of like width (up to the next power of two) that are equally far from the root stand in one array, and the arrays
of neighbouring distances are stacked, padded to the largest; so messages are a scan over the stack. What cliques with
the same parent share with it, if it is the same, is one place where their messages meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.mrf.factor_engine import JunctionTree
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.mirror_descent import mirror_descent
from vertinumpyro.mrf.triangulation import CliqueTree, Columns, clique_tree

_LEAST_WIDTH = 8
_MORE_CELLS = 1.3  # times as many, for fewer arrays: each is a dozen operations in every step
_MOST_GATHERED = 4  # times the cells to be added
_MOST_PADDING = 8  # times the cells of all rows
_MOST_RUNS = 4  # of distances with a stack of their own: each is compiled

Shapes = Mapping[int, int]
"""Rows by their width."""


@final
class Block(NamedTuple):
    """Rows of one width in a stack.

    :ivar up: where each row's message goes, int32 `[steps, rows]`; beyond the places for what is padded.
    :ivar down: the places whose messages a cell gets, int32 `[steps, most, rows, width]`; beyond them where it gets
        none.
    :ivar inside: whether a cell is one, bool `[steps, rows, width]`.
    :ivar fed: the places of `down`, each once, int32 `[steps, fed]`.
    :ivar sources: which cells of a step's rows add up to each of them, int32 `[steps, fed, most cells]`; sums of what
        is gathered take a tenth of the time of adding each cell to its place. None where so few cells belong to each
        that they are padded to many more.
    """

    up: Any
    down: Any
    inside: Any
    fed: Any
    sources: Any


Stack = tuple[Block, ...]


@final
class Layout(NamedTuple):
    """The arrays of a tree.

    :ivar stacks: nearest to the root first, and so are the steps of each.
    :ivar cells: for each clique, where its cells stand in the flat vector of all blocks; one axis for each column.
    :ivar num_places: where messages meet; the first is the root's, whose message is the whole mass.
    :ivar length: of the flat vector; its last cell is none.
    """

    stacks: tuple[Stack, ...]
    cells: tuple[np.ndarray, ...]
    num_places: int
    length: int


def layout_tree(sizes: Mapping[str, int], tree: CliqueTree) -> Layout:
    """The layout of a tree; NumPy arrays."""
    ups, downs, num_places = _meeting_places(sizes, tree)
    shapes = [_shape(sizes, tree, place) for place in range(len(tree.cliques))]
    distance = [0] * len(shapes)
    for place, parent in enumerate(tree.parents[1:], 1):
        distance[place] = distance[parent] + 1
    levels: list[list[int]] = [[] for _ in range(max(distance) + 1)]
    for place, far in enumerate(distance):
        levels[far].append(place)
    cells: list[np.ndarray] = [np.zeros(0, np.int64)] * len(shapes)
    stacks, start = [], 0
    for first, last in _runs([_rows_by_width(shapes, level) for level in levels]):
        stack = []
        for widths in _kinds([_rows_by_width(shapes, level) for level in levels[first:last]]):
            inside = [[place for place in level if shapes[place][2] in widths] for level in levels[first:last]]
            width = max(widths)
            block, size = _block(inside, width, shapes, ups, downs, num_places, cells, start)
            stack.append(block)
            start += size
        stacks.append(tuple(stack))
    cells = [_in_own_order(sizes, tree, place, cells[place]) for place in range(len(shapes))]
    return Layout(tuple(stacks), tuple(cells), num_places, start + 1)


def _block(
    levels: Sequence[Sequence[int]],
    width: int,
    shapes: Sequence[tuple[int, int, int]],
    ups: Sequence[np.ndarray],
    downs: Sequence[Sequence[np.ndarray]],
    num_places: int,
    cells: list[np.ndarray],
    start: int,
) -> tuple[Block, int]:
    """Rows of one width; notes where their cells are."""
    rows = max(sum(shapes[place][0] for place in level) for level in levels)
    most = max((len(downs[place]) for level in levels for place in level), default=0)
    nowhere = num_places + 1
    up = np.full((len(levels), rows), nowhere, np.int32)
    down = np.full((len(levels), most, rows, width), nowhere, np.int32)
    inside = np.zeros((len(levels), rows, width), bool)
    flat = np.arange(start, start + inside.size).reshape(inside.shape)
    fed: list[list[tuple[np.ndarray, np.ndarray]]] = []
    for level in levels:
        fed.append([])
        step, row = len(fed) - 1, 0
        for place in level:
            count, wide, _ = shapes[place]
            own = (step, slice(row, row + count), slice(0, wide))
            up[step, row : row + count] = ups[place]
            inside[own] = True
            for k, targets in enumerate(downs[place]):
                down[(step, k, *own[1:])] = targets.reshape(count, wide)
                fed[-1].append(_sources(targets, (flat[own] - flat[step, 0, 0]).ravel()))
            cells[place] = flat[own]
            row += count
    return Block(
        up, down, inside, *_padded_sources(fed, rows * width, nowhere, _MOST_GATHERED * down.size)
    ), inside.size


def _sources(targets: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places, and for each as many cells."""
    places = np.unique(targets)
    return places, cells[np.argsort(targets, kind="stable")].reshape(len(places), -1)


def _padded_sources(
    fed: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], no_cell: int, nowhere: int, most: int
) -> tuple[np.ndarray, np.ndarray | None]:
    number = max(sum(len(places) for places, _ in step) for step in fed)
    width = max((cells.shape[1] for step in fed for _, cells in step), default=0)
    if number * width * len(fed) > most:
        return np.zeros((len(fed), 0), np.int32), None
    places = np.full((len(fed), number), nowhere, np.int32)
    sources = np.full((len(fed), number, width), no_cell, np.int32)
    for i, step in enumerate(fed):
        start = 0
        for own, cells in step:
            places[i, start : start + len(own)] = own
            sources[i, start : start + len(own), : cells.shape[1]] = cells
            start += len(own)
    return places, sources


def _shape(sizes: Mapping[str, int], tree: CliqueTree, place: int) -> tuple[int, int, int]:
    """Rows, their width, and that width padded."""
    rows = math.prod(sizes[name] for name in tree.separator(place))
    width = math.prod(sizes[name] for name in tree.cliques[place]) // rows
    return rows, width, max(_LEAST_WIDTH, 1 << (width - 1).bit_length())


def _meeting_places(sizes: Mapping[str, int], tree: CliqueTree) -> tuple[list[np.ndarray], list[list[np.ndarray]], int]:
    """For each clique, where its rows' messages go, and of each set of columns that children share, its cells'."""
    known: dict[tuple[int, Columns], np.ndarray] = {}
    downs: list[list[np.ndarray]] = [[] for _ in tree.cliques]
    ups, count = [], 0
    for place, parent in enumerate(tree.parents):
        shared = tree.separator(place)
        if (parent, shared) not in known:
            number = math.prod(sizes[name] for name in shared)
            known[parent, shared] = np.arange(count, count + number)
            count += number
            if parent >= 0:
                table = known[parent, shared].reshape([sizes[name] for name in shared])
                above = _rows_first(tree, parent)
                axes = [sizes[name] if name in shared else 1 for name in above]
                order = [name for name in above if name in shared]
                table = np.transpose(table, [shared.index(name) for name in order]).reshape(axes)
                downs[parent].append(np.broadcast_to(table, [sizes[name] for name in above]).ravel())
        ups.append(known[parent, shared])
    return ups, downs, count


def _rows_first(tree: CliqueTree, place: int) -> Columns:
    """A clique's columns, what it shares with its parent before the rest."""
    shared = tree.separator(place)
    return (*shared, *(name for name in tree.cliques[place] if name not in shared))


def _in_own_order(sizes: Mapping[str, int], tree: CliqueTree, place: int, cells: np.ndarray) -> np.ndarray:
    names = _rows_first(tree, place)
    table = cells.reshape([sizes[name] for name in names])
    return np.transpose(table, [names.index(name) for name in tree.cliques[place]])


def _rows_by_width(shapes: Sequence[tuple[int, int, int]], level: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for place in level:
        rows, _, width = shapes[place]
        found[width] = found.get(width, 0) + rows
    return found


def _runs(levels: Sequence[Shapes]) -> list[tuple[int, int]]:
    """Which distances are stacked: neighbours together, as long as that adds least, until few stacks are left.

    Where few would be much larger than what is in them, as large cliques are at many distances, there are more.
    """
    runs = [(i, i + 1, dict(shape)) for i, shape in enumerate(levels)]
    most = _MOST_PADDING * sum(map(_cost, runs))
    while len(runs) > 1:
        added = [_cost(_joined(a, b)) - _cost(a) - _cost(b) for a, b in itertools.pairwise(runs)]
        best = int(np.argmin(added))
        total = sum(map(_cost, runs)) + added[best]
        if total > most or (len(runs) <= _MOST_RUNS and 10 * added[best] > total):
            break
        runs[best : best + 2] = [_joined(runs[best], runs[best + 1])]
    return [(first, last) for first, last, _ in runs]


def _kinds(levels: Sequence[Shapes]) -> list[list[int]]:
    """Widths that stand in one array, padded to the largest: neighbours, where that takes hardly more cells."""
    kinds = [[width] for width in sorted({width for shape in levels for width in shape})]

    def cells(kind: Sequence[int]) -> int:
        return max(kind) * max(sum(shape.get(width, 0) for width in kind) for shape in levels)

    place = 0
    while place + 1 < len(kinds):
        together = [*kinds[place], *kinds[place + 1]]
        if cells(together) <= _MORE_CELLS * (cells(kinds[place]) + cells(kinds[place + 1])):
            kinds[place : place + 2] = [together]
            place = max(place - 1, 0)
        else:
            place += 1
    return kinds


def _joined(one: tuple[int, int, Shapes], two: tuple[int, int, Shapes]) -> tuple[int, int, dict[int, int]]:
    widths = {*one[2], *two[2]}
    return one[0], two[1], {width: max(one[2].get(width, 0), two[2].get(width, 0)) for width in widths}


def _cost(run: tuple[int, int, Shapes]) -> int:
    return (run[1] - run[0]) * sum(rows * width for width, rows in run[2].items())


def locate(layout: Layout, tree: CliqueTree, place: int, columns: Sequence[str]) -> np.ndarray:
    """Where the cells are that add up to each cell of a clique's margin: int64 `[cells of the margin, the rest]`."""
    clique = tree.cliques[place]
    rest = [i for i, name in enumerate(clique) if name not in columns]
    table = np.transpose(layout.cells[place], [*(clique.index(name) for name in columns), *rest])
    return table.reshape(math.prod(table.shape[: len(columns)]), -1)


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

    :param mbi: the engine.
    :param sizes: cells of every column.
    :param measurements: released tables, of which each lies within a clique.
    :param num_records: N.
    """

    def __init__(
        self, mbi: ModuleType, sizes: Mapping[str, int], measurements: Sequence[Measurement], num_records: float
    ) -> None:
        self._mbi, self._sizes, self._num_records = mbi, sizes, num_records
        self._measurements = tuple(measurements)
        self.tree = clique_tree(sizes, [m.columns for m in measurements])
        self.layout = layout_tree(sizes, self.tree)
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
            start[locate(self.layout, self.tree, place, m.columns)] += np.log(np.maximum(m.values, 1.0))[:, None]
        factor = self._mbi.Factor(self._domain, jnp.asarray(start))
        return self._mbi.CliqueVector(self._domain, ((_CELLS,),), {(_CELLS,): factor})

    def descend(self, loss: Any, model: Any, steps: int) -> Any:
        """The engine's model, so many steps further."""
        return mirror_descent(
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

    :param potentials: logarithms, up to a constant; zero in what is no cell.
    :param total: N.
    :param constraints: the layout.
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
    return locate(layout, tree, smallest, m.columns).astype(np.int32)


def _lipschitz(mbi: ModuleType, sizes: Mapping[str, int], measurements: Sequence[Measurement]) -> float:
    """The engine's own, from which its first step size follows."""
    domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
    single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measurements]
    return mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(domain, single)
