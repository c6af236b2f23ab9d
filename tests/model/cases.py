"""Models to split, each with its marginal log density written down by hand."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
)
from vertinumpyro.model import mixture_model, party_plate, split_model

K = 3
UNIT = RealColumn(bounds=(0, 1))
MASKED = RealColumn(bounds=(0, 1), missing="mask")
PLANS = CategoricalColumn(categories=("a", "b", "c", "d"))

SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": UNIT, "visits": CountColumn(upper=9)}),
        "insurer": PartySchema({"cost": MASKED, "plan": PLANS}),
    }
)
COMPLETE = Schema({**SCHEMA.parties, "insurer": PartySchema({"cost": UNIT, "plan": PLANS})})

Sites = Mapping[str, jax.Array]
Data = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the log density [n] of each record with z summed out, and the expected structure."""

    model: Callable[..., None]
    marginal: Callable[[Sites, Data], jax.Array]
    plated: Mapping[str, Mapping[str, int]]
    shared: Mapping[str, tuple[str, ...]]
    schema: Schema = SCHEMA

    def data(self, num_records: int = 6, seed: int = 1) -> dict[str, np.ndarray]:
        return draw_columns(self.schema, num_records, seed)


def draw_columns(schema: Schema, num_records: int, seed: int) -> dict[str, np.ndarray]:
    """Random valid columns; masks are about half False and never of one kind only."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name, column in schema.columns.items():
        columns[name] = column.example(num_records, rng)
        if column.missing == "mask":
            columns[f"{name}_observed"] = rng.permutation(num_records) % 2 == 0
    return columns


def component(weights: Any, num_records: int) -> Any:
    with numpyro.plate("records", num_records):
        return numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})


def normal(value: Any, loc: Any, scale: Any) -> jax.Array:
    """Log density [n, K] of column [n] at parameters [K] (or scalars)."""
    return -0.5 * ((value[:, None] - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)


def poisson(value: Any, rate: Any) -> jax.Array:
    return value[:, None] * jnp.log(rate) - rate - jax.lax.lgamma(value[:, None] + 1.0)


def uniform_weights(num: int = K) -> jax.Array:
    return jnp.full(num, 1.0 / num)


# -- parameters with one slice per component, several sites per party, and a mask ---------------------


def several_sites(data: Data, num_records: int) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
    with numpyro.plate("components", K):
        age = numpyro.sample("age_loc", dist.Normal(0.0, 1.0))
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        cost = numpyro.sample("cost_loc", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("cost_scale", dist.LogNormal(0.0, 1.0))
        plan = numpyro.sample("plan_probs", dist.Dirichlet(jnp.ones(4)))
    z = component(weights, num_records)
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(age[z], 0.7), obs=data["age"])
        numpyro.sample("visits", dist.Poisson(rate[z]), obs=data["visits"])
    with party_plate("insurer", num_records):
        with numpyro.handlers.mask(mask=data["cost_observed"]):
            numpyro.sample("cost", dist.Normal(cost[z], scale[z]), obs=data["cost"])
        numpyro.sample("plan", dist.Categorical(plan[z]), obs=data["plan"])


def several_sites_marginal(s: Sites, d: Data) -> jax.Array:
    cost = jnp.where(d["cost_observed"][:, None], normal(d["cost"], s["cost_loc"], s["cost_scale"]), 0.0)
    clinic = normal(d["age"], s["age_loc"], 0.7) + poisson(d["visits"], s["rate"])
    insurer = cost + jnp.log(s["plan_probs"]).T[d["plan"]]
    return logsumexp(jnp.log(s["weights"]) + clinic + insurer, axis=1)


# -- parameters that several components, or two parties, or the component's prior read ----------------


def shared_parameters(data: Data, num_records: int) -> None:
    logits = numpyro.sample("logits", dist.Normal(0.0, 1.0).expand([K]).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([K]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    both = numpyro.sample("both", dist.Normal(0.0, 1.0))
    z = component(jax.nn.softmax(logits), num_records)
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[z] + both, scale), obs=data["age"])
        numpyro.sample("visits", dist.Poisson(jnp.exp(logits[z])), obs=data["visits"])
    with party_plate("insurer", num_records):
        numpyro.sample("cost", dist.Normal(loc.mean() * both + loc[z], 1.3), obs=data["cost"])


def shared_parameters_marginal(s: Sites, d: Data) -> jax.Array:
    clinic = normal(d["age"], s["loc"] + s["both"], s["scale"]) + poisson(d["visits"], jnp.exp(s["logits"]))
    insurer = normal(d["cost"], s["loc"].mean() * s["both"] + s["loc"], 1.3)
    return logsumexp(jax.nn.log_softmax(s["logits"]) + clinic + insurer, axis=1)


# -- a hyperprior above the components' parameters ----------------------------------------------------


def hierarchical(data: Data, num_records: int) -> None:
    centre = numpyro.sample("centre", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("components", K):
        loc = numpyro.sample("loc", dist.Normal(centre, spread))
    z = component(jnp.array([0.2, 0.3, 0.5]), num_records)
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[z], 0.8), obs=data["age"])


def hierarchical_marginal(s: Sites, d: Data) -> jax.Array:
    return logsumexp(jnp.log(jnp.array([0.2, 0.3, 0.5])) + normal(d["age"], s["loc"], 0.8), axis=1)


# -- sites [K, K], where either axis could be the component -------------------------------------------


def square_sites(data: Data, num_records: int) -> None:
    rows = numpyro.sample("rows", dist.Dirichlet(jnp.ones(K + 1)).expand([K]).to_event(1))
    columns = numpyro.sample("columns", dist.Normal(0.0, 1.0).expand([K, K]).to_event(2))
    z = component(uniform_weights(), num_records)
    with party_plate("clinic", num_records):
        loc = columns[0, z] + 2.0 * columns[1, z] - columns[2, z]
        numpyro.sample("age", dist.Normal(loc, 1.0), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("plan", dist.Categorical(rows[z]), obs=data["plan"])


def square_sites_marginal(s: Sites, d: Data) -> jax.Array:
    loc = jnp.array([1.0, 2.0, -1.0]) @ s["columns"]
    plan = jnp.log(s["rows"]).T[d["plan"]]
    return logsumexp(-jnp.log(K) + normal(d["age"], loc, 1.0) + plan, axis=1)


# -- a component that reads another component's slice -------------------------------------------------


def permuted(data: Data, num_records: int) -> None:
    with numpyro.plate("components", K):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    z = component(jnp.array([0.2, 0.3, 0.5]), num_records)
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[(z + 1) % K], 1.0), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("cost", dist.Normal(loc[z], 0.5), obs=data["cost"])


def permuted_marginal(s: Sites, d: Data) -> jax.Array:
    parties = normal(d["age"], jnp.roll(s["loc"], -1), 1.0) + normal(d["cost"], s["loc"], 0.5)
    return logsumexp(jnp.log(jnp.array([0.2, 0.3, 0.5])) + parties, axis=1)


# -- no component at all ------------------------------------------------------------------------------


def one_component(data: Data, num_records: int) -> None:
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[0], scale), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("cost", dist.Normal(loc.sum(), scale), obs=data["cost"])


def one_component_marginal(s: Sites, d: Data) -> jax.Array:
    return (normal(d["age"], s["loc"][0], s["scale"]) + normal(d["cost"], s["loc"].sum(), s["scale"]))[:, 0]


# -- the library's own mixture on every kind of column ------------------------------------------------

EVERY_KIND = Schema(
    {
        "clinic": PartySchema(
            {
                "real": MASKED,
                "binned": BinnedColumn(bounds=(0, 10), bins=3),
                "integer": IntegerColumn(bounds=(1, 4), missing="mask"),
            }
        ),
        "insurer": PartySchema(
            {
                "categorical": CategoricalColumn(categories=("a", "b"), missing="category"),
                "binary": BinaryColumn(),
                "count": CountColumn(upper=5, missing="mask"),
            }
        ),
    }
)
_CODES = ("binned", "integer", "categorical")


def mixture_marginal(s: Sites, d: Data) -> jax.Array:
    num_components = s["real_a"].shape[0]
    a, b = s["real_a"], s["real_b"]
    x = d["real"][:, None]
    beta = (a - 1) * jnp.log(x) + (b - 1) * jnp.log1p(-x)
    terms = {name: jnp.log(s[f"{name}_probs"]).T[d[name]] for name in _CODES}
    terms["real"] = beta - jax.scipy.special.betaln(a, b)
    terms["binary"] = jnp.log(jnp.where(d["binary"][:, None] == 1, s["binary_prob"], 1 - s["binary_prob"]))
    terms["count"] = poisson(d["count"], s["count_rate"])
    log_density = sum(jnp.where(d.get(f"{k}_observed", jnp.ones(1))[:, None], v, 0.0) for k, v in terms.items())
    log_weights = jnp.log(s["weights"]) if num_components > 1 else 0.0
    return logsumexp(log_weights + log_density, axis=1)


def mixture_case(num_components: int) -> Case:
    plated = {
        "clinic": {"binned_probs": 0, "integer_probs": 0, "real_a": 0, "real_b": 0},
        "insurer": {"binary_prob": 0, "categorical_probs": 0, "count_rate": 0},
    }
    nothing = {"clinic": (), "insurer": ()}
    return Case(mixture_model(EVERY_KIND, num_components), mixture_marginal, plated, nothing, EVERY_KIND)


CASES = {
    "several_sites": Case(
        several_sites,
        several_sites_marginal,
        {
            "clinic": {"age_loc": 0, "rate": 0},
            "insurer": {"cost_loc": 0, "cost_scale": 0, "plan_probs": 0},
        },
        {"clinic": (), "insurer": ()},
    ),
    "shared_parameters": Case(
        shared_parameters,
        shared_parameters_marginal,
        {"clinic": {"loc": 0, "logits": 0}, "insurer": {}},
        {"clinic": ("both", "scale"), "insurer": ("both", "loc")},
        COMPLETE,
    ),
    "hierarchical": Case(
        hierarchical,
        hierarchical_marginal,
        {"clinic": {"loc": 0}, "insurer": {}},
        {"clinic": (), "insurer": ()},
    ),
    "square_sites": Case(
        square_sites,
        square_sites_marginal,
        {"clinic": {"columns": 1}, "insurer": {"rows": 0}},
        {"clinic": (), "insurer": ()},
    ),
    "permuted": Case(
        permuted,
        permuted_marginal,
        {"clinic": {}, "insurer": {"loc": 0}},
        {"clinic": ("loc",), "insurer": ()},
        COMPLETE,
    ),
    "one_component": Case(
        one_component,
        one_component_marginal,
        {"clinic": {}, "insurer": {}},
        {"clinic": ("loc", "scale"), "insurer": ("loc", "scale")},
        COMPLETE,
    ),
    "mixture": mixture_case(2),
}


def chain_case(num_parties: int) -> Case:
    """A mixture over any number of parties, two sites each."""
    parties = [f"party{p}" for p in range(num_parties)]
    parts = {p: PartySchema({f"{p}_x": UNIT, f"{p}_y": BinaryColumn()}) for p in parties}

    def model(data: Data, num_records: int) -> None:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
        with numpyro.plate("components", K):
            loc = {p: numpyro.sample(f"{p}_loc", dist.Normal(0.0, 1.0)) for p in parties}
            logit = {p: numpyro.sample(f"{p}_logit", dist.Normal(0.0, 1.0)) for p in parties}
        z = component(weights, num_records)
        for p in parties:
            with party_plate(p, num_records):
                numpyro.sample(f"{p}_x", dist.Normal(loc[p][z], 1.0), obs=data[f"{p}_x"])
                numpyro.sample(f"{p}_y", dist.Bernoulli(logits=logit[p][z]), obs=data[f"{p}_y"])

    def marginal(s: Sites, d: Data) -> jax.Array:
        total = jnp.log(s["weights"])
        for p in parties:
            sign = 2.0 * d[f"{p}_y"][:, None] - 1.0
            total = total + normal(d[f"{p}_x"], s[f"{p}_loc"], 1.0) + jax.nn.log_sigmoid(sign * s[f"{p}_logit"])
        return logsumexp(total, axis=1)

    plated = {p: {f"{p}_loc": 0, f"{p}_logit": 0} for p in parties}
    return Case(model, marginal, plated, dict.fromkeys(parties, ()), Schema(parts))


class Refused(dict[str, Any]):
    """Models that no split takes, by name, with the words that each one's error must hold; a decorator adds one."""

    def __call__(self, *needles):
        def register(model):
            self[model.__name__] = (model, needles)
            return model

        return register

    def check(self, name, schema):
        """The error says the words, and no value."""
        model, needles = self[name]
        with pytest.raises(ModelContractError) as caught:
            split_model(model, schema)
        said = str(caught.value)
        assert all(needle in said for needle in needles), said
        assert not re.search(r"\d\.\d", said), said
