r"""The protocols as JAX functions on one ring of 128 bits, which SPU compiles: integers, but for one square root.

| value | fractional bits | largest magnitude |
|---|---|---|
| l^p, log pi, their sum z | 21 | (P + 1) 1024 |
| powers while exp is computed | 30, at first 61 | 1 |
| e of the link, as exp(z - max z), den | `EXP_BITS` = 20 | 1, K |
| quotients while a sigmoid is computed | 28, at first 62 | 1 |
| squared norms and Gram matrices over C'^2 | b = `number_formats.norm_bits` | 1.7 (P + 1) S^2 |
| v = max(den^2, nn) | 40 + b, then 16 + b | 1.7 (P + 1) K^2 S^2 |
| w | `ROOT_BITS` = 26 | 1 |
| W = w e | 30 | 1 |

**The clip (eta).** The reciprocal square root is SPU's own floating-point approximation, and nothing is assumed of
it. Its distance from 1 is turned into an integer, cut to 26 bits, so that w lies in [0, 1) whatever it was, and
*checked* on the ring: w counts as 0 unless w^2 v <= 1, with v and w v rounded up. |e| is at most 2^20, as it is made
of exact integers, nn is computed from the same integers e with squared norms rounded up (e >= 0, or there is one
component, so nn only grows), and W = floor(w e). So sum_k W_k s_k is at most C' long but for the rounding of W, which
`number_formats.clip_share_kept` keeps back, as for CrypTen: the norm is at most C, the plan's sensitivity is C itself,
and there is no term of delta. That rests on SPU's integer additions, products, comparisons and shifts being those of
the ring, which its protocols compute without error; its probabilistic truncation of fixed-point numbers touches only
the estimate that is checked.

**The local clip.** Where each party clips its own scores, W = 2^10 e, e cut by comparisons: `secure.number_formats`.
There is no norm, no estimate and no check.

No intermediate integer reaches 2^127: w^2 v below 2^52 2^(16 + b) 1.7 (P + 1) K^2 S^2, and `number_formats.norm_bits`
keeps that last factor below 2^(41 - b); powers below 2^123.

**Messages.** What takes time between processes is their number. A shift is made on shares of bits, a product on
additive shares, and SPU converts anew at every use; so shifts here end in a negation, which converts once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, final

import jax
import jax.numpy as jnp

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure import number_formats
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.input_encoding import Layout
from vertinumpyro.secure.number_formats import fixed_point_format, largest_weights, local_error_bound
from vertinumpyro.secure.score_contract import (
    MILLS_COEFFICIENT_BITS,
    MILLS_COEFFICIENTS,
    MILLS_REACH,
    Arithmetic,
    chebyshev_sum,
)
from vertinumpyro.secure.shape import BatchShape

Arrays = Mapping[str, Any]

SO_FAR = "so_far"
"""The input that holds the sum over the blocks before."""

FRACTION_BITS = 40
"""Of SPU's own fixed-point numbers: the estimate of the reciprocal square root."""

EXP_BITS = number_formats.EXP_BITS
_POWER_BITS = 30
_REACH = 24
"""exp(x) below exp(-24) comes out as exp(-24), which is one unit in 20 bits."""

_COARSE = 24  # bits of v that are rounded up and dropped before the root
ROOT_BITS = 26
_ROOT_SLACK = 2.0**-12
"""By how much the estimate of 1 / sqrt(v) is shortened; SPU's own error was measured to be below 1e-4."""

_QUOTIENT_BITS = 24
"""Of exp(-|z|) under a sigmoid; constants of integers have to fit 63 bits, which decides all these formats."""

_START_BITS = 14

_MILLS_BITS, _MILLS_TERMS = 34, 31

_EXP_ERROR = 4e-6
"""|e - exp(z - max z)|: the limit's 1e-6 (as for CrypTen), roundings to 30 bits that later squarings double, 0.7e-6,
and the one to 20 bits."""

_WEIGHT_BITS = 30


