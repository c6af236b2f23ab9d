import numpy as np
import pytest

from vertinumpyro.mrf.consistency import consistent, dependence, one_way
from vertinumpyro.mrf.release import Measurement

N = 10_000


def noisy(columns, probs, stddev, rng):
    table = N * np.asarray(probs)
    return Measurement(columns=columns, values=table + rng.normal(0, stddev, table.shape), stddev=stddev)


def joint(rng, *sizes):
    table = rng.random(sizes)
    return table / table.sum()


def test_tables_agree_and_stay_proper():
    rng = np.random.default_rng(0)
    truth = joint(rng, 3, 4, 2)
    tables = [
        noisy(("a", "b"), truth.sum(2), 50.0, rng),
        noisy(("b", "c"), truth.sum(0), 20.0, rng),
        noisy(("a", "b", "c"), truth, 30.0, rng),
    ]
    found = consistent(tables, N)
    assert all(m.values.min() >= 0 and m.values.sum() == pytest.approx(N) for m in found)
    b = [found[0].values.sum(0), found[1].values.sum(1), found[2].values.sum((0, 2))]
    assert np.abs(b[0] - b[1]).max() < 1
    assert np.abs(b[0] - b[2]).max() < 1


def test_agreeing_helps_the_noisier_table():
    gains = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        truth = joint(rng, 3, 3)
        tables = [noisy(("a", "b"), truth, 100.0, rng), noisy(("a",), truth.sum(1), 5.0, rng)]
        after = consistent(tables, N)[0].values
        gains.append(np.abs(tables[0].values - N * truth).sum() - np.abs(after - N * truth).sum())
    assert np.mean(gains) > 0


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
