"""Mirror descent on noisy tables, and where on its path a fit should end. Post-processing.

The path (McKenna, Sheldon and Miklau 2019, Algorithm 1) is taken with the engine's oracles, as one program. The
engine's own `MirrorDescent` takes the same, step sizes and line search included. But it passes all messages twice a
step where once says it all, as a step ends at the marginals that the next one begins with; and what it compiles besides
its steps, first evaluation and last marginals, takes longer than the steps do.

A fit that runs to its end fits the noise, too. The tables are y = x + σ g, m cells in all, whose noise is Gaussian and
known. For an estimate f(y) of x that is smooth (Stein 1981)

    E ‖f(y) − x‖² / σ² = E [ ‖y − f(y)‖² / σ² − m + 2 Σ_i ∂f_i / ∂y_i ] .

The divergence takes a second fit, of tables that are moved along one random direction b of unit variance (Ramani,
Blu and Unser 2008): bᵀ (f(y + h σ b) − f(y)) / (h σ). So along the path the point of least risk is known without a
look at any record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.mrf.measurements import Measurement

_STEP = 0.5  # h


@final
class SteinRisk:
    """The estimate for some tables.

    :param measurements: released tables, one for each set of columns.
    :param seed: of the direction.
    """

    def __init__(self, measurements: Sequence[Measurement], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._tables = tuple(measurements)
        self._directions = [rng.standard_normal(m.values.shape) for m in self._tables]

    def of(self, measurements: Sequence[Measurement]) -> SteinRisk:
        """The estimate for some of the tables, moved along the same direction."""
        wanted, part = {m.columns for m in measurements}, SteinRisk(())
        kept = [place for place, m in enumerate(self._tables) if m.columns in wanted]
        part._tables = tuple(self._tables[place] for place in kept)
        part._directions = [self._directions[place] for place in kept]
        return part

    @property
    def tables(self) -> tuple[Measurement, ...]:
        """The tables, in order."""
        return self._tables

    @property
    def num_cells(self) -> int:
        """Of all of them together."""
        return sum(m.values.size for m in self._tables)

    def moved(self) -> list[Measurement]:
        """The tables y + h σ b of the second fit."""
        return [
            dataclasses.replace(m, values=m.values + _STEP * m.stddev * b)
            for m, b in zip(self._tables, self._directions, strict=True)
        ]

    def __call__(self, fitted: Sequence[np.ndarray], moved: Sequence[np.ndarray]) -> float:
        """Squared error per cell, in units of the noise's variance; 1 is the released tables' own.

        :param fitted: every table's counts by the fit to the tables.
        :param moved: by the fit to `moved()`.
        """
        total = 0.0
        for m, direction, here, there in zip(self._tables, self._directions, fitted, moved, strict=True):
            residual, change = (here - m.values) / m.stddev, (there - here) / m.stddev
            total += float((residual**2).sum() - residual.size + 2 * (change * direction).sum() / _STEP)
        return total / max(self.num_cells, 1)


class _At(NamedTuple):
    """A point of the path: log potentials, their marginals, these marginals' loss, and the next step's size."""

    potentials: Any
    marginals: Any
    loss: jax.Array
    size: jax.Array


def mirror_descent(
    mbi: ModuleType,
    domain: Any,
    loss: Any,
    model: Any,
    steps: int,
    num_records: float,
    *,
    oracle: Any = None,
    constraints: Sequence[Any] = (),
) -> Any:
    """The engine's model, so many steps further.

    :param mbi: the engine.
    :param domain: its domain.
    :param loss: its loss.
    :param model: what this returned, or potentials of the loss's cliques.
    :param steps: how many.
    :param num_records: N.
    :param oracle: of the marginals; None is the engine's own choice.
    :param constraints: what the oracle is told of the structure.
    """
    if oracle is None:
        oracle = mbi.marginal_oracles.default_oracle(loss.cliques, domain, has_constraints=bool(constraints))
    potentials = getattr(model, "potentials", model)
    found = _path(oracle, loss, potentials, steps, num_records, tuple(constraints))
    return mbi.MarkovRandomField(potentials=found.potentials, marginals=found.marginals, total=num_records)


@partial(jax.jit, static_argnames="oracle")
def _path(oracle: Any, loss: Any, potentials: Any, steps: int, num_records: float, constraints: Sequence[Any]) -> _At:
    def at(potentials: Any, size: Any) -> _At:
        marginals = oracle(potentials, num_records, constraints=constraints)
        return _At(potentials, marginals, loss(marginals), jnp.asarray(size))

    def step(_: Any, before: _At) -> _At:
        slope = jax.grad(loss)(before.marginals)
        after = at(before.potentials - before.size * slope, 1.01 * before.size)
        expected = before.size * slope.dot(before.marginals - after.marginals)
        enough = before.loss - after.loss >= 0.5 * expected  # Armijo's rule
        stays = before._replace(size=0.5 * before.size)
        return jax.tree_util.tree_map(partial(jnp.where, enough), after, stays)

    return jax.lax.fori_loop(0, steps, step, at(potentials, 2.0 / (loss.lipschitz * num_records)))
