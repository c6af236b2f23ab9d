"""The estimator: scikit-learn's contract, exactness without noise, honest intervals, thresholds, refusals."""

import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn (extra: report) is not installed")


from vertinumpyro.core.errors import ArgumentError, LongFitWarning
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import PartySchema, RealColumn, Schema, TableFacts
from vertinumpyro.privacy import FitTime
from vertinumpyro.regression.bayesian_linear import BayesianLinearRegression
from vertinumpyro.regression.posteriors import (
    NoisyStatistics,
    denoised,
    marginal_stddevs,
    noise_aware,
    optimal_thresholds,
    plug_in,
)

BETA = np.array([0.6, -0.3, 0.1])


def table(seed, n=2000, noise=0.2):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 3))
    return x, x @ BETA + rng.normal(0, noise, n)


def fitted(x, y, seed=None, **settings):
    defaults = {"epsilon": 1.0, "target_bound": 2.0, "noise_variance": 0.04, "insecure_seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        return BayesianLinearRegression(**{**defaults, **settings}).fit(x, y)


@pytest.mark.parametrize("posterior", ["plug_in", "noise_aware"])
def test_without_noise_it_is_the_exact_posterior(posterior):
    x, y = table(0)
    model = fitted(x, y, epsilon=1e7, projection=False, posterior=posterior)
    precision = x.T @ x / 0.04 + np.eye(3)
    np.testing.assert_allclose(model.covariance_, np.linalg.inv(precision), rtol=1e-3)
    np.testing.assert_allclose(model.coef_, np.linalg.solve(precision, x.T @ y / 0.04), rtol=1e-3)
    mean, std = model.predict(x[:5], return_std=True)
    np.testing.assert_allclose(mean, x[:5] @ model.coef_)
    spread = np.einsum("nj,jk,nk->n", x[:5], model.covariance_, x[:5])
    np.testing.assert_allclose(std**2, spread + 0.04)


@pytest.mark.parametrize("mechanism", ["distributed", "trusted", "input"])
def test_units_do_not_matter(mechanism):
    """Scaling a column, its bound and the prior alike scales the posterior: noise follows the bounds."""
    x, y = table(1)
    plain = fitted(x, y, seed=3, projection=False, mechanism=mechanism, bounds=1.0)
    other = fitted(1000 * x, y, seed=3, projection=False, mechanism=mechanism, bounds=[1000.0] * 3, prior_variance=1e-6)
    np.testing.assert_allclose(other.coef_ * 1000, plain.coef_, rtol=1e-6)


def coverage(posterior, runs=60):
    """How often the true coefficient lies in the central 90% interval, over fresh data and noise."""
    inside = []
    for seed in range(runs):
        x, y = table(seed, n=1000)
        model = fitted(x, y, seed=seed, epsilon=0.8, projection=False, posterior=posterior)
        inside.append(np.abs(model.coef_ - BETA) <= 1.645 * np.sqrt(np.diag(model.covariance_)))
    return float(np.mean(inside))


def test_noise_aware_intervals_cover_and_plug_in_ones_do_not():
    """180 intervals, three to a run: a standard error of at most 0.04. The first is allowed to be cautious."""
    assert coverage("noise_aware") > 0.85
    assert coverage("plug_in") < 0.6


def test_noise_aware_predicts_no_worse_under_much_noise():
    def error(posterior):
        errors = []
        for seed in range(30):
            x, y = table(seed, n=300)
            model = fitted(x, y, seed=seed, epsilon=0.3, projection=False, posterior=posterior)
            errors.append(np.abs(x @ (model.coef_ - BETA)).mean())
        return np.median(errors)

    assert error("noise_aware") < error("plug_in")


def test_denoising_keeps_what_is_certain_and_stays_positive():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 6))
    A = x.T @ x
    exact, left = denoised(NoisyStatistics(A, x[:, 0], 0.0))
    np.testing.assert_allclose(exact, A, atol=1e-9)
    assert left.max() == 0
    noise = rng.normal(0, 400, (6, 6))
    noisy, left = denoised(NoisyStatistics(A + np.triu(noise) + np.triu(noise, 1).T, x[:, 0], 400.0**2))
    assert np.linalg.eigvalsh(noisy).min() > -1e-6
    assert np.all((left > 0) & (left <= 400.0**2))


def test_posteriors_work_on_batches():
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(5, 4, 3, 3)), rng.normal(size=(5, 4, 3))
    A = A @ np.swapaxes(A, -1, -2)
    prior, scale = np.full((5, 4, 3), 2.0), np.full((5, 4), 0.3)
    for method in (plug_in, noise_aware):
        batch = method(NoisyStatistics(A, b, 0.5), prior, scale)
        one = method(NoisyStatistics(A[2, 1], b[2, 1], 0.5), prior[2, 1], 0.3)
        np.testing.assert_allclose(batch.mean[2, 1], one.mean)
        np.testing.assert_allclose(batch.covariance[2, 1], one.covariance)


