import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.mrf.measurements import GRID_BITS, TableRelease, count_table
from vertinumpyro.privacy import NeighbouringRelation, NoiseSource

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE


def release(**changes):
    return TableRelease(**{"num_tables": 6, "mu": 0.5, **changes})


def test_one_record_moves_k_tables_by_at_most_what_the_accounting_says():
    """Brute force over all pairs of records of four columns, and the six pair tables of them."""
    sizes = (2, 3, 2, 2)
    pairs = list(itertools.combinations(range(4), 2))

    def tables(record):
        parts = [count_table([np.array([record[i]]) for i in pair], [sizes[i] for i in pair]).ravel() for pair in pairs]
        return np.concatenate(parts)

    records = [tables(r) for r in itertools.product(*map(range, sizes))]
    moved = max(np.linalg.norm(a - b) for a, b in itertools.product(records, records))
    there = max(np.linalg.norm(a) for a in records)
    for relation, worst in ((REPLACE, moved), (ADD_REMOVE, there)):
        made = release(relation=relation)
        assert worst / made.stddev == pytest.approx(made.mu, rel=1e-5)
        assert worst / made.stddev <= made.mu


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("mu", [1e-3, 0.5, 30.0, 1000.0])
def test_the_budget_holds_without_tolerance(mu, relation):
    """At mu = 30 the nine grid units that the proof keeps back are 1e-4 of the noise."""

    @settings(max_examples=100, deadline=None)
    @given(st.integers(1, 500), st.integers(1, 60), st.data())
    def check(num_tables, num_parties, data):
        threshold = data.draw(st.integers(0, num_parties - 1))
        noise = NoiseSource(num_parties=num_parties, collusion_threshold=threshold)
        made = release(mu=mu, num_tables=num_tables, noise=noise, relation=relation)
        assert all(made.mu_against(colluders) <= mu for colluders in range(threshold + 1))

    check()


def test_knowing_shares_of_the_noise_and_fixed_tables():
    made = release(noise=NoiseSource(num_parties=3))
    assert made.mu_against(0) <= made.mu
    assert made.mu_against(1) == pytest.approx(0.5 * math.sqrt(3 / 2), rel=1e-5)
    assert made.mu_against(2, num_tables=3) == pytest.approx(0.5 * math.sqrt(3 / 2), rel=1e-5)
    robust = release(noise=NoiseSource(num_parties=3, collusion_threshold=1))
    assert robust.mu_against(1) <= 0.5 < robust.mu_against(1) * (1 + 1e-5)


@pytest.mark.parametrize("scale", [1.0, 2 / 3, 3 / 2])
def test_noise_has_the_accounted_variance(scale):
    """Chi-square over 20,000 cells, false failure 1e-6; it must reject a wrong scale."""
    made = release()
    table = np.arange(20_000).reshape(100, 200)
    (found,) = made.noisy([(("a", "b"), table)], SystemRandomSource())
    statistic = np.sum(((found.values - table) / (made.stddev * scale)) ** 2)
    inside = stats.chi2.ppf(5e-7, 20_000) < statistic < stats.chi2.isf(5e-7, 20_000)
    assert inside == (scale == 1.0)


def test_every_share_is_drawn_on_its_own():
    made = release(noise=NoiseSource(num_parties=2))
    shares = made.draw_shares(5000, SystemRandomSource())
    assert shares.shape == (2, 5000)
    ratio = shares.astype(float).var(axis=1) / made.share_variance
    assert np.all(np.abs(ratio - 1) < 6 * math.sqrt(2 / 5000))
    assert abs(np.corrcoef(shares)[0, 1]) < 6 / math.sqrt(5000)
    assert made.stddev == pytest.approx(math.sqrt(2 * made.share_variance) / 2**GRID_BITS)


def test_a_release_pays_for_so_many_tables():
    with pytest.raises(ArgumentError, match="pays for 1"):
        release(num_tables=1).noisy([(("a",), np.zeros(2, np.int64))] * 2, SystemRandomSource())
    with pytest.raises(ArgumentError, match="several parties"):
        release(noise=NoiseSource(num_parties=2)).noisy([(("a",), np.zeros(2, np.int64))], SystemRandomSource())


@pytest.mark.parametrize("changes", [{"num_tables": 0}, {"mu": 0.0}, {"mu": math.inf}])
def test_bad_settings(changes):
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        release(**changes)
