r"""Noise shares for many clients: exact small discrete Gaussians from tables, added up on a lattice of scales.

A client's share of variance S (grid units², an integer) is drawn as

    x = y_1 + k_1 (y_2 + k_2 (y_3 + ...)),     y_l exactly N_Z(0, V_l),     S = V_1 + k_1² (V_2 + k_2² ...)

**Law.** Let Y ~ N_Z(0, V) and Z ~ N_Z(0, W) be independent. Completing the square, Y + kZ has at every integer
the mass of N_Z(0, V + k²W) times a constant times sum_z exp(-(z - c)²/2r²) with r² = VW/(V + k²W). By Poisson's
summation that sum is r√(2π) within a factor e^{±2ρ}, ρ = 2e^{−2π²r²}, whatever c is. Every split below has
r² >= 9: a share is within e^{±1e-75} of the exact N_Z(0, S), the factor that `privacy.adversary` already counts
for a sum of two shares; all shares of a run together change ε by less than 1e-50, and the accounting is that of
N_Z(0, S).

**Exactness of each y.** Inversion: y = F^{-1}(U) for a uniform real U. Two bytes of U decide but where a step of
F lies in their interval; then six further bytes of *the same* U are compared with floor(2^64 F), and where even
those are equal to a step, U is extended until `decimal` bounds of F decide. So y has exactly the law N_Z(0, V) if
the source's bits are uniform, and costs about two nanoseconds.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
from fractions import Fraction
from typing import final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.discrete_gaussian import require_drawable

SMALLEST_SHARE = 18
_LARGEST_TABLE = 4096  # variance: about 600 steps of F, so that two bytes leave one draw in 150 in doubt
_LARGEST_STRIDE = 20  # V_1 is about 9.6 k²
_SMALLEST_R2 = Fraction(96, 10)
_IN_DOUBT = np.int16(-(2**15))
_DIGITS = 60
_PIECE = 2**17  # variates at a time: their table and they stay in the processor's cache


def draw_noise_share(variance: int, size: int, source: RandomSource) -> np.ndarray:
    """Independent noise shares of variance S, int64 `[size]`; see the module for their law. Secret.

    :param variance: S in grid units², an integer, at least 18.
    :param size: how many.
    :param source: the random bits.
    :raises ArgumentError: S is not an integer of at least 18, or `size` is negative.
    :raises RangeError: 12 standard deviations do not fit into int64.
    """
    law = ShareLaw.of(variance)
    if size < 0:
        raise ArgumentError(f"size must not be negative, got {size}")
    return law.draw(size, source).astype(np.int64, copy=False)


@final
@dataclasses.dataclass(frozen=True)
class ShareLaw:
    """How a share of one variance is put together: x = sum_l scale_l y_l.

    :ivar tables: the laws of the y_l.
    :ivar scales: 1, k_1, k_1 k_2, ...
    """

    tables: tuple[Table, ...]
    scales: tuple[int, ...]

    @classmethod
    @functools.lru_cache(maxsize=64)
    def of(cls, variance: int) -> ShareLaw:
        """The law of a share; its tables are made once."""
        if isinstance(variance, bool) or not isinstance(variance, int | np.integer) or variance < SMALLEST_SHARE:
            raise ArgumentError(f"a noise share's variance must be an integer of at least {SMALLEST_SHARE} grid units²")
        require_drawable(int(variance))
        parts = split_variance(int(variance))
        return cls(tuple(Table.of(part) for part, _ in parts), tuple(scale for _, scale in parts))

    def draw(self, size: int, source: RandomSource) -> np.ndarray:
        """Independent shares `[size]`, in the narrowest of int16, int32 and int64 that holds them."""
        # A table's values are below 2^11, so a sum of three scales is below 20 * 20 * 2^12 < 2^31.
        if len(self.tables) == 1 and size <= 2 * _PIECE:
            return self.tables[0].draw(size, source)
        out = np.empty(size, (np.int16, np.int32, np.int32, np.int64)[min(len(self.tables), 4) - 1])
        for start in range(0, size, _PIECE):
            self._draw_into(out[start : start + _PIECE], source)
        return out

    def _draw_into(self, out: np.ndarray, source: RandomSource) -> None:
        out[:] = self.tables[0].draw(out.size, source)
        for table, scale in zip(self.tables[1:], self.scales[1:], strict=True):
            out += np.multiply(table.draw(out.size, source), scale, dtype=out.dtype)


def split_variance(variance: int) -> list[tuple[int, int]]:
    """[(V_l, scale_l)] with sum_l V_l scale_l² = S and r² >= 9 at every split."""
    parts, scale = [], 1
    while variance > _LARGEST_TABLE:
        # both halves alike (V_1 about 9.6 k², V_2 about S / k²), but V_1 never past its table
        stride = min(_LARGEST_STRIDE, max(5, math.isqrt(math.isqrt(variance // 10))))
        rest = (variance - math.ceil(_SMALLEST_R2 * stride**2)) // stride**2
        parts.append((variance - stride**2 * rest, scale))
        variance, scale = rest, scale * stride
    return [*parts, (variance, scale)]


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Inversion of the distribution function of N_Z(0, V), V an integer of at most a few thousand.

    :ivar variance: V.
    :ivar reach: the steps are F(-reach), F(-reach + 1), ...; beyond them U is in doubt.
    :ivar steps: floor(2^64 F), uint64, increasing.
    :ivar by_two_bytes: the value that the two leading bytes of U fix, or a mark that they do not.
    """

    variance: int
    reach: int
    steps: np.ndarray
    by_two_bytes: np.ndarray

    @classmethod
    @functools.lru_cache(maxsize=256)
    def of(cls, variance: int) -> Table:
        """The table of one variance."""
        reach = _reach(variance, _DIGITS)
        largest = 2**64 - 1  # 0 < F < 1, whatever its bounds
        scaled = [
            (max(0, math.floor(low * 2**64)), min(largest, math.floor(high * 2**64)))
            for low, high in cumulative(variance, reach, _DIGITS)
        ]
        if any(low != high for low, high in scaled):  # bounds 1e-55 apart straddle a multiple of 2^-64
            raise ArgumentError("variance: a step of the distribution function cannot be placed; choose another")
        steps = np.array([low for low, _ in scaled], np.uint64)
        cells = (steps >> np.uint64(48)).astype(np.int64)
        values = np.searchsorted(steps, np.arange(2**16, dtype=np.uint64) << np.uint64(48), side="left") - reach
        by_two_bytes = values.astype(np.int16)
        by_two_bytes[cells] = _IN_DOUBT
        for array in (steps, by_two_bytes):
            array.flags.writeable = False
        return cls(variance, reach, steps, by_two_bytes)

    def draw(self, size: int, source: RandomSource) -> np.ndarray:
        """Independent variates, int16 `[size]`."""
        leading = np.frombuffer(source.random_bytes(2 * size), "<u2")
        values = self.by_two_bytes.take(leading)
        doubtful = np.flatnonzero(values == _IN_DOUBT)
        if doubtful.size:
            values[doubtful] = self._decide(leading[doubtful].astype(np.uint64), source)
        return values

    def _decide(self, leading: np.ndarray, source: RandomSource) -> np.ndarray:
        """The values of uniforms whose first two bytes are known, by six further bytes of each."""
        words = leading << np.uint64(48) | source.uint64(leading.size) >> np.uint64(16)
        found = np.searchsorted(self.steps, words, side="left")
        equal = self.steps[found] == words  # the last step is 2^64 - 1, so `found` is in range
        values = (found - self.reach).astype(np.int16)
        for i in np.flatnonzero(equal):
            values[i] = invert_exactly(self.variance, int(words[i]), source)
        return values


