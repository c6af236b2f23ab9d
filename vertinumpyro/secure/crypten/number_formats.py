"""Number formats of the protocol on shares: what fits the ring, what the clip keeps back, and the errors.

| value | fractional bits | largest magnitude |
|---|---|---|
| l^p, log pi, their sum | `LOG_BITS` = 21 | (P + 1) 1024 |
| exp before it is truncated | `POWER_BITS` + `FACTOR_BITS` = 57 | exp(2) |
| waves (`sigmoid`) before they are truncated | 57 | 2.3, in twos 4.6 |
| e of the link, as exp(z - max z), den | `EXP_BITS` = 20 | 1 + 2^-20, K times that |
| squared norms and Gram matrices over C^2 | `norm_bits` | 1.7 (P + 1) S^2 |
| e Q, nn, max(den^2, nn) | 20 + `norm_bits` | 1.7 (P + 1) K^2 S^2, below 2^61 |
| w, W = w e | 30 | 1 |
| W s, their sum, noise | 30 + `score_bits` | as in `secure.number_formats` |

**The clip (eta).** A record adds sum_k W_k s_k with the integers W_k that the protocol computed, exactly, on the
ring; nothing is rounded after it. nn is computed from the same integers e_k: squared norms and Gram entries are
rounded up (e_k >= 0, or there is one component, so nn only grows), and every truncation's error, below 1, is made up
for. So the computed v is at least max(den^2, nn / C'^2), w is at most (1 + `ROOT_EXCESS`) / sqrt(v), and W_k is within
one unit of w e_k. So the norm is at most C' (1 + ROOT_EXCESS) plus `clip_slack`, and C' = C (1 - eta) with
eta their sum keeps it below C. The plan's sensitivity is C itself. How exact exp is does not matter for it, and no
truncation can fail (`arithmetic`), so there is no term of delta.

**The local clip.** Where each party clips its own scores, W = 2^10 e, or that of e cut by two exact comparisons, and
the scores' norms make up for the unit by which e may be above 1: `secure.number_formats`. There is no norm and no root.

Three fine points. Which way a truncation rounds follows from the value and from the word that was opened for it, which
every party sees; those words are uniform whatever the data is, and the bound holds for each of them, so a party's view
together with the sum is as private as the sum. Gram entries may be negative, and are divided by one C'' just below C'
for all of them, so the bound is proved for C'' as it stands, without any sign argument. For a component far below the
best, exp's table gives any number below exp(2); it is multiplied by the exact integer 0 (`arithmetic.exp_nonpositive`).

Bits, 64 to a word: what is done to one is done to all. And masked words, cut to the bytes that are opened.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vertinumpyro.secure.input_bounds import LARGEST_CONTRIBUTION, SCORE_BOUND
from vertinumpyro.secure.number_formats import (
    EXP_BITS,
    LARGEST_BIT,
    LOG_BITS,
    clip_share_kept,
    fixed_point_format,
    float64_room,
    local_error_bound,
    norm_bits,
)
from vertinumpyro.secure.shape import BatchShape

_WORD_BITS = 64


class Bits(NamedTuple):
    """A party's exclusive-or shares of an array of bits.

    planes: int64 [num_words], in the order of the flat array; beyond its end whatever.
    shape:  of the array.
    """

    planes: np.ndarray
    shape: tuple[int, ...]

    def rows(self) -> np.ndarray:
        """Each row of the array by itself, int64 [shape[0], words]."""
        return packed(unpacked(self.planes, self.shape))


def plane_words(num_bits: int) -> int:
    """How many words hold so many bits."""
    return -(-num_bits // _WORD_BITS)


def packed(bits: np.ndarray) -> np.ndarray:
    """Bits 0 or 1 [num_rows, num_bits] as int64 [num_rows, num_words], zeros at the end."""
    room = np.zeros((len(bits), 8 * plane_words(bits[0].size)), np.uint8)
    whole = np.packbits(bits.reshape(len(bits), -1).astype(np.uint8), axis=-1, bitorder="little")
    room[:, : whole.shape[1]] = whole
    return room.view("<i8")


def unpacked(planes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The bits of words, uint8 of this shape."""
    data = np.ascontiguousarray(planes, "<i8").view(np.uint8)
    return np.unpackbits(data, count=math.prod(shape), bitorder="little").reshape(shape)


