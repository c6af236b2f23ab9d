"""Regressions across parties, planned, fitted and drawn from: one party's outcome on several parties' columns."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vertinumpyro.core.errors import ArgumentError, ModelContractError, RangeError
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    TableFacts,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI, SecondMoments
from vertinumpyro.dpvi.clipping import Budget, forecast_bound
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.model.outcomes import Normal
from vertinumpyro.posterior import TwinWarning
from vertinumpyro.privacy import Plan

KEY = jax.random.key(0)
NUM_RECORDS = 4000
UNIT = RealColumn(bounds=(-1, 1))
CUTPOINTS = jnp.array([-1.0, 1.0])
TRUTH = {"bank": np.array([0.3, 1.2]), "telco": np.array([-1.0, 0.8])}


OUTCOMES = {
    "logit": (BinaryColumn(), lambda eta: dist.Bernoulli(logits=eta)),
    "probit": (BinaryColumn(), lambda eta: dist.Bernoulli(probs=jax.scipy.special.ndtr(eta))),
    "ordered": (CategoricalColumn(categories=("a", "b", "c")), lambda eta: dist.OrderedLogistic(eta, CUTPOINTS)),
    "linear": (RealColumn(bounds=(-8, 8)), lambda eta: dist.Normal(eta, 0.5)),
    "counts": (CountColumn(upper=30), lambda eta: dist.Poisson(jnp.exp(eta))),
}


def schema_of(outcome):
    bank = {"income": UNIT, "y": OUTCOMES[outcome][0]}
    return Schema({"bank": PartySchema(bank), "telco": PartySchema({"usage": UNIT, "calls": UNIT})})


def model_of(outcome):
    def model(data, num_records):
        bank = numpyro.sample("bank", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        telco = numpyro.sample("telco", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        parts = {"bank": bank[0] + bank[1] * data["income"]}
        parts["telco"] = telco[0] * data["usage"] + telco[1] * data["calls"]
        with party_plate("bank", num_records):
            numpyro.sample("y", OUTCOMES[outcome][1](party_sum("eta", parts)), obs=data["y"])

    return model


def dataset_of(outcome):
    schema, rng = schema_of(outcome), np.random.default_rng(0)
    columns = VerticalDataset.example(schema, NUM_RECORDS, rng).pooled()
    numbers = {name: columns[name] for name in ("income", "usage", "calls")}
    eta = TRUTH["bank"][0] + TRUTH["bank"][1] * numbers["income"]
    eta = eta + TRUTH["telco"][0] * numbers["usage"] + TRUTH["telco"][1] * numbers["calls"]
    drawn = np.asarray(OUTCOMES[outcome][1](jnp.asarray(eta)).sample(KEY))
    y = np.clip(drawn, -8, 30).astype(columns["y"].dtype)
    own = {"bank": {"income": numbers["income"], "y": y}}
    own["telco"] = {"usage": numbers["usage"], "calls": numbers["calls"]}
    return VerticalDataset(schema, own)


@pytest.fixture(scope="module", params=list(OUTCOMES))
def fitted(request):
    dataset, dpvi = dataset_of(request.param), DPVI(model_of(request.param), learning_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        with pytest.warns(TwinWarning, match="reads 'income', 'usage', 'calls' and does not draw"):
            plan = dpvi.plan(dataset, noise_multiplier=2.0, clip_norm=20.0, batch_size=NUM_RECORDS, num_steps=200)
        return dataset, dpvi, plan, dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)


@pytest.mark.promise
def test_a_fit_finds_the_coefficients_of_all_parties(fitted):
    _, _, plan, posterior = fitted
    assert plan.start is None  # there is no table from which it could start
    for site, found in posterior.sample(KEY, 500).items():
        np.testing.assert_allclose(found.mean(0), TRUTH[site], rtol=0, atol=0.25)


def test_a_twin_draws_the_outcome_at_given_covariates(fitted):
    dataset, _, _, posterior = fitted
    frame = dataset.to_frame()
    covariates = frame[["income", "usage", "calls"]].iloc[:500]
    twin = posterior.sample_synthetic(rng_key=KEY, covariates=covariates)
    assert list(twin.columns) == ["income", "y", "usage", "calls"]
    assert len(twin) == 500
    assert set(twin["y"].unique()) <= set(dataset.schema.columns["y"].labels) or twin["y"].dtype.kind in "fi"
    with pytest.raises(ArgumentError, match="covariates="):
        posterior.sample_synthetic(10, rng_key=KEY)


def test_a_posterior_is_stored_and_compared_on_held_out_records(fitted, tmp_path):
    dataset, dpvi, plan, posterior = fitted
    posterior.save(tmp_path / "posterior.npz")
    loaded = dpvi.load(tmp_path / "posterior.npz")
    assert loaded.plan == plan
    nll = loaded.held_out_nll(dataset)
    assert nll == posterior.held_out_nll(dataset)
    worse = posterior.guide, {name: jnp.zeros_like(value) for name, value in posterior.params.items()}
    assert nll < type(posterior)(
        guide=worse[0], params=worse[1], plan=plan, diagnostics=posterior.diagnostics, secure_noise=False
    ).held_out_nll(dataset)


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_plan_is_calibrated_from_facts_alone_and_starts_nowhere_else():
    dpvi, facts = DPVI(model_of("logit")), TableFacts(schema=schema_of("logit"), num_records=NUM_RECORDS)
    plan = dpvi.plan(facts, epsilon=1.0)
    assert plan.epsilon() <= 1.0
    assert plan.unproven == ()
    pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    with pytest.raises(ModelContractError, match="fit the model by DPVI"):
        DPVI(model_of("logit"), warm_start=True).plan(facts, epsilon=1.0, batch_size=NUM_RECORDS)


def clip_of(outcome, **settings):
    facts = TableFacts(schema=schema_of(outcome), num_records=NUM_RECORDS)
    plan = DPVI(model_of(outcome)).plan(facts, noise_multiplier=2.0, num_steps=5, **settings)
    return plan.clip_parts, plan.residual_bound, plan.clip_norm


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
@pytest.mark.parametrize(("outcome", "unit"), [("logit", 1.0), ("probit", 6.158), ("linear", 16.0), ("counts", 30.0)])
def test_each_party_clips_what_its_columns_add_at_most(outcome, unit):
    parts, columns = (2, 2), 4  # an intercept and the income; the usage and the calls
    assert clip_of(outcome) == (parts, pytest.approx(0.6 / unit, rel=1e-3), 0.6 * math.sqrt(columns))
    assert clip_of(outcome, residual_bound=0.5) == (parts, 0.5, pytest.approx(0.5 * unit * 2, rel=1e-3))
    assert clip_of(outcome, clip_norm=0.8) == (parts, pytest.approx(0.4 / unit, rel=1e-3), 0.8)
    assert clip_of(outcome, clip_norm=200.0) == (parts, 1.0, 200.0)
    assert clip_of(outcome, clip="joint", clip_norm=0.8) == (None, 1.0, 0.8)
    with pytest.raises(ArgumentError, match='choose clip="local"'):
        clip_of(outcome, clip="joint", residual_bound=0.5)
    with pytest.raises(ArgumentError, match="residual_bound must be at least"):
        clip_of(outcome, residual_bound=1.5)


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_plan_says_how_records_are_clipped():
    dpvi, facts = DPVI(model_of("logit")), TableFacts(schema=schema_of("logit"), num_records=NUM_RECORDS)
    plan = dpvi.plan(facts, noise_multiplier=2.0, residual_bound=0.4)
    form = json.loads(json.dumps(plan.to_dict()))
    assert (form["clip_parts"], form["residual_bound"]) == ([2, 2], 0.4)
    assert Plan.from_dict(form) == plan
    joint = dataclasses.replace(plan, clip_parts=None, residual_bound=1.0)
    assert not {"clip_parts", "residual_bound"} & set(joint.to_dict())  # as an earlier record: same fingerprint
    assert len({p.fingerprint() for p in (plan, joint, dataclasses.replace(plan, clip_parts=(1, 2)))}) == 3
    with pytest.raises(ArgumentError, match=r"parts for \['telco'\].*make a new plan"):
        dpvi.check(facts, dataclasses.replace(plan, clip_parts=(0, 2)))
    mixture = DPVI()
    other = mixture.plan(facts, noise_multiplier=2.0)
    assert other.clip_parts is None
    with pytest.raises(ArgumentError, match="learns from no party_sum"):
        mixture.check(facts, dataclasses.replace(other, clip_parts=(2, 2)))
    with pytest.raises(ArgumentError, match="the model has none"):
        mixture.plan(facts, noise_multiplier=2.0, clip="local")


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
@pytest.mark.parametrize("outcome", ["logit", "linear", "counts"])
def test_ten_million_records_are_planned_whatever_the_budget_and_what_is_too_many_is_refused(outcome):
    """Scores get coarser as the sum needs room on the ring; before, a million and counts of 100,000 were refused."""
    dpvi = DPVI(model_of(outcome), warm_start=SecondMoments())
    for epsilon in (0.5, 50.0):
        plan = dpvi.plan(TableFacts(schema_of(outcome), 10_000_000), epsilon=epsilon, delta=1e-8)
        assert plan.unproven == ()
        assert plan.epsilon() <= epsilon
    with pytest.raises(RangeError, match="lower the batch size"):
        dpvi.plan(TableFacts(schema_of(outcome), 1_000_000_000), epsilon=50.0, delta=1e-10)


def test_amounts_are_cut_the_less_the_more_records_there_are():
    """Their tails need not be the model's, and no number of records cures what is cut off on one side."""

    def cut(num_records):
        """In standard deviations."""
        return forecast_bound(Normal(0.5), Budget(num_records, noise=5.0), columns=8.0) * Normal.WIDTH

    assert 1.5 < cut(2_000) < cut(20_000) < cut(200_000) < 5
    assert cut(200_000) > 3


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_clip_on_shares_is_still_to_be_had():
    dataset, dpvi = dataset_of("logit"), DPVI(model_of("logit"), learning_rate=0.1)
    plan = dpvi.plan(dataset, noise_multiplier=2.0, clip="joint", num_steps=100)
    with pytest.warns(InsecureRandomnessWarning):
        posterior = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)
    for site, found in posterior.sample(KEY, 500).items():
        np.testing.assert_allclose(found.mean(0), TRUTH[site], rtol=0, atol=0.4)


