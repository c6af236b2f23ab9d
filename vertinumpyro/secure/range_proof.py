"""Number formats of the fixed-point protocol, chosen so that no value can wrap around the 64-bit ring.

Values and where they live (C the clip norm, n the padded batch, K components, P parties):

| value | fractional bits | largest magnitude |
|---|---|---|
| l^p, log pi, their sum | `LOG_BITS` | (P + 1) 1024 |
| e = exp(z - max z), den | 30 | 1, K |
| squared norms / C^2, weighted | 24 | (P + 1) K^2 2^20 |
| w, W = w e | 30 | 1 |
| scores s | `score_bits` | 1024 C |
| W s, their sum, noise | 30 + `score_bits` | n C + 12 noise stddevs |

Single products W s are at most 2^30 2^(score_bits) 1024 C and are summed modulo 2^64; only the final sum has to
fit, and it does by the last line. A discrete Gaussian passes 12 standard deviations with probability below
1e-31, and then the sum is wrong but not less private: wrapping is post-processing.
"""

from __future__ import annotations

import dataclasses
import math

from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, NORM_FRACTIONAL_BITS
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.local import SCORE_BOUND

__all__ = ["LOG_BITS", "FixedPointFormat", "fixed_point_format"]

LOG_BITS = 24
_RING_BITS = 62  # values stay below 2^62, so that a sum of two never wraps
_MIN_SCORE_BITS, _MAX_SCORE_BITS = 12, 24
_NOISE_STDDEVS = 12
_CLIP_EXPONENT = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedPointFormat:
    """Fractional bits of the scores, and what the revealed sum is held in."""

    score_bits: int

    @property
    def grid_bits(self) -> int:
        """Fractional bits of W s, of the noise and of the revealed sum."""
        return self.score_bits + EXP_FRACTIONAL_BITS


def fixed_point_format(shape: BatchShape) -> FixedPointFormat:
    """The most precise format for this shape.

    :raises RangeError: when even the coarsest format could wrap; the message says what to lower.
    """
    _check_clip_range(shape)
    _check_norm_range(shape)
    largest = shape.batch_size * shape.clip_norm + _NOISE_STDDEVS * shape.noise_stddev
    score_room = _RING_BITS - math.ceil(math.log2(SCORE_BOUND * shape.clip_norm))
    sum_room = _RING_BITS - EXP_FRACTIONAL_BITS - math.ceil(math.log2(largest))
    score_bits = min(_MAX_SCORE_BITS, sum_room, score_room - EXP_FRACTIONAL_BITS)
    if score_bits < _MIN_SCORE_BITS:
        raise RangeError(
            f"the clipped sum could wrap around the 64-bit ring: batch size {shape.batch_size}, clip_norm "
            f"{shape.clip_norm:g} and noise standard deviation {shape.noise_stddev:g} leave {score_bits} fractional "
            f"bits for the scores, and {_MIN_SCORE_BITS} are needed; lower clip_norm, the batch size or the noise"
        )
    return FixedPointFormat(score_bits=score_bits)


def _check_clip_range(shape: BatchShape) -> None:
    if not 2.0**-_CLIP_EXPONENT <= shape.clip_norm <= 2.0**_CLIP_EXPONENT:
        raise RangeError(
            f"clip_norm {shape.clip_norm:g} does not fit the fixed-point formats; choose one between "
            f"{2.0**-_CLIP_EXPONENT:g} and {2.0**_CLIP_EXPONENT:g}"
        )
    if not (math.isfinite(shape.noise_stddev) and shape.noise_stddev >= 0):
        raise RangeError("the noise standard deviation must be finite and not negative")


def _check_norm_range(shape: BatchShape) -> None:
    bits = math.log2(shape.num_parties + 1) + 2 * math.log2(shape.num_components) + 2 * math.log2(SCORE_BOUND)
    if bits + NORM_FRACTIONAL_BITS > _RING_BITS:
        raise RangeError(
            f"{shape.num_parties} parties with {shape.num_components} components could wrap the squared norms around "
            "the 64-bit ring; lower the number of components"
        )
