"""Posteriors that know the steps' noise: what a trace says of the coefficients, and what a user gets of it."""

import dataclasses
import json
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from tests.dpvi.test_regression import UNIT, dataset_of
from vertinumpyro.core import compat
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    Schema,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI, SecondMoments
from vertinumpyro.dpvi.forecast import usual_values
from vertinumpyro.dpvi.noise_aware import (
    TOO_FAR,
    Information,
    NoiseAwareDraws,
    _by_nuts,
    _information,
    _within,
    information_of,
)
from vertinumpyro.dpvi.posterior import Residual
from vertinumpyro.dpvi.priors import NormalPrior, drawn_precisions, drawn_prior
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.model.outcomes import BernoulliLogit, Poisson
from vertinumpyro.model.split import Offset
from vertinumpyro.posterior.predictive import _summary
from vertinumpyro.privacy import Plan

KEY = jax.random.key(0)
PRIOR = NormalPrior(np.eye(4) / 100, np.zeros(4))
pytestmark = [
    pytest.mark.filterwarnings("ignore::vertinumpyro.posterior.TwinWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning"),
    pytest.mark.filterwarnings("ignore::vertinumpyro.core.errors.InferenceWarning"),
]


def fitted(model, dataset, **privacy) -> Any:
    dpvi = DPVI(model, warm_start=SecondMoments())
    plan = dpvi.plan(dataset, **{"epsilon": 2.0, **privacy})
    return dpvi, dpvi.fit(dataset, plan, KEY, insecure_seed=1, progress_bar=False)


# -- what a trace says ------------------------------------------------------------------------------


def trace_of(rng, *, cut, noise, moments_noise, num_records=3000, num_steps=8):
    """Points, gradients and moments of records whose outcomes follow the model at beta; beta, too."""
    x = np.column_stack([np.ones(num_records), np.tanh(rng.normal(size=(num_records, 3)))])
    beta = rng.normal(size=4) * [0.5, 1.0, 1.0, 1.0]
    y = rng.random(num_records) < 1 / (1 + np.exp(-x @ beta))
    points = beta + rng.normal(size=(num_steps, 4)) * 0.5
    residuals = np.clip(y[:, None] - 1 / (1 + np.exp(-x @ points.T)), -cut, cut)
    noises = np.triu(rng.normal(size=(4, 4))) * moments_noise
    moments = x.T @ x + noises + np.triu(noises, 1).T
    return beta, points, residuals.T @ x + noise * rng.normal(size=(num_steps, 4)), moments


def test_intervals_of_a_trace_hold_the_coefficients_as_often_as_they_say():
    rng, cut, noise, moments_noise, scores = np.random.default_rng(3), 0.6, 150.0, 50.0, []
    with compat.x64():
        said = jax.jit(lambda *trace: _information(
            BernoulliLogit(), cut, points=trace[0], gradients=trace[1], moments=trace[2], constant=jnp.eye(4)[0],
            prior=PRIOR, noise=noise, moments_noise=moments_noise, num_records=3000.0, seen=jnp.eye(4)))  # fmt: skip
        for _ in range(60):
            beta, *trace = trace_of(rng, cut=cut, noise=noise, moments_noise=moments_noise)
            found = said(*map(jnp.asarray, trace))
            covariance = np.linalg.inv(found.precision)
            without = np.sqrt(np.diag(np.linalg.inv(found.without_noise)))
            apart = covariance @ found.linear - beta
            scores.append([apart / np.sqrt(np.diag(covariance)), apart / without])
    standardised, ignoring = np.std(scores, axis=(0, 2))
    assert 0.75 < standardised < 1.2  # it trusts what it supposes of predictors less than these deserve
    assert ignoring > 1.5  # so that the bounds above fail where the noise is left out


