"""Theorem 1 of the DCA paper: who adds how much, and what is left when clients collude or drop out."""

import math

import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.privacy import ClientPlan, GaussianEvent, NeighbouringRelation, PoissonSampling

ONE_SUM = PoissonSampling(sampling_prob=1.0, num_steps=1, max_batch_size=1000)


def plan(**changes):
    settings = {
        "sampling": ONE_SUM,
        "clip_norm": 1.0,
        "noise_multiplier": 3.0,
        "num_clients": 1000,
        "max_unreliable": 10,
        "grid_bits": 16,
        "num_records": 1000,
        "delta": 1e-5,
    }
    return ClientPlan(**{**settings, **changes})


@pytest.mark.parametrize("unreliable", [0, 1, 10, 998])
def test_noise_left_without_t_clients_and_ones_own_is_what_was_promised(unreliable):
    made = plan(max_unreliable=unreliable)
    left = made.noise_variance_per_share() * (made.num_clients - unreliable - 1)
    promised = 9 * 4**16  # sigma² C² on the grid
    assert promised <= left < promised * (1 + 1e-6)


def test_rows_say_who_gets_what():
    outside, client, nodes = plan().adversaries
    assert outside.noise_multiplier == pytest.approx(3 * math.sqrt(990 / 989))
    assert client.noise_multiplier == nodes.noise_multiplier == pytest.approx(3.0, rel=1e-6)
    exact = GaussianEvent(noise_multiplier=3.0, count=1).epsilon(1e-5, NeighbouringRelation.REPLACE)
    assert client.epsilon == pytest.approx(exact, rel=1e-4)
    assert outside.epsilon < client.epsilon
    assert {row.guarantee for row in plan().adversaries} == {"DP"}


def test_whoever_sees_participation_gets_no_amplification():
    sampling = PoissonSampling.for_batch_size(50, 1000, 100)
    known = plan(sampling=sampling).adversaries
    hidden = plan(sampling=sampling, participation="hidden").adversaries
    assert known[2].epsilon > 2 * known[1].epsilon
    assert hidden[2].epsilon == hidden[1].epsilon


@pytest.mark.parametrize("adversary", ["outside analyst", None])
def test_calibration_meets_the_target_and_wastes_little(adversary):
    settings = {name: value for name, value in vars(plan()).items() if name in plan().to_dict()}
    for name in ("noise_multiplier", "plan_id", "adversary"):
        settings.pop(name)
    made = ClientPlan.calibrated(epsilon=1.0, adversary=adversary, **settings)
    assert 0.999 < made.epsilon(adversary) <= 1
    assert bool(made.above) == (adversary is not None)


def test_simulated_shares_have_the_planned_variance():
    made = plan()
    shares = made.draw_noise_shares(50, SystemRandomSource())
    assert shares.shape == (1000, 50)
    # chi-square with 50,000 degrees of freedom: 6 standard deviations, 2e-9
    ratio = (shares.astype(float) ** 2).mean() / made.noise_variance_per_share()
    assert abs(ratio - 1) < 6 * math.sqrt(2 / 50_000)
    assert made.draw_noise_share(3, 2, SystemRandomSource()).shape == (2, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_unreliable": 999},
        {"max_unreliable": -1},
        {"num_clients": 1},
        {"delta": 0.0},
        {"relation": "replace"},
        {"participation": "perhaps"},
        {"noise_multiplier": 0.0},
    ],
    ids=str,
)
def test_bad_settings(changes):
    with pytest.raises(ArgumentError):
        plan(**changes)
