"""`VerticalGLM` under scikit-learn's model selection, on pooled DataFrames, and what that spends."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline

from tests.glm.conftest import FEATURES, SCHEMA
from tests.regression.conftest import told
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.regression import OwnBudgets, PooledTable

DELTA = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning")


def glm(**settings) -> Any:
    defaults = {"schema": SCHEMA, "label": "late", "features": FEATURES, "linear": ("years",), "epsilon": 8.0,
                "delta": DELTA, "plan_settings": {"num_steps": 10}}  # fmt: skip
    return VerticalGLM(**{**defaults, **settings})


def test_cross_validation_works_and_says_once_that_budgets_add_up(frame):
    model = glm()
    scores, messages = told(
        lambda: cross_val_score(model, frame[list(FEATURES)], frame["late"], cv=2, scoring="roc_auc")
    )
    assert np.all(scores > 0.65)
    assert len(messages) == 2
    assert "this will fit VerticalGLM 2 times" in messages[0]
    assert "VerticalGLM and its clones have spent 2 budgets" in messages[1]
    assert "add up, to epsilon = 16" in messages[1] or "add up, to epsilon = 15.9" in messages[1]
    assert model.own_budgets == pytest.approx(OwnBudgets(2, 16.0, 2 * DELTA), rel=1e-3)
    copied: Any = clone(model)
    assert copied.own_budgets == model.own_budgets
    assert VerticalGLM(**model.get_params()).own_budgets.count == 0


def test_a_grid_of_a_pipeline_counts_every_fold_of_every_setting_and_the_refit(frame):
    model = glm(schema=None, epsilon=4.0)
    pipeline = Pipeline([("table", PooledTable(schema=SCHEMA)), ("model", model)])
    fold = (np.arange(1500), np.arange(1500, 2000))
    grid: Any = GridSearchCV(pipeline, {"model__family": ["bernoulli", "probit"]}, cv=[fold])
    search, messages = told(lambda: grid.fit(frame))
    assert len(messages) == 2
    assert "3 times" in messages[0]
    assert model.own_budgets == pytest.approx(OwnBudgets(3, 12.0, 3 * DELTA), rel=1e-3)
    assert search.best_score_ > 0.6
    assert search.predict_proba(frame).shape == (len(frame), 2)
    assert search.score(frame, frame["late"]) > 0.6