def test_what_a_trace_says_is_found_where_the_prior_has_the_coefficients_and_not_where_noise_does():
    """Curvature and distances that are taken far away say less of coefficients the larger they are."""
    rng, cut = np.random.default_rng(4), 0.6
    _, *trace = trace_of(rng, cut=cut, noise=3e3, moments_noise=50.0)
    with compat.x64():
        far, near = (jax.jit(lambda prior, *trace: _information(
            BernoulliLogit(), cut, points=trace[0], gradients=trace[1], moments=trace[2], constant=jnp.eye(4)[0],
            prior=prior, noise=3e3, moments_noise=50.0, num_records=3000.0, seen=jnp.eye(4)))(prior, *trace)
            for prior in (PRIOR, NormalPrior(np.eye(4), np.zeros(4))))  # fmt: skip
    assert np.linalg.norm(far.centre) > 3
    assert np.linalg.norm(near.centre) < 2
    assert np.trace(near.precision) > 1.5 * np.trace(far.precision)


def test_an_estimate_is_the_pooled_one_where_there_is_no_noise_to_speak_of():
    """Of skewed predictors and steps that began far away, where no Gaussian predictors are exact."""
    rng, outcome, cut = np.random.default_rng(8), Poisson(30.0), 12.0
    x = np.column_stack([np.ones(3000), rng.random(3000) < 0.2, np.tanh(rng.normal(size=(3000, 2))) ** 3])
    y = rng.poisson(np.exp(x @ [0.3, 0.5, -0.6, 0.4]))
    pooled = np.zeros(4)
    for _ in range(30):
        rate = np.exp(x @ pooled)
        pooled += np.linalg.solve((x * rate[:, None]).T @ x, x.T @ (y - rate))
    points = pooled + rng.normal(size=(20, 4)) * np.geomspace(1.0, 1e-3, 20)[:, None]
    residuals = np.clip(y[:, None] - np.exp(x @ points.T), -cut, cut)
    with compat.x64():
        found = jax.jit(lambda *trace: _information(
            outcome, cut, points=trace[0], gradients=trace[1], moments=trace[2], constant=jnp.eye(4)[0], prior=PRIOR,
            noise=0.5, moments_noise=0.05, num_records=3000.0, seen=jnp.eye(4),
        ))(points, residuals.T @ x, x.T @ x)  # fmt: skip
    spread = np.sqrt(np.diag(np.linalg.inv((x * rate[:, None]).T @ x)))
    assert (np.abs(np.linalg.solve(found.precision, found.linear) - pooled) < 0.1 * spread).all()


def counts_over_times(rng, *, cut, noise, moments_noise, num_records=3000, num_steps=8):
    """As `trace_of`, of counts over times that differ by a factor of ten and go with the predictors; theirs, too."""
    x = np.column_stack([np.ones(num_records), np.tanh(rng.normal(size=(num_records, 3)))])
    times = 0.1 + 0.9 / (1 + np.exp(-2 * x[:, 1] - rng.normal(size=num_records)))
    beta = rng.normal(size=4) * 0.4 + [0.5, 0, 0, 0]
    y = rng.poisson(times * np.exp(x @ beta)).clip(0, 30)
    points = beta + rng.normal(size=(num_steps, 4)) * 0.3
    residuals = np.clip(y[:, None] - times[:, None] * np.exp(x @ points.T), -cut, cut)
    offset = Offset(np.log(0.32), np.log(10.0) / 2)
    both = np.column_stack([x, offset.scaled(np.log(times))])
    noises = np.triu(rng.normal(size=(5, 5))) * moments_noise
    moments = both.T @ both + noises + np.triu(noises, 1).T
    return beta, offset, points, residuals.T @ x + noise * rng.normal(size=(num_steps, 4)), moments


