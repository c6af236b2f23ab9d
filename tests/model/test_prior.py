"""The public part: log prior, transforms, and where a run starts."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.infer import init_to_median, init_to_uniform, init_to_value

from tests.model.cases import CASES, K, component, draw_columns, mixture_case
from tests.model.reference import constrained, random_theta
from tests.model.reference import log_prior as reference_log_prior
from vertinumpyro.data import PartySchema, RealColumn, Schema
from vertinumpyro.model import party_plate, split_model

SCHEMA = Schema({"clinic": PartySchema({"age": RealColumn(bounds=(0, 1))})})
DATA = draw_columns(SCHEMA, 3, 0)


def observe(loc, num_records, data):
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc, 1.0), obs=data["age"])


def dynamic_support(data, num_records):
    width = numpyro.sample("width", dist.HalfNormal(1.0))
    inside = numpyro.sample("inside", dist.Uniform(-width, width))
    above = numpyro.sample("above", dist.TruncatedNormal(0.0, 1.0, low=inside))
    observe(inside + above, num_records, data)


def public_factor(data, num_records):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.factor("sum_to_one", -10.0 * (loc.sum() - 1.0) ** 2)
    numpyro.sample("known", dist.Normal(loc[0], 0.1), obs=0.25)
    observe(loc[1], num_records, data)


def event_transforms(data, num_records):
    simplex = numpyro.sample("simplex", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])).expand([2]))
    ordered = numpyro.sample(
        "ordered",
        dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), dist.transforms.OrderedTransform()),
    )
    z = component(simplex[0], num_records)
    observe(ordered[z] + simplex[1, z], num_records, data)


def improper(data, num_records):
    scale = numpyro.sample("scale", dist.ImproperUniform(constraints.positive, (), (2,)))
    observe(scale.sum(), num_records, data)


def masked_prior(data, num_records):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([3]).mask(jnp.array([True, False, True])))
    observe(loc.sum(), num_records, data)


PRIORS = [
    dynamic_support,
    public_factor,
    event_transforms,
    improper,
    masked_prior,
    CASES["hierarchical"].model,
]


@pytest.mark.parametrize("model", PRIORS, ids=lambda model: model.__name__)
def test_log_prior_and_constrain_equal_numpyros(model):
    schema = CASES["hierarchical"].schema if model is CASES["hierarchical"].model else SCHEMA
    split, data = split_model(model, schema), draw_columns(schema, 3, 0)
    ours = jax.jit(jax.value_and_grad(split.log_prior))
    theirs = jax.jit(
        jax.value_and_grad(lambda flat: reference_log_prior(model, split.unflatten(flat), data, ["z", "age"]))
    )
    for seed in range(3):
        flat = random_theta(split, seed)
        for actual, expected in zip(ours(flat), theirs(flat), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)
        expected_sites = constrained(model, split.unflatten(flat), data, 3)
        for name, value in split.constrain(flat).items():
            np.testing.assert_allclose(value, expected_sites[name], rtol=1e-5, atol=1e-6)


def test_the_mixtures_prior_counts_every_parameter_once():
    case = mixture_case(2)
    split, data = split_model(case.model, case.schema), case.data()
    flat = random_theta(split, 0)
    hidden = ["z", *case.schema.columns]
    expected = jax.jit(lambda flat: reference_log_prior(case.model, split.unflatten(flat), data, hidden))
    np.testing.assert_allclose(jax.jit(split.log_prior)(flat), expected(flat), rtol=1e-5)


STRATEGIES = {"uniform": init_to_uniform, "median": init_to_median(num_samples=5)}


STARTS = [("uniform", dynamic_support), ("uniform", event_transforms), ("median", dynamic_support)]


@pytest.mark.parametrize(("strategy", "model"), STARTS, ids=lambda value: getattr(value, "__name__", value))
def test_init_is_finite_inside_the_supports_and_depends_on_the_key(strategy, model):
    split = split_model(model, SCHEMA)
    starts = [split.init(STRATEGIES[strategy], jax.random.key(seed)) for seed in (0, 0, 1)]
    assert np.isfinite(starts[0]).all()
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])
    assert np.isfinite(split.log_prior(starts[0]))
    sites = split.constrain(starts[0])
    if model is dynamic_support:
        assert sites["width"] > 0
        assert abs(sites["inside"]) < sites["width"]
        assert sites["inside"] < sites["above"]
    if model is event_transforms:
        np.testing.assert_allclose(sites["simplex"].sum(axis=-1), 1.0, rtol=1e-5)
        assert (np.diff(sites["ordered"]) > 0).all()


def test_init_to_median_is_the_median_of_the_prior():
    def model(data, num_records):
        far = numpyro.sample("far", dist.Normal(100.0, 0.01).expand([K]).to_event(1))
        z = component(jnp.ones(K) / K, num_records)
        observe(far[z], num_records, data)

    start = split_model(model, SCHEMA).init(init_to_median, jax.random.key(0))
    np.testing.assert_allclose(start, 100.0, atol=0.1)


def test_init_to_value_starts_at_the_value():
    split = split_model(dynamic_support, SCHEMA)
    values = {"width": 0.5, "inside": -0.25, "above": 3.0}
    start = split.init(init_to_value(values=values), jax.random.key(0))
    sites = split.constrain(start)
    assert set(sites) == set(values)
    for name, value in values.items():
        np.testing.assert_allclose(sites[name], value, rtol=1e-5)


def test_init_takes_an_improper_prior():
    split = split_model(improper, SCHEMA)
    assert (split.constrain(split.init(init_to_uniform, jax.random.key(0)))["scale"] > 0).all()
