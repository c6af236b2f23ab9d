"""A small table at a bank and a telco, with a label of every family at the bank."""

import numpy as np
import pandas as pd
import pytest

from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)

UNIT = RealColumn(bounds=(-1.0, 1.0))
LABELS = {"bernoulli": "late", "probit": "refused", "ordinal": "grade", "normal": "debt", "poisson": "visits",
          "negative_binomial": "visits", "gamma": "cost", "survival": "left"}  # fmt: skip
SCHEMA = Schema(
    {
        "bank": PartySchema(
            {
                "income": UNIT,
                "years": IntegerColumn(bounds=(0, 20)),
                "late": BinaryColumn(categories=("no", "yes")),
                "refused": BinaryColumn(),
                "grade": CategoricalColumn(categories=("low", "middle", "high")),
                "debt": RealColumn(bounds=(-10.0, 30.0)),
                "visits": CountColumn(upper=25),
                "left": BinaryColumn(),
                "since": RealColumn(bounds=(0.0, 5.0)),
                "until": RealColumn(bounds=(0.0, 5.0)),
                "cost": RealColumn(bounds=(0.0, 200.0)),
            }
        ),
        "telco": PartySchema({"usage": UNIT, "tariff": CategoricalColumn(categories=("x", "y", "z"))}),
    }
)
FEATURES = ("income", "years", "usage", "tariff")
CUTPOINTS = (-1.0, 1.0)
TIMES = (1.5,)


def draw(num_records, seed):
    """Labels that all follow one linear predictor."""
    rng = np.random.default_rng(seed)
    table = {name: rng.uniform(-1, 1, num_records) for name in ("income", "usage")}
    table |= {"years": rng.integers(0, 21, num_records), "tariff": rng.choice(["x", "y", "z"], num_records)}
    eta = 0.2 + 1.2 * table["income"] - 1.0 * table["usage"] + 0.05 * (table["years"] - 10.0)
    eta = eta + np.where(table["tariff"] == "y", 0.7, -0.2)
    logistic, normal = rng.logistic(size=num_records), rng.normal(size=num_records)
    table["late"] = np.where(eta + logistic > 0, "yes", "no")
    table["refused"] = (eta + normal > 0).astype(int)
    table["grade"] = np.array(["low", "middle", "high"])[np.digitize(eta + logistic, CUTPOINTS)]
    table["debt"] = np.clip(10 + 4 * (eta + normal), -10, 30)
    table["visits"] = np.clip(rng.poisson(np.exp(0.5 * eta)), 0, 25)
    hazard = np.exp(eta - 1.0)  # twice as much from TIMES[0] on
    first, exponential = hazard * TIMES[0], rng.exponential(size=num_records)
    event = np.where(exponential < first, exponential / hazard, TIMES[0] + (exponential - first) / (2 * hazard))
    censored = rng.uniform(1.0, 5.0, num_records)
    table["left"], table["until"] = (event <= censored).astype(int), np.minimum(event, censored)
    table["since"] = table["until"] * rng.uniform(0.0, 0.5, num_records) * (rng.random(num_records) < 0.3)
    table["cost"] = np.clip(rng.gamma(2.0, 5 * np.exp(0.8 * eta)), 0.001, 200)  # of a mean of 10 at 0
    return pd.DataFrame(table)


@pytest.fixture(scope="session")
def frame():
    """2,000 records, pooled."""
    return draw(2000, 1)


@pytest.fixture(scope="session")
def dataset(frame):
    """The same at their parties."""
    return VerticalDataset.from_pooled(SCHEMA, frame)
