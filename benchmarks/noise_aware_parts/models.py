"""Tables of two parties whose columns depend on each other, and the models that made them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import ndtr

from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)
from vertinumpyro.dpvi import SecondMoments
from vertinumpyro.dpvi.outcome_tables import EventTimes
from vertinumpyro.model import PiecewiseHazard, party_plate, party_sum

NUM_SLOPES, NUM_AT_BANK, BINARY, NUM_GROUPS = 7, 3, (1, 6), 8
CUTPOINTS, LATEST = (0.5, 1.5), 4.0
HAZARD = PiecewiseHazard(CUTPOINTS)
CONCENTRATION, MOST, LARGEST = 1.5, 30, 12.0
LEAST_EXPOSED = 0.1  # of a year; the column's public bounds are 0 and 1
NAMES = [f"x{i}" for i in range(NUM_SLOPES)]
_LOADINGS = 0.7 * np.random.default_rng(7).normal(size=(2, NUM_SLOPES))

Truth = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """A model of y at the bank by three columns there and four at the telco.

    spread: the prior's standard deviation of the intercept and of slopes.
    grouped: whether records have a group, whose effects' spread is learned.
    exposed: whether counts are of a part of a year, which the bank knows, and whose logarithm is an offset.
    indicators: the predictors that are 0 or 1, and whose public types say so.
    outcome_column: of y; None for that of simulated tables.
    """

    name: str
    spread: float
    grouped: bool = False
    exposed: bool = False
    indicators: tuple[int, ...] = ()
    outcome_column: Any = None

    @cached_property
    def column(self) -> Any:
        """Of y."""
        if self.outcome_column is not None:
            return self.outcome_column
        columns = {"linear": RealColumn(bounds=(-LARGEST, LARGEST)), "poisson": CountColumn(upper=MOST),
                   "negative_binomial": CountColumn(upper=MOST)}  # fmt: skip
        return columns.get(self.law, BinaryColumn())  # of a survival whether the event was seen

    @property
    def law(self) -> str:
        return "logistic" if self.grouped else self.name.removesuffix("_offset")

    @cached_property
    def schema(self) -> Schema:
        """Of the table."""
        number = RealColumn(bounds=(-1, 1))
        x = {name: BinaryColumn() if i in self.indicators else number for i, name in enumerate(NAMES)}
        groups = {"group": CategoricalColumn(categories=tuple("abcdefgh"))} if self.grouped else {}
        times = {"time": RealColumn(bounds=(0, LATEST))} if self.law == "survival" else {}
        bank, telco = ({name: x[name] for name in part} for part in (NAMES[:NUM_AT_BANK], NAMES[NUM_AT_BANK:]))
        exposed = {"exposed": RealColumn(bounds=(0, 1))} if self.exposed else {}
        bank = {"y": self.column, **times, **exposed, **bank}
        return Schema({"bank": PartySchema(bank), "telco": PartySchema({**telco, **groups})})

    @property
    def moments(self) -> SecondMoments:
        """What steps begin with."""
        survival = EventTimes("y", "time", "intercept", "baseline", CUTPOINTS)
        return SecondMoments(events=survival if self.law == "survival" else None)

    def outcome(self, eta: Any) -> Any:
        """The distribution of y."""
        if self.law == "linear":
            return dist.Normal(eta, 1.0)
        if self.law in ("poisson", "survival"):
            return dist.Poisson(jnp.exp(eta))
        if self.law == "negative_binomial":
            return dist.NegativeBinomial2(jnp.exp(eta), CONCENTRATION)
        return dist.Bernoulli(logits=eta)

    def model(self, data: Any, num_records: int) -> None:
        """As a user writes it."""
        intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, self.spread))
        slopes: Any = numpyro.sample("slopes", dist.Normal(0.0, self.spread).expand([NUM_SLOPES]).to_event(1))
        x = [data[name] if i in self.indicators else 2 * data[name] - 1 for i, name in enumerate(NAMES)]
        bank = intercept + sum(slopes[i] * x[i] for i in range(NUM_AT_BANK))
        telco = sum(slopes[i] * x[i] for i in range(NUM_AT_BANK, NUM_SLOPES))
        if self.grouped:
            scale: Any = numpyro.sample("scale", dist.HalfNormal(0.5))
            groups: Any = numpyro.sample("groups", dist.Normal(0.0, scale).expand([NUM_GROUPS]).to_event(1))
            telco = telco + groups[data["group"].astype(int)]
        if self.law == "survival":
            baseline: Any = numpyro.sample("baseline", dist.Normal(0.0, self.spread).expand([2]).to_event(1))
            shape = jnp.concatenate([jnp.zeros(1), jax.lax.stop_gradient(baseline)])
            bank = bank + HAZARD.log_cumulative(shape, LATEST * data["time"])
        if self.exposed:
            bank = bank + jnp.log(jnp.maximum(data["exposed"], 1e-6))
        eta = party_sum("eta", {"bank": bank, "telco": telco})
        with party_plate("bank", num_records):
            numpyro.sample("y", self.outcome(eta), obs=data["y"])


FAMILIES = {
    family.name: family
    for family in (
        Family("logistic", 1.0),
        Family("poisson", 0.4),
        Family("negative_binomial", 0.4),
        Family("poisson_offset", 0.4, exposed=True),
        Family("negative_binomial_offset", 0.4, exposed=True),
        Family("linear", 1.0),
        Family("hierarchical", 1.0, grouped=True),
        Family("survival", 0.6),
    )
}


@dataclasses.dataclass(frozen=True)
class Table:
    """Records, pooled: x `[N, 7]`, y `[N]`, groups `[N]`, and the coefficients that made y where they are known.

    Of a survival y is whether the event was seen, and time `[N]` when, or until when it was not. Of counts of a part of
    a year exposed is that part `[N]`, else 1.
    """

    family: Family
    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    truth: Truth | None = None
    time: np.ndarray | None = None
    exposed: np.ndarray | float = 1.0

    @classmethod
    def simulated(cls, family: Family, num_records: int, seed: int) -> Table:
        """Coefficients from the prior, columns from two factors that both parties' have."""
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(num_records, 2))
        raw = factors @ _LOADINGS + rng.normal(size=(num_records, NUM_SLOPES))
        x = np.tanh(raw / 1.5)
        binary = sorted({*BINARY, *family.indicators})
        x[:, binary] = raw[:, binary] > 0.5
        groups = np.clip(np.floor(4 + 1.5 * factors[:, 0] + rng.normal(size=num_records)), 0, 7).astype(int)
        scale = abs(0.5 * rng.normal())
        truth = {"intercept": family.spread * rng.normal(), "slopes": family.spread * rng.normal(size=NUM_SLOPES),
                 "scale": scale, "groups": scale * rng.normal(size=NUM_GROUPS)}  # fmt: skip
        eta = truth["intercept"] + x @ truth["slopes"] + family.grouped * truth["groups"][groups]
        exposed = _part_of_a_year(rng, factors) if family.exposed else 1.0
        eta = eta + np.log(exposed)
        if family.law == "survival":
            truth["baseline"] = family.spread * rng.normal(size=2)
            y, time = _lived(rng, eta, truth["baseline"])
            return cls(family, x, y, groups, truth, time)
        y = np.asarray(family.outcome(jnp.asarray(eta)).sample(jax.random.key(seed)), float)
        return cls(family, x, np.clip(y, -LARGEST, MOST), groups, truth, exposed=exposed)

    def dataset(self) -> VerticalDataset:
        """At its parties."""
        y = self.y.astype(np.float32 if self.family.law == "linear" else np.int32)
        schema = self.family.schema
        x = dict(zip(NAMES, self.x.T, strict=True))  # as a model gets them
        for i, (name, column) in enumerate(x.items()):
            is_indicator = i in self.family.indicators
            x[name] = column.astype(np.int32) if is_indicator else ((column + 1) / 2).astype(np.float32)
        time = {} if self.time is None else {"time": (self.time / LATEST).astype(np.float32)}
        exposed = {"exposed": np.broadcast_to(self.exposed, len(y)).astype(np.float32)}
        columns = {"y": y, **time, **exposed, **x, "group": self.groups.astype(np.int32)}
        return VerticalDataset(schema, {p: {n: columns[n] for n in schema.column_names(p)} for p in schema.parties})


