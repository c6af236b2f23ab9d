import numpy as np
import pytest

from vertinumpyro.mrf.measurements import Measurement, dependence, one_way, significance

N = 10_000


def noisy(columns, probs, stddev, rng):
    table = N * np.asarray(probs)
    return Measurement(columns=columns, values=table + rng.normal(0, stddev, table.shape), stddev=stddev)


def joint(rng, *sizes):
    table = rng.random(sizes)
    return table / table.sum()


def test_one_way_weighs_by_variance():
    rng = np.random.default_rng(0)
    truth = joint(rng, 3, 10)
    exact = Measurement(columns=("a",), values=N * truth.sum(1), stddev=1e-3)
    found = one_way("a", [noisy(("a", "b"), truth, 100.0, rng), exact], N)
    np.testing.assert_allclose(found.values, exact.values, atol=0.1)
    assert found.stddev == pytest.approx(1e-3, rel=1e-3)


def test_dependence_sees_through_noise():
    rng = np.random.default_rng(0)
    independent = np.outer([0.3, 0.7], [0.2, 0.5, 0.3])
    dependent = independent + 0.1 * np.array([[1, -1, 0], [-1, 1, 0]])
    nothing = [dependence(noisy(("a", "b"), independent, 200.0, rng), N) for _ in range(200)]
    assert abs(np.mean(nothing)) < 0.01
    assert dependence(noisy(("a", "b"), dependent, 1e-6, rng), N) == pytest.approx(0.2, abs=1e-4)


def test_significance_counts_the_noise_s_standard_deviations():
    """About standard normal where columns are independent, whatever the number of cells; larger the surer."""
    rng = np.random.default_rng(0)
    for shape in ((2, 2), (5, 20)):
        truth = np.outer(joint(rng, shape[0]), joint(rng, shape[1]))
        singles = {"a": N * truth.sum(1), "b": N * truth.sum(0)}
        found = [significance(noisy(("a", "b"), truth, 50.0, rng), singles) for _ in range(400)]
        assert abs(np.mean(found)) < 0.25  # five standard errors
        assert 0.8 < np.std(found) < 1.25
    apart = np.array([[0.5, 0.0], [0.0, 0.5]])
    singles = {"a": N * apart.sum(1), "b": N * apart.sum(0)}
    sure, less = (significance(noisy(("a", "b"), apart, s, rng), singles) for s in (50.0, 500.0))
    assert sure > 10 * less > 100
