"""Residuals in every arithmetic, far out and close to the ends: their bounds are exact, their errors as stated."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr

from tests.secure.problems import largest_own, looks_uniform
from tests.secure.test_spu import needs_spu, on_shares
from tests.secure.thread_group import ThreadGroup
from vertinumpyro.core import compat, ring
from vertinumpyro.secure import (
    BernoulliLogitLink,
    BernoulliProbitLink,
    Crypten,
    NegativeBinomialLink,
    NormalLink,
    OrderedLogitLink,
    OwnFactorLink,
    PoissonLink,
)
from vertinumpyro.secure.crypten import number_formats, sigmoid
from vertinumpyro.secure.crypten.number_formats import EXP_BITS, EXP_ERROR, LOG_BITS
from vertinumpyro.secure.fixed_point import RingArithmetic
from vertinumpyro.secure.plaintext import FloatArithmetic
from vertinumpyro.secure.score_contract import MOST_MILLS
from vertinumpyro.secure.spu.program import SpuArithmetic

LINKS = [BernoulliLogitLink(), OrderedLogitLink(), NormalLink(width=3.0), PoissonLink(most=7.0)]
DISPERSED = NegativeBinomialLink(most=3.0, concentration=7.0)  # its sigmoid is multiplied by its own number
OWN = OwnFactorLink()  # nothing is computed for it, so it takes no round
PROBIT = BernoulliProbitLink()
needs_crypten = pytest.mark.skipif(Crypten().missing() is not None, reason="CrypTen is not installed")
ONE = 1 << EXP_BITS


def numbers(link, num_records=4000):
    """Sums near 0, near every threshold and as far out as three contributions go, and own numbers, as they encode."""
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 14, 16, 24, 32, 64, 1024, 3072])[:, None] + np.array([-(2.0**-LOG_BITS), 0, 2.0**-LOG_BITS])
    fixed = np.concatenate([edges.ravel(), -edges.ravel()])
    sums = rng.normal(0, 4, (num_records, link.num_sums))
    sums[: len(fixed)] = fixed[:, None]
    sums = np.clip(np.rint(sums * 2**LOG_BITS), -3072 << LOG_BITS, 3072 << LOG_BITS)
    own = rng.integers(2, size=(num_records, link.own_inputs)) * np.rint(largest_own(link, 1)[0] * 2**EXP_BITS)
    return np.concatenate([sums, own], axis=1).astype(np.int64)


def exact(link, encoded):
    scale = np.array([2.0**-LOG_BITS] * link.num_sums + [2.0**-EXP_BITS] * link.own_inputs)
    with compat.x64():
        return np.asarray(link.weights(FloatArithmetic(), jnp.asarray(encoded * scale)))


def test_the_series_is_a_sigmoid_within_its_proved_error_whatever_the_mask():
    rng = np.random.default_rng(1)
    ends = np.array([-sigmoid.REACH, 0, sigmoid.REACH - 2.0**-LOG_BITS])
    z = np.concatenate([np.linspace(-sigmoid.REACH, sigmoid.REACH, 20_001), ends])
    encoded = np.clip(np.rint(z * 2**LOG_BITS), -sigmoid.REACH << LOG_BITS, sigmoid.REACH << LOG_BITS).astype(np.int64)
    mask = rng.integers(-(2**63), 2**63 - 1, encoded.shape, dtype=np.int64)
    products = sigmoid._factors((encoded + mask) & (2**40 - 1), *sigmoid._sigmoids_waves()) * number_formats.waves_of(
        mask
    )
    found = 0.5 + products.sum(axis=(-2, -1)) * 2.0 ** -(number_formats.FACTOR_BITS + number_formats.WAVE_BITS)
    assert np.abs(found - 1 / (1 + np.exp(-encoded * 2.0**-LOG_BITS))).max() <= sigmoid.WAVES_ERROR
    assert found.min() > 2e-7
    assert found.max() < 1 - 2e-7


def slope(t):
    """phi / Phi over its value at -6."""
    inverse = np.exp(t**2 / 2 + log_ndtr(t)) * np.sqrt(2 * np.pi)
    return 1 / inverse / MOST_MILLS


def test_the_probits_waves_are_its_slope_on_a_grid_that_leaves_no_room():
    step = 2.0**-14
    t = np.arange(-6, 6 + step, step)
    encoded = np.rint(t * 2**LOG_BITS).astype(np.int64)
    sines, cosines = np.array(number_formats.MILLS_SINES), np.array(number_formats.MILLS_COSINES)
    rates = 2 * np.pi / 64 * number_formats.frequencies()
    exact_series = np.sin(np.outer(t, rates)) @ sines + np.cos(np.outer(t, rates)) @ cosines
    between = (
        step**2 / 8 * (np.abs(sines) + np.abs(cosines)) @ rates**2 * 2.0**-number_formats.FACTOR_BITS + step**2 / 8
    )
    assert np.abs(exact_series * 2.0**-number_formats.FACTOR_BITS - slope(t)).max() + between <= 1.8e-8
    mask = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, encoded.shape, dtype=np.int64)
    products = sigmoid._factors((encoded + mask) & (2**40 - 1), sines, cosines) * number_formats.waves_of(mask)
    found = products.sum(axis=(-2, -1)) * 2.0 ** -(number_formats.FACTOR_BITS + number_formats.WAVE_BITS)
    assert np.abs(found - slope(t)).max() <= 1.4e-7


@needs_crypten
@pytest.mark.parametrize("num_parties", [1, 2])
def test_the_probits_slope_on_shares_takes_four_rounds(num_parties):
    import torch

    group, encoded = ThreadGroup(num_parties), numbers(PROBIT)[:, :1]
    shares = group.run(lambda party, share: sigmoid.mills_ratio(party, torch.from_numpy(share)).numpy(), encoded)
    assert group.rounds == 4
    assert looks_uniform(group.seen)
    assert -1 <= sum(shares).min() <= sum(shares).max() <= ONE + 1
    found = sum(shares) * 2.0**-EXP_BITS
    assert np.abs(found - slope(np.clip(encoded * 2.0**-LOG_BITS, -6, 6))).max() <= EXP_ERROR


def test_the_probits_sum_in_integers_is_its_slope_on_a_fine_grid():
    t = np.arange(-6, 6 + 2.0**-13, 2.0**-13)
    z = np.stack([np.rint(t * 2**24), np.full_like(t, 1 << ring.EXP_FRACTIONAL_BITS)], axis=-1).astype(np.int64)
    with compat.x64():
        found = np.asarray(PROBIT.weights(RingArithmetic(), jnp.asarray(z)))[:, 0]
    assert np.abs(found - slope(t) * 2.0**ring.EXP_FRACTIONAL_BITS).max() <= ring.EXP_MAX_ERROR_ULP


def test_sines_are_those_of_their_angles():
    angle = np.random.default_rng(2).integers(2**40, size=20_000)
    turns = (angle % 2**number_formats.PERIOD_BITS) * 2.0**-number_formats.PERIOD_BITS * 2 * np.pi
    for found, expected in zip(sigmoid.sines(angle), (np.sin(turns), np.cos(turns)), strict=True):
        assert np.abs(found - expected * 2**number_formats.SINE_BITS).max() <= 2.3


@needs_crypten
@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
@pytest.mark.parametrize("num_parties", [1, 2, 3])
def test_a_residual_on_shares_takes_four_rounds_and_keeps_its_bounds(link, num_parties):
    import torch

    group, encoded = ThreadGroup(num_parties), numbers(link)

    def weights(party, share):
        from vertinumpyro.secure.crypten.protocol import ShareArithmetic

        return link.weights(ShareArithmetic(party), torch.from_numpy(share)).numpy()

    sums, own = encoded[:, : link.num_sums], encoded[:, link.num_sums :]
    held = [own if rank == 0 else np.zeros_like(own) for rank in range(num_parties)]  # one party's number is its share
    e = sum(group.run(lambda party, share: weights(party, np.hstack([share, held[party.rank]])), sums))
    assert group.rounds == 4
    assert looks_uniform(group.seen)
    assert np.abs(e).max() <= ONE + (link.name == "poisson")  # an exponential may be a unit more than 1
    error = np.abs(e * 2.0**-EXP_BITS - exact(link, encoded)).max()
    assert error <= link.error_factor * EXP_ERROR


@needs_spu
@pytest.mark.parametrize("link", [*LINKS, DISPERSED, OWN, PROBIT], ids=lambda link: link.name)
def test_a_residual_on_spus_shares_keeps_its_bounds(link):
    encoded = numbers(link, 300)
    e = on_shares(functools.partial(link.weights, SpuArithmetic()), encoded)
    assert np.abs(e).max() <= ONE
    assert np.abs(e * 2.0**-EXP_BITS - exact(link, encoded)).max() <= link.error_factor * 4e-6


@pytest.mark.parametrize("link", [*LINKS, DISPERSED, OWN, PROBIT], ids=lambda link: link.name)
def test_contributions_that_are_no_numbers_are_bounded(link):
    hostile = np.array([np.nan, np.inf, -np.inf, 1e300, -1e300, 0.3])
    width = link.num_sums + link.own_inputs
    contribution = np.stack(np.meshgrid(*[hostile] * width), axis=-1).reshape(-1, width)
    with compat.x64():
        found = np.asarray(link.bounded(jnp.asarray(contribution)))
    assert np.isfinite(found).all()
    assert np.abs(found[:, : link.num_sums]).max() <= 1024
    assert np.abs(found[:, link.num_sums :]).max(initial=0) <= 1
