"""The least noise that keeps a Gaussian budget: against exact arithmetic, over all that a plan can ask for."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy import Adversary, NeighbouringRelation, NoiseSource, NoisySum, PoissonSampling
from vertinumpyro.privacy.adversary import gaussian_parameter, smallest_share_variance

ALONE = NoiseSource(kind="trusted", num_parties=1)


@st.composite
def noise_sources(draw):
    num_parties = draw(st.integers(1, 10_000))
    if draw(st.booleans()):
        return NoiseSource(kind="trusted", num_parties=num_parties)
    threshold = draw(st.integers(0, num_parties - 1))
    return NoiseSource(num_parties=num_parties, collusion_threshold=threshold)


MU = st.floats(1e-6, 1e6)
SQUARED = st.one_of(st.integers(1, 10**6), st.floats(1e-6, 1e6), st.fractions(Fraction(1, 1000), 1000))


@given(MU, SQUARED, st.integers(0, 40), noise_sources())
@example(30.0, 1, 12, ALONE)
@example(1e-3, 2, 12, ALONE)
def test_no_coalition_of_the_threshold_exceeds_the_budget_and_less_noise_would(mu, squared, grid_bits, noise):
    found = smallest_share_variance(mu=mu, squared_sensitivity=squared, grid_bits=grid_bits, noise=noise)

    def parameter(share_variance):
        return gaussian_parameter(
            share_variance=share_variance, num_unknown=noise.num_covering, squared_sensitivity=squared,
            grid_bits=grid_bits,
        )  # fmt: skip

    assert parameter(found) <= mu
    if found > 18:
        one_less = Fraction(squared) * 4**grid_bits / ((found - 1) * noise.num_covering - 9)
        assert one_less > Fraction(mu) ** 2
        assert parameter(found - 1) > mu


@given(st.integers(18, 2**60), st.integers(1, 1000), SQUARED, st.integers(0, 40))
def test_the_parameter_is_the_formula_rounded_up_by_less_than_one_step(variance, unknown, squared, grid_bits):
    found = gaussian_parameter(
        share_variance=variance, num_unknown=unknown, squared_sensitivity=squared, grid_bits=grid_bits
    )
    square = Fraction(squared) * 4**grid_bits / (variance * unknown - 9)
    assert Fraction(math.nextafter(found, 0.0)) ** 2 < square <= Fraction(found) ** 2
    with mpmath.workdps(60):
        exact = mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)
        assert abs(found / exact - 1) < 2**-51


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_it_is_what_the_accounting_of_a_noisy_sum_says(relation, colluders):
    """μ = s/σ_eff of the same shares, which `NoisySum` rounds on its own."""
    noise = NoiseSource(num_parties=3, collusion_threshold=1)
    made = NoisySum(
        sampling=PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=10), num_records=10, clip_norm=1.5,
        noise_multiplier=2.0, grid_bits=8, noise=noise,
    )  # fmt: skip
    found = gaussian_parameter(
        share_variance=made.share_variance, num_unknown=noise.num_unknown(colluders),
        squared_sensitivity=Fraction(relation.sensitivity * 1.5) ** 2, grid_bits=8,
    )  # fmt: skip
    event = made.event(Adversary(name="a", colluders=colluders))
    assert found == pytest.approx(relation.sensitivity / event.noise_multiplier, rel=1e-12)


def test_what_cannot_change_costs_nothing():
    assert gaussian_parameter(share_variance=18, num_unknown=1, squared_sensitivity=0, grid_bits=12) == 0.0


@pytest.mark.parametrize("name", ["mu", "squared_sensitivity"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_budgets_are_refused_by_name(name, value):
    with pytest.raises(ArgumentError, match=name):
        smallest_share_variance(**{"mu": 1.0, "squared_sensitivity": 1.0, name: value}, grid_bits=12, noise=ALONE)


def test_shares_outside_the_proof_are_refused():
    with pytest.raises(ArgumentError, match="share_variance must be at least 18"):
        gaussian_parameter(share_variance=17, num_unknown=1, squared_sensitivity=1, grid_bits=12)
    with pytest.raises(ArgumentError, match="num_unknown"):
        gaussian_parameter(share_variance=18, num_unknown=0, squared_sensitivity=1, grid_bits=12)
