"""What must work before a plan is spent: a step over nobody, or the update alone, on stand-ins of a release.

And how long the steps will take: one of them as it was tried, the noise of one drawn, and what they begin with.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import DatasetInfo
from vertinumpyro.dpvi.initial_state import Start
from vertinumpyro.dpvi.training_loop import ChunkRunner, DPVIState, Kernel, chunk_over_nobody
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.posterior.predictive import device_columns, model_units
from vertinumpyro.privacy import FitTime, GradientPlan
from vertinumpyro.session import InProcessSession, Session
from vertinumpyro.session.cost_estimate import drawing_seconds

OF_COMPILING = 0.4  # of what the steps take, what draws a twin of the same model does
MOST_RECORDS = 10**6  # of stand-ins; a step reads the records of its batch alone
_MOST_DRAWN = 10**6  # values of noise, of more the time is in proportion
_APART = "each party's own part of the steps"


class StepTime(NamedTuple):
    """Seconds of compiling the loop, and of a step, once it is compiled; one of records takes no fewer."""

    compiling: float
    step: float


def rehearsed(
    session: Session, kernel: Kernel, state: DPVIState, plan: GradientPlan
) -> tuple[ChunkRunner | None, StepTime | None]:
    """The compiled loop where all parties are in this process, tried on stand-ins; elsewhere the update alone is.

    :returns: the loop, and how long a step of it took.
    :raises ArgumentError: what follows a release would fail; nothing is spent.
    """
    if not isinstance(session, InProcessSession):
        rehearse_update(kernel, state)
        return None, None
    runner = ChunkRunner(kernel, device_columns(session.dataset))
    return runner, rehearse_steps(kernel, state, runner, plan)


def rehearse_update(kernel: Kernel, state: DPVIState) -> None:
    """One update on two stand-ins of a release, zeros and random numbers, from the state that the fit starts with.

    :raises ArgumentError: the optimiser cannot run on a gradient alone, changes the form of parameters or state, or
        the guide's or optimiser's first step is not finite. Nothing here has seen a record, so the cause is shown.
    """
    _rehearse_optimizer(kernel, state)
    update = jax.jit(compat.at_precision(kernel.user_x64, kernel.update))
    with compat.x64():
        for released in _stand_ins(kernel):
            after, _ = update(state, jnp.asarray(released, _real_dtype(state)))
            _check_finite(kernel, after)


def rehearse_steps(kernel: Kernel, state: DPVIState, runner: ChunkRunner, plan: GradientPlan) -> StepTime:
    """The same by the compiled loop that the fit uses next, so that nothing is compiled twice.

    Its steps have empty batches: each releases a stand-in, and nothing of a record.

    :raises ArgumentError: see `rehearse_update`.
    """
    _rehearse_optimizer(kernel, state)
    seconds: list[float] = []
    for released in _stand_ins(kernel):
        started = time.perf_counter()
        on_grid = np.rint(np.ldexp(released, plan.grid_bits)).astype(np.int64)
        own = jax.tree_util.tree_map(jnp.array, state)  # the loop overwrites what it is given
        after, _, _ = runner(own, chunk_over_nobody(plan, kernel.shape.num_values, on_grid))
        _check_finite(kernel, after)
        seconds.append(time.perf_counter() - started)
    return StepTime(max(0.0, seconds[0] - seconds[-1]), seconds[-1])


def try_step(kernel: Kernel, state: DPVIState, facts: DatasetInfo, plan: GradientPlan) -> StepTime:
    """A step of the loop that a fit uses, on columns that are nobody's."""
    num_records = min(facts.num_records, MOST_RECORDS)
    columns = {
        party: {
            name: jnp.asarray(model_units(column))
            for name, column in stand_in_columns(facts.schema.restrict(party), num_records).items()
        }
        for party in facts.schema.parties
    }
    return rehearse_steps(kernel, state, ChunkRunner(kernel, columns), plan)


def fit_time(
    kernel: Kernel, facts: DatasetInfo, plan: GradientPlan, tried: StepTime | None, start: Start | None
) -> FitTime:
    """Of `DPVI.fit`, and a twin as large as the table.

    :param tried: None where the parties are processes, whose steps are not these.
    """
    begun = FitTime() if start is None else start.time(facts, plan)
    before = dict(begun.before)
    if tried is not None:
        before["compiling"] = tried.compiling
        before[f"{plan.num_gradients:,} steps"] = plan.num_gradients * _step(kernel, plan, tried)
    drawing = drawing_seconds(facts) + OF_COMPILING * before.get("compiling", 0.0)
    return FitTime(
        before=before,
        after={**begun.after, "the synthetic table": drawing},
        unknown="; ".join(text for text in (begun.unknown, "" if tried or not plan.num_gradients else _APART) if text),
        shorter=f"Give fewer num_steps, a model of fewer components or parameters, or{_widest(facts)} fewer values in "
        "the schema (bins, edges, fewer categories). ",
    )


def _stand_ins(kernel: Kernel) -> tuple[np.ndarray, np.ndarray]:
    """Two releases [D] that no record had a part in: zeros, and noise as large as the plan's."""
    noise = np.random.default_rng(0).normal(0.0, kernel.shape.noise_stddev, kernel.shape.num_values)
    return np.zeros_like(noise), noise


def _rehearse_optimizer(kernel: Kernel, state: DPVIState) -> None:
    def step(state: DPVIState) -> tuple[Any, Any]:
        gradient = state.params  # of the same form
        updates, optimizer_state = kernel.optimizer.update(gradient, state.optimizer_state, state.params)
        return optax.apply_updates(state.params, updates), optimizer_state

    try:
        after = jax.eval_shape(step, state)
    except Exception as error:  # whatever another library raises for what it was not made for
        raise ArgumentError(
            "optimizer: its update fails on a gradient and the guide's parameters, all that a private fit has "
            f"({type(error).__name__}: {_first_line(error)}); give one that needs no more, as optax.adam(0.05)"
        ) from error
    if _form(after) != _form((state.params, state.optimizer_state)):
        raise ArgumentError(
            "optimizer: its update changes the shape, the type or the structure of its state or of the guide's "
            "parameters; give one that keeps them, as optax.adam(0.05)"
        )


def _check_finite(kernel: Kernel, state: DPVIState) -> None:
    if all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree_util.tree_leaves(state.params)):
        return
    raise ArgumentError(
        "optimizer or guide: the first update gives parameters that are not finite, whatever is released; start from "
        f"smaller values (init_loc_fn), or try another optimizer or guide than {type(kernel.guide.guide).__name__}"
    )


def _form(tree: Any) -> tuple[Any, list[tuple[tuple[int, ...], Any]]]:
    leaves, structure = jax.tree_util.tree_flatten(tree)
    return structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def _real_dtype(state: DPVIState) -> Any:
    return jax.tree_util.tree_leaves(state.params)[0].dtype


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _step(kernel: Kernel, plan: GradientPlan, tried: StepTime) -> float:
    """With its noise, which is drawn beside the step before it where there is a second core."""
    wanted = plan.num_shares * kernel.shape.num_values
    started = time.perf_counter()
    plan.noise_sampler()(min(wanted, _MOST_DRAWN), SystemRandomSource())
    drawing = (time.perf_counter() - started) * max(1.0, wanted / _MOST_DRAWN)
    return max(tried.step, drawing) if (os.cpu_count() or 1) > 1 else tried.step + drawing


def _widest(facts: DatasetInfo) -> str:
    columns = facts.schema.columns
    name = max(columns, key=lambda name: columns[name].num_values or 0)
    return f" the widest columns, as {name!r},"
