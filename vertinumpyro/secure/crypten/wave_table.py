"""The dealer's part of `waves`: sines and cosines of a mask, at the frequencies of a series."""

from __future__ import annotations

import numpy as np

from vertinumpyro.secure.crypten.formats import LOG_BITS

__all__ = [
    "FACTOR_BITS",
    "NUM_WAVES",
    "PERIOD_BITS",
    "SINE_BITS",
    "TABLE_BITS",
    "WAVE_BITS",
    "frequencies",
    "waves_of",
]

PERIOD_BITS = LOG_BITS + 6
"""The series has period 64."""

NUM_WAVES = 23

SINE_BITS = 30
"""Fractional bits of the public sines."""

FACTOR_BITS = 31
"""Fractional bits of the public sines times the series' coefficients."""

WAVE_BITS = 26
"""Fractional bits of the dealer's sines."""

TABLE_BITS = 13
"""Of an angle's digits, the lowest ones, which have a table of their own."""


def frequencies() -> np.ndarray:
    """How many turns each wave makes in a period: odd numbers."""
    return 2 * np.arange(NUM_WAVES) + 1


def waves_of(r: np.ndarray) -> np.ndarray:
    """[..., 2, NUM_WAVES]: cos(w r) and sin(w r) with `WAVE_BITS`; the dealer's, so nobody else needs its rounding."""
    turns = ((r[..., None] * frequencies()) & ((1 << PERIOD_BITS) - 1)) * (2 * np.pi / (1 << PERIOD_BITS))
    return np.rint(np.stack([np.cos(turns), np.sin(turns)], axis=-2) * 2.0**WAVE_BITS).astype(np.int64)