def clipped_noisy_sum(shape: BatchShape, layout: Layout) -> Callable[[Arrays], jax.Array]:
    """The program of `ClippedSum`; its inputs are named as `spu.backend` does."""
    parties = range(shape.num_parties)

    def program(arrays: Arrays) -> jax.Array:
        z = arrays["prior_log_weights"] + sum(arrays[f"log_density_{p}"] for p in parties)
        e = shape.link.weights(SpuArithmetic(), z)
        W = _cut_weights(shape, e, arrays) if shape.clips_locally else _jointly_clipped(shape, layout, e, arrays)
        blocks = [W.sum(0) @ arrays["prior_scores"]]
        plated = _beside(arrays, "plated", layout.plated, lambda scores: jnp.einsum("nk,knd->kd", W, scores))
        shared = _beside(arrays, "shared", layout.shared, lambda scores: W.reshape(1, -1) @ scores)
        blocks += [sums for p in parties for sums in (plated[p], shared[p])]
        summed = jnp.concatenate([block.ravel() for block in blocks]) + sum(arrays[f"noise_{p}"] for p in parties)
        return summed + arrays[SO_FAR] if shape.num_blocks > 1 else summed

    return program


def noisy_cross_products(widths: Sequence[int], num_blocks: int = 1) -> Callable[[Arrays], jax.Array]:
    """The program of a block of `CrossProducts`: A_i^T A_j of all pairs side by side, and every party's noise."""
    pairs = [pair for pair in itertools.combinations(range(len(widths)), 2) if widths[pair[0]] and widths[pair[1]]]

    def program(arrays: Arrays) -> jax.Array:
        products = [(arrays[f"matrix_{i}"].T @ arrays[f"matrix_{j}"]).ravel() for i, j in pairs]
        summed = jnp.concatenate(products) + sum(arrays[f"noise_{p}"] for p in range(len(widths)))
        return summed + arrays[SO_FAR] if num_blocks > 1 else summed

    return program


def noisy_sum(num_parties: int) -> Callable[[Arrays], jax.Array]:
    """The program of `VectorSum`: vectors to which their owners have added their noise."""
    return lambda arrays: reduce(jnp.add, (arrays[f"vector_{p}"] for p in range(num_parties)))


@final
class SpuArithmetic(Arithmetic):
    """`Arithmetic` in JAX operations on integers of 128 bits: z in `LOG_BITS`, e in `EXP_BITS`; no operation errs."""

    stack = staticmethod(jnp.stack)
    concatenate = staticmethod(jnp.concatenate)

    def exp_below_max(self, z: jax.Array, halvings: int = 0) -> jax.Array:
        """With one component the compiler would see that it is exp(0), and compute in 64 bits: powers overflow."""
        if z.shape[-1] == 1:
            return jnp.full(z.shape, 1 << EXP_BITS, jnp.int64)
        below = z - z.max(axis=-1, keepdims=True)
        return exp_nonpositive(_shifted_up(below, halvings) if halvings else below)

    def capped_exp(self, z: jax.Array) -> jax.Array:
        return exp_nonpositive(jnp.minimum(z, 0))

    def sigmoid_sum(self, z: jax.Array) -> jax.Array:
        return sigmoid(z).sum(axis=-1, keepdims=True)

    def clip(self, z: jax.Array) -> jax.Array:
        one = 1 << number_formats.LOG_BITS
        return _shifted_up(jnp.clip(z, -one, one), number_formats.LOG_BITS - EXP_BITS)

    def mills_ratio(self, t: jax.Array) -> jax.Array:
        """The Chebyshev sum with 34 fractional bits, cut to [0, 1]."""
        reach = MILLS_REACH << number_formats.LOG_BITS
        x = shifted_down(
            jnp.clip(t, -reach, reach) * round(2.0**39 / MILLS_REACH), number_formats.LOG_BITS + 9
        )  # 30 bits
        cut = MILLS_COEFFICIENT_BITS - _MILLS_BITS
        coefficients = [(c + (1 << cut - 1)) >> cut for c in MILLS_COEFFICIENTS[:_MILLS_TERMS]]
        found = chebyshev_sum(x, coefficients, lambda x, b: shifted_down(x * b, 30))
        return jnp.clip(shifted_down(found, _MILLS_BITS - EXP_BITS), 0, 1 << EXP_BITS)

    def sign(self, own: jax.Array) -> jax.Array:
        return 2 * shifted_down(own, EXP_BITS) - 1

    def times(self, sign: jax.Array, x: jax.Array) -> jax.Array:
        return sign * x

    def portion(self, x: jax.Array, e: jax.Array) -> jax.Array:
        """The product, cut off."""
        return shifted_down(x * e, EXP_BITS)

    def plus(self, e: jax.Array, number: float | int) -> jax.Array:
        return e + round(number * (1 << EXP_BITS))