def _part_of_a_year(rng: np.random.Generator, factors: np.ndarray) -> np.ndarray:
    """Evenly from a tenth on, and by the factors that both parties' columns depend on."""
    normal = factors @ [0.6, 0.3] + np.sqrt(1 - 0.6**2 - 0.3**2) * rng.normal(size=len(factors))
    return LEAST_EXPOSED + (1 - LEAST_EXPOSED) * ndtr(normal)


def _lived(rng: np.random.Generator, eta: np.ndarray, baseline: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether an event was seen before people left, at some time or at the latest, and when either was."""
    hazards, edges = np.exp([0.0, *baseline]), np.array([0.0, *CUTPOINTS, np.inf])
    reached = np.cumsum([0.0, *hazards[:-1] * np.diff(edges[:-1])])
    needed = rng.exponential(size=len(eta)) * np.exp(-eta)
    interval = np.searchsorted(reached[1:], needed)
    event = edges[interval] + (needed - reached[interval]) / hazards[interval]
    left = np.minimum(rng.uniform(0.5, 6.0, len(eta)), LATEST)
    return (event <= left).astype(float), np.minimum(event, left)


def flat(sites: Truth, index: Any) -> np.ndarray:
    """Values in the order of a summary's rows, as `slopes[3]`."""
    return np.array([_entry(sites, name) for name in index])


def _entry(sites: Truth, name: str) -> float:
    site, _, place = name.removesuffix("]").partition("[")
    return float(sites[site][int(place)] if place else sites[site])