# -- scores before they are clipped ------------------------------------------------------------------


LEVELS = CategoricalColumn(categories=("a", "b", "c", "d"))


def reads(intercept=True):
    """Numbers as they are, a polynomial, a product, an answer, and two categories, one of two values."""

    def model(data, num_records):
        bank, telco = numpyro.sample("bank", weights_of(4)), numpyro.sample("telco", weights_of(8))
        x, calls = jnp.asarray(data["x"], float), jnp.asarray(data["calls"], float)
        income = jnp.asarray(data["income"], float)
        parts = {"bank": bank[0] * x + bank[1] * x**2 + bank[2] * 50 * income + bank[3] * income * data["answer"]}
        parts["telco"] = telco[0] * calls + telco[1:5][data["level"]] + telco[5:7][data["yes"]] + telco[7] * data["yes"]
        parts["bank"] = parts["bank"] + (numpyro.sample("intercept", dist.Normal(0.0, 2.0)) if intercept else 0.0)
        with party_plate("bank", num_records):
            numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

    return model


def weights_of(number):
    return dist.Normal(0.0, 1.0).expand([number]).to_event(1)


READ = Schema(
    {
        "bank": PartySchema({"x": UNIT, "income": UNIT, "answer": BinaryColumn(), "y": BinaryColumn()}),
        "telco": PartySchema({"calls": CountColumn(upper=400), "level": LEVELS, "yes": BinaryColumn()}),
    }
)