def test_intervals_hold_the_coefficients_of_counts_over_times_and_do_not_where_times_are_taken_to_be_alike():
    rng, cut, noise, moments_noise = np.random.default_rng(6), 3.0, 300.0, 50.0
    prior, scores = NormalPrior(np.eye(4) / 0.16, np.array([0.5, 0, 0, 0]) / 0.16), []
    with compat.x64():
        said = jax.jit(lambda points, gradients, moments, middle, halves: _information(
            Poisson(30.0), cut, points=points, gradients=gradients, moments=moments, constant=jnp.eye(4)[0],
            prior=prior, noise=noise, moments_noise=moments_noise, num_records=3000.0, seen=jnp.eye(4), middle=middle,
            halves=halves))  # fmt: skip
        for _ in range(60):
            beta, offset, points, gradients, moments = counts_over_times(
                rng, cut=cut, noise=noise, moments_noise=moments_noise
            )
            known = moments, offset.middle, jnp.array([offset.half])
            for kept in (known, (moments[:4, :4], 0.0, jnp.zeros(0))):
                found = said(points, gradients, *kept)
                covariance = np.linalg.inv(found.precision + prior.precision)
                apart = covariance @ (found.linear + prior.linear) - beta
                scores.append(apart / np.sqrt(np.diag(covariance)))
    standardised, ignoring = np.std(scores[::2]), np.sqrt(np.mean(np.square(scores[1::2])))
    assert 0.8 < standardised < 1.15
    assert ignoring > 1.3


# -- what a user gets -------------------------------------------------------------------------------


