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
from vertinumpyro.mrf.factor_engine import FactorEngine, margin
from vertinumpyro.mrf.measurements import Measurement, one_way, shrunk
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
    released: Sequence[Measurement] = (),
    iterations: int = DEFAULT_ITERATIONS,
) -> GraphicalModel:
    """The field of `num_records` records that has the least risk along mirror descent's path, or the better of two.

    All tables of a path stop together. Where most hold noise alone, the best moment for all of them comes before the
    few others are learned. So a second path leads to tables that are each drawn towards independence as far as their
    own noise asks for. Neither is always the nearest: where two columns depend on each other by way of others, noise
    hides that in their own table and not in the field.

    :param sizes: cells of every column; columns that no table has come out uniform.
    :param measurements: released tables.
    :param num_records: N, public.
    :param singles: what is known of single columns; the paths begin at their product. Without, there is no second path.
    :param released: all tables, which `singles` follow from; by default the measurements.
    :param iterations: the most steps of mirror descent; a path that they cut short warns.
    """
    risk = SteinRisk(released or measurements)
    held = {name for m in risk.tables for name in m.columns}
    moved = risk.moved() if singles else ()
    shifted = [one_way(m.columns[0], moved, num_records) if m.columns[0] in held else m for m in singles]
    task = _Task(require_engine(), sizes, float(num_records), (tuple(singles), tuple(shifted)), risk)
    with compat.x64():
        paths = [
            task.descend(measurements, iterations, shrinks=shrinks)
            for shrinks in ((False, True) if singles else (False,))
        ]
        best = min(paths, key=lambda path: path.risk)
        if not best.has_ended:
            warnings.warn(
                f"the field has not converged: after {iterations} steps of mirror descent the error that is expected "
                "in its tables still falls; raise iterations",
                InferenceWarning,
                stacklevel=4,
            )
        return GraphicalModel(*best.engine.field(best.model))


class _Path(NamedTuple):
    """Where a path is best.

    :ivar engine: what its fields were made with.
    :ivar model: its field in the engine's words.
    :ivar risk: of its tables.
    :ivar has_ended: whether the path went on to its end.
    """

    engine: FactorEngine | TreeEngine
    model: Any
    risk: float
    has_ended: bool = True


class _Task(NamedTuple):
    """What paths have in common.

    :ivar singles: what is known of single columns, from the tables and from the moved ones.
    :ivar risk: of all released tables.
    """

    mbi: ModuleType
    sizes: Sizes
    num_records: float
    singles: tuple[tuple[Measurement, ...], tuple[Measurement, ...]]
    risk: SteinRisk

    def descend(self, used: Sequence[Measurement], iterations: int, *, shrinks: bool = False) -> _Path:
        """Two paths side by side, that of the tables and that of the moved ones; where the first is best.

        The risk is of the tables as they were released, whether the path leads to them or to what they shrink to.
        """
        risk = self.risk.of([m for m in used if len(m.columns) > 1])
        sides = [self._side(used, tables, singles, shrinks=shrinks)
                 for tables, singles in zip((risk.tables, risk.moved()), self.singles, strict=True)]  # fmt: skip
        kind = TreeEngine if len(self.sizes) > FEW_COLUMNS else FactorEngine
        engine = kind(self.mbi, self.sizes, sides[0], self.num_records)
        losses = [engine.loss(side) for side in sides]
        models = [engine.begin(loss, singles) for loss, singles in zip(losses, self.singles, strict=True)]
        best, least = None, math.inf
        for steps in (0, *_blocks(iterations)):
            models = [engine.descend(loss, model, steps) for loss, model in zip(losses, models, strict=True)]
            found = risk(*(engine.fitted(model, len(risk.tables)) for model in models))
            gain = least - found
            if gain > 0 or best is None:
                best, least = _Path(engine, models[0], found), found
            if steps and gain <= _TOLERANCE * max(abs(least), _SMALL_RISK):
                return best
        assert best is not None
        return best._replace(has_ended=iterations <= _BLOCK)

    def _side(
        self,
        used: Sequence[Measurement],
        tables: Sequence[Measurement],
        singles: Sequence[Measurement],
        *,
        shrinks: bool,
    ) -> list[Measurement]:
        """What one of the two paths leads to: the tables, and single columns that none of them has, as it begins."""
        known = {m.columns[0]: m for m in singles}
        alone = [known.get(m.columns[0], m) for m in used if len(m.columns) == 1]
        return [*(shrunk(m, known) if shrinks else m for m in tables), *alone]


def _blocks(iterations: int) -> Iterator[int]:
    """Numbers of steps between two looks at the risk, twice as many after every second look."""
    done, block = 0, _BLOCK
    for look in itertools.count(1):
        if done >= iterations:
            return
        yield min(block, iterations - done)
        done, block = done + block, block * (2 if look % 2 == 0 else 1)
