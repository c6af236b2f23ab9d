"""The accountant of sketches against brute force on cases small enough to enumerate."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.mrf.encoders.base import gaussian_pld
from vertinumpyro.mrf.encoders.sketch import SketchDesign, dominating_pairs, joint_law, privacy_profile, sketch_pld
from vertinumpyro.privacy import GaussianEvent, NeighbouringRelation

TINY = SketchDesign(num_keys=2, phantoms=3, lower=1, upper=3)
EPSILONS = np.array([0.0, 0.1, 0.3, 0.7, 1.2, 2.0])
REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE


def hash_law(design):
    """P(clamped hash), from the definition."""
    levels = range(design.lower, design.upper + 1)
    cdf = [*(1 - 2.0**-s for s in levels[:-1]), 1.0]
    return dict(zip(levels, np.diff([0.0, *cdf]), strict=True))


def server_view(design, values, num_cells):
    """The law of one key's sketches of two columns, by enumerating every record's and every phantom's hash."""
    law, one = {}, hash_law(design)
    base = {design.lower: 1.0}
    for _ in range(design.phantoms):
        base = merged_max(base, one)
    cells = [(side, value) for side in (0, 1) for value in range(num_cells)]
    for hashes in itertools.product(one, repeat=len(values)):
        weight = math.prod(one[h] for h in hashes)
        least = {
            (side, value): max([h for h, v in zip(hashes, values, strict=True) if v[side] == value], default=0)
            for side, value in cells
        }
        for levels in itertools.product(base, repeat=len(cells)):
            seen = tuple(max(level, least[cell]) for level, cell in zip(levels, cells, strict=True))
            law[seen] = law.get(seen, 0.0) + weight * math.prod(base[level] for level in levels)
    return law


def merged_max(first, second):
    out = {}
    for (a, p), (b, q) in itertools.product(first.items(), second.items()):
        out[max(a, b)] = out.get(max(a, b), 0.0) + p * q
    return out


def composed(law, times):
    out = {(): 1.0}
    for _ in range(times):
        out = {(*seen, more): p * q for seen, p in out.items() for more, q in law.items()}
    return out


def exact_delta(first, second, epsilon):
    return sum(max(p - math.exp(epsilon) * second.get(seen, 0.0), 0.0) for seen, p in first.items())


def test_the_joint_law_is_that_of_the_enumeration():
    with_it, without = joint_law(TINY)
    law = server_view(TINY, [(0, 0)], 1)
    alone = server_view(TINY, [], 1)
    for (s, t), prob in law.items():
        assert with_it[s - 1, t - 1] == pytest.approx(prob, rel=1e-12)
        assert without[s - 1, t - 1] == pytest.approx(alone[s, t], rel=1e-12)


@pytest.mark.parametrize("others", [[], [(0, 1)], [(0, 0), (1, 0)]], ids=["alone", "one more", "two more"])
@pytest.mark.parametrize(("old", "new"), [((0, 0), (1, 1)), ((0, 0), (0, 1)), ((1, 0), (0, 0))])
def test_no_replacement_passes_the_bound_on_one_key(others, old, new):
    """Whatever else is in the table; and the worst case with phantoms alone is attained."""
    first, second = (server_view(TINY, [*others, record], 2) for record in (old, new))
    (cases,) = dominating_pairs(TINY, REPLACE)
    one_key = np.max([privacy_profile(case, EPSILONS) for case in cases], axis=0)
    found = np.array([exact_delta(first, second, e) for e in EPSILONS])
    assert (found <= one_key + 1e-12).all()
    if not others and old != new and old[0] != new[0] and old[1] != new[1]:
        np.testing.assert_allclose(found, privacy_profile(dominating_pairs(TINY, REPLACE)[0][0], EPSILONS), atol=1e-12)


def test_composition_is_an_upper_bound_and_tight():
    """Two keys, a record that changes both values: δ(ε) of the product law, enumerated."""
    pair = dominating_pairs(TINY, REPLACE)[0][0]
    first, second = (dict(enumerate(law)) for law in pair)
    pairs = [(p * q, second[i] * second[j]) for (i, p), (j, q) in itertools.product(first.items(), repeat=2)]
    found = sketch_pld(TINY, 1, REPLACE, 1e-4)
    for epsilon in EPSILONS:
        exact = sum(max(p - math.exp(epsilon) * q, 0.0) for p, q in pairs)
        bound = found.get_delta_for_epsilon(epsilon)
        assert exact - 1e-12 <= bound <= exact + 2e-3


@pytest.mark.parametrize("adding", [True, False])
def test_adding_and_removing(adding):
    with_it, without = server_view(TINY, [(0, 0)], 1), server_view(TINY, [], 1)
    first, second = (composed(law, 2) for law in ((with_it, without) if adding else (without, with_it)))
    found = sketch_pld(TINY, 1, ADD_REMOVE, 1e-4)
    for epsilon in EPSILONS:
        assert exact_delta(first, second, epsilon) <= found.get_delta_for_epsilon(epsilon) + 1e-12


def test_a_coarser_grid_only_gives_a_larger_bound():
    design = SketchDesign(num_keys=500, phantoms=2000, lower=12, upper=14)
    fine, coarse = (sketch_pld(design, 16, REPLACE, h).get_epsilon_for_delta(1e-5) for h in (1e-5, 1e-3))
    assert fine < coarse < 1.5 * fine


def test_planted_errors_are_caught():
    """Half the phantoms, or keys shared by four columns, lose more than the bound for what is claimed."""
    pair = dominating_pairs(TINY, REPLACE)[0][0]
    honest = privacy_profile(pair, EPSILONS)
    fewer = SketchDesign(num_keys=2, phantoms=1, lower=1, upper=3)
    assert (privacy_profile(dominating_pairs(fewer, REPLACE)[0][0], EPSILONS) > honest).all()
    twice = server_view(TINY, [(0, 0)], 1), server_view(TINY, [], 1)
    assert exact_delta(*twice, 0.3) < exact_delta(*four_columns(TINY), 0.3)


def four_columns(design):
    """One record's hash in four sketches, against none."""
    one, base = hash_law(design), {design.lower: 1.0}
    for _ in range(design.phantoms):
        base = merged_max(base, one)
    with_it, without = {}, {}
    for levels in itertools.product(base, repeat=4):
        weight = math.prod(base[level] for level in levels)
        without[levels] = without.get(levels, 0.0) + weight
        for h, prob in one.items():
            seen = tuple(max(level, h) for level in levels)
            with_it[seen] = with_it.get(seen, 0.0) + weight * prob
    return with_it, without


@pytest.mark.parametrize("mu", [0.05, 0.7, 2.0])
def test_the_gaussian_part_dominates_the_closed_form_closely(mu):
    event = GaussianEvent(noise_multiplier=2 / mu, count=1)
    pld = gaussian_pld(mu, 1e-3)
    reference = pld_lib.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        exact = event.delta(epsilon, REPLACE)
        bound = pld.get_delta_for_epsilon(epsilon)
        assert exact * (1 - 1e-9) - 1e-15 <= bound <= exact * 1.01 + 1e-9
        assert bound == pytest.approx(reference.get_delta_for_epsilon(epsilon), rel=1e-3, abs=1e-9)
