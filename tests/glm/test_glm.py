"""`VerticalGLM`: every family beside the same model without privacy, its plan, predictions, and what stops it."""

import copy
import functools
import math
import pickle
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", reason="the estimators are scikit-learn's: extra `report`")

from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.optimize import minimize
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, d2_tweedie_score, r2_score, roc_auc_score

from tests.glm.conftest import CUTPOINTS, FEATURES, LABELS, SCHEMA, TIMES, draw
from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core.errors import ArgumentError, DataError, PlanSpentError
from vertinumpyro.core.rng import InsecureRandomnessWarning, InsecureSeededSource
from vertinumpyro.data import (
    BinaryColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    TableFacts,
    VerticalDataset,
)
from vertinumpyro.dpvi.training_loop import ChunkRunner
from vertinumpyro.evaluation.run_plots import plot_survival
from vertinumpyro.glm import FAMILIES, VerticalGLM, glm_model
from vertinumpyro.model import PiecewiseHazard
from vertinumpyro.model.outcomes import OUTCOMES, OwnFactor
from vertinumpyro.privacy import GradientPlan, PrivacyWarning
from vertinumpyro.privacy.ledger import begun
from vertinumpyro.regression import OwnBudgets
from vertinumpyro.regression.dataframe_input import concordance
from vertinumpyro.regression.glm_model import terms_of
from vertinumpyro.regression.glm_settings import default_steps
from vertinumpyro.reports.files import write_report
from vertinumpyro.session import PRIVACY_RECORD, InProcessSession

KEY = jax.random.key(0)
QUICK = {"num_steps": 3}
REALS = {family: SCHEMA.columns[LABELS[family]].bounds for family in ("normal", "gamma")}
pytestmark = pytest.mark.filterwarnings(
    "ignore::vertinumpyro.core.rng.InsecureRandomnessWarning",
    "ignore::vertinumpyro.core.errors.InferenceWarning",
    "ignore::vertinumpyro.posterior.TwinWarning",
)


def glm(family="bernoulli", **settings) -> Any:
    defaults = {"family": family, "schema": SCHEMA, "label": LABELS.get(family), "features": FEATURES,
                "linear": ["years"], "epsilon": 2.0, "insecure_seed": 0}  # fmt: skip
    if family == "ordinal":
        defaults["cutpoints"] = CUTPOINTS
    if family in ("negative_binomial", "gamma"):
        defaults["concentration"] = 4.0 if family == "negative_binomial" else 2.0
    if family == "survival":
        defaults |= {"cutpoints": TIMES, "time": "until", "entry": "since"}
    return VerticalGLM(**{**defaults, **settings})


def without_privacy(dataset, kwargs):
    """The mode of the same NumPyro function on pooled data, by L-BFGS."""
    model = functools.partial(glm_model, **kwargs)
    traced = handlers.trace(handlers.seed(model, 0)).get_trace(dataset.pooled(), dataset.num_records)
    latents = {n: jnp.zeros(jnp.shape(s["value"])) for n, s in traced.items()
               if s["type"] == "sample" and not s["is_observed"]}  # fmt: skip
    start, unravel = ravel_pytree(latents)

    def loss(theta):
        density, _ = log_density(model, (dataset.pooled(), dataset.num_records), {}, unravel(theta))
        return -density / dataset.num_records

    value = jax.jit(jax.value_and_grad(loss))
    found = minimize(lambda theta: [np.asarray(v, float) for v in value(theta)], np.asarray(start), jac=True)
    return {name: np.asarray(value) for name, value in unravel(jnp.asarray(found.x)).items()}


def own_distribution(model, dataset, point):
    """The label's distribution in the model itself, at given coefficients."""
    seeded = handlers.seed(handlers.substitute(functools.partial(glm_model, **model.model_kwargs_), data=point), 0)
    trace = handlers.trace(seeded).get_trace(dataset.pooled(), dataset.num_records)
    return trace[model.model_kwargs_["label"]]["fn"]


@pytest.fixture(scope="module", params=list(FAMILIES))
def fitted(request, dataset):
    """Of every family, with so large an epsilon that the noise is nothing."""
    model = glm(request.param, epsilon=2000.0, plan_settings={"num_steps": 80})
    wide = 4 * model.plan(dataset).clip_norm
    plan = model.plan(dataset, clip_norm=wide)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return request.param, model.fit(dataset, plan=plan)


