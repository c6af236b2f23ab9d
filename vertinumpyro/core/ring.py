"""Integer arithmetic of the ring Z_{2^64}, as jitted jax code: the numbers that a secure backend computes on.

A real number x is held as the integer round(x 2^f), f its `fractional_bits`. Products of two such numbers
can need 128 bits before they are shifted back; `wide_product` keeps all of them, so every function here is
exact: its result is a stated rounding of the true integer value, bit for bit the same on every machine.
All functions need jax's 64-bit mode (`core.compat.x64`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

EXP_FRACTIONAL_BITS = 30
"""Fractional bits of the results of `exp_nonpositive` and `reciprocal_sqrt`."""

NORM_FRACTIONAL_BITS = 24
"""Fractional bits of the argument of `reciprocal_sqrt`: a squared norm of 2^38 still fits the ring."""

EXP_MAX_ERROR_ULP = 4
"""`exp_nonpositive` differs from the true exponential by at most this many units of 2^-30."""

_LOG2E_BITS = 60
_LOG2E = round(math.log2(math.e) * 2**52) << 8  # 52 good bits: an argument below 2^13 keeps 39 of them
_LOW_HALF = (1 << 32) - 1
_ROUNDING = 1.5 * 2.0**52
_ROUNDING_BITS = int(np.float64(_ROUNDING).view(np.int64))

# Taylor coefficients of 2^-y = exp(-y ln 2) about y = 1/2, so that twelve terms reach 2^-46 on [0, 1].
_EXP2_COEFFICIENTS = tuple(
    round(2.0**-0.5 * (-math.log(2.0)) ** j / math.factorial(j) * 2.0**EXP_FRACTIONAL_BITS) for j in range(12)
)


class Wide(NamedTuple):
    """A non-negative 128-bit integer high 2^64 + low."""

    high: jax.Array
    low: jax.Array


def encode(x: jax.Array, fractional_bits: int) -> jax.Array:
    """The ring element of a real number: round(x 2^f), ties to even, as int64.

    The caller bounds |x| 2^f below 2^62; nothing is checked here, because a check on a secret is a leak.
    """
    return _by_conversion(x.astype(jnp.float64) * 2.0**fractional_bits)


def encode_short(x: jax.Array, fractional_bits: int) -> jax.Array:
    """`encode` where the caller bounds |x| 2^f below 2^51, several times as fast.

    Between 2^52 and 2^53 the float64 numbers are the integers, so adding 1.5 2^52 rounds, and the bits of the sum are
    the integer beside a constant; a conversion goes number by number.
    """

    def by_bits(scaled: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(scaled + _ROUNDING, jnp.int64) - _ROUNDING_BITS

    return with_ieee_float64(by_bits, _by_conversion, x.astype(jnp.float64) * 2.0**fractional_bits)


def _by_conversion(scaled: jax.Array) -> jax.Array:
    return jnp.rint(scaled).astype(jnp.int64)


def with_ieee_float64(
    fast: Callable[..., jax.Array], general: Callable[..., jax.Array], *arguments: jax.Array
) -> jax.Array:
    """fast(*arguments), exact by what IEEE 754 says of float64, or general(*arguments) where a device emulates it.

    Chosen when a program is compiled, for the device that it is compiled for: a TPU's float64 has fewer bits.
    """
    return jax.lax.platform_dependent(*arguments, cpu=fast, cuda=fast, default=general)


def decode(value: jax.Array, fractional_bits: int) -> jax.Array:
    """The real number of a ring element, as float64."""
    return value.astype(jnp.float64) * 2.0**-fractional_bits


def wide_product(a: jax.Array, b: jax.Array) -> Wide:
    """All 128 bits of the product of two non-negative int64 arrays."""
    a, b = a.astype(jnp.uint64), b.astype(jnp.uint64)
    a_high, a_low = a >> 32, a & _LOW_HALF
    b_high, b_low = b >> 32, b & _LOW_HALF
    low_low, low_high, high_low = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (low_low >> 32) + (low_high & _LOW_HALF) + (high_low & _LOW_HALF)
    high = a_high * b_high + (low_high >> 32) + (high_low >> 32) + (middle >> 32)
    return Wide(high, a * b)


def multiply_shift(a: jax.Array, b: jax.Array, shift: int, *, round_up: bool = False) -> jax.Array:
    """floor(a b / 2^shift), or its ceiling, for signed int64 arrays and 0 <= shift <= 126, exactly.

    The product may take 126 bits; the caller bounds the result below 2^63.
    """
    negative = (a < 0) != (b < 0)
    product = wide_product(jnp.abs(a), jnp.abs(b))
    quotient, inexact = _shift_right(product, shift)
    away_from_zero = inexact & (negative != round_up)
    magnitude = quotient + away_from_zero.astype(jnp.int64)
    return jnp.where(negative, -magnitude, magnitude)


def _shift_right(value: Wide, shift: int) -> tuple[jax.Array, jax.Array]:
    """(floor(value / 2^shift) as int64, whether anything was cut off)."""
    if shift == 0:
        return value.low.astype(jnp.int64), jnp.zeros(value.low.shape, bool)
    if shift >= 64:
        cut = shift - 64
        kept = value.high >> cut
        lost = (value.low != 0) | ((value.high & ((1 << cut) - 1)) != 0)
        return kept.astype(jnp.int64), lost
    kept = (value.high << (64 - shift)) | (value.low >> shift)
    return kept.astype(jnp.int64), (value.low & ((1 << shift) - 1)) != 0


def exp_nonpositive(x: jax.Array, fractional_bits: int) -> jax.Array:
    """exp(x) for ring elements x <= 0, with 30 fractional bits; within `EXP_MAX_ERROR_ULP` units of 2^-30.

    exp(x) = 2^-(i + y) with i = floor(-x log2 e): a polynomial in y, shifted right by i; exp(0) is exactly 1.

    Proof of the error, in units of 2^-30. The polynomial's argument t = y - 1/2 has |t| <= 1/2, and each of
    its Horner steps adds at most 1/2 (the coefficient) and 1 (the floor) to |t| times the error so far: 3 in
    all. The Taylor remainder is below 1e-5. Flooring y moves 2^-y by less than ln 2, the constant log2 e by
    1e-5 where the result is not zero anyway (-x < 22). So 3.7 before the shift; a shift by i >= 1 halves that
    at least and floors once: 2.85.
    """
    one = 1 << EXP_FRACTIONAL_BITS
    exponent = multiply_shift(-x, jnp.int64(_LOG2E), fractional_bits + _LOG2E_BITS - EXP_FRACTIONAL_BITS)
    whole = jnp.minimum(exponent >> EXP_FRACTIONAL_BITS, 62)
    centred = (exponent & (one - 1)) - one // 2
    result = jnp.full_like(centred, _EXP2_COEFFICIENTS[-1])
    for coefficient in _EXP2_COEFFICIENTS[-2::-1]:
        result = ((result * centred) >> EXP_FRACTIONAL_BITS) + coefficient
    return jnp.where(x == 0, one, jnp.minimum(result, one) >> whole)


def reciprocal_sqrt(value: jax.Array) -> jax.Array:
    """The largest w with w 2^-30 <= 1 / sqrt(value 2^-24), for int64 values >= 2^24 (that is, 1).

    A float64 estimate is within one unit of the answer (w <= 2^30 has 30 bits, float64 has 53); the exact
    integer comparison w^2 value <= 2^84 settles it. Rounding down is what makes the clip a bound.
    """
    estimate = jnp.rint(2.0**42 / jnp.sqrt(value.astype(jnp.float64))).astype(jnp.int64)
    for _ in range(2):
        estimate = jnp.where(_square_times_exceeds(estimate, value), estimate - 1, estimate)
    return jnp.where(_square_times_exceeds(estimate + 1, value), estimate, estimate + 1)


def _square_times_exceeds(w: jax.Array, value: jax.Array) -> jax.Array:
    """Whether w^2 value > 2^84, exactly (w <= 2^30 + 1)."""
    product = wide_product(w * w, value)
    limit = jnp.uint64(1 << (2 * EXP_FRACTIONAL_BITS + NORM_FRACTIONAL_BITS - 64))
    return (product.high > limit) | ((product.high == limit) & (product.low > 0))
