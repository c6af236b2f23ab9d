"""Statistical tests here state their false-failure rate; seeds are fixed, so a pass stays a pass."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.privacy import discrete_gaussian as dg
from vertinumpyro.privacy.discrete_gaussian import require_drawable, sample_discrete_gaussian

FALSE_FAILURE = 1e-6


class BitsThen(RandomSource):
    """Yields the scripted further bits of a uniform and counts how often it is asked."""

    secure = False

    def __init__(self, *words):
        self.words = [word % 2**64 for word in words]
        self.asked = 0

    def random_bytes(self, num_bytes):
        assert num_bytes == 8
        self.asked += 1
        return self.words.pop(0).to_bytes(8, "big")

    def uint64(self, size):
        raise AssertionError("an exact decision must extend the same uniform, not draw a new one")

    def spawn(self, num_sources):
        raise NotImplementedError


def mass(variance, reach):
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support.astype(float) ** 2) / (2 * float(variance)))
    return support, weights / weights.sum()


def chi_square_p(draws, variance):
    reach = int(7 * math.sqrt(variance)) + 3
    support, probs = mass(variance, reach)
    expected = draws.size * probs
    observed = np.array([np.count_nonzero(draws == x) for x in support])
    common = expected >= 5
    rest = draws.size - observed[common].sum()
    expected_rest = max(draws.size - expected[common].sum(), 1e-9)
    statistic = ((observed - expected)[common] ** 2 / expected[common]).sum()
    if expected_rest >= 1:
        statistic += (rest - expected_rest) ** 2 / expected_rest
    return stats.chi2.sf(statistic, common.sum())


SMALL = [Fraction(1, 10), Fraction(2, 3), 1, 2, 9, 100, 2500]


@pytest.mark.parametrize("variance", SMALL, ids=str)
def test_small_variances_follow_the_law(variance, seeded):
    draws = sample_discrete_gaussian(variance, 200_000, seeded(1))
    assert chi_square_p(draws, variance) > FALSE_FAILURE


@pytest.mark.parametrize("scale", [Fraction(3, 2), Fraction(2, 3)], ids=str)
@pytest.mark.parametrize("variance", [Fraction(2, 3), 1, 9, 100], ids=str)
def test_the_same_test_rejects_a_planted_scale(variance, scale, seeded):
    draws = sample_discrete_gaussian(variance * scale**2, 200_000, seeded(1))
    assert chi_square_p(draws, variance) < FALSE_FAILURE


LARGE = [2**15 - 1, 2**15, 10**6, int(2.042 * 2**32), 2**55, (2**62 - 1) // 12]


def large_scale_p(draws, sigma):
    """The smaller p-value of a moment test of the variance and a Kolmogorov-Smirnov test of the shape."""
    z = (np.mean((draws / sigma) ** 2) - 1) / math.sqrt(2 / draws.size)
    return min(2 * stats.norm.sf(abs(z)), stats.kstest(draws / sigma, "norm").pvalue)


@pytest.mark.parametrize("sigma", LARGE)
def test_large_variances_follow_the_law(sigma, seeded):
    draws = sample_discrete_gaussian(sigma * sigma, 100_000, seeded(2))
    assert draws.dtype == np.int64
    assert large_scale_p(draws, sigma) > FALSE_FAILURE
    assert abs(np.mean(draws / sigma)) < 5 / math.sqrt(draws.size)  # 6e-7


@pytest.mark.parametrize("scale", [1.5, 2 / 3])
def test_the_large_scale_test_rejects_a_planted_scale(scale, seeded):
    sigma = 2**40
    draws = sample_discrete_gaussian(int(scale * sigma) ** 2, 100_000, seeded(2))
    assert large_scale_p(draws, sigma) < FALSE_FAILURE


@pytest.mark.parametrize("sigma", [10**6, 2**40, 2**55])
def test_low_bits_are_uniform(sigma, seeded):
    # At these scales neighbouring integers are equally likely to 1e-6, so x mod 256 is uniform.
    draws = sample_discrete_gaussian(sigma * sigma, 100_000, seeded(3))
    counts = np.bincount(draws & 255, minlength=256)
    assert stats.chisquare(counts).pvalue > FALSE_FAILURE


@pytest.mark.parametrize("variance", [1, 100, 2**100])
def test_symmetry(variance, seeded):
    draws = sample_discrete_gaussian(variance, 200_000, seeded(4))
    positive, negative = np.count_nonzero(draws > 0), np.count_nonzero(draws < 0)
    # 5 standard deviations of a fair coin: 6e-7
    assert abs(positive - negative) < 5 * math.sqrt(positive + negative)


def test_deterministic_under_a_seed_and_fresh_under_the_system(seeded):
    first, second = (sample_discrete_gaussian(10**12, 500, seeded(5)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    system = SystemRandomSource()
    draws = [sample_discrete_gaussian(10**12, 500, system) for _ in range(2)]
    assert np.any(draws[0] != draws[1])


@pytest.mark.parametrize("size", [0, 1, 7, 20_000])
def test_sizes(size, seeded):
    assert sample_discrete_gaussian(4, size, seeded(6)).shape == (size,)


@pytest.mark.parametrize("variance", [Fraction(1, 3), 5, 10**6, 2**64, 2**110])
def test_filter_agrees_with_the_exact_path(variance, seeded, monkeypatch):
    filtered = sample_discrete_gaussian(variance, 400, seeded(7))
    monkeypatch.setattr(dg, "_LOG_MARGIN", 1.0)  # everything is in doubt
    np.testing.assert_array_equal(filtered, sample_discrete_gaussian(variance, 400, seeded(7)))


def test_float_logarithm_is_within_its_derived_bound(seeded):
    words = np.concatenate([seeded(8).uint64(400), np.uint64(2**44) + seeded(9).uint64(50) % np.uint64(2**20)])
    scale = 2**15
    floats = np.log(words[words >= 2**44].astype(float) * 2.0**-64) * -float(scale)
    with mpmath.workprec(200):
        for word, value in zip(words[words >= 2**44].tolist(), floats, strict=True):
            for end in (word, word + 1):
                exact = -scale * mpmath.log(mpmath.mpf(end) / 2**64)
                assert abs(exact - value) < 2.0**-27


@pytest.mark.parametrize("sigma", [3, 2**20, 2**55, (2**62 - 1) // 12])
def test_float_acceptance_is_within_its_derived_bound(sigma, seeded):
    law = dg._Law.of(sigma * sigma)
    rng = np.random.Generator(np.random.Philox(10))
    highs = rng.integers(0, 14 * law.scale, 300)
    lows = rng.integers(0, 2**law.low_bits, 300)
    magnitudes = (highs << law.low_bits) | lows
    probs = _float_probability(law, magnitudes, lows)
    with mpmath.workprec(300):
        for x, low, prob in zip(magnitudes.tolist(), lows.tolist(), probs, strict=True):
            exponent = (x - law.variance / law.proposal_scale) ** 2 / (2 * law.variance)
            exponent += Fraction(low, law.proposal_scale)
            exact = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
            assert abs(exact - prob) < 2.0**-47


def _float_probability(law, magnitudes, lows):
    """The filter's own e^{-E}, read back from where its decision flips."""
    root = math.sqrt(law.variance)
    z = magnitudes * (1.0 / root) - root / law.proposal_scale
    return np.exp(z * z * -0.5 - (lows / law.proposal_scale if law.low_bits else 0.0))