def logistic(data, num_records):
    bank: Any = numpyro.sample("bank", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    telco: Any = numpyro.sample("telco", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    parts = {"bank": bank[0] + bank[1] * data["income"], "telco": telco[0] * data["usage"] + telco[1] * data["calls"]}
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


def test_a_summary_has_intervals_and_the_draws_outlive_files_and_pickles(tmp_path):
    dpvi, posterior = fitted(logistic, dataset_of("logit"))
    table = posterior.summary()
    assert list(table.columns) == ["estimate", "std_error", "lower", "upper", "privacy_share", "effective_records"]
    assert list(table.index) == ["bank[0]", "bank[1]", "telco[0]", "telco[1]"]
    assert (table["lower"] < table["estimate"]).all()
    assert (table["estimate"] < table["upper"]).all()
    assert table["privacy_share"].between(0, 1).all()
    narrower = posterior.summary(prob=0.5)
    assert (table["lower"] < narrower["lower"]).all()
    assert (narrower["upper"] < table["upper"]).all()
    assert posterior.is_interval
    assert "its draws know the noise" in repr(posterior)
    posterior.save(tmp_path / "posterior.npz")
    for again in (dpvi.load(tmp_path / "posterior.npz"), pickle.loads(pickle.dumps(posterior))):
        assert isinstance(again.noise_aware, NoiseAwareDraws)
        assert np.array_equal(again.noise_aware.draws, posterior.noise_aware.draws)
        assert again.summary().equals(table)


@pytest.mark.parametrize("prob", [0.02, 0.5, 0.95])
def test_an_estimate_never_lies_outside_its_own_interval(prob):
    skewed = np.exp(np.random.default_rng(2).normal(size=(2000, 3)) * [0.1, 2.0, 6.0])
    for values in (skewed, -skewed):
        rows = _summary("scale", values, prob)
        assert ((rows["lower"] <= rows["estimate"]) & (rows["estimate"] <= rows["upper"])).all()


def test_a_second_fit_of_the_same_public_numbers_compiles_nothing():
    dataset = dataset_of("logit")
    dpvi = DPVI(logistic, warm_start=SecondMoments())
    for seed in range(2):
        plan = dpvi.plan(dataset, epsilon=2.0)
        dpvi.fit(dataset, plan, jax.random.key(seed), insecure_seed=seed, progress_bar=False)
    kernel, _ = dpvi.kernel(dataset, plan, KEY)
    assert kernel.compiled["chunk"]._cache_size() == 1
    other, _ = dpvi.kernel(dataset, dpvi.plan(dataset, epsilon=3.0), KEY)
    assert other is not kernel
    assert len(pickle.loads(pickle.dumps(dpvi))._kernels) == 0
    for epsilon in range(4, 13):
        dpvi.kernel(dataset, dpvi.plan(dataset, epsilon=float(epsilon)), KEY)
    assert kernel not in dpvi._kernels.values()  # or programs would pile up


def test_a_plan_says_before_anything_is_spent_what_its_fit_will_know():
    dataset = dataset_of("logit")
    dpvi = DPVI(logistic, warm_start=SecondMoments())
    plans = [dpvi.plan(dataset, epsilon=epsilon) for epsilon in (0.02, 2.0)]
    drowned, plan = (one.forecast for one in plans)
    assert list(plan.table.index) == ["bank[0]", "bank[1]", "telco[0]", "telco[1]"]
    assert (drowned.std_error > plan.std_error).all()
    assert np.allclose(plan.prior, 2.0)
    assert np.allclose(plan.table["sampling"] ** 2 + plan.table["privacy"] ** 2, plan.std_error**2)
    assert {"bank[1]", "telco[1]"} <= set(drowned.little)
    assert f"the data will say little of: {', '.join(drowned.little)}. What could help" in str(plans[0])
    assert all(len(line) <= 80 for line in str(plans[1]).splitlines())
    assert Plan.from_dict(plans[1].to_dict()).forecast is None  # no record has it
    assert Plan.from_dict(plans[1].to_dict()) == plans[1]
    posterior = dpvi.fit(dataset, plans[1], KEY, insecure_seed=1, progress_bar=False)
    ratio = posterior.summary()["std_error"] / plan.std_error
    assert ratio.between(1 / 3, 3).all()


READINGS = {"from 0 to 1": (1.0, 0.0), "in years": (120.0, -20.0), "downwards": (-3.0, 0.0)}


@pytest.mark.promise
@pytest.mark.parametrize("reading", READINGS)
def test_a_record_says_as_much_however_a_model_reads_its_numbers(reading):
    """The same posterior as of numbers from -1 to 1, where the priors are the same but for the intercept's."""
    factor, added = READINGS[reading]

    def reads(factor, added):
        def model(data, num_records):
            names = {"bank": ("income",), "telco": ("usage", "calls")}
            spread = 4.0 / abs(factor)
            slopes = {n: numpyro.sample(n, dist.Normal(0.0, spread)) for own in names.values() for n in own}
            parts = {
                party: sum(slopes[n] * (factor * jnp.asarray(data[n], float) + added) for n in own)
                for party, own in names.items()
            }
            parts["bank"] = parts["bank"] + numpyro.sample("intercept", dist.Normal(0.0, 10.0))
            with party_plate("bank", num_records):
                numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

        return model

    dataset, rows = dataset_of("logit"), ["income", "usage", "calls"]
    (one, posterior), (other, centred) = (fitted(reads(*by), dataset) for by in ((factor, added), (2.0, -1.0)))
    found, wanted = (of.summary().loc[rows] for of in (posterior, centred))
    assert np.allclose(factor * found["estimate"], 2 * wanted["estimate"], atol=0.15)
    assert np.allclose(abs(factor) * found["std_error"], 2 * wanted["std_error"], rtol=0.15)
    plan, as_centred = posterior.plan, centred.plan
    assert as_centred.standardisation is None
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert (plan.clip_norm, plan.clip_parts) == (as_centred.clip_norm, as_centred.clip_parts)
    forecasts = [of.plan(dataset, epsilon=2.0).forecast.table["privacy"][rows] for of in (one, other)]
    assert np.allclose(abs(factor) * forecasts[0], 2 * forecasts[1], rtol=0.25)


def test_a_forecast_is_of_records_that_are_no_more_in_the_middle_of_their_domains_than_peoples_are():
    """An intercept where nothing is known of the slopes is known where the columns are."""
    rng, common = np.random.default_rng(0), np.random.default_rng(1).normal(size=4000)
    even = rng.uniform(-1, 1, 4000)
    one, other = (usual_values(even, sign * common, rng) for sign in (1, -1))
    assert -0.3 < one.mean() < -0.15
    assert one.std() < even.std()
    assert set(one) <= set(even)
    assert -0.35 < np.corrcoef(one, other)[0, 1] < -0.15
    assert abs(usual_values(even, common, rng, ordered=False).mean()) < 0.05  # of categories


def test_a_posterior_says_first_whether_its_steps_ended_and_what_noise_hides(tmp_path):
    dpvi, posterior = fitted(logistic, dataset_of("logit"), epsilon=0.005)
    ended, little, *_ = notes = posterior.reading_notes
    assert ended == "The steps ended at an optimum: their last gradients are within the noise"
    assert little.startswith("At this epsilon and N the data say little beside the prior of: ")
    assert posterior.summary().attrs["reading_notes"] == notes
    assert str(posterior).startswith(ended)
    posterior.save(tmp_path / "posterior.npz")
    assert dpvi.load(tmp_path / "posterior.npz").reading_notes == notes
    early = dataclasses.replace(posterior.diagnostics, residual=Residual(0.2, 9.0))
    assert "did not end at an optimum" in dataclasses.replace(posterior, diagnostics=early).reading_notes[0]


def groups_of(num_records=3000):
    """A logistic outcome at the bank, whose groups are the telco's."""
    schema = Schema({"bank": PartySchema({"y": BinaryColumn(), "income": UNIT}),
                     "telco": PartySchema({"group": CategoricalColumn(categories=("a", "b", "c"))})})  # fmt: skip
    rng = np.random.default_rng(4)
    columns = VerticalDataset.example(schema, num_records, rng).pooled()
    eta = columns["income"] + np.array([-1.0, 0.0, 1.0])[columns["group"]]
    y = (rng.random(num_records) < 1 / (1 + np.exp(-eta))).astype(columns["y"].dtype)
    return VerticalDataset(
        schema, {"bank": {"y": y, "income": columns["income"]}, "telco": {"group": columns["group"]}}
    )


def hierarchy(data, num_records):
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    scale: Any = numpyro.sample("scale", dist.HalfNormal(1.0))
    groups: Any = numpyro.sample("groups", dist.Normal(0.0, scale).expand([3]).to_event(1))
    parts = {"bank": slope * data["income"], "telco": groups[data["group"].astype(int)]}
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])