def test_standard_deviations_from_noisy_moments():
    truth = np.array([0.02, 0.2, 0.9])
    exact = marginal_stddevs(1000 * truth**2, 1e-6, 1000)
    np.testing.assert_allclose(exact, truth, atol=2e-3)
    noisy = marginal_stddevs(np.array([-50.0, 5000.0]), 400.0, 1000)
    assert np.all((noisy > 0) & (noisy < 1))


def test_thresholds_shrink_as_noise_grows_and_are_the_same_for_everybody():
    low, high = (optimal_thresholds(1000, 5, stddev, "noise_aware", 5) for stddev in (0.5, 300.0))
    assert high[0] < low[0]
    optimal_thresholds.cache_clear()
    assert optimal_thresholds(1000, 5, 0.5, "noise_aware", 5) == low


def test_projection_beats_wide_bounds():
    errors = {True: [], False: []}
    for seed in range(9):
        x, y = table(seed)
        for projection, found in errors.items():
            model = fitted(x, y, seed=seed, epsilon=2.0, projection=projection, bounds=10.0, target_bound=10.0)
            found.append(np.abs(model.coef_ - BETA).mean())
            assert np.all(model.bounds_ <= 10)
    assert np.median(errors[True]) < 0.5 * np.median(errors[False])


def test_values_past_the_bounds_are_clipped_before_anything_else():
    x, y = table(0)
    x[0], y[0] = 1e12, -1e12
    wild = fitted(x, y, seed=1, projection=False)
    x[0], y[0] = 1.0, -2.0
    tame = fitted(x, y, seed=1, projection=False)
    np.testing.assert_array_equal(wild.coef_, tame.coef_)


def test_seeds_repeat_and_say_so():
    x, y = table(0, n=200)
    first, second = (fitted(x, y, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert not first.secure_noise_
    with pytest.warns(InsecureRandomnessWarning):
        BayesianLinearRegression(insecure_seed=1).fit(x, y)


@pytest.mark.parametrize(
    "settings",
    [
        {"bounds": 0.0},
        {"bounds": [1.0, np.inf, 1.0]},
        {"target_bound": -1.0},
        {"noise_variance": 0.0},
        {"prior_variance": np.nan},
        {"posterior": "magic"},
        {"mechanism": "magic"},
        {"num_nodes": 1},
        {"epsilon": -1.0},
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_anything_is_spent(settings, tmp_path):
    x, y = table(0, n=50)
    with pytest.raises(ArgumentError):
        BayesianLinearRegression(**settings).fit(x, y, run_dir=tmp_path)
    assert not (tmp_path / "privacy.json").exists()


def test_a_plan_is_asked_for_as_of_the_other_estimators_and_as_before():
    schema = Schema({"people": PartySchema({name: RealColumn(bounds=(-1, 1)) for name in ("a", "b", "late")})})
    model, x = BayesianLinearRegression(target="late"), np.zeros((2000, 2))
    holders = TableFacts(schema, 2000, ("east", "west"))
    plans = [
        model.plan(schema, "late", num_records=2000, epsilon=2.0, delta=1e-6),
        model.plan(schema=schema, num_records=2000, epsilon=2.0, delta=1e-6),
        model.plan(x, epsilon=2.0, delta=1e-6),
        model.plan(num_records=2000, num_features=2, epsilon=2.0, delta=1e-6),
        model.plan(holders, "late", epsilon=2.0, delta=1e-6),
    ]
    found = {(plan.num_records, plan.num_features, plan.target_epsilon, plan.delta) for plan in plans}
    assert found == {(2000, 2, 2.0, 1e-6)}
    assert [plan.holders for plan in plans] == [(), (), (), (), ("east", "west")]
    with pytest.warns(FutureWarning, match="num_features="):
        assert model.plan(2000, 2).num_features == 2
    for wrong, says in (
        ({"data": schema}, "num_records"),
        ({"data": x, "label": "a"}, "label"),
        ({"data": x, "clip": 1.0}, "clip"),
        ({"num_records": 10}, "schema"),
    ):
        with pytest.raises(ArgumentError, match=says):
            model.plan(**wrong)


def test_a_plan_says_how_long_a_fit_takes_and_what_is_long_is_asked_for():
    x, y = table(2)
    model = BayesianLinearRegression(target_bound=2.0, noise_variance=0.04)
    plan = model.plan(x)
    assert set(plan.time.before) == {"the thresholds", "the sums"}
    assert all(seconds > 0 for seconds in plan.time.before.values())
    plan.keep_time(FitTime(before={"the sums": 4000.0}))
    with pytest.raises(ArgumentError, match=r"allow_long: .* 67 min"):
        model.fit(x, y, plan=plan)
    with pytest.warns(LongFitWarning):
        model.fit(x, y, plan=plan, allow_long=True)
    assert model.plan_ is plan


def test_holders_time_is_of_their_largest_part():
    schema = Schema({"people": PartySchema({name: RealColumn(bounds=(-1, 1)) for name in ("a", "late")})})
    model = BayesianLinearRegression(target="late", projection=False)
    plan = model.plan(TableFacts(schema, 10**6, ("east", "west")))
    assert set(plan.time.before) == {"the sums"}
    assert "add up together" in plan.time.words
