"""Sigmoids on shares, and a probit's slope, from sines of a masked z: in as many rounds as one exponential.

z is opened as y = z + r, r uniform, and sin(w z) = sin(w y) cos(w r) - cos(w y) sin(w r): public factors times numbers
that the dealer shares, for as many w as a series takes. With L = 64 = 2^6, of which the ring's 2^64 is a multiple,

    S(z) = sum over odd k of b_k sin(2 pi k z / L),    b_k = (4 pi / L) / sinh(2 pi^2 k / L),

is sum_j (-1)^j f(z - j L / 2) with f(z) = sigmoid(z) - 1/2, whose derivative's transform is pi w / sinh(pi w). So
|S - f| <= exp(-(L / 2 - |z|)), the first of terms that alternate and fall: 1.6e-8 for |z| <= `REACH` = 14. What the
series has beyond `NUM_WAVES` sums to b_47 / (1 - exp(-4 pi^2 / L)), below 4.4e-7.

**Roundings.** A sine from two tables of 30 bits is off by 2.3 units, its product with b_k in 31 bits by one and a half
more, the dealer's by half a unit of 26 bits: for all waves together 5e-8. So 1/2 + S as it is computed is within
`WAVES_ERROR` of sigmoid(z), and in (0, 1) up to `REACH`, because sigmoid(z) is 8.3e-7 away from both ends there.
Beyond `REACH` it is 0 or 1, by comparisons of the same y, which are exact: off by 8.4e-7. One truncation, of the sum
of as many sigmoids as a link adds up, is off by less than a unit of 2^-20 and exact for whole numbers, so that a sum
of S of them comes out from 0 to S, whatever was rounded, and off by at most S 8.4e-7 + 2^-20.

A probit's phi(t) / Phi(t) is a series of the same waves (`mills_ratio`), found by least squares and looked at on a grid
whose gaps the series' second derivative leaves no room (`tests/secure/test_residual_links.py`).

**Nothing is revealed.** r is uniform and used for this opening alone; see `comparison`.
"""

from __future__ import annotations

import decimal
import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from vertinumpyro.secure.crypten.dealer import Request
from vertinumpyro.secure.crypten.number_formats import (
    EXP_BITS,
    FACTOR_BITS,
    LOG_BITS,
    MILLS_COSINES,
    MILLS_REACH,
    MILLS_SINES,
    PERIOD_BITS,
    SINE_BITS,
    TABLE_BITS,
    WAVE_BITS,
    Hidden,
    depth_bits,
    frequencies,
    unpacked,
)

if TYPE_CHECKING:
    from vertinumpyro.secure.crypten.engine import Engine


REACH = 14
"""sigmoid(z) beyond it counts as 0 or 1."""

WAVES_ERROR = 5.1e-7
"""|1/2 + S - sigmoid(z)| as computed, before it is truncated to `EXP_BITS`."""

_PRODUCT_BITS = FACTOR_BITS + WAVE_BITS

_DIGITS = 40
_PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510")


def sigmoids(engine: Engine, z: Any) -> Any:
    """The sum of sigmoid(z) over the last axis, kept, of z in `LOG_BITS` and within what a link bounds; in `EXP_BITS`.

    From 0 to the axis's length. Four rounds.
    """
    under, within, series = _series(engine, z, REACH, *_sigmoids_waves())
    beyond = within ^ (engine.rank == 0)
    return _truncated(engine, [under ^ within, beyond], [series + (_ones(engine, z) >> 1), _ones(engine, z)])


def mills_ratio(engine: Engine, t: Any) -> Any:
    """phi(t) / Phi(t) over what it is at -6, of t cut off at -6 and 0 from 6 on, in `EXP_BITS`; formats as `sigmoids`.

    At most a unit below 0 or above 1: the series is within 1.4e-8, its roundings within 1.2e-7. Four rounds.
    """
    under, within, series = _series(engine, t, MILLS_REACH, np.array(MILLS_SINES), np.array(MILLS_COSINES))
    return _truncated(engine, [under ^ within, under], [series, _ones(engine, t)])


