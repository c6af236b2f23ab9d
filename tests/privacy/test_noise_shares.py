"""Table sampler of noise shares. Statistical tests state their false-failure rate; their seeds are fixed."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.privacy.test_discrete_gaussian import FALSE_FAILURE, BitsThen, chi_square_p, large_scale_p
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.privacy import noise_shares as ns
from vertinumpyro.privacy.noise_shares import ShareLaw, Table, draw_noise_share, split_variance


@pytest.mark.parametrize("variance", [18, 100, 2500, 4096])
def test_small_variances_follow_the_law(variance, seeded):
    assert chi_square_p(draw_noise_share(variance, 200_000, seeded(1)), variance) > FALSE_FAILURE


@pytest.mark.parametrize("scale", [Fraction(3, 2), Fraction(2, 3)], ids=str)
def test_the_same_test_rejects_a_planted_scale(scale, seeded):
    draws = draw_noise_share(int(2500 * scale**2), 200_000, seeded(1))
    assert chi_square_p(draws, 2500) < FALSE_FAILURE


@pytest.mark.parametrize("variance", [4097, 5000, 10**4])
def test_one_split_follows_the_law(variance, seeded):
    assert len(ShareLaw.of(variance).tables) == 2
    assert chi_square_p(draw_noise_share(variance, 200_000, seeded(2)), variance) > FALSE_FAILURE


@pytest.mark.parametrize("sigma", [10**3, 2**20, 2**40, 2**55])
def test_large_variances_follow_the_law(sigma, seeded):
    draws = draw_noise_share(sigma * sigma, 100_000, seeded(3))
    assert draws.dtype == np.int64
    assert large_scale_p(draws, sigma) > FALSE_FAILURE


@pytest.mark.parametrize("sigma", [10**5, 2**40])
def test_low_bits_are_uniform(sigma, seeded):
    counts = np.bincount(draw_noise_share(sigma * sigma, 100_000, seeded(4)) & 255, minlength=256)
    assert stats.chisquare(counts).pvalue > FALSE_FAILURE


@settings(max_examples=300, deadline=None)
@given(st.integers(18, 2**118))
def test_splits_add_up_and_stay_smooth(variance):
    parts = split_variance(variance)
    assert sum(part * scale**2 for part, scale in parts) == variance
    assert all(18 <= part <= 4300 for part, _ in parts)
    # r² >= 9 at every split of V_1 from k² W, all in units of the coarser scale
    for (part, scale), (_, coarser) in itertools.pairwise(parts):
        rest = Fraction(sum(p * s**2 for p, s in parts if s >= coarser), coarser**2)
        stride = coarser // scale
        assert Fraction(part) * rest / (part + stride**2 * rest) >= 9


@pytest.mark.parametrize("variance", [18, 300, 4241])
def test_steps_are_the_distribution_function(variance):
    table = Table.of(variance)
    with mpmath.workprec(300):
        reach = 20 * math.isqrt(variance) + 20
        weights = [mpmath.exp(-mpmath.mpf(x * x) / (2 * variance)) for x in range(-reach, reach + 1)]
        total = mpmath.fsum(weights)
        cumulative, running = {}, mpmath.mpf(0)
        for x, weight in zip(range(-reach, reach + 1), weights, strict=True):
            running += weight
            cumulative[x] = int(mpmath.floor(running / total * 2**64))
    expected = [min(cumulative[x], 2**64 - 1) for x in range(-table.reach, table.reach + 1)]
    assert table.steps.tolist() == expected


def test_two_bytes_decide_only_where_no_step_lies():
    table = Table.of(300)
    for cell in range(0, 2**16, 37):
        inside = [step for step in table.steps.tolist() if step >> 48 == cell]
        value = int(table.by_two_bytes[cell])
        if inside:
            assert value == -(2**15)
        else:
            assert value == sum(step < cell << 48 for step in table.steps.tolist()) - table.reach


@pytest.mark.parametrize("index", [140, 200, 300, 341, 400])
def test_a_uniform_on_a_step_is_extended_not_redrawn(index):
    variance = 300
    table = Table.of(variance)
    word = int(table.steps[index])
    low, high = ns.cumulative(variance, table.reach, 60)[index]
    following = math.floor((low + high) / 2 * 2**128) - (word << 64)
    for step, expected in ((-1, index - table.reach), (2, index - table.reach + 1)):
        source = BitsThen(following + step, 0, 0)
        assert ns.invert_exactly(variance, word, source) == expected
        assert source.asked == 1


class Tied(BitsThen):
    """Two leading bytes and six further ones that hit a step exactly, then the bits after it."""

    def __init__(self, word, following):
        super().__init__(following)
        self.word = word

    def random_bytes(self, num_bytes):
        if num_bytes == 2:
            return (self.word >> 48).to_bytes(2, "little")
        return super().random_bytes(num_bytes)

    def uint64(self, size):
        return np.array([(self.word & (2**48 - 1)) << 16], np.uint64)


@pytest.mark.parametrize(("following", "shift"), [(0, 0), (2**64 - 1, 1)])
def test_ties_of_all_eight_bytes_go_to_the_exact_path(following, shift):
    table = Table.of(300)
    index = table.reach
    value = table.draw(1, Tied(int(table.steps[index]), following))[0]
    assert value == index - table.reach + shift


def test_bad_arguments():
    for variance in (17, 0, -1, 20.0, True, Fraction(40, 2)):
        with pytest.raises(ArgumentError, match="variance"):
            draw_noise_share(variance, 1, SystemRandomSource())
    with pytest.raises(ArgumentError, match="size"):
        draw_noise_share(18, -1, SystemRandomSource())
    with pytest.raises(RangeError):
        draw_noise_share(2**120, 1, SystemRandomSource())
    assert draw_noise_share(18, 0, SystemRandomSource()).shape == (0,)
