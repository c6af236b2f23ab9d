"""Number formats of the fixed-point protocols, chosen so that no value can wrap around the 64-bit ring.

The fused protocol's values and where they live (C the clip norm, n the padded batch with all its blocks, K
components, P parties, D released values; S = `SCORE_BOUND`):

| value | fractional bits | largest magnitude |
|---|---|---|
| z^p (a mixture's l^p and log pi), their sum z | `RING_LOG_BITS` | (P + 1) 1024 |
| numbers that one party alone gives a link | 30 | 1 |
| e, den of the link (`ScoreFunction`) | 30 | 1, K |
| scores s, encoded | `score_bits` | 1.25 S C, as the norm of a record's scores under a component |
| sum of their squares | 2 `score_bits` | 2^63 |
| squared norms / C^2, weighted | 24 | 4 (P + 1) K^2 S^2 |
| w, W = w e | 30 | 1 |
| W s, their sum, noise | 30 + `score_bits` | n C + 12 noise stddevs |

The scores' norm is at most S C before encoding; rounding D values moves it by at most sqrt(D) 2^-(score_bits
+ 1), which the limits on D, C and `score_bits` keep below S C / 4. Squared norms: 1.25^2 for that, 1 / (1 -
slack)^2 with a slack of at most 1/8 (`clip_slack`), and less than 1.5 % for every rounding up:
below 4.

Single products W s are at most 2^30 2^31 and are summed modulo 2^64; only the final sum has to fit, and it
does by the last line. A discrete Gaussian passes 12 standard deviations with probability below 1e-31, and
then the sum is wrong but not less private: wrapping is post-processing.

**The local clip** of bounded residuals, which every party makes by itself: exact, and no norm is computed together.

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
two. `input_bounds._bounded_together` computes in float64, and its norms are off by at most `room`, relatively: sums of
products of scores are off relatively to sum_o b_o || s_o ||, which is at most sqrt(O) times the largest corner, as the
mean over all corners is the root of sum_o b_o^2 || s_o ||^2. By Minkowski's inequality, over all parties at once, with
b = sum_o b_o,

    || sum_o W_o s_o || <= (1 + t) (sqrt(sum_p r_p^2) (1 + room) + u sqrt(D) b) <= C
    where    kept = t + u sqrt(D) b / C + room,

as (1 - kept) (1 + room) <= 1 - kept + room = 1 - t - u sqrt(D) b / C <= 1 / (1 + t) - u sqrt(D) b / C. A table
is bounded row by row, each block of a party by an equal part of r_p^2, so whichever rows meet in a record, this holds.
The sum's integers are those of the clip on shares, at most n C 2^f and the noise; by the same mean b_o || s_o || is at
most r_p, so scores are at most C / b_o <= 1024 C long, and `fixed_point_format` has room for them. There is no root, no
estimate and no truncation in it. Other than in a clip on shares, that a link's weight is at most 1 is part of the proof
where b = 1 (`ScoreFunction`), and so is that one party alone contributes an outcome's own numbers
(`ScoreFunction.padded`).

So scores may be as coarse as a large batch makes them, while no more than `_MOST_KEPT` of C is kept back. It costs a
regression little: its predictor has the columns as they are, so a residual that follows the model has mean 0 whatever
it is multiplied by. Rounded scores lead to the same coefficients, with a variance larger by the square of the rounding.

**Accuracy.** Notation: e_k = exp(z_k - max z), r_k = e_k / sum e, g = sum_k r_k s_k a record's gradient (s_k embedded
in all D coordinates), clip(g) its projection on the ball of radius C. The exact sum is sum_n clip(g_n) over the
locally bounded values; a projection never lengthens a difference, so an error of g counts once and the clip's own
error is added. M is the largest norm of a record's scores under one component.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np

from vertinumpyro.core.errors import RangeError
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, EXP_MAX_ERROR_ULP, NORM_FRACTIONAL_BITS
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.shape import BatchShape

RING_LOG_BITS = 24
"""Fractional bits of log densities where one process computes on integers."""

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
    # of a local clip `kept` says how coarse scores may be, which are long where C is: a unit of 2 and more has room
    least = -_CLIP_EXPONENT if shape.clips_locally else _MIN_SCORE_BITS
    score_room = _SCORE_ROOM - math.ceil(math.log2(SCORE_BOUND * shape.clip_norm))
    sum_room = _RING_BITS - EXP_FRACTIONAL_BITS - math.ceil(math.log2(largest))
    score_bits = min(_MAX_SCORE_BITS, score_room, sum_room)
    if score_bits < least:
        raise RangeError(
            f"the clipped sum could wrap around the 64-bit ring: {_sizes(shape, score_bits)}, and {least} are needed; "
            "lower clip_norm, the batch size or the noise"
        )
    return FixedPointFormat(score_bits=score_bits)


def most_records(clip_norm: float) -> int:
    """How many a batch may have that is clipped on shares, with as much room for noise as for their sum."""
    least = 2.0**-_CLIP_EXPONENT  # what is no clip norm is refused elsewhere
    return max(1, int(2.0 ** (_RING_BITS - EXP_FRACTIONAL_BITS - _MIN_SCORE_BITS - 1) / max(least, clip_norm)))


def _sizes(shape: BatchShape, bits: int) -> str:
    return (
        f"batch size {shape.num_padded}, clip_norm {shape.clip_norm:g} and noise standard deviation "
        f"{shape.noise_stddev:g} leave {bits} fractional bits for the scores"
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


LOG_BITS = 21
"""Fractional bits of log densities on shares."""

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


def clip_slack(shape: BatchShape) -> Fraction:
    """Share of the clip norm kept back for the rounding of W in coordinates that components share.

    There W_k = floor(w e_k) is off by less than 2^-30 for every component, which adds a vector of norm at
    most K 1.25 SCORE_BOUND C 2^-30 for each of the P + 1 blocks, so sqrt(P + 1) times that together, and 1.25
    sqrt(P + 1) < P + 1. Plated coordinates only shrink by that rounding, unless e_k is negative; the bound is of whole
    blocks, plated coordinates included.
    """
    return Fraction((shape.num_parties + 1) * shape.num_components * int(SCORE_BOUND), 1 << EXP_FRACTIONAL_BITS)


def clip_share_kept(shape: BatchShape) -> float:
    """eta: the share of clip_norm that is kept back, so that no rounding can pass it. The backends' proofs use it.

    :raises RangeError: it is above 1 %.
    """
    share = float(clip_slack(shape)) + 2 * ROOT_EXCESS
    if share > 0.01:
        raise RangeError(
            f"rounding could move a clipped norm by {share:.1%} of clip_norm, and at most 1 % is accounted for; "
            "lower the number of components"
        )
    return share


def check_clip(shape: BatchShape) -> None:
    """Checks that the norms of a clip on shares fit, or the roundings of a local one, which computes none.

    :raises RangeError: says what to lower.
    """
    if shape.clips_locally:
        check_local_range(shape)
    else:
        norm_bits(shape)
        clip_share_kept(shape)


_MOST_KEPT = 0.04

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

    :raises RangeError: they could move a norm by more than `_MOST_KEPT` of clip_norm.
    """
    if shape.clips_locally and kept(shape) > _MOST_KEPT:
        raise RangeError(
            f"rounding could move a clipped norm by {kept(shape):.1%} of clip_norm, and at most {_MOST_KEPT:.0%} is "
            f"accounted for: {_sizes(shape, fixed_point_format(shape).score_bits)}; lower the batch size or "
            "residual_bound"
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


_UNIT = 2.0**-EXP_FRACTIONAL_BITS
_FLOAT64 = 2.0**-40  # float64's own rounding of z, exp and quotients, per party, with room to spare


def fixed_point_error_bound(shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
    """Bound on the L2 distance of `fixed_point.clipped_sum` from the exact sum.

    Per record, with b score bits, P parties, K components:

    1. responsibilities: z is off by (P + 1) 2^-25, which changes each r_k by a factor within e^{±(P + 1)
       2^-24}; e is off by 4 2^-30, and den >= 1. So sum_k |r_k' - r_k| <= (P + 1) 2^-24 + 2 K 4 2^-30, times
       M; a residual, with den = 1, is off by half of that at most, and its link's `error_factor` times e's part;
    2. scores: sqrt(D) 2^-(b + 1), as sum_k r_k = 1;
    3. the clip, relative to C: the slack kept back; squared norms / C^2 too large by at most 3 units of 2^-24
       for each party and component and 3 for each coordinate (half of it enters the norm, as max(den^2, nn /
       C^2) >= 1); the bracket of the shared sums, sqrt(D) 2^(16 - 30 - b) / C; den^2 floored to 2^-24;
    4. w and W floored: 2 units of 2^-30 for each component, times M.

    Where each party clips its own scores, `local_error_bound` with the error of 1.
    """
    P, K, D, C = shape.num_parties, shape.num_components, shape.num_values, shape.clip_norm
    bits = fixed_point_format(shape).score_bits
    weights = (1 if shape.clips_locally else K) * shape.link.error_factor
    longest = score_norm * C * math.sqrt(P + 1)
    responsibilities = (
        1.01 * (P + 1) * 2.0**-RING_LOG_BITS + 2.02 * weights * EXP_MAX_ERROR_ULP * _UNIT + (P + 1) * _FLOAT64
    )
    if shape.clips_locally:
        return local_error_bound(shape, weight_error=responsibilities, score_norm=score_norm)
    slack = (P + 1) * K * SCORE_BOUND * _UNIT
    norm_units = (3 * K * P + 3 * D + P + 2) * 2.0**-25
    clip = 1.2 * slack + norm_units + math.sqrt(D) * 2.0 ** (-14 - bits) / C
    scores = math.sqrt(D) * 2.0 ** -(bits + 1)
    record = (responsibilities + 2 * K * _UNIT) * longest + scores + clip * C
    return shape.num_padded * record
