"""The NumPyro model behind `MarginalGLM`: a latent cell for each combination of the features, a label at one party."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform

from vertinumpyro.data import Column, Schema
from vertinumpyro.model import party_plate

__all__ = ["UNIT", "Design", "cell_model", "design_of"]

_CERTAIN = 20.0
UNIT = 0.2
"""Of the site of coefficients, so that descents that start within one of zero begin with nearly equal rates."""


@final
@dataclasses.dataclass(frozen=True)
class Design:
    """Every combination of the features' values, and its row of the design matrix; public.

    Attributes:
        matrix: `[K, d]` of all K combinations, without the intercept.
        names: of the d coefficients.
        parts: by party with features, the column that stands for all of these, and its code in each combination.
    """

    matrix: np.ndarray
    names: tuple[str, ...]
    parts: Mapping[str, tuple[str, np.ndarray]]


def design_of(schema: Schema, label: str, features: tuple[str, ...], linear: Iterable[str]) -> Design:
    """Of checked columns; arguments as in `MarginalGLM`."""
    sizes = [schema.columns[name].num_categories for name in features]
    codes = np.array(list(itertools.product(*map(range, sizes))))
    parts, names = [], []
    for place, name in enumerate(features):
        column = schema.columns[name]
        if name in linear:
            parts.append(codes[:, place : place + 1])
            names.append(name)
        else:
            parts.append(np.eye(sizes[place])[codes[:, place]][:, 1:])
            texts = [*column.cell_texts(sizes[place]), "missing"][: sizes[place]]
            names += [f"{name}={text}" for text in texts[1:]]
    of_parties = {}
    for party in schema.parties:
        own = [place for place, name in enumerate(features) if schema.party_of(name) == party]
        if own:
            joined = np.ravel_multi_index(codes[:, own].T, [sizes[place] for place in own])
            name = f"features_of_{party}"
            of_parties[party] = (name if name != label else f"{name}_", joined)
    return Design(np.concatenate(parts, axis=1).astype(float), tuple(names), of_parties)


def cell_model(
    data: Mapping[str, Any], num_records: int, *, schema: Schema, label: str, family: str,
    features: tuple[str, ...], linear: tuple[str, ...], prior_scale: float,
) -> None:  # fmt: skip
    """The features' joint distribution over all combinations of their values, and the label's regression on them.

    The latent z is the combination, so each party's features are known given z (but for some e^-20): tables of pairs
    have probabilities in closed form, and no party's site reads another's columns.

    Args:
        data: for each party with features one column of their combinations' codes, and the label; or nothing of it.
        num_records: N.
        schema, label, family, features, linear, prior_scale: as in `MarginalGLM`.
    """
    design = design_of(schema, label, features, linear)
    weights: Any = numpyro.sample("combination_weights", dist.Dirichlet(jnp.ones(len(design.matrix))))
    of_units = dist.Normal(0.0, prior_scale / UNIT).expand([len(design.names)]).to_event(1)
    in_units: Any = numpyro.sample("coefficients_in_units", of_units)
    outcome = _outcome(schema.columns[label], family, UNIT * jnp.asarray(design.matrix) @ in_units, prior_scale)
    combinations = cast(dist.Distribution, dist.Categorical(weights))
    with numpyro.plate("records", num_records, dim=-1):
        z: Any = numpyro.sample("z", combinations, infer={"enumerate": "parallel"})
    for party in schema.parties:
        with party_plate(party, num_records):
            if party in design.parts:
                name, codes = design.parts[party]
                known: Any = dist.Categorical(logits=jnp.asarray(_CERTAIN * np.eye(codes.max() + 1)[codes])[z])
                numpyro.sample(name, known, obs=data.get(name))
            if schema.party_of(label) == party:
                numpyro.sample(label, outcome(z), obs=data.get(label))


def _outcome(column: Column, family: str, eta: Any, prior_scale: float) -> Any:
    """From z to the label's distribution; draws what the family has besides the coefficients."""
    if family == "ordinal":
        spread = dist.Normal(0.0, 2.0 * prior_scale).expand([column.num_categories - 1]).to_event(1)
        cutpoints: Any = numpyro.sample("cutpoints", dist.TransformedDistribution(spread, OrderedTransform()))
        return lambda z: dist.OrderedLogistic(eta[z], cutpoints)
    centre = {"normal": 0.5, "poisson": 0.5, "negative_binomial": 0.5}.get(family, 0.0)
    eta = eta + numpyro.sample("intercept", dist.Normal(centre, 2.0 * prior_scale))
    if family == "bernoulli":
        return lambda z: dist.Bernoulli(logits=eta[z])
    if family == "probit":
        return lambda z: dist.Bernoulli(probs=jnp.clip(jax.scipy.special.ndtr(eta), 1e-6, 1 - 1e-6)[z])
    if family == "normal":
        scale: Any = numpyro.sample("scale", dist.LogNormal(math.log(0.15), 1.0))
        return lambda z: dist.Normal(eta[z], scale)
    # So far above what can be recorded that no descent is held there.
    rate = jnp.exp(jnp.minimum(eta, math.log(column.encoded_range[1]) + 5.0))
    if family == "poisson":
        return lambda z: dist.Poisson(rate[z])
    concentration: Any = numpyro.sample("concentration", dist.LogNormal(0.0, 1.5))
    return lambda z: dist.NegativeBinomial2(rate[z], concentration)