def invert_exactly(variance: int, word: int, source: RandomSource) -> int:
    """F^{-1}(U) for a uniform U whose first 64 bits are known; draws the same U's further bits as needed."""
    bits = 64
    while True:
        digits = bits // 3 + 40
        reach = _reach(variance, digits)
        bounds = cumulative(variance, reach, digits)
        low, high = Fraction(word, 2**bits), Fraction(word + 1, 2**bits)
        below = sum(high_f <= low for _, high_f in bounds)
        not_above = sum(low_f < high for low_f, _ in bounds)
        if below == not_above and 0 < below < len(bounds):
            return below - reach
        word = word << 64 | int.from_bytes(source.random_bytes(8), "big")
        bits += 64


def cumulative(variance: int, reach: int, digits: int) -> list[tuple[Fraction, Fraction]]:
    """Bounds of F(-reach), ..., F(reach) for N_Z(0, V), within about (2 reach + 1) 10^-digits of each other.

    Every weight and every sum is right to `digits` + 15 places; what lies beyond `reach` is added to the slack.
    """
    context = decimal.Context(prec=digits + 15)

    def weight(x: int) -> decimal.Decimal:
        return context.exp(context.divide(decimal.Decimal(-x * x), decimal.Decimal(2 * variance)))

    weights = [weight(x) for x in range(reach + 1)]
    sums, total = [], decimal.Decimal(0)
    for x in range(-reach, reach + 1):
        total = context.add(total, weights[abs(x)])
        sums.append(Fraction(total))
    # Beyond `reach` weights fall faster than a geometric series with ratio w(reach + 1) / w(reach) <= e^{-reach/V}.
    ratio = Fraction(context.exp(context.divide(decimal.Decimal(-reach), decimal.Decimal(variance))))
    tails = 2 * Fraction(weights[reach]) * ratio / (1 - ratio)
    slack = Fraction(10) ** -digits * (2 * reach + 1) + 2 * tails
    return [((s - slack) / (sums[-1] + slack), (s + slack) / (sums[-1] - slack)) for s in sums]


def _reach(variance: int, digits: int) -> int:
    """Where the weights have fallen below 10^-digits: 5 digits V / 2V = 2.5 digits > digits ln 10."""
    return math.isqrt(5 * digits * variance) + 1