@pytest.mark.promise
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_scores_are_standardised_by_the_public_domains_and_nothing_is_lost(intercept):
    """Of any residuals the gradient is that of the scores as they are; no column adds more than 1 to their length."""
    dpvi, facts = DPVI(reads(intercept)), TableFacts(READ, 5_000)
    plan = dpvi.plan(facts, epsilon=1.0)
    raw, split = dpvi.split(READ), dpvi.split(READ, plan)
    rng, flat = np.random.default_rng(0), jnp.asarray(np.random.default_rng(1).normal(size=split.num_parameters))
    columns = VerticalDataset.example(READ, 3_000, rng).pooled()
    residuals = rng.uniform(-1, 1, 3_000)

    def of(model):
        own = {p: {n: jnp.asarray(columns[n]) for n in READ.column_names(p)} for p in model.parties}
        scores = [np.asarray(model.contribution(p, flat, own[p]).shared_scores[:, 0]) for p in model.parties]
        return scores, model.gather(jnp.asarray(np.concatenate([residuals @ one for one in scores])))

    (before, gradient), (scores, standardised) = of(raw), of(split)
    assert np.allclose(standardised, gradient, rtol=2e-4, atol=2e-3 * float(np.abs(gradient).max()) / 400)
    bank, telco = scores
    own, of_two, alone = telco[:, 0], telco[:, 5:7], telco[:, 7]
    assert np.square(bank[:, :2]).sum(1).max() <= 1 + 1e-3  # x and its square are of one column
    assert np.abs(bank[:, 2:]).max() <= 1 + 1e-3
    assert np.abs(own).max() == pytest.approx(1.0, rel=1e-2)
    assert np.allclose(telco[:, 1:5], before[1][:, 1:5])  # values that exclude each other
    assert np.square(np.column_stack([of_two, alone])).sum(1).max() == pytest.approx(1.0, rel=1e-2)
    assert (own.min() < -0.95) == intercept
    assert any(plan.standardisation[0]) == intercept


