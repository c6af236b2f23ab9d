"""The clip that every party makes by itself: exact on integers for hostile records, refused where it has no proof."""

import dataclasses
import itertools
import json
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.secure import problems
from tests.secure.problems import looks_uniform, run
from tests.secure.test_crypten import needs_crypten
from tests.secure.thread_group import ThreadGroup
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.types import Contribution
from vertinumpyro.secure import (
    BernoulliLogitLink,
    BernoulliProbitLink,
    ClippedSum,
    Crypten,
    FixedPoint,
    InsecureSimulation,
    JointLink,
    NormalLink,
    Plaintext,
    PoissonLink,
    fixed_point,
    input_bounds,
    number_formats,
)
from vertinumpyro.secure.computation import computation_of, described
from vertinumpyro.secure.input_encoding import Layout, encode_party
from vertinumpyro.secure.number_formats import EXP_BITS, fixed_point_format

LOGIT = BernoulliLogitLink()
SIZES = {"K": 1, "P": 3, "d": 1, "s": 1, "t": 1, "d0": 0, "link": LOGIT}
OUTCOMES = JointLink((LOGIT, PoissonLink(most=7.0), NormalLink(width=3.0), LOGIT), (0, 1, 2, 2))
SEVERAL = {**SIZES, "K": 4, "s": 2, "link": OUTCOMES}
LEAST = 2.0**-10


def shape_of(clip_parts=(1, 0, 5), residual_bound=1.0, **sizes):
    return problems.shape_of(**{**SIZES, **sizes}, clip_parts=clip_parts, residual_bound=residual_bound)


def limit(shape):
    """C on the grid, exactly."""
    return Fraction(shape.clip_norm) * 2 ** fixed_point_format(shape).grid_bits


def squared(integers):
    return sum(int(value) ** 2 for value in integers)


CLIPS = pytest.mark.parametrize(("residual_bound", "clip_norm"), [(1.0, 0.01), (1.0, 1.0), (0.4, 1000.0), (LEAST, 1.0)])
COARSE = 2.0**22  # noise that leaves a sum's scores as few digits as those of a hundred million records


@pytest.mark.parametrize("noise", [0.0, COARSE])
@CLIPS
def test_no_record_is_longer_than_the_clip_norm_on_integers(residual_bound, clip_norm, noise):
    shape = shape_of(residual_bound=residual_bound, clip_norm=clip_norm, noise_stddev=noise * clip_norm, n=1)
    number_formats.check_local_range(shape)
    assert noise == 0 or fixed_point_format(shape).score_bits + np.log2(clip_norm) < 7

    @settings(max_examples=60, deadline=None)
    @given(problems.hostile(n=1, **SIZES))
    def check(problem):
        mask = jnp.ones(1, bool)
        integers = problems.jitted(shape)(*problem[:2], mask).tolist()
        assert squared(integers) <= limit(shape) ** 2
        of_party = np.array_split(integers, 3)
        assert not any(of_party[1])  # it has no part
        assert squared(of_party[0]) <= limit(shape) ** 2 / 6
        assert np.linalg.norm(run(Plaintext(), shape, (*problem[:2], mask))) <= clip_norm * (1 + 1e-9)

    check()


@pytest.mark.parametrize(
    ("residual_bound", "clip_norm"), [(1.0, 1.0), ((0.4, 1.0, LEAST, 0.07), 0.3), ((0.001, 0.9, 0.9, 0.9), 1000.0)]
)
def test_no_record_of_several_outcomes_is_longer_in_any_pattern_of_residuals(residual_bound, clip_norm):
    """Of a party's scores alike or apart, plated, shared or of a table, and of residuals that an adversary chooses."""
    shape = problems.shape_of(**SEVERAL, clip_parts=(1, 0, 5), residual_bound=residual_bound, clip_norm=clip_norm, n=1)
    bounds = [int(b * 2**30) for b in shape.residual_bounds]

    @settings(max_examples=60, deadline=None)
    @given(problems.hostile(n=1, **SEVERAL))
    def check(problem):
        encoded = problems.jitted(shape, "encoded")(*problem[:2])
        worst = [longest_of(encoded, party, bounds) for party in range(3)]
        assert sum(worst) <= limit(shape) ** 2
        assert worst[1] == 0
        assert worst[0] <= limit(shape) ** 2 / 6
        mask = jnp.ones(1, bool)
        assert squared(problems.jitted(shape)(*problem[:2], mask).tolist()) <= sum(worst)
        assert np.linalg.norm(run(Plaintext(), shape, (*problem[:2], mask))) <= clip_norm * (1 + 1e-9)

    check()