def exp_nonpositive(x: jax.Array, bits: int = EXP_BITS) -> jax.Array:
    """exp(x) for x <= 0 with 21 fractional bits, with `bits`: (1 + u + u^2 / 2)^512, u = x / 512.

    Powers are exact integers, rounded up, from one in (0, 1] on; so they stay in (0, 1], and the power of 0 is 1.
    The ring has room for two squarings, of 120 bits, between two shifts, which are what takes time.
    """
    x = jnp.maximum(x, -(_REACH << number_formats.LOG_BITS))
    square = (1 << 2 * _POWER_BITS + 1) + (x << _POWER_BITS + 1) + x * x  # u = x 2^-30, without rounding
    power = _shifted_up(square * square, 3 * _POWER_BITS + 2)
    for remaining in (3, 2, 1, 0):
        second = power * power
        power = _shifted_up(second * second, 3 * _POWER_BITS if remaining else 4 * _POWER_BITS - bits)
    return power


def sigmoid(z: jax.Array) -> jax.Array:
    """sigmoid(z) with 21 fractional bits, with 20, from 0 to 1: 1 / (1 + u), u = exp(-|z|), or what is left of 1.

    A quadratic q is within 1 / T_3(3) = 1 / 99 of 1 / (1 + u), relatively, and 2e-4 for its coefficients; a step
    q (2 - (1 + u) q) squares that. As 1 - t^2 <= 1, the result of the second one is at most 1 / (1 + u), before it is
    rounded down, and not negative, whatever its roundings before; and as it is within 2e-8, the result is within the
    1.7e-6 and 2^-24 of u, and 2^-20, of sigmoid(z): 2.8e-6, which `_EXP_ERROR` covers.
    """
    negative = (z < 0).astype(jnp.int64)
    u = exp_nonpositive(z * (2 * negative - 1), _QUOTIENT_BITS)
    c0, c1, c2 = (round(c / 99 * 2**_START_BITS) for c in (98, -80, 32))
    start = c2 * (u * u) + (c1 << _QUOTIENT_BITS) * u + (c0 << 2 * _QUOTIENT_BITS)
    q = shifted_down(start, 2 * _QUOTIENT_BITS + _START_BITS - 26)
    for bits, bits_after in ((26, 28), (28, EXP_BITS)):
        missing = (2 << _QUOTIENT_BITS + bits) - (u + (1 << _QUOTIENT_BITS)) * q
        q = shifted_down(missing * q, _QUOTIENT_BITS + 2 * bits - bits_after)
    return q + negative * ((1 << EXP_BITS) - 2 * q)


def _cut_weights(shape: BatchShape, e: jax.Array, arrays: Arrays) -> jax.Array:
    """W = mask clip(e, -b, b) with 30 fractional bits: the parties clipped their scores (`number_formats`)."""
    largest = largest_weights(shape, EXP_BITS)
    cut = e if largest is None else jnp.clip(e, -largest, largest)
    return cut * (arrays["mask"] << _WEIGHT_BITS - EXP_BITS)[:, None]


def _jointly_clipped(shape: BatchShape, layout: Layout, e: jax.Array, arrays: Arrays) -> jax.Array:
    """W of the clip on the whole record."""
    den = e.sum(-1) if shape.link.normalised else jnp.full(e.shape[0], 1 << EXP_BITS, jnp.int64)
    return clipped_weights(e, den, _squared_norm(layout, e, arrays), arrays["mask"], number_formats.norm_bits(shape))


def _squared_norm(layout: Layout, e: jax.Array, arrays: Arrays) -> jax.Array:
    """nn / C'^2 with 40 + norm_bits fractional bits, never too small: sum_k e_k (sum_l G_kl e_l)."""
    parties = range(len(layout.plated))
    weighted = e @ arrays["prior_gram"]  # a matrix product sends its result only, not every term
    for p in parties:
        weighted = weighted + e * arrays[f"squared_norm_{p}"]
        if any(layout.shared):
            weighted = weighted + jnp.einsum("nkl,nl->nk", arrays[f"gram_{p}"], e)
    return (e * weighted).sum(-1)


