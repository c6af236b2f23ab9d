"""A Markov random field fitted to noisy contingency tables: the one module that imports `mbi`.

Mirror descent on Σ ‖table of the model − measured table‖² / stddev² over the marginal polytope (McKenna, Sheldon and
Miklau 2019, Algorithm 1), from the field of independent columns, as far as the tables carry it: it stops where Stein's
estimate of the risk is least (`stein`), because its end fits the noise. Post-processing: everything here is computed
from released tables.
"""

from __future__ import annotations

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
from vertinumpyro.mrf.factor_engine import FactorEngine, JunctionTree, margin
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.mirror_descent import SteinRisk
from vertinumpyro.mrf.tree_engine import TreeEngine
from vertinumpyro.mrf.triangulation import tree_cells

DEFAULT_ITERATIONS = 5000
_BLOCK = 50  # steps until the first look at the risk
_TOLERANCE = 0.01  # steps that lower the risk by less than so much of it are the last
_SMALL_RISK = 0.1  # below which it is so much of this
FEW_COLUMNS = 40
"""With more, what is compiled must not grow with them: `TreeEngine`."""

Sizes = Mapping[str, int]


@final
class GraphicalModel(NamedTuple):
    """A fitted field as its junction tree.

    :ivar cliques: the maximal cliques; what one shares with all earlier ones lies within one of these.
    :ivar tables: the distribution of each, float64, adding up to 1.
    :ivar engine: the same model in the engine's words, for margins that no clique has.
    """

    cliques: tuple[tuple[str, ...], ...]
    tables: tuple[np.ndarray, ...]
    engine: Any

    def marginal(self, columns: Sequence[str]) -> np.ndarray:
        """The distribution of some columns, one axis for each, adding up to 1."""
        wanted = tuple(columns)
        for clique, table in zip(self.cliques, self.tables, strict=True):
            if set(wanted) <= set(clique):
                return margin(clique, table, wanted)
        with compat.x64():
            found = np.asarray(self.engine.project(wanted).datavector(flatten=False), np.float64)
        return found / found.sum()


def has_engine() -> bool:
    """Whether the engine is installed; it is not imported."""
    return importlib.util.find_spec("mbi") is not None


def require_engine() -> ModuleType:
    """The engine.

    :raises ArgumentError: it is not installed; the message says how to get it.
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
    if len(sizes) > FEW_COLUMNS:
        return tree_cells(sizes, cliques)
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

    :param sizes: cells of every column; columns that no table has come out uniform.
    :param measurements: released tables.
    :param num_records: N, public.
    :param singles: what is known of single columns; the path begins at their product.
    :param fewer: the tables of a second path, if there is to be one; it is taken where its risk is clearly less.
    :param released: all tables, by which two paths are compared.
    :param iterations: the most steps of mirror descent; a path that they cut short warns.
    """
    task = _Task(require_engine(), sizes, float(num_records), tuple(singles), SteinRisk(released or measurements))
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
        return best.field(0)


class _Path(NamedTuple):
    """Where a path is best.

    :ivar engine: what its fields were made with.
    :ivar models: its two fields in the engine's words.
    :ivar as_begun: single columns that stand there as the path began, which the moved path shares: what they take from
        the noise, a degree of freedom for each cell, is in no estimate yet.
    :ivar has_ended: whether the path went on to its end.
    """

    engine: FactorEngine | TreeEngine
    models: tuple[Any, Any]
    as_begun: tuple[Measurement, ...]
    has_ended: bool = True

    def field(self, which: int) -> GraphicalModel:
        """One of its fields."""
        return GraphicalModel(*self.engine.field(self.models[which]))


class _Task(NamedTuple):
    """What two paths have in common; `risk` is of all released tables."""

    mbi: ModuleType
    sizes: Sizes
    num_records: float
    singles: tuple[Measurement, ...]
    risk: SteinRisk

    def descend(self, used: Sequence[Measurement], iterations: int) -> _Path:
        """Two paths side by side, that of the tables and that of the moved ones; where the first is best."""
        alone = [m for m in used if len(m.columns) == 1]  # as the path begins, and stays
        risk = self.risk.of([m for m in used if len(m.columns) > 1])
        kind = TreeEngine if len(self.sizes) > FEW_COLUMNS else FactorEngine
        engine, best, least, done = (
            kind(self.mbi, self.sizes, [*risk.tables, *alone], self.num_records),
            None,
            math.inf,
            0,
        )
        losses = [engine.loss([*tables, *alone]) for tables in (risk.tables, risk.moved())]
        models = [engine.begin(losses[0], self.singles)] * 2
        for steps in (0, *_blocks(iterations)):
            models = [engine.descend(loss, model, steps) for loss, model in zip(losses, models, strict=True)]
            done += steps
            found = risk(*(engine.fitted(model, len(risk.tables)) for model in models))
            gain = least - found
            if gain > 0 or best is None:
                best, least = _Path(engine, (models[0], models[1]), tuple(alone if done else self.singles)), found
            if steps and gain <= _TOLERANCE * max(abs(least), _SMALL_RISK):
                return best
        assert best is not None
        return best._replace(has_ended=iterations <= _BLOCK)

    def risk_of_all(self, path: _Path) -> float:
        """The risk of all released tables, whether a path was fitted to them or not."""
        fields = (path.field(which) for which in range(2))
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
