r"""An exact sampler of the discrete Gaussian, vectorised in NumPy.

The target is \(N_\mathbb{Z}(0, S)\): an integer x has probability proportional to exp(−x²/2S). Rejection
after Canonne, Kamath and Steinke (2020), with a proposal that needs fewer random bits. Let t = 2^k·t',
t' ≤ 2^15, be a little above √S. One proposal is

    h = ⌊−t'·ln W⌋     W uniform on (0, 1): P(h ≥ j) = P(W ≤ e^{−j/t'}) = e^{−j/t'}, a geometric law
    l                  k uniform bits
    x = 2^k·h + l      so P(x) ∝ e^{−h/t'} = e^{−(x−l)/t}
    sign               one bit; (−, 0) is thrown away, or 0 would count twice

and it is accepted when A < e^{−E}, A uniform on (0, 1), E = (x − S/t)²/2S + l/t ≥ 0: the product
e^{−(x−l)/t}·e^{−E} is exp(−x²/2S) times a constant. About 1.3 proposals make a variate.

**Exactness.** W and A are real numbers of which we know the leading bits. A float64 *filter* decides; when
the unknown bits and the rounding errors leave a doubt, *the same* uniform gets more bits and `decimal`,
whose exp and ln are correctly rounded, decides in intervals. So every decision is the one that infinite
precision would take on that uniform: the law is exact, not close. To redraw in doubt would bias it, since
doubt is likelier at some values than at others.

**Why the filter is right.** Let u = 2^-53, and let np.log and np.exp err by at most 16 units in the last
place (NumPy promises 4).

- h: let w be W's 64 leading bits, and w ≥ 2^44, so that 0 ≤ −ln W < 14. Against −ln W the float
  −ln(fl(w)·2^-64) errs by u for the conversion of w, 2^-44 for W's unknown bits, and 16·2^-49 for the
  logarithm: below 2^-43. Times t' ≤ 2^15 that is 2^-28, and the product rounds by 2^15·14·u < 2^-34.
  So |error| < 2^-27, and a float farther than 2^-22 from every integer has the right floor.
- acceptance: with r = 1/√S, z = x·r and c = √S/t ≤ 1 as computed, each is right to 2^-50 relative, so E to
  |z−c|·(z+c)·2^-50 + E·2^-50 + 2^-60, and e^{−E} to e^{−E} times that plus 2^-49. Since
  e^{−y²/2}·y·(y+2) < 2.3, all of it is below 2^-47. A's b leading bits, read as the integer a, say
  a·2^-b ≤ A ≤ (a+1)·2^-b: for e^{−E} outside [a·2^-b − 2^-40, (a+1)·2^-b + 2^-40] the answer is sure.

Where w < 2^44 (one in 2^20), the exact path computes x as a Python integer; otherwise h < 14·t' and x stays
below 2^63.
"""

import dataclasses
import decimal
import math
from fractions import Fraction

import numpy as np

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource

_SCALE_BITS = 15
_SMALLEST_W = 2.0**44
_LOG_MARGIN = 2.0**-22
_EXP_MARGIN_BITS = 40  # also the most bits of A that the filter reads: a and a + 1 are exact in float64
_CHUNK = 8192  # proposals at a time, so that the working arrays stay in the processor's cache
_LARGEST_TAIL = 2**62
_SMALLEST_VARIANCE = Fraction(1, 2**64)  # float64 holds z² down to here


def sample_discrete_gaussian(variance: int | Fraction, size: int, source: RandomSource) -> np.ndarray:
    r"""Draws independent exact variates of the discrete Gaussian.

    Claim: when `source` yields independent uniform bits, every integer x is drawn with probability
    exactly \(e^{-x^2/2S} / \sum_{y \in \mathbb{Z}} e^{-y^2/2S}\). The variance of that law is at most S, and
    S to within a factor 1 ± 1e-6 from S = 1 on.

    :param variance: S > 0 in squared grid units, an integer or a `Fraction`; never a float, so that what the accounting
        states is what is drawn.
    :param size: the number of variates.
    :param source: the random bits; `SystemRandomSource()` in a release.
    :return: int64 `[size]`.
    :raises ArgumentError: `variance` is not a positive exact number, or `size` is negative.
    :raises RangeError: 12·√variance exceeds 2^62, so that a variate might not fit into int64.
    """
    law = _Law.of(variance)
    if size < 0:
        raise ArgumentError(f"size must not be negative, got {size}")
    out = np.empty(size, np.int64)
    filled = 0
    while filled < size:
        wanted = size - filled
        values = law.propose(min(_CHUNK, int(1.36 * wanted) + 64), source)[:wanted]
        out[filled : filled + values.size] = values
        filled += values.size
    return out


