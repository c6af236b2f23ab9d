"""Labels of every kind under scikit-learn's conventions, in all public estimators; and tables of every kind."""

import importlib
import inspect
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from sklearn.base import BaseEstimator, is_classifier
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    get_scorer,
    log_loss,
    make_scorer,
    r2_score,
    roc_auc_score,
)
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import Schema, TableFacts
from vertinumpyro.glm import MarginalGLM, VerticalGLM
from vertinumpyro.regression import BayesianLinearRegression, VerticalLinearRegression, VerticalLogisticRegression

pytestmark = pytest.mark.filterwarnings("ignore")
N = 600
FAST: Any = {"epsilon": 50.0}
TWO = [("No", "Yes"), ("Yes", "No"), (1, 2), (2, 1), (True, False), (2.0, -1.0)]
OF_CLASSES = {
    VerticalLogisticRegression: TWO,
    VerticalGLM: [("Yes", "No"), (True, False), ("low", "middle", "high")],
}
OF_NUMBERS = (VerticalLinearRegression, BayesianLinearRegression)


def schema_of(label: Any, **x: Any) -> Schema:
    of_x = {"type": "real", "bounds": [0, 1], **x}
    return Schema.from_dict(
        {"id_column": "id", "parties": {"a": {"columns": {"x": of_x}}, "b": {"columns": {"late": label}}}}
    )


def table(values: Any, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Records of which the schema's later values have the larger x."""
    rng = np.random.default_rng(seed)
    x = rng.random(N)
    codes = np.digitize(x + rng.normal(0, 0.15, N), np.arange(1, len(values)) / len(values))
    return pd.DataFrame({"x": x}), pd.Series(np.array(values)[codes], name="late")


def model_of(kind: Any, values: Any) -> Any:
    own = {} if kind is not VerticalGLM else {"plan_settings": {"num_steps": 10}, "prior_scale": 5.0}
    if len(values) == 3:
        own |= {"family": "ordinal", "cutpoints": [-1.0, 1.0]}
    categories = {"type": "categorical", "categories": list(values)}
    return kind(schema=schema_of(categories), label="late", **FAST, **own)


CASES = [(kind, values) for kind, labels in OF_CLASSES.items() for values in labels]


def test_no_public_estimator_is_forgotten():
    found = set()
    for package in ("regression", "glm"):
        module: Any = importlib.import_module(f"vertinumpyro.{package}")
        found |= {kind for name in module.__all__ if inspect.isclass(kind := getattr(module, name))}
    estimators = {kind for kind in found if issubclass(kind, BaseEstimator) and hasattr(kind, "predict")}
    assert estimators == {*OF_CLASSES, *OF_NUMBERS}
    assert all(is_classifier(model_of(kind, labels[0])) for kind, labels in OF_CLASSES.items())


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_labels_are_the_tables_own_and_scorers_are_right(kind, values):
    X, y = table(values)
    model = model_of(kind, values).fit(X, y)
    found, expected = model.classes_.tolist(), np.unique(y).tolist()
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    predicted, probabilities = model.predict(X), model.predict_proba(X)
    assert model.score(X, y) == accuracy_score(y, predicted) > 0.6
    assert np.mean(predicted == model.classes_[probabilities.argmax(axis=1)]) > 0.9
    few = X.assign(late=y)[:10]
    assert model.score(few) == accuracy_score(y[:10], predicted[:10])
    assert get_scorer("neg_log_loss")(model, X, y) == pytest.approx(-log_loss(y, probabilities, labels=model.classes_))
    assert log_loss(y, probabilities) < np.log(len(values))
    if len(values) == 2:
        assert roc_auc_score(y, model.decision_function(X)) == get_scorer("roc_auc")(model, X, y) > 0.8
        precision = make_scorer(average_precision_score, response_method="predict_proba", pos_label=model.classes_[0])
        assert precision(model, X, y) > 0.8
    else:
        assert get_scorer("roc_auc_ovr")(model, X, y) > 0.7


def test_a_class_that_is_a_group_of_values_is_said_to_be_its_number():
    schema = schema_of({"type": "integer", "edges": [0, 5, 9]})
    x, y = table(range(10))
    with pytest.warns(UserWarning, match="groups of values.*the estimator's own score"):
        model = VerticalLogisticRegression(schema=schema, label="late", **FAST).fit(x, y)
    assert list(model.classes_) == [0, 1]
    assert model.score(x, y) > 0.7


@pytest.mark.parametrize("values", [("Yes", "No"), (2, 1)], ids=str)
def test_cross_validation_and_grids_score_the_labels_own_values(values):
    X, y = table(values)
    model = model_of(VerticalLogisticRegression, values)
    for scoring in ("accuracy", "roc_auc", None):
        assert np.all(cross_val_score(model, X, y, scoring=scoring, cv=2) > 0.7)
    search: Any = GridSearchCV(model, {"epsilon": [50.0]}, scoring="balanced_accuracy", cv=2).fit(X, y)
    assert search.best_score_ > 0.7


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ({"type": "real", "bounds": [-10, 30]}, lambda x: 40 * x - 10),
        ({"type": "count", "upper": 20}, lambda x: np.rint(20 * x).astype(int)),
        ({"type": "integer", "bounds": [5, 9]}, lambda x: np.rint(5 + 4 * x).astype(int)),
        ({"type": "real", "bounds": [0, 100], "bins": 20}, lambda x: 100 * x),
        ({"type": "binary", "categories": [3, 7]}, lambda x: np.where(x > 0.5, 7, 3)),
    ],
    ids=["real", "count", "integer", "bins", "numbers"],
)
def test_numbers_are_predicted_in_the_tables_own_units(label, values):
    X, _ = table(("a", "b"))
    y = pd.Series(values(X["x"].to_numpy()), name="late")
    model = VerticalLinearRegression(schema=schema_of(label), label="late", **FAST).fit(X, y)
    assert r2_score(y, model.predict(X)) == pytest.approx(model.score(X, y), abs=0.02)
    assert model.score(X, y) > 0.6
    assert get_scorer("neg_root_mean_squared_error")(model, X, y) > -0.6 * y.std()


