"""NumPyro's handlers and primitives in a model: each is taken as NumPyro means it, or refused by name.

`docs/numpyro.md` has the same rows, and the same verdicts.
"""

import dataclasses
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import transforms
from numpyro.infer import (
    Predictive,
    init_to_feasible,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from numpyro.infer.reparam import (
    CircularReparam,
    ExplicitReparam,
    LocScaleReparam,
    ProjectedNormalReparam,
    TransformReparam,
)
from numpyro.infer.util import constrain_fn, potential_energy
from numpyro.primitives import mutable

from tests.model.cases import UNIT, draw_columns
from tests.model.reference import own_columns, random_theta
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import PartySchema, Schema
from vertinumpyro.model import UNOBSERVED, inspect_model, party_plate, split_model

SCHEMA = Schema({"clinic": PartySchema({"age": UNIT}), "insurer": PartySchema({"cost": UNIT})})
NUM_RECORDS = 5
ALL = {"loc", "scale", "b"}


def observe(data, num_records, first, second):
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(first, 0.7), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("cost", dist.Normal(second, 0.5), obs=data["cost"])


def model(data, num_records):
    """A hierarchy: two coefficients, one at each party, about a common mean."""
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 2):
        b = numpyro.sample("b", dist.Normal(loc, scale))
    observe(data, num_records, b[0], b[1])


def of_latent(distribution, *, then=lambda x: x):
    """One vector of two as latent b."""

    def one(data, num_records):
        b = then(numpyro.sample("b", distribution()))
        observe(data, num_records, b[0], b[1])

    return one


@dataclasses.dataclass(frozen=True)
class Row:
    """A model, and its latents, and what follows from them; or the words in which it is refused."""

    model: Callable[..., None]
    latents: set[str] = dataclasses.field(default_factory=lambda: ALL)
    derived: set[str] = dataclasses.field(default_factory=set)
    refused: tuple[str, ...] = ()


def refused(model: Any, *needles: str) -> Row:
    return Row(model, set(), set(), needles)


def reparam(strategy, latents, source=model):
    return Row(handlers.reparam(source, config={"b": strategy}), latents, {"b"})


def affine():
    return dist.TransformedDistribution(dist.Normal(0, 1).expand([2]), transforms.AffineTransform(0.3, 2.0)).to_event(1)


def conditioned_columns(data, num_records):
    """A model written without obs, conditioned on the columns."""

    def generative(num_records):
        model({"age": None, "cost": None}, num_records)

    handlers.condition(generative, data=data)(num_records)


def with_param(data, num_records):
    observe(data, num_records, numpyro.param("b", 0.3), 0.1)


def scoped(data, num_records):
    """Each party's part in a scope of its own, plates and all."""
    for party, column in (("clinic", "age"), ("insurer", "cost")):
        with handlers.scope(prefix=party):
            loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
            with party_plate(party, num_records):
                numpyro.sample(column, dist.Normal(loc, 0.5), obs=data[column])


def masked(data, num_records):
    with handlers.mask(mask=False):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    observe(data, num_records, b[0], b[1])


def with_factor(data, num_records):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.factor("near", -jnp.square(b[0] - b[1]))
    observe(data, num_records, b[0], b[1])
    with party_plate("clinic", num_records):
        numpyro.factor("more", -jnp.square(data["age"] - b[0]) / 8)


def with_deterministic(data, num_records):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.deterministic("gap", b[0] - b[1])
    numpyro.deterministic("expected", num_records * b[0])
    numpyro.deterministic("mean", data["age"].mean() * b[0])
    observe(data, num_records, b[0], b[1])


def scanned(data, num_records):
    def step(carry, _):
        carry = numpyro.sample("b", dist.LogNormal(carry, 0.5))
        return carry, carry

    _, walk = scan(step, numpyro.sample("loc", dist.Normal(0.0, 1.0)), None, length=2)
    observe(data, num_records, walk[0], walk[1])


def branched(data, num_records):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    b = cond(
        num_records > 0,
        lambda x: numpyro.sample("b", dist.LogNormal(x, 0.5)),
        lambda x: numpyro.sample("b", dist.LogNormal(x, 0.5)),
        loc,
    )
    observe(data, num_records, b, loc)