def clipped_weights(
    e: jax.Array, den: jax.Array, squared_norm: jax.Array, mask: jax.Array, norm_bits: int
) -> jax.Array:
    """W = floor(w e) with 30 fractional bits, w at most 1 / sqrt(max(den^2, nn)); 0 where the estimate fails."""
    v = jnp.maximum((den * den) << norm_bits, squared_norm)
    v = (v >> _COARSE) + 1
    bits = 2 * EXP_BITS + norm_bits - _COARSE
    root = jax.lax.rsqrt(v.astype(jnp.float64) * 2.0**-bits)
    short_of_one = ((1.0 - (1 - _ROOT_SLACK) * root) * 2.0**ROOT_BITS).astype(jnp.int64)
    w = (1 << ROOT_BITS) - 1 - (short_of_one & ((1 << ROOT_BITS) - 1))
    w = w * within_clip(w, v, bits) * mask
    return shifted_down(w[:, None] * e, ROOT_BITS + EXP_BITS - _WEIGHT_BITS)


def _shifted_up(value: jax.Array, shift: int) -> jax.Array:
    """The ceiling of value / 2^shift. The last negation leaves additive shares, which products need, made once."""
    return -((-value) >> shift)


def shifted_down(value: jax.Array, shift: int) -> jax.Array:
    """The floor of value / 2^shift, as additive shares."""
    return -(((1 << shift) - 1 - value) >> shift)


def within_clip(w: jax.Array, v: jax.Array, bits: int) -> jax.Array:
    """1 where w^2 v <= 1 for sure, 0 elsewhere; w has 26 fractional bits, v has `bits`."""
    product = ((w * v) >> bits) + 1
    return (w * product <= 1 << 2 * ROOT_BITS).astype(jnp.int64)


def _beside(arrays: Arrays, name: str, sizes: Sequence[int], sums: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """Each party's part of sums over all parties' scores side by side: one product takes half the messages of two."""
    held = [arrays[f"{name}_{p}"] for p, size in enumerate(sizes) if size]
    if not held:
        return [jnp.zeros(0, jnp.int64) for _ in sizes]
    found = sums(jnp.concatenate(held, axis=-1))
    ends = list(itertools.accumulate(sizes))
    return [found[:, end - size : end] for end, size in zip(ends, sizes, strict=True)]


def check_nodes(protocol: str, num_parties: int) -> int:
    """How many nodes a protocol takes for so many parties.

    :raises ArgumentError: it has fewer nodes than there are parties.
    """
    nodes = {"ABY3": 3, "CHEETAH": 2, "SEMI2K": max(2, num_parties)}[protocol]
    if num_parties > nodes:
        raise ArgumentError(
            f"protocol={protocol!r} has {nodes} nodes, one for each party, and there are {num_parties} parties; choose "
            "'ABY3' for up to three, or the backend 'crypten'"
        )
    return nodes


def error_bound(shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
    """L2 distance of the revealed sum, without its noise, from the exact one; holds where SPU's root is off by 1e-4.

    As `crypten.number_formats.error_bound`, with M = score_norm C sqrt(P + 1): responsibilities off by (P + 1) 2^-21 +
    2 K 4e-6, times M, and W's unit; scores' roundings; relative to C: what the clip keeps back, the norms' roundings,
    the shortened root and its unit where it is small. Where each party clips its own scores, as in `number_formats`.
    Accuracy alone; the clip does not rest on it.
    """
    P, K, D, C = shape.num_parties, shape.num_components, shape.num_values, shape.clip_norm
    weights = (1 if shape.clips_locally else K) * shape.link.error_factor
    longest = score_norm * C * math.sqrt(P + 1)
    responsibilities = (
        1.01 * (P + 1) * 2.0**-number_formats.LOG_BITS + 2.02 * weights * _EXP_ERROR + K * 2.0**-_WEIGHT_BITS
    )
    if shape.clips_locally:
        return local_error_bound(shape, weight_error=responsibilities, score_norm=score_norm)
    scores = math.sqrt(D) * 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    bits = number_formats.norm_bits(shape)
    least_w = 1 / math.sqrt(2 * (P + 1) * (K * SCORE_BOUND) ** 2)
    too_large = (P + 5) * 2.0**-bits + (P + 1) * number_formats.float64_room(D) + 2.0 ** -(16 + bits)
    root = 1e-4 + _ROOT_SLACK + 2 * 2.0**-ROOT_BITS / min(least_w, 1 / (1 + score_norm * math.sqrt(P + 1) * K))
    clip = number_formats.clip_share_kept(shape) + too_large / 2 + root
    return shape.num_padded * (responsibilities * longest + scores + 1.2 * clip * C)
