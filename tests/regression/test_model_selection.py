"""The regressions under scikit-learn's model selection, on pooled DataFrames, and what that spends."""

import copy
import functools
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.regression.conftest import FEATURES, SCHEMA, told
from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.glm import FAMILIES, VerticalGLM
from vertinumpyro.privacy import PrivacyWarning
from vertinumpyro.regression import (
    BayesianLinearRegression,
    OwnBudgets,
    PooledTable,
    VerticalLinearRegression,
    VerticalLogisticRegression,
    bayesian_linear,
)
from vertinumpyro.secure.plaintext import Plaintext

DELTA = 1e-5
AGE = RealColumn(bounds=(0.0, 90.0))
LABELS = {VerticalLinearRegression: "debt", VerticalLogisticRegression: "late"}
VERTICAL = list(LABELS)
seeded = pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")


def vertical(kind, **settings):
    defaults = {
        "schema": SCHEMA, "label": LABELS[kind], "features": FEATURES, "epsilon": 8.0, "delta": DELTA,
        "backend": Plaintext(),
    }  # fmt: skip
    return kind(**{**defaults, **settings})


def cases():
    """(estimator, X, y) of all three, ready for scikit-learn."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (600, 3))
    bayesian = BayesianLinearRegression(epsilon=8.0, delta=DELTA, target_bound=2.0, noise_variance=0.04)
    return {
        "bayesian": lambda frame: (bayesian, x, x @ [0.6, -0.3, 0.1] + rng.normal(0, 0.1, 600)),
        "linear": lambda frame: (vertical(VerticalLinearRegression), frame, None),
        "logistic": lambda frame: (vertical(VerticalLogisticRegression), frame, None),
        "logistic, labels apart": lambda frame: (
            vertical(VerticalLogisticRegression), frame[list(FEATURES)], frame["late"]
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def frame(dataset):
    return dataset.to_frame()


@pytest.fixture(params=cases())
def case(request, frame):
    model, X, y = cases()[request.param](frame)
    return clone(model), X, y


# -- what it spends -------------------------------------------------------------------------------


def test_cross_validation_works_and_says_once_that_budgets_add_up(case):
    model, X, y = case
    scores, messages = told(lambda: cross_val_score(model, X, y, cv=5))
    assert scores.shape == (5,)
    assert np.all(scores > 0.1)
    assert len(messages) == 2
    assert "this will fit" in messages[0]
    assert "5 times epsilon = 8" in messages[0]
    assert "have spent 2 budgets" in messages[1]
    assert "add up, to epsilon = 16 so far" in messages[1]
    assert model.own_budgets == pytest.approx(OwnBudgets(5, 40.0, 5 * DELTA))


def test_a_grid_counts_every_fold_of_every_setting_and_the_refit(case):
    model, X, y = case
    grid = GridSearchCV(model, {"epsilon": [2.0, 8.0]}, cv=3)
    search, messages = told(lambda: grid.fit(X, y))
    assert [words in message for words, message in zip(("7 times", "2 budgets"), messages, strict=True)] == [True] * 2
    refit = search.best_params_["epsilon"]
    assert model.own_budgets == pytest.approx(OwnBudgets(7, 3 * 2.0 + 3 * 8.0 + refit, 7 * DELTA))
    assert search.best_estimator_.own_budgets == model.own_budgets
    assert search.predict(X).shape == (len(X),)


def test_a_warning_that_is_an_error_stops_a_grid_before_anything_is_spent(case):
    model, X, y = case
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="nothing is spent so far"):
            GridSearchCV(model, {"epsilon": [2.0, 8.0]}, cv=3, error_score="raise").fit(X, y)
    assert model.own_budgets.count == 0


def test_a_first_fit_says_nothing_and_later_ones_are_announced_as_they_mount_up(case):
    model, X, y = case
    announced = {}
    for number in range(1, 12):
        _, messages = told(lambda: clone(model).fit(X, y))
        if messages:
            announced[number] = messages
    assert list(announced) == [2, 10]
    assert "have spent 10 budgets" in announced[10][0]


def test_plans_that_were_looked_at_are_not_counted(frame, dataset):
    model = vertical(VerticalLinearRegression)
    plans = [model.plan(num_records=len(frame)) for _ in range(3)]
    _, messages = told(lambda: [model.fit(dataset, plan) for plan in plans])
    assert messages == []
    assert model.own_budgets == OwnBudgets(0, 0.0, 0.0)
    assert {plan.target_epsilon for plan in plans} == {8.0}


def test_a_warning_that_is_an_error_stops_the_fit_before_it_spends(case, tmp_path):
    model, X, y = case
    model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="2 budgets"):
            model.fit(X, y, run_dir=tmp_path)
    assert not list(tmp_path.iterdir())
    assert model.own_budgets.count == 1


def test_a_fit_that_is_refused_is_not_counted(frame):
    model = vertical(VerticalLinearRegression, estimator="best")
    with pytest.raises(ArgumentError, match="estimator"):
        model.fit(frame)
    assert model.own_budgets.count == 0


def test_clones_copies_and_pickles_count_together_and_strangers_apart(case):
    model, X, y = case
    model.fit(X, y)
    family = [clone(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)), clone(clone(model))]
    assert [relative.own_budgets.count for relative in family] == [1, 1, 1, 1]
    with pytest.warns(PrivacyWarning, match="2 budgets"):
        family[-1].fit(X, y)
    assert model.own_budgets.count == 2
    stranger = type(model)(**model.get_params())
    assert stranger.own_budgets.count == 0


# -- scikit-learn's contract ----------------------------------------------------------------------


CHECKS_WITHOUT_A_TABLE = (
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
    estimator_checks.check_estimators_unfitted,
)


@pytest.mark.parametrize(
    "made", [*VERTICAL, *(functools.partial(VerticalGLM, family=family) for family in FAMILIES)],
    ids=[*(kind.__name__ for kind in VERTICAL), *FAMILIES],
)  # fmt: skip
def test_scikit_learns_checks_of_an_estimator_without_a_table(made):
    """The checks with records bring arrays, whose columns have no names and no public bounds: the tags say so."""
    name = type(made()).__name__
    with pytest.warns(SkipTestWarning, match=f"Can't test estimator {name}"):
        results = estimator_checks.check_estimator(made())
    assert {result["status"] for result in results} == {"passed"}
    for check in CHECKS_WITHOUT_A_TABLE:
        check(name, made())


@pytest.fixture
def few_auxiliary_tables(monkeypatch):
    """Every check makes a table of another size, whose clips are searched anew: on one auxiliary table, not on 20."""
    few = functools.partial(bayesian_linear.optimal_thresholds, repeats=1)
    monkeypatch.setattr(bayesian_linear, "optimal_thresholds", few)


@pytest.mark.usefixtures("few_auxiliary_tables")
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [BayesianLinearRegression(epsilon=8.0, insecure_seed=0)],
    expected_failed_checks=lambda _: dict.fromkeys(
        (
            "check_sample_weights_list",
            "check_sample_weights_not_overwritten",
            "check_sample_weight_equivalence_on_dense_data",
        ),
        "weights lie from 0 to 1, as the noise is for records that count once",
    ),
)
def test_scikit_learns_checks_of_an_estimator_of_arrays(estimator, check):
    """All of them; the seed is for the one that wants two fits to be alike."""
    check(estimator)


@pytest.mark.parametrize("kind", VERTICAL)
def test_features_are_counted_as_columns(kind, dataset):
    model = vertical(kind).fit(dataset)
    assert list(model.feature_names_in_) == list(FEATURES)
    assert model.n_features_in_ == len(FEATURES)


@pytest.mark.parametrize("kind", VERTICAL)
@pytest.mark.parametrize(
    "method", ["predict", "predict_proba", "decision_function", "score", "intervals", "feature_names"]
)
def test_an_unfitted_model_says_so(kind, method, frame):
    call = getattr(kind(), method, None)
    if call is None:
        assert kind is VerticalLinearRegression
        return
    with pytest.raises(NotFittedError):
        call() if method in ("intervals", "feature_names") else call(frame)


def test_a_pipeline_is_validated_on_the_pooled_side(frame):
    model = vertical(VerticalLogisticRegression, schema=None)
    pipeline = Pipeline([("table", PooledTable(schema=SCHEMA)), ("model", model)])
    folds = StratifiedKFold(3).split(frame, frame["late"])
    scores, messages = told(lambda: cross_val_score(pipeline, frame, cv=list(folds)))
    assert np.all(scores > 0.5)
    assert len(messages) == 2
    assert model.own_budgets.count == 3


@pytest.mark.parametrize("kind", VERTICAL)
def test_weights_are_refused_with_the_reason(kind, frame):
    with pytest.raises(ArgumentError, match="sample_weight: a record counts once here"):
        vertical(kind).fit(frame, sample_weight=np.ones(len(frame)))


@seeded
def test_weights_of_whole_records_within_bounds_are_those_records_scaled():
    rng = np.random.default_rng(0)
    x, weights = rng.uniform(-1, 1, (400, 2)), rng.random(400)
    y = x @ [0.6, -0.3]
    model, other = (BayesianLinearRegression(epsilon=8.0, projection=False, insecure_seed=1) for _ in range(2))
    root = np.sqrt(weights)
    weighted, scaled = model.fit(x, y, sample_weight=weights), other.fit(x * root[:, None], y * root)
    assert np.array_equal(weighted.coef_, scaled.coef_)
    for wrong, said in (
        ([2.0] * 400, "must lie from 0 to 1"),
        ([0.0] * 400, "not all be zero"),
        ([1.0], "has shape"),
        ([np.nan] * 400, "from 0 to 1"),
    ):
        with pytest.raises(ArgumentError, match=f"sample_weight.*{said}"):
            model.fit(x, y, sample_weight=wrong)


def test_text_labels_are_predicted_under_cross_validation():
    rng = np.random.default_rng(0)
    schema = Schema(
        {"a": PartySchema({"age": AGE}), "b": PartySchema({"late": BinaryColumn(categories=("no", "yes"))})}
    )
    table = pd.DataFrame({"age": rng.uniform(0, 90, 2000)})
    late = pd.Series(np.where(table["age"] > 45, "yes", "no"), name="late")
    model = VerticalLogisticRegression(schema=schema, label="late", epsilon=8.0, delta=DELTA, backend=Plaintext())
    found, _ = told(lambda: cross_val_predict(model, table, late, cv=2, method="predict_proba"))
    assert np.mean((found[:, 1] > 0.5) == (late == "yes")) > 0.9


# -- the results table ----------------------------------------------------------------------------


@seeded
@pytest.mark.parametrize("kind", VERTICAL)
def test_a_results_table_names_coefficients_by_their_values(kind, dataset):
    model = vertical(kind, insecure_seed=1).fit(dataset)
    found = model.summary(0.9)
    names = ["(intercept)", "age", "bmi", "ward=day", "ward=night", "ward=none", "income", "owner"]
    assert list(found.frame.index) == names
    assert list(found.frame) == ["coef", "std err", "[0.05", "0.95]"]
    assert np.array_equal(found.frame["coef"], [model.intercept_, *model.coef_])
    assert np.allclose(found.frame[["[0.05", "0.95]"]], model.intervals(0.9))
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"label: {LABELS[kind]}" in " ".join(str(found).split())
    assert sum(set(line) == {"="} for line in lines) == 3
    trimmed = vertical(kind, estimator="minimiser").fit(dataset).summary()
    assert list(trimmed.frame) == ["coef"]
    assert "has no intervals" in str(trimmed)
    with pytest.raises(ArgumentError, match="level=95"):
        model.summary(95)


def test_a_results_table_of_arrays_and_of_frames():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 2))
    for records, names in ((x, ["x1", "x2"]), (pd.DataFrame(x, columns=["dose", "age"]), ["dose", "age"])):
        model = BayesianLinearRegression(epsilon=8.0, posterior="plug_in").fit(records, x[:, 0])
        assert list(model.summary().frame.index) == names
        assert "leave out the noise of privacy" in str(model.summary())


def test_columns_at_several_parties_are_not_taken_for_holders(dataset):
    model = BayesianLinearRegression(target="debt")
    for call in (lambda: model.plan(dataset, epsilon=1.0), lambda: model.fit(dataset)):
        with pytest.raises(ArgumentError, match="take VerticalLinearRegression"):
            call()


# -- tables ---------------------------------------------------------------------------------------


@seeded
@pytest.mark.parametrize("kind", VERTICAL)
def test_a_pooled_frame_is_the_same_table(kind, frame, dataset):
    """Fit, prediction and score, by the same noise; label within the frame or apart, other columns or none."""
    plans = [vertical(kind).plan(num_records=len(frame)) for _ in range(3)]
    label = LABELS[kind]
    tables = [(dataset, None), (frame, None), (frame[list(FEATURES)], frame[label].to_numpy())]
    models = [
        vertical(kind, insecure_seed=5).fit(X, y, plan=plan) for plan, (X, y) in zip(plans, tables, strict=True)
    ]  # fmt: skip
    for model, (X, y) in zip(models, tables, strict=True):
        assert np.array_equal(model.coef_, models[0].coef_)
        assert np.array_equal(model.predict(X), models[0].predict(dataset))
        assert model.score(X, y) == models[0].score(dataset)
        assert model.score(dataset) == pytest.approx(model.score(dataset, frame[label]), abs=1e-6)
    assert np.array_equal(models[0].predict(frame), models[0].predict(dataset))


@pytest.mark.parametrize("kind", VERTICAL)
def test_a_frame_of_features_alone_in_any_order_is_enough_for_predictions(kind, frame, dataset):
    model = vertical(kind).fit(dataset)
    shuffled = frame[list(reversed(FEATURES))].assign(stranger="x")
    assert np.array_equal(model.predict(shuffled), model.predict(dataset))
    assert model.schema_.columns.keys() == {*FEATURES, LABELS[kind]}


@seeded
def test_categories_are_read_by_the_public_schema():
    rng = np.random.default_rng(0)
    schema = Schema(
        {
            "a": PartySchema({"ward": CategoricalColumn(categories=("day", "night")), "age": AGE}),
            "b": PartySchema({"late": BinaryColumn(categories=("no", "yes"))}),
        }
    )  # fmt: skip
    late = rng.random(3000) < 0.5
    table = pd.DataFrame({"ward": np.where(late, "night", "day"), "age": rng.uniform(0, 90, 3000),
                          "late": np.where(late, "yes", "no")})  # fmt: skip
    model = vertical(VerticalLogisticRegression, schema=schema, features=None, insecure_seed=5).fit(
        table[["age", "ward"]], table["late"]
    )
    assert model.score(table[["ward", "age"]], table["late"]) > 0.99
    assert np.array_equal(model.predict(table), model.predict(VerticalDataset.from_pooled(schema, table)))
    assert np.array_equal(model.predict(table), table["late"])
    wrong = table.assign(ward=table["ward"].replace("night", "a secret ward"))
    with pytest.raises(DataError, match="ward") as refused:
        model.predict(wrong)
    assert "secret" not in str(refused.value)


def test_what_cannot_be_a_table_is_refused_by_name(frame, dataset):
    model = vertical(VerticalLogisticRegression).fit(dataset)
    refusals = [
        (lambda: model.predict(frame.drop(columns="income")), "lacks column 'income'"),
        (lambda: clone(model).fit(frame, frame["late"], plan="x"), "plan must be"),
        (lambda: model.score(frame.drop(columns="late")), "lacks column 'late'"),
        (lambda: model.score(dataset, [0, 1]), "y has shape"),
        (lambda: model.score(frame, [0, 1]), "y has shape"),
        (lambda: clone(model).fit(frame[list(FEATURES)], [0, 1]), "y has shape"),
        (lambda: clone(model).fit(dataset, frame["late"]), "leave y out"),
        (lambda: clone(model).set_params(schema=None).fit(frame), "schema="),
        (lambda: clone(model).fit(dataset, model.plan_, plan=model.plan_), "twice"),
        (lambda: clone(model).set_params(label=None).fit(dataset), "label: .*plan="),
        (lambda: clone(model).set_params(epsilon=None).fit(frame), "epsilon: .*plan="),
        (lambda: model.plan(num_records=10, label="nothing"), "nothing"),
    ]
    for call, message in refusals:
        with pytest.raises(ArgumentError, match=message):
            call()
    assert model.own_budgets.count == 1


def test_a_plan_takes_its_settings_from_the_constructor_and_others_win(frame):
    model = vertical(VerticalLinearRegression, plan_settings={"feature_bits": 10, "collusion_threshold": 1})
    plan = model.plan(num_records=100)
    assert (plan.layout.feature_bits, plan.collusion_threshold, plan.target_epsilon, plan.delta) == (10, 1, 8.0, DELTA)
    other = model.plan(num_records=100, epsilon=0.5, delta=0.0, feature_bits=12)
    assert (other.layout.feature_bits, other.collusion_threshold, other.target_epsilon, other.delta) == (
        12,
        1,
        0.5,
        0.0,
    )