def stacked(data, num_records):
    with numpyro.plate_stack("cells", (2, 2)):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(data, num_records, b[0, 0] + b[1, 1], b[0, 1] - b[1, 0])


def sample_shape(data, num_records):
    b = numpyro.sample("b", dist.HalfNormal(1.0), sample_shape=(2,))
    observe(data, num_records, b[0], b[1])


def subsampled(data, num_records):
    with numpyro.plate("groups", 4, subsample_size=2):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(data, num_records, b[0], b[1])


def partly_observed(data, num_records):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with party_plate("clinic", num_records):
        numpyro.sample("x", dist.Normal(b, 1.0), obs=data["age"], obs_mask=data["age"] > 0.5)


def drawn_inside(data, num_records):
    noise = jax.random.normal(numpyro.prng_key(), (2,))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1)) + noise
    observe(data, num_records, b[0], b[1])


def with_state(data, num_records):
    observe(data, num_records, mutable("state", 0.3), numpyro.sample("b", dist.Normal(0.0, 1.0)))


def drawn_trace():
    with handlers.seed(rng_seed=0):
        return handlers.trace(model).get_trace(draw_columns(SCHEMA, 2, 0), 2)


# By their rows in docs/numpyro.md; what stands behind a comma is another case of the same row.
ROWS = {
    "handlers.condition": Row(handlers.condition(model, data={"scale": jnp.array(1.2)}), {"loc", "b"}),
    "handlers.condition, columns": Row(conditioned_columns),
    "handlers.do": Row(handlers.do(model, data={"loc": jnp.array(0.4)})),
    "handlers.reparam": reparam(LocScaleReparam(0), {"loc", "scale", "b_decentered"}),
    "LocScaleReparam": reparam(LocScaleReparam(0.5), {"loc", "scale", "b_decentered"}),
    "LocScaleReparam()": refused(
        handlers.reparam(model, config={"b": LocScaleReparam()}), "param", "LocScaleReparam(0)"
    ),
    "TransformReparam": reparam(TransformReparam(), {"b_base"}, of_latent(affine)),
    "ExplicitReparam": reparam(ExplicitReparam(transforms.AffineTransform(0.0, 3.0)), {"loc", "scale", "b_base"}),
    "CircularReparam": reparam(
        CircularReparam(), {"b_unwrapped"}, of_latent(lambda: dist.VonMises(jnp.zeros(2), 1.0).to_event(1))
    ),
    "ProjectedNormalReparam": reparam(
        ProjectedNormalReparam(), {"b_normal"}, of_latent(lambda: dist.ProjectedNormal(jnp.ones(2)))
    ),
    "handlers.scope": Row(scoped, {"clinic/loc", "insurer/loc"}),
    "handlers.scope, around all": Row(handlers.scope(model, prefix="a"), {f"a/{name}" for name in ALL}),
    "handlers.mask": Row(masked, {"b"}),
    "handlers.seed": Row(handlers.seed(model, rng_seed=0)),
    "handlers.lift": Row(handlers.lift(with_param, prior=dist.Normal(0.0, 1.0)), {"b"}),
    "handlers.infer_config": Row(handlers.infer_config(model, config_fn=lambda site: {"enumerate": "sequential"})),
    "handlers.trace": Row(handlers.trace(model)),
    "handlers.block": refused(handlers.block(model, hide=["b"]), "handlers.block", "handlers.condition"),
    "handlers.substitute": refused(
        handlers.substitute(model, data={"b": jnp.zeros(2)}), "'b'", "handlers.substitute", "handlers.condition(model"
    ),
    "handlers.substitute, in a scan": refused(
        handlers.substitute(scanned, data={"b": jnp.ones(2)}), "'b'", "handlers.substitute"
    ),
    "handlers.replay": refused(handlers.replay(model, drawn_trace()), "handlers.replay"),
    "handlers.scale": refused(handlers.scale(model, scale=0.5), "handlers.scale"),
    "handlers.collapse": refused(handlers.collapse(model), "handlers.collapse"),
    "deterministic": Row(with_deterministic, {"b"}, {"gap", "expected"}),
    "factor": Row(with_factor, {"b"}),
    "plate": Row(model),
    "plate_stack": Row(stacked, {"b"}),
    "sample_shape": Row(sample_shape, {"b"}),
    "contrib.control_flow.scan": Row(scanned, {"loc", "b"}),
    "contrib.control_flow.cond": Row(branched, {"loc", "b"}),
    "subsample_size": refused(subsampled, "'b'", "subsample_size"),
    "obs_mask": refused(partly_observed, "obs_mask", "handlers.mask"),
    "param": refused(with_param, "'b'", "param", "handlers.lift"),
    "mutable": refused(with_state, "'state'", "mutable"),
    "prng_key": refused(drawn_inside, "prng_key"),
}  # fmt: skip
TAKEN = [name for name, row in ROWS.items() if not row.refused]


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_has_numpyros_density_and_latents(name):
    row = ROWS[name]
    split = split_model(row.model, SCHEMA)
    assert set(split.structure.latents) == row.latents
    assert set(split.structure.derived) == row.derived
    data, flat = draw_columns(SCHEMA, NUM_RECORDS, 1), random_theta(split, 0)
    theta = split.unflatten(flat)
    expected = -potential_energy(handlers.seed(row.model, 0), (data, NUM_RECORDS), {}, theta)
    parts = [split.log_density(party, flat, own_columns(split, party, data)).sum() for party in split.parties]
    np.testing.assert_allclose(split.log_prior(flat) + sum(parts), expected, rtol=1e-4)
    values = constrain_fn(handlers.seed(row.model, 0), (data, NUM_RECORDS), {}, theta, return_deterministic=True)
    found = split.with_derived(flat, NUM_RECORDS)
    assert found.keys() == row.latents | row.derived
    for site, value in found.items():
        np.testing.assert_allclose(value, values[site], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ROWS if name not in TAKEN])