def longest_of(encoded, party, bounds):
    """The largest squared norm, in integers, of what a party's encoded scores of a record add, over all corners."""
    table = encoded.tables[party][0]
    plated = np.concatenate([encoded.plated[party][0], table.scores[int(table.codes[0])]], axis=1).astype(object)
    shared = np.asarray(encoded.shared[party][0]).astype(object)
    corners = (np.array(signs) * np.array(bounds, object) for signs in itertools.product((1, -1), repeat=len(bounds)))
    return max(((plated * corner[:, None]) ** 2).sum() + ((corner @ shared) ** 2).sum() for corner in corners)


def opposite_scores(shape):
    """One record with residuals of 1, -1, 1, -1, whose scores have these signs too: all of them add up."""
    contributions, prior, mask = problems.benign(n=1, **{**SEVERAL, "d": 0, "t": 0})
    signs = jnp.array([1.0, -1.0, 1.0, -1.0])
    sums = jnp.array([-1000.0, 1000.0, -1000.0, 1000.0])
    own = [[1.0], [0.0], [0.0]]  # the first outcome is 1, the others are 0
    contributions = [
        c._replace(
            log_density=jnp.concatenate([sums, jnp.array(number)])[None, : c.log_density.shape[1]],
            shared_scores=1e9 * jnp.broadcast_to(signs[:, None], c.shared_scores.shape[1:])[None],
        )
        for c, number in zip(contributions, own, strict=True)
    ]
    return contributions, prior, mask


def of_all_signs_alike(plated, shared):
    return (plated**2).sum((-2, -1)) + (shared.sum(-2) ** 2).sum(-1)


def of_scores_apart(plated, shared):
    return (plated**2).sum((-2, -1)) + (shared**2).sum((-2, -1))


@pytest.mark.parametrize(
    "wrong", [None, of_all_signs_alike, of_scores_apart], ids=lambda fn: getattr(fn, "__name__", "")
)
def test_a_clip_that_forgets_signs_or_shared_coefficients_is_seen(wrong, monkeypatch):
    shape = problems.shape_of(**{**SEVERAL, "d": 0, "t": 0}, clip_parts=(1, 2, 5), residual_bound=0.4, n=1)
    if wrong is not None:
        monkeypatch.setattr(input_bounds, "_largest_square", wrong)
    integers = fixed_point_sum(shape, opposite_scores(shape))
    kept = Fraction(number_formats.kept(shape))
    if wrong is None:
        assert (limit(shape) * (1 - 2 * kept)) ** 2 < squared(integers) <= limit(shape) ** 2
    else:
        assert squared(integers) > 2 * limit(shape) ** 2


def longest_record(shape, scores=1e30):
    """One record with a residual of 1, whose scores point everywhere."""
    contributions, prior, mask = problems.benign(n=1, **{**SIZES, "link": shape.link})
    contributions = [
        Contribution(
            jnp.zeros_like(c.log_density).at[:, :1].set(-1000.0),
            jnp.full_like(c.plated_scores, scores),
            jnp.full_like(c.shared_scores, -scores),
            tuple(t._replace(scores=jnp.full_like(t.scores, scores)) for t in c.tables),
        )
        for c in contributions
    ]
    outcome = contributions[-1]
    log_density = outcome.log_density.at[:, 1:].set(1.0)
    return [*contributions[:-1], outcome._replace(log_density=log_density)], prior, mask


