"""Synthetic tables have the storage types of the table that the model learned from, after loading too."""

import jax
import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI

NUM_RECORDS = 60
SCHEMA = Schema(
    {
        "clinic": PartySchema({"age": RealColumn(bounds=(0.0, 1.0), missing="mask")}),
        "insurer": PartySchema({"plan": CategoricalColumn(categories=("a", "b", "c"), missing="category")}),
    }
)


@pytest.mark.promise
def test_a_twin_has_the_types_of_the_table(tmp_path):
    rng = np.random.default_rng(0)
    plans = rng.choice(["a", "b", None], NUM_RECORDS)
    columns = {
        "age": rng.random(NUM_RECORDS).astype(np.float32),
        "plan": pd.Categorical(plans, categories=["a", "b", "c"], ordered=True),
    }
    table = pd.DataFrame(columns, index=rng.permutation(NUM_RECORDS))
    dataset = VerticalDataset.from_pooled(SCHEMA, table)
    assert dataset.fingerprint() == VerticalDataset.from_pooled(SCHEMA, {**columns, "plan": plans}).fingerprint()
    dpvi = DPVI(num_components=2)
    plan = dpvi.plan(dataset, noise_multiplier=2.0, batch_size=20, num_steps=1)
    posterior = dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False)
    posterior.save(tmp_path / "posterior.npz")
    for held in (posterior, dpvi.load(tmp_path / "posterior.npz")):
        twin = held.sample_synthetic(200, rng_key=jax.random.key(1))
        assert twin.dtypes.to_dict() == table.dtypes.to_dict()
        assert twin["plan"].isna().any()  # a category of its own: the model says how often it is missing
        assert not twin["age"].isna().any()  # masked: it says nothing about that