def seldom(data, num_records):
    """Scores that are 1 for all but a few records, before the intercept."""
    few: Any = numpyro.sample("a_few", weights_of(2))
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
    calls: Any = numpyro.sample("calls_coef", dist.Normal(0.0, 1.0))
    parts = {"bank": few[0] * data["x_observed"] + few[1] * (data["code"] != 2999) + intercept}
    parts["telco"] = calls * jnp.asarray(data["calls"], float)
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_what_is_nearly_always_1_is_no_intercept():
    code = CategoricalColumn(categories=tuple(map(str, range(3000))))
    bank = {"x": RealColumn(bounds=(0, 1), missing="mask"), "code": code, "y": BinaryColumn()}
    schema = Schema({"bank": PartySchema(bank), "telco": PartySchema({"calls": CountColumn(upper=9)})})
    centres, _, intercept = DPVI(seldom).plan(TableFacts(schema, 5_000), epsilon=1.0).standardisation
    split = DPVI(seldom).split(schema)
    assert split.names[split.gather_index[intercept]] == "intercept"
    assert centres[list(split.gather_index).index(split.names.index("calls_coef"))] == 4.5


def scales_of(part, columns, *, size=1):
    """Of the scores of a telco's part, by a vector of so many coefficients."""

    def model(data, num_records):
        telco: Any = numpyro.sample("telco", weights_of(size))
        parts = {"bank": numpyro.sample("intercept", dist.Normal(0.0, 2.0)), "telco": part(telco, data)}
        with party_plate("bank", num_records):
            numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

    schema = Schema({"bank": PartySchema({"y": BinaryColumn()}), "telco": PartySchema(columns)})
    found = DPVI(model).plan(TableFacts(schema, 5_000), epsilon=1.0).standardisation
    return np.ones(size) if found is None else np.array(found[1])[1:]


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_columns_that_a_part_does_not_read_take_no_room_and_units_of_groups_do_not_matter():
    edges, many = jnp.linspace(0.1, 0.9, 4), {f"w{k}": UNIT for k in range(70)}
    binned = scales_of(lambda w, data: w[jnp.searchsorted(edges, data["x"])], {"x": UNIT, **many}, size=5)
    assert np.allclose(binned, 1.0)
    level = {"level": LEVELS}
    of_many = scales_of(
        lambda w, data: w[:4][data["level"]] + jnp.stack([data[name] for name in many], -1) @ w[4:],
        {**level, **many},
        size=74,
    )
    assert np.allclose(of_many[:4], 1.0)
    slopes = scales_of(
        lambda w, data: w[:4][data["level"]] + w[4:][data["level"]] * 60 * (2 * data["x"] - 1),
        {**level, "x": UNIT},
        size=8,
    )
    assert np.allclose(slopes, [1.0] * 4 + [60.0] * 4, rtol=0.02)
    seldom = scales_of(lambda w, data: w[0] * (data["x"] >= 0) + w[1] * 1e6 * data["u"], {"x": UNIT, "u": UNIT}, size=2)
    assert np.allclose(seldom, [1.0, 5e5])


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
@pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")
@pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning")
def test_steps_by_calendar_years_begin_in_the_middle_of_their_range():
    """And not where the intercept is, two thousand years before."""

    def model(data, num_records):
        bank: Any = numpyro.sample("bank", dist.Normal(0.0, jnp.array([1000.0, 1.0])).to_event(1))
        telco: Any = numpyro.sample("t", dist.Normal(0.0, 2.0))
        years = 2020 + 5 * data["income"]
        parts = {"bank": bank[0] + bank[1] * years, "telco": telco * data["usage"]}
        with party_plate("bank", num_records):
            numpyro.sample("y", dist.Poisson(jnp.exp(party_sum("eta", parts))), obs=data["y"])

    dataset = dataset_of("counts")
    dpvi = DPVI(model)
    plan = dpvi.plan(dataset, epsilon=50.0)
    rows = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False).summary()
    assert 5 * rows.loc["bank[1]", "estimate"] == pytest.approx(TRUTH["bank"][1], abs=0.3)
    assert plan.forecast.std_error[list(plan.forecast.names).index("bank[1]")] < 0.2


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_a_plan_with_another_standardisation_is_refused_or_spent_as_it_says():
    dpvi, facts = DPVI(reads()), TableFacts(READ, 5_000)
    plan = dpvi.plan(facts, epsilon=1.0)
    centres, scales, intercept = plan.standardisation
    with pytest.raises(ArgumentError, match="standardises the scores of another model"):
        dpvi.check(facts, dataclasses.replace(plan, standardisation=((0.0,), (1.0,), -1)))
    for wrong in ((centres, scales, -1), (centres, (0.0, *scales[1:]), intercept), (centres, scales[1:], intercept)):
        with pytest.raises(ArgumentError, match="standardis"):
            dataclasses.replace(plan, standardisation=wrong)
    with pytest.raises(ArgumentError, match="standardis"):
        dataclasses.replace(plan, standardisation=((math.nan, *centres[1:]), scales, intercept))
    without = dataclasses.replace(plan, standardisation=None)
    assert "standardisation" not in without.to_dict()  # as plans of earlier versions are
    dpvi.check(facts, without)
    assert dpvi.split(READ, without).standardisation is None


