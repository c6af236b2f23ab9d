"""Sufficient statistics: what a record adds, how far it can move the sum, and the releases built on it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.privacy import GaussianEvent, NeighbouringRelation
from vertinumpyro.regression.bayesian_linear_plan import (
    BayesianLinearPlan,
    StatisticsRelease,
    entrywise_sensitivity,
    moment_sensitivity,
    num_statistics,
    scaled,
    statistic_sensitivity,
    statistic_vectors,
    unpacked,
)


def records(num_columns):
    return hnp.arrays(np.float64, (2, num_columns), elements=st.floats(-1, 1))


@pytest.mark.parametrize("num_features", [1, 2, 4, 11])
def test_no_two_records_are_farther_apart_than_the_sensitivity(num_features):
    @settings(max_examples=200, deadline=None)
    @given(records(num_features + 1))
    def check(pair):
        first, second = statistic_vectors(pair)
        assert np.linalg.norm(first - second) <= statistic_sensitivity(num_features) * (1 + 1e-12)
        squares = pair**2
        assert np.linalg.norm(squares[0] - squares[1]) <= moment_sensitivity(num_features) * (1 + 1e-12)

    check()


@pytest.mark.parametrize("num_features", [1, 2, 3, 4])
def test_brute_force_over_a_grid_does_not_pass_the_sensitivity(num_features):
    grid = np.array(list(itertools.product((-1.0, -0.5, 0.0, 0.5, 1.0), repeat=num_features + 1)))
    vectors = statistic_vectors(grid)
    largest = max(np.linalg.norm(vectors - one, axis=1).max() for one in vectors)
    assert largest <= statistic_sensitivity(num_features) * (1 + 1e-12)
    if num_features in (1, 3):  # orthogonal corners exist: the bound is attained
        assert largest == pytest.approx(statistic_sensitivity(num_features))
    assert largest < entrywise_sensitivity(num_features)


def test_statistics_are_those_of_the_clipped_records():
    rng = np.random.default_rng(0)
    columns, bounds = rng.normal(0, 2, (50, 4)), np.array([1.0, 2.0, 3.0, 4.0])
    units = scaled(columns, bounds)
    assert np.abs(units).max() == 1
    vectors = statistic_vectors(units)
    assert vectors.shape == (50, num_statistics(3))
    found = unpacked(vectors.sum(0), 0.0)
    clipped = np.clip(columns, -bounds, bounds)
    x, y = clipped[:, :3] / bounds[:3], clipped[:, 3] / 4
    np.testing.assert_allclose(found.second_moments, x.T @ x)
    np.testing.assert_allclose(found.cross_moments, x.T @ y)


def release(**changes):
    settings = {"sensitivity": 2.0, "noise_stddev": 6.0, "num_values": 3, "num_records": 100}
    return StatisticsRelease(**{**settings, **changes})


@pytest.mark.parametrize("mechanism", ["distributed", "trusted", "input"])
def test_a_release_adds_the_noise_that_it_states(mechanism):
    made = release(mechanism=mechanism, num_values=2000, max_unreliable=9 * (mechanism == "distributed"))
    vectors = np.random.default_rng(0).uniform(-1, 1, (100, 2000))
    noise = made.run(vectors, SystemRandomSource()) - vectors.sum(0)
    expected = {"distributed": 36 * 100 / 90, "trusted": 36, "input": 3600}[mechanism]
    assert made.noise_variance == pytest.approx(expected, rel=1e-6)
    # chi-square with 2,000 degrees of freedom: 6 standard deviations, 2e-9
    assert abs((noise**2).mean() / made.noise_variance - 1) < 6 * math.sqrt(2 / 2000)


def test_a_release_hides_a_record_from_everyone_who_should_not_see_it():
    for observer in release(max_unreliable=9).observers:
        assert release(max_unreliable=9).shift(observer) <= 2 / 6 * (1 + 1e-6)
    outside, client = release(max_unreliable=9).observers
    assert release(max_unreliable=9).shift(outside) < release(max_unreliable=9).shift(client)


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": "magic"},
        {"mechanism": "trusted", "max_unreliable": 1},
        {"max_unreliable": 99},
        {"noise_stddev": 0},
    ],
    ids=str,
)
def test_bad_releases(changes):
    with pytest.raises(ArgumentError):
        release(**changes)


def test_a_sum_that_could_wrap_is_refused():
    with pytest.raises(RangeError, match="standard deviations of the noise"):
        release(noise_stddev=4e10)
    with pytest.raises(RangeError, match="wrap"):
        release(mechanism="input", noise_stddev=1e10)


def plan(**changes):
    settings = {"num_records": 1000, "num_features": 11, "epsilon": 1.0, "delta": 1e-4}
    settings |= changes
    return BayesianLinearPlan(target_epsilon=settings.pop("epsilon"), **settings)


@pytest.mark.parametrize("mechanism", ["distributed", "trusted", "input"])
@pytest.mark.parametrize("std_share", [0.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 31.6])
def test_tight_plans_spend_the_target_and_no_more(mechanism, std_share, epsilon):
    rows = plan(mechanism=mechanism, std_share=std_share, epsilon=epsilon).adversaries
    worst = max(row.epsilon for row in rows)
    assert 0.998 * epsilon < worst <= epsilon
    assert all(row.proof == "proved" and row.guarantee == "DP" for row in rows)


def test_two_releases_compose_as_one_gaussian():
    made = plan(std_share=0.3)
    observer = made.statistics.observers[-1]
    shifts = [release.shift(observer) for release in made.releases]
    assert shifts[0] ** 2 / sum(s**2 for s in shifts) == pytest.approx(0.3, rel=1e-4)
    alone = plan().statistics.shift(observer)
    assert math.hypot(*shifts) == pytest.approx(alone, rel=1e-5)


def test_classic_calibration_is_equation_one_and_its_true_epsilon_is_shown():
    made = plan(calibration="classic", mechanism="trusted")
    expected = math.sqrt(2 * math.log(1.25 / 1e-4)) * entrywise_sensitivity(11)
    assert made.statistics.noise_stddev == pytest.approx(expected)
    # Eq. 1 alone (with the tight sensitivity) breaks its promise at large epsilon
    sigma = 2 * math.sqrt(2 * math.log(1.25 / 1e-4)) / 31.6
    assert GaussianEvent(noise_multiplier=sigma, count=1).delta(31.6, NeighbouringRelation.REPLACE) > 1e-4
    assert made.adversaries[0].epsilon < 1


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"delta": 1.0},
        {"calibration": "loose"},
        {"std_share": 1.0},
        {"num_records": 2},
        {"num_features": 0},
        {"mechanism": "magic"},
        {"max_unreliable": 999},
    ],
    ids=str,
)
def test_bad_plans(changes):
    with pytest.raises(ArgumentError):
        plan(**changes)
