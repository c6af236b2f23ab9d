"""Columns on the device, and what the sum of the parties' contributions to a record means."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import model_units
from vertinumpyro.model import SplitModel
from vertinumpyro.secure.link import SOFTMAX, ScoreLink
from vertinumpyro.secure.links import link_of

__all__ = ["Columns", "device_columns", "score_link"]

Columns = Mapping[str, Mapping[str, jax.Array]]
"""Every party's encoded columns on the device: columns[party][name], each [N]."""


def device_columns(dataset: VerticalDataset) -> dict[str, dict[str, jax.Array]]:
    """Every party's encoded columns as device arrays, each [N]."""
    return {
        party: {name: jnp.asarray(model_units(column)) for name, column in dataset.arrays(party).items()}
        for party in dataset.parties
    }


def score_link(split: SplitModel) -> ScoreLink:
    """The link of a split model: its outcome's where parties sum up a predictor, else a mixture's."""
    summed = split.structure.summed
    return SOFTMAX if summed is None else link_of(summed.outcome.described())
