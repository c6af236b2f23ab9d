"""The NumPyro model behind `VerticalGLM`: an outcome at one party, a linear predictor that all parties add up."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, final

import jax
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
from vertinumpyro.model.hazards import OwnFactor, table_numbers
from vertinumpyro.regression.dataframe_input import value_texts
from vertinumpyro.regression.families import Survival, family_of

INTERCEPT = "intercept"
"""The intercept's site."""

BASELINE = "baseline"
"""Of a survival model, the site of all intervals' log hazards but the first, over that one's, the intercept."""


@final
@dataclasses.dataclass(frozen=True)
class Term:
    """What one column adds to the predictor; public.

    :ivar party: who holds it.
    :ivar column: its name.
    :ivar size: how many coefficients: one of a number, one for each value of all others.
    :ivar ends: of a number, the smallest and the largest encoded value; None of all others.
    :ivar values: of all others, a text for each value.
    """

    party: str
    column: str
    size: int
    ends: tuple[float, float] | None
    values: tuple[str, ...] = ()

    @property
    def site(self) -> str:
        """The coefficients' site."""
        return f"{self.column}_coef"

    @property
    def names(self) -> list[str]:
        """A name for each coefficient: the column, with the value where there is one for each."""
        return [self.column] if self.ends is not None else [f"{self.column}={value}" for value in self.values]

    def scaled(self, values: Any) -> Any:
        """A number's encoded values in [-1, 1], by its public bounds."""
        assert self.ends is not None
        low, high = self.ends
        return (2.0 * values - (low + high)) / (high - low)

    def added(self, coefficients: np.ndarray, values: np.ndarray) -> np.ndarray:
        """What these values `[N]` add to the predictor, `[N]`."""
        values = np.asarray(values)
        return coefficients[values] if self.ends is None else coefficients[0] * self.scaled(values.astype(np.float64))

    def largest(self, coefficients: np.ndarray) -> float:
        """The most that any value adds, in magnitude."""
        return float(np.abs(coefficients).max())


@final
@dataclasses.dataclass(frozen=True)
class Offset:
    """What a column adds to the predictor without a coefficient, in the table's own units; public.

    :ivar party: who holds it.
    :ivar column: its name.
    :ivar public: its type.
    :ivar log: whether its logarithm is added, as of an exposure; of less than `LEAST` that of `LEAST`.
    """

    party: str
    column: str
    public: Column
    log: bool
    size: ClassVar[int] = 0
    names: ClassVar[tuple[str, ...]] = ()
    LEAST: ClassVar[float] = 1e-6

    def added(self, coefficients: Any, values: Any) -> Any:
        """What these values `[N]` add to the predictor, `[N]`; there are no coefficients."""
        found = table_numbers(self.public, values)
        xp = jnp if isinstance(values, jax.Array) else np
        return xp.log(xp.maximum(found, self.LEAST)) if self.log else found

    def largest(self, coefficients: np.ndarray) -> float:
        """The most that any value adds, in magnitude."""
        return float(np.abs(self.added(None, np.array(self.public.encoded_range))).max())


def terms_of(
    schema: Schema, label: str, *, features: Iterable[str] | None = None, linear: Iterable[str] = (),
    offset: str | None = None, exposure: str | None = None, times: tuple[str, ...] = (),
) -> tuple[Term | Offset, ...]:  # fmt: skip
    """The terms of a public schema, in its order, and offsets behind them.

    :param schema: the parties' columns.
    :param label: the column to predict.
    :param features: the columns to predict it from; None takes all others.
    :param linear: ordered columns of codes (integers, bins) with one coefficient for their scaled code.
    :param offset, exposure: columns that are added as they are, and of which the logarithm is.
    :param times: columns that belong to the label.
    :raises ArgumentError: a column is not there, or cannot be what it is named for.
    """
    check_schema(schema)
    for argument, names in {"features": () if features is None else features, "linear": linear}.items():
        require_collection(argument, names, "columns")
    chosen = None if features is None else frozenset(features)
    return _terms(schema, label, chosen, frozenset(linear), offset, exposure, times)


@functools.lru_cache(maxsize=16)  # a model is run, and asked for its terms, a dozen times in a fit
def _terms(
    schema: Schema, label: str, features: frozenset[str] | None, linear: frozenset[str], offset: str | None,
    exposure: str | None, times: tuple[str, ...],
) -> tuple[Term | Offset, ...]:  # fmt: skip
    columns = schema.columns
    added = {name: argument for argument, name in (("offset", offset), ("exposure", exposure)) if name is not None}
    apart = {label: "label", **dict.fromkeys(times, "label's time"), **added}
    chosen = columns.keys() - apart.keys() if features is None else features
    named = {"label": {label}, "features": chosen, "linear": linear, "offset": {offset}, "exposure": {exposure}}
    for argument, names in named.items():
        for name in sorted(names - {None}, key=str):
            if name not in columns:
                raise ArgumentError(f"{argument}: no party holds column {name!r}; {suggest(name, columns)}")
    for name in sorted(chosen & apart.keys()):
        raise ArgumentError(f"features: {name!r} is the {apart[name]}; leave it out")
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
    _check_label(schema, label, {INTERCEPT, BASELINE, *(term.site for term in terms)})
    return (*terms, *(_offset(schema, name, argument) for name, argument in added.items()))


