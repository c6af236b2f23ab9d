"""A small table at a hospital and a bank, drawn from a known linear model; and what a fit says of budgets."""

import warnings

import numpy as np
import pytest

from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.privacy import PrivacyWarning

UNIT = RealColumn(bounds=(0.0, 1.0))
SCHEMA = Schema(
    {
        "hospital": PartySchema(
            {"age": UNIT, "bmi": UNIT, "ward": CategoricalColumn(categories=("day", "night", "none"))}
        ),
        "bank": PartySchema({"income": UNIT, "owner": BinaryColumn(), "debt": UNIT, "late": BinaryColumn()}),
    }
)
# intercept, age, bmi, three wards (they sum to zero), income, owner; scaled features, label in [-1, 1]
TRUTH = np.array([0.05, 0.3, -0.2, 0.1, -0.15, 0.05, 0.25, -0.1])
FEATURES = ("age", "bmi", "ward", "income", "owner")


def draw(num_records, seed):
    """Records whose debt follows TRUTH with residuals of standard deviation 0.1; late when debt is high."""
    rng = np.random.default_rng(seed)
    age, income = rng.beta(2, 2, num_records), rng.beta(2, 4, num_records)
    bmi = 0.5 * age + 0.5 * rng.beta(2, 3, num_records)
    ward = rng.choice(3, num_records, p=[0.5, 0.3, 0.2])
    owner = (rng.random(num_records) < 0.3 + 0.4 * income).astype(np.int32)
    signed = [np.ones(num_records), 2 * age - 1, 2 * bmi - 1, np.eye(3)[ward], 2 * income - 1, 2 * owner - 1]
    debt = np.clip(np.column_stack(signed) @ TRUTH + rng.normal(0, 0.1, num_records), -1, 1)
    hospital = {"age": age.astype(np.float32), "bmi": bmi.astype(np.float32), "ward": ward.astype(np.int32)}
    bank = {"income": income.astype(np.float32), "owner": owner, "debt": ((debt + 1) / 2).astype(np.float32)}
    late = (debt + rng.logistic(0, 0.05, num_records) > 0).astype(np.int32)
    return VerticalDataset(SCHEMA, {"hospital": hospital, "bank": bank | {"late": late}})


@pytest.fixture(scope="session")
def dataset():
    """4,000 records at two parties."""
    return draw(4000, 1)


def told(run):
    """What `run` returns, and its warnings about budgets."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]
