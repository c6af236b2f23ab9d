import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import BinaryColumn, CategoricalColumn, IntegerColumn, PartySchema, RealColumn, Schema


@pytest.fixture
def schema() -> Schema:
    clinic = {
        "age": RealColumn(bounds=(0, 100)),
        "ward": CategoricalColumn(categories=("a<b", "b&c", "c"), missing="category"),
    }
    insurer = {
        "visits": IntegerColumn(bounds=(0, 9)),
        "claim": BinaryColumn(),
        "cost": RealColumn(bounds=(0, 50), transform="log1p", missing="mask"),
    }
    return Schema({"clinic": PartySchema(clinic), "insurer": PartySchema(insurer)})


def draw_table(num_rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, num_rows)
    visits = np.clip(rng.poisson(age / 20), 0, 9)
    return pd.DataFrame(
        {
            "id": np.arange(num_rows),
            "age": age,
            "ward": pd.Series(rng.choice(["a<b", "b&c", "c"], num_rows)).mask(rng.random(num_rows) < 0.1),
            "visits": visits,
            "claim": (rng.random(num_rows) < 0.1 + 0.08 * visits).astype(int),
            "cost": pd.Series(rng.uniform(0, 50, num_rows)).mask(rng.random(num_rows) < 0.1),
        }
    )


@pytest.fixture
def real() -> pd.DataFrame:
    return draw_table(400, 1)


@pytest.fixture
def synthetic() -> pd.DataFrame:
    return draw_table(300, 2)
