"""Pulling a gradient back through a guide is the ELBO's own gradient, as NumPyro computes it."""

import inspect
from collections.abc import Iterator
from functools import partial

import jax
import jax.example_libraries.stax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.nn import logsumexp
from numpyro.infer import Trace_ELBO, autoguide, init_to_sample, init_to_uniform, init_to_value
from numpyro.infer.autoguide import (
    AutoBNAFNormal,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.util import log_density

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, RealColumn, Schema
from vertinumpyro.model import party_plate, split_model
from vertinumpyro.posterior.guide import SUPPORTED, ReparameterisedGuide, build_guide, check_guide

UNIT = RealColumn(bounds=(0, 1))
SCHEMA = Schema({"clinic": PartySchema({"age": UNIT}), "insurer": PartySchema({"cost": UNIT})})
NUM_RECORDS = 5

GUIDES = {
    "diagonal": AutoDiagonalNormal,
    "full_rank": AutoMultivariateNormal,
    "low_rank": partial(AutoLowRankMultivariateNormal, rank=2),
    "flow": partial(AutoIAFNormal, num_flows=2, hidden_dims=[12, 12]),
    "block_flow": partial(AutoBNAFNormal, num_flows=2, hidden_factors=[3]),
}
BY_SITE = {"mean_field": partial(AutoNormal, init_scale=0.3), "point": AutoDelta}


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
    factory = {**GUIDES, **BY_SITE}[name]
    guide, params = ReparameterisedGuide.create(factory, split, init_to_uniform, jax.random.key(0))
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
    rng_key = jax.random.key(7)
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
    rng_key = jax.random.key(5)

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
    rng_key, gradient = jax.random.key(1), jnp.array([1.0, -2.0, 0.5])
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
    rng_key = jax.random.key(2)
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
    guide, params = ReparameterisedGuide.create(factory, splits[1], start, jax.random.key(0))
    np.testing.assert_allclose(params["auto_loc"], [3.0, -1.0, np.log(2.0)], rtol=1e-5)
    drawn = guide.sample(params, jax.random.key(1))
    np.testing.assert_allclose(drawn, params["auto_loc"], atol=1e-3)


def test_a_draw_depends_on_its_key_alone(splits):
    guide, params = create("full_rank", splits[1])
    first, again, other = (guide.sample(params, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", BY_SITE)
@pytest.mark.parametrize("num_components", [1, 3])
def test_guides_by_site_pull_back_the_gradient_of_numpyros_densities(name, num_components, data, splits):
    """At the same draw, whose parameters go under NumPyro's own names into its own guide."""
    split = splits[num_components]
    guide, params = create(name, split)
    rng_key = jax.random.key(4)
    joint = partial(pooled, num_components=num_components)
    own_guide = BY_SITE[name](joint)
    with numpyro.handlers.seed(rng_seed=0):
        own_guide(data)  # lets it find the latents

    def elbo(params):
        named = guide.named_params(params)
        if name == "point":
            return -Trace_ELBO().loss(rng_key, named, joint, own_guide, data)
        latents = split.constrain(guide.sample(params, rng_key))
        log_joint, _ = log_density(joint, (data,), {}, latents)
        return log_joint - log_density(own_guide, (data,), {}, {**named, **latents})[0]

    @jax.jit
    def both(params):
        gradient = jax.grad(flat_log_likelihood)(guide.sample(params, rng_key), data, num_components)
        return guide.pull_back(params, rng_key, gradient), jax.grad(elbo)(params)

    actual, expected = both(params)
    assert_trees_close(actual, expected)
    assert max(jnp.abs(leaf).max() for leaf in jax.tree_util.tree_leaves(actual)) > 0.1


SETTINGS = {
    AutoDelta: {"prefix": "mine"},
    AutoNormal: {"prefix": "mine", "init_scale": 0.7},
    AutoDiagonalNormal: {"prefix": "mine", "init_scale": 0.7},
    AutoMultivariateNormal: {"prefix": "mine", "init_scale": 0.7},
    AutoLowRankMultivariateNormal: {"prefix": "mine", "init_scale": 0.7, "rank": 3},
    AutoIAFNormal: {
        "prefix": "mine",
        "num_flows": 2,
        "hidden_dims": [12],
        "skip_connections": True,
        "nonlinearity": jax.example_libraries.stax.Tanh,
    },
    AutoBNAFNormal: {"prefix": "mine", "num_flows": 2, "hidden_factors": [3]},
}


def test_every_supported_family_is_tested():
    assert set(SETTINGS) == set(SUPPORTED)
    assert {f.func if isinstance(f, partial) else f for f in {**GUIDES, **BY_SITE}.values()} == set(SUPPORTED)


@pytest.mark.parametrize("family", SETTINGS, ids=lambda family: family.__name__)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_an_instance_is_the_partial_with_its_settings(family, used, data, splits):
    split, settings = splits[3], SETTINGS[family]
    instance = family(model, init_loc_fn=init_to_sample, **settings)
    if used:  # by NumPyro's own SVI, on another model of the same sites
        instance = family(partial(pooled, num_components=3), init_loc_fn=init_to_sample, **settings)
        with numpyro.handlers.seed(rng_seed=0):
            instance(data)
    before = dict(vars(instance))
    named = partial(family, init_loc_fn=init_to_sample, **settings)
    (guide, params), (expected_guide, expected) = (
        ReparameterisedGuide.create(factory, split, init_to_uniform, jax.random.key(0)) for factory in (instance, named)
    )
    assert_trees_close(params, expected, tolerance=0)
    assert any(name.startswith(("mine_", "theta_mine_")) for name in params)
    key = jax.random.key(1)
    np.testing.assert_array_equal(guide.sample(params, key), expected_guide.sample(params, key))
    assert vars(instance) == before, "the user's guide stays as it is"
    default = ReparameterisedGuide.create(family, split, init_to_uniform, jax.random.key(0))[1]
    assert jax.tree_util.tree_structure(default) != jax.tree_util.tree_structure(params)


@pytest.mark.parametrize("family", SETTINGS, ids=lambda family: family.__name__)
def test_every_argument_of_an_instance_is_kept(family):
    """Whatever NumPyro's constructor takes in this release."""
    taken = set(inspect.signature(family.__init__).parameters) - {"self", "model", "init_loc_fn", "create_plates"}
    instance = family(model, **SETTINGS[family])
    rebuilt = build_guide(instance, model, init_to_uniform)
    assert taken
    for name in taken:
        stored = name if name in vars(instance) else f"_{name}"
        assert vars(rebuilt)[stored] == vars(instance)[stored]
    kept = {name: vars(rebuilt).get(name, vars(rebuilt).get(f"_{name}")) for name in taken}
    assert kept.items() >= SETTINGS[family].items()


@pytest.mark.parametrize("make", [partial(AutoNormal, model), partial(partial, AutoNormal)])
def test_a_strategy_given_to_the_guide_counts(make, splits):
    start = init_to_value(values={"age_loc": jnp.array([3.0]), "cost_loc": jnp.array([-1.0]), "scale": 2.0})
    _, params = ReparameterisedGuide.create(make(init_loc_fn=start), splits[1], init_to_uniform, jax.random.key(0))
    np.testing.assert_allclose(params["theta_auto_loc"], [3.0, -1.0, np.log(2.0)], rtol=1e-5)


def test_numpyros_default_strategy_does_not_replace_the_librarys(splits):
    start = init_to_value(values={"age_loc": jnp.array([3.0]), "cost_loc": jnp.array([-1.0]), "scale": 2.0})
    for factory in (AutoDelta(model), AutoDelta, AutoDiagonalNormal(model), AutoDiagonalNormal):
        guide, params = ReparameterisedGuide.create(factory, splits[1], start, jax.random.key(0))
        np.testing.assert_allclose(guide.location(params), [3.0, -1.0, np.log(2.0)], rtol=1e-5)


def test_a_subclass_that_keeps_its_arguments_elsewhere_is_refused_as_an_instance(splits):
    class Narrow(AutoDiagonalNormal):
        def __init__(self, model, *, tenth=1.0, **kwargs):
            super().__init__(model, init_scale=tenth / 10, **kwargs)

    with pytest.raises(ArgumentError, match=r"guide=Narrow .*'tenth'.*functools\.partial"):
        ReparameterisedGuide.create(Narrow(model), splits[1], init_to_uniform, jax.random.key(0))
    guide, params = ReparameterisedGuide.create(Narrow, splits[1], init_to_uniform, jax.random.key(0))
    np.testing.assert_allclose(guide.named_params(params)["auto_scale"], 0.1, rtol=1e-5)


def custom_guide(data, num_records):
    loc = numpyro.param("loc", 0.0)
    numpyro.sample("scale", dist.LogNormal(loc, 1.0))


REFUSED = {
    "function": custom_guide,
    "not_callable": "diagonal",
    "other_class": dict,
    "partial_of_a_function": partial(custom_guide, num_records=1),
    "list": autoguide.AutoGuideList(model),
    "dais": autoguide.AutoDAIS(model),
    "semi_dais": partial(autoguide.AutoSemiDAIS, local_model=model),
    "surrogate": autoguide.AutoSurrogateLikelihoodDAIS,
    "laplace": autoguide.AutoLaplaceApproximation(model),
    "batched": autoguide.AutoBatchedMultivariateNormal,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_guides_are_refused_with_what_works(name, splits):
    given = REFUSED[name]

    def use():
        check_guide(given, None)
        ReparameterisedGuide.create(given, splits[1], init_to_uniform, jax.random.key(0))

    with pytest.raises(ArgumentError) as caught:
        use()
    assert str(caught.value).startswith("guide=")
    assert all(family.__name__ in str(caught.value) for family in SUPPORTED)
    family = given.func if isinstance(given, partial) else type(given) if isinstance(given, AutoGuide) else given
    assert getattr(family, "__name__", str(family)) in str(caught.value)


def test_every_autoguide_of_numpyro_is_supported_or_refused_by_name():
    for name in autoguide.__all__:
        family = getattr(autoguide, name)
        if not issubclass(family, SUPPORTED):
            with pytest.raises(ArgumentError, match=f"guide={name} is not supported"):
                check_guide(family, None)


def test_a_guide_made_for_another_model_is_refused():
    with pytest.raises(ArgumentError, match=r"guide=AutoNormal\(\.\.\.\) was made for another function than `model`"):
        check_guide(AutoNormal(pooled), model)
    check_guide(AutoNormal(model), model)


@pytest.mark.parametrize("factory", [AutoIAFNormal, AutoBNAFNormal, partial(AutoIAFNormal, hidden_dims=[1])])
def test_settings_that_do_not_fit_are_named(factory, splits):
    num_components = 3 if isinstance(factory, partial) else 1
    split = splits[num_components] if num_components == 3 else split_model(one_parameter, SCHEMA)
    with pytest.raises(ArgumentError, match=rf"guide=Auto\w+ does not fit the model's {split.num_parameters} param"):
        ReparameterisedGuide.create(factory, split, init_to_uniform, jax.random.key(0))


def one_parameter(data, num_records):
    loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc, 1.0), obs=data["age"])
