"""Pulling a gradient back through a guide is the ELBO's own gradient, as NumPyro computes it."""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp
from numpyro.infer import Trace_ELBO, init_to_uniform, init_to_value
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, RealColumn, Schema
from vertinumpyro.dpvi.guide import ReparameterisedGuide
from vertinumpyro.model import party_plate, split_model

UNIT = RealColumn(bounds=(0, 1))
SCHEMA = Schema({"clinic": PartySchema({"age": UNIT}), "insurer": PartySchema({"cost": UNIT})})
NUM_RECORDS = 5

GUIDES = {
    "diagonal": AutoDiagonalNormal,
    "full_rank": AutoMultivariateNormal,
    "low_rank": partial(AutoLowRankMultivariateNormal, rank=2),
    "flow": partial(AutoIAFNormal, num_flows=2, hidden_dims=[12, 12]),
}


@pytest.fixture(scope="module", autouse=True)
def _compile_fast() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.random(NUM_RECORDS), jnp.float32) for name in ("age", "cost")}


def priors(num_components):
    with numpyro.plate("components", num_components):
        age = numpyro.sample("age_loc", dist.Normal(0.0, 1.0))
        cost = numpyro.sample("cost_loc", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_components))) if num_components > 1 else None
    return age, cost, scale, weights


def model(data, num_records, num_components):
    age, cost, scale, weights = priors(num_components)
    z = jnp.zeros(1, int)
    if num_components > 1:
        with numpyro.plate("records", num_records):
            z = numpyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(age[z], scale), obs=data["age"])
    with party_plate("insurer", num_records):
        numpyro.sample("cost", dist.Normal(cost[z], scale), obs=data["cost"])


def log_likelihood(age, cost, scale, weights, data):
    """Written out, z summed out."""

    def normal(value, loc):
        return -0.5 * ((value[:, None] - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi)

    log_weights = 0.0 if weights is None else jnp.log(weights)
    return logsumexp(log_weights + normal(data["age"], age) + normal(data["cost"], cost), axis=1).sum()


def pooled(data, num_components):
    """The model for NumPyro's own ELBO: the component summed out by hand."""
    numpyro.factor("log_likelihood", log_likelihood(*priors(num_components), data))


def stick_breaking(y):
    """The simplex of unconstrained y, written out."""
    offset = jnp.log(y.shape[0] - jnp.arange(y.shape[0]))
    share = jax.nn.sigmoid(y - offset)
    left = jnp.cumprod(1.0 - share)
    rest = jnp.concatenate([jnp.ones(1), left[:-1]])
    return jnp.concatenate([share * rest, left[-1:]]), (jnp.log(share * (1.0 - share)) + jnp.log(rest)).sum()


def flat_log_likelihood(flat, data, num_components):
    """At flat theta, its sites in alphabetical order: age_loc, cost_loc, scale, weights."""
    K = num_components
    weights = stick_breaking(flat[2 * K + 1 :])[0] if K > 1 else None
    return log_likelihood(flat[:K], flat[K : 2 * K], jnp.exp(flat[2 * K]), weights, data)


def flat_log_prior(flat, num_components):
    K = num_components
    total = -0.5 * (flat[: 2 * K] ** 2).sum() - K * jnp.log(2 * jnp.pi)
    total = total - 0.5 * (flat[2 * K] / 0.5) ** 2 - jnp.log(0.5) - 0.5 * jnp.log(2 * jnp.pi)
    if K == 1:
        return total
    return total + jax.lax.lgamma(float(K)) + stick_breaking(flat[2 * K + 1 :])[1]


@pytest.fixture(scope="module")
def splits():
    return {K: split_model(model, SCHEMA, {"num_components": K}) for K in (1, 3)}


def jittered(params):
    """Parameters away from their symmetric start."""
    leaves, tree = jax.tree_util.tree_flatten(params)
    rng = np.random.default_rng(3)
    moved = [leaf + jnp.asarray(rng.normal(0, 0.2, jnp.shape(leaf)), jnp.float32) for leaf in leaves]
    return jax.tree_util.tree_unflatten(tree, moved)


def create(name, split):
    guide, params = ReparameterisedGuide.create(GUIDES[name], split, init_to_uniform, jax.random.PRNGKey(0))
    return guide, jittered(params)


def assert_trees_close(actual, expected, tolerance=1e-4):
    assert jax.tree_util.tree_structure(actual) == jax.tree_util.tree_structure(expected)
    for a, b in zip(jax.tree_util.tree_leaves(actual), jax.tree_util.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "num_components"), [("diagonal", 1), *((name, 3) for name in GUIDES)])