def require_drawable(variance: int | Fraction) -> None:
    """Raises whatever `sample_discrete_gaussian` would raise for this variance; draws nothing."""
    _Law.of(variance)


@dataclasses.dataclass(frozen=True)
class _Law:
    """The public constants of one target: S = `variance`, k = `low_bits`, t' = `scale`."""

    variance: Fraction
    low_bits: int
    scale: int

    @classmethod
    def of(cls, variance: int | Fraction) -> "_Law":
        exact = _exact_variance(variance)
        if 144 * exact > _LARGEST_TAIL**2:
            raise RangeError(
                "12 standard deviations of the noise exceed 2^62 grid units: "
                "lower grid_bits, clip_norm or noise_multiplier"
            )
        root = math.isqrt(math.floor(exact)) + 1  # above √S
        low_bits = max(0, root.bit_length() - _SCALE_BITS)
        return cls(exact, low_bits, (root >> low_bits) + 1 if low_bits else root)

    @property
    def proposal_scale(self) -> int:
        """t, in grid units."""
        return self.scale << self.low_bits

    @property
    def head_bits(self) -> int:
        """How many leading bits of A a proposal carries: 19 or more, as k ≤ 44."""
        return min(_EXP_MARGIN_BITS, 63 - self.low_bits)

    def propose(self, count: int, source: RandomSource) -> np.ndarray:
        """Makes `count` proposals and returns the accepted ones in their order, int64."""
        words = source.uint64(2 * count)
        leading, rest = words[:count], words[count:]
        # Disjoint bits of one uniform word are independent: A | (unused) | l | sign.
        heads = (rest >> np.uint64(64 - self.head_bits)).view(np.int64)
        lows = ((rest >> np.uint64(1)) & np.uint64(2**self.low_bits - 1)).view(np.int64)
        signs = 1 - 2 * (rest & np.uint64(1)).view(np.int64)

        highs, in_doubt = self._filter_geometric(leading)
        values = (highs << self.low_bits) | lows
        accepted, close = self._filter_acceptance(values, lows, heads)
        in_doubt |= close
        accepted &= (values != 0) | (signs > 0)
        values *= signs
        for i in np.flatnonzero(in_doubt):
            bits = (int(leading[i]), int(lows[i]), int(signs[i]), int(heads[i]))
            values[i], accepted[i] = self._decide_exactly(*bits, source)
        return values[accepted]

    def _filter_geometric(self, leading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """⌊−t'·ln W⌋ and where that floor is in doubt."""
        w = np.maximum(leading.astype(np.float64), _SMALLEST_W)
        scaled = np.log(w * 2.0**-64) * -float(self.scale)
        floor = np.floor(scaled)
        in_doubt = np.abs(scaled - floor - 0.5) > 0.5 - _LOG_MARGIN
        in_doubt |= w == _SMALLEST_W
        return floor.astype(np.int64), in_doubt

    def _filter_acceptance(
        self, magnitudes: np.ndarray, lows: np.ndarray, heads: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether A < e^{−E}, and where that is in doubt."""
        root = math.sqrt(self.variance)
        z = magnitudes * (1.0 / root) - root / self.proposal_scale
        exponent = z * z * -0.5
        if self.low_bits:
            exponent -= lows * (1.0 / self.proposal_scale)
        gap = heads - np.exp(exponent) * 2.0**self.head_bits
        margin = 2.0 ** (self.head_bits - _EXP_MARGIN_BITS)
        accepted = gap < -1.0 - margin
        return accepted, (gap < margin) & ~accepted

    def _decide_exactly(self, leading: int, low: int, sign: int, head: int, source: RandomSource) -> tuple[int, bool]:
        high = _floor_of_scaled_log(_Uniform(leading, 64, source), self.scale)
        magnitude = (high << self.low_bits) | low
        if magnitude == 0 and sign < 0:
            return 0, False
        t = self.proposal_scale
        exponent = (magnitude - self.variance / t) ** 2 / (2 * self.variance) + Fraction(low, t)
        if not _is_below_exp(_Uniform(head, self.head_bits, source), exponent):
            return 0, False
        if magnitude >= 2**63:  # probability below 1e-100
            raise RangeError("a noise variate left int64: lower grid_bits, clip_norm or noise_multiplier")
        return sign * magnitude, True


def _exact_variance(variance: int | Fraction) -> Fraction:
    if isinstance(variance, bool) or not isinstance(variance, int | np.integer | Fraction):
        raise ArgumentError("variance must be an int or a Fraction: a float would round what is accounted")
    exact = variance if isinstance(variance, Fraction) else Fraction(int(variance))
    if exact < _SMALLEST_VARIANCE:
        raise ArgumentError("variance must be positive and at least 2^-64; for no noise, draw nothing")
    return exact


class _Uniform:
    """A uniform real number on (0, 1) known to lie in [head, head + 1]·2^-bits; more bits on demand."""

    def __init__(self, head: int, bits: int, source: RandomSource) -> None:
        self.head, self.bits, self._source = head, bits, source

    def extend(self) -> None:
        self.head = (self.head << 64) | int.from_bytes(self._source.random_bytes(8), "big")
        self.bits += 64


def _floor_of_scaled_log(uniform: _Uniform, scale: int) -> int:
    """⌊−scale·ln W⌋, exactly."""
    while True:
        if uniform.head > 0:
            smallest = math.floor(scale * _minus_log(uniform.head + 1, uniform.bits)[0])
            if smallest == math.floor(scale * _minus_log(uniform.head, uniform.bits)[1]):
                return smallest
        uniform.extend()


def _is_below_exp(uniform: _Uniform, exponent: Fraction) -> bool:
    """Whether A < e^{−exponent}, exactly."""
    while True:
        # e^{−E} < 2^{−E}, so from E ≥ bits on it is below A as soon as one known bit is set; this also
        # keeps absurdly small powers away from the rational arithmetic.
        if exponent >= uniform.bits:
            if uniform.head > 0:
                return False
        else:
            smallest, largest = _exp_of_minus(exponent, uniform.bits)
            if uniform.head + 1 <= smallest * 2**uniform.bits:
                return True
            if uniform.head >= largest * 2**uniform.bits:
                return False
        uniform.extend()


def _minus_log(head: int, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds of −ln(head·2^-bits)."""
    context = _context(bits)
    # head·2^-bits = head·5^bits·10^-bits: exact in decimal, with at most bits + 1 digits.
    logarithm = context.ln(context.scaleb(decimal.Decimal(head * 5**bits), -bits))
    return -Fraction(context.next_plus(logarithm)), -Fraction(context.next_minus(logarithm))


def _exp_of_minus(exponent: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Bounds of e^{−exponent}."""
    numerator, denominator = decimal.Decimal(-exponent.numerator), decimal.Decimal(exponent.denominator)
    down, up = _context(bits, decimal.ROUND_FLOOR), _context(bits, decimal.ROUND_CEILING)
    smallest = down.next_minus(down.exp(down.divide(numerator, denominator)))
    largest = up.next_plus(up.exp(up.divide(numerator, denominator)))
    return Fraction(smallest), Fraction(largest)


def _context(bits: int, rounding: str = decimal.ROUND_HALF_EVEN) -> decimal.Context:
    # A context of its own, since the global one may be the user's. Emin bounds the denominators that
    # Fraction meets: next_plus(0), where ln(1) occurs, is 10^(Emin - prec + 1).
    return decimal.Context(prec=bits + 30, rounding=rounding, Emin=-2 * bits - 100, Emax=10**6, traps=[])