def test_what_is_not_taken_is_refused_by_name(name):
    with pytest.raises(ModelContractError) as caught:
        inspect_model(ROWS[name].model, SCHEMA)
    for needle in ROWS[name].refused:
        assert needle in str(caught.value)


def test_the_page_has_these_rows_and_verdicts():
    page = (Path(__file__).parents[2] / "docs/numpyro.md").read_text(encoding="utf-8")
    sections = (section.partition("\n") for section in re.split(r"^## ", page, flags=re.MULTILINE))
    found = {title: set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)) for title, _, text in sections}
    rows = {name.partition(",")[0] for name in ROWS}
    taken = {name.partition(",")[0] for name in TAKEN}
    assert found["Taken"] == taken | {start.__name__ for start in STARTS} | {"Predictive"}
    assert found["Refused"] == rows - taken
    for module, name in re.findall(r"\b(vnp|vertinumpyro\.model)\.(\w+)", page):
        assert hasattr(importlib.import_module(module.replace("vnp", "vertinumpyro")), name)


STARTS = {
    init_to_feasible: None,
    init_to_mean: None,
    init_to_median: None,
    init_to_sample: None,
    init_to_uniform: None,
    init_to_value: init_to_value(values={"b": jnp.array([0.25, -0.5]), "loc": 0.1, "scale": 2.0}),
}


@pytest.mark.parametrize("strategy", list(STARTS), ids=lambda strategy: strategy.__name__)
def test_a_start_is_numpyros(strategy):
    split = split_model(model, SCHEMA)
    start = split.constrain(split.init(STARTS[strategy] or strategy, jax.random.PRNGKey(3)))
    assert all(np.isfinite(value).all() for value in start.values())
    if strategy is init_to_value:
        np.testing.assert_allclose(start["b"], [0.25, -0.5])
        np.testing.assert_allclose([start["loc"], start["scale"]], [0.1, 2.0], rtol=1e-6)


def test_numpyros_predictive_takes_the_draws_of_a_posterior():
    """Of a reparametrised model with what follows from its latents, as `get_samples` returns them."""
    of = ROWS["LocScaleReparam"].model
    split = split_model(of, SCHEMA)
    draws = jax.vmap(lambda flat: split.with_derived(flat, 4))(0.1 * jnp.arange(12.0).reshape(3, 4))
    drawn = Predictive(of, draws)(jax.random.PRNGKey(0), UNOBSERVED, 4)
    assert drawn["age"].shape == (3, 4)
    assert np.abs(np.asarray(drawn["age"]) - draws["b"][:, :1]).max() < 0.7 * 5
