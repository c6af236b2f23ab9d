"""The clip that every party makes by itself: exact on integers for hostile records, refused where it has no proof."""

import dataclasses
import json
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.secure import problems
from tests.secure.problems import run
from tests.secure.test_crypten import looks_uniform, needs_crypten
from tests.secure.thread_group import ThreadGroup
from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.types import Contribution
from vertinumpyro.secure import (
    BernoulliLogitLink,
    BernoulliProbitLink,
    ClippedSum,
    Crypten,
    FixedPoint,
    InsecureRehearsal,
    NormalLink,
    Plaintext,
    PoissonLink,
    fixed_point,
    local_clip,
)
from vertinumpyro.secure.computation import computation_of, described
from vertinumpyro.secure.formats import EXP_BITS
from vertinumpyro.secure.inputs import Layout, encode_party
from vertinumpyro.secure.range_proof import fixed_point_format

LOGIT = BernoulliLogitLink()
SIZES = {"K": 1, "P": 3, "d": 1, "s": 1, "t": 1, "d0": 0, "link": LOGIT}
LEAST = 2.0**-10


def shape_of(clip_parts=(1, 0, 5), residual_bound=1.0, **sizes):
    return problems.shape_of(**{**SIZES, **sizes}, clip_parts=clip_parts, residual_bound=residual_bound)


def limit(shape):
    """C on the grid, exactly."""
    return Fraction(shape.clip_norm) * 2 ** fixed_point_format(shape).grid_bits


def squared(integers):
    return sum(int(value) ** 2 for value in integers)


CLIPS = pytest.mark.parametrize(("residual_bound", "clip_norm"), [(1.0, 0.01), (1.0, 1.0), (0.4, 1000.0), (LEAST, 1.0)])


@CLIPS
def test_no_record_is_longer_than_the_clip_norm_on_integers(residual_bound, clip_norm):
    shape = shape_of(residual_bound=residual_bound, clip_norm=clip_norm, n=1)

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
    kept = Fraction(local_clip.kept(shape))
    assert (limit(shape) * (1 - 2 * kept)) ** 2 < squared(integers) <= limit(shape) ** 2
    assert kept < 0.002


@pytest.mark.parametrize(
    "skips",
    [
        pytest.param(lambda shape, party: 1024.0, id="no scaling at all"),
        pytest.param(lambda shape, party: 1 / shape.residual_bound, id="all of C for every party"),
        pytest.param(lambda shape, party: local_clip.exact_score_bound(shape, party), id="nothing kept back"),
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


@pytest.fixture(scope="module")
def rehearsal():
    backend = InsecureRehearsal(Crypten(), watched=True)
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


@needs_crypten
@pytest.mark.parametrize("num_parties", [1, 2, 3])
@pytest.mark.parametrize("largest", [1 << 10, 419_430, (1 << EXP_BITS) - 1])
def test_a_weight_is_cut_on_shares_exactly_in_three_rounds(largest, num_parties):
    import torch

    from vertinumpyro.secure.crypten import fixed

    group, most = ThreadGroup(num_parties), (1 << EXP_BITS) + 2  # a unit more than any link has
    edges = np.array([0, 1, largest - 1, largest, largest + 1, most])
    e = np.concatenate([edges, -edges, np.random.default_rng(0).integers(-most, most, 3000)])
    cut = group.run(lambda party, share: fixed.cut(party, torch.from_numpy(share), largest, EXP_BITS + 2).numpy(), e)
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
def test_roundings_of_more_than_a_hundredth_are_refused(backend):
    assert backend.grid_bits(shape_of(n=10_000)) > 0
    with pytest.raises(RangeError, match=r"by 1\.\d% of clip_norm.*lower the batch size"):
        backend.grid_bits(dataclasses.replace(shape_of(n=2**20), num_values=12_000))