@pytest.fixture(scope="module")
def quick(dataset):
    """A logistic regression of few steps."""
    model = glm(plan_settings=QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(dataset, plan=model.plan(dataset))


# -- families -------------------------------------------------------------------------------------


def test_every_outcome_of_a_sum_has_a_family():
    assert {family.outcome for family in FAMILIES.values()} == set(OUTCOMES) - {OwnFactor}


def test_with_almost_no_noise_it_is_the_model_without_privacy(fitted, dataset):
    _, model = fitted
    point = without_privacy(dataset, model.model_kwargs_)
    coefficients = np.concatenate([np.ravel(point[f"{term.column}_coef"]) for term in terms_of(
        SCHEMA, model.label, features=FEATURES, linear=["years"])])  # fmt: skip
    exact = copy.copy(model)
    exact.coef_, exact.intercept_ = coefficients, float(point["intercept"])
    if model.family == "survival":
        found = model.baseline_hazard_[1:] / model.baseline_hazard_[0]
        np.testing.assert_allclose(found, np.exp(point["baseline"]), rtol=0.1)
    unit = FAMILIES[model.family].unit
    np.testing.assert_allclose(model.linear_predictor(dataset), exact.linear_predictor(dataset), atol=0.1 * unit)
    numbers = [i for i, name in enumerate(model.feature_names()) if "=" not in name]
    np.testing.assert_allclose(model.coef_[numbers], coefficients[numbers], atol=0.08 * unit)


def test_a_report_says_how_well_it_predicts_and_that_this_is_not_dp(fitted, frame):
    family, model = fitted
    if family == "survival":
        assert not hasattr(model, "report_items")
        return
    tables, figures = model.report_items(frame)
    assert all(item.not_dp for item in (*tables, *figures))
    assert len(figures) == 1 + FAMILIES[family].classes
    (numbers,) = (table.frame for table in tables)
    assert len(numbers) == (2 if family == "ordinal" else 1)
    if not FAMILIES[family].classes:
        share = numbers["R²" if family in REALS else "D²"].iloc[0]
        assert share == pytest.approx(model.score(frame), abs=1e-6)
    elif family != "ordinal":
        probability = model.predict_proba(frame)[:, 1]
        truth = frame[model.label] == model.classes_[1]
        assert numbers["area under ROC"].iloc[0] == pytest.approx(roc_auc_score(truth, probability))


def test_a_predictor_between_parties_predicts_what_the_model_does(fitted, dataset):
    _, model = fitted
    found = model.predictor(allow_not_dp=True).predict(dataset)
    np.testing.assert_allclose(found["score"], model.linear_predictor(dataset), atol=1e-9)
    predicted = model.predict(dataset)
    same = found[model.label] == predicted if hasattr(model, "classes_") else np.isclose(found[model.label], predicted)
    assert np.all(same)


def test_predictions_are_the_models_own(fitted, dataset, frame):
    family, model = fitted
    point = {site: value[0] for site, value in model.posterior_.sample(KEY, 1).items()}
    own = own_distribution(model, dataset, point)
    column = SCHEMA.columns[model.label]
    if FAMILIES[family].classes:
        values = jnp.arange(column.num_categories)[:, None]
        probabilities = np.exp(np.asarray(own.log_prob(values))).T
        probabilities = probabilities[:, np.argsort(column.labels)]
        np.testing.assert_allclose(model.predict_proba(dataset), probabilities, atol=2e-4)
        assert model.predict_proba(frame).shape == (len(frame), column.num_categories)
        assert list(model.classes_) == sorted(column.labels)
        assert np.mean(model.predict(dataset) == model.classes_[probabilities.argmax(axis=1)]) > 0.999
        assert np.all(np.isin(model.predict(frame), frame[model.label].unique()))
        assert model.score(frame) == accuracy_score(frame[model.label], model.predict(frame))
    elif family == "survival":
        hazard = PiecewiseHazard(TIMES)
        times = [frame[name].to_numpy() for name in ("until", "since")]
        own_part = hazard.log_cumulative(jnp.log(model.baseline_hazard_ / model.baseline_hazard_[0]), *times)
        np.testing.assert_allclose(model.predict(dataset), own.rate / np.exp(own_part), rtol=2e-3)
        assert model.score(dataset) == pytest.approx(
            concordance(model.predict(dataset), frame["left"].to_numpy(), *times)
        )
    else:
        low, high = REALS.get(family, (0.0, 1.0))
        mean = low + (high - low) * np.asarray(own.mean)
        np.testing.assert_allclose(model.predict(dataset), mean, rtol=2e-4, atol=1e-3)
        truth, predicted = frame[model.label], model.predict(frame)
        score = r2_score(truth, predicted) if family in REALS else d2_tweedie_score(truth, predicted, power=1)
        assert model.score(frame) == pytest.approx(score, abs=1e-4)
    columns = [*FEATURES, "until", "since"]
    assert model.score(dataset) == pytest.approx(model.score(frame[columns], frame[model.label]), abs=1e-6)


@pytest.mark.promise
def test_it_learns_what_there_is_to_learn(fitted):
    family, model = fitted
    test = draw(1000, 2)
    least = {
        "bernoulli": 0.64,
        "probit": 0.7,
        "ordinal": 0.45,
        "normal": 0.35,
        "poisson": 0.15,
        "negative_binomial": 0.13,
        "gamma": 0.25,
        "survival": 0.6,
    }
    assert model.score(test) > least[family]


def test_a_family_is_a_classifier_or_a_regressor(fitted, frame):
    family, model = fitted
    from sklearn.base import is_classifier, is_regressor

    assert is_classifier(model) == FAMILIES[family].classes != is_regressor(model)
    assert hasattr(model, "decision_function") == (family in ("bernoulli", "probit"))
    assert hasattr(model, "predict_proba") == FAMILIES[family].classes
    assert hasattr(model, "classes_") == FAMILIES[family].classes
    if family in ("bernoulli", "probit"):
        scores = model.decision_function(frame)
        assert np.array_equal(model.predict(frame), model.classes_[(scores > 0).astype(int)])


def test_what_was_fitted_is_described(fitted, dataset):
    _, model = fitted
    times = ("until", "since") if model.family == "survival" else ()
    assert model.feature_names() == ["income", "years", "usage", "tariff=x", "tariff=y", "tariff=z"]
    summary = model.summary()
    assert list(summary.frame.index) == ["(intercept)", "income", "years", "usage", "tariff=y", "tariff=z"]
    first, *others = model.coef_[3:]
    rows = [model.intercept_ + first, *model.coef_[:3], *(other - first for other in others)]
    np.testing.assert_allclose(summary.frame["coef"], rows, rtol=0, atol=1e-12)
    assert ("std err" in summary.frame) == model.posterior_.is_interval
    if model.posterior_.is_interval:  # how values differ is known, where each beside an intercept is not
        alone = model.posterior_.summary().loc["tariff_coef[1]", "std_error"]
        assert summary.frame.loc["tariff=y", "std err"] < alone
        low, high = summary.frame.loc["tariff=y"].to_numpy()[2:]
        assert low < others[0] - first < high
        assert "over its first one" in str(summary)
    assert f"family {model.family}" in str(summary)
    assert model.coef_.shape == (6,)
    assert (model.n_features_in_, list(model.feature_names_in_)) == (4, list(FEATURES))
    assert model.schema_.columns.keys() == {*FEATURES, model.label, *times}
    assert not model.secure_noise_
    if model.family == "poisson":
        covariates = dataset.to_frame()[list(FEATURES)].iloc[:50]
        twin = model.posterior_.sample_synthetic(rng_key=KEY, covariates=covariates)
        assert set(twin.columns) == {*FEATURES, model.label}


# -- survival, offsets and exposure ---------------------------------------------------------------


def test_the_two_factors_of_a_survival_are_its_likelihood(dataset, frame):
    """Beside the density of a piecewise exponential time, censored and entered late, integrated numerically."""
    point = {"intercept": -0.8, "baseline": np.array([0.5]), "income_coef": 0.7, "years_coef": -0.2, "usage_coef": 0.4,
             "tariff_coef": np.array([0.1, -0.3, 0.2])}  # fmt: skip
    model = functools.partial(
        glm_model, schema=SCHEMA, label="left", family="survival", features=FEATURES, linear=["years"],
        cutpoints=TIMES, time="until", entry="since",
    )  # fmt: skip
    few = {name: column[:50] for name, column in dataset.pooled().items()}
    trace = handlers.trace(handlers.seed(handlers.substitute(model, data=point), 0)).get_trace(few, 50)
    sites = (trace[name] for name in ("left", "when it was"))
    found = sum(site["fn"].log_prob(site["value"]) for site in sites)

    rows = frame.iloc[:50]
    eta = 0.7 * rows["income"] - 0.02 * (rows["years"] - 10) + 0.4 * rows["usage"]
    eta += np.array([0.1, -0.3, 0.2])[rows["tariff"].map("xyz".index)]

    def hazard(time):
        return np.exp(-0.8 + 0.5 * (time > TIMES[0]))

    grid = np.linspace(rows["since"], rows["until"], 4001)
    lived = np.trapezoid(hazard(grid), grid, axis=0)
    expected = rows["left"] * (eta + np.log(hazard(rows["until"]))) - np.exp(eta) * lived
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_a_survival_function_falls_with_the_hazard(dataset, frame):
    model = glm("survival", plan_settings=QUICK).fit(dataset)
    found = model.predict_survival_function(frame.iloc[:3], [0.0, 1.0, 4.0])
    lived = model.baseline_hazard_ @ np.array([TIMES[0], 4.0 - TIMES[0]])
    relative = np.exp(model.linear_predictor(frame.iloc[:3]) - model.intercept_)
    np.testing.assert_allclose(found[:, 0], 1.0, atol=1e-4)
    np.testing.assert_allclose(found[:, 2], np.exp(-relative * lived), rtol=1e-5)
    assert not hasattr(glm("poisson"), "predict_survival_function")


def test_concordance_is_the_share_of_comparable_pairs():
    rng = np.random.default_rng(0)
    time, risk, event = rng.integers(1, 9, 60), rng.integers(0, 5, 60), rng.integers(0, 2, 60)
    entry = time * rng.uniform(0, 0.8, 60)
    for entered in (np.full(60, -np.inf), entry):
        pairs = [(i, j) for i in range(60) for j in range(60)
                 if event[i] and time[j] > time[i] > entered[j]]  # fmt: skip
        expected = np.mean([(risk[i] > risk[j]) + (risk[i] == risk[j]) / 2 for i, j in pairs])
        assert concordance(risk, event, time, entered) == pytest.approx(expected)
    assert concordance(risk, np.zeros(60, int), time) == 0.5


def test_a_hazard_that_never_changes_is_one_sum_and_takes_few_steps(dataset):
    model = glm("survival", cutpoints=())
    plan = model.plan(dataset)
    assert (plan.residual_bound < 1, plan.start is None) == (True, False)
    assert model.computations(dataset, plan)[-1][0].shape.num_components == 1
    with pytest.raises(ArgumentError, match=r"curvature=True: .*a hazard without cutpoints"):
        glm("survival", curvature=True).plan(dataset)


def test_a_baseline_from_a_table_of_events_has_intervals_and_few_steps(dataset, frame, quick, tmp_path, monkeypatch):
    model = glm("survival", entry=None, epsilon=20.0)
    plan = model.plan(dataset)
    assert (plan.num_gradients, plan.start.cells) == (20, (21, 0))
    assert plan.worst.epsilon <= 20.0
    table = model.fit(dataset, plan=plan).posterior_.summary()
    point = without_privacy(dataset, model.model_kwargs_)
    exact = {"baseline[0]": point["baseline"][0], "intercept": point["intercept"], "income_coef": point["income_coef"],
             "usage_coef": point["usage_coef"], "years_coef": point["years_coef"]}  # fmt: skip
    for name, value in exact.items():
        assert abs(table.loc[name, "estimate"] - value) < 3 * table.loc[name, "std_error"] + 0.02, name
    assert table["std_error"].max() < 0.6
    ratios, curves = model.hazard_ratios(), model.survival_curves(times=[0.0, 2.0])
    assert list(ratios.index)[:2] == ["income: 1 over -1", "years: 20 over 0"]
    assert np.log(ratios.loc["income: 1 over -1", "lower"]) / 2 == pytest.approx(
        table.loc["income_coef", "lower"], abs=0.02
    )
    assert curves.loc[("reference", 0.0), "lower"] == 1.0
    assert curves.loc[("reference", 2.0), "lower"] < curves.loc[("reference", 2.0), "estimate"] < 1.0
    assert model.baseline_hazard_[1] / model.baseline_hazard_[0] == pytest.approx(
        np.exp(table.loc["baseline[0]", "estimate"]), rel=1e-3)  # fmt: skip
    profiles = frame[list(FEATURES)].iloc[:2].set_axis(["one of them", "another"])
    drawn = []

    def drawing(curves, **settings):
        drawn.append(curves)
        return plot_survival(curves, **settings)

    monkeypatch.setattr("vertinumpyro.reports.regression.plot_survival", drawing)
    write_report(model, tmp_path / "run", profiles=profiles)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Survival of the chosen profiles" in report
    assert all(list(curves.index.unique("profile")) == list(profiles.index) for curves in drawn)
    assert drawn[0].equals(model.survival_curves(profiles))
    with pytest.raises(ArgumentError, match=r"profiles are for curves of VerticalGLM\(family=\"survival\"\)"):
        write_report(quick, tmp_path / "other", profiles=profiles)
    with pytest.raises(ArgumentError, match="usage"):
        write_report(model, tmp_path / "third", profiles=profiles.drop(columns="usage"))
    assert not list(tmp_path.glob("third/report*"))


@pytest.mark.parametrize("argument", ["offset", "exposure"])
def test_an_offset_has_the_coefficient_one_at_any_party(argument):
    from statsmodels.api import GLM, families

    rng = np.random.default_rng(3)
    months, income = rng.uniform(0.2, 2.0, 3000), rng.uniform(-1, 1, 3000)
    added = np.log(months) if argument == "exposure" else months / 2
    visits = rng.poisson(np.exp(added + 0.3 + 0.6 * income)).clip(0, 20)
    table = {"visits": visits, "income": income, "months": months if argument == "exposure" else added}
    schema = Schema(
        {
            "bank": PartySchema({"visits": CountColumn(upper=20), "income": RealColumn(bounds=(-1, 1))}),
            "telco": PartySchema({"months": RealColumn(bounds=(-2, 2))}),
        }
    )
    dataset = VerticalDataset.from_pooled(schema, pd.DataFrame(table))
    model = VerticalGLM(family="poisson", label="visits", **{argument: "months"}, prior_scale=10.0, insecure_seed=0)
    wide = 4 * model.plan(dataset, epsilon=2000.0).clip_norm
    found = model.fit(dataset, plan=model.plan(dataset, epsilon=2000.0, clip_norm=wide, num_steps=300))
    design = np.column_stack([np.ones(3000), income])
    expected = GLM(visits, design, families.Poisson(), **{argument: table["months"]}).fit().params
    np.testing.assert_allclose([found.intercept_, *found.coef_], expected, atol=0.03)
    assert found.feature_names() == ["income"]
    assert found.predict(dataset).mean() == pytest.approx(visits.mean(), rel=0.03)
    told = found.predictor(allow_not_dp=True).predict(dataset)
    np.testing.assert_allclose(told["score"], found.linear_predictor(dataset), atol=1e-9)
    table = found.fit(dataset, plan=found.plan(dataset, epsilon=20.0)).posterior_.summary()
    rows = table.loc[["intercept", "income_coef"]]
    assert ((rows["estimate"] - expected).abs() < 3 * rows["std_error"]).all()
    assert (rows["std_error"] < 0.15).all()


# -- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_epsilon_holds_against_every_adversary(epsilon):
    plan = glm().plan(num_records=3000, epsilon=epsilon, delta=1e-6)
    assert isinstance(plan, GradientPlan)
    assert {row.adversary for row in plan.adversaries} == {"outside analyst", "bank", "telco"}
    assert 0.99 * epsilon < max(row.epsilon for row in plan.adversaries) <= epsilon
    assert {row.guarantee for row in plan.adversaries} == {"DP", "VPDP"}
    assert (plan.delta, plan.expected_batch_size) == (1e-6, 3000)


def test_defaults_of_a_plan_come_from_one_place_and_settings_win():
    steps = default_steps(1 + len(FEATURES))
    plan = glm(curvature=False).plan(num_records=3000)
    assert (plan.num_steps, plan.clip_norm) == (steps.num_steps, steps.clip_norm)
    own = glm(plan_settings={"num_steps": 7, "clip_norm": 1.0}).plan(num_records=3000, clip_norm=0.5)
    assert (own.num_steps, own.clip_norm) == (7, 0.5)
    joint, half = (
        glm(plan_settings=chosen).plan(num_records=3000) for chosen in ({"clip": "joint"}, {"residual_bound": 0.5})
    )
    assert (joint.clip_parts, joint.clip_norm) == (None, plan.clip_norm)
    assert sum(plan.clip_parts) == len(FEATURES) + 1
    assert plan.residual_bound == pytest.approx(0.4, rel=1e-3)
    assert (half.residual_bound, half.clip_norm) == (0.5, pytest.approx(0.5 * math.sqrt(len(FEATURES) + 1)))


def test_a_plan_is_made_without_a_warning_of_twins(dataset):
    with warnings_are_errors():
        plan = glm(schema=None).plan(dataset)
    assert plan.num_records == dataset.num_records == glm().plan(TableFacts(SCHEMA, 2000)).num_records


def test_a_narrowed_plan_warns():
    with pytest.warns(PrivacyWarning, match="narrows"):
        glm().plan(num_records=3000, adversary="outside analyst", num_steps=3, batch_size=300)


# -- a fit ----------------------------------------------------------------------------------------


def test_a_plan_is_spent_once(dataset, quick, tmp_path):
    with pytest.raises(PlanSpentError):
        glm(plan_settings=QUICK).fit(dataset, quick.plan_, run_dir=tmp_path)
    assert quick.own_budgets.count == 0  # the plan was given
    assert not list(tmp_path.iterdir())


def test_a_fit_that_dies_is_counted_once_and_goes_on(dataset, tmp_path, monkeypatch):
    model, calls, other = glm(plan_settings={"num_steps": 6}), [], tmp_path / "other"
    with monkeypatch.context() as patch:
        run = ChunkRunner.__call__

        def dying(self, state, chunk):
            calls.append(chunk)
            if len(calls) == 4:  # two are rehearsals, the third is a step
                raise KeyboardInterrupt
            return run(self, state, chunk)

        patch.setattr(ChunkRunner, "__call__", dying)
        with pytest.raises(KeyboardInterrupt):
            model.fit(dataset, run_dir=tmp_path)
    assert model.own_budgets.count == 1
    assert (tmp_path / PRIVACY_RECORD).exists()
    model.fit(dataset, run_dir=tmp_path, resume=True)
    assert model.posterior_.diagnostics.released_norm.shape == (5,)
    assert model.plan_.num_steps == 6
    again = glm().fit(dataset, run_dir=tmp_path, resume=True)
    assert np.array_equal(again.coef_, model.coef_), "a run that is complete costs nothing"
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        with pytest.raises(PrivacyWarning, match="2 budgets"):
            model.fit(dataset, run_dir=other)
    assert not other.exists()
    assert (model.own_budgets.count, again.own_budgets.count) == (1, 0)


def test_a_session_a_dataset_and_a_frame_are_the_same_table(dataset, frame, quick):
    bare, unnamed = frame[list(FEATURES)], glm(plan_settings=QUICK, label=None)
    plan = unnamed.plan(SCHEMA, "late", num_records=len(frame))
    assert np.array_equal(unnamed.fit(bare, frame["late"], plan=plan).coef_, quick.coef_)
    session = InProcessSession(dataset, quick._backend)
    assert np.array_equal(glm(plan_settings=QUICK).fit(session).coef_, quick.coef_)
    for X, y in ((dataset, "late"), (session, "late"), (frame, frame["late"])):
        assert unnamed._prepared(X, y)[1].label == "late"


def test_an_integer_has_a_coefficient_for_each_value_unless_it_is_linear(dataset):
    model = glm(linear=(), features=["income", "years"], plan_settings=QUICK).fit(dataset)
    assert model.plan_.parties == ("bank",)  # who holds none of the columns has no part in it
    assert sum(name.startswith("years=") for name in model.feature_names()) == 21
    flat = dict(zip(model.feature_names(), model.coef_, strict=True))
    by_hand = flat["income"] * (2 * dataset.pooled()["income"] - 1) + model.intercept_
    by_hand = by_hand + np.array([flat[f"years={code}"] for code in dataset.pooled()["years"]])
    np.testing.assert_allclose(model.linear_predictor(dataset), by_hand, atol=1e-5)


def test_a_missing_value_of_a_feature_has_a_coefficient_of_its_own():
    schema = Schema({"a": PartySchema({"s": BinaryColumn(missing="category"), "y": BinaryColumn()})})
    (term,) = terms_of(schema, "y")
    assert term.names == ["s=0", "s=1", "s=missing"]
    assert np.array_equal(term.added(np.array([1.0, 2.0, 3.0]), np.array([0, 2])), [1.0, 3.0])


def test_copies_have_the_posterior_too(dataset):
    model = glm(plan_settings=QUICK, guide="normal").fit(dataset)
    other = copy.deepcopy(pickle.loads(pickle.dumps(model)))
    assert np.array_equal(other.predict(dataset), model.predict(dataset))
    drawn, same = (one.posterior_.sample(KEY, 5) for one in (other, model))
    assert all(np.array_equal(drawn[site], same[site]) for site in same)
    assert same["income_coef"].std() > 0


def test_parties_in_processes_are_given_the_estimator_as_their_method(dataset):
    model = glm(curvature=False)
    plan = model.plan(dataset)
    model.check(dataset, plan)
    ((summed, times),) = model.computations(dataset, plan)
    assert times == plan.num_steps
    assert summed.shape.num_values == 7
    session = InProcessSession(dataset, model._backend)
    work = model.work(session, "bank", dataset.arrays("bank"), plan, InsecureSeededSource(0))
    assert type(work).__name__ == "StepsWork"
    assert isinstance(pickle.loads(pickle.dumps(model)), VerticalGLM)


def test_an_unfitted_model_says_so(frame):
    for method in ("predict", "predict_proba", "decision_function", "linear_predictor", "score"):
        with pytest.raises(NotFittedError):
            getattr(glm(), method)(frame)
    for call in (glm().feature_names, lambda: glm().posterior_):
        with pytest.raises(NotFittedError):
            call()


# -- what stops it --------------------------------------------------------------------------------

MASKED = Schema({"a": PartySchema({"x": RealColumn(bounds=(0, 1), missing="mask"), "y": BinaryColumn()})})
UNLABELLED = Schema({"a": PartySchema({"x": RealColumn(bounds=(0, 1)), "y": BinaryColumn(missing="category")})})
NAMESAKE = Schema({"a": PartySchema({"x": RealColumn(bounds=(0, 1)), "intercept": BinaryColumn()})})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "gaussian", "label": "late"}, "family='gaussian' must be one of 'bernoulli'"),
        (
            {"family": "zero_inflated_poisson", "label": "visits"},
            r"family=.* must be one of .*; a count with many zeros",
        ),
        ({"family": "weibull", "label": "visits"}, "family='weibull' .*; of a time until an event"),
        ({"family": 3, "label": "late"}, "family=3 must be a text"),
        ({"label": None}, "label: there is none"),
        ({"label": "lat"}, "label: no party holds column 'lat'; did you mean 'late'"),
        ({"label": "debt"}, "label: party 'bank', column 'debt' has no two values"),
        ({"family": "normal", "label": "visits"}, "column 'visits' is no real; take family=\"poisson\""),
        ({"family": "poisson", "label": "debt"}, "column 'debt' is no count"),
        ({"family": "ordinal", "cutpoints": None}, "cutpoints: .*one fewer"),
        ({"family": "ordinal", "cutpoints": [0.0]}, "cutpoints: there are 1, .*'grade' has 3 values; give 2"),
        ({"family": "ordinal", "cutpoints": [1.0, 0.0]}, "rising"),
        ({"family": "ordinal", "cutpoints": "ab"}, "cutpoints='ab' must be a list"),
        ({"family": "ordinal", "label": "late", "cutpoints": [0.0]}, "no three values"),
        ({"family": "normal", "scale": 0.0}, "scale must be positive"),
        ({"prior_scale": -1.0}, "prior_scale must be positive"),
        ({"features": ["income", "weight"]}, "features: no party holds column 'weight'"),
        ({"features": "income"}, "features='income' must be a list of columns"),
        ({"features": []}, "features: there is none"),
        ({"features": ["late", "income"]}, "features: 'late' is the label"),
        ({"linear": ["tariff"]}, "linear: party 'telco', column 'tariff' has a value outside any order"),
        ({"offset": "nothing", "label": "late"}, "offset: no party holds column 'nothing'"),
        (
            {"offset": "tariff", "label": "late", "features": None},
            "offset: party 'telco', column 'tariff' is no number",
        ),
        ({"offset": "usage", "label": "late"}, "features: 'usage' is the offset; leave it out"),
        ({"exposure": "until", "label": "late"}, "exposure='until': family='bernoulli' has no rate"),
        ({"family": "normal", "label": "debt", "offset": "until"}, "offset='until': .*take it off the label"),
        ({"time": "until", "label": "late"}, "time='until': it is for family=\"survival\""),
        (
            {"family": "negative_binomial", "label": "visits", "concentration": None},
            "concentration=None: .*MarginalGLM",
        ),
        ({"family": "gamma", "label": "debt", "concentration": 1.0}, "bounds from 0 on and no transform"),
        ({"family": "gamma", "label": "visits", "concentration": 1.0}, "is no real"),
        ({"family": "gamma", "label": "cost", "concentration": None}, "variance mean² / concentration; MarginalGLM"),
        ({"family": "survival"}, "cutpoints: .*public times"),
        ({"family": "survival", "cutpoints": [2.0, 1.0]}, "rising"),
        ({"family": "survival", "cutpoints": [-1.0]}, "cutpoints must be positive"),
        ({"family": "survival", "cutpoints": []}, 'time: family="survival" needs the column'),
        ({"family": "survival", "cutpoints": [], "time": "untl"}, "time: no party holds column 'untl'; did you mean"),
        ({"family": "survival", "cutpoints": [], "time": "usage"}, "time: .* is not at the label's party, 'bank'"),
        ({"family": "survival", "cutpoints": [], "time": "until", "entry": "debt"}, "entry: .*may be negative"),
        ({"family": "survival", "cutpoints": [], "time": "until", "label": "visits"}, "has no two values"),
        ({"linear": ["years"], "features": ["income"]}, "linear: 'years' is not among the features"),
        ({"guide": "wide"}, "guide='wide' must be 'point' or 'normal'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"plan_settings": [("num_steps", 3)]}, "plan_settings=a list is no mapping"),
        ({"epsilon": None}, "epsilon: .*plan="),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"delta": 2.0}, "delta must lie"),
        ({"schema": MASKED, "label": "y", "features": None, "linear": ()}, "features: party 'a', column 'x'.*mask"),
        ({"schema": UNLABELLED, "label": "y", "features": None, "linear": ()}, "label: party 'a', column 'y'"),
        ({"schema": NAMESAKE, "label": "intercept", "features": None, "linear": ()}, "give it another name"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    settings = {"family": "bernoulli", **settings}
    if settings["family"] == "survival":
        settings = {"cutpoints": None, "time": None, "entry": None, **settings}
    model = glm(settings.pop("family"), **settings)
    with pytest.raises(ArgumentError, match=message):
        model.plan(num_records=2000)
    with pytest.raises(ArgumentError, match=message):
        model.fit(VerticalDataset.example(model.schema, 200, np.random.default_rng(0)))
    assert model.own_budgets == OwnBudgets(0, 0.0, 0.0)


def test_what_does_not_fit_together_is_refused_before_anything_is_spent(dataset, frame):
    model = glm(plan_settings=QUICK)
    plan = model.plan(dataset)
    other = glm("poisson", label="visits").plan(SCHEMA, num_records=10)
    bare = frame[list(FEATURES)]
    refusals = [
        (lambda: model.fit(dataset, plan=2.0), "plan must be a PrivacyPlan"),
        (lambda: model.fit(dataset, plan=other), "10 records"),
        (lambda: model.fit(dataset, plan, plan=plan), "twice"),
        (lambda: model.fit(dataset, frame["late"]), "leave y out"),
        (lambda: model.fit(dataset, "debt"), "names the label 'debt'"),
        (lambda: model.fit(frame.to_numpy()), "features= names 4 columns"),
        (lambda: glm(schema=None).fit(frame), "schema="),
        (lambda: model.fit(bare), "X lacks column 'late'"),
        (lambda: model.fit(bare.drop(columns="usage"), frame["late"]), "X lacks column 'usage'"),
        (lambda: model.fit(bare, [0, 1]), "y has shape"),
        (lambda: model.fit(dataset, resume=True), "run_dir"),
        (lambda: model.plan(), "num_records: "),
        (lambda: model.plan(dataset, num_records=3), "num_records=3, and data has 2000"),
        (lambda: model.plan(frame), "schema=a DataFrame"),
    ]
    for call, message in refusals:
        with pytest.raises(ArgumentError, match=message):
            call()
    with pytest.raises(DataError, match="late") as refused:
        model.fit(bare, np.where(frame["late"] == "yes", "a secret", "no"))
    assert "secret" not in str(refused.value)
    assert model.own_budgets.count == 0
    assert not begun(plan)


def test_predictions_name_what_is_missing_or_other_than_in_the_fit(frame, quick):
    model = quick
    wider = Schema(
        {"one": PartySchema({**{n: SCHEMA.columns[n] for n in FEATURES}, "usage": RealColumn(bounds=(-2, 2))})}
    )
    refusals = [
        (lambda: model.predict(frame.drop(columns="income")), "lacks column 'income'"),
        (lambda: model.predict(frame[["income"]].to_numpy()), "features= names 4 columns"),
        (lambda: model.predict(VerticalDataset.from_pooled(wider, frame)), "'usage' has another public domain"),
        (lambda: model.score(frame.drop(columns="late")), "lacks column 'late'"),
        (lambda: model.score(frame, [0, 1]), "y has shape"),
    ]
    for call, message in refusals:
        with pytest.raises(ArgumentError, match=message):
            call()


def test_a_count_is_a_number_whatever_its_bound():
    schema = Schema({"a": PartySchema({"x": CountColumn(upper=10**6), "y": CountColumn(upper=100)})})
    (term,) = terms_of(schema, "y")
    assert term.names == ["x"]
    assert list(term.scaled(np.array([0, 10**6]))) == [-1.0, 1.0]
    poisson = FAMILIES["poisson"]()
    assert poisson.centre(schema.columns["y"]) == pytest.approx(math.log(10))
