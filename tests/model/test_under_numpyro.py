"""The same model function, unchanged, under NumPyro's own inference on pooled data."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.funsor import config_enumerate, enum, log_density
from numpyro.infer import MCMC, NUTS, SVI, Predictive, TraceEnum_ELBO, init_to_median, init_to_value
from numpyro.infer.autoguide import AutoNormal

from tests.model.cases import EVERY_KIND, normal
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema
from vertinumpyro.model import UNOBSERVED, mixture_model, party_plate, split_model

NUM_RECORDS = 40
UNIT = RealColumn(bounds=(0, 1))
SCHEMA = Schema({"clinic": PartySchema({"age": UNIT}), "insurer": PartySchema({"cost": UNIT})})


def model(data, num_records, batch_size=None):
    """Two components at two parties; it returns the indices that each plate drew."""
    with numpyro.plate("components", 2):
        age_loc = numpyro.sample("age_loc", dist.Normal(0.0, 1.0))
        cost_loc = numpyro.sample("cost_loc", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", num_records, subsample_size=batch_size) as records:
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])), infer={"enumerate": "parallel"})
    with party_plate("clinic", num_records, batch_size) as at_clinic:
        age = data["age"] if batch_size is None else data["age"][at_clinic]
        numpyro.sample("age", dist.Normal(age_loc[z], 0.1), obs=age)
    with party_plate("insurer", num_records, batch_size) as at_insurer:
        cost = data["cost"] if batch_size is None else data["cost"][at_insurer]
        numpyro.sample("cost", dist.Normal(cost_loc[z], 0.1), obs=cost)
    return records, at_clinic, at_insurer


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    first = rng.random(NUM_RECORDS) < 0.4
    columns = {"age": np.where(first, 0.2, 0.8), "cost": np.where(first, 0.7, 0.3)}
    return {k: jnp.asarray(v + rng.normal(0, 0.05, NUM_RECORDS), jnp.float32) for k, v in columns.items()}


def marginal(sites, data):
    parts = normal(data["age"], sites["age_loc"], 0.1) + normal(data["cost"], sites["cost_loc"], 0.1)
    return jax.nn.logsumexp(jnp.log(jnp.array([0.4, 0.6])) + parts, axis=1)


def test_the_model_splits():
    assert split_model(model, SCHEMA).num_components == 2


# AutoContinuous guides (AutoMultivariateNormal, flows) under TraceEnum_ELBO are a known NumPyro limitation,
# pooled data or not, so pooled SVI of a model with a component takes AutoNormal.
@pytest.mark.parametrize("batch_size", [None, 10])
def test_svi_learns(data, batch_size):
    start = {"age_loc": jnp.array([0.4, 0.6]), "cost_loc": jnp.array([0.5, 0.5])}
    latents_only = handlers.block(model, hide=["z"])
    guide = AutoNormal(latents_only, init_loc_fn=init_to_value(values=start), init_scale=0.02)
    svi = SVI(model, guide, numpyro.optim.Adam(0.02), TraceEnum_ELBO())
    result = svi.run(jax.random.key(2), 500, data, NUM_RECORDS, batch_size, progress_bar=False)
    np.testing.assert_allclose(result.params["age_loc_auto_loc"], [0.2, 0.8], atol=0.1)
    np.testing.assert_allclose(result.params["cost_loc_auto_loc"], [0.7, 0.3], atol=0.1)


def test_nuts_runs_and_posterior_predictive_draws_records(data):
    sampler = MCMC(
        NUTS(model, init_strategy=init_to_median, max_tree_depth=4), num_warmup=20, num_samples=5, progress_bar=False
    )
    sampler.run(jax.random.key(0), data, NUM_RECORDS)
    posterior = sampler.get_samples()
    assert {name: value.shape for name, value in posterior.items()} == {"age_loc": (5, 2), "cost_loc": (5, 2)}
    drawn = Predictive(model, posterior)(jax.random.key(1), UNOBSERVED, 7)
    assert drawn["age"].shape == drawn["cost"].shape == drawn["z"].shape == (5, 7)
    loc = np.take_along_axis(np.asarray(posterior["age_loc"]), np.asarray(drawn["z"]), axis=1)
    assert np.abs(drawn["age"] - loc).max() < 0.6  # six standard deviations


def test_all_party_plates_share_the_batch_of_the_records_plate(data):
    def indices(seed):
        with handlers.trace(), handlers.seed(rng_seed=seed):
            return [np.asarray(batch) for batch in model(data, NUM_RECORDS, 10)]

    records, at_clinic, at_insurer = indices(0)
    assert len(np.unique(records)) == 10
    np.testing.assert_array_equal(at_clinic, records)
    np.testing.assert_array_equal(at_insurer, records)
    assert not np.array_equal(indices(1)[0], records)


def test_all_party_plates_share_a_batch_under_enumeration(data):
    def indices(seed):
        drawn = []
        recorded = lambda data: drawn.append(model(data, NUM_RECORDS, 10))  # noqa: E731
        enumerated = enum(config_enumerate(handlers.seed(recorded, seed)), first_available_dim=-2)
        log_density(enumerated, (data,), {}, {})
        return [np.asarray(batch) for batch in drawn[0]]

    _, at_clinic, at_insurer = indices(0)
    assert len(np.unique(at_clinic)) == 10
    np.testing.assert_array_equal(at_clinic, at_insurer)
    assert not np.array_equal(indices(1)[1], at_clinic)


def test_a_batchs_log_density_is_scaled_to_all_records(data):
    batch = jnp.array([3, 1, 20, 39])
    sites = {"age_loc": jnp.array([0.1, 0.9]), "cost_loc": jnp.array([0.5, 0.4])}
    at_batch = handlers.substitute(handlers.seed(model, 0), data={"records": batch})
    enumerated = enum(config_enumerate(at_batch), first_available_dim=-2)
    actual, _ = log_density(enumerated, (data, NUM_RECORDS, 4), {}, sites)
    prior = sum(dist.Normal(0, 1).log_prob(value).sum() for value in sites.values())
    rows = {name: column[batch] for name, column in data.items()}
    np.testing.assert_allclose(actual, prior + NUM_RECORDS / 4 * marginal(sites, rows).sum(), rtol=1e-4)


def test_prior_predictive_of_the_mixture_draws_every_column_in_its_domain():
    predictive = Predictive(mixture_model(EVERY_KIND, 2), num_samples=4)
    drawn = jax.jit(lambda rng_key: predictive(rng_key, UNOBSERVED, 6))(jax.random.key(0))
    for name, column in EVERY_KIND.columns.items():
        values = np.asarray(drawn[name])
        assert values.shape == (4, 6)
        assert values.min() >= 0
        if column.kind == "real":
            assert values.max() <= 1
        elif column.kind != "count":
            assert values.max() < column.num_categories


@pytest.mark.parametrize("num_components", [1, 3])
def test_the_mixture_draws_columns_that_are_simply_absent(num_components):
    schema = Schema({"clinic": PartySchema({"sick": BinaryColumn(missing="mask")})})
    predictive = Predictive(mixture_model(schema, num_components), num_samples=4)
    drawn = jax.jit(lambda rng_key: predictive(rng_key, {}, 6))(jax.random.key(0))
    assert drawn["sick"].shape == (4, 6)
    assert set(np.unique(drawn["sick"])) <= {0, 1}


def test_prior_predictive_of_a_model_that_indexes_its_columns():
    drawn = Predictive(model, num_samples=3)(jax.random.key(0), UNOBSERVED, 6)
    assert drawn["age"].shape == drawn["cost"].shape == (3, 6)


def test_unobserved_has_no_value_and_no_missing_one():
    assert UNOBSERVED["age"] is None
    assert UNOBSERVED.get("age", 1) is None
    assert UNOBSERVED["age_observed"] is True
    assert (UNOBSERVED or {}) is UNOBSERVED
    assert dict(UNOBSERVED) == {}
    assert repr(UNOBSERVED) == "UNOBSERVED"
