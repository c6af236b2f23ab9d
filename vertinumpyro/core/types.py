"""Types that more than one floor speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float

__all__ = ["ComponentPrior", "Contribution", "Model", "Theta"]

Theta = Mapping[str, jax.Array]
"""Unconstrained values of the global latent sites, by site name."""

Model = Callable[..., Any]
"""A NumPyro model `model(data, num_records, **model_kwargs)`."""


class Contribution(NamedTuple):
    """What one party computes on its own columns of a batch. Secret: it never leaves the party in the clear.

    `n` records, `K` mixture components, `d` parameters of each component, `s` parameters that the
    components share.

    log_density:     l^p_nk, the log density of the party's columns of record n under component k.
    plated_scores:   d l^p_nk / d theta_k, for parameters that belong to one component.
    shared_scores:   d l^p_nk / d theta, for parameters that several components read.
    """

    log_density: Float[Array, "n K"]
    plated_scores: Float[Array, "n K d"]
    shared_scores: Float[Array, "n K s"]


class ComponentPrior(NamedTuple):
    """log p(z = k | theta) and its derivative: public, because theta is.

    log_weights:  log pi_k.
    scores:       d log pi_k / d theta for the parameters that the component's prior reads.
    """

    log_weights: Float[Array, " K"]
    scores: Float[Array, "K d0"]
