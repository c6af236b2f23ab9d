"""The mixture model that the library builds from a schema when the user gives none."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import Model
from vertinumpyro.core.validation import checked
from vertinumpyro.data import OBSERVED_SUFFIX, Column, Schema
from vertinumpyro.data.schema import check_schema
from vertinumpyro.model.party_plate import MOST_COMPONENTS, RECORDS_PLATE, party_plate

_LEAST_SHARE = 0.001

Likelihood = Callable[[Any], Any]
"""Distribution of a column given the component z."""


@checked
def mixture_model(schema: Schema, num_components: int = 20, *, shape_rate: float = 1.0) -> Model:
    """A mixture whose components factorise over the columns (Eqs. 14-15 of the DPVI paper).

    weights ~ Dirichlet(1); per component and column, with the paper's priors: real columns Beta(a, b) with
    a, b ~ Gamma(1, shape_rate); categorical ones Categorical(p) with p ~ Dirichlet(1); binary ones Bernoulli(p) with
    p ~ Beta(1, 1); counts Poisson(rate) with rate ~ Exponential(1 / (1 + upper / 16)). Columns that the schema masks
    are masked where they are missing; where it says missing = "category", that they are present is drawn, too:
    Bernoulli(p) with p ~ Beta(1, 1). Sites are named as their columns and masks, and parameters age_a, age_present,
    plan_probs and so on; where a column has taken such a name already, "_" is added to it.

    :param num_components: K; 1 gives a model without a discrete latent.
    :param shape_rate: 1, as in the paper, keeps components of real columns wide: one whose values lie within a
        thirtieth of the bounds has shapes of some hundreds, and pays as many nats. Smaller lets them be narrow.
    :returns: `model(data, num_records)`.
    :raises ArgumentError: if num_components is below 1 or above `MOST_COMPONENTS`, or shape_rate is not positive.
    """
    check_schema(schema)
    if not 1 <= num_components <= MOST_COMPONENTS:
        raise ArgumentError(f"num_components={num_components}; give 1 to {MOST_COMPONENTS}")
    if not 0 < shape_rate < math.inf:
        raise ArgumentError(f"shape_rate={shape_rate} must be positive; 1 is the paper's")

    return _Mixture(schema, num_components, shape_rate)


def is_mixture_of(model: Model, schema: Schema) -> bool:
    """Whether a model is this library's own for a schema, whose domains and derivatives tests answer for."""
    return isinstance(model, _Mixture) and model.schema == schema


def settings_of(model: Model) -> tuple[int, float]:
    """K and `shape_rate` of `mixture_model`'s model."""
    assert isinstance(model, _Mixture)
    return model.num_components, model.shape_rate


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Mixture:
    """`mixture_model`'s model: a function that pickles."""

    schema: Schema
    num_components: int
    shape_rate: float

    @functools.cached_property
    def _names(self) -> _Names:
        return _Names(self.schema)

    def __call__(self, data: Mapping[str, Any], num_records: int) -> None:
        names, columns = self._names, self.schema.columns
        with numpyro.plate(names.components, self.num_components):
            likelihoods = {name: _likelihood(names.latents[name], c, self.shape_rate) for name, c in columns.items()}
            present = {name: _latent(names.latents[name]["present"], dist.Beta(1.0, 1.0)) for name in names.masks}
        z = _component(names, self.num_components, num_records)
        for party, part in self.schema.parties.items():
            with party_plate(party, num_records):
                for name, column in part.columns.items():
                    _observe(names.sites[name], name, column, likelihoods[name](z), data)
                    if name in present:
                        mask = data.get(f"{name}{OBSERVED_SUFFIX}")  # True of `UNOBSERVED`, and then it is drawn
                        given = None if mask is True else mask
                        numpyro.sample(names.masks[name], dist.Bernoulli(present[name][z]), obs=given)