def test_a_hierarchy_has_an_interval_of_its_scale_and_of_its_groups():
    _, posterior = fitted(hierarchy, groups_of(), epsilon=10.0)
    table = posterior.summary()
    assert set(table.index) == {"slope", "scale", "groups[0]", "groups[1]", "groups[2]"}
    assert 0 < table.loc["scale", "lower"] < table.loc["scale", "estimate"] < table.loc["scale", "upper"]
    truth = np.array([-1.0, 0.0, 1.0])
    found = table.loc[[f"groups[{i}]" for i in range(3)]]
    assert (np.abs(found["estimate"] - truth) < 4 * found["std_error"]).all()
    assert (found["std_error"] < 0.5).all()


def test_no_direction_of_a_trace_says_more_than_records_without_noise_do():
    rng = np.random.default_rng(0)
    root, other, gradient = *rng.normal(size=(2, 4, 4)), rng.normal(size=4)
    most, precision = root @ root.T, 3 * other @ other.T
    with compat.x64():
        said, pull = map(np.asarray, _within(*map(jnp.asarray, (most, 0.0, precision, gradient, np.eye(4)))))
        small, same = map(np.asarray, _within(*map(jnp.asarray, (most, 0.0, most / 9, gradient, np.eye(4)))))
    assert np.linalg.eigvalsh(most - said).min() > -1e-9
    assert np.linalg.eigvalsh(precision - said).min() < 0 < np.linalg.eigvalsh(said).min()
    np.testing.assert_allclose(np.linalg.solve(said, pull), np.linalg.solve(precision, gradient))
    np.testing.assert_allclose(small, most / 9)
    np.testing.assert_allclose(same, gradient)


def test_after_the_budget_is_spent_steps_that_went_too_far_are_told_and_are_no_error(monkeypatch):
    def far_away(split, outcome, trace, *rest):
        return information_of(split, outcome, trace._replace(points=1e200 * (1 + trace.points)), *rest)

    monkeypatch.setattr("vertinumpyro.dpvi.noise_aware.information_of", far_away)
    _, posterior = fitted(logistic, dataset_of("logit"))
    assert not posterior.is_interval
    assert TOO_FAR in posterior.spread_note