# -- several outcomes ---------------------------------------------------------------------------------

JOINT_SCHEMA = Schema(
    {
        "bank": PartySchema({"income": UNIT, "late": BinaryColumn()}),
        "telco": PartySchema(
            {"usage": UNIT, "calls": UNIT, "left": BinaryColumn(), "calls_made": CountColumn(upper=30)}
        ),
    }
)
COEFFICIENTS = {
    "apart": lambda: (weights("first", (3,)), weights("second", (3,))),
    "rows of one site": lambda: weights("rows", (2, 3)),
    "shared": lambda: (weights("common", (3,)),) * 2,
    "about a mean": lambda: weights(
        "rows", (2, 3), numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    ),
}
"""How the coefficients of two outcomes, of the income, the usage and the calls, go together."""


def weights(name, shape, loc=0.0, scale=1.0):
    return numpyro.sample(name, dist.Normal(loc, scale).expand(shape).to_event(len(shape)))


def joint_model(together, second="left"):
    """Late bills at the bank; at the telco who left, or how many calls there were. Each has its own intercept."""

    def model(data, num_records):
        coefficients, base = COEFFICIENTS[together](), weights("base", (2,))
        predictors = []
        for number, (name, party) in enumerate((("late", "bank"), (second, "telco"))):
            w = coefficients[number]
            parts = {"bank": w[0] * data["income"], "telco": w[1] * data["usage"] + w[2] * data["calls"]}
            parts[party] = parts[party] + base[number]
            predictors.append((name, party, party_sum(f"{name} eta", parts)))
        for name, party, eta in predictors:
            with party_plate(party, num_records):
                outcome = dist.Poisson(jnp.exp(eta)) if name == "calls_made" else dist.Bernoulli(logits=eta)
                numpyro.sample(name, outcome, obs=data[name])

    return model


