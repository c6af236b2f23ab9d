"""Regressions over any number of parties: schemas, models and data, one for each outcome that a sum may have."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from tests.model.cases import draw_columns
from vertinumpyro.data import BinaryColumn, CategoricalColumn, Column, CountColumn, PartySchema, RealColumn, Schema
from vertinumpyro.model import OwnFactor, party_plate, party_sum

UNIT = RealColumn(bounds=(0, 1))
GRADES = CategoricalColumn(categories=("none", "low", "high", "most"))
LEVELS = CategoricalColumn(categories=("a", "b", "c"))


@dataclasses.dataclass(frozen=True)
class OutcomeCase:
    """A distribution of the outcome, at the first party, given the sum; and its column."""

    column: Column
    distribution: Callable[[Any], dist.Distribution]


OUTCOMES = {
    "logit": OutcomeCase(BinaryColumn(), lambda eta: dist.Bernoulli(logits=eta)),
    "probit": OutcomeCase(BinaryColumn(), lambda eta: dist.Bernoulli(probs=jax.scipy.special.ndtr(eta))),
    "ordered": OutcomeCase(GRADES, lambda eta: dist.OrderedLogistic(eta, jnp.array([-1.0, 0.2, 1.5]))),
    "linear": OutcomeCase(UNIT, lambda eta: dist.Normal(eta, 0.7)),
    "counts": OutcomeCase(CountColumn(upper=12), lambda eta: dist.Poisson(jnp.exp(eta))),
    "dispersed counts": OutcomeCase(CountColumn(upper=12), lambda eta: dist.NegativeBinomial2(jnp.exp(eta), 1.5)),
    "amounts": OutcomeCase(UNIT, lambda eta: dist.Gamma(0.5, 0.5 * jnp.exp(-eta))),
    "events": OutcomeCase(BinaryColumn(), lambda eta: dist.Poisson(jnp.exp(eta))),
    "own factor": OutcomeCase(BinaryColumn(), OwnFactor),
    "logit by probabilities": OutcomeCase(BinaryColumn(), lambda eta: dist.Bernoulli(probs=jax.nn.sigmoid(eta))),
}


def parties(num_parties: int) -> list[str]:
    return [f"party{p}" for p in range(num_parties)]


def schema_of(num_parties: int, outcome: str) -> Schema:
    """Each party has two numbers and a category; the first one the outcome too."""
    parts = {p: {f"{p}_x": UNIT, f"{p}_u": UNIT, f"{p}_c": LEVELS} for p in parties(num_parties)}
    parts["party0"]["y"] = OUTCOMES[outcome].column
    return Schema({party: PartySchema(columns) for party, columns in parts.items()})


def model_of(num_parties: int, outcome: str) -> Callable[..., None]:
    """Horseshoe numbers, a category's coefficients with a scale that all parties share, and the first's own spline."""

    def model(data, num_records):
        intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        parts = {}
        for party in parties(num_parties):
            local = numpyro.sample(f"{party}_local", dist.HalfCauchy(1.0).expand([2]).to_event(1))
            raw = numpyro.sample(f"{party}_raw", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            level = numpyro.sample(f"{party}_level", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
            numbers = jnp.stack([data[f"{party}_x"], data[f"{party}_u"]], axis=-1)
            parts[party] = numbers @ (raw * local) + spread * level[data[f"{party}_c"]]
        bend = numpyro.sample("bend", dist.Normal(0.0, 1.0))
        product = data["party0_x"] * data["party0_u"]
        parts["party0"] = parts["party0"] + intercept + bend * jnp.maximum(data["party0_x"] - 0.5, 0) * product
        eta = party_sum("eta", parts)
        with party_plate("party0", num_records):
            numpyro.sample("y", OUTCOMES[outcome].distribution(eta), obs=data["y"])

    return model


def joint_schema_of(num_parties: int, outcomes: tuple[str, ...]) -> Schema:
    """The same with several outcomes: y0 at the last party, y1 at the one before, and so on."""
    names = parties(num_parties)
    parts = {p: {f"{p}_x": UNIT, f"{p}_u": UNIT, f"{p}_c": LEVELS} for p in names}
    for number, outcome in enumerate(outcomes):
        parts[names[-1 - number % num_parties]][f"y{number}"] = OUTCOMES[outcome].column
    return Schema({party: PartySchema(columns) for party, columns in parts.items()})


def joint_model_of(num_parties: int, outcomes: tuple[str, ...]) -> Callable[..., None]:
    """Numbers whose coefficients all outcomes share, and those of a category, each outcome's own about a common mean.

    The intercepts are each outcome's own, at its party.
    """
    names, num_outcomes = parties(num_parties), len(outcomes)

    def model(data, num_records):
        intercepts = numpyro.sample("intercepts", dist.Normal(0.0, 2.0).expand([num_outcomes]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(1.0))
        parts: list[dict[str, Any]] = [{} for _ in outcomes]
        for party in names:
            common = numpyro.sample(f"{party}_common", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            mean = numpyro.sample(f"{party}_mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
            level = numpyro.sample(f"{party}_level", dist.Normal(mean, spread).expand([num_outcomes, 3]).to_event(2))
            numbers = jnp.stack([data[f"{party}_x"], data[f"{party}_u"]], axis=-1) @ common
            for number, part in enumerate(parts):
                part[party] = numbers + level[number, data[f"{party}_c"]]
        for number, (outcome, part) in enumerate(zip(outcomes, parts, strict=True)):
            party = names[-1 - number % num_parties]
            part[party] = part[party] + intercepts[number]
            eta = party_sum(f"eta{number}", part)
            with party_plate(party, num_records):
                numpyro.sample(f"y{number}", OUTCOMES[outcome].distribution(eta), obs=data[f"y{number}"])

    return model


def data_of(schema: Schema, num_records: int, seed: int = 1) -> dict[str, np.ndarray]:
    return draw_columns(schema, num_records, seed)
