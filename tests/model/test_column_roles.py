"""What a model does with each column of the schema, from which a synthetic table follows."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Predictive

from tests.model.cases import CASES, EVERY_KIND, MASKED, UNIT, K, component, uniform_weights
from vertinumpyro.data import BinaryColumn, CategoricalColumn, CountColumn, PartySchema, Schema
from vertinumpyro.model import DrawnAt, inspect_model, mixture_model, party_plate

SCHEMA = Schema(
    {
        "clinic": PartySchema({"x": UNIT, "y": UNIT, "sick": BinaryColumn(), "visits": CountColumn(upper=9)}),
        "insurer": PartySchema({"cost": MASKED, "plan": CategoricalColumn(categories=("a", "b", "c"))}),
    }
)


def latent(name="b", size=3):
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand([size]).to_event(1))


def roles(model):
    structure = inspect_model(model, SCHEMA)
    sorted_in = [
        *structure.modelled_columns,
        *structure.undrawable_columns,
        *structure.covariates,
        *structure.unused_columns,
    ]
    assert sorted(sorted_in) == sorted(SCHEMA.columns)
    return structure


def test_every_column_of_the_mixture_is_drawn_at_its_own_site():
    structure = inspect_model(mixture_model(EVERY_KIND, 2), EVERY_KIND)
    assert structure.modelled_columns == {name: DrawnAt(name) for name in EVERY_KIND.columns}
    assert structure.covariates == structure.unused_columns == ()
    assert structure.undrawable_columns == {}
    assert structure.site_covariates == dict.fromkeys(EVERY_KIND.columns, ())


def test_a_regression_reads_covariates_and_leaves_columns_out():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            loc = b[0] + b[1] * data["x"] + b[2] * data["sick"]
            numpyro.sample("y", dist.Normal(loc, 1.0), obs=data["y"])
        with party_plate("insurer", num_records), handlers.mask(mask=data["cost_observed"]):
            numpyro.sample("cost", dist.Normal(b[data["plan"]], 1.0), obs=data["cost"])

    structure = roles(model)
    assert structure.modelled_columns == {"y": DrawnAt("y"), "cost": DrawnAt("cost")}
    assert structure.covariates == ("x", "sick", "plan")
    assert structure.unused_columns == ("visits",)
    assert structure.undrawable_columns == {}
    assert structure.site_covariates == {"y": ("sick", "x"), "cost": ("plan",)}


def test_a_column_that_is_modelled_and_read_is_modelled_and_a_covariate_of_the_site():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            x = numpyro.sample("x", dist.Normal(b[0], 1.0), obs=data["x"])
            numpyro.sample("y", dist.Normal(b[1] + x, 1.0), obs=data["y"])
        with party_plate("insurer", num_records):
            numpyro.sample("plan", dist.Categorical(logits=b + data["cost_observed"][:, None]), obs=data["plan"])

    structure = roles(model)
    assert set(structure.modelled_columns) == {"x", "y", "plan"}
    assert structure.site_covariates == {"x": (), "y": ("x",), "plan": ("cost",)}
    assert structure.covariates == ("cost",)  # by way of its mask
    assert structure.unused_columns == ("sick", "visits")


def test_a_site_of_another_name_models_the_column_that_it_observes():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            numpyro.sample("first", dist.Normal(b[0], 1.0), obs=data["x"])
            numpyro.sample("second", dist.Poisson(jnp.exp(b[1])), obs=data["visits"].astype(float))
            known = jnp.where(data["x"] > 0, data["y"], 0.0)
            numpyro.sample("third", dist.Normal(b[2], 1.0), obs=known)

    structure = roles(model)
    assert structure.modelled_columns == {
        "x": DrawnAt("first"),
        "y": DrawnAt("third"),
        "visits": DrawnAt("second"),
    }


def test_of_two_sites_that_observe_a_column_the_first_draws_it():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            numpyro.sample("one", dist.Normal(b[0], 1.0), obs=data["x"])
            numpyro.sample("two", dist.Normal(b[1], 2.0), obs=data["x"])

    assert roles(model).modelled_columns == {"x": DrawnAt("one")}


def test_a_vector_site_draws_each_column_at_its_index():
    def model(data, num_records):
        b = latent(size=2)
        with party_plate("clinic", num_records):
            both = jnp.stack([data["y"], data["x"]], axis=-1)
            numpyro.sample("both", dist.Normal(b, 1.0).to_event(1), obs=both)

    structure = roles(model)
    assert structure.modelled_columns == {"x": DrawnAt("both", 1), "y": DrawnAt("both", 0)}
    samples = {"both": np.arange(12).reshape(2, 3, 2)}
    np.testing.assert_array_equal(structure.modelled_columns["x"].of(samples), [[1, 3, 5], [7, 9, 11]])


@pytest.mark.parametrize("name", ["log_x", "x"])
def test_a_transformed_observation_cannot_be_drawn_as_the_column(name):
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            numpyro.sample(name, dist.Normal(b[0], 1.0), obs=jnp.log(data["x"]))
            numpyro.deterministic("echo", data["x"])
            numpyro.sample("y", dist.Normal(b[0] * data["x"], 1.0), obs=data["y"])

    structure = roles(model)
    assert structure.undrawable_columns == {"x": name}
    assert set(structure.modelled_columns) == {"y"}
    assert structure.covariates == ()


def test_a_deterministic_site_draws_the_column_that_it_turns_a_draw_back_into():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            log_x = None if data["x"] is None else jnp.log(data["x"])
            log_x = numpyro.sample("log_x", dist.Normal(b[0], 1.0), obs=log_x)
            numpyro.deterministic("x", jnp.exp(log_x))

    structure = roles(model)
    assert structure.modelled_columns == {"x": DrawnAt("x")}
    samples = Predictive(model, num_samples=2)(jax.random.key(0), dict.fromkeys(SCHEMA.columns), 5)
    assert structure.modelled_columns["x"].of(samples).shape == (2, 5)


def test_the_mask_of_a_transformed_column_is_no_covariate():
    def model(data, num_records):
        b = latent()
        with party_plate("insurer", num_records), handlers.mask(mask=data["cost_observed"]):
            log_cost = numpyro.sample("log_cost", dist.Normal(b[0], 1.0), obs=jnp.log(data["cost"]))
            numpyro.deterministic("cost", jnp.exp(log_cost))

    structure = roles(model)
    assert structure.modelled_columns == {"cost": DrawnAt("cost")}
    assert structure.site_covariates == {"log_cost": ()}


def test_a_factor_models_columns_without_drawing_them():
    def model(data, num_records):
        b = latent()
        with party_plate("clinic", num_records):
            numpyro.factor("likelihood", -((data["y"] - b[0] * data["x"]) ** 2))
            numpyro.sample("x", dist.Normal(b[1], 1.0), obs=data["x"])

    structure = roles(model)
    assert structure.undrawable_columns == {"y": "likelihood"}
    assert structure.modelled_columns == {"x": DrawnAt("x")}


def test_the_component_takes_no_part_in_the_roles():
    def model(data, num_records):
        b = latent(size=K)
        z = component(uniform_weights(), num_records)
        with party_plate("clinic", num_records):
            numpyro.sample("both", dist.Normal(b[z], 1.0), obs=data["x"] + data["y"])

    structure = roles(model)
    assert structure.undrawable_columns == {"x": "both", "y": "both"}


@pytest.mark.parametrize("name", list(CASES))
def test_a_site_named_as_its_column_draws_it(name):
    structure = inspect_model(CASES[name].model, CASES[name].schema)
    sites = {site for names in structure.party_sites.values() for site in names}
    assert structure.modelled_columns == {site: DrawnAt(site) for site in sites}