_WORD = 8


class Hidden(NamedTuple):
    """This party's share of an array that a uniform mask of the dealer hides.

    share:     int64, of a sum modulo 2^64; of an exclusive or where `bits`.
    num_bytes: of each word, lowest first, are opened; a mask that is uniform modulo 2^64 is so modulo any 2^8m.
    """

    share: np.ndarray
    bits: bool = False
    num_bytes: int = _WORD

    def message(self) -> bytes:
        """What goes to every other party."""
        return low_bytes(self.share, self.num_bytes).tobytes()


def opened(hidden: Sequence[Hidden], messages: Iterable[bytes | bytearray]) -> list[np.ndarray]:
    """The arrays, int64, from this party's shares and the others' messages; modulo 2^8m where m bytes were sent."""
    totals = [array.share.copy() for array in hidden]
    ends = np.cumsum([array.share.size * array.num_bytes for array in hidden])[:-1]
    for message in messages:
        pieces = np.split(np.frombuffer(message, np.uint8), ends)
        for array, total, piece in zip(hidden, totals, pieces, strict=True):
            words = np.zeros((total.size, _WORD), np.uint8)
            words[:, : array.num_bytes] = piece.reshape(-1, array.num_bytes)
            combine = np.bitwise_xor if array.bits else np.add
            combine(total, words.view("<i8").reshape(total.shape), out=total)
    return [
        total if array.num_bytes == _WORD else total & ((1 << (8 * array.num_bytes)) - 1)
        for array, total in zip(hidden, totals, strict=True)
    ]


def low_bytes(words: np.ndarray, num_bytes: int) -> np.ndarray:
    """The lowest bytes of each word, uint8 [words, num_bytes]."""
    return np.ascontiguousarray(words, "<i8").reshape(-1, 1).view(np.uint8)[:, :num_bytes]


WEIGHT_BITS = 30
EXP_REACH = 14
"""exp(x) below exp(-14) counts as 0."""

POWER_STEP_BITS = LOG_BITS + 1
"""Steps of 2 in `LOG_BITS`."""

POWER_STEPS = 8
"""`POWER_STEPS` of them are 16, more than `EXP_REACH` and a step."""

POWER_BITS = 26
"""Fractional bits of the dealer's exp(r), 0 <= r < 2."""

FACTOR_BITS = 31
"""Fractional bits of the public exp(-y), 0 <= y < 16, and of the public sines times a series' coefficients."""

EXP_ROUNDING = 2.0**-23
"""Added before exp is truncated to `EXP_BITS`: more than all errors of the product, so that exp(0) is not below 1."""

EXP_ERROR = 2.2e-6
"""|computed - exp(x)|: the public factor is off by 2 units and the dealer's by half a unit, 8e-9 and 8e-9; with
`EXP_ROUNDING` and the truncation to 20 bits 1.1e-6; what lies beyond `EXP_REACH`, 8.4e-7."""

_LOW_FACTOR_BITS = 12

MANTISSA_BITS = 29
INVERSE_SQRT_BITS = 30
ROOT_COEFFICIENTS = (1.57964, -0.73052, 0.14769)
"""A quadratic within 0.33 % of 1 / sqrt(m) on [1, 2]; Newton's step then errs downwards only."""

ROOT_ERROR = 2e-5
"""How much too small 1 / sqrt(m) may come out, relatively: 1.5 0.0033^2 and roundings."""


