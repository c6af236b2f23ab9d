import numpy as np
import pandas as pd
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CategoricalColumn, IntegerColumn, PartySchema, Schema
from vertinumpyro.evaluation import evaluate_twin

SCHEMA = Schema(
    {
        "clinic": PartySchema(
            {"ill": CategoricalColumn(categories=("no", "yes")), "group": CategoricalColumn(categories=("a", "b"))}
        ),
        "insurer": PartySchema({"plan": IntegerColumn(bounds=(0, 5)), "cost": IntegerColumn(bounds=(0, 5))}),
    }
)


def drawn(seed: int, *, num_rows: int = 3000, dependent: bool = True, one_kind: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    plan = rng.integers(0, 6, num_rows)
    group = np.where(rng.random(num_rows) < 0.1, "b", "a")
    ill = rng.random(num_rows) < (0.1 + 0.15 * plan if dependent else 0.475)
    cost = np.clip(plan + rng.integers(-1, 2, num_rows), 0, 5)
    if one_kind:  # the small group alone
        plan, cost, ill = (np.where(group == "b", 3, column) for column in (plan, cost, ill))
    return pd.DataFrame({"ill": np.where(ill, "yes", "no"), "group": group, "plan": plan, "cost": cost})


REAL = drawn(0)


def test_a_perfect_twin_has_what_is_said_of_one():
    found = evaluate_twin(REAL, drawn(1), SCHEMA, rng=0, target="ill", groups=("group",))
    near = found.measures["value"] / found.measures["perfect"]
    assert near.between(0.6, 1.6).all()
    assert found.groups.loc["group = b", "dispersal"] == pytest.approx(1, abs=0.1)
    assert found.groups.loc["group = b", "records"] == (REAL["group"] == "b").sum()


def test_each_measure_sees_its_own_fault():
    faulty = drawn(1, dependent=False)
    found = evaluate_twin(REAL, faulty, SCHEMA, rng=0, target="ill").measures
    assert found.loc["TVD of a column", "value"] < 0.03
    across, accuracy = (
        found.loc["TVD of two columns across parties"],
        "balanced accuracy of ill by other parties' columns",
    )
    assert across["value"] > 3 * across["perfect"]
    assert found.loc["pMSE ratio", "value"] > 2
    assert found.loc[accuracy, "value"] < found.loc[accuracy, "perfect"] - 0.1
    groups = evaluate_twin(REAL, drawn(1, one_kind=True), SCHEMA, rng=0, groups=("group",)).groups
    small, large = groups.loc["group = b"], groups.loc["group = a"]
    assert small["dispersal"] < 0.3 < 0.8 < large["dispersal"]
    assert small["tvd3"] > 3 * small["perfect"]


def test_a_group_that_a_twin_lacks_is_in_the_table():
    found = evaluate_twin(REAL, REAL[REAL["group"] == "a"], SCHEMA, rng=0, groups=("group",))
    assert found.groups.loc["group = b", ["synthetic", "tvd3", "dispersal"]].tolist() == [0, 1, 0]
    assert "NOT DP" in str(found)
    assert "not DP" in repr(found)
    assert all(item.not_dp for item in found.report_items())


def test_the_same_seed_gives_the_same():
    one, other = (evaluate_twin(REAL, drawn(2), SCHEMA, rng=3, groups=("group",)) for _ in range(2))
    pd.testing.assert_frame_equal(one.measures, other.measures)
    pd.testing.assert_frame_equal(one.groups, other.groups)


def test_what_does_not_fit_is_named():
    with pytest.raises(ArgumentError, match="groups: 'age' is no column with categories; choose of"):
        evaluate_twin(REAL, REAL, SCHEMA, rng=0, groups=("age",))
    with pytest.raises(ArgumentError, match="target='age' is not a column"):
        evaluate_twin(REAL, REAL, SCHEMA, rng=0, target="age")
    with pytest.raises(ArgumentError, match="synthetic lacks columns of the schema"):
        evaluate_twin(REAL, REAL[["ill"]], SCHEMA, rng=0)


def test_scores_of_sdmetrics_stand_beside():
    pytest.importorskip("sdmetrics", reason="extra `sdmetrics`")
    found = evaluate_twin(REAL, drawn(1), SCHEMA, rng=0, sdmetrics=True).measures
    assert found.loc["SDMetrics: quality", "value"] > 0.9
