"""Cliques of a triangulated graph of columns, and the tree that they form: in time that hardly grows with its columns.

The engine's own (`mbi.junction_tree`) compares every column with every clique at every step, and every clique with
every other: minutes at hundreds of columns. Here a column's cost is kept up to date as its neighbours change, by the
engine's rule, the cells of a column and its neighbours. Columns whose neighbours are all joined already come before
that, as they add nothing; so a chain, a star, or a star with chains keeps the tables that it has.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

_MOST_CHECKED = 8  # neighbours; more are hardly ever all joined, and looking would take their square

Columns = tuple[str, ...]


@final
class CliqueTree(NamedTuple):
    """Maximal cliques, root first.

    :ivar cliques: each with its columns in the order of the sizes that they come from.
    :ivar parents: place of an earlier clique that has all that this one shares with the earlier ones; -1 for the root.
    """

    cliques: tuple[Columns, ...]
    parents: tuple[int, ...]

    def separator(self, place: int) -> Columns:
        """What a clique shares with its parent, in its own order; nothing for the root."""
        if self.parents[place] < 0:
            return ()
        above = self.cliques[self.parents[place]]
        return tuple(name for name in self.cliques[place] if name in above)


def tree_cells(sizes: Mapping[str, int], sets: Sequence[Sequence[str]]) -> int:
    """Cells of all maximal cliques together."""
    return sum(_cells(sizes, clique) for clique in clique_tree(sizes, sets).cliques)


def clique_tree(sizes: Mapping[str, int], sets: Sequence[Sequence[str]]) -> CliqueTree:
    """The tree of a graph in which each of some sets of columns is joined.

    :param sizes: cells of every column; one that no set has is a clique of its own.
    :param sets: within each of which a clique lies.
    """
    steps = list(_eliminated(sizes, sets))
    place_of = {name: place for place, (name, _) in enumerate(steps)}
    above = [min((place_of[other] for other in others), default=-1) for _, others in steps]
    return _rooted(sizes, *_maximal(steps, above))


def _eliminated(sizes: Mapping[str, int], sets: Sequence[Sequence[str]]) -> Iterator[tuple[str, set[str]]]:
    """Columns one after the other, each with the neighbours that it has when it goes; these are joined then."""
    order = {name: place for place, name in enumerate(sizes)}
    near: dict[str, set[str]] = {name: set() for name in sizes}
    for names in sets:
        for name in names:
            near[name].update(names)
    for name, others in near.items():
        others.discard(name)
    cost = {name: sizes[name] * _cells(sizes, others) for name, others in near.items()}

    def rank(name: str) -> tuple[bool, int, int, str]:
        return (not _joined(near, name), cost[name], order[name], name)

    ranks = {name: rank(name) for name in sizes}
    heap = list(ranks.values())
    heapq.heapify(heap)
    while heap:
        found = heapq.heappop(heap)
        name = found[-1]
        if ranks.get(name) != found:
            continue
        del ranks[name]
        others = near.pop(name)
        for other in others:
            near[other].discard(name)
            cost[other] //= sizes[name]
        for one, two in itertools.combinations(others, 2):
            if two not in near[one]:
                near[one].add(two)
                near[two].add(one)
                cost[one] *= sizes[two]
                cost[two] *= sizes[one]
        for other in _touched(near, others):
            if ranks[other] != (fresh := rank(other)):
                ranks[other] = fresh
                heapq.heappush(heap, fresh)
        yield name, others


def _touched(near: Mapping[str, set[str]], others: set[str]) -> set[str]:
    """Whose rank may differ: the neighbours, and who has two of them as neighbours, which may be joined now."""
    if len(others) < 2:
        return others
    return others | {
        name for other in others if len(near[other]) <= 4 * _MOST_CHECKED for name in near[other] if name in near
    }


def _joined(near: Mapping[str, set[str]], name: str) -> bool:
    """Whether all neighbours are neighbours of each other."""
    others = near[name]
    if len(others) > _MOST_CHECKED:
        return False
    return all(two in near[one] for one, two in itertools.combinations(others, 2))


def _maximal(steps: Sequence[tuple[str, set[str]]], above: Sequence[int]) -> tuple[list[set[str]], list[list[int]]]:
    """The cliques that lie in no other, and each one's neighbours in the tree."""
    cliques = [{name, *others} for name, others in steps]
    kept = list(range(len(cliques)))  # a clique that lies in the one below it gives that its place
    for place, up in enumerate(above):
        if up >= 0 and cliques[up] < cliques[place] and kept[up] == up:
            kept[up] = place
    for place in range(len(kept)):
        while kept[kept[place]] != kept[place]:
            kept[place] = kept[kept[place]]
    number = {place: i for i, place in enumerate(dict.fromkeys(kept))}
    near: list[list[int]] = [[] for _ in number]
    roots = [number[kept[place]] for place, up in enumerate(above) if up < 0]
    links = [(number[kept[place]], number[kept[up]]) for place, up in enumerate(above) if up >= 0]
    for one, two in (*links, *itertools.pairwise(roots)):  # parts of a graph share nothing, and are joined by that
        if one != two:
            near[one].append(two)
            near[two].append(one)
    return [cliques[place] for place in number], near