def joint_plan(together, second="left", **settings):
    facts = TableFacts(schema=JOINT_SCHEMA, num_records=NUM_RECORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwinWarning)
        return DPVI(joint_model(together, second)).plan(facts, noise_multiplier=2.0, num_steps=5, **settings)


@pytest.mark.parametrize(
    ("together", "parts"),
    [("apart", (3, 5)), ("rows of one site", (3, 5)), ("about a mean", (3, 5)), ("shared", (6, 10))],
)
def test_outcomes_share_the_clip_as_their_coefficients_do(together, parts):
    """Columns and an intercept of each outcome; twice as many where both may point the same way."""
    plan = joint_plan(together)
    assert plan.clip_parts == parts
    assert plan.clip_norm == pytest.approx(0.6 * math.sqrt(sum(parts)), rel=1e-3)
    assert plan.residual_bound == (0.6, 0.6)


def test_outcomes_of_other_units_are_cut_alike():
    plan = joint_plan("apart", "calls_made")
    assert plan.residual_bound == pytest.approx((0.6, 0.02))
    assert joint_plan("apart", "calls_made", clip_norm=0.8).residual_bound == pytest.approx(
        (0.8 / math.sqrt(8), 0.8 / math.sqrt(8) / 30), rel=1e-3
    )
    share = joint_plan("apart", "calls_made", residual_bound=0.5)  # half of 1, and half of 30
    assert share.residual_bound == (0.5, 0.5)
    assert share.clip_norm == pytest.approx(0.5 * math.sqrt(2 + 2 + 30**2 * (1 + 3)), rel=1e-3)


def test_a_plan_of_several_outcomes_is_kept_and_is_for_them_alone():
    plan, facts = joint_plan("apart"), TableFacts(schema=JOINT_SCHEMA, num_records=NUM_RECORDS)
    form = json.loads(json.dumps(plan.to_dict()))
    assert form["residual_bound"] == [0.6, 0.6]
    assert Plan.from_dict(form) == plan
    assert plan.fingerprint() != dataclasses.replace(plan, residual_bound=(0.6, 0.5)).fingerprint()
    dpvi = DPVI(joint_model("apart"))
    dpvi.check(facts, plan)
    with pytest.raises(ArgumentError, match=r"residuals of 1 outcomes.*\['late eta', 'left eta'\]; make a new plan"):
        dpvi.check(facts, dataclasses.replace(plan, residual_bound=0.6))