def _offset(schema: Schema, name: str, argument: str) -> Offset:
    place, column = Place(schema.party_of(name), name), schema.columns[name]
    check_number(argument, place, column)
    return Offset(place.party, name, column, log=argument == "exposure")


def check_number(argument: str, place: Place, column: Column) -> None:
    """Refuses what is no number of the table, or may be missing.

    :raises ArgumentError: names the argument, the column and the fix.
    """
    if column.missing != "forbid":
        raise ArgumentError(f'{argument}: {place} has missing = "{column.missing}"; leave records without it out')
    if table_numbers(column, np.asarray(0)) is None:
        raise ArgumentError(f"{argument}: {place} is no number; name a column of numbers")


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
        return Term(party, name, column.num_categories, None, tuple(value_texts(column)))
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
    offset: str | None = None,
    exposure: str | None = None,
    time: str | None = None,
    entry: str | None = None,
    concentration: float | None = None,
    held_baseline: bool = False,
) -> None:
    """Normal priors on coefficients, a part of the predictor at each party, the intercept at the label's.

    A real and a count are scaled to [-1, 1] by their public bounds and have one coefficient, ``<column>_coef``; every
    other column has one for each of its values. On pooled data this is an ordinary model::

        MCMC(NUTS(functools.partial(glm_model, schema=schema, label="late")), ...).run(key, dataset.pooled(), N)

    :param data: columns in model units, `[num_records]` each.
    :param num_records: N.
    :param schema, label, features, linear, offset, exposure: see `terms_of`.
    :param family: one of `FAMILIES`.
    :param prior_scale: of every coefficient, and half of the intercept's.
    :param scale: of a normal label.
    :param cutpoints: of an ordinal one; of survival the times at which the baseline hazard changes.
    :param concentration: of a negative binomial or gamma label.
    :param time, entry: of survival, when an event was seen or until when none was, and from when on it would have been.
    :param held_baseline: leave out what says where the baseline hazard is: of steps that have it from a table
        (`dpvi.outcome_tables`).
    """
    owner, chosen = (
        schema.party_of(label),
        family_of(family, scale=scale, cutpoints=cutpoints, concentration=concentration),
    )
    centre = chosen.centre(schema.columns[time or label])
    parts: dict[str, Any] = {owner: numpyro.sample(INTERCEPT, dist.Normal(centre, 2 * prior_scale))}
    times = tuple(name for name in (time, entry) if name is not None)
    for term in terms_of(
        schema, label, features=features, linear=linear, offset=offset, exposure=exposure, times=times
    ):
        if isinstance(term, Offset):
            added = term.added(None, jnp.asarray(data[term.column]))
        elif term.ends is None:
            coefficients: Any = numpyro.sample(term.site, dist.Normal(0.0, prior_scale).expand([term.size]).to_event(1))
            added = coefficients[jnp.asarray(data[term.column], int)]
        else:
            coefficient: Any = numpyro.sample(term.site, dist.Normal(0.0, prior_scale))
            added = coefficient * term.scaled(jnp.asarray(data[term.column], float))
        parts[term.party] = parts[term.party] + added if term.party in parts else added
    when = None
    if isinstance(chosen, Survival):
        seen = [table_numbers(schema.columns[name], jnp.asarray(data[name])) for name in times]
        when = _baseline(chosen, prior_scale, parts, owner, seen, held=held_baseline)
    eta = party_sum("eta", parts)
    with party_plate(owner, num_records):
        numpyro.sample(label, chosen.distribution(eta), obs=data[label])
        if when is not None:
            numpyro.sample("when it was", OwnFactor(party_sum("when", {owner: when})), obs=data[label])


def _baseline(
    family: Survival, prior_scale: float, parts: dict[str, Any], owner: str, times: list[Any], *, held: bool
) -> Any:
    """Puts the baseline into the owner's part; what its latents have to say of when an event was, if there are any."""
    hazard = family.hazard
    if hazard.num_intervals == 1:  # the intercept is the only log hazard
        parts[owner] = parts[owner] + hazard.log_cumulative(jnp.zeros(1), *times)
        return None
    prior = dist.Normal(0.0, prior_scale).expand([hazard.num_intervals - 1]).to_event(1)
    log_hazard = jnp.concatenate([jnp.zeros(1), jnp.asarray(numpyro.sample(BASELINE, prior))])
    if held:
        parts[owner] = parts[owner] + hazard.log_cumulative(jax.lax.stop_gradient(log_hazard), *times)
        return None
    parts[owner] = parts[owner] + hazard.log_cumulative(log_hazard, *times)
    return hazard.log_density(log_hazard, *times)
