"""The first rungs of the ladder: the split's sums and scores are NumPyro's own density and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from jax.nn import logsumexp

from tests.model.cases import CASES, chain_case, mixture_case
from tests.model.reference import (
    assembled,
    constrained,
    own_columns,
    pooled_log_density,
    random_theta,
)
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema
from vertinumpyro.model import enumeration, mixture_model, party_plate, split_model
from vertinumpyro.model.enumeration import transform_to

SEEDS = (0, 1, 2)
NUM_RECORDS = 6


def close(actual, expected, tolerance=1e-5):
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def check_log_density(case, split):
    data, names = case.data(NUM_RECORDS), split.parties

    @jax.jit
    def both(flat):
        parts = [split.log_density(party, flat, own_columns(split, party, data)) for party in names]
        joint = split.component_prior(flat).log_weights + sum(parts)
        sites = constrained(case.model, split.unflatten(flat), data, NUM_RECORDS)
        return logsumexp(joint, axis=1), case.marginal(sites, data)

    for seed in SEEDS:
        actual, expected = both(random_theta(split, seed))
        close(actual, expected)


def check_scores(case, split):
    data = case.data(NUM_RECORDS)

    @jax.jit
    def both(flat):
        def marginal(flat):
            return case.marginal(constrained(case.model, split.unflatten(flat), data, NUM_RECORDS), data)

        return assembled(split, flat, data), (marginal(flat), jax.jacrev(marginal)(flat))

    for seed in SEEDS:
        (log_density, gradient), (expected, expected_gradient) = both(random_theta(split, seed))
        close(log_density, expected)
        close(gradient, expected_gradient)
        assert np.abs(expected_gradient).max() > 0.05


def test_structure_is_as_the_model_says(split_case):
    case, split = split_case
    assert {party: dict(sites) for party, sites in split.plated.items()} == case.plated
    assert dict(split.shared) == case.shared


def test_records_density_and_gradient_equal_the_formula(split_case):
    check_scores(*split_case)


def test_mixture_of_one_component_has_no_weights():
    case = mixture_case(1)
    split = split_model(case.model, case.schema)
    assert split.structure.component_site is None
    assert "weights" not in split.structure.latents
    assert {party: dict(sites) for party, sites in split.plated.items()} == case.plated
    check_log_density(case, split)


@pytest.mark.parametrize("num_parties", [1, 2, 4, 6])
def test_any_number_of_parties(num_parties):
    case = chain_case(num_parties)
    split = split_model(case.model, case.schema)
    assert {party: dict(sites) for party, sites in split.plated.items()} == case.plated
    check_log_density(case, split)


@pytest.mark.parametrize("name", ["several_sites", "shared_parameters", "permuted", "one_component"])
def test_sum_over_records_equals_numpyros_log_density(name):
    case = CASES[name]
    split = split_model(case.model, case.schema)
    data = case.data(NUM_RECORDS)

    @jax.jit
    def both(flat):
        expected = pooled_log_density(case.model, split.unflatten(flat), data, NUM_RECORDS)
        return assembled(split, flat, data)[0].sum() + split.log_prior(flat), expected

    for seed in SEEDS:
        actual, expected = both(random_theta(split, seed))
        close(actual, expected, 2e-5)


def test_log_density_alone_equals_that_of_the_contribution(split_case):
    case, split = split_case
    data, flat = case.data(NUM_RECORDS), random_theta(split, 0)
    party = split.parties[-1]
    columns = own_columns(split, party, data)
    contribution = jax.jit(lambda: split.contribution(party, flat, columns))()
    close(jax.jit(lambda: split.log_density(party, flat, columns))(), contribution.log_density)


def test_a_hyper_latent_has_no_gradient_from_data_but_one_from_the_prior():
    case = CASES["hierarchical"]
    split = split_model(case.model, case.schema)
    flat = random_theta(split, 0)
    data = case.data(NUM_RECORDS)
    by_site = split.unflatten(jax.jit(lambda flat: assembled(split, flat, data)[1].sum(axis=0))(flat))
    prior_by_site = split.unflatten(jax.jit(jax.grad(split.log_prior))(flat))
    assert by_site["centre"] == 0
    assert by_site["spread"] == 0
    assert np.abs(by_site["loc"]).min() > 1e-3
    assert abs(prior_by_site["centre"]) > 1e-3
    assert abs(prior_by_site["spread"]) > 1e-3


def test_a_parameter_of_two_parties_has_two_released_coordinates():
    case = CASES["shared_parameters"]
    split = split_model(case.model, case.schema)
    position = int(split.unflatten(jnp.arange(float(split.num_parameters)))["both"])
    assert np.sum(split.gather_index == position) == 2
    released = np.zeros(split.num_values, np.float32)
    released[split.gather_index == position] = [2.0, 3.0]
    assert split.gather(jnp.asarray(released))[position] == 5.0


def test_flat_theta_is_sorted_by_site_and_flatten_inverts_unflatten(split_case):
    _, split = split_case
    flat = random_theta(split, 3)
    theta = split.unflatten(flat)
    np.testing.assert_array_equal(split.flatten(theta), flat)
    np.testing.assert_array_equal(ravel_pytree(theta)[0], flat)  # the order of NumPyro's autoguides
    assert {name: value.shape for name, value in theta.items()} == dict(split.structure.latents)


def test_model_kwargs_reach_the_model():
    def model(data, num_records, scale):
        CASES["one_component"].model({**data, "age": data["age"] * scale}, num_records)

    case = CASES["one_component"]
    split = split_model(model, case.schema, {"scale": 2.0})
    plain = split_model(case.model, case.schema)
    flat, age = random_theta(split, 0), np.array([0.1, 0.4], np.float32)
    rest = {"visits": np.zeros(2, np.int32)}
    actual = jax.jit(split.log_density, static_argnums=0)("clinic", flat, {"age": age, **rest})
    expected = jax.jit(plain.log_density, static_argnums=0)("clinic", flat, {"age": 2 * age, **rest})
    close(actual, expected)


def test_a_group_of_one_finite_column_stays_a_table():
    case = mixture_case(3)
    split = split_model(case.model, case.schema)
    num_records = 200  # more than any column has values
    data, theta = case.data(num_records), random_theta(split, 0)
    contribution_of = jax.jit(split.contribution, static_argnums=0)
    contributions = {p: contribution_of(p, theta, own_columns(split, p, data)) for p in split.parties}
    for party, contribution in contributions.items():
        finite = [group for group in split.groups[party] if group.is_table]
        assert [len(table.scores) for table in contribution.tables] == [group.num_values for group in finite]
    assert sum(len(c.tables) for c in contributions.values()) > 0
    few = {p: contribution_of(p, theta, own_columns(split, p, case.data(1))) for p in split.parties}
    assert all(len(table.scores) == 1 for c in few.values() for table in c.tables)


@pytest.mark.parametrize("num_columns", [3, 9])
@pytest.mark.parametrize("method", ["contribution", "log_density"])
def test_a_party_transforms_its_latents_but_twice_however_many_columns_it_has(method, num_columns, monkeypatch):
    """Once for all its groups, and once in the group whose gradient is taken."""
    columns = {f"c{i}": CategoricalColumn(categories=("a", "b", "c")) for i in range(num_columns)}
    schema = Schema({"clinic": PartySchema(columns), "insurer": PartySchema({"other": BinaryColumn()})})
    split = split_model(mixture_model(schema, 2), schema)
    flat, own = random_theta(split, 0), {name: jnp.zeros(4, jnp.int32) for name in columns}
    transformed = []

    def counted(support):
        transformed.append(support)
        return transform_to(support)

    monkeypatch.setattr(enumeration, "transform_to", counted)
    jax.make_jaxpr(lambda flat: getattr(split, method)("clinic", flat, own))(flat)
    others = 2  # the weights and the insurer's
    assert num_columns <= len(transformed) <= 2 * num_columns + others


@pytest.mark.parametrize("num_components", [2, 3, 8, 13])
@pytest.mark.parametrize("reaches", [1, 5, 7])
def test_a_parameter_that_moves_one_other_component_is_shared(num_components, reaches):
    """However far the other one is: pairs of components are told apart by no more than a few runs of the model."""

    def model(data, num_records):
        with numpyro.plate("components", num_components):
            own = numpyro.sample("own", dist.Normal(0.0, 1.0))
            leaking = numpyro.sample("leaking", dist.Normal(0.0, 1.0))
        weights = dist.Categorical(jnp.full(num_components, 1 / num_components))
        with numpyro.plate("records", num_records, dim=-1):
            z = numpyro.sample("z", weights, infer={"enumerate": "parallel"})
        with party_plate("clinic", num_records):
            numpyro.sample("old", dist.Bernoulli(logits=own[z]), obs=data["old"])
        with party_plate("insurer", num_records):
            both = leaking + jnp.where(jnp.arange(num_components) == 0, leaking[reaches % num_components], 0.0)
            numpyro.sample("paid", dist.Bernoulli(logits=both[z]), obs=data["paid"])

    schema = Schema({p: PartySchema({c: BinaryColumn()}) for p, c in (("clinic", "old"), ("insurer", "paid"))})
    split = split_model(model, schema)
    assert split.plated["clinic"] == {"own": 0}
    is_own = reaches % num_components == 0
    assert split.plated["insurer"] == ({"leaking": 0} if is_own else {})
