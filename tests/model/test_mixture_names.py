"""The mixture's own names never collide with the columns', whatever those are called."""

import jax
import pytest
from numpyro.infer import Predictive

from tests.model.cases import EVERY_KIND, UNIT
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, CountColumn, PartySchema, Schema
from vertinumpyro.model import UNOBSERVED, mixture_model, split_model

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
