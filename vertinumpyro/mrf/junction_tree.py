"""Margins of a field from its junction tree alone: for a field that was loaded, where no engine holds it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError

__all__ = ["JunctionTree"]

_MOST_COLUMNS = 52  # letters that einsum has


@final
class Table(NamedTuple):
    """A distribution over some columns, in the words of the engine."""

    values: np.ndarray

    def datavector(self, flatten: bool = True) -> np.ndarray:
        """The values, one axis for each column unless flat."""
        return self.values.ravel() if flatten else self.values


@final
class JunctionTree(NamedTuple):
    """A field as maximal cliques in an order in which what one shares with all earlier ones lies within one of them.

    So the joint distribution is the product of each clique's table given those columns.
    """

    cliques: tuple[tuple[str, ...], ...]
    tables: tuple[np.ndarray, ...]

    def project(self, columns: Sequence[str]) -> Table:
        """The distribution of some columns, one axis for each; they need no clique in common.

        From the cliques that are farthest from the first on, columns are summed out as soon as no clique before has
        them. So what is held at a time has a clique's columns, and those of the margin, however many cliques lie
        between them.

        Raises:
            ArgumentError: a table on the way has more columns than can be summed at once.
        """
        shape = _shape_of(self.cliques)
        needed = _needed(shape, columns)
        if any(len({*columns, *self.cliques[place]}) > _MOST_COLUMNS for place in needed):
            raise ArgumentError(f"a margin of {len(columns)} columns takes tables of over {_MOST_COLUMNS}; take fewer")
        pending: list[tuple[tuple[str, ...], np.ndarray]] = []
        for place in sorted(needed, reverse=True):
            clique, fresh = self.cliques[place], shape.fresh[place]
            given = _given(clique, self.tables[place], fresh)
            touched = [one for one in pending if not fresh.isdisjoint(one[0])]
            pending = [one for one in pending if fresh.isdisjoint(one[0])]
            parts = [(clique, given), *touched]
            kept = [n for n in dict.fromkeys(n for names, _ in parts for n in names) if n in columns or n not in fresh]
            pending.append((tuple(kept), _summed(parts, kept)))
        return Table(_summed(pending, columns))


class _Shape(NamedTuple):
    """For each clique, the columns that no earlier one has, and where each column is fresh."""

    fresh: tuple[frozenset[str], ...]
    home: dict[str, int]
    cliques: tuple[tuple[str, ...], ...]


@functools.lru_cache(maxsize=8)
def _shape_of(cliques: tuple[tuple[str, ...], ...]) -> _Shape:
    home: dict[str, int] = {}
    for place, clique in enumerate(cliques):
        for name in clique:
            home.setdefault(name, place)
    fresh = tuple(frozenset(n for n in clique if home[n] == place) for place, clique in enumerate(cliques))
    return _Shape(fresh, home, cliques)


def _needed(shape: _Shape, columns: Sequence[str]) -> set[int]:
    """Cliques whose conditional tables have the margin as their product; what sums to one is left out."""
    found: set[int] = set()
    left = [shape.home[name] for name in columns]
    while left:
        place = left.pop()
        if place not in found:
            found.add(place)
            left += [shape.home[name] for name in shape.cliques[place] if name not in shape.fresh[place]]
    return found


def _summed(parts: Sequence[tuple[Sequence[str], np.ndarray]], kept: Sequence[str]) -> np.ndarray:
    """The product of some tables, summed down to some columns."""
    known = dict.fromkeys(name for names, _ in parts for name in names)
    letter = {name: i for i, name in enumerate(known)}
    operands: list = []
    for names, table in parts:
        operands += [table, [letter[name] for name in names]]
    return np.einsum(*operands, [letter[name] for name in kept], optimize="greedy")


def _given(clique: Sequence[str], table: np.ndarray, fresh: Collection[str]) -> np.ndarray:
    """P(fresh columns | those drawn before); zero where these have no mass."""
    mass = table.sum(axis=tuple(i for i, name in enumerate(clique) if name in fresh), keepdims=True)
    return np.divide(table, mass, out=np.zeros_like(table), where=mass > 0)