# -- tables ---------------------------------------------------------------------------------------


def logistic(**settings: Any) -> VerticalLogisticRegression:
    schema = schema_of({"type": "binary"})
    return VerticalLogisticRegression(**{"schema": schema, "label": "late", "insecure_seed": 1, **FAST, **settings})


class Interchanged:
    """A frame that has the interchange protocol alone."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame

    def __len__(self) -> int:
        return len(self._frame)

    def __dataframe__(self, *args: Any, **settings: Any) -> Any:
        return self._frame.__dataframe__(*args, **settings)


def test_tables_of_every_library_are_one_table():
    import pyarrow as pa

    X, y = table((0, 1))
    kinds = [pa.Table.from_pandas(X), {"x": X["x"].to_numpy()}, Interchanged(X)]
    expected = logistic().fit(X, y)
    for kind in kinds:
        assert np.array_equal(logistic().fit(kind, y).coef_, expected.coef_)
        assert np.array_equal(expected.predict(kind), expected.predict(X))
    named = logistic(features=["x"]).fit(X.to_numpy(), y.to_numpy())
    assert np.array_equal(named.coef_, expected.coef_)
    assert np.array_equal(named.predict_proba(X.to_numpy()), expected.predict_proba(X))
    pipeline = make_pipeline(FunctionTransformer().set_output(transform="pandas"), logistic())
    assert np.array_equal(pipeline.fit(X, y).predict(X), expected.predict(X))


def test_a_polars_frame_is_taken():
    polars = pytest.importorskip("polars")
    X, y = table((0, 1))
    model = logistic().fit(polars.from_pandas(X), polars.from_pandas(y))
    assert model.score(polars.from_pandas(X), y) == model.score(X, y)


def test_what_is_wrong_with_a_table_is_said_and_nothing_else():
    X, y = table((0, 1))
    refusals = [
        (logistic(), X.to_numpy(), "a NumPy array has no column names"),
        (logistic(features=["x"]), np.zeros((3, 2)), "shape"),
        (logistic(), {"a": X, "b": X}, "from_frames"),
        (logistic(), [[1.0]], "the table is a list"),
        (logistic(schema=None), X, "schema="),
    ]
    for model, given, words in refusals:
        with pytest.raises(ArgumentError, match=words) as refused:
            model.fit(given, y)
        assert ("schema=" in str(refused.value)) == (words == "schema=")


def test_the_remedies_for_missing_values_are_true():
    X, y = table((0, 1))
    X.loc[0, "x"] = np.nan
    for missing in ("forbid", "mask", "category"):
        with pytest.raises(DataError, match='bins and missing = "category"'):
            logistic(schema=schema_of({"type": "binary"}, missing=missing)).fit(X, y)
    advised = schema_of({"type": "binary"}, missing="category", bins=4)
    assert logistic(schema=advised).fit(X, y).score(X, y) > 0.7


# -- one signature --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [VerticalLogisticRegression, VerticalLinearRegression, VerticalGLM, MarginalGLM])
def test_plans_are_asked_for_in_one_way(kind):
    schema = schema_of({"type": "binary"}, bins=3)
    own: Any = {"schema": schema, "label": "late", "family": "bernoulli"} if kind is MarginalGLM else {}
    model, facts = kind(**own), TableFacts(schema, 2000)
    plans = [
        model.plan(facts, "late", epsilon=5.0),
        model.plan(schema, "late", num_records=2000, epsilon=5.0),
        model.plan(schema=schema, label="late", num_records=2000, epsilon=5.0),
    ]
    assert {plan.num_records for plan in plans} == {2000}
    with pytest.raises(ArgumentError, match="num_records"):
        model.plan(schema, "late", epsilon=5.0)
    with pytest.raises(ArgumentError, match="leave"):
        model.plan(facts, schema=schema, label="late", epsilon=5.0)


def test_a_fit_takes_the_labels_name_in_the_place_of_labels():
    X, y = table((0, 1))
    model = logistic(label=None).fit(X.assign(late=y), "late")
    assert np.array_equal(model.coef_, logistic(label=None).fit(X, y).coef_)
    with pytest.raises(ArgumentError, match="constructor 'late'"):
        logistic().fit(X.assign(late=y), "x")
