"""The engine on few columns: a factor for each clique, an operation for each message.

What is compiled grows with cliques and tables, and large cliques are handled as well as arrays can be; for many
columns there is `tree_engine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, final

import numpy as np

from vertinumpyro.mrf.batching import batched
from vertinumpyro.mrf.release import Measurement

__all__ = ["FactorEngine", "maximal_cliques"]


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
        known = {name for clique in loss.cliques for name in clique}
        logs = {
            m.columns: self._mbi.Factor(self._domain.project(m.columns), np.log(np.maximum(m.values, 1.0)))
            for m in singles
            if m.columns[0] in known
        }
        return self._mbi.CliqueVector(self._domain, tuple(logs), logs)

    def descend(self, loss: Any, model: Any, steps: int) -> Any:
        """The engine's model, so many steps further."""
        return self._mbi.estimation.MirrorDescent().estimate(
            self._domain, loss, known_total=self._num_records, iters=steps, warm_start=model
        )

    def fitted(self, model: Any, count: int) -> list[np.ndarray]:
        """The model's counts of the first tables; each lies within one of its cliques."""
        tables = (model.marginals.project(m.columns) for m in self._measurements[:count])
        return [np.asarray(table.datavector(flatten=False)) for table in tables]

    def field(self, model: Any) -> tuple[tuple[tuple[str, ...], ...], tuple[np.ndarray, ...], Any]:
        """Maximal cliques, each one's distribution, and what has margins that no clique has."""
        cliques = maximal_cliques(self._mbi, self._domain, model.cliques)
        oracle = self._mbi.marginal_oracles.message_passing_stable
        marginals = oracle(model.potentials.expand(list(cliques)), 1.0)
        tables = (np.asarray(marginals.project(c).datavector(flatten=False), np.float64) for c in cliques)
        return cliques, tuple(np.maximum(table, 0) / table.sum() for table in tables), model


def maximal_cliques(mbi: ModuleType, domain: Any, cliques: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Of the triangulated graph, in an order in which what one shares with all earlier ones lies within one of them."""
    tree, _ = mbi.junction_tree.make_junction_tree(domain, [tuple(clique) for clique in cliques])
    return tuple(mbi.junction_tree.maximal_cliques(tree))
