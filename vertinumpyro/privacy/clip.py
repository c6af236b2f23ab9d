"""How a record is clipped: as a whole, or each party's part of it where the weight of its scores is bounded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vertinumpyro.core.errors import ArgumentError

__all__ = ["LEAST_RESIDUAL_BOUND", "bounds_of_outcomes", "check_local_clip"]

LEAST_RESIDUAL_BOUND = 2.0**-10
"""A party's scores are at most C / b long, which the number formats are proved for up to 1024 C."""


def bounds_of_outcomes(residual_bound: float | Sequence[float]) -> tuple[float, ...]:
    """Each outcome's b, as a plan has them: a number where there is one outcome."""
    return (residual_bound,) if isinstance(residual_bound, int | float) else tuple(residual_bound)


def check_local_clip(
    clip_parts: Sequence[int] | None, residual_bound: float | Sequence[float], num_parties: int
) -> None:
    """Refuses parts of C^2 and a bound of the residual that no clip can have; see `secure.number_formats`.

    :param clip_parts: whole numbers, to which the parties' parts of C^2 are in proportion: so they add up to 1.
    :param residual_bound: b, of the link's unit; of several outcomes each one's.
    :raises ArgumentError: names which, and the fix.
    """
    for bound in bounds_of_outcomes(residual_bound):
        if not (math.isfinite(bound) and LEAST_RESIDUAL_BOUND <= bound <= 1):
            raise ArgumentError(
                f"residual_bound must be at least {LEAST_RESIDUAL_BOUND:g} and at most 1, the largest residual, got "
                f"{bound:g}"
            )
    if clip_parts is None:
        if residual_bound != 1:
            raise ArgumentError(
                f"residual_bound is {residual_bound}, and a record that is clipped as a whole has no such bound; "
                'choose clip="local", or leave it out'
            )
        return
    if not all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in clip_parts):
        raise ArgumentError("clip_parts must be whole numbers of at least 0, in the parties' order")
    if len(clip_parts) != num_parties or not sum(clip_parts):
        raise ArgumentError(
            f"clip_parts must be {num_parties} numbers, one for each party, of which one is above 0, got "
            f"{list(clip_parts)}"
        )
