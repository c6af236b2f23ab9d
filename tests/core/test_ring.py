import math
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vertinumpyro.core import compat, ring

EDGES = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53, 2**62, 2**63 - 1]
non_negative = st.sampled_from(EDGES) | st.integers(0, 2**63 - 1)
signed = non_negative | non_negative.map(lambda x: -x) | st.just(-(2**63))
SHIFTS = [0, 1, 15, 24, 30, 31, 32, 33, 36, 54, 60, 62, 63, 64, 65, 78, 94, 126]

multiply_shift = jax.jit(ring.multiply_shift, static_argnames=("shift", "round_up"))
exp_nonpositive = jax.jit(ring.exp_nonpositive, static_argnums=1)
wide_product, reciprocal_sqrt = jax.jit(ring.wide_product), jax.jit(ring.reciprocal_sqrt)


@pytest.fixture(autouse=True, scope="module")
def x64():
    with compat.x64():
        yield


@given(non_negative, non_negative)
@settings(deadline=None)
def test_wide_product_has_all_128_bits(a, b):
    high, low = wide_product(np.int64(a), np.int64(b))
    assert (int(high) << 64) + int(low) == a * b


@pytest.mark.parametrize("round_up", [False, True])
@pytest.mark.parametrize("shift", SHIFTS)
def test_multiply_shift_is_floor_and_ceiling(shift, round_up):
    @given(st.lists(st.tuples(signed, signed), min_size=1, max_size=16))
    @settings(deadline=None, max_examples=25)
    def check(pairs):
        pairs = [(a, b) for a, b in pairs if abs(a * b) >> shift < 2**63 - 1]
        pairs = (pairs + [(0, 0)] * 16)[:16]
        result = multiply_shift(*np.array(pairs, np.int64).T, shift=shift, round_up=round_up)
        exact = [math.ceil(Fraction(a * b, 2**shift)) if round_up else (a * b) >> shift for a, b in pairs]
        assert result.tolist() == exact

    check()


@pytest.mark.parametrize("fractional_bits", [24, 32])
def test_exp_is_within_its_stated_error(fractional_bits):
    rng = np.random.default_rng(0)
    x = -np.concatenate(
        [
            np.arange(2000),
            (rng.uniform(0, 1, 4000) * 2.0**fractional_bits).astype(np.int64),
            (rng.uniform(0, 25, 4000) * 2.0**fractional_bits).astype(np.int64),
            (np.arange(1, 30)[:, None] * math.log(2) * 2.0**fractional_bits + np.arange(-2, 3))
            .astype(np.int64)
            .ravel(),
            np.int64(2) ** np.arange(fractional_bits, fractional_bits + 14),
        ]
    )
    result = np.asarray(exp_nonpositive(x, fractional_bits)).tolist()
    with localcontext() as context:
        context.prec = 40
        true = [(Decimal(int(value)) / 2**fractional_bits).exp() * 2**30 for value in x]
        worst = max(abs(Decimal(r) - t) for r, t in zip(result, true, strict=True))
    assert worst <= ring.EXP_MAX_ERROR_ULP
    assert worst > 1  # the bound is not idle


def test_exp_at_the_edges():
    x = np.array([0, -1, -(2**24) * 22, -(2**24) * 1024 * 7, -(2**50)], np.int64)
    result = exp_nonpositive(x, 24).tolist()
    assert result[0] == 2**30
    assert 0 <= 2**30 - result[1] <= 64 + 4
    assert result[3:] == [0, 0]


@given(st.integers(2**24, 2**63 - 1) | st.integers(24, 62).map(lambda k: 2**k) | st.integers(2**24, 2**26))
@settings(deadline=None, max_examples=300)
def test_reciprocal_sqrt_is_the_integer_square_root(value):
    assert int(reciprocal_sqrt(np.int64(value))) == math.isqrt(2**84 // value)


@given(st.integers(2**11, 2**30))
@settings(deadline=None, max_examples=100)
def test_reciprocal_sqrt_next_to_perfect_squares(w):
    for value in (2**84 // w**2 - 1, 2**84 // w**2, 2**84 // w**2 + 1):
        if 2**24 <= value < 2**63:
            assert int(reciprocal_sqrt(np.int64(value))) == math.isqrt(2**84 // value)


@given(st.floats(-(2.0**30), 2.0**30), st.integers(0, 31))
@settings(deadline=None)
def test_encode_rounds_to_the_nearest_even(x, bits):
    assert int(ring.encode(jnp.float64(x), bits)) == round(Fraction(x) * 2**bits)


@given(st.integers(-(2**53), 2**53), st.integers(0, 54))
@settings(deadline=None)
def test_decode_then_encode_is_the_identity(value, bits):
    assert int(ring.encode(ring.decode(jnp.int64(value), bits), bits)) == value


@pytest.mark.parametrize("encode", [ring.encode, ring.encode_short])
def test_halves_are_encoded_to_even(encode):
    assert encode(jnp.array([0.5, 1.5, 2.5, -0.5, -1.5]), 0).tolist() == [0, 2, 2, 0, -2]


@given(st.floats(-(2.0**50), 2.0**50), st.integers(0, 24))
@settings(deadline=None)
def test_short_numbers_are_encoded_alike(x, bits):
    assume(abs(x) * 2**bits < 2**51)
    assert int(ring.encode_short(jnp.float64(x), bits)) == int(ring.encode(jnp.float64(x), bits))
