import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from scipy import stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy import accounting
from vertinumpyro.privacy.accounting import (
    GaussianEvent,
    NeighbouringRelation,
    PoissonEvent,
    PoissonKnownEvent,
    gaussian_delta,
)

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE
N, T, SIGMA, DELTA = 30162, 20000, 2.042, 1e-5
Q = 100 / N
COLLABORATIVE = SIGMA * math.sqrt(1 / 2)  # what one of two parties does not know


def adult(sigma=SIGMA, **more):
    return PoissonEvent(noise_multiplier=sigma, sampling_prob=Q, num_steps=T, **more)


def test_regression_values():
    assert adult().epsilon(DELTA, ADD_REMOVE) == pytest.approx(0.909, rel=0.01)
    assert adult().rdp_epsilon(DELTA) == pytest.approx(0.995, rel=0.01)
    assert adult().epsilon(DELTA, REPLACE) == pytest.approx(1.82, rel=0.01)
    disjoint = GaussianEvent(noise_multiplier=COLLABORATIVE, count=67)
    assert disjoint.epsilon(DELTA, REPLACE) == pytest.approx(111.8, rel=0.01)
    known = PoissonKnownEvent(noise_multiplier=COLLABORATIVE, sampling_prob=Q, num_steps=T)
    assert known.epsilon(DELTA, REPLACE) == pytest.approx(127.7, rel=0.01)


EVENTS = [
    GaussianEvent(noise_multiplier=1.5, count=7),
    PoissonKnownEvent(noise_multiplier=1.5, sampling_prob=0.1, num_steps=30),
    PoissonEvent(noise_multiplier=1.5, sampling_prob=0.1, num_steps=30),
    PoissonEvent(noise_multiplier=1.5, sampling_prob=0.1, num_steps=30, truncation_delta=1e-8),
]


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
@pytest.mark.parametrize("event", EVENTS)
def test_epsilon_and_delta_are_inverse(event, relation):
    for delta in (1e-2, 1e-6):
        epsilon = event.epsilon(delta, relation)
        assert event.delta(epsilon, relation) <= delta
        assert event.delta(epsilon * (1 - 1e-5), relation) > delta


@pytest.mark.parametrize("event", EVENTS)
def test_replace_costs_more_than_add_remove(event):
    assert event.delta(1.0, REPLACE) > event.delta(1.0, ADD_REMOVE)


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
def test_known_indices_against_integration_over_both_steps(relation):
    # T = 2, all four inclusion patterns, the hockey-stick divergence integrated on a plane of outputs.
    sigma, q, epsilon = 1.3, 0.3, 0.7
    shift = relation.sensitivity / sigma
    axis = np.linspace(-9, 9 + shift, 2401)
    cell = (axis[1] - axis[0]) ** 2
    plain, moved = stats.norm.pdf(axis), stats.norm.pdf(axis - shift)
    expected = 0.0
    for first in (0, 1):
        for second in (0, 1):
            weight = math.prod(q if b else 1 - q for b in (first, second))
            with_record = np.outer(moved if first else plain, moved if second else plain)
            without = np.outer(plain, plain)
            expected += weight * np.maximum(with_record - math.exp(epsilon) * without, 0).sum() * cell
    event = PoissonKnownEvent(noise_multiplier=sigma, sampling_prob=q, num_steps=2)
    assert event.delta(epsilon, relation) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("relation", list(NeighbouringRelation))
@pytest.mark.parametrize("epsilon", [0.05, 0.6])
def test_hidden_indices_against_integration_over_one_and_two_steps(relation, epsilon):
    sigma, q = 0.9, 0.2
    axis = np.linspace(-9, 9, 3001)
    cell = axis[1] - axis[0]
    plain = stats.norm.pdf(axis, scale=sigma)
    left, right = ((1 - q) * plain + q * stats.norm.pdf(axis, c, sigma) for c in (-1, 1))
    pairs = [(left, right)] if relation is REPLACE else [(right, plain), (plain, right)]
    for steps in (1, 2):
        exact = 0.0
        for p, r in pairs:
            joint_p, joint_r = (p, r) if steps == 1 else (np.outer(p, p), np.outer(r, r))
            hockey = np.maximum(joint_p - math.exp(epsilon) * joint_r, 0).sum() * cell**steps
            exact = max(exact, hockey)
        event = PoissonEvent(noise_multiplier=sigma, sampling_prob=q, num_steps=steps)
        value = event.delta(epsilon, relation)
        assert exact * (1 - 1e-4) <= value <= exact * (1 + 2e-3)  # the kink costs the sum some 1e-5


def test_the_replace_pair_is_the_worst_of_the_plane():
    # One record's vector u against v, both at most 1 long, in two dimensions: opposite directions win.
    sigma, q, epsilon = 0.9, 0.2, 0.1
    axis = np.linspace(-7, 7, 401)
    cell = (axis[1] - axis[0]) ** 2
    bump = {c: stats.norm.pdf(axis, c, sigma) for c in (0.0,)}

    def law(x, y):
        moved = np.outer(stats.norm.pdf(axis, x, sigma), stats.norm.pdf(axis, y, sigma))
        return (1 - q) * np.outer(bump[0.0], bump[0.0]) + q * moved

    start, found = law(1, 0), {}
    for radius in (0.0, 0.5, 1.0):
        for angle in np.linspace(0, math.pi, 7):
            other = law(radius * math.cos(angle), radius * math.sin(angle))
            found[radius, angle] = np.maximum(start - math.exp(epsilon) * other, 0).sum() * cell
    assert max(found, key=found.get) == (1.0, math.pi)
    event = PoissonEvent(noise_multiplier=sigma, sampling_prob=q, num_steps=1)
    assert max(found.values()) == pytest.approx(event.delta(epsilon, REPLACE), rel=2e-4)


