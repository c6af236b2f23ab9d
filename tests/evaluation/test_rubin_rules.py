"""Rubin's rules for synthetic tables: the formula, its edge, and coverage where everything is normal."""

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.evaluation import combine_estimates


def test_the_formula():
    combined = combine_estimates([1.0, 2.0, 6.0], [0.5, 1.0, 1.5])
    between = 4 / 3 * np.var([1.0, 2.0, 6.0], ddof=1)
    assert combined.estimate == 3.0
    assert combined.stddev**2 == pytest.approx(between - 1.0)
    assert combined.degrees_of_freedom == pytest.approx(2 * (1 - 1.0 / between) ** 2)


def test_a_negative_variance_gives_way_to_that_within_tables():
    combined = combine_estimates([1.0, 1.1], [4.0, 4.0])
    assert combined.stddev == 2.0
    low, high = combined.interval()
    assert low < 1.0 < 1.1 < high


def test_intervals_cover_where_posterior_and_tables_are_normal():
    """θ has variance 1 given the data, an estimate on a table 0.25 given θ."""
    rng, hits = np.random.default_rng(0), []
    for _ in range(2000):
        truth = rng.normal()  # about the posterior's mean, which is 0
        tables = rng.normal(size=20) + 0.5 * rng.normal(size=20)
        low, high = combine_estimates(tables, np.full(20, 0.25)).interval()
        hits.append(low < truth < high)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("estimates", "variances"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, np.nan], [1.0, 1.0]), ([1.0, 2.0], [1.0, -1.0]), (1.0, 1.0)],
)
def test_bad_input_is_refused(estimates, variances):
    with pytest.raises(ArgumentError, match="estimates"):
        combine_estimates(estimates, variances)


def test_a_level_is_a_probability():
    with pytest.raises(ArgumentError, match="level"):
        combine_estimates([1.0, 2.0], [1.0, 1.0]).interval(95)
