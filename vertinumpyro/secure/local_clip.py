r"""The clip of bounded residuals, which every party makes by itself: exact, and no norm is computed together.

A record adds sum_o e_o s_o over its outcomes, mostly one; s_o are the parties' scores side by side, and e_o its weight,
|e_o| <= 1. A weight is cut to [-b_o, b_o] (`BatchShape.residual_bound`; on shares, where b < 1), and party p scales all
its own scores of the record by one number, before anything is shared, so that

    || sum_o e_o s^p_o || <= r_p = C sqrt(part_p) (1 - kept)    for every |e_o| <= b_o,

part_p in proportion to `BatchShape.clip_parts`, so sum_p part_p = 1. That norm is a convex function of e, so it is
largest at a corner of the box, e_o = +-b_o: the party looks at 2^(O - 1) patterns of signs, up to all of them turned.
So || sum_o e_o s_o ||^2 <= sum_p r_p^2 <= C^2, whatever the columns hold. Of one outcome that is b || s^p || <= r_p; of
outcomes with coefficients of their own the root of sum_o b_o^2 || s^p_o ||^2; of coefficients that they share at most
the sum of b_o || s^p_o ||. Nothing is said of which residuals go together, so none is assumed.

**On integers.** Scores are rounded to nearest, with u = 2^-(score_bits + 1) the most that each of D values moves, and
the weights W_o of 30 bits are the cut weights' integers as they stand: at most b_o' 2^30 in magnitude, b_o' = b_o in
every arithmetic, but for b = 1 with CrypTen, whose weights may be a unit of 2^-20 above 1; t = 2^-19 leaves room for
two. `local._bounded_together` computes in float64, and its norms are off by at most `room`, relatively: sums of
products of scores are off relatively to sum_o b_o || s_o ||, which is at most sqrt(O) times the largest corner, as the
mean over all corners is the root of sum_o b_o^2 || s_o ||^2. By Minkowski's inequality, over all parties at once, with
b = sum_o b_o,

    || sum_o W_o s_o || <= (1 + t) (sqrt(sum_p r_p^2) (1 + room) + u sqrt(D) b) <= C
    where    kept = t + u sqrt(D) b / C + room,

as (1 - kept) (1 + room) <= 1 - kept + room = 1 - t - u sqrt(D) b / C <= 1 / (1 + t) - u sqrt(D) b / C. A table
is bounded row by row, each block of a party by an equal part of r_p^2, so whichever rows meet in a record, this holds.
The sum's integers are those of the clip on shares, at most n C 2^f and the noise; by the same mean b_o || s_o || is at
most r_p, so scores are at most C / b_o <= 1024 C long, and `range_proof` has room for them. There is no root, no
estimate and no truncation in it. Other than in a clip on shares, that a link's weight is at most 1 is part of the proof
where b = 1 (`link.ScoreLink`), and so is that one party alone contributes an outcome's own numbers
(`ScoreLink.padded`).
"""

from __future__ import annotations

import math

import numpy as np

from vertinumpyro.core.errors import RangeError
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.range_proof import fixed_point_format

__all__ = [
    "check_local_range",
    "exact_score_bound",
    "kept",
    "largest_weights",
    "local_error_bound",
    "score_bound",
    "weight_bounds",
]

_WEIGHT_EXCESS = 2.0**-19
"""t: how far above 1 a residual may be, in any arithmetic, and the most by which a cut weight's integer is below b."""


def exact_score_bound(shape: BatchShape, party: int) -> float:
    """The most clip norms of what a party adds, its part of C; without a local clip what the formats take of scores."""
    if shape.clip_parts is None:
        return SCORE_BOUND
    return math.sqrt(shape.clip_parts[party] / sum(shape.clip_parts))


def score_bound(shape: BatchShape, party: int) -> float:
    """The same less what is kept back for roundings: of what enters the ring."""
    bound = exact_score_bound(shape, party)
    return bound * (1 - kept(shape)) if shape.clips_locally else bound


def weight_bounds(shape: BatchShape) -> tuple[float, ...] | None:
    """The b of each outcome, for which the scores' bound holds; None where it is of the scores as they are."""
    return shape.residual_bounds if shape.clips_locally else None


def largest_weights(shape: BatchShape, bits: int) -> np.ndarray | None:
    """B of each outcome, to which a weight of so many bits is cut; None where all are bounded as they are."""
    if min(shape.residual_bounds) == 1:
        return None
    return np.array([math.floor(bound * 2**bits) for bound in shape.residual_bounds], np.int64)


def kept(shape: BatchShape) -> float:
    """The share of the clip norm that is kept back, so that no rounding can pass it; see the module."""
    unit = 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    room = (shape.num_values + 16) * 2.0**-44  # float64's is below 2^-50 for each value; devices emulate it
    rounding = unit * math.sqrt(shape.num_values) * sum(shape.residual_bounds)
    return _WEIGHT_EXCESS + rounding / shape.clip_norm + room


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

    Per record: each weight's error and the unit by which its b is cut off, times the longest scores of its outcome of
    all parties together, as a cut never widens a difference; sqrt(D) 2^-(score_bits + 1) b for the scores' roundings;
    the share of C that is kept back.

    :param weight_error: of a weight, the roundings of z included.
    """
    most = score_norm * math.sqrt(shape.num_parties)
    longest = shape.clip_norm * sum(min(1 / bound, most) for bound in shape.residual_bounds)
    unit = 2.0 ** -(fixed_point_format(shape).score_bits + 1)
    scores = unit * math.sqrt(shape.num_values) * sum(shape.residual_bounds)
    record = (weight_error + _WEIGHT_EXCESS) * longest + scores + kept(shape) * shape.clip_norm
    return shape.num_padded * record
