"""`MarginalGLM`: coefficients beside maximum likelihood's, every family's contract, and what stops it."""

import copy
import pickle
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from numpyro import handlers
from scipy import stats

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
    TableFacts,
    VerticalDataset,
)
from vertinumpyro.glm import TABLE_FAMILIES, MarginalGLM
from vertinumpyro.regression.saturated_model import LARGEST_COUNT, cell_model, count_groups

SCHEMA = Schema(
    {
        "clinic": PartySchema({
            "smoker": BinaryColumn(),
            "state": CategoricalColumn(categories=("well", "fair", "poor")),
            "age": IntegerColumn(edges=(20, 40, 60, 80)),
            "weight": RealColumn(bounds=(40.0, 160.0)),
            "tests": CountColumn(upper=9),
            "beds": CountColumn(upper=20_000),
            "allergy": BinaryColumn(missing="category"),
            "pain": BinaryColumn(missing="mask"),
        }),
        "insurer": PartySchema({
            "visits": CountColumn(upper=40),
            "claim": BinaryColumn(),
            "grade": CategoricalColumn(categories=("a", "b", "c")),
            "cost": RealColumn(bounds=(0.0, 10.0)),
            "many": BinnedColumn(bounds=(0.0, 1.0), bins=1000),
        }),
    }
)  # fmt: skip
LABELS = {**dict.fromkeys(("bernoulli", "probit", "cloglog"), "claim"), "ordinal": "grade",
          **dict.fromkeys(("normal", "gamma"), "cost")}  # fmt: skip
FEATURES = ("state", "age")
KEY = jax.random.key(0)


def glm(family: str = "poisson", **settings: Any) -> MarginalGLM:
    defaults = {"family": family, "label": LABELS.get(family, "visits"), "features": FEATURES, "linear": ["age"]}
    return MarginalGLM(**{"schema": SCHEMA, **defaults, **settings})


def only(*columns: str) -> Schema:
    kept = {party: {name: part.columns[name] for name in columns if name in part.columns}
            for party, part in SCHEMA.parties.items()}  # fmt: skip
    return Schema({party: PartySchema(held) for party, held in kept.items()})


@pytest.fixture(scope="module")
def release():
    """Of 20,000 records, with nearly no noise; and what maximum likelihood finds in the records themselves."""
    rng, n = np.random.default_rng(0), 20_000
    state, age = rng.choice(3, n, p=[0.5, 0.3, 0.2]), rng.choice(3, n)
    eta = -0.2 + np.array([0.0, 0.4, 0.9])[state] - 0.3 * age
    clinic = pd.DataFrame({"state": np.array(["well", "fair", "poor"])[state], "age": 20 + 20 * age})
    insurer = pd.DataFrame({"visits": rng.poisson(np.exp(eta)).clip(0, 40)})
    schema = only("state", "age", "visits")
    dataset = VerticalDataset.from_pooled(schema, pd.concat([clinic, insurer], axis=1))
    x, beta = np.column_stack([np.ones(n), state == 1, state == 2, age]).astype(float), np.zeros(4)
    for _ in range(25):
        information = (x * np.exp(x @ beta)[:, None]).T @ x
        beta = beta + np.linalg.solve(information, x.T @ (insurer["visits"] - np.exp(x @ beta)))
    exact = pd.DataFrame({"mean": beta, "sd": np.sqrt(np.diag(np.linalg.inv(information)))},
                         index=["intercept", "state=fair", "state=poor", "age"])  # fmt: skip
    regression = glm(schema=schema)
    return regression, regression.release(dataset, regression.plan(dataset, epsilon=50.0)), exact


def test_with_almost_no_noise_it_is_maximum_likelihood_with_its_standard_errors(release):
    regression, tables, exact = release
    found = regression.fit(tables, KEY, num_samples=1000)
    table: Any = found.summary()
    assert list(table.index) == list(exact.index) == list(found.draws())
    assert (abs(table["mean"] - exact["mean"]) < 0.6 * exact["sd"]).all(), table
    assert ((table["sd"] > 0.85 * exact["sd"]) & (table["sd"] < 1.25 * exact["sd"])).all(), table
    assert 0.5 < found.posterior.misfit < 1.5
    assert pickle.loads(pickle.dumps(found)).draws().equals(found.draws())
    assert pickle.loads(pickle.dumps(regression)) == copy.deepcopy(regression) == regression
    assert table["rate ratio"]["state=poor"] == pytest.approx(np.exp(exact["mean"]["state=poor"]), rel=0.03)
    assert table["ratio low"]["age"] == pytest.approx(np.exp(table["low"]["age"]))
    with pytest.raises(ArgumentError, match="level=95 must be between 0 and 1"):
        found.summary(95)
    assert [line.split()[0] for line in str(found).splitlines() if "0." in line][1:3] == ["(intercept)", "state=fair"]
    records = VerticalDataset.example(regression.schema, 50, np.random.default_rng(3))
    told: Any = regression.predictor(found, allow_not_dp=True).predict(records)
    mean, codes = table["mean"], records.pooled()
    of_state = np.array([0.0, mean["state=fair"], mean["state=poor"]])[codes["state"]]
    rates = np.exp(mean["intercept"] + of_state + mean["age"] * codes["age"])
    np.testing.assert_allclose(told["visits"], rates, rtol=1e-4)


