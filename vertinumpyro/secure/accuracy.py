"""How far the fixed-point sums can be from the exact ones: derived bounds, for tests, plans and reports.

Notation: e_k = exp(z_k - max z), r_k = e_k / sum e, g = sum_k r_k s_k a record's gradient (s_k embedded in
all D coordinates), clip(g) its projection on the ball of radius C. The exact sum is sum_n clip(g_n) over the
locally bounded values; a projection never lengthens a difference, so an error of g counts once and the clip's
own error is added. M is the largest norm of a record's scores under one component.
"""

from __future__ import annotations

import math

from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS, EXP_MAX_ERROR_ULP
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.local_clip import local_error_bound
from vertinumpyro.secure.range_proof import LOG_BITS, fixed_point_format

__all__ = ["fused_error_bound"]

_UNIT = 2.0**-EXP_FRACTIONAL_BITS
_FLOAT64 = 2.0**-40  # float64's own rounding of z, exp and quotients, per party, with room to spare


def fused_error_bound(shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
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

    Where each party clips its own scores, `local_clip.local_error_bound` with the error of 1.
    """
    P, K, D, C = shape.num_parties, shape.num_components, shape.num_values, shape.clip_norm
    bits = fixed_point_format(shape).score_bits
    weights = (1 if shape.clips_locally else K) * shape.link.error_factor
    longest = score_norm * C * math.sqrt(P + 1)
    responsibilities = 1.01 * (P + 1) * 2.0**-LOG_BITS + 2.02 * weights * EXP_MAX_ERROR_ULP * _UNIT + (P + 1) * _FLOAT64
    if shape.clips_locally:
        return local_error_bound(shape, weight_error=responsibilities, score_norm=score_norm)
    slack = (P + 1) * K * SCORE_BOUND * _UNIT
    norm_units = (3 * K * P + 3 * D + P + 2) * 2.0**-25
    clip = 1.2 * slack + norm_units + math.sqrt(D) * 2.0 ** (-14 - bits) / C
    scores = math.sqrt(D) * 2.0 ** -(bits + 1)
    record = (responsibilities + 2 * K * _UNIT) * longest + scores + clip * C
    return shape.num_padded * record
