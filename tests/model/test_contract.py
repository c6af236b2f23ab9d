"""Models that cannot be split are refused before anything is computed, and the message says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import mutable

from tests.model.cases import COMPLETE, SCHEMA, K, Refused, component, uniform_weights
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, IntegerColumn, PartySchema, RealColumn, Schema
from vertinumpyro.model import inspect_model, party_plate, party_sum, split_model

refused = Refused()


def latent(name="loc", shape=(K,)):
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))


def observe(party, column, loc, num_records, data):
    with party_plate(party, num_records):
        numpyro.sample(column, dist.Normal(loc, 1.0), obs=data[column])


@refused("'age'", "'clinic'", "'cost'", "'insurer'")
def other_partys_column_as_a_parameter(data, num_records):
    observe("clinic", "age", latent()[0] + data["cost"], num_records, data)


@refused("'age'", "'clinic'", "'cost'", "'insurer'")
def other_partys_column_as_an_observed_value(data, num_records):
    loc = latent()
    with party_plate("insurer", num_records):
        cost = numpyro.sample("cost", dist.Normal(loc[0], 1.0), obs=data["cost"])
    observe("clinic", "age", loc[1] * cost, num_records, data)


@refused("'mine'", "'clinic'", "'cost'", "'insurer'")
def other_partys_column_as_the_observation(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("mine", dist.Normal(loc[0], 1.0), obs=data["cost"])


@refused("'age'", "'clinic'", "'cost_observed'", "'insurer'")
def other_partys_mask(data, num_records):
    loc = latent()
    with handlers.mask(mask=data["cost_observed"]):
        observe("clinic", "age", loc[0], num_records, data)


@refused("'both'", "'clinic'", "'cost'", "'insurer'")
def other_partys_column_in_a_factor(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        numpyro.factor("both", loc[0] * data["age"] * data["cost"])


@refused("latent 'loc'", "'age'", "'clinic'")
def prior_that_reads_data(data, num_records):
    loc = numpyro.sample("loc", dist.Normal(data["age"].mean(), 1.0))
    observe("clinic", "age", loc, num_records, data)


@refused("latent 'loc'", "'age'", "'clinic'")
def support_that_reads_data(data, num_records):
    loc = numpyro.sample("loc", dist.ImproperUniform(constraints.greater_than(data["age"].max()), (), ()))
    observe("clinic", "age", loc, num_records, data)


@refused("latent 'z'", "'visits'", "'clinic'")
def component_prior_that_reads_data(data, num_records):
    loc = latent()
    z = component(jnp.ones((num_records, K)) + data["visits"][:, None], num_records)
    observe("clinic", "age", loc[z], num_records, data)


@refused("'z'", "'other'", "may have one")
def two_components(data, num_records):
    loc = latent()
    z = component(uniform_weights(), num_records)
    with numpyro.plate("records", num_records):
        other = numpyro.sample("other", dist.Bernoulli(0.5))
    observe("clinic", "age", loc[z] + other, num_records, data)


@refused("'which'", "outside the 'records' plate")
def global_discrete_latent(data, num_records):
    which = numpyro.sample("which", dist.Bernoulli(0.5))
    observe("clinic", "age", latent()[0] + which, num_records, data)


@refused("'effect'", "'clinic'", "continuous and record-level")
def continuous_record_latent(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        effect = numpyro.sample("effect", dist.Normal(loc[0], 1.0))
    observe("clinic", "age", effect, num_records, data)


@refused("'age'", "'clinic'", "obs=")
def column_that_is_not_observed(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[0], 1.0))


@refused("'scale'", "param")
def numpyro_param(data, num_records):
    scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
    observe("clinic", "age", latent()[0] * scale, num_records, data)


@refused("'state'", "mutable")
def mutable_site(data, num_records):
    state = mutable("state", jnp.array(1.0))
    observe("clinic", "age", latent()[0] * state, num_records, data)


@refused("'age'", "party_plate", "'clinic'")
def observed_in_no_party_plate(data, num_records):
    loc = latent()
    observe("insurer", "cost", loc[0], num_records, data)
    with numpyro.plate("records", num_records):
        numpyro.sample("age", dist.Normal(loc[0], 1.0), obs=data["age"])


@refused("'age'", "'rows'", "'records'", "party_plate(")
def observed_in_a_plate_of_another_name(data, num_records):
    loc = latent()
    observe("insurer", "cost", loc[0], num_records, data)
    with numpyro.plate("rows", num_records):
        numpyro.sample("age", dist.Normal(loc[0], 1.0), obs=data["age"])


@refused("'age'", "'hospital'", "'clinic', 'insurer'")
def unknown_party(data, num_records):
    observe("hospital", "age", latent()[0], num_records, data)


@refused("'income'", "schema")
def unknown_column(data, num_records):
    observe("clinic", "income", latent()[0], num_records, data)


@refused("no observed site")
def nothing_observed(data, num_records):
    latent()


@refused("'z'", "no finite support")
def infinite_component(data, num_records):
    loc = latent()
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Poisson(1.0))
    observe("clinic", "age", loc[0] * z, num_records, data)


@refused("'z'", "no finite support that NumPyro can enumerate")
def component_that_numpyro_cannot_enumerate(data, num_records):
    loc = latent()
    with numpyro.plate("records", num_records):
        z = numpyro.sample("z", dist.Categorical(jnp.ones((2, K)) / K).to_event(1))
    observe("clinic", "age", loc[z].sum(axis=-1), num_records, data)


@refused("'ages'", "'clinic'", "to_event")
def vector_without_to_event(data, num_records):
    loc = latent(shape=(K, 2))
    z = component(uniform_weights(), num_records)
    with party_plate("clinic", num_records):
        ages = jnp.stack([data["age"], data["age"]], axis=-1)
        numpyro.sample("ages", dist.Normal(loc[z], 1.0), obs=ages)


@refused("'age'", "'clinic'", "'repeats'", "to_event")
def inner_plate_of_as_many_as_components(data, num_records):
    loc = latent()
    z = component(uniform_weights(), num_records)
    with party_plate("clinic", num_records), numpyro.plate("repeats", K, dim=-2):
        numpyro.sample("age", dist.Normal(loc[z], 1.0), obs=data["age"])


@refused("'z'", "'repeats'", "to_event")
def component_in_an_inner_plate(data, num_records):
    loc = latent()
    with numpyro.plate("records", num_records, dim=-1), numpyro.plate("repeats", K, dim=-2):
        z = numpyro.sample("z", dist.Categorical(uniform_weights()))
    observe("clinic", "age", loc[z].sum(axis=0), num_records, data)


@refused("'z'", "enumerated", "a[z]")
def components_on_another_axis(data, num_records):
    loc = latent()
    z = component(uniform_weights(), num_records)
    observe("clinic", "age", loc[jnp.ravel(z)], num_records, data)


@refused("'age'", "'clinic'", "scaled")
def scaled_likelihood(data, num_records):
    loc = latent()
    with handlers.scale(scale=0.5):
        observe("clinic", "age", loc[0], num_records, data)


@refused("'loc'", "scaled")
def scaled_prior(data, num_records):
    with handlers.scale(scale=0.5):
        loc = latent()
    observe("clinic", "age", loc[0], num_records, data)


@refused("'age'", "'clinic'", "subsample_size")
def model_that_subsamples(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records, 1) as batch:
        numpyro.sample("age", dist.Normal(loc[0], 1.0), obs=data["age"][batch])


@refused("no global latent")
def no_latents(data, num_records):
    z = component(uniform_weights(), num_records)
    observe("clinic", "age", jnp.arange(K)[z], num_records, data)


@refused("Python number")
def python_condition_on_data(data, num_records):
    loc = latent()
    observe("clinic", "age", loc[0] if data["age"].max() > 0.5 else loc[1], num_records, data)


@refused("np.unique", "model_kwargs", "schema")
def python_values_of_a_column(data, num_records):
    groups = len(np.unique(data["plan"]))
    observe("clinic", "age", latent("loc", (groups,))[0], num_records, data)


@refused("Python number", "model_kwargs")
def size_from_a_column(data, num_records):
    observe("clinic", "age", latent("loc", (int(data["visits"].max()),))[0], num_records, data)


@refused("x[x > 0]", "jnp.where")
def records_chosen_by_a_condition(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("age", dist.Normal(loc[0], 1.0), obs=data["age"][data["age"] > 0])


@refused("Python number", "jnp.where")
def python_condition_on_a_component(data, num_records):
    loc = latent()
    z = component(uniform_weights(), num_records)
    observe("clinic", "age", loc[0] if z[0] == 0 else loc[1], num_records, data)


@refused("raised ZeroDivisionError on stand-in records")
def any_exception(data, num_records):
    1 / 0  # noqa: B018


@refused("raised AttributeError on stand-in records", "iloc")
def a_data_frames_method(data, num_records):
    data["age"].iloc[0]


@refused("raised TypeError on stand-in records")
def any_type_error_without_a_component(data, num_records):
    observe("clinic", "age", "text" + latent()[0], num_records, data)


@refused("raised AssertionError on stand-in records", "`loc`")
def a_name_twice(data, num_records):
    observe("clinic", "age", latent()[0] + latent()[1], num_records, data)


@refused("model(data, num_records)", "def model(data, num_records):")
def without_the_number_of_records(data):
    observe("clinic", "age", latent()[0], 1, data)


@refused("'scale'", "def model(data, num_records):", "model_kwargs")
def with_an_argument_that_nobody_gives(data, num_records, scale):
    observe("clinic", "age", latent()[0] * scale, num_records, data)


@refused("raised AssertionError on stand-in records at test_contract.py:", ": raise AssertionError")
def an_assert_without_words(data, num_records):
    raise AssertionError


class WithoutDensity(dist.Normal):
    def log_prob(self, value):
        raise TypeError("no density")


@refused("raised TypeError on stand-in records, of site 'age', at test_contract.py:", "no density")
def an_error_inside_a_distribution(data, num_records):
    loc = latent()
    with party_plate("clinic", num_records):
        numpyro.sample("age", WithoutDensity(loc[0], 1.0), obs=data["age"])


@pytest.mark.parametrize("name", refused)
def test_refused_with_names_and_without_values(name):
    refused.check(name, SCHEMA)


@pytest.mark.parametrize(
    ("model_kwargs", "needle"),
    [({"scael": 1.0}, "'scale'"), ({"data": 1.0}, "'data'"), ({}, "'scale'")],
)
def test_model_kwargs_that_do_not_fit_are_refused_with_the_signature(model_kwargs, needle):
    def model(data, num_records, scale):
        observe("clinic", "age", latent()[0] * scale, num_records, data)

    arguments = ", ".join(["data", "num_records", *model_kwargs])
    with pytest.raises(ModelContractError) as caught:
        split_model(model, SCHEMA, model_kwargs)
    assert needle in str(caught.value)
    assert f"def model({arguments}):" in str(caught.value)
    assert "model_kwargs" in str(caught.value)


def test_a_callable_that_hides_its_signature_is_called():
    class Hidden:
        @property
        def __signature__(self):
            raise ValueError("as compiled functions do")

        def __call__(self, data, num_records):
            observe("clinic", "age", latent()[0], num_records, data)

    assert split_model(Hidden(), SCHEMA).num_components == 1


def test_the_models_own_exception_is_the_cause():
    def model(data, num_records):
        raise KeyError("my own")

    with pytest.raises(ModelContractError) as caught:
        inspect_model(model, SCHEMA)
    assert isinstance(caught.value.__cause__, KeyError)


def test_inspect_model_says_who_reads_what():
    def model(data, num_records):
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(K)))
        top = latent("top", ())
        loc = numpyro.sample("loc", dist.Normal(top, 1.0).expand([K]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        z = component(weights, num_records)
        with party_plate("clinic", num_records):
            numpyro.sample("age", dist.Normal(loc[z], scale), obs=data["age"])
            numpyro.deterministic("unused", loc[z] * 2)
        observe("insurer", "cost", scale, num_records, data)

    structure = inspect_model(model, COMPLETE)
    assert structure.latents == {"loc": (K,), "scale": (), "top": (), "weights": (K - 1,)}
    assert list(structure.latents) == sorted(structure.latents)
    assert structure.component_site == "z"
    assert structure.num_components == K
    assert structure.party_sites == {"clinic": ("age",), "insurer": ("cost",)}
    assert structure.party_latents == {"clinic": ("loc", "scale"), "insurer": ("scale",)}
    assert structure.component_latents == ("weights",)


def test_a_party_may_have_no_site():
    split = split_model(lambda data, n: observe("clinic", "age", latent()[0], n, data), SCHEMA)
    columns = {
        "cost": np.zeros(2, np.float32),
        "cost_observed": np.ones(2, bool),
        "plan": np.zeros(2, np.int32),
    }
    contribution = split.contribution("insurer", jnp.zeros(K), columns)
    np.testing.assert_array_equal(contribution.log_density, np.zeros((2, 1)))
    assert contribution.plated_scores.shape == contribution.shared_scores.shape == (2, 1, 0)


COMPONENTS = {
    "bernoulli": (dist.Bernoulli(0.3), 2),
    "binomial": (dist.Binomial(2, 0.3), 3),
    "uniform": (dist.DiscreteUniform(0, 2), 3),
    "one": (dist.Categorical(jnp.ones(1)), 1),
}


@pytest.mark.parametrize("kind", list(COMPONENTS))
def test_any_finite_component_is_enumerated(kind):
    distribution, size = COMPONENTS[kind]

    def model(data, num_records):
        loc = latent()
        with numpyro.plate("records", num_records):
            z = numpyro.sample("z", distribution)
        observe("clinic", "age", loc[z], num_records, data)

    split = split_model(model, SCHEMA)
    assert split.num_components == size
    weights = np.exp(split.component_prior(jnp.zeros(K)).log_weights)
    np.testing.assert_allclose(weights, np.exp(distribution.log_prob(jnp.arange(size))), rtol=1e-5)


@pytest.mark.parametrize("name", ["fn", "loc$1", "latents", "columns"])
def test_names_of_sites_and_columns_are_free(name):
    schema = Schema({"clinic": PartySchema({name: RealColumn(bounds=(0, 1))})})

    def model(data, num_records):
        loc = latent(f"{name}_loc", ())
        fn = latent("self", ())
        observe("clinic", name, loc + fn, num_records, data)

    assert inspect_model(model, schema).party_latents == {"clinic": tuple(sorted([f"{name}_loc", "self"]))}


# -- public domains -----------------------------------------------------------------------------------

DOMAINS = Schema(
    {
        "clinic": PartySchema(
            {
                "smoke": CategoricalColumn(categories=("n", "y", "ex"), missing="category"),
                "dose": RealColumn(bounds=(0, 1)),
                "bmi": RealColumn(bounds=(10, 60), missing="mask"),
            }
        ),
        "insurer": PartySchema({"kids": IntegerColumn(bounds=(0, 5)), "late": BinaryColumn()}),
    }
)


def at(column, distribution, party="clinic"):
    """A model of one site, whose distribution is a function of three numbers, their positive values, and the data."""

    def model(data, num_records):
        b = latent()
        with party_plate(party, num_records):
            numpyro.sample(column, distribution(b, jnp.exp(b[0]), data), obs=data[column])

    return model


def summed(part):
    def model(data, num_records):
        eta = party_sum("eta", {"clinic": part(latent(), data), "insurer": latent("t", ())})
        with party_plate("insurer", num_records):
            numpyro.sample("late", dist.Bernoulli(logits=eta), obs=data["late"])

    return model


NARROW = {
    "too few categories": (
        at("smoke", lambda b, p, d: dist.Categorical(logits=b)),
        ("site 'smoke' of party 'clinic'", "code 3 (a missing value)", "0 to 2", "codes 0 to 3", "4 probabilities"),
    ),
    "two values of six": (
        at("kids", lambda b, p, d: dist.Bernoulli(logits=b[0]), "insurer"),
        ("'kids'", "code 2", "Bernoulli, with support 0 and 1", "codes 0 to 5"),
    ),
    "zero": (at("kids", lambda b, p, d: dist.LogNormal(b[0], p), "insurer"), ("code 0", "positive")),
    "counts for a real": (at("dose", lambda b, p, d: dist.Poisson(p)), ("'dose'", "integer nonnegative")),
    "narrower bounds": (at("dose", lambda b, p, d: dist.Uniform(0.25, 0.75)), ("the lower end of column 'dose'",)),
    "bounds from latents": (at("dose", lambda b, p, d: dist.Uniform(0, p / (2 + 2 * p))), ("numbers", "'dose'")),
    "short coefficients": (
        at("dose", lambda b, p, d: dist.Normal(b[d["smoke"]], 1)),
        ("site 'dose'", "an array of 3", "code 3 of column 'smoke'", "codes 0 to 3", "test_contract.py:"),
    ),
    "short by one axis": (
        at("dose", lambda b, p, d: dist.Normal(jnp.stack([b, b])[1, d["smoke"]], 1)),
        ("an array of 2 x 3", "code 3 of column 'smoke'"),
    ),
    "short by take": (at("dose", lambda b, p, d: dist.Normal(jnp.take(b, d["smoke"]), 1)), ("column 'smoke'",)),
    "short in a part": (summed(lambda b, d: b[d["smoke"]]), ("party_sum 'eta', part of party 'clinic'", "'smoke'")),
    "no mask": (
        at("bmi", lambda b, p, d: dist.Normal(b[0], p)),
        ("site 'bmi'", 'numpyro.handlers.mask(mask=data["bmi_observed"])', "placeholder", "another rule"),
    ),
    "covariate without mask": (
        at("dose", lambda b, p, d: dist.Normal(b[0] * d["bmi"], p)),
        ("site 'dose'", "'bmi'", 'jnp.where(data["bmi_observed"]'),
    ),
    "part without mask": (
        summed(lambda b, d: b[0] * d["bmi"]),
        ("the part of party 'clinic' of party_sum 'eta'", 'data["bmi_observed"]'),
    ),
    "its gradient raises": (
        at("dose", lambda b, p, d: dist.Normal(_without_gradient(b[0]), 1)),
        ("raised ZeroDivisionError on stand-in records at test_contract.py:",),
    ),
}  # fmt: skip


@jax.custom_vjp
def _without_gradient(x):
    return x


_without_gradient.defvjp(lambda x: (x, None), lambda _, cotangent: (1 / 0,))


@pytest.mark.parametrize("name", list(NARROW))
def test_what_does_not_cover_a_public_domain_is_refused(name):
    model, needles = NARROW[name]
    with pytest.raises(ModelContractError) as caught:
        split_model(model, DOMAINS)
    for needle in needles:
        assert needle in str(caught.value)


WIDE = {
    "masked by its value": at("kids", lambda b, p, d: dist.Gamma(p, p).mask(d["kids"] > 0), "insurer"),
    "bounds that latents reach": at("dose", lambda b, p, d: dist.Uniform(0, p)),
    "clipped": at("dose", lambda b, p, d: dist.Normal(jnp.take(b, d["smoke"], mode="clip"), 1)),
    "thrown away": at("dose", lambda b, p, d: dist.Normal(jnp.where(d["smoke"] < 3, b[d["smoke"]], 0), 1)),
    "a reference level": at("dose", lambda b, p, d: dist.Normal(jax.nn.one_hot(d["smoke"], 3) @ b, 1)),
    "from the end": at("dose", lambda b, p, d: dist.Normal(b[d["smoke"] - 1], 1)),
    "filled in": summed(lambda b, d: b[0] * jnp.where(d["bmi_observed"], d["bmi"], 0.5)),
}


@pytest.mark.parametrize("name", list(WIDE))
def test_what_the_user_says_is_meant_is_accepted(name):
    split_model(WIDE[name], DOMAINS)
