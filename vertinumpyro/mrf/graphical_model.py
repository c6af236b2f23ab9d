"""A Markov random field fitted to noisy contingency tables: the one module that imports `mbi`.

Mirror descent on Σ ‖table of the model − measured table‖² / stddev² over the marginal polytope (McKenna, Sheldon and
Miklau 2019, Algorithm 1), from the field of independent columns, as far as the tables carry it: it stops where Stein's
estimate of the risk is least (`stein`), because its end fits the noise. Post-processing: everything here is computed
from released tables.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.mrf.batching import batched
from vertinumpyro.mrf.junction_tree import JunctionTree
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.stein import SteinRisk

__all__ = [
    "DEFAULT_ITERATIONS",
    "GraphicalModel",
    "fit_graphical_model",
    "has_engine",
    "junction_tree_cells",
    "require_engine",
]

DEFAULT_ITERATIONS = 5000
_BLOCK = 50  # steps until the first look at the risk; the engine takes so many at once
_TOLERANCE = 0.01  # steps that lower the risk by less than so much of it are the last
_SMALL_RISK = 0.1  # below which it is so much of this

Sizes = Mapping[str, int]


@final
class GraphicalModel(NamedTuple):
    """A fitted field as its junction tree.

    Attributes:
        cliques: the maximal cliques; what one shares with all earlier ones lies within one of these.
        tables: the distribution of each, float64, adding up to 1.
        engine: the same model in the engine's words, for margins that no clique has.
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


def has_engine() -> bool:
    """Whether the engine is installed; it is not imported."""
    return importlib.util.find_spec("mbi") is not None


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
    singles: Sequence[Measurement] = (),
    fewer: Sequence[Measurement] = (),
    released: Sequence[Measurement] = (),
    iterations: int = DEFAULT_ITERATIONS,
) -> GraphicalModel:
    """The field of `num_records` records that has the least risk along mirror descent's path, or the better of two.

    All tables of a path stop together. Where most hold noise alone, the best moment for all of them comes before the
    few others are learned, so a second path can be given that has these alone.

    Args:
        sizes: cells of every column; columns that no table has come out uniform.
        measurements: released tables.
        num_records: N, public.
        singles: what is known of single columns; the path begins at their product.
        fewer: the tables of a second path, if there is to be one; it is taken where its risk is clearly less.
        released: all tables, by which two paths are compared.
        iterations: the most steps of mirror descent; a path that they cut short warns.
    """
    mbi = require_engine()
    domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
    task = _Task(mbi, domain, float(num_records), tuple(singles), SteinRisk(released or measurements))
    with compat.x64():
        best = task.descend(measurements, iterations)
        if fewer:
            second = task.descend(fewer, iterations)
            if task.risk_of_all(second) < task.risk_of_all(best) - task.risk.stddev:
                best = second
        if not best.has_ended:
            warnings.warn(
                f"the field has not converged: after {iterations} steps of mirror descent the error that is expected "
                "in its tables still falls; raise iterations",
                InferenceWarning,
                stacklevel=4,
            )
        return _on_junction_tree(mbi, domain, best.models[0])


class _Path(NamedTuple):
    """Where a path is best.

    Attributes:
        models: its two fields in the engine's words.
        as_begun: single columns that stand there as the path began, which the moved path shares: what they take from
            the noise, a degree of freedom for each cell, is in no estimate yet.
        has_ended: whether the path went on to its end.
    """

    models: tuple[Any, Any]
    as_begun: tuple[Measurement, ...]
    has_ended: bool = True


class _Task(NamedTuple):
    """What two paths have in common; `risk` is of all released tables."""

    mbi: ModuleType
    domain: Any
    num_records: float
    singles: tuple[Measurement, ...]
    risk: SteinRisk

    def descend(self, used: Sequence[Measurement], iterations: int) -> _Path:
        """Two paths side by side, that of the tables and that of the moved ones; where the first is best."""
        alone = [m for m in used if len(m.columns) == 1]  # as the path begins, and stays
        risk = self.risk.of([m for m in used if len(m.columns) > 1])
        mbi, best, least, done = self.mbi, None, math.inf, 0
        losses = [_loss(mbi, self.domain, [*tables, *alone]) for tables in (risk.tables, risk.moved())]
        models = [_independent(mbi, self.domain, losses[0].cliques, self.singles)] * 2
        for steps in (0, *_blocks(iterations)):
            models = [
                mbi.estimation.MirrorDescent().estimate(
                    self.domain, loss, known_total=self.num_records, iters=steps, warm_start=model
                )
                for loss, model in zip(losses, models, strict=True)
            ]
            done += steps
            found = risk(*(_tables(model, risk.tables) for model in models))
            gain = least - found
            if gain > 0 or best is None:
                best, least = _Path((models[0], models[1]), tuple(alone if done else self.singles)), found
            if steps and gain <= _TOLERANCE * max(abs(least), _SMALL_RISK):
                return best
        assert best is not None
        return best._replace(has_ended=iterations <= _BLOCK)

    def risk_of_all(self, path: _Path) -> float:
        """The risk of all released tables, whether a path was fitted to them or not."""
        fields = (_on_junction_tree(self.mbi, self.domain, model) for model in path.models)
        trees = [JunctionTree(field.cliques, field.tables) for field in fields]
        fitted = ([self.num_records * tree.project(m.columns).values for m in self.risk.tables] for tree in trees)
        freedom = sum(m.values.size for m in path.as_begun)
        return self.risk(*fitted) + 2 * freedom / self.risk.num_cells


def _blocks(iterations: int) -> Iterator[int]:
    """Numbers of steps between two looks at the risk, twice as many after every second look."""
    done, block = 0, _BLOCK
    for look in itertools.count(1):
        if done >= iterations:
            return
        yield min(block, iterations - done)
        done, block = done + block, block * (2 if look % 2 == 0 else 1)


def _independent(
    mbi: ModuleType, domain: Any, cliques: Sequence[tuple[str, ...]], singles: Sequence[Measurement]
) -> Any:
    """Potentials of independent columns; at least one record in every cell, as no step leaves probability zero."""
    known = {name for clique in cliques for name in clique}
    logs = {
        m.columns: mbi.Factor(domain.project(m.columns), np.log(np.maximum(m.values, 1.0)))
        for m in singles
        if m.columns[0] in known
    }
    return mbi.CliqueVector(domain, tuple(logs), logs)


def _tables(model: Any, measurements: Sequence[Measurement]) -> list[np.ndarray]:
    """The model's counts of every table; each lies within one of its cliques."""
    return [np.asarray(model.marginals.project(m.columns).datavector(flatten=False)) for m in measurements]


def _loss(mbi: ModuleType, domain: Any, measurements: Sequence[Measurement]) -> Any:
    """Weighted squares of all tables, computed in batches, with the first step size of the tables one by one.

    Mirror descent adds multiples of functions of the tables to a log density, whether margins or tables carry them.
    So with equal step sizes batches take the same path; the engine's own guess from margins would be far too small.
    """
    single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in measurements]
    sizes = dict(zip(domain.attributes, domain.shape, strict=True))
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