@pytest.mark.parametrize("family", list(TABLE_FAMILIES))
def test_every_family_is_a_model_whose_tables_can_be_computed(family):
    plan = glm(family).plan(TableFacts(SCHEMA, 500), epsilon=1.0)  # rehearses
    assert 0.99 < plan.worst.epsilon <= 1.0


def test_a_plan_says_which_associations_with_the_label_noise_will_hide():
    few, many = (glm("bernoulli").plan(TableFacts(SCHEMA, 5_000), epsilon=epsilon) for epsilon in (0.002, 10.0))
    assert set(many.forecast.smallest) == set(FEATURES)
    assert "Noise will hide every association" in str(few)
    assert "Noise will hide correlations with claim below about" in str(many)


def test_what_is_released_are_tables_of_the_features_alone_and_together_by_the_label(release):
    _, tables, _ = release
    shapes = {m.columns: m.values.shape for m in tables.measurements}
    assert shapes == {("features_of_clinic", "visits"): (9, 8), ("state", "visits"): (3, 8), ("age", "visits"): (3, 8)}
    both = glm(features=["state", "claim"], linear=[])
    plan = both.plan(TableFacts(SCHEMA, 500), epsilon=1.0)
    names = {frozenset((first, second)) for _, first, _, second in plan.workload or ()}
    assert names == {frozenset(pair) for pair in (("state", "visits"), ("state", "claim"), ("claim", "visits"))}


@pytest.mark.parametrize("rate", [0.02, 3.0, 30.0, 5000.0])
@pytest.mark.parametrize("family", ["poisson", "negative_binomial", "zero_inflated_poisson"])
def test_a_group_of_counts_has_its_exact_probability_and_the_last_holds_all_above(family, rate):
    truth = stats.nbinom(0.5, 0.5 / (0.5 + rate)) if family == "negative_binomial" else stats.poisson(rate)
    zeros = 0.3 if family.startswith("zero") else 0.0
    latents = {
        "coefficients_in_units": np.zeros(1),
        "intercept": np.log(rate),
        "concentration": 0.5,
        "zeros": 0.3,
        "z": np.zeros(3, int),
    }
    with handlers.seed(rng_seed=0), handlers.substitute(data=latents), handlers.trace() as trace:
        cell_model(
            {}, 3, schema=SCHEMA, label="visits", family=family, features=("smoker",), linear=(), prior_scale=1.0
        )
    starts = count_groups(40)
    below = zeros + (1 - zeros) * truth.cdf(starts[1:] - 1)
    expected = np.diff([0.0, *below, 1.0])
    assert np.allclose(trace["visits"]["fn"].probs, expected, atol=2e-5), (trace["visits"]["fn"].probs, expected)


def test_groups_of_counts_are_no_wider_than_two_standard_deviations():
    starts = count_groups(80)
    assert starts.tolist() == [0, 1, 3, 6, 10, 16, 24, 33, 44, 57, 72]
    assert (np.diff(starts)[1:] <= 2 * np.sqrt(starts[1:-1])).all()
    assert count_groups(1).tolist() == [0, 1]
    assert len(count_groups(LARGEST_COUNT)) < 110


def test_another_family_and_coding_takes_the_same_release(release):
    _, tables, _ = release
    schema = only("state", "age", "visits")
    other = glm("negative_binomial", schema=schema, linear=[])
    assert other._inference.split(tables.schema, tables.num_records).num_parameters == 8 + 4 + 1 + 1
    with pytest.raises(ArgumentError, match="release: it is of other columns"):
        glm(schema=schema, features=["state"], linear=[]).fit(tables, KEY)


