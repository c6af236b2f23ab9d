"""A Markov random field fitted to noisy contingency tables: the one module that imports `mbi`.

Minimises Σ ‖table of the model − measured table‖² / stddev² over the marginal polytope by mirror descent (McKenna,
Sheldon and Miklau 2019, Algorithm 1). Post-processing: everything here is computed from released tables.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.batching import batched
from vertinumpyro.mrf.release import Measurement

__all__ = ["GraphicalModel", "fit_graphical_model", "junction_tree_cells", "require_engine"]

Sizes = Mapping[str, int]


@final
class GraphicalModel(NamedTuple):
    """A fitted field as its junction tree.

    Attributes:
        cliques: the maximal cliques; what one shares with all earlier ones lies within one of these.
        tables: the distribution of each, float64, adding up to 1.
        engine: the same model in the engine's words, to go on from.
    """

    cliques: tuple[tuple[str, ...], ...]
    tables: tuple[np.ndarray, ...]
    engine: Any

    def marginal(self, columns: Sequence[str]) -> np.ndarray:
        """The distribution of some columns, one axis for each, adding up to 1."""
        wanted = tuple(columns)
        for clique, table in zip(self.cliques, self.tables, strict=True):
            if set(wanted) <= set(clique):
                return _projected(clique, table, wanted)
        with compat.x64():
            found = np.asarray(self.engine.project(wanted).datavector(flatten=False), np.float64)
        return found / found.sum()


def require_engine() -> ModuleType:
    """The engine.

    Raises:
        ArgumentError: it is not installed; the message says how to get it.
    """
    try:
        with warnings.catch_warnings(), compat.x64():
            warnings.simplefilter("ignore", UserWarning)  # it warns of 32-bit mode, in which nothing here runs it
            import mbi
    except ImportError:
        raise ArgumentError(
            "Markov random fields need mbi 2: install it with `pip install 'vertinumpyro[mrf]'` "
            "(Python 3.11 and jax 0.9, or newer)"
        ) from None
    return mbi


def junction_tree_cells(sizes: Sizes, cliques: Sequence[Sequence[str]]) -> int:
    """Cells of all maximal cliques together, once the graph is triangulated: the memory of a model."""
    mbi = require_engine()
    domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
    tree, _ = mbi.junction_tree.make_junction_tree(domain, [tuple(clique) for clique in cliques])
    return sum(domain.size(clique) for clique in tree.nodes)


def fit_graphical_model(
    sizes: Sizes,
    measurements: Sequence[Measurement],
    num_records: int,
    *,
    iterations: int = 1000,
    warm_start: GraphicalModel | None = None,
) -> GraphicalModel:
    """The field of `num_records` records that fits the tables best.

    Args:
        sizes: cells of every column; columns that no table has come out uniform.
        measurements: released tables.
        num_records: N, public.
        iterations: steps of mirror descent.
        warm_start: a model to start from; tables with new cliques make the engine compile again.
    """
    mbi = require_engine()
    domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
    with compat.x64():
        loss = _loss(mbi, domain, sizes, measurements)
        model = mbi.estimation.MirrorDescent().estimate(
            domain,
            loss,
            known_total=float(num_records),
            iters=iterations,
            warm_start=None if warm_start is None else warm_start.engine,
        )
        return _on_junction_tree(mbi, domain, model)


def _loss(mbi: ModuleType, domain: Any, sizes: Sizes, measurements: Sequence[Measurement]) -> Any:
    """Weighted squares of all tables, computed in batches, with the first step size of the tables one by one.

    Mirror descent adds multiples of functions of the tables to a log density, whether margins or tables carry them.
    So with equal step sizes batches take the same path; the engine's own guess from margins would be far too small.
    """
    single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measurements]
    batches = batched(sizes, measurements, _maximal_cliques(mbi, domain, [m.columns for m in measurements]))
    together = [mbi.LinearMeasurement(b.counts(), b.columns, b.stddev, b.query) for b in batches]
    loss = mbi.marginal_loss.from_linear_measurements(together, domain)
    return dataclasses.replace(loss, lipschitz=mbi.marginal_loss.calculate_l2_lipschitz_from_metadata(domain, single))


def _maximal_cliques(mbi: ModuleType, domain: Any, cliques: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    tree, _ = mbi.junction_tree.make_junction_tree(domain, [tuple(clique) for clique in cliques])
    return tuple(mbi.junction_tree.maximal_cliques(tree))


def _on_junction_tree(mbi: ModuleType, domain: Any, model: Any) -> GraphicalModel:
    cliques = _maximal_cliques(mbi, domain, model.cliques)
    marginals = mbi.marginal_oracles.message_passing_stable(model.potentials.expand(list(cliques)), 1.0)
    tables = (np.asarray(marginals.project(clique).datavector(flatten=False), np.float64) for clique in cliques)
    return GraphicalModel(cliques, tuple(np.maximum(table, 0) / table.sum() for table in tables), model)


def _projected(clique: Sequence[str], table: np.ndarray, columns: Sequence[str]) -> np.ndarray:
    """A clique's table summed down to some of its columns, in their order."""
    kept = [name for name in clique if name in columns]
    summed = table.sum(axis=tuple(i for i, name in enumerate(clique) if name not in columns))
    return np.transpose(summed, [kept.index(name) for name in columns])