def test_pull_back_equals_the_gradient_of_numpyros_elbo(name, num_components, data, splits):
    guide, params = create(name, splits[num_components])
    own_guide = GUIDES[name](partial(pooled, num_components=num_components), init_loc_fn=init_to_uniform)
    with numpyro.handlers.seed(rng_seed=0):
        own_guide(data)  # lets it find the latents
    rng_key = jax.random.PRNGKey(7)
    _, guide_key = jax.random.split(rng_key)  # Trace_ELBO splits its key into the model's and the guide's

    def loss(params):
        joint = partial(pooled, num_components=num_components)
        return Trace_ELBO().loss(rng_key, guide.constrain_params(params), joint, own_guide, data)

    @jax.jit
    def both(params):
        theta = guide.sample(params, guide_key)
        gradient = jax.grad(flat_log_likelihood)(theta, data, num_components)
        return guide.pull_back(params, guide_key, gradient), jax.grad(lambda p: -loss(p))(params)

    assert_trees_close(*both(params))


@pytest.mark.parametrize("name", ["diagonal", "full_rank", "low_rank"])
def test_pull_back_equals_autodiff_of_a_written_elbo(name, data, splits):
    num_components = 3
    guide, params = create(name, splits[num_components])
    rng_key = jax.random.PRNGKey(5)

    def elbo(params):
        substituted = numpyro.handlers.substitute(guide.guide, data=guide.constrain_params(params))
        trace = numpyro.handlers.trace(numpyro.handlers.seed(substituted, rng_key)).get_trace()
        site = trace["_auto_latent"]
        flat = site["value"]
        joint = flat_log_prior(flat, num_components) + flat_log_likelihood(flat, data, num_components)
        return joint - site["fn"].log_prob(flat).sum()

    @jax.jit
    def both(params):
        gradient = jax.grad(flat_log_likelihood)(guide.sample(params, rng_key), data, num_components)
        return guide.pull_back(params, rng_key, gradient), jax.grad(elbo)(params)

    actual, expected = both(params)
    assert_trees_close(actual, expected)
    assert max(jnp.abs(leaf).max() for leaf in jax.tree_util.tree_leaves(actual)) > 0.1


def test_diagonal_guide_by_hand(data, splits):
    guide, params = create("diagonal", splits[1])
    rng_key, gradient = jax.random.PRNGKey(1), jnp.array([1.0, -2.0, 0.5])
    scale = guide.constrain_params(params)["auto_scale"]
    theta = guide.sample(params, rng_key)
    eta = (theta - params["auto_loc"]) / scale
    total = gradient + jnp.array([-theta[0], -theta[1], -theta[2] / 0.25])
    pulled = guide.pull_back(params, rng_key, gradient)
    # theta = loc + scale * eta, and log q = -sum(log scale) + const at fixed eta.
    by_scale = jax.grad(lambda u: guide.transforms["auto_scale"](u).sum())(params["auto_scale"])
    np.testing.assert_allclose(pulled["auto_loc"], total, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(pulled["auto_scale"], (total * eta + 1 / scale) * by_scale, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["diagonal", "full_rank"])
def test_entropy_bound_is_the_public_part_of_the_elbo(name, splits):
    guide, params = create(name, splits[1])
    rng_key = jax.random.PRNGKey(2)
    zero = jnp.zeros(splits[1].num_parameters)

    @jax.jit
    def both(params):
        by_prior = jax.grad(lambda params: guide.entropy_bound(params, rng_key))
        return by_prior(params), guide.pull_back(params, rng_key, zero)

    assert_trees_close(*both(params))


def test_guide_starts_at_the_strategys_value(splits):
    values = {"age_loc": jnp.array([3.0]), "cost_loc": jnp.array([-1.0]), "scale": 2.0}
    factory = partial(AutoDiagonalNormal, init_scale=1e-4)
    start = init_to_value(values=values)
    guide, params = ReparameterisedGuide.create(factory, splits[1], start, jax.random.PRNGKey(0))
    np.testing.assert_allclose(params["auto_loc"], [3.0, -1.0, np.log(2.0)], rtol=1e-5)
    drawn = guide.sample(params, jax.random.PRNGKey(1))
    np.testing.assert_allclose(drawn, params["auto_loc"], atol=1e-3)


def test_a_draw_depends_on_its_key_alone(splits):
    guide, params = create("full_rank", splits[1])
    first, again, other = (guide.sample(params, jax.random.PRNGKey(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("factory", [AutoNormal, AutoDelta])
def test_guides_without_one_joint_latent_are_refused(factory, splits):
    with pytest.raises(ArgumentError, match=factory.__name__):
        ReparameterisedGuide.create(factory, splits[1], init_to_uniform, jax.random.PRNGKey(0))