def test_features_at_both_parties_and_missing_values_that_are_one_more():
    schema, rng, n = only("allergy", "claim", "grade"), np.random.default_rng(1), 6_000
    allergy, claim = rng.choice(3, n), rng.choice(2, n)
    eta = np.array([-0.5, 1.0, 0.5])[allergy] + 0.8 * claim
    grades = np.array(["a", "b", "c"])[np.digitize(eta + rng.logistic(size=n), [0, 1])]
    frame = pd.DataFrame({"allergy": pd.Series(allergy, dtype="Int64").where(allergy < 2), "claim": claim})
    frame["grade"] = grades
    dataset = VerticalDataset.from_pooled(schema, frame)
    regression = glm("ordinal", schema=schema, features=None, linear=[])
    found = regression.fit(regression.release(dataset, regression.plan(dataset, epsilon=50.0)), KEY, num_samples=500)
    table: Any = found.summary(0.999)
    truth = pd.Series({"allergy=1": 1.5, "allergy=missing": 1.0, "claim=1": 0.8})
    assert list(table.index) == list(truth.index)
    assert ((table["low"] < truth) & (truth < table["high"])).all(), table
    assert table["odds ratio"]["claim=1"] == pytest.approx(np.exp(0.8), rel=0.25)
    told: Any = regression.predictor(found, allow_not_dp=True).predict(dataset)
    for allergic, share in frame.assign(worst=grades == "c").groupby("allergy")["worst"].mean().items():
        assert told["probability of c"][frame["allergy"] == allergic].mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"family": "beta"}, "family='beta' must be one of 'bernoulli', 'probit'"),
        ({"method": "mcmc"}, "method='mcmc' must be 'svi' or 'nuts' or 'augmentation'"),
        ({"prior_scale": 0.0}, "prior_scale must be positive and finite"),
        ({"label": "visit"}, "label: no party holds column 'visit'; did you mean 'visits'"),
        ({"features": ["stat"]}, "features: no party holds column 'stat'; did you mean 'state'"),
        ({"features": "state"}, "features"),
        ({"features": ["visits"]}, "and not the label 'visits'"),
        ({"features": []}, "features: name one or more"),
        ({"linear": ["smoker"]}, "linear: 'smoker' is not among the features"),
        ({"features": ["smoker", "state"], "linear": ["state"]}, "has a value outside any order"),
        ({"features": ["weight"], "linear": []}, "is a real, of too many values; give it bins"),
        ({"features": ["tests"], "linear": []}, 'is a count, of too many values; give it type = "integer"'),
        ({"features": ["pain"], "linear": []}, 'has missing = "mask"; fill it'),
        (
            {"features": ["many", "claim"], "linear": ["many"]},
            r"they have 2,000 combinations of values \(claim 2, many 1000\).*beside 5 others at most 1,500 latents",
        ),
        ({"family": "bernoulli", "label": "grade"}, 'has not two values, which family="bernoulli" is for'),
        ({"family": "ordinal", "label": "claim"}, "has not three or more values"),
        ({"label": "beds"}, "counts up to 20,000, at most 10,000 can be held; set a smaller upper"),
        ({"label": "cost"}, 'has not counts, which family="poisson" is for'),
        ({"family": "normal", "label": "visits"}, "has not real numbers"),
        ({"family": "bernoulli", "label": "pain"}, 'label: .* has missing = "mask"'),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_spent(settings, says):
    with pytest.raises(ArgumentError, match=says):
        glm(**settings)


def test_a_family_whose_means_are_not_predicted_between_parties_says_so(release):
    _, tables, _ = release
    regression = glm("zero_inflated_poisson", schema=only("state", "age", "visits"))
    with pytest.raises(ArgumentError, match=r"family='zero_inflated_poisson'.*take \"bernoulli\""):
        regression.predictor(regression.fit(tables, KEY, num_samples=10), allow_not_dp=True)


def test_what_is_of_another_schema_or_no_release_is_refused():
    with pytest.raises(ArgumentError, match="they have 1,000 combinations of values, and there are 500 records"):
        glm(features=["many"], linear=["many"]).plan(TableFacts(SCHEMA, 500), epsilon=1.0)
    with pytest.raises(ArgumentError, match="data: its schema is not the regression's"):
        glm().plan(TableFacts(only("state", "age", "visits"), 500), epsilon=1.0)
    with pytest.raises(ArgumentError, match="data=a Schema must be a VerticalDataset"):
        glm().release(SCHEMA, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="release must be tables"):
        glm().fit(SCHEMA, KEY)  # type: ignore[arg-type]


def test_features_may_be_called_as_the_models_own_sites_are():
    schema = Schema(
        {"a": PartySchema({"z": BinaryColumn(), "intercept": BinaryColumn()}), "b": PartySchema({"y": BinaryColumn()})}
    )
    dataset = VerticalDataset.example(schema, 400, np.random.default_rng(0))
    regression = MarginalGLM(schema=schema, family="bernoulli", label="y")
    plan = regression.plan(dataset, epsilon=5.0)
    found = regression.fit(dataset, plan=plan, num_samples=50)  # one call, as of the other estimators
    assert list(found.summary().index) == ["intercept", "z=1", "intercept=1"]
    for wrong, said in (({}, "plan: records need one"), ({"plan": plan}, "")):
        with pytest.raises((ArgumentError, PlanSpentError), match=said):
            regression.fit(dataset, **wrong)
