"""What a plan's steps cost in messages and time, from public facts alone."""

from __future__ import annotations

from vertinumpyro.core.compat import random_key
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.runtime.party import release_layout
from vertinumpyro.secure.processes.backend import BetweenProcesses, StepCost

__all__ = ["cost_of_a_step"]


def cost_of_a_step(dpvi: DPVI, plan: PrivacyPlan, stand_in: VerticalDataset) -> StepCost:
    """Rounds, bytes and seconds of one step of a plan.

    :param dpvi: with a backend between processes.
    :param stand_in: any dataset of the schema and of the plan's size; only its shapes are used.
    """
    kernel, state = dpvi.kernel(stand_in, plan, random_key(0))
    assert isinstance(dpvi.backend, BetweenProcesses)
    return dpvi.backend.cost(kernel.shape, release_layout(kernel, state, stand_in))