def boundary_of_floor(value, scale):
    """The first 64 and the next 64 bits of e^{-value/scale}, where the floor steps."""
    with mpmath.workprec(400):
        scaled = int(mpmath.floor(mpmath.exp(-mpmath.mpf(value) / scale) * mpmath.mpf(2) ** 128))
    return scaled >> 64, scaled % 2**64


@pytest.mark.parametrize(("value", "scale"), [(1, 1), (3, 2), (17, 40), (123_456, 2**15), (400_000, 2**15)])
def test_geometric_on_the_boundary_extends_the_same_bits(value, scale):
    leading, following = boundary_of_floor(value, scale)
    for step, expected in ((0, value), (-1, value), (2, value - 1)):
        # e^{-value/scale} has `following` as its next word: W below it gives `value`, above it value - 1.
        source = BitsThen(following + step, 0)
        assert dg._floor_of_scaled_log(dg._Uniform(leading, 64, source), scale) == expected
        assert source.asked == (2 if step == 0 else 1)


def test_geometric_in_doubt_goes_to_the_exact_path():
    law = dg._Law.of(10**12)
    leading, _ = boundary_of_floor(5000, law.scale)
    words = np.array([leading, 2**63, 2**43, 0, 2**64 - 1], dtype=np.uint64)
    _, in_doubt = law._filter_geometric(words)
    assert in_doubt.tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("exponent", [Fraction(1, 7), Fraction(1), Fraction(27, 2), Fraction(35), Fraction(700)])
def test_bernoulli_on_the_boundary_extends_the_same_bits(exponent):
    with mpmath.workprec(3000):
        power = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        scaled = int(mpmath.floor(power * mpmath.mpf(2) ** (40 + 64 * 20)))
    words = [(scaled >> (64 * i)) % 2**64 for i in range(20)][::-1]
    head = scaled >> (64 * 20)
    last = max(i for i, word in enumerate(words) if word)
    for step, expected in ((-1, True), (1, False)):
        changed = list(words)
        changed[last] += step
        source = BitsThen(*changed)
        assert dg._is_below_exp(dg._Uniform(head, 40, source), exponent) is expected
        assert source.asked == last + 1


def test_acceptance_in_doubt_goes_to_the_exact_path():
    law = dg._Law.of(10**12)
    magnitudes, lows = np.array([3_000_000] * 3), np.array([5] * 3)
    magnitudes = (magnitudes >> law.low_bits << law.low_bits) | lows
    head = int(_float_probability(law, magnitudes, lows)[0] * 2.0**law.head_bits)
    heads = np.array([head - 5, head, head + 5])
    accepted, in_doubt = law._filter_acceptance(magnitudes, lows, heads)
    assert in_doubt.tolist() == [False, True, False]
    assert accepted.tolist() == [True, False, False]


def test_extreme_uniforms_are_decided():
    # W = 0.00…: two more words are needed; W = 1 - 2^-64·…: the floor is 0 once a zero bit comes.
    assert dg._floor_of_scaled_log(dg._Uniform(0, 64, BitsThen(0, 2**63)), 10) == int(10 * 129 * math.log(2))
    assert dg._floor_of_scaled_log(dg._Uniform(2**64 - 1, 64, BitsThen(2**64 - 1, 7)), 10) == 0
    assert not dg._is_below_exp(dg._Uniform(0, 20, BitsThen(0, 1)), Fraction(10**12))


@pytest.mark.parametrize("variance", [0, -1, 1.0, True, "4", Fraction(-1, 2), Fraction(1, 2**70)])
def test_bad_variance(variance):
    with pytest.raises(ArgumentError, match="variance"):
        sample_discrete_gaussian(variance, 1, SystemRandomSource())


def test_range():
    limit = Fraction(2**124, 144)
    require_drawable(limit)
    with pytest.raises(RangeError, match="grid_bits"):
        require_drawable(limit + 1)
    with pytest.raises(ArgumentError, match="size"):
        sample_discrete_gaussian(1, -1, SystemRandomSource())
