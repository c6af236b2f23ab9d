"""The NumPyro model behind `VerticalGLM`: an outcome at one party, a linear predictor that all parties add up."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, final

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import require_collection
from vertinumpyro.data import Column, Schema
from vertinumpyro.data.schema import check_schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.regression.families import family_of

INTERCEPT = "intercept"
"""The intercept's site."""


@final
@dataclasses.dataclass(frozen=True)
class Term:
    """What one column adds to the predictor; public.

    :ivar party: who holds it.
    :ivar column: its name.
    :ivar size: how many coefficients: one of a number, one for each value of all others.
    :ivar ends: of a number, the smallest and the largest encoded value; None of all others.
    """

    party: str
    column: str
    size: int
    ends: tuple[float, float] | None

    @property
    def site(self) -> str:
        """The coefficients' site."""
        return f"{self.column}_coef"

    @property
    def names(self) -> list[str]:
        """A name for each coefficient: the column, with the value's number where there is one for each."""
        return [self.column] if self.ends is not None else [f"{self.column}={code}" for code in range(self.size)]

    def scaled(self, values: Any) -> Any:
        """A number's encoded values in [-1, 1], by its public bounds."""
        assert self.ends is not None
        low, high = self.ends
        return (2.0 * values - (low + high)) / (high - low)

    def added(self, coefficients: np.ndarray, values: np.ndarray) -> np.ndarray:
        """What these values `[N]` add to the predictor, `[N]`."""
        values = np.asarray(values)
        return coefficients[values] if self.ends is None else coefficients[0] * self.scaled(values.astype(np.float64))


def terms_of(
    schema: Schema, label: str, *, features: Iterable[str] | None = None, linear: Iterable[str] = ()
) -> tuple[Term, ...]:
    """The terms of a public schema, in its order.

    :param schema: the parties' columns.
    :param label: the column to predict.
    :param features: the columns to predict it from; None takes all others.
    :param linear: ordered columns of codes (integers, bins) with one coefficient for their scaled code.
    :raises ArgumentError: a column is not there, or cannot be what it is named for.
    """
    check_schema(schema)
    for argument, names in {"features": () if features is None else features, "linear": linear}.items():
        require_collection(argument, names, "columns")
    return _terms(schema, label, None if features is None else frozenset(features), frozenset(linear))


@functools.lru_cache(maxsize=16)  # a model is run, and asked for its terms, a dozen times in a fit
def _terms(schema: Schema, label: str, features: frozenset[str] | None, linear: frozenset[str]) -> tuple[Term, ...]:
    columns = schema.columns
    chosen = columns.keys() - {label} if features is None else features
    for argument, names in {"label": {label}, "features": chosen, "linear": linear}.items():
        for name in sorted(names, key=str):
            if name not in columns:
                raise ArgumentError(f"{argument}: no party holds column {name!r}; {suggest(name, columns)}")
    if label in chosen:
        raise ArgumentError(f"features: {label!r} is the label; leave it out")
    if not chosen:
        raise ArgumentError(f"features: there is none besides the label {label!r}; name one")
    if strangers := sorted(linear - chosen):
        raise ArgumentError(f"linear: {strangers[0]!r} is not among the features; {suggest(strangers[0], chosen)}")
    terms = tuple(
        _term(party, name, column, linear=name in linear)
        for party, part in schema.parties.items()
        for name, column in part.columns.items()
        if name in chosen
    )
    _check_label(schema, label, {INTERCEPT, *(term.site for term in terms)})
    return terms


def _check_label(schema: Schema, label: str, sites: set[str]) -> None:
    place, missing = Place(schema.party_of(label), label), schema.columns[label].missing
    if missing != "forbid":
        raise ArgumentError(f'label: {place} has missing = "{missing}"; leave records without a label out')
    if label in sites:
        raise ArgumentError(f"label: {place} is named as coefficients of the model are; give it another name")


def _term(party: str, name: str, column: Column, *, linear: bool) -> Term:
    if column.masked:
        remedy = 'give it bins and "category"' if column.kind in ("real", "count") else 'set "category"'
        raise ArgumentError(f'features: {Place(party, name)} has missing = "{column.missing}"; fill it, or {remedy}')
    if column.kind in ("real", "count"):
        return Term(party, name, 1, column.encoded_range)
    if not linear:
        return Term(party, name, column.num_categories, None)
    if not column.ordered or column.missing == "category":
        raise ArgumentError(f"linear: {Place(party, name)} has a value outside any order; leave it out")
    return Term(party, name, 1, column.encoded_range)


def glm_model(
    data: Mapping[str, Any],
    num_records: int,
    *,
    schema: Schema,
    label: str,
    family: str = "bernoulli",
    features: Iterable[str] | None = None,
    linear: Iterable[str] = (),
    prior_scale: float = 1.0,
    scale: float = 0.1,
    cutpoints: Iterable[float] | None = None,
) -> None:
    """Normal priors on coefficients, a part of the predictor at each party, the intercept at the label's.

    A real and a count are scaled to [-1, 1] by their public bounds and have one coefficient, ``<column>_coef``; every
    other column has one for each of its values. On pooled data this is an ordinary model::

        MCMC(NUTS(functools.partial(glm_model, schema=schema, label="late")), ...).run(key, dataset.pooled(), N)

    :param data: columns in model units, `[num_records]` each.
    :param num_records: N.
    :param schema, label, features, linear: see `terms_of`.
    :param family: one of `FAMILIES`.
    :param prior_scale: of every coefficient, and half of the intercept's.
    :param scale: of a normal label.
    :param cutpoints: of an ordinal one.
    """
    owner, chosen = schema.party_of(label), family_of(family, scale=scale, cutpoints=cutpoints)
    centre = chosen.centre(schema.columns[label])
    parts: dict[str, Any] = {owner: numpyro.sample(INTERCEPT, dist.Normal(centre, 2 * prior_scale))}
    for term in terms_of(schema, label, features=features, linear=linear):
        if term.ends is None:
            coefficients: Any = numpyro.sample(term.site, dist.Normal(0.0, prior_scale).expand([term.size]).to_event(1))
            added = coefficients[jnp.asarray(data[term.column], int)]
        else:
            coefficient: Any = numpyro.sample(term.site, dist.Normal(0.0, prior_scale))
            added = coefficient * term.scaled(jnp.asarray(data[term.column], float))
        parts[term.party] = parts[term.party] + added if term.party in parts else added
    eta = party_sum("eta", parts)
    with party_plate(owner, num_records):
        numpyro.sample(label, chosen.distribution(eta), obs=data[label])
