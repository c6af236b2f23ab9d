r"""Exact shares of discrete Laplace noise: differences of Pólya variates, drawn as the jumps of a Poisson process.

The discrete Laplace law with scale b has probability proportional to e^{-|x|/b} on the integers. It is the law of
G - G' for independent geometric G, G' with ratio λ = e^{-1/b}, and a geometric variate is infinitely divisible: for
every r > 0 the Pólya (negative binomial) law has the generating function

    ((1 - λ) / (1 - λz))^r = exp( Σ_{k>=1} (r λ^k / k) (z^k - 1) ),

so m independent Pólya variates with r = 1/m sum to a geometric one. A share is the difference of two Pólya(1/m)
variates: any m of the shares are together exactly discrete Laplace noise, and further ones, being independent, only
post-process it.

**Drawing one.** The right hand side says how: a Pólya variate is the sum of the points of a Poisson process on
1, 2, 3, ... with intensity r λ^k / k. In the dyadic block [2^j, 2^{j+1}) that is at most r 2^-j, so draw Poisson(r)
candidates, place each uniformly in the block, and keep it with probability (2^j / k) e^{-k/b}: thinning is exact.
Blocks end at the first 2^J >= 512 b; a variate would have a point beyond them with probability below 2 e^-512,
which is a δ below 1e-200 for a million variates and is left out.

**Exactness.** Both decisions compare a uniform real with a computable number. Sixty-four bits of it decide, unless
they fall within a float's error of the number; then *the same* uniform gets more bits and `decimal` decides in
intervals, as in `discrete_gaussian`.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

from vertinumpyro.core.errors import ArgumentError, RangeError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy.discrete_gaussian import _exp_of_minus, _Uniform

_TAIL = 512
_MOST_BLOCKS = 60
_MARGIN = 2.0**-40
_PIECE = 2**17  # variates at a time


def sample_laplace_shares(scale: int | Fraction, parts: int, size: int, source: RandomSource) -> np.ndarray:
    """Independent shares of which any `parts` sum to exact discrete Laplace noise, int64 `[size]`. Secret.

    :param scale: b > 0 in grid units, an integer or a `Fraction`.
    :param parts: m, how many shares make a whole; 1 draws whole noise.
    :param size: how many.
    :param source: the random bits; `SystemRandomSource()` in a release.
    :raises ArgumentError: `scale` is not an exact number of at least 1, or `parts` or `size` is out of range.
    :raises RangeError: the noise might not fit into int64.
    """
    require_laplace_drawable(scale)
    if parts < 1 or size < 0:
        raise ArgumentError(f"parts must be at least 1 and size not negative, got {parts} and {size}")
    out = np.empty(size, np.int64)
    for start in range(0, size, _PIECE):
        piece = out[start : start + _PIECE]
        piece[:] = _polya(Fraction(scale), parts, piece.size, source)
        piece -= _polya(Fraction(scale), parts, piece.size, source)
    return out


def require_laplace_drawable(scale: int | Fraction) -> None:
    """Raises whatever `sample_laplace_shares` would raise for this scale; draws nothing."""
    if isinstance(scale, bool) or not isinstance(scale, int | np.integer | Fraction) or scale < 1:
        raise ArgumentError("scale must be an int or a Fraction of at least 1 grid unit: a float would round it")
    if _num_blocks(Fraction(scale)) > _MOST_BLOCKS - 6:
        raise RangeError("the noise exceeds 2^45 grid units: lower feature_bits or raise epsilon")


def _num_blocks(scale: Fraction) -> int:
    return math.ceil(_TAIL * scale).bit_length()


def _polya(scale: Fraction, parts: int, size: int, source: RandomSource) -> np.ndarray:
    """Independent Pólya(1/parts) variates with ratio e^{-1/scale}, int64 `[size]`."""
    total = np.zeros(size, np.int64)
    for block in range(_num_blocks(scale)):
        owners = np.repeat(np.arange(size), _poisson(parts, size, source))
        points = (source.uint64(owners.size) & np.uint64(2**block - 1)).astype(np.int64) + 2**block
        kept = _thinned(points, block, scale, source)
        np.add.at(total, owners[kept], points[kept])
    return total


def _thinned(points: np.ndarray, block: int, scale: Fraction, source: RandomSource) -> np.ndarray:
    """Which points stay: each with probability (2^block / k) e^{-k/scale}, exactly."""
    words = source.uint64(points.size)
    # The float's relative error: one rounding each of k, the quotients, and 4 units of exp: far below 2^-45.
    bound = 2.0**block / points * np.exp(points / -float(scale))
    gap = words * 2.0**-64 - bound
    kept = gap < 0
    for i in np.flatnonzero(np.abs(gap) < _MARGIN):
        kept[i] = _decide(int(words[i]), int(points[i]), block, scale, source)
    return kept


def _decide(word: int, point: int, block: int, scale: Fraction, source: RandomSource) -> bool:
    """Whether U < (2^block / k) e^{-k/scale} for the uniform U that begins with `word`."""
    uniform = _Uniform(word, 64, source)
    while True:
        ratio, exponent = Fraction(point, 2**block), Fraction(point) / scale
        if exponent > uniform.bits:  # e^{-E} < 2^{-bits}: below any uniform with a bit set
            if uniform.head > 0:
                return False
        else:
            low, high = _exp_of_minus(exponent, uniform.bits)
            if ratio * (uniform.head + 1) <= low * 2**uniform.bits:
                return True
            if ratio * uniform.head >= high * 2**uniform.bits:
                return False
        uniform.extend()


def _poisson(parts: int, size: int, source: RandomSource) -> np.ndarray:
    """Independent Poisson(1/parts) variates, by inversion of exact bounds."""
    words = source.uint64(size)
    steps = _poisson_steps(parts)
    counts = np.searchsorted(steps, words, side="right")
    # A word equal to a step begins a uniform on either side of it; the last step stands for everything beyond.
    for i in np.flatnonzero(np.isin(words, steps)):
        counts[i] = _invert_poisson(parts, int(words[i]), source)
    return counts


@functools.lru_cache(maxsize=64)
def _poisson_steps(parts: int) -> np.ndarray:
    """floor(2^64 F(0)), floor(2^64 F(1)), ... up to the first step within 2^-64 of 1."""
    steps = [math.floor(low * 2**64) for low, _ in _poisson_bounds(parts, 64, 40)]
    kept = [min(step, 2**64 - 1) for step in steps]
    array = np.array(sorted(set(kept)), np.uint64)
    array.flags.writeable = False
    return array


def _poisson_bounds(parts: int, bits: int, terms: int) -> list[tuple[Fraction, Fraction]]:
    """Bounds of F(0), F(1), ... of Poisson(1/parts)."""
    low, high = _exp_of_minus(Fraction(1, parts), 2 * bits + 128)
    sums, weight, total = [], Fraction(1), Fraction(0)
    for k in range(terms):
        total += weight
        sums.append((low * total, high * total))
        weight /= parts * (k + 1)
    return sums


def _invert_poisson(parts: int, word: int, source: RandomSource) -> int:
    """F^{-1}(U) of the uniform U that begins with `word`."""
    uniform = _Uniform(word, 64, source)
    while True:
        low, high = Fraction(uniform.head, 2**uniform.bits), Fraction(uniform.head + 1, 2**uniform.bits)
        bounds = _poisson_bounds(parts, uniform.bits, 40 + uniform.bits)
        below = sum(top <= low for _, top in bounds)
        if below == sum(bottom < high for bottom, _ in bounds):
            return below
        uniform.extend()
