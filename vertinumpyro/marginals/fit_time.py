"""How long a model takes to be learned from tables: its derivatives are tried on stand-ins, their number is known.

The tables' law takes them for its descents, its tangent and the draws; the field's law for each of its steps.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.data import DatasetInfo
from vertinumpyro.marginals.expected_tables import ModelTables
from vertinumpyro.marginals.field_fit import BATCH
from vertinumpyro.marginals.samplers import PARTICLES, STEPS
from vertinumpyro.marginals.table_likelihood import ReleasedCells, TableLikelihood
from vertinumpyro.model.dummy_data import errors_on_stand_ins
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.preflight import fewer_cells, field_seconds, tables_seconds
from vertinumpyro.privacy import FitTime
from vertinumpyro.session.cost_estimate import drawing_seconds, timed

_TRIED = 5
_OF_A_STEP = 1.3  # times a derivative: the guide, the optimiser
_PROGRAMS = 4  # that the tables' law compiles: descents, tangent, curvature, draws
_LEAPFROGS, _DRAWS = 7, 1500  # of NUTS in whitened coordinates; with warm-up
_COMPARED = 100  # steps whose objective says whether the fit has converged


class _Derivative(NamedTuple):
    """Seconds of compiling one, and of one."""

    compiling: float
    each: float


def fit_time(facts: DatasetInfo, plan: MRFPlan, on_stand_in: Callable[[], FitTime]) -> FitTime:
    """Of a release, `MarginalInference.fit` and a twin as large as the table.

    :param on_stand_in: `model_time` on a stand-in of the release, which it makes.
    """
    found, trying = timed(on_stand_in)
    tried = {"trying it on stand-ins": trying, "the tables": tables_seconds(facts, plan)}
    return dataclasses.replace(
        found, before=tried, after={**found.after, "the synthetic table": drawing_seconds(facts)}
    )


def model_time(
    of: TableLikelihood,
    cells: ReleasedCells,
    release: Marginals,
    settings: VertiMRF,
    *,
    by_field: bool,
    method: str,
    num_starts: int,
    num_steps: int,
) -> FitTime:
    """Of `MarginalInference.fit` alone.

    :param settings: of the field.
    :param by_field: whether the model is learned through the field.
    :param method: from which the tables' law draws; from `num_starts` points descend `num_steps` steps each.
    """
    model = (
        _of_field(of, release.columns, num_steps) if by_field else _of_tables(of, cells, method, num_starts, num_steps)
    )
    field = 0.0
    if by_field and has_engine():
        field = field_seconds(release, settings.chosen_tables, settings.iterations)
    if (os.cpu_count() or 1) > 1:  # the model compiles beside the field's fit
        model = model._replace(compiling=max(0.0, model.compiling - field))
    return FitTime(
        after={**({"the field": field} if by_field else {}), "the model": sum(model)},
        unknown='method="augmentation" beyond its first estimate' if method == "augmentation" else "",
        shorter="Give the model fewer components or parameters, or MarginalInference fewer num_steps. "
        + (fewer_cells(release) if by_field else ""),
    )


def _of_field(of: TableLikelihood, columns: Sequence[CellColumn], num_steps: int) -> _Derivative:
    """All that follows the field."""
    tables = ModelTables(of.split, columns, ())
    rows = jnp.zeros((BATCH, tables.num_blocks), jnp.int32)

    def objective(flat: jax.Array) -> jax.Array:
        return tables.log_density(flat, rows, tables.sums).mean()

    tried = _tried(jax.jit(jax.grad(objective)), of)
    return _Derivative(tried.compiling, (num_steps + _COMPARED) * _OF_A_STEP * tried.each)


def _of_tables(of: TableLikelihood, cells: ReleasedCells, method: str, num_starts: int, num_steps: int) -> _Derivative:
    """All descents, the tangent and the draws."""

    def objective(flat: jax.Array) -> jax.Array:
        return jnp.sum(((jnp.asarray(cells.counts, flat.dtype) - of.expected(flat, cells)) / 1e3) ** 2)

    tried = _tried(jax.jit(jax.grad(objective)), of)
    draws = {"svi": STEPS * PARTICLES, "nuts": _DRAWS * _LEAPFROGS}.get(method, 0)
    times = num_starts * num_steps + of.split.num_parameters + draws
    return _Derivative(_PROGRAMS * tried.compiling, times * _OF_A_STEP * tried.each)


def _tried(derivative: Callable[[jax.Array], Any], of: TableLikelihood) -> _Derivative:
    flat, seconds = jnp.zeros(of.split.num_parameters), []
    for _ in range(1 + _TRIED):
        started = time.perf_counter()
        with errors_on_stand_ins():
            jax.block_until_ready(derivative(flat))
        seconds.append(time.perf_counter() - started)
    each = float(np.median(seconds[1:]))
    return _Derivative(max(0.0, seconds[0] - each), each)