def depth_bits(num_parties: int) -> int:
    """So that |z_nk - z_nl| < 2^bits in `LOG_BITS`: each of P + 1 contributions is at most `LARGEST_CONTRIBUTION`."""
    return LOG_BITS + 1 + (int(LARGEST_CONTRIBUTION) * (num_parties + 1)).bit_length()


def power_of(r: np.ndarray) -> np.ndarray:
    """exp(r mod 2) with `POWER_BITS`, r in `LOG_BITS`; the dealer's, so no two processes need the same rounding."""
    low = r & ((1 << POWER_STEP_BITS) - 1)
    return np.rint(np.exp(low * 2.0**-LOG_BITS) * 2.0**POWER_BITS).astype(np.int64)


def factor_of(y: np.ndarray) -> np.ndarray:
    """exp(-y), 0 <= y < 16 in `LOG_BITS`, with `FACTOR_BITS` and an error below 2 units; the same on every processor.

    From two tables of whole numbers, as parties that multiplied their shares by different numbers would have nothing.
    """
    high, low = _factor_tables()
    return (high[y >> _LOW_FACTOR_BITS] * low[y & ((1 << _LOW_FACTOR_BITS) - 1)]) >> FACTOR_BITS


@functools.cache
def _factor_tables() -> tuple[np.ndarray, np.ndarray]:
    """exp(-y) of the upper and of the lower digits."""

    def exponentials(step: int, size: int) -> np.ndarray:
        with decimal.localcontext(decimal.Context(prec=30)):
            unit = decimal.Decimal(-step) / (1 << LOG_BITS)
            return np.array([round((i * unit).exp() * (1 << FACTOR_BITS)) for i in range(size)])

    step = 1 << _LOW_FACTOR_BITS
    return exponentials(step, POWER_STEPS << (POWER_STEP_BITS - _LOW_FACTOR_BITS)), exponentials(1, step)


def error_bound(shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
    """Bound on the L2 distance of the revealed sum, without its noise, from the exact one (`Plaintext`, float64).

    Per record, with b score bits and M = score_norm C sqrt(P + 1):

    1. responsibilities: z is off by (P + 1) 2^-22, which changes each r_k by a factor within e^{+-(P + 1) 2^-21};
       e by `EXP_ERROR`, and den >= 1. So (P + 1) 2^-21 + 2 K EXP_ERROR, times M; W's unit: K 2^-30 M;
    2. scores: sqrt(D) 2^-(b + 1);
    3. the clip, relative to C: eta; nn too large by (P + 1) den^2 + 2 den + 2 units of `norm_bits` and P + 1 times
       `float64_room`, half of which is in its root; the root too short by `ROOT_ERROR`, and w by 6 units of 2^-30
       where it is at least 2^-(61 - norm_bits - 20) / 2.

    Where each party clips its own scores, `local_error_bound` with the error of 1.
    """
    P, K, D, C = shape.num_parties, shape.num_components, shape.num_values, shape.clip_norm
    weights = (1 if shape.clips_locally else K) * shape.link.error_factor
    longest = score_norm * C * math.sqrt(P + 1)
    responsibilities = 1.01 * (P + 1) * 2.0**-LOG_BITS + 2.02 * weights * EXP_ERROR + K * 2.0**-WEIGHT_BITS
    if shape.clips_locally:
        return local_error_bound(shape, weight_error=responsibilities, score_norm=score_norm)
    scores = math.sqrt(D) * 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    bits = norm_bits(shape)
    least_w = 2.0 ** (-(LARGEST_BIT - EXP_BITS - bits + 1) / 2)
    too_large = (P + 5) * 2.0**-bits + (P + 1) * float64_room(D)
    clip = clip_share_kept(shape) + too_large / 2 + ROOT_ERROR + 6 * 2.0**-WEIGHT_BITS / least_w
    return shape.num_padded * (responsibilities * longest + scores + 1.2 * clip * C)


PERIOD_BITS = LOG_BITS + 6
"""The series has period 64."""

NUM_WAVES = 23

SINE_BITS = 30
"""Fractional bits of the public sines."""

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
