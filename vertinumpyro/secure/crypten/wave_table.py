"""The dealer's part of `waves`: sines and cosines of a mask, at the frequencies of a series."""

from __future__ import annotations

import numpy as np

from vertinumpyro.secure.crypten.formats import LOG_BITS

__all__ = [
    "FACTOR_BITS",
    "MILLS_COSINES",
    "MILLS_REACH",
    "MILLS_SINES",
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


MILLS_REACH = 6
"""Of phi(t) / Phi(t), over what it is at -6: the waves below are within 1.4e-8 of it there. Fitted once, not derived;
their magnitudes add up to 2.27, so that roundings are as many times those of a sigmoid's waves."""

MILLS_SINES = (
    *(-402574687, -668177494, -155523596, 247895290, 55332311, -178039530, -21685797, 128216332, -13510680, -102197989),
    *(39610147, 73108776, -65617662, -32224467, 78589873, -26474710, -51249944, 82163065, -63555091, 31433629),
    *(-10287811, 2092755, -208766),
)
"""With `FACTOR_BITS`."""

MILLS_COSINES = (
    *(681001916, 7488091, -405969147, -146561032, 178841698, 64990277, -136543777, -38472052, 110618149, 12871735),
    *(-94136319, 13844370, 77457226, -40471535, -52047212, 67541147, 1457710, -66911119, 75681731, -46771639),
    *(18015405, -4144968, 444383),
)
"""With `FACTOR_BITS`."""


def frequencies() -> np.ndarray:
    """How many turns each wave makes in a period: odd numbers."""
    return 2 * np.arange(NUM_WAVES) + 1


def waves_of(r: np.ndarray) -> np.ndarray:
    """[..., 2, NUM_WAVES]: cos(w r) and sin(w r) with `WAVE_BITS`; the dealer's, so nobody else needs its rounding."""
    turns = ((r[..., None] * frequencies()) & ((1 << PERIOD_BITS) - 1)) * (2 * np.pi / (1 << PERIOD_BITS))
    return np.rint(np.stack([np.cos(turns), np.sin(turns)], axis=-2) * 2.0**WAVE_BITS).astype(np.int64)
