"""The secure computation's arithmetic, bit for bit, jitted, in one process: the default for research."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from vertinumpyro.core import compat, ring
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, NORM_FRACTIONAL_BITS
from vertinumpyro.core.types import ComponentPrior, Contribution, ScoreTable
from vertinumpyro.secure.backend import (
    AnyArray,
    BackendInfo,
    Contributions,
    InProcess,
    check_shape,
    over_blocks,
    total,
)
from vertinumpyro.secure.input_bounds import SCORE_BOUND, as_float64, bounded, bounded_prior, weight_of_values
from vertinumpyro.secure.number_formats import (
    RING_LOG_BITS,
    check_local_range,
    clip_slack,
    fixed_point_error_bound,
    fixed_point_format,
    largest_weights,
    score_bound,
    weight_bounds,
)
from vertinumpyro.secure.score_contract import (
    MILLS_COEFFICIENT_BITS,
    MILLS_COEFFICIENTS,
    MILLS_REACH,
    Arithmetic,
)
from vertinumpyro.secure.score_functions import ScoreFunction
from vertinumpyro.secure.shape import BatchShape

_ONE = 1 << EXP_FRACTIONAL_BITS
_LIMB = 16  # scores are split into limbs, so that e (30 bits) times a limb, summed over K, fits 63 bits
_LARGEST_EXACT_K = 1 << (53 - EXP_FRACTIONAL_BITS - _LIMB)
_INVERSE_BITS = 60


@dataclasses.dataclass(frozen=True)
class FixedPoint(InProcess):
    """Integers modulo 2^64 in one process.

    Formal guarantee: every record adds an integer vector whose L2 norm is at most
    clip_norm 2^f, f the grid's fractional bits, whatever the columns hold. The norm is computed from the very
    integers that are released and every rounding in it goes up, the reciprocal square root goes down; nothing
    is truncated after the clip. Where each party clips its own part, `number_formats` has the proof. The accuracy of
    the link's weights changes what is summed, never the bound.
    """

    option: ClassVar[str] = "fixed_point"

    def info(self) -> BackendInfo:
        weights, logs = f"weights {EXP_FRACTIONAL_BITS} fractional bits", f"log densities {RING_LOG_BITS}"
        return BackendInfo(
            name="fixed_point",
            security_model="none (simulates the secure computation in one process)",
            who_learns_what="whoever runs it learns everything; a secure run reveals the noisy sum only",
            dealer="none",
            ring="integers modulo 2^64, products of 128 bits",
            precision=f"{weights}, scores up to 24, at least 11 but of large regressions, {logs}",
        )

    def grid_bits(self, shape: BatchShape) -> int:
        """30 bits of the weights and as many of the scores as the range proof allows."""
        check_local_range(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        return fixed_point_error_bound(shape, score_norm=score_norm)

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Contributions,
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: AnyArray,
    ) -> jax.Array:
        bits = self.grid_bits(shape)

        def summed(contributions: Sequence[Contribution], mask: jax.Array) -> jax.Array:
            return clipped_sum(shape, contributions, prior, mask)

        with compat.x64():
            return ring.decode(over_blocks(summed, contributions, mask) + total(noise_shares), bits)


@final
class RingArithmetic(Arithmetic):
    """`Arithmetic` on ring elements: z with `RING_LOG_BITS` fractional bits, e with `EXP_FRACTIONAL_BITS`."""

    stack = staticmethod(jnp.stack)
    concatenate = staticmethod(jnp.concatenate)

    def exp_below_max(self, z: jax.Array, halvings: int = 0) -> jax.Array:
        """The largest is exactly 1."""
        return ring.exp_nonpositive(z - z.max(axis=-1, keepdims=True), RING_LOG_BITS + halvings)

    def capped_exp(self, z: jax.Array) -> jax.Array:
        return ring.exp_nonpositive(jnp.minimum(z, 0), RING_LOG_BITS)

    def sigmoid_sum(self, z: jax.Array) -> jax.Array:
        """Each sigmoid is in [0, 1] and within 3 units, so `EXP_MAX_ERROR_ULP` holds.

        1 / (1 + u), u = exp(-|z|). Where u is at least 1/2, `ring.exp_nonpositive` is off by 3.7 units, which the
        derivative, at most 1 / (1 + 1/2)^2, makes 1.7; below it is off by at most 2.9, and that makes 1.9 above 1/4,
        and less further down. The quotient, 60 bits over 31, is cut off: one more unit.
        """
        upper = (_ONE * _ONE) // (_ONE + ring.exp_nonpositive(-jnp.abs(z), RING_LOG_BITS))
        return jnp.where(z < 0, _ONE - upper, upper).sum(axis=-1, keepdims=True)

    def clip(self, z: jax.Array) -> jax.Array:
        """clip(z, -1, 1), exactly."""
        one = 1 << RING_LOG_BITS
        return jnp.clip(z, -one, one) << (EXP_FRACTIONAL_BITS - RING_LOG_BITS)

    def mills_ratio(self, t: jax.Array) -> jax.Array:
        """The Chebyshev sum with 40 fractional bits, cut to [0, 1]."""
        reach, bits = MILLS_REACH << RING_LOG_BITS, MILLS_COEFFICIENT_BITS
        x = (jnp.clip(t, -reach, reach) << (bits - RING_LOG_BITS)) // MILLS_REACH
        found = _chebyshev_sum(x, lambda b: ring.multiply_shift(x, b, bits))
        return jnp.clip(found >> (bits - EXP_FRACTIONAL_BITS), 0, _ONE)

    def sign(self, own: jax.Array) -> jax.Array:
        return 2 * (own >> EXP_FRACTIONAL_BITS) - 1

    def times(self, sign: jax.Array, x: jax.Array) -> jax.Array:
        return sign * x

    def portion(self, x: jax.Array, e: jax.Array) -> jax.Array:
        """The product, of 61 bits, cut off."""
        return (x * e) >> EXP_FRACTIONAL_BITS

    def plus(self, e: jax.Array, number: float | int) -> jax.Array:
        return e + round(number * _ONE)


def _chebyshev_sum(x: jax.Array, times_x: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """`score_contract.chebyshev_sum` of the Mills ratio as a loop.

    Written out, each term is read by the next two, and XLA's fusions compute it anew for each: they would not end.
    """

    def step(terms: tuple[jax.Array, jax.Array], coefficient: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        after, now = terms
        return (now, coefficient + 2 * times_x(now) - after), None

    coefficients = jnp.asarray(MILLS_COEFFICIENTS)
    start = jnp.zeros_like(x), jnp.full_like(x, coefficients[-1])
    (after, now), _ = jax.lax.scan(step, start, coefficients[-2:0:-1])
    return coefficients[0] + times_x(now) - after


class Encoded(NamedTuple):
    """Ring elements that enter the computation; from here on there is integer arithmetic only.

    log_densities:  [n, Z] for each party, then the prior's [Z], with `RING_LOG_BITS` fractional bits; own numbers as e.
    plated, shared: each party's scores [n, K, d] and [n, K, s], with `score_bits` fractional bits.
    tables:         each party's tables, with `score_bits` fractional bits.
    prior_scores:   [K, d0].
    """

    log_densities: tuple[Int[Array, "... Z"], ...]
    plated: tuple[Int[Array, "n K d"], ...]
    shared: tuple[Int[Array, "n K s"], ...]
    tables: tuple[tuple[ScoreTable, ...], ...]
    prior_scores: Int[Array, "K d0"]


def clipped_sum(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, mask: jax.Array
) -> Int[Array, " D"]:
    """The exact integer sum of the clipped contributions, on the grid 2^-f. Needs 64-bit mode."""
    check_shape(shape, contributions, prior, mask)
    return ring_sum(shape, encoded(shape, contributions, prior), mask)


def encoded(shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior) -> Encoded:
    """Local part: public bounds, then the ring. In float64, so that the bounds hold as proved."""
    bits = fixed_point_format(shape).score_bits
    link = shape.link
    prior = bounded_prior(as_float64(prior), shape.clip_norm, shape.contributed)
    parties = [
        bounded(
            as_float64(c),
            shape.clip_norm,
            partial(shape.contributed, party=party),
            score_bound=score_bound(shape, party),
            weights=weight_bounds(shape),
        )
        for party, c in enumerate(contributions)
    ]
    inputs = (*(c.log_density for c in parties), prior.log_weights)
    return Encoded(
        tuple(link.encoded(v, RING_LOG_BITS, EXP_FRACTIONAL_BITS) for v in inputs),
        tuple(ring.encode_short(c.plated_scores, bits) for c in parties),
        tuple(ring.encode_short(c.shared_scores, bits) for c in parties),
        tuple(tuple(ScoreTable(ring.encode_short(t.scores, bits), t.codes) for t in c.tables) for c in parties),
        ring.encode_short(prior.scores, bits),
    )


def ring_sum(shape: BatchShape, inputs: Encoded, mask: jax.Array) -> Int[Array, " D"]:
    """sum_n W_nk s_nk in integers, the scores of the prior and of each party side by side."""
    e = shape.link.weights(RingArithmetic(), sum(inputs.log_densities[1:], start=inputs.log_densities[0]))
    W = _cut_weights(shape, e, mask) if shape.clips_locally else _jointly_clipped(shape, e, inputs, mask)
    blocks = [(W.sum(0)[:, None] * inputs.prior_scores).sum(0)]
    for plated, shared, tables in zip(inputs.plated, inputs.shared, inputs.tables, strict=True):
        weighted = ((W, plated), *((weight_of_values(W, table), table.scores) for table in tables))
        sums = [(weights[..., None] * scores).sum(0) for weights, scores in weighted]
        blocks += [jnp.concatenate(sums, axis=-1).ravel(), (W[..., None] * shared).sum((0, 1))]
    return jnp.concatenate(blocks)


def _cut_weights(shape: BatchShape, e: jax.Array, mask: jax.Array) -> Int[Array, "n K"]:
    """W = mask clip(e, -B, B), B = floor(b 2^30): the parties clipped their scores (`number_formats`)."""
    largest = largest_weights(shape, EXP_FRACTIONAL_BITS)
    return (e if largest is None else jnp.clip(e, -largest, largest)) * mask[:, None].astype(jnp.int64)


def _jointly_clipped(shape: BatchShape, e: jax.Array, inputs: Encoded, mask: jax.Array) -> Int[Array, "n K"]:
    """W of the clip on the whole record: one reciprocal square root for each."""
    magnitude = jnp.abs(e) if shape.link.signed else e  # so that rounding up lengthens
    norm = _NormScale.of(shape)
    squared_norm = _shared_norm(e, inputs.prior_scores, norm)
    for plated, shared, tables in zip(inputs.plated, inputs.shared, inputs.tables, strict=True):
        squared_norm += _plated_norm(magnitude, plated, tables, norm) + _shared_norm(e, shared, norm)
    return _clipped_weights(shape.link, e, squared_norm, mask)


class _NormScale(NamedTuple):
    """Turns sums of squares of encoded scores into squared norms / C^2 with 24 fractional bits, rounding up.

    1 / C^2 = inverse 2^-60 4^-exponent, rounded up from exact rationals, C being the clip norm less
    `clip_slack`.
    """

    score_bits: int
    exponent: int
    inverse: int

    @classmethod
    def of(cls, shape: BatchShape) -> _NormScale:
        exponent = math.frexp(shape.clip_norm)[1] - 1
        inner = Fraction(shape.clip_norm) * (1 - clip_slack(shape))
        inverse = math.ceil(Fraction(4) ** exponent * 2**_INVERSE_BITS / inner**2)
        return cls(fixed_point_format(shape).score_bits, exponent, inverse)

    def apply(self, square: jax.Array, fractional_bits: int) -> jax.Array:
        """Ceiling of square 2^-fractional_bits / C^2, with 24 fractional bits."""
        shift = _INVERSE_BITS + fractional_bits + 2 * self.exponent - NORM_FRACTIONAL_BITS
        return ring.multiply_shift(square, jnp.int64(self.inverse), shift, round_up=True)


def _plated_norm(
    magnitude: jax.Array, scores: jax.Array, tables: Sequence[ScoreTable], norm: _NormScale
) -> Int[Array, " n"]:
    """sum_k |e_k|^2 ||s_k||^2 / C^2 with 24 fractional bits, rounded up; ||s_k||^2 is local to a party."""
    square = sum((_square_sum(table.scores)[table.codes] for table in tables), start=_square_sum(scores))
    q = norm.apply(square, 2 * norm.score_bits)
    weighted = ring.multiply_shift(magnitude, q, EXP_FRACTIONAL_BITS, round_up=True)
    return ring.multiply_shift(magnitude, weighted, EXP_FRACTIONAL_BITS, round_up=True).sum(-1)


def _square_sum(scores: jax.Array) -> Int[Array, "n K"]:
    """sum_d s_d^2, which the range proof keeps below 2^63."""
    return (scores * scores).sum(-1)


def _limbs(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    return scores >> _LIMB, scores & ((1 << _LIMB) - 1)


def _shared_norm(e: jax.Array, scores: jax.Array, norm: _NormScale) -> Int[Array, " n"]:
    """|| sum_k e_k s_k ||^2 / C^2 with 24 fractional bits, rounded up, for scores [n, K, s] or [K, s].

    The sum y is exact in two limbs; floor(y 2^-16) and its successor bracket it, and the larger one is
    squared.
    """
    high, low = _limbs(scores)
    floor = _summed(e, high) + (_summed(e, low) >> _LIMB)
    magnitude = jnp.maximum(jnp.abs(floor), jnp.abs(floor + 1))
    bits = NORM_FRACTIONAL_BITS - 2 * norm.exponent
    shift = 2 * (EXP_FRACTIONAL_BITS + norm.score_bits - _LIMB) - bits
    square = ring.multiply_shift(magnitude, magnitude, shift, round_up=True).sum(-1)
    return norm.apply(square, bits)


def _summed(e: jax.Array, limbs: jax.Array) -> Int[Array, "n s"]:
    """sum_k e_k limb_k, exactly, for limbs [n, K, s] or [K, s].

    Limbs are at most 2^16, so sums of up to 128 products with e (30 bits) are at most 2^53 and float64 holds them: then
    a matrix product of the processor's own serves, in any order of its sums.
    """

    def in_integers(e: jax.Array, limbs: jax.Array) -> jax.Array:
        return (e[..., None] * limbs).sum(-2)

    def in_float64(e: jax.Array, limbs: jax.Array) -> jax.Array:
        return (e.astype(jnp.float64) @ limbs.astype(jnp.float64)).astype(jnp.int64)

    if limbs.ndim == 2 and limbs.shape[0] <= _LARGEST_EXACT_K:
        return ring.with_ieee_float64(in_float64, in_integers, e, limbs)
    return in_integers(e, limbs)


def _clipped_weights(link: ScoreFunction, e: jax.Array, squared_norm: jax.Array, mask: jax.Array) -> Int[Array, "n K"]:
    """W = mask floor(w e), w = floor(1 / sqrt(max(den^2, nn / C^2))): clip factor times the link's weight."""
    den = e.sum(-1) if link.normalised else jnp.int64(_ONE)
    den_squared = ring.multiply_shift(den, den, 2 * EXP_FRACTIONAL_BITS - NORM_FRACTIONAL_BITS)
    w = ring.reciprocal_sqrt(jnp.maximum(den_squared, squared_norm))
    return ((w[:, None] * e) >> EXP_FRACTIONAL_BITS) * mask[:, None].astype(jnp.int64)
