"""Number formats of the fixed-point protocols, chosen so that no value can wrap around the 64-bit ring.

The fused protocol's values and where they live (C the clip norm, n the padded batch with all its blocks, K
components, P parties, D released values; S = `SCORE_BOUND`):

| value | fractional bits | largest magnitude |
|---|---|---|
| z^p (a mixture's l^p and log pi), their sum z | `LOG_BITS` | (P + 1) 1024 |
| numbers that one party alone gives a link | 30 | 1 |
| e, den of the link (`link.ScoreLink`) | 30 | 1, K |
| scores s, encoded | `score_bits` | 1.25 S C, as the norm of a record's scores under a component |
| sum of their squares | 2 `score_bits` | 2^63 |
| squared norms / C^2, weighted | 24 | 4 (P + 1) K^2 S^2 |
| w, W = w e | 30 | 1 |
| W s, their sum, noise | 30 + `score_bits` | n C + 12 noise stddevs |

The scores' norm is at most S C before encoding; rounding D values moves it by at most sqrt(D) 2^-(score_bits
+ 1), which the limits on D, C and `score_bits` keep below S C / 4. Squared norms: 1.25^2 for that, 1 / (1 -
slack)^2 with a slack of at most 1/8 (`fixed_point.clip_slack`), and less than 1.5 % for every rounding up:
below 4.

Single products W s are at most 2^30 2^31 and are summed modulo 2^64; only the final sum has to fit, and it
does by the last line. A discrete Gaussian passes 12 standard deviations with probability below 1e-31, and
then the sum is wrong but not less private: wrapping is post-processing.
"""

from __future__ import annotations

import dataclasses
import math

from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, NORM_FRACTIONAL_BITS
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.local import SCORE_BOUND

__all__ = ["LOG_BITS", "FixedPointFormat", "check_common_range", "fixed_point_format"]

LOG_BITS = 24

_RING_BITS = 62  # values stay below 2^62, so that a sum of two never wraps
_SCORE_ROOM = 31  # encoded scores stay below 1.25 2^31, so that a sum of their squares fits 63 bits
_MIN_SCORE_BITS, _MAX_SCORE_BITS = 11, 24
_NOISE_STDDEVS = 12
_CLIP_EXPONENT = 10
_VALUE_BITS = 20  # rounding 2^20 scores moves their norm by at most S C / 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPointFormat:
    """Fractional bits of the scores, and what the revealed sum is held in."""

    score_bits: int

    @property
    def grid_bits(self) -> int:
        """Fractional bits of W s, of the noise and of the revealed sum."""
        return self.score_bits + EXP_FRACTIONAL_BITS


def fixed_point_format(shape: BatchShape) -> FixedPointFormat:
    """The most precise format of the fused protocol for this shape.

    :raises RangeError: when even the coarsest format could wrap; the message says what to lower.
    """
    check_common_range(shape)
    _check_norm_range(shape)
    largest = shape.num_padded * shape.clip_norm + _NOISE_STDDEVS * shape.noise_stddev
    score_room = _SCORE_ROOM - math.ceil(math.log2(SCORE_BOUND * shape.clip_norm))
    sum_room = _RING_BITS - EXP_FRACTIONAL_BITS - math.ceil(math.log2(largest))
    score_bits = min(_MAX_SCORE_BITS, score_room, sum_room)
    if score_bits < _MIN_SCORE_BITS:
        raise RangeError(
            f"{_could_wrap(shape)} leave {score_bits} fractional bits for the scores, and {_MIN_SCORE_BITS} "
            "are needed; lower clip_norm, the batch size or the noise"
        )
    return FixedPointFormat(score_bits=score_bits)


def _could_wrap(shape: BatchShape) -> str:
    return (
        f"the clipped sum could wrap around the 64-bit ring: batch size {shape.num_padded}, clip_norm "
        f"{shape.clip_norm:g} and noise standard deviation {shape.noise_stddev:g}"
    )


def check_common_range(shape: BatchShape) -> None:
    """Checks what any fixed-point format needs.

    :raises RangeError: says what to lower.
    """
    if not 2.0**-_CLIP_EXPONENT <= shape.clip_norm <= 2.0**_CLIP_EXPONENT:
        raise RangeError(
            f"clip_norm {shape.clip_norm:g} does not fit the fixed-point formats; choose one between "
            f"{2.0**-_CLIP_EXPONENT:g} and {2.0**_CLIP_EXPONENT:g}"
        )
    if not (math.isfinite(shape.noise_stddev) and shape.noise_stddev >= 0):
        raise RangeError("noise_stddev must be finite and not negative; lower the noise")
    if shape.num_values > 2**_VALUE_BITS:
        raise RangeError(
            f"{shape.num_values} released values are more than the {2**_VALUE_BITS} that the squared norms "
            "are proved for; lower the number of components or of columns"
        )


def _check_norm_range(shape: BatchShape) -> None:
    bits = math.log2(shape.num_parties + 1) + 2 * math.log2(shape.num_components * SCORE_BOUND)
    if bits + NORM_FRACTIONAL_BITS + 2 > _RING_BITS + 1:
        raise RangeError(
            f"{shape.num_parties} parties with {shape.num_components} components could wrap the squared "
            "norms around the 64-bit ring; lower the number of components"
        )