@pytest.mark.parametrize(("is_seen", "hidden"), [(1, 0.0), (0, 5.0)])  # in moments as they are, or for their noise
def test_a_direction_that_no_record_says_anything_of_takes_nothing_from_others(is_seen, hidden):
    """Of records it is noise alone what they say there, and a little of a direction that they do say something of."""
    most, said = np.diag([25.0, 9.0 * is_seen, 0.0]), np.diag([16.0, 4.0, 0.0])
    most[0, 2] = most[2, 0] = 1.0
    with compat.x64():
        found, pull = map(np.asarray, _within(*map(jnp.asarray, (most, hidden, said, np.ones(3), np.eye(3)[:, :2]))))
    np.testing.assert_allclose(found, said, atol=1e-9)
    np.testing.assert_allclose(pull, [1, 1, 0], atol=1e-9)


@pytest.mark.parametrize(("scale", "is_said"), [(0.1, True), (2.0, False)])
def test_notes_say_where_what_was_released_and_the_prior_are_far_apart(scale, is_said):
    def model(data, num_records):
        income: Any = numpyro.sample("income", dist.Normal(0.0, scale))
        usage: Any = numpyro.sample("usage", dist.Normal(0.0, scale))
        intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 2.0))
        parts = {"bank": intercept + income * (2 * data["income"] - 1), "telco": usage * (2 * data["usage"] - 1)}
        with party_plate("bank", num_records):
            numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

    _, posterior = fitted(model, dataset_of("logit"), epsilon=50.0)
    (told,) = [note for note in posterior.reading_notes if "apart in" in note] or [""]
    assert ("income" in told, "intercept" in told) == (is_said, False)


