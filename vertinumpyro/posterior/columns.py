"""Columns on the device, and what the sum of the parties' contributions to a record means."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import model_units
from vertinumpyro.model import SplitModel
from vertinumpyro.secure.score_functions import SOFTMAX, ScoreFunction, joint_link, link_of

__all__ = ["Columns", "device_columns", "score_link"]

Columns = Mapping[str, Mapping[str, jax.Array]]
"""Every party's encoded columns on the device: columns[party][name], each [N]."""


def device_columns(dataset: VerticalDataset) -> dict[str, dict[str, jax.Array]]:
    """Every party's encoded columns as device arrays, each [N]."""
    return {
        party: {name: jnp.asarray(model_units(column)) for name, column in dataset.arrays(party).items()}
        for party in dataset.parties
    }


def score_link(split: SplitModel) -> ScoreFunction:
    """The link of a split model: its outcomes' where parties sum up predictors, else a mixture's."""
    summed = split.structure.summed
    if not summed:
        return SOFTMAX
    links = [link_of(found.outcome.described()) for found in summed]
    return joint_link(links, [split.parties.index(found.party) for found in summed])
