"""A clique tree laid out in a few arrays, so that one program passes all its messages, however many cliques it has.

A clique's table is a matrix: a row for each cell of what it shares with its parent, as wide as the rest has cells.
Rows of like width (up to the next power of two) that are equally far from the root stand in one array, and the arrays
of neighbouring distances are stacked, padded to the largest; so messages are a scan over the stack. What cliques with
the same parent share with it, if it is the same, is one place where their messages meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.mrf.triangulation import CliqueTree, Columns

__all__ = ["Block", "Layout", "Stack", "laid_out", "places_in"]

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

    Attributes:
        up: where each row's message goes, int32 `[steps, rows]`; beyond the places for what is padded.
        down: the places whose messages a cell gets, int32 `[steps, most, rows, width]`; beyond them where it gets none.
        inside: whether a cell is one, bool `[steps, rows, width]`.
        fed: the places of `down`, each once, int32 `[steps, fed]`.
        sources: which cells of a step's rows add up to each of them, int32 `[steps, fed, most cells]`; sums of what is
            gathered take a tenth of the time of adding each cell to its place. None where so few cells belong to
            each that they are padded to many more.
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

    Attributes:
        stacks: nearest to the root first, and so are the steps of each.
        cells: for each clique, where its cells stand in the flat vector of all blocks; one axis for each column.
        num_places: where messages meet; the first is the root's, whose message is the whole mass.
        length: of the flat vector; its last cell is none.
    """

    stacks: tuple[Stack, ...]
    cells: tuple[np.ndarray, ...]
    num_places: int
    length: int


def laid_out(sizes: Mapping[str, int], tree: CliqueTree) -> Layout:
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


def places_in(layout: Layout, tree: CliqueTree, place: int, columns: Sequence[str]) -> np.ndarray:
    """Where the cells are that add up to each cell of a clique's margin: int64 `[cells of the margin, the rest]`."""
    clique = tree.cliques[place]
    rest = [i for i, name in enumerate(clique) if name not in columns]
    table = np.transpose(layout.cells[place], [*(clique.index(name) for name in columns), *rest])
    return table.reshape(math.prod(table.shape[: len(columns)]), -1)