def components_at(schema: Schema, records: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    """Latents of `mixture_model` with a component about each of some records, for an optimiser to start from.

    A component's mean or probabilities are halfway from those of all records to the chosen record's value; the variance
    of a real column is that of all records, all weights are 1 / K.

    :param records: encoded values and masks, [n] each; public.
    :param chosen: which of them, [K].
    :returns: values on their own supports, by the latents' names.
    """
    names = _Names(schema)
    found = {names.weights: np.full(len(chosen), 1.0 / len(chosen))} if len(chosen) > 1 else {}
    for name, column in schema.columns.items():
        latents, values = names.latents[name], np.asarray(records[name])
        mask = np.asarray(records[f"{name}{OBSERVED_SUFFIX}"] if column.masked else np.ones(len(values)), bool)
        seen, observed = mask[chosen], values[mask] if mask.any() else values
        if "present" in latents:
            found[latents["present"]] = _inside((mask.mean() + seen) / 2)
        if column.kind == "categorical":
            shares = np.bincount(observed.astype(int), minlength=column.num_categories) / len(observed)
            own = values[chosen, None] == np.arange(column.num_categories)
            shares = _halfway(shares, own, seen[:, None]) + _LEAST_SHARE
            found[latents["probs"]] = shares / shares.sum(1, keepdims=True)
            continue
        mean = _halfway(observed.mean(), values[chosen], seen)
        if column.kind == "binary":
            found[latents["prob"]] = _inside(mean)
        elif column.kind == "count":
            found[latents["rate"]] = mean + _LEAST_SHARE
        else:
            mean = _inside(mean)
            size = np.clip(mean * (1 - mean) / max(float(observed.var()), 1e-6) - 1, 1.0, 1000.0)
            found[latents["a"]], found[latents["b"]] = mean * size, (1 - mean) * size
    return found


def _halfway(overall: Any, own: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """From all records' to the chosen ones' own, of which nothing is known where it is not seen."""
    return (overall + np.where(seen, own, overall)) / 2


def _inside(shares: np.ndarray) -> np.ndarray:
    return np.clip(shares, _LEAST_SHARE, 1 - _LEAST_SHARE)


class _Names:
    """Names of the model's sites and plates, all different: what a column has taken, another name gets "_" behind.

    A column's site has the column's own name, but for a column that is named as the plate of the records.

    sites:   for each column, its observed site.
    masks:   for each column whose mask is drawn, the site that observes it.
    latents: for each column, its parameters by their suffix.
    """

    def __init__(self, schema: Schema) -> None:
        self._taken = {RECORDS_PLATE, *schema.columns}
        self.components, self.weights, self.z = (self._free(name) for name in ("components", "weights", "z"))
        self.sites = {n: self._free(n) if n == RECORDS_PLATE else n for n in schema.columns}
        learned = [name for name, column in schema.columns.items() if column.mask_is_learned]
        self.masks = {name: self._free(f"{name}{OBSERVED_SUFFIX}") for name in learned}
        self.latents = {
            name: {suffix: self._free(f"{name}_{suffix}") for suffix in self._parameters(name, column)}
            for name, column in schema.columns.items()
        }

    def _parameters(self, name: str, column: Column) -> tuple[str, ...]:
        return (*_PARAMETERS[column.kind], "present") if name in self.masks else _PARAMETERS[column.kind]

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


_PARAMETERS = {"real": ("a", "b"), "categorical": ("probs",), "binary": ("prob",), "count": ("rate",)}


def _component(names: _Names, num_components: int, num_records: int) -> Any:
    """The record-level component; 0 for everyone where there is only one."""
    if num_components == 1:
        return jnp.zeros(1, int)
    weights = numpyro.sample(names.weights, dist.Dirichlet(jnp.ones(num_components)))
    by_weight = cast(dist.Distribution, dist.Categorical(weights))
    with numpyro.plate(RECORDS_PLATE, num_records, dim=-1):
        return numpyro.sample(names.z, by_weight, infer={"enumerate": "parallel"})


def _likelihood(names: Mapping[str, str], column: Column, shape_rate: float) -> Likelihood:
    """Sample the column's parameters inside the component plate; return its distribution given z."""
    if column.kind == "real":
        a, b = (_latent(names[shape], dist.Gamma(1.0, shape_rate)) for shape in ("a", "b"))
        return lambda z: dist.Beta(a[z], b[z])
    if column.kind == "categorical":
        probs = _latent(names["probs"], dist.Dirichlet(jnp.ones(column.num_categories)))
        return lambda z: dist.Categorical(probs[z])
    if column.kind == "binary":
        prob = _latent(names["prob"], dist.Beta(1.0, 1.0))
        return lambda z: dist.Bernoulli(prob[z])
    upper = column.encoded_range[1]
    rate = _latent(names["rate"], dist.Exponential(1.0 / (1.0 + upper / 16.0)))
    return lambda z: dist.Poisson(rate[z])


def _latent(name: str, prior: dist.Distribution) -> jax.Array:
    return jnp.asarray(numpyro.sample(name, prior))


def _observe(site: str, name: str, column: Column, likelihood: dist.Distribution, data: Mapping[str, Any]) -> None:
    mask = data.get(f"{name}{OBSERVED_SUFFIX}") if column.masked else None
    with nullcontext() if mask is None else handlers.mask(mask=mask):
        numpyro.sample(site, likelihood, obs=data.get(name))
