"""The engine on few columns: a factor for each clique, an operation for each message.

What is compiled grows with cliques and tables, and large cliques are handled as well as arrays can be; for many
columns there is `tree_engine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.mrf.batching import batched
from vertinumpyro.mrf.descent import descended
from vertinumpyro.mrf.release import Measurement

__all__ = ["FactorEngine", "margin", "maximal_cliques"]


@final
class FactorEngine:
    """Mirror descent for some tables.

    Args:
        mbi: the engine.
        sizes: cells of every column.
        measurements: released tables.
        num_records: N.
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
        return descended(self._mbi, self._domain, loss, model, steps, self._num_records)

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