def test_what_is_left_to_the_prior_is_no_noise_of_privacy():
    """An intercept beside a coefficient of every group: what they have in common no record tells, with noise or not."""

    def model(data, num_records):
        level: Any = numpyro.sample("level", dist.Normal(0.0, 1.0))
        groups: Any = numpyro.sample("groups", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        parts = {"bank": level + 0.0 * data["income"], "telco": groups[data["group"].astype(int)]}
        with party_plate("bank", num_records):
            numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

    _, posterior = fitted(model, groups_of(), epsilon=2.0)
    table = posterior.summary()
    assert (table["std_error"] > 0.4).all()  # of four numbers with normal priors and one sum that nobody knows: 0.5
    assert (table["privacy_share"] < 0.1).all()
    assert not any("noise of privacy" in note for note in posterior.reading_notes)


def test_a_hierarchys_draws_are_of_its_posterior_and_its_prior_counts_once():
    """Of the scale, whose density is integrated here over groups that the trace says something of."""
    split = DPVI(hierarchy).split(groups_of(8).schema)
    places = split.unflatten(jnp.arange(5))
    own, scale = np.asarray(places["groups"], int), int(places["scale"])
    precision, linear = np.zeros((5, 5)), np.zeros(5)
    precision[own, own], linear[own] = 8.0, [-8.0, 0.0, 8.0]
    with compat.x64():
        drawn = _by_nuts(split, Information(precision, linear, np.zeros(5), precision), KEY).draws
    scales, grid = np.exp(drawn[:, scale]), np.linspace(0.005, 5, 1000)
    spread = grid[:, None] ** 2 + 1 / 8
    density = np.exp(-(grid**2) / 2 - (np.array([-1.0, 0.0, 1.0]) ** 2 / spread + np.log(spread)).sum(1) / 2)
    assert scales.mean() == pytest.approx((grid * density).sum() / density.sum(), abs=0.06)


def test_a_forecast_takes_the_prior_of_groups_as_it_is_given_the_scale_of_each_draw():
    split = DPVI(hierarchy, warm_start=SecondMoments()).split(groups_of(8).schema)
    draws = drawn_prior(split)[0][:4]
    found = np.diagonal(drawn_precisions(split, draws), axis1=1, axis2=2)
    groups, scale = (np.array([n.startswith(site) for n in split.names]) for site in ("groups", "scale"))
    np.testing.assert_allclose(found[:, groups], np.exp(-2 * draws[:, scale]).repeat(3, 1), rtol=1e-3)


def with_offset(data, num_records):
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    parts = {"bank": intercept + slope * data["income"], "telco": jnp.log(jnp.maximum(data["months"], 1e-6))}
    with party_plate("bank", num_records):
        numpyro.sample("y", dist.Poisson(jnp.exp(party_sum("eta", parts))), obs=data["y"])


def people_with(outcome, num_records=4000):
    """Of whom the telco, which learns nothing, knows over how many months their outcome was counted."""
    schema = Schema({"bank": PartySchema({"y": outcome, "income": UNIT}), "telco": PartySchema({"months": UNIT})})
    rng = np.random.default_rng(5)
    columns = VerticalDataset.example(schema, num_records, rng).pooled()
    months = np.clip(0.2 + 0.4 * columns["income"] + 0.4 * rng.random(num_records), 0, 1).astype(np.float32)
    drawn = rng.poisson(months * np.exp(0.5 + 0.8 * columns["income"]))
    y = np.clip(drawn, 0, getattr(outcome, "upper", 1)).astype(columns["y"].dtype)
    return VerticalDataset(schema, {"bank": {"y": y, "income": columns["income"]}, "telco": {"months": months}})


def test_a_part_with_an_offset_has_intervals_by_moments_of_the_offset_whoevers_it_is():
    dataset = people_with(CountColumn(upper=20))
    _, posterior = fitted(with_offset, dataset, epsilon=20.0)
    start: Any = posterior.plan.start
    low, high = np.log([0.01, 1.0])
    assert start.widths == (2, 1)
    assert start.offsets[0] == Offset()
    assert start.offsets[1] == pytest.approx([(low + high) / 2, (high - low) / 2], abs=0.15)
    table = posterior.summary()
    assert posterior.is_interval
    assert ((table["estimate"] - [0.5, 0.8]).abs() < 4 * table["std_error"]).all()
    assert (table["std_error"] < 0.2).all()
    assert np.all((posterior.plan.forecast.std_error / table["std_error"]).between(1 / 3, 3))
    assert Plan.from_dict(json.loads(json.dumps(posterior.plan.to_dict()))) == posterior.plan


def test_a_plan_that_has_no_moments_of_an_offset_is_spent_as_it_was_made_and_says_why_there_is_no_interval():
    """As earlier versions made them."""
    dataset, dpvi = people_with(CountColumn(upper=20)), DPVI(with_offset, warm_start=SecondMoments())
    plan = dpvi.plan(dataset, epsilon=20.0)
    start: Any = plan.start
    bound = plan.clip_norm / (plan.residual_bound * 20.0)
    before = dataclasses.replace(start, widths=(2, 0), clip_parts=plan.clip_parts, radius=bound, offsets=())
    assert "offsets" not in before.to_dict()
    posterior = dpvi.fit(dataset, dataclasses.replace(plan, start=before), KEY, insecure_seed=1, progress_bar=False)
    assert not posterior.is_interval
    assert "the part of ['telco'] has an offset, of which a plan of an earlier version has no" in posterior.spread_note


def test_an_offset_that_may_be_the_time_of_an_event_has_an_estimate_and_is_told_why_there_is_no_interval():
    _, posterior = fitted(with_offset, people_with(BinaryColumn(), 500))
    table = posterior.summary()
    assert posterior.noise_aware is None
    assert not posterior.is_interval
    assert posterior.plan.forecast is None
    assert posterior.plan.start.widths == (2, 0)
    assert "the part of ['telco'] has an offset, which of whether an event was seen may be" in posterior.spread_note
    assert posterior.spread_note in repr(posterior)
    assert list(table.columns) == ["estimate"]
    assert table.attrs["spread_note"] == posterior.spread_note
