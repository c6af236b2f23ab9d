"""The paper's fixed-point arithmetic: Algorithms 2 and 3 at scale 2^32, on int64 arrays.

Kept apart from `core.ring`, which the fused protocol uses: these are reproduced for comparison. Corrected as
the paper needs it: Algorithm 2's product of fractions is taken in unsigned 64-bit integers, where it does not
wrap, and Algorithm 3's step is Newton's q <- 2 q - q^2 b.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from vertinumpyro.core import ring

__all__ = ["LARGEST_DIVISOR", "NEWTON_STEPS", "PAPER_BITS", "SCALE", "encode", "mult", "norm", "reciprocal"]

PAPER_BITS = 32
"""Fractional bits of every number: the paper's scale is 2^32 (section 4.5)."""

SCALE = 1 << PAPER_BITS
"""The ring element of 1."""

NEWTON_STEPS = 26
"""Algorithm 3's T. As q at most doubles in a step, q < 8.16 2^26 fits the ring whatever it divides by."""

LARGEST_DIVISOR = 512.0
"""Newton's iteration converges from q0 = 3 exp(1 - 2b) + 0.003 where 0 < q0 b < 2, that is up to b = 666."""

_THREE_E = math.floor(3 * math.e * SCALE)
_OFFSET = math.floor(0.003 * SCALE)


def encode(x: jax.Array) -> jax.Array:
    """trunc(x 2^32): "multiply each number by a scale and truncate the decimal part" (section 4.5)."""
    return jnp.trunc(x.astype(jnp.float64) * SCALE).astype(jnp.int64)


def mult(a: jax.Array, b: jax.Array) -> jax.Array:
    """Algorithm 2: the product of two numbers at scale 2^32, truncated toward zero.

    Exact (equal to trunc(a b / 2^32)) while |a b| < 2^95, so that the result fits.
    """
    sign = jnp.sign(a) * jnp.sign(b)
    a, b = jnp.abs(a), jnp.abs(b)
    a_int, b_int = a >> PAPER_BITS, b >> PAPER_BITS
    a_frac, b_frac = a & (SCALE - 1), b & (SCALE - 1)
    fractions = (a_frac.astype(jnp.uint64) * b_frac.astype(jnp.uint64)) >> PAPER_BITS
    whole = ((a_int * b_int) << PAPER_BITS) + a_int * b_frac + a_frac * b_int
    return sign * (whole + fractions.astype(jnp.int64))


def reciprocal(b: jax.Array) -> jax.Array:
    """Algorithm 3's q, about 1 / b for 2^-24 <= b <= `LARGEST_DIVISOR`; div(a, b) is mult(a, q).

    CrypTen's initial value with the exponential of `ring.exp_nonpositive` (30 good bits), as 3 e exp(-2b) +
    0.003. The error 1 - q b is squared in each step. Below 2^-24 the 26 steps stop early, so q b < 1 all the
    same: with the roundings q b <= 1 + (1 + b) 2^-31. At b = 0, q is 8.157 2^26, and any numerator that is 0
    as well gives 0.
    """
    exponential = ring.exp_nonpositive(-2 * b, PAPER_BITS) << (PAPER_BITS - ring.EXP_FRACTIONAL_BITS)
    q = mult(exponential, jnp.full_like(b, _THREE_E)) + _OFFSET
    return jax.lax.fori_loop(0, NEWTON_STEPS, lambda _, q: 2 * q - mult(q, mult(q, b)), q)


def norm(squares: jax.Array) -> jax.Array:
    """Square root of numbers at scale 2^32, within one unit, from float64: the paper does not say how."""
    return jnp.floor(jnp.sqrt(squares.astype(jnp.float64)) * 2.0 ** (PAPER_BITS // 2)).astype(jnp.int64)
