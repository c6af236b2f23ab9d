"""A small table with dependence across two parties, and every type of column."""

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)

NUM_RECORDS = 3000

SCHEMA = Schema(
    {
        "clinic": PartySchema(
            {
                "smoker": CategoricalColumn(categories=("never", "former", "current")),
                "age": RealColumn(bounds=(0, 100)),
                "ill": BinaryColumn(),
            }
        ),
        "insurer": PartySchema(
            {
                "visits": CountColumn(upper=40),
                "plan": CategoricalColumn(categories=("a", "b"), missing="category"),
                "income": BinnedColumn(bounds=(0, 1000), bins=20, missing="mask"),
                "children": IntegerColumn(bounds=(0, 5)),
            }
        ),
    }
)


def frame(seed: int = 0, num_records: int = NUM_RECORDS) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    ill = rng.integers(2, size=num_records)
    income = pd.Series(rng.uniform(0, 500, num_records) + 500 * ill)
    return pd.DataFrame(
        {
            "smoker": rng.choice(["never", "former", "current"], num_records, p=[0.6, 0.3, 0.1]),
            "age": np.clip(rng.normal(40 + 20 * ill, 10), 0, 100),
            "ill": ill,
            "visits": np.minimum(rng.poisson(2 + 6 * ill), 40),
            "plan": pd.Series(np.where(ill == 1, "a", "b")).mask(rng.random(num_records) < 0.1),
            "income": income.mask(rng.random(num_records) < 0.2),
            "children": rng.integers(6, size=num_records),
        }
    )


@pytest.fixture(scope="session")
def dataset() -> VerticalDataset:
    return VerticalDataset.from_pooled(SCHEMA, frame())


@pytest.fixture
def seeded(recwarn):
    """Builds a seeded source; its warning is recorded, not shown."""
    from vertinumpyro.core.rng import InsecureSeededSource

    return lambda seed: InsecureSeededSource(insecure_seed=seed)