def test_a_whole_records_clip_is_refused_for_several_outcomes():
    with pytest.raises(ArgumentError, match=r"\['late eta', 'left eta'\].*choose clip=\"local\".*each outcome"):
        joint_plan("apart", clip="joint")
    one = Schema({"all": PartySchema(dict(JOINT_SCHEMA.columns))})
    holders = HorizontalDataset(VerticalDataset.example(one, 40, np.random.default_rng(0)), np.arange(40) % 3)
    with pytest.raises(ArgumentError, match=r"\['late eta', 'left eta'\].*columns of the same records.*each outcome"):
        HorizontalDPVI(DPVI(joint_model_at_one)).plan(holders, noise_multiplier=2.0)


def joint_model_at_one(data, num_records):
    for name in ("late", "left"):
        eta = party_sum(f"{name} eta", {"all": weights(name, ()) * data["income"]})
        with party_plate("all", num_records):
            numpyro.sample(f"{name} seen", dist.Bernoulli(logits=eta), obs=data[name])


ROWS = np.array([[1.2, -1.0, 0.8], [1.0, -0.8, 1.0]])
BASE = np.array([0.3, -0.4])


def joint_dataset():
    rng = np.random.default_rng(0)
    columns = VerticalDataset.example(JOINT_SCHEMA, NUM_RECORDS, rng).pooled()
    numbers = np.stack([columns["income"], columns["usage"], columns["calls"]], axis=-1)
    drawn = rng.random((NUM_RECORDS, 2)) < 1 / (1 + np.exp(-(BASE + numbers @ ROWS.T)))
    columns |= {name: drawn[:, i].astype(columns[name].dtype) for i, name in enumerate(("late", "left"))}
    own = {party: {name: columns[name] for name in JOINT_SCHEMA.parties[party].columns} for party in ("bank", "telco")}
    return VerticalDataset(JOINT_SCHEMA, own)


def maximum_likelihood(columns, name):
    """The intercept and the coefficients of a logistic regression on pooled columns, by Newton's method."""
    X = np.stack([np.ones(NUM_RECORDS), columns["income"], columns["usage"], columns["calls"]], axis=-1)
    found = np.zeros(4)
    for _ in range(8):
        mean = 1 / (1 + np.exp(-X @ found))
        found += np.linalg.solve((X.T * (mean * (1 - mean))) @ X, X.T @ (columns[name] - mean))
    return found


@pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning")
def test_two_outcomes_about_a_common_mean_are_found_and_drawn():
    dataset, dpvi = joint_dataset(), DPVI(joint_model("about a mean"), learning_rate=0.1)
    plan = dpvi.plan(dataset, noise_multiplier=2.0, num_steps=150, residual_bound=1.0)
    with pytest.warns(InsecureRandomnessWarning):
        posterior = dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)
    found = {site: draws.mean(0) for site, draws in posterior.sample(KEY, 500).items()}
    for number, name in enumerate(("late", "left")):
        expected = maximum_likelihood(dataset.pooled(), name)
        np.testing.assert_allclose([found["base"][number], *found["rows"][number]], expected, rtol=0, atol=0.15)
        assert np.abs(expected).min() > 0.2
    assert posterior.held_out_nll(dataset) < 0.98 * 2 * math.log(2)  # of two tosses of a coin
    covariates = dataset.to_frame()[["income", "usage", "calls"]]
    twin = posterior.sample_synthetic(rng_key=KEY, covariates=covariates)
    assert (twin[["late", "left"]].mean().to_numpy() > 0.3).all()
    held = {name: np.corrcoef(dataset.pooled()[name], dataset.pooled()["income"])[0, 1] for name in ("late", "left")}
    for name, expected in held.items():
        assert np.corrcoef(twin[name].astype(float), twin["income"])[0, 1] == pytest.approx(expected, abs=0.06)
