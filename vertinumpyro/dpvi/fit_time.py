"""How long private steps take: one of them tried on stand-ins, the noise of one drawn, and what they begin with."""

from __future__ import annotations

import os
import time

import jax.numpy as jnp

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import DatasetInfo
from vertinumpyro.dpvi.initial_state import Start
from vertinumpyro.dpvi.preflight import StepTime, rehearse_steps
from vertinumpyro.dpvi.training_loop import ChunkRunner, DPVIState, Kernel
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.posterior.predictive import model_units
from vertinumpyro.privacy import FitTime, GradientPlan
from vertinumpyro.session.fit_time import drawing_seconds

OF_COMPILING = 0.4  # of what the steps take, what draws a twin of the same model does
MOST_RECORDS = 10**6  # of stand-ins; a step reads the records of its batch alone
_MOST_DRAWN = 10**6  # values of noise, of more the time is in proportion
_APART = "each party's own part of the steps"


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
