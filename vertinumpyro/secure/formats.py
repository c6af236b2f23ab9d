"""Number formats that the backends between processes share: norms and log densities as the parties encode them."""

from __future__ import annotations

import math

from vertinumpyro.core.errors import RangeError
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.fixed_point import clip_slack
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.local_clip import check_local_range

__all__ = [
    "EXP_BITS",
    "LARGEST_BIT",
    "LOG_BITS",
    "ROOT_EXCESS",
    "check_clip",
    "clip_share_kept",
    "float64_room",
    "norm_bits",
]

LOG_BITS = 21
"""Fractional bits of log densities."""

EXP_BITS = 20
"""Fractional bits of exp(z - max z)."""

LARGEST_BIT = 61
"""Of squared norms times exponentials on a ring of 64 bits."""

ROOT_EXCESS = 2.0**-26
"""How much too large: six roundings of 2^-29 in a root of at least 0.7, before 4 units are taken off."""

_LEAST_NORM_BITS = 6
_MOST_NORM_BITS = 18


def norm_bits(shape: BatchShape) -> int:
    """Fractional bits of squared norms over C^2.

    :raises RangeError: the squared norms of so many components do not fit the ring with bits to spare.
    """
    largest = 1.7 * (shape.num_parties + 1) * (shape.num_components * SCORE_BOUND) ** 2
    bits = min(_MOST_NORM_BITS, LARGEST_BIT - EXP_BITS - math.ceil(math.log2(largest)))
    if bits < _LEAST_NORM_BITS:
        raise RangeError(
            f"{shape.num_components} components and {shape.num_parties} parties leave {bits} fractional bits for "
            f"squared norms on a 64-bit ring, and {_LEAST_NORM_BITS} are needed; lower the number of components"
        )
    return bits


def float64_room(num_terms: int) -> float:
    """What float64's rounding can do to a sum of that many products of scores, relative to C^2.

    The products' magnitudes add up to at most (1.25 S C)^2; every product and every addition is off by 2^-53 of
    that, and twice as much is allowed.
    """
    return (num_terms + 4) * 2.0**-52 * (1.25 * SCORE_BOUND) ** 2


def clip_share_kept(shape: BatchShape) -> float:
    """eta: the share of clip_norm that is kept back, so that no rounding can pass it. The backends' proofs use it.

    :raises RangeError: it is above 1 %.
    """
    kept = float(clip_slack(shape)) + 2 * ROOT_EXCESS
    if kept > 0.01:
        raise RangeError(
            f"rounding could move a clipped norm by {kept:.1%} of clip_norm, and at most 1 % is accounted for; "
            "lower the number of components"
        )
    return kept


def check_clip(shape: BatchShape) -> None:
    """Checks that the norms of a clip on shares fit, or the roundings of a local one, which computes none.

    :raises RangeError: says what to lower.
    """
    if shape.clips_locally:
        check_local_range(shape)
    else:
        norm_bits(shape)
        clip_share_kept(shape)
