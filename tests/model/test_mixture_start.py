"""A mixture's start about records: latents on their supports, each component nearer to its record than all are."""

import jax
import numpy as np
import pytest

from tests.model.cases import EVERY_KIND, K, draw_columns
from vertinumpyro.data import (
    OBSERVED_SUFFIX,
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
)
from vertinumpyro.model import mixture_model, split_model
from vertinumpyro.model.mixture import components_at

LEARNED = Schema(
    {
        "clinic": PartySchema({"dose": RealColumn(bounds=(0, 1), missing="category"), "ill": BinaryColumn()}),
        "bank": PartySchema({"visits": CountColumn(upper=9, missing="category"), "weights": RealColumn(bounds=(0, 1))}),
    }
)


def start(schema, num_components=K):
    """A mixture, records with every mask that the schema knows of (the first one has no value), and its start."""
    records = draw_columns(schema, 30, seed=0)
    for name, column in schema.columns.items():
        if column.masked:
            records[name + OBSERVED_SUFFIX] = np.arange(30) % 3 != 0
    split = split_model(mixture_model(schema, num_components), schema)
    return split, records, components_at(schema, records, np.arange(num_components))


@pytest.mark.parametrize("schema", [EVERY_KIND, LEARNED])
@pytest.mark.parametrize("num_components", [1, K])
def test_every_latent_starts_inside_its_support(schema, num_components):
    split, _, found = start(schema, num_components)
    assert sorted(found) == sorted(split.structure.latents)
    flat = split.unconstrain(found)
    assert np.isfinite(flat).all()
    assert np.isfinite(split.log_prior(flat))
    for name, value in split.constrain(flat).items():
        np.testing.assert_allclose(value, found[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_component_is_halfway_to_its_record():
    _, records, found = start(LEARNED)
    seen = records["visits" + OBSERVED_SUFFIX]
    overall = records["visits"][seen].mean()
    assert found["visits_rate"][0] == pytest.approx(overall, abs=0.01)  # of a missing value nothing is known
    assert found["visits_rate"][1] == pytest.approx((overall + records["visits"][1]) / 2, abs=0.01)
    assert found["visits_present"][0] == pytest.approx(seen.mean() / 2)
    assert found["visits_present"][1] == pytest.approx((seen.mean() + 1) / 2)
    mean = found["weights_a"] / (found["weights_a"] + found["weights_b"])
    np.testing.assert_allclose(mean, (records["weights"].mean() + records["weights"][:K]) / 2)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_columns_of_one_value_and_columns_nobody_saw(value):
    schema = Schema(
        {
            "clinic": PartySchema({"dose": RealColumn(bounds=(0, 1), missing="mask"), "ill": BinaryColumn()}),
            "bank": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c")), "cost": CountColumn(upper=9)}),
        }
    )
    columns = {"dose": value, "ill": int(value), "plan": int(2 * value), "cost": 0}
    records = {name: np.full(5, of) for name, of in columns.items()} | {"dose" + OBSERVED_SUFFIX: np.zeros(5, bool)}
    split = split_model(mixture_model(schema, 2), schema)
    flat = split.unconstrain(components_at(schema, records, np.array([0, 1])))
    assert np.isfinite(flat).all()


def test_unconstrain_takes_back_constrain():
    split = split_model(mixture_model(EVERY_KIND, K), EVERY_KIND)
    flat = jax.random.normal(jax.random.key(0), (split.num_parameters,))
    np.testing.assert_allclose(split.unconstrain(split.constrain(flat)), flat, rtol=1e-3, atol=1e-4)