def _rooted(sizes: Mapping[str, int], cliques: Sequence[set[str]], near: Sequence[Sequence[int]]) -> CliqueTree:
    """From the middle, and each clique as near to it as what it shares allows: so that the tree is not deep."""
    if not cliques:
        return CliqueTree((), ())
    for size in range(2):
        near = _joined_in_the_middle(cliques, near, size)
    order, up = _walk(near, _middle(near, 0))
    for place in order[1:]:
        shared = cliques[place] & cliques[up[place]]
        while up[up[place]] >= 0 and shared <= cliques[up[up[place]]]:
            up[place] = up[up[place]]
    number = {place: i for i, place in enumerate(order)}
    position = {name: i for i, name in enumerate(sizes)}
    named = tuple(tuple(sorted(cliques[place], key=position.__getitem__)) for place in order)
    return CliqueTree(named, tuple(number[up[place]] if up[place] >= 0 else -1 for place in order))


def _joined_in_the_middle(cliques: Sequence[set[str]], near: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """The parts of a tree that share so few columns are joined at their middles, where these have what is shared.

    So two chains that share a column lie side by side. A tree of as many shared columns is one of the same cliques.
    """
    within = [[b for b in others if len(cliques[a] & cliques[b]) != size] for a, others in enumerate(near)]
    middle = [-1] * len(near)
    for place in range(len(near)):
        if middle[place] < 0:
            found = _middle(within, place)
            for other in _walk(within, place)[0]:
                middle[other] = found
    joined = [list(others) for others in within]
    for a, others in enumerate(near):
        for b in (b for b in others if a < b and len(cliques[a] & cliques[b]) == size):
            shared = cliques[a] & cliques[b]
            one, two = (m if shared <= cliques[m := middle[place]] else place for place in (a, b))
            joined[one].append(two)
            joined[two].append(one)
    return joined


def _middle(near: Sequence[Sequence[int]], start: int) -> int:
    """Of a longest way in the part of a place."""
    end, back = _walk(near, _walk(near, start)[0][-1])
    way = [end[-1]]
    while back[way[-1]] >= 0:
        way.append(back[way[-1]])
    return way[len(way) // 2]


def _walk(near: Sequence[Sequence[int]], start: int) -> tuple[list[int], dict[int, int]]:
    """All places of a part by their distance from one, and the next one on the way there."""
    order, back = [start], {start: -1}
    for place in order:
        for other in near[place]:
            if other != back[place]:
                back[other] = place
                order.append(other)
    return order, back


def _cells(sizes: Mapping[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes[name] for name in names)