@CLIPS
def test_the_longest_record_has_all_of_the_clip_norm_but_what_is_kept_back(residual_bound, clip_norm):
    shape = shape_of(residual_bound=residual_bound, clip_norm=clip_norm, n=1)
    integers = problems.jitted(shape)(*longest_record(shape)).tolist()
    kept = Fraction(number_formats.kept(shape))
    assert (limit(shape) * (1 - 2 * kept)) ** 2 < squared(integers) <= limit(shape) ** 2
    assert kept < 0.002


@pytest.mark.parametrize(
    "skips",
    [
        pytest.param(lambda shape, party: 1024.0, id="no scaling at all"),
        pytest.param(lambda shape, party: 1.0, id="all of C for every party"),
        pytest.param(lambda shape, party: number_formats.exact_score_bound(shape, party), id="nothing kept back"),
    ],
)
def test_a_party_that_scales_too_little_is_seen(skips, monkeypatch):
    """Also where nothing is kept back: at this clip norm more scores are rounded up than down."""
    monkeypatch.setattr(fixed_point, "score_bound", skips)
    shape = shape_of((1, 2, 5), 0.4, n=1, clip_norm=0.737)
    assert squared(fixed_point_sum(shape, longest_record(shape))) > limit(shape) ** 2


def fixed_point_sum(shape, problem):
    """The opened integers, compiled anew."""
    problems.jitted.cache_clear()
    try:
        return problems.jitted(shape)(*problem).tolist()
    finally:
        problems.jitted.cache_clear()


@needs_crypten
@pytest.mark.parametrize("residual_bound", [1.0, 0.4])
@pytest.mark.parametrize(
    "link", [BernoulliProbitLink(), PoissonLink(most=7.0), NormalLink(width=3.0)], ids=lambda x: x.name
)
def test_what_crypten_opens_is_no_longer_than_the_clip_norm(link, residual_bound, rehearsal):
    shape = shape_of((1, 2, 5), residual_bound, n=1, link=link)
    sizes = {**SIZES, "link": link}

    @settings(max_examples=4, deadline=None)
    @given(problems.hostile(n=1, **sizes))
    def check(problem):
        contributions, prior, _ = problem
        scored = [c._replace(shared_scores=jnp.full_like(c.shared_scores, 1e9)) for c in contributions]
        run(rehearsal, shape, (scored, prior, jnp.ones(1, bool)))
        (opened,) = (value for why, value in rehearsal.opened(3) if why == "reveal")
        assert squared(opened) <= limit(shape) ** 2

    check()


@needs_crypten
@pytest.mark.parametrize("residual_bound", [1.0, (0.4, 1.0, LEAST, 0.07)], ids=str)
def test_what_crypten_opens_of_several_outcomes_is_no_longer_than_the_clip_norm(residual_bound, rehearsal):
    shape = problems.shape_of(**{**SEVERAL, "d": 0, "t": 0}, clip_parts=(1, 2, 5), residual_bound=residual_bound, n=1)
    run(rehearsal, shape, opposite_scores(shape))
    (opened,) = (value for why, value in rehearsal.opened(3) if why == "reveal")
    kept = Fraction(number_formats.kept(shape))
    assert (limit(shape) * (1 - 2 * kept)) ** 2 < squared(opened) <= limit(shape) ** 2


@pytest.fixture(scope="module")
def rehearsal():
    backend = InsecureSimulation(Crypten(), watched=True)
    yield backend
    backend.close()


