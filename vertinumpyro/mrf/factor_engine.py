"""The engine on few columns: a factor for each clique, an operation for each message; and margins of a field that was
loaded, from its junction tree alone.

What is compiled grows with cliques and tables, and large cliques are handled as well as arrays can be; for many
columns there is `tree_engine`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.mirror_descent import mirror_descent
from vertinumpyro.mrf.table_batches import batched

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

        :raises ArgumentError: a table on the way has more columns than can be summed at once.
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


@final
class FactorEngine:
    """Mirror descent for some tables.

    :param mbi: the engine.
    :param sizes: cells of every column.
    :param measurements: released tables.
    :param num_records: N.
    """

    def __init__(
        self, mbi: ModuleType, sizes: Mapping[str, int], measurements: Sequence[Measurement], num_records: float
    ) -> None:
        self._mbi, self._sizes, self._num_records = mbi, dict(sizes), num_records
        self._measurements = tuple(measurements)
        self._domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))

    def loss(self, measurements: Sequence[Measurement]) -> Any:
        """Weighted squares of all tables, computed in batches, with the first step size of the tables one by one.

        Mirror descent adds multiples of functions of the tables to a log density, whether margins or tables carry them.
        So with equal step sizes batches take the same path; the engine's own guess from margins would be far too small.
        """
        mbi, domain = self._mbi, self._domain
        single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measurements]
        cliques = maximal_cliques(mbi, domain, [m.columns for m in measurements])
        batches = batched(self._sizes, measurements, cliques)
        together = [mbi.LinearMeasurement(b.counts(), b.columns, b.stddev, b.query) for b in batches]
        loss = mbi.marginal_loss.from_linear_measurements(together, domain)
        return dataclasses.replace(
            loss, lipschitz=mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(domain, single)
        )

    def begin(self, loss: Any, singles: Sequence[Measurement]) -> Any:
        """Potentials of independent columns; at least one record in every cell, as no step leaves probability zero."""
        tables = {clique: np.zeros(self._domain.project(clique).shape) for clique in loss.cliques}
        home = {name: clique for clique in loss.cliques for name in clique}
        for m in (m for m in singles if m.columns[0] in home):
            (name,), clique = m.columns, home[m.columns[0]]
            axes = [-1 if other == name else 1 for other in clique]
            tables[clique] += np.log(np.maximum(m.values, 1.0)).reshape(axes)
        factors = {c: self._mbi.Factor(self._domain.project(c), jnp.asarray(table)) for c, table in tables.items()}
        return self._mbi.CliqueVector(self._domain, loss.cliques, factors)

    def descend(self, loss: Any, model: Any, steps: int) -> Any:
        """The engine's model, so many steps further."""
        return mirror_descent(self._mbi, self._domain, loss, model, steps, self._num_records)

    def fitted(self, model: Any, count: int) -> list[np.ndarray]:
        """The model's counts of the first tables; each lies within one of its cliques."""
        tables = {clique: np.asarray(factor.values) for clique, factor in model.marginals.tables.items()}
        found = []
        for m in self._measurements[:count]:
            home = min((c for c in tables if set(m.columns) <= set(c)), key=lambda c: tables[c].size)
            found.append(margin(home, tables[home], m.columns))
        return found

    def field(self, model: Any) -> tuple[tuple[tuple[str, ...], ...], tuple[np.ndarray, ...], Any]:
        """Maximal cliques, each one's distribution, and what has margins that no clique has."""
        cliques = maximal_cliques(self._mbi, self._domain, model.cliques)
        tables = _distributions(self._mbi.marginal_oracles.message_passing_stable, cliques, model.potentials)
        tables = (np.maximum(np.asarray(table, np.float64), 0) for table in tables)
        return cliques, tuple(table / table.sum() for table in tables), model


def margin(clique: Sequence[str], table: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """A clique's table summed down to some of its columns, in their order."""
    kept = [name for name in clique if name in columns]
    summed = table.sum(axis=tuple(i for i, name in enumerate(clique) if name not in columns))
    return np.transpose(summed, [kept.index(name) for name in columns])


@partial(jax.jit, static_argnames=("oracle", "cliques"))
def _distributions(oracle: Any, cliques: tuple[tuple[str, ...], ...], potentials: Any) -> list[Any]:
    marginals = oracle(potentials.expand(list(cliques)), 1.0)
    return [marginals.project(clique).datavector(flatten=False) for clique in cliques]


def maximal_cliques(mbi: ModuleType, domain: Any, cliques: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Of the triangulated graph, in an order in which what one shares with all earlier ones lies within one of them."""
    tree, _ = mbi.junction_tree.make_junction_tree(domain, [tuple(clique) for clique in cliques])
    return tuple(mbi.junction_tree.maximal_cliques(tree))