def _series(engine: Engine, z: Any, reach: int, by_sine: np.ndarray, by_cosine: np.ndarray) -> tuple[Any, Any, Any]:
    """Shares of the bits [z < -reach] and [z < reach], and of the sum of the waves of z with `_PRODUCT_BITS`."""
    from vertinumpyro.secure.crypten.comparison import borrowed, opened_bytes

    bits = depth_bits(engine.num_parties)
    masked = z.contiguous().numpy()
    mask, words, above, waves = engine.dealer.draw(Request("comparison", (masked.shape,), (bits, "waves")))
    (opened,) = engine.open_hidden(Hidden(masked + mask, num_bytes=opened_bytes(bits)))
    less = borrowed(engine, opened[..., None] - (np.array([-reach, reach]) << LOG_BITS), bits, words, above)
    under, within = np.moveaxis(unpacked(less.planes, less.shape), -1, 0)
    return under, within, (_factors(opened, by_sine, by_cosine) * waves).sum(axis=(-2, -1))


def _ones(engine: Engine, z: Any) -> np.ndarray:
    """Shares of 1 with `_PRODUCT_BITS`."""
    return np.full(tuple(z.shape), (1 << _PRODUCT_BITS) if engine.rank == 0 else 0)


def _truncated(engine: Engine, bits: list[np.ndarray], values: list[np.ndarray]) -> Any:
    """The sum of the chosen values, over the last axis too, in `EXP_BITS`."""
    from vertinumpyro.secure.crypten import arithmetic
    from vertinumpyro.secure.crypten.engine import torch

    found = arithmetic.chosen(engine, bits, values).sum(axis=-1, keepdims=True)
    return arithmetic.truncate(engine, torch.from_numpy(found), _PRODUCT_BITS - EXP_BITS)


def _factors(opened: np.ndarray, by_sine: np.ndarray, by_cosine: np.ndarray) -> np.ndarray:
    """[..., 2, NUM_WAVES]: what the dealer's cos(w r) and sin(w r) are multiplied by, with `FACTOR_BITS`."""
    sine, cosine = sines(opened[..., None] * frequencies())
    factors = [by_sine * sine + by_cosine * cosine, by_cosine * sine - by_sine * cosine]
    return np.stack(factors, axis=-2) >> SINE_BITS


def sines(angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sine and cosine of angles of which a turn is 2^`PERIOD_BITS`, with `SINE_BITS`; the same on every processor.

    From two tables of whole numbers, as parties that multiplied their shares by different numbers would have nothing.
    """
    high, low = _tables()
    turned = angle & ((1 << PERIOD_BITS) - 1)
    sine_high, cosine_high = high[:, turned >> TABLE_BITS]
    sine_low, cosine_low = low[:, turned & ((1 << TABLE_BITS) - 1)]
    sine = (sine_high * cosine_low + cosine_high * sine_low) >> SINE_BITS
    return sine, (cosine_high * cosine_low - sine_high * sine_low) >> SINE_BITS


@functools.cache
def _sigmoids_waves() -> tuple[np.ndarray, np.ndarray]:
    """b_k with `FACTOR_BITS`, of sines, and of cosines none."""
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        period = decimal.Decimal(1 << (PERIOD_BITS - LOG_BITS))
        rate = 2 * _PI**2 / period
        powers = [(rate * int(k)).exp() for k in frequencies()]
        found = np.array([round(8 * _PI / period / (power - 1 / power) * (1 << FACTOR_BITS)) for power in powers])
    return found, np.zeros_like(found)


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Sines and cosines [2, entries] of an angle's upper and of its lower digits."""
    return _table(1 << TABLE_BITS, 1 << (PERIOD_BITS - TABLE_BITS)), _table(1, 1 << TABLE_BITS)


def _table(step: int, size: int) -> np.ndarray:
    """Of the multiples of an angle, turned on and on: `_DIGITS` leave far more than the tables keep."""
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        angle = 2 * _PI * step / (1 << PERIOD_BITS)
        terms = [decimal.Decimal(1)]
        while abs(terms[-1]) > decimal.Decimal(10) ** -_DIGITS:
            terms.append(terms[-1] * angle / len(terms))
        by_cosine, by_sine = (sum((-1) ** i * t for i, t in enumerate(terms[start::2])) for start in (0, 1))
        sine, cosine, found = decimal.Decimal(0), decimal.Decimal(1), []
        for _ in range(size):
            found.append((round(sine * (1 << SINE_BITS)), round(cosine * (1 << SINE_BITS))))
            sine, cosine = sine * by_cosine + cosine * by_sine, cosine * by_cosine - sine * by_sine
    return np.array(found).T
