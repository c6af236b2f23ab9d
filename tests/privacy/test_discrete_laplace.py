"""The shares' law, against the exact probabilities, and each exact decision against a float's."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.privacy import discrete_laplace
from vertinumpyro.privacy.discrete_laplace import sample_laplace_shares

ALPHA = 1e-6  # false failures of each goodness-of-fit test; the seed is fixed, so a pass stays a pass
pytestmark = pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")


def laplace_pmf(scale, x):
    ratio = np.exp(-1 / scale)
    return (1 - ratio) / (1 + ratio) * ratio ** np.abs(x)


def p_value(draws, pmf, reach):
    """Chi-square of counts at -reach..reach and the two tails."""
    x = np.arange(-reach, reach + 1)
    counts = np.array([(draws < -reach).sum(), *((draws == k).sum() for k in x), (draws > reach).sum()])
    inside = pmf(x)
    tail = (1 - inside.sum()) / 2
    expected = len(draws) * np.r_[tail, inside, tail]
    return stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [1, Fraction(7, 3), 6])
def test_shares_sum_to_the_discrete_laplace_law(parts, scale):
    source = InsecureSeededSource(100 * parts + int(scale))
    draws = sum(sample_laplace_shares(scale, parts, 200_000, source) for _ in range(parts))
    reach = int(4 * scale)
    assert p_value(draws, lambda x: laplace_pmf(float(scale), x), reach) > ALPHA
    for planted in (1.5, 1 / 1.5):
        assert p_value(draws, lambda x, s=planted: laplace_pmf(float(scale) * s, x), reach) < ALPHA


def test_a_missing_share_is_noticed():
    source = InsecureSeededSource(5)
    draws = sum(sample_laplace_shares(4, 3, 200_000, source) for _ in range(2))
    assert p_value(draws, lambda x: laplace_pmf(4.0, x), 16) < ALPHA


def test_a_large_scale_has_the_laplace_quantiles():
    source = InsecureSeededSource(3)
    draws = sum(sample_laplace_shares(10**7, 2, 50_000, source) for _ in range(2))
    assert stats.kstest(draws / 1e7, stats.laplace.cdf).pvalue > ALPHA
    assert stats.kstest(draws / 1.5e7, stats.laplace.cdf).pvalue < ALPHA


def test_exact_decisions_agree_with_floats_where_those_are_sure():
    source, rng = InsecureSeededSource(1), np.random.default_rng(0)
    for _ in range(300):
        block = int(rng.integers(0, 30))
        point = 2**block + int(rng.integers(0, 2**block))
        scale = Fraction(int(rng.integers(1, 10**6)), 3)
        word = int(rng.integers(0, 2**63)) * 2
        sure = word * 2.0**-64 < 2.0**block / point * np.exp(-point / float(scale))
        assert discrete_laplace._decide(word, point, block, scale, source) == sure


def test_poisson_inversion_agrees_with_its_table():
    words = InsecureSeededSource(2).uint64(500)
    for parts in (1, 4):
        steps = discrete_laplace._poisson_steps(parts)
        exact = [discrete_laplace._invert_poisson(parts, int(w), InsecureSeededSource(0)) for w in words]
        assert exact == np.searchsorted(steps, words, side="right").tolist()
        assert np.allclose(steps[:5] / 2.0**64, stats.poisson.cdf(np.arange(5), 1 / parts))


def test_a_word_on_a_step_is_decided_by_further_bits():
    step = int(discrete_laplace._poisson_steps(2)[0])
    found = {discrete_laplace._invert_poisson(2, step, InsecureSeededSource(seed)) for seed in range(40)}
    assert found == {0, 1}


@pytest.mark.parametrize("scale", [0.5, 1.5, 0, True, Fraction(1, 2)])
def test_bad_scales_are_refused(scale):
    with pytest.raises(ArgumentError, match="scale"):
        sample_laplace_shares(scale, 1, 1, InsecureSeededSource(0))


def test_bad_counts_and_huge_scales_are_refused():
    with pytest.raises(ArgumentError, match="parts"):
        sample_laplace_shares(2, 0, 1, InsecureSeededSource(0))
    with pytest.raises(RangeError, match="feature_bits"):
        sample_laplace_shares(2**50, 1, 1, InsecureSeededSource(0))
