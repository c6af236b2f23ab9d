"""The mixture's own names never collide with the columns', whatever those are called; and its start about records has
latents on their supports, each component nearer to its record than all are.
"""

import jax
import numpy as np
import pytest
from numpyro.infer import Predictive

from tests.model.cases import EVERY_KIND, UNIT, K, draw_columns
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import (
    OBSERVED_SUFFIX,
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
)
from vertinumpyro.model import UNOBSERVED, mixture_model, split_model
from vertinumpyro.model.mixture import components_at

GRADE = CategoricalColumn(categories=("a", "b", "c"))

COLLISIONS = {
    "records and its substitute": {"records": UNIT, "records_": UNIT},
    "first parameter": {"x": UNIT, "x_a": GRADE},
    "second parameter": {"x": UNIT, "x_b": UNIT},
    "probabilities": {"x": GRADE, "x_probs": UNIT},
    "probability": {"x": BinaryColumn(), "x_prob": UNIT},
    "rate": {"x": CountColumn(upper=3), "x_rate": GRADE},
    "a parameter's substitute": {"x": UNIT, "x_a": UNIT, "x_a_": UNIT, "x_a_a": GRADE},
    "all at once": {
        **dict.fromkeys(("weights", "z", "components", "records", "weights_", "z_a", "records_a"), UNIT),
        **dict.fromkeys(("data", "num_records", "theta", "self", "fn", "params", "auto_latent"), GRADE),
        **dict.fromkeys(("_vertinumpyro_theta", "clinic", "insurer"), UNIT),
    },
}


@pytest.mark.parametrize(("case", "num_components"), [*((case, 3) for case in COLLISIONS), ("all at once", 1)])
def test_a_mixture_of_columns_with_the_models_own_names(case, num_components):
    columns = COLLISIONS[case]
    names = list(columns)
    half = -(-len(names) // 2)
    parties = {"clinic": names[:half], "insurer": names[half:]}
    schema = Schema({p: PartySchema({n: columns[n] for n in own}) for p, own in parties.items() if own})
    split = split_model(mixture_model(schema, num_components), schema)
    assert split.num_components == num_components
    assert list(split.structure.modelled_columns) == list(schema.columns)
    parameters = sum({"real": 2}.get(column.kind, 1) for column in columns.values()) + (num_components > 1)
    assert len(split.structure.latents) == parameters
    predictive = Predictive(split.model, num_samples=2)
    drawn = jax.eval_shape(lambda rng_key: predictive(rng_key, UNOBSERVED, 5), jax.random.key(0))
    for name, at in split.structure.modelled_columns.items():
        values = at.of(drawn)
        assert values.shape == (2, 5)
        assert values.dtype.kind == ("f" if columns[name].kind == "real" else "i")


def test_names_stay_what_they_were_where_nothing_collides():
    split = split_model(mixture_model(EVERY_KIND, 2), EVERY_KIND)
    assert list(split.structure.latents) == [
        "binary_prob",
        "binned_probs",
        "categorical_probs",
        "count_rate",
        "integer_probs",
        "real_a",
        "real_b",
        "weights",
    ]
    assert split.structure.component_site == "z"
    assert {at.site for at in split.structure.modelled_columns.values()} == set(EVERY_KIND.columns)


def test_a_column_keeps_its_own_name_unless_it_is_the_records_plates():
    schema = Schema({"clinic": PartySchema(dict.fromkeys(("weights", "z", "components", "records"), UNIT))})
    drawn_at = split_model(mixture_model(schema, 2), schema).structure.modelled_columns
    assert {name: at.site for name, at in drawn_at.items() if at.site != name} == {"records": "records_"}


@pytest.mark.parametrize("shape_rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_of_shapes_that_is_none_is_refused(shape_rate):
    with pytest.raises(ArgumentError, match=r"shape_rate=\S+ must be positive; 1 is the paper's"):
        mixture_model(EVERY_KIND, 2, shape_rate=shape_rate)


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
