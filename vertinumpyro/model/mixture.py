"""The mixture model that the library builds from a schema when the user gives none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import Model
from vertinumpyro.data import Column, CountColumn, Schema
from vertinumpyro.model.party_plate import RECORDS_PLATE, party_plate

__all__ = ["mixture_model"]

Likelihood = Callable[[Any], Any]
"""Distribution of a column given the component z."""


def mixture_model(schema: Schema, num_components: int = 20) -> Model:
    """A mixture whose components factorise over the columns (Eqs. 14-15 of the DPVI paper).

    weights ~ Dirichlet(1); per component and column, with the paper's priors: real columns Beta(a, b) with
    a, b ~ Gamma(1, 1); categorical ones Categorical(p) with p ~ Dirichlet(1); binary ones Bernoulli(p) with
    p ~ Beta(1, 1); counts Poisson(rate) with rate ~ Exponential(1 / (1 + upper / 16)). Columns whose schema
    says missing = "mask" are masked where they are missing.

    :param num_components: K; 1 gives a model without a discrete latent.
    :returns: `model(data, num_records)`.
    :raises ArgumentError: if num_components < 1.
    """
    if num_components < 1:
        raise ArgumentError(f"num_components={num_components}; give 1 or more")

    def model(data: Mapping[str, Any], num_records: int) -> None:
        with numpyro.plate("components", num_components):
            likelihoods = {name: _likelihood(name, column) for name, column in schema.columns.items()}
        z = _component(num_components, num_records)
        for party, part in schema.parties.items():
            with party_plate(party, num_records):
                for name, column in part.columns.items():
                    _observe(name, column, likelihoods[name](z), data)

    return model


def _component(num_components: int, num_records: int) -> Any:
    """The record-level component; 0 for everyone where there is only one."""
    if num_components == 1:
        return jnp.zeros(1, int)
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_components)))
    with numpyro.plate(RECORDS_PLATE, num_records, dim=-1):
        return numpyro.sample("z", cast(dist.Distribution, dist.Categorical(weights)), infer={"enumerate": "parallel"})


def _likelihood(name: str, column: Column) -> Likelihood:
    """Sample the column's parameters inside the component plate; return its distribution given z."""
    if column.kind == "real":
        a, b = _latent(f"{name}_a", dist.Gamma(1.0, 1.0)), _latent(f"{name}_b", dist.Gamma(1.0, 1.0))
        return lambda z: dist.Beta(a[z], b[z])
    if column.kind == "categorical":
        probs = _latent(f"{name}_probs", dist.Dirichlet(jnp.ones(column.num_categories)))
        return lambda z: dist.Categorical(probs[z])
    if column.kind == "binary":
        prob = _latent(f"{name}_prob", dist.Beta(1.0, 1.0))
        return lambda z: dist.Bernoulli(prob[z])
    assert isinstance(column, CountColumn)
    rate = _latent(f"{name}_rate", dist.Exponential(1.0 / (1.0 + column.upper / 16.0)))
    return lambda z: dist.Poisson(rate[z])


def _latent(name: str, prior: dist.Distribution) -> jax.Array:
    return jnp.asarray(numpyro.sample(name, prior))


def _observe(name: str, column: Column, likelihood: dist.Distribution, data: Mapping[str, Any]) -> None:
    mask = data.get(f"{name}_observed") if column.missing == "mask" else None
    if mask is None:
        numpyro.sample(name, likelihood, obs=data.get(name))
        return
    with handlers.mask(mask=mask):
        numpyro.sample(name, likelihood, obs=data.get(name))
