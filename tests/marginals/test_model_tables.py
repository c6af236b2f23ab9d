"""The tables that a model expects, against sums by hand and against its own records."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to
from scipy import stats

from tests.marginals.conftest import SCHEMA, TRUTH, dataset_of, simulated, two_groups
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import BinaryColumn, BinnedColumn, CountColumn, PartySchema, RealColumn, Schema
from vertinumpyro.marginals import expected_tables as model_tables
from vertinumpyro.marginals.expected_tables import ModelTables, TableKey, column_grid
from vertinumpyro.model import enumeration, mixture_model, party_plate, split_model
from vertinumpyro.model.enumeration import transform_to
from vertinumpyro.mrf.cells import cell_columns

COLUMNS = cell_columns(SCHEMA, max_cells=6)
SUPPORTS = {
    "share": dist.constraints.unit_interval,
    "old_prob": dist.constraints.unit_interval,
    "risk": dist.constraints.real,
    "shape": dist.constraints.positive,
    "plan_probs": dist.constraints.simplex,
    "rate": dist.constraints.positive,
}


@pytest.fixture(scope="module")
def split():
    return split_model(two_groups, SCHEMA)


@pytest.fixture(scope="module")
def truth(split):
    return split.flatten({name: biject_to(SUPPORTS[name]).inv(jnp.asarray(value)) for name, value in TRUTH.items()})


def tables_at(split, truth, keys, columns=COLUMNS):
    made = ModelTables(split, columns, keys)
    values = np.asarray(jax.jit(made)(truth, made.sums), np.float64)
    ends = np.cumsum([int(np.prod(shape)) for shape in made.shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(values, ends), made.shapes, strict=True)]


def test_every_table_is_a_distribution_and_agrees_with_many_records(split, truth):
    names = list(SCHEMA.columns)
    keys = [TableKey(s) for size in (1, 2, 3) for s in itertools.combinations(names, size)]
    keys += [TableKey(("weight",), fine=True), TableKey(("claims",), fine=True)]
    found = tables_at(split, truth, keys)
    many = dataset_of(simulated(7, 200_000))
    held = {c.name: c for c in COLUMNS}
    for key, table in zip(keys, found, strict=True):
        assert table.sum() == pytest.approx(1.0, abs=1e-5)
        arrays = [many.arrays(held[name].party) for name in key.columns]
        codes = [held[n].codes(a, fine=key.fine) for n, a in zip(key.columns, arrays, strict=True)]
        flat = np.ravel_multi_index(codes, table.shape)
        real = np.bincount(flat, minlength=table.size) / 200_000
        off = np.abs(real - table.ravel()) / np.sqrt(np.maximum(table.ravel(), 1e-5) / 200_000)
        assert off.max() < 6, key


def test_cells_of_a_real_column_are_the_beta_distributions(split, truth):
    (table,) = tables_at(split, truth, [TableKey(("weight",), fine=True)])
    edges = np.linspace(0, 1, len(table) + 1)
    by_group = np.stack([np.diff(stats.beta(shape, 2.0).cdf(edges)) for shape in TRUTH["shape"]])
    assert table == pytest.approx(np.array([0.65, 0.35]) @ by_group, abs=2e-6)


@pytest.mark.parametrize("shape", [0.5, 0.9, 30.0])
def test_densities_that_are_infinite_or_steep_at_an_end_are_summed_up_right(shape):
    schema = Schema({"clinic": PartySchema({"x": RealColumn(bounds=(0, 1))})})

    def model(data, num_records):
        a = numpyro.sample("a", dist.Gamma(1.0, 1.0))
        with party_plate("clinic", num_records):
            numpyro.sample("x", dist.Beta(a, 0.5), obs=data["x"])

    split = split_model(model, schema)
    columns = cell_columns(schema)
    (table,) = tables_at(split, jnp.log(jnp.array([shape])), [TableKey(("x",))], columns)
    exact = np.diff(stats.beta(shape, 0.5).cdf(np.linspace(0, 1, len(table) + 1)))
    assert table == pytest.approx(exact, abs=1e-3)


def test_log_densities_of_cells_are_those_of_the_tables(split, truth):
    made = ModelTables(split, COLUMNS, [TableKey(("old", "ill")), TableKey(tuple(SCHEMA.columns))])
    held = dataset_of(simulated(3, 50))
    arrays = {name: values for party in SCHEMA.parties for name, values in held.arrays(party).items()}
    places = made.of_records(arrays)
    total = jax.jit(made.log_density)(truth, jnp.asarray(places), made.sums)
    # In coarse cells the table of all columns sums over finer ones.
    assert total.shape == (50,)
    (whole,) = tables_at(split, truth, [TableKey(tuple(SCHEMA.columns))])
    codes = [c.codes(held.arrays(c.party)) for c in COLUMNS]
    assert (np.asarray(total) <= np.log(whole[tuple(codes)]) + 1e-4).all()


def test_log_densities_are_the_same_multiplied_and_gathered(split, truth, monkeypatch):
    made, held = ModelTables(split, COLUMNS, []), dataset_of(simulated(3, 50))
    arrays = {name: values for party in SCHEMA.parties for name, values in held.arrays(party).items()}
    places, found = jnp.asarray(made.of_records(arrays)), []
    for most in (0, 8, 10**6):  # none are multiplied, some, all
        monkeypatch.setattr(model_tables, "_MOST_MULTIPLIED", most)
        log_density = lambda theta: made.log_density(theta, places, made.sums)  # noqa: E731
        found.append([log_density(truth), jax.jacobian(log_density)(truth)])
    for value, slope in found[1:]:
        np.testing.assert_allclose(value, found[0][0], rtol=1e-5)
        np.testing.assert_allclose(slope, found[0][1], rtol=1e-4, atol=1e-5)


def test_missing_values_under_a_mask_are_left_out():
    schema = Schema(
        {
            "clinic": PartySchema({"x": BinnedColumn(bounds=(0, 10), bins=4, missing="mask")}),
            "bank": PartySchema({"y": BinaryColumn()}),
        }
    )
    split = split_model(mixture_model(schema, 2), schema)
    columns = cell_columns(schema)
    (table,) = tables_at(split, jnp.zeros(split.num_parameters), [TableKey(("x", "y"))], columns)
    assert table[-1].sum() == 0
    assert table.sum() == pytest.approx(1.0, abs=1e-5)


def refused(model, schema=SCHEMA):
    with pytest.raises(ModelContractError) as error:
        ModelTables(split_model(model, schema), cell_columns(schema), [])
    return str(error.value)


def test_a_covariate_is_refused_by_its_site_and_name():
    def model(data, num_records):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with party_plate("clinic", num_records):
            numpyro.sample("ill", dist.Bernoulli(logits=b * data["weight"]), obs=data["ill"])

    message = refused(model)
    assert "site 'ill' of party 'clinic' reads column 'weight'" in message
    assert "DPVI" in message


def test_a_column_that_is_observed_through_a_function_is_refused():
    def model(data, num_records):
        b = numpyro.sample("b", dist.Normal(0, 1))
        with party_plate("clinic", num_records):
            numpyro.sample("logged", dist.Normal(b, 1), obs=jnp.log(data["weight"]))

    assert "column 'weight' of party 'clinic' is modelled through something computed from it" in refused(model)


def test_too_many_combinations_are_refused_with_their_columns():
    wide = Schema(
        {"clinic": PartySchema({f"x{i}": RealColumn(bounds=(0, 1)) for i in range(3)} | {"y": BinaryColumn()})}
    )

    def model(data, num_records):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
        with party_plate("clinic", num_records):
            for i in range(3):
                numpyro.sample(f"x{i}", dist.Beta(2.0, 2.0), obs=data[f"x{i}"])
            x = jnp.stack([data[f"x{i}"] for i in range(3)], -1)
            numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=data["y"])

    message = refused(model, wide)
    assert "'x0'" in message
    assert "too many combinations" in message


def test_a_records_density_transforms_every_latent_once(split, truth, monkeypatch):
    transformed = []

    def counted(support):
        transformed.append(support)
        return transform_to(support)

    made = ModelTables(split, COLUMNS, ())
    monkeypatch.setattr(enumeration, "transform_to", counted)
    jax.make_jaxpr(made.log_density)(truth, jnp.zeros((3, made.num_blocks), jnp.int32), made.sums)
    assert len(transformed) == len(split.structure.latents)


def test_points_of_a_wide_count_are_as_many_values_as_its_finer_cells_have():
    """Those at the ends, which have a cell each, among them."""
    column = CountColumn(upper=20_000)
    (cells,) = cell_columns(Schema({"bank": PartySchema({"amount": column})}))
    grid = column_grid(column, cells)
    found = np.bincount(grid.fine["amount"], np.exp(grid.log_weights), minlength=cells.num_fine)
    values = np.bincount(cells.codes({"amount": np.arange(20_001)}, fine=True), minlength=cells.num_fine)
    assert [found[0], found[-1]] == [values[0], values[-1]] == [1, 1]
    assert np.abs(found - values).max() <= 10  # a point stands for some ten values, of which one may be the next cell's
    assert found.sum() == pytest.approx(20_001)
