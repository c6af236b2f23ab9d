"""The fused protocol's integers: equal to a big-integer reference, and never longer than the clip norm."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from tests.secure import problems, reference
from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS
from vertinumpyro.secure import FixedPoint
from vertinumpyro.secure.fixed_point import _LIMB, RingArithmetic, _summed
from vertinumpyro.secure.number_formats import RING_LOG_BITS, fixed_point_format
from vertinumpyro.secure.score_contract import MILLS_REACH, MOST_MILLS, mills

SIZES = [
    {"K": 3, "P": 2, "d": 2, "s": 2, "d0": 3},
    {"K": 1, "P": 1, "d": 3, "s": 1, "d0": 1},
    {"K": 2, "P": 3, "d": 1, "s": 0, "d0": 2},
    {"K": 4, "P": 6, "d": 0, "s": 2, "d0": 0},
    {"K": 2, "P": 2, "d": 1, "s": 1, "d0": 2, "t": 2},
]
CLIP_NORMS = [0.01, 1.0, 1000.0]
# every size at one clip norm, the first at all of them
sizes_and_norms = pytest.mark.parametrize(
    ("sizes", "clip_norm"),
    [(SIZES[0], norm) for norm in CLIP_NORMS] + [(sizes, CLIP_NORMS[i % 3]) for i, sizes in enumerate(SIZES) if i],
    ids=str,
)


def as_lists(encoded):
    return jax.tree_util.tree_map(lambda x: np.asarray(x).tolist(), encoded)


@sizes_and_norms
def test_equals_the_reference_bit_for_bit(sizes, clip_norm):
    shape = problems.shape_of(n=2, clip_norm=clip_norm, **sizes)

    @settings(max_examples=15, deadline=None)
    @given(problems.hostile(n=2, **sizes))
    def check(problem):
        contributions, prior, mask = problem
        encoded = problems.jitted(shape, "encoded")(contributions, prior)
        result = problems.jitted(shape, "ring_sum")(encoded, mask)
        assert result.tolist() == reference.ring_sum(shape, as_lists(encoded), mask)

    check()


@sizes_and_norms
def test_no_record_is_longer_than_the_clip_norm(sizes, clip_norm):
    shape = problems.shape_of(n=2, clip_norm=clip_norm, **sizes)  # as above: compiled once for both tests
    limit = Fraction(clip_norm) * 2 ** fixed_point_format(shape).grid_bits

    @settings(max_examples=40, deadline=None)
    @given(problems.hostile(n=2, **sizes))
    def check(problem):
        encoded = problems.jitted(shape, "encoded")(*problem[:2])
        for mask in ([True, False], [False, True]):
            vector = problems.jitted(shape, "ring_sum")(encoded, np.array(mask)).tolist()
            assert sum(value * value for value in vector) <= limit**2

    check()


@pytest.mark.parametrize(("P", "K", "dtype"), [(1, 256, np.float64), (3, 181, np.float32)])
def test_the_worst_norm_does_not_wrap(P, K, dtype):
    # all components equally likely, all scores at the bound in one direction: the largest squared norm
    sizes = {"K": K, "P": P, "d": 0, "s": 1, "d0": 1}
    shape = problems.shape_of(n=1, clip_norm=1.9999, **sizes)
    contributions, prior, mask = problems.benign(n=1, **sizes)
    prior = prior._replace(log_weights=jnp.zeros(K, dtype), scores=jnp.full((K, 1), 1e30, dtype))
    contributions = [
        c._replace(
            log_density=jnp.zeros((1, K), dtype),
            plated_scores=c.plated_scores.astype(dtype),
            shared_scores=jnp.full((1, K, 1), 1e30, dtype),
        )
        for c in contributions
    ]
    vector = problems.jitted(shape)(contributions, prior, mask).tolist()
    limit = 1.9999 * 2.0 ** fixed_point_format(shape).grid_bits
    length = sum(value * value for value in vector) / limit**2
    assert 0.99 < length <= 1


def test_a_long_gradient_keeps_almost_the_whole_clip_norm():
    shape = problems.shape_of(n=1, K=3)
    contributions, prior, mask = problems.benign(n=1, scale=100.0)
    vector = problems.jitted(shape)(contributions, prior, mask).astype(float)
    length = np.linalg.norm(vector) * 2.0 ** -fixed_point_format(shape).grid_bits
    assert 1 - 2e-5 < length <= 1


@pytest.mark.parametrize("field", ["batch_size", "num_components", "num_parties", "num_values"])
def test_arrays_of_another_shape_are_refused(field):
    shape = problems.shape_of()
    wrong = type(shape)(**{**vars(shape), field: getattr(shape, field) + 1})
    contributions, prior, mask = problems.benign()
    noise = np.zeros((1, shape.num_values), np.int64)
    with pytest.raises(ArgumentError, match=field):
        FixedPoint().clipped_noisy_sum(wrong, contributions, prior, mask, noise)


@pytest.mark.parametrize("field", ["batch_size", "num_components", "num_parties", "num_values"])
def test_a_shape_has_positive_sizes(field):
    with pytest.raises(ArgumentError, match=field):
        type(problems.shape_of())(**{**vars(problems.shape_of()), field: 0})


@pytest.mark.parametrize("K", [1, 128, 129])
@pytest.mark.parametrize("sign", [1, -1])
def test_sums_over_components_are_exact_at_their_largest(K, sign):
    e = np.full((2, K), 2**30, np.int64)
    e[1] -= np.arange(K)
    limbs = sign * np.full((K, 2), (1 << _LIMB) - 1, np.int64)
    limbs[0, 1] = sign << _LIMB
    wanted = [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) for column in limbs.T] for row in e]
    with compat.x64():
        assert np.asarray(_summed(jnp.asarray(e), jnp.asarray(limbs))).tolist() == wanted


def test_a_mills_ratio_is_compiled_as_users_have_it():
    """As a loop: written out, users' XLA does not end, whose fusions compute every term anew for the next two."""
    t = np.linspace(-7, 7, 500)
    with compat.x64():
        found = jax.jit(RingArithmetic().mills_ratio)(jnp.asarray(np.rint(t * 2**RING_LOG_BITS), int))
        exact = np.asarray(mills(jnp.asarray(np.clip(t, -MILLS_REACH, MILLS_REACH)))) / MOST_MILLS
    np.testing.assert_allclose(np.asarray(found) / 2.0**EXP_FRACTIONAL_BITS, exact, atol=1e-6)
