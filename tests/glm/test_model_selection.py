"""`VerticalGLM` under scikit-learn's model selection, on pooled DataFrames, and what that spends."""

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_checks

from tests.glm.conftest import FEATURES, SCHEMA
from vertinumpyro.glm import FAMILIES, VerticalGLM
from vertinumpyro.privacy import PrivacyWarning
from vertinumpyro.regression import OwnBudgets, PooledTable

DELTA = 1e-5
pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning")


def glm(**settings) -> Any:
    defaults = {"schema": SCHEMA, "label": "late", "features": FEATURES, "linear": ("years",), "epsilon": 8.0,
                "delta": DELTA, "plan_settings": {"num_steps": 10}}  # fmt: skip
    return VerticalGLM(**{**defaults, **settings})


def told(run):
    """What `run` returns, and its warnings about budgets."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run()
    return result, [str(w.message) for w in caught if issubclass(w.category, PrivacyWarning)]


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


@pytest.mark.parametrize("family", FAMILIES)
def test_scikit_learns_checks_of_an_estimator_without_a_table(family):
    """`check_estimator` asks for arrays; what needs no table is looked at here."""
    model = VerticalGLM(family=family)
    with pytest.warns(SkipTestWarning, match="Can't test estimator VerticalGLM"):
        results = estimator_checks.check_estimator(model)
    assert {result["status"] for result in results} == {"passed"}
    checks: Any = (
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
        estimator_checks.check_mixin_order,
    )
    for check in checks:
        check("VerticalGLM", model)


def test_parameters_are_read_set_and_cloned():
    model = glm(cutpoints=[-1.0, 1.0])
    copied: Any = clone(model)
    assert copied.get_params() == model.get_params()
    assert copied.set_params(family="poisson").family == "poisson"
    assert model.family == "bernoulli"
