"""The engine on few columns: a factor for each clique, an operation for each message; and margins of a field that was
loaded, from its junction tree alone.

What is compiled grows with cliques and tables, and large cliques are handled as well as arrays can be; for many
columns there is `tree_engine`.

Tables are fitted together, one projection of the model and one matrix for many of them: the engine compiles a
projection for every table that it fits, forwards and backwards, each from a maximal clique of up to a million cells.
Tables of few columns are instead projected from a common margin of at most `_MOST_CELLS` cells within that clique, all
by one matrix of zeros and ones. The field and its objective stay the same, so does the path of mirror descent, which
only ever adds functions of the tables; NLTCS's 232 tables take a dozen projections.
"""

from __future__ import annotations

import dataclasses
import functools
import math
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

Columns = tuple[str, ...]

_MOST_COLUMNS = 52  # letters that einsum has
_MOST_CELLS = 1024
_MOST_ENTRIES = 2**24  # of all matrices of a fit together
MATRIX_BYTES = 3 * 8 * _MOST_ENTRIES
"""What these take, with the copies in the engine's compiled program."""


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


# -- tables that are fitted together ---------------------------------------------------------------------


@final
@dataclasses.dataclass(frozen=True)
class TablesOf:
    """Tables of some columns, read off a margin, one after the other. Equal queries compile once.

    :ivar columns: the margin's, with their cells.
    :ivar tables: each table's columns.
    """

    columns: tuple[tuple[str, int], ...]
    tables: tuple[Columns, ...]

    def __call__(self, factor: Any) -> Any:
        """The tables' cells, from the engine's factor of the margin."""
        if len(self.tables) == 1 and len(self.tables[0]) == len(self.columns):
            return factor.transpose(self.tables[0]).datavector()  # the margin itself, however many cells it has
        names = tuple(name for name, _ in self.columns)
        return matrix_of(self) @ factor.transpose(names).datavector()

    @property
    def num_entries(self) -> int:
        """Of the matrix."""
        sizes = dict(self.columns)
        rows = sum(math.prod(sizes[name] for name in table) for table in self.tables)
        return rows * math.prod(sizes.values()) if len(self.tables) > 1 else 0

    def op_norm_sq(self) -> float:
        """The largest eigenvalue, which the engine's first step size needs, or a bound of it."""
        cells = math.prod(cells for _, cells in self.columns)
        sizes = dict(self.columns)
        return float(sum(cells / math.prod(sizes[n] for n in table) for table in self.tables))


@functools.lru_cache(maxsize=256)
def matrix_of(query: TablesOf) -> np.ndarray:
    """Zeros and ones, float64 `[cells of all tables, cells of the margin]`."""
    shape = tuple(cells for _, cells in query.columns)
    names = [name for name, _ in query.columns]
    index = np.indices(shape).reshape(len(shape), -1)
    parts = []
    for table in query.tables:
        axes = [names.index(name) for name in table]
        codes = np.ravel_multi_index(tuple(index[a] for a in axes), tuple(shape[a] for a in axes))
        parts.append(np.arange(math.prod(shape[a] for a in axes))[:, None] == codes)
    return np.concatenate(parts).astype(np.float64)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Tables with equally much noise within one margin."""

    measurements: tuple[Measurement, ...]
    query: TablesOf

    @property
    def columns(self) -> Columns:
        """The margin's columns."""
        return tuple(name for name, _ in self.query.columns)

    @property
    def stddev(self) -> float:
        """Of the noise in a cell."""
        return self.measurements[0].stddev

    def counts(self) -> np.ndarray:
        """All tables' cells, as the query orders them."""
        return np.concatenate([m.values.ravel() for m in self.measurements])


def batched(
    sizes: Mapping[str, int], measurements: Sequence[Measurement], maximal_cliques: Sequence[Columns]
) -> list[Batch]:
    """The tables in batches, largest first into the margin that grows least.

    :param sizes: cells of every column.
    :param measurements: each within some maximal clique; what would make the matrices too large stays on its own.
    :param maximal_cliques: of the model; a margin that stays within one of them leaves them as they are.
    """
    batches: list[tuple[Batch, set[str]]] = []
    left = _MOST_ENTRIES
    for m in sorted(measurements, key=lambda m: (-m.values.size, m.columns)):
        fitting = [
            (_cells(sizes, {*batch.columns, *m.columns}), i)
            for i, (batch, clique) in enumerate(batches)
            if batch.stddev == m.stddev and {*batch.columns, *m.columns} <= clique
        ]
        cells, best = min(fitting, default=(math.inf, 0))
        if cells <= _MOST_CELLS:
            batch, clique = batches[best]
            grown = _batch(sizes, {*batch.columns, *m.columns}, (*batch.measurements, m))
            if (more := grown.query.num_entries - batch.query.num_entries) <= left:
                batches[best], left = (grown, clique), left - more
                continue
        batches.append((_batch(sizes, {*m.columns}, (m,)), next({*c} for c in maximal_cliques if {*m.columns} <= {*c})))
    return [batch for batch, _ in batches]


def _cells(sizes: Mapping[str, int], columns: set[str]) -> int:
    return math.prod(sizes[name] for name in columns)


def _batch(sizes: Mapping[str, int], margin: set[str], tables: Sequence[Measurement]) -> Batch:
    columns = tuple((name, size) for name, size in sizes.items() if name in margin)
    return Batch(measurements=tuple(tables), query=TablesOf(columns, tuple(m.columns for m in tables)))
