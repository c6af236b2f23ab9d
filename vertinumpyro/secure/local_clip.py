r"""The clip of a bounded residual, which every party makes by itself: exact, and no norm is computed together.

A record adds e s, s the parties' scores side by side and e its one weight, |e| <= 1. The weight is cut to [-b, b]
(`BatchShape.residual_bound`; on shares, where b < 1), and party p scales its own s^p down to a norm of at most

    r_p = (C / b) sqrt(part_p) (1 - kept),    part_p in proportion to `BatchShape.clip_parts`, so sum_p part_p = 1,

before anything is shared. So || e s ||^2 <= b^2 sum_p r_p^2 <= C^2, whatever the columns hold.

**On integers.** Scores are rounded to nearest, with u = 2^-(score_bits + 1) the most that each of D values moves, and
the weight W of 30 bits is the cut weight's integer as it stands: at most b' 2^30 in magnitude, b' = b in every
arithmetic, but for b = 1 with CrypTen, whose weights may be a unit of 2^-20 above 1; t = 2^-19 leaves room for two.
`local._bounded_blocks` computes in float64, and its norms are off by at most `room`, relatively. By Minkowski's
inequality, over all parties at once,

    || W s || <= b' (sqrt(sum_p r_p^2) (1 + room) + u sqrt(D)) <= b (1 + t) ((C / b) (1 - kept) (1 + room) + u sqrt(D))
    <= C    where    kept = t + u sqrt(D) b / C + room,

as (1 - kept) (1 + room) <= 1 - kept + room = 1 - t - u sqrt(D) b / C <= 1 / (1 + t) - u sqrt(D) b / C. A table
is bounded row by row, each block of a party by an equal part of r_p^2, so whichever rows meet in a record, this holds.
The sum's integers are those of the clip on shares, at most n C 2^f and the noise; scores are at most C / b <= 1024 C
long, so `range_proof` has room for them. There is no root, no estimate and no truncation in it. Other than in a clip on
shares, that a link's weight is at most 1 is part of the proof where b = 1 (`link.ScoreLink`).
"""

from __future__ import annotations

import math

from vertinumpyro.core.errors import RangeError
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.range_proof import fixed_point_format

__all__ = ["check_local_range", "exact_score_bound", "kept", "largest_weight", "local_error_bound", "score_bound"]

_WEIGHT_EXCESS = 2.0**-19
"""t: how far above 1 a residual may be, in any arithmetic, and the most by which a cut weight's integer is below b."""


def exact_score_bound(shape: BatchShape, party: int) -> float:
    """The most clip norms of a party's scores: its part of C over b; without a local clip, what the formats take."""
    if shape.clip_parts is None:
        return SCORE_BOUND
    return math.sqrt(shape.clip_parts[party] / sum(shape.clip_parts)) / shape.residual_bound


def score_bound(shape: BatchShape, party: int) -> float:
    """The same less what is kept back for roundings: of what enters the ring."""
    bound = exact_score_bound(shape, party)
    return bound * (1 - kept(shape)) if shape.clips_locally else bound


def largest_weight(shape: BatchShape, bits: int) -> int | None:
    """B, to which a weight of so many bits is cut; None where it is bounded as it is."""
    return math.floor(shape.residual_bound * 2**bits) if shape.residual_bound < 1 else None


def kept(shape: BatchShape) -> float:
    """The share of the clip norm that is kept back, so that no rounding can pass it; see the module."""
    unit = 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    room = (shape.num_values + 16) * 2.0**-44  # float64's is below 2^-52 for each value; devices emulate it
    return _WEIGHT_EXCESS + unit * math.sqrt(shape.num_values) * shape.residual_bound / shape.clip_norm + room


def check_local_range(shape: BatchShape) -> None:
    """Checks that the roundings of a local clip are small.

    :raises RangeError: they could move a norm by more than 1 % of clip_norm.
    """
    if shape.clips_locally and kept(shape) > 0.01:
        raise RangeError(
            f"rounding could move a clipped norm by {kept(shape):.1%} of clip_norm, and at most 1 % is accounted for; "
            "lower the batch size or the noise, or raise clip_norm"
        )


def local_error_bound(shape: BatchShape, *, weight_error: float, score_norm: float) -> float:
    """Bound on the L2 distance of the sum, clipped locally on integers, from the exact one.

    Per record, M being the longest scores of all parties together: the weight's error and the unit by which b is cut
    off, times M, as a cut never widens a difference; sqrt(D) 2^-(score_bits + 1) b for the scores' roundings; the share
    of C that is kept back.

    :param weight_error: of the link's weight, the roundings of z included.
    """
    longest = shape.clip_norm * min(1 / shape.residual_bound, score_norm * math.sqrt(shape.num_parties))
    unit = 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    scores = unit * math.sqrt(shape.num_values) * shape.residual_bound
    record = (weight_error + _WEIGHT_EXCESS) * longest + scores + kept(shape) * shape.clip_norm
    return shape.num_padded * record