@needs_crypten
def test_a_step_has_only_the_rounds_of_the_residual_the_products_and_the_opening():
    def rounds(shape):
        layout = Layout(prior=0, plated=(0, 0), shared=(20, 20), tables=((), ()))
        return Crypten().cost(ClippedSum(shape=shape, layout=layout)).traffic.rounds

    sizes = {"n": 50, "K": 1, "P": 2, "d": 0, "s": 20, "d0": 0}
    joint = problems.shape_of(**sizes, link=LOGIT)
    whole, cut = (dataclasses.replace(joint, clip_parts=(20, 20), residual_bound=b) for b in (1.0, 0.4))
    digest, residual, products, opening, cutting = 1, 4, 1, 1, 3
    assert rounds(whole) == digest + residual + products + opening
    assert rounds(cut) == rounds(whole) + cutting
    assert rounds(joint) > 3 * rounds(cut)
    probit = dataclasses.replace(whole, link=BernoulliProbitLink())
    assert rounds(probit) == rounds(whole) + 2
    several = {"num_components": 2, "num_values": 40, "residual_bound": (0.4, 0.3)}
    alike = dataclasses.replace(cut, link=JointLink((LOGIT, LOGIT), (0, 1)), **several)
    assert rounds(alike) == rounds(cut)
    counts = JointLink((PoissonLink(most=7.0), PoissonLink(most=9.0)), (0, 1))
    assert rounds(dataclasses.replace(alike, link=counts)) == rounds(cut)
    apart = dataclasses.replace(alike, link=JointLink((LOGIT, PoissonLink(most=7.0)), (0, 1)))
    assert rounds(apart) == rounds(cut) + residual


@needs_crypten
@pytest.mark.parametrize("num_parties", [1, 2, 3])
@pytest.mark.parametrize("largest", [1 << 10, 419_430, (1 << EXP_BITS) - 1])
def test_a_weight_is_cut_on_shares_exactly_in_three_rounds(largest, num_parties):
    import torch

    from vertinumpyro.secure.crypten import arithmetic

    group, most = ThreadGroup(num_parties), (1 << EXP_BITS) + 2  # a unit more than any link has
    edges = np.array([0, 1, largest - 1, largest, largest + 1, most])
    e = np.concatenate([edges, -edges, np.random.default_rng(0).integers(-most, most, 3000)])
    cut = group.run(
        lambda party, share: arithmetic.cut(party, torch.from_numpy(share), largest, EXP_BITS + 2).numpy(), e
    )
    np.testing.assert_array_equal(sum(cut), np.clip(e, -largest, largest))
    assert group.rounds == 3
    assert looks_uniform(group.seen)


def test_nothing_of_a_norm_is_computed_or_sent():
    shape = shape_of(n=5)
    contributions, prior, _ = problems.benign(n=5, **SIZES)
    own = encode_party(shape, contributions[0], 0)
    assert own.squared_norm.size == own.gram.size == 0
    zeros = ClippedSum(shape=shape, layout=Layout.of(contributions, prior)).zeros(0)
    assert {name: zeros[name].shape for name in own._fields} == {name: x.shape for name, x in own._asdict().items()}


def test_a_shape_with_parts_survives_a_message():
    shape = shape_of(residual_bound=0.4)
    computation = ClippedSum(shape=shape, layout=Layout.of(*problems.benign(**SIZES)[:2]))
    assert computation_of(json.loads(json.dumps(described(computation)))) == computation


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"link": problems.SOFTMAX}, "'softmax' are no bounded residual.*leave clip_parts out"),
        ({"clip_parts": (1, 1)}, "clip_parts must be 3 numbers"),
        ({"clip_parts": (0, 0, 0)}, "one is above 0"),
        ({"clip_parts": (2, -1, 0)}, "whole numbers"),
        ({"residual_bound": 0.0}, "residual_bound must be at least"),
        ({"residual_bound": 1.5}, "at most 1"),
        ({"clip_parts": None, "residual_bound": 0.5}, 'choose clip="local"'),
    ],
)
def test_a_clip_without_a_proof_is_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(shape_of(), **wrong)


@pytest.mark.parametrize("backend", [Plaintext(), FixedPoint()])
def test_scores_of_the_prior_have_no_part_in_it(backend):
    sizes = {**SIZES, "d0": 2}
    with pytest.raises(ArgumentError, match=r"prior has 2 scores.*leave clip_parts out"):
        run(backend, shape_of(d0=2), problems.benign(**sizes))


@pytest.mark.parametrize("backend", [Plaintext(), FixedPoint(), Crypten()])
def test_roundings_of_more_than_4_percent_are_refused(backend):
    assert backend.grid_bits(shape_of(n=10_000)) > 0
    with pytest.raises(RangeError, match=r"by \d+\.\d% of clip_norm.*lower the batch size"):
        backend.grid_bits(dataclasses.replace(shape_of(n=2**23), num_values=12_000))