@pytest.mark.parametrize(("steps", "mu"), [(1000, 1.0), (20000, 0.25)])
def test_fft_rounding_stays_within_its_allowance(steps, mu):
    # The same composition that PoissonEvent uses, where the answer is known: no sampling, T Gaussians.
    pld = pld_lib.from_gaussian_mechanism(math.sqrt(steps) / mu, value_discretization_interval=1e-4)
    composed = pld.self_compose(steps)
    for z in (0, 3, 5, 6, 7, 8):
        epsilon = mu * mu / 2 + z * mu
        exact = gaussian_delta(epsilon, np.array([mu]))[0]
        assert composed.get_delta_for_epsilon(epsilon) + steps * 2.0**-53 >= exact


def test_gaussian_delta_far_out():
    import mpmath

    with mpmath.workdps(60):
        for epsilon, mu in ((0.0, 1e-8), (111.8, 11.3), (1e4, 140.0), (3.0, 0.4), (800.0, 1.0)):
            tails = [mpmath.ncdf(s * mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu) for s in (1, -1)]
            exact = tails[0] - mpmath.exp(epsilon) * tails[1]
            value = gaussian_delta(epsilon, np.array([mu]))[0]
            assert value == pytest.approx(float(exact), rel=1e-6, abs=1e-300)
    assert gaussian_delta(1.0, np.array([0.0]))[0] == 0


def test_known_never_beats_hidden_and_never_loses_to_all_steps():
    known = PoissonKnownEvent(noise_multiplier=COLLABORATIVE, sampling_prob=Q, num_steps=T)
    everything = GaussianEvent(noise_multiplier=COLLABORATIVE, count=T)
    hidden = adult(COLLABORATIVE).epsilon(DELTA, REPLACE)
    assert hidden < known.epsilon(DELTA, REPLACE) < everything.epsilon(DELTA, REPLACE)


def test_truncation_term():
    tail = 1e-7
    plain, truncated = adult(), adult(truncation_delta=tail)
    for epsilon in (0.5, 2.0):
        term = truncated.delta(epsilon, REPLACE) - plain.delta(epsilon, REPLACE)
        assert term == pytest.approx((1 + math.exp(epsilon)) * tail, rel=1e-6)
    assert truncated.epsilon(DELTA, REPLACE) > plain.epsilon(DELTA, REPLACE)


def test_truncation_falls_back_on_known_indices_under_replace_only():
    hopeless = adult(truncation_delta=1e-3)
    known = PoissonKnownEvent(noise_multiplier=SIGMA, sampling_prob=Q, num_steps=T)
    assert hopeless.epsilon(DELTA, REPLACE) == pytest.approx(known.epsilon(DELTA, REPLACE), rel=1e-5)
    assert hopeless.epsilon(DELTA, ADD_REMOVE) == math.inf


def test_participations_lose_no_mass():
    for steps, prob in ((1, 0.5), (20000, Q), (10**6, 0.3), (50, 0.999)):
        counts, weights, above = accounting._participations(steps, prob)
        assert weights.sum() + above == pytest.approx(1, abs=1e-9)
        assert counts[-1] <= steps


def test_small_noise_and_no_privacy_needed():
    assert GaussianEvent(noise_multiplier=1e4, count=1).epsilon(0.5, REPLACE) == 0.0
    assert GaussianEvent(noise_multiplier=0.01, count=1).epsilon(1e-5, REPLACE) > 1e4


def test_dp_events():
    event = adult().dp_event()
    assert isinstance(event, dp_accounting.SelfComposedDpEvent)
    assert event.count == T
    assert event.event.sampling_probability == Q
    assert GaussianEvent(noise_multiplier=2.0, count=3).dp_event().event.noise_multiplier == 2.0
    known = PoissonKnownEvent(noise_multiplier=2.0, sampling_prob=0.1, num_steps=5)
    assert known.dp_event().count == 5


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: GaussianEvent(noise_multiplier=0.0, count=1), "noise_multiplier"),
        (lambda: GaussianEvent(noise_multiplier=1.0, count=0), "count"),
        (lambda: PoissonKnownEvent(noise_multiplier=1.0, sampling_prob=1.0, num_steps=1), "sampling_prob"),
        (lambda: PoissonEvent(noise_multiplier=math.inf, sampling_prob=0.5, num_steps=1), "noise_multiplier"),
        (lambda: adult(truncation_delta=-1.0), "truncation_delta"),
        (lambda: adult().epsilon(0.0, REPLACE), "delta"),
    ],
)
def test_bad_arguments(build, name):
    with pytest.raises(ArgumentError, match=name):
        build()
