"""The parameters of an encoder that use up what a plan leaves for cross-party tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoding import EncoderName, Encoding, smallest
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.randomized_response import ResponseDesign
from vertinumpyro.mrf.shared_key import SharedKeyDesign
from vertinumpyro.mrf.sketch import SketchDesign
from vertinumpyro.mrf.sketch_estimate import joint_information
from vertinumpyro.mrf.sketch_loss import squared_loss
from vertinumpyro.privacy import OUTSIDE_ANALYST

__all__ = ["with_encoder"]

_LEVELS = range(3, 30)
_WIDTHS = (1, 2, 3)
_MOST_PHANTOMS = 1e9


def with_encoder(
    plan: MRFPlan,
    encoder: EncoderName,
    columns: Sequence[CellColumn],
    *,
    epsilon: float,
    adversary: str = OUTSIDE_ANALYST,
    num_keys: int = 2000,
) -> MRFPlan:
    """The plan with an encoder instead of secure marginals: its local part stays, the rest of ε is the encoder's.

    Args:
        plan: calibrated for secure marginals.
        encoder: which.
        columns: all columns.
        epsilon: what `adversary` gets at most.
        adversary: the name of a row of the privacy table.
        num_keys: hash keys of each pair of columns.

    Raises:
        ArgumentError: the encoder holds nothing against this adversary, or ε is out of reach.
    """
    if encoder == "secure_marginals" or not plan.cross_releases:
        return plan
    if encoder != "randomized_response" and adversary != OUTSIDE_ANALYST:
        raise ArgumentError(
            f'adversary={adversary!r} knows hash keys: choose "{OUTSIDE_ANALYST}" (which the server is, too), '
            'encoder="randomized_response" or encoder="secure_marginals"'
        )

    def made(encoding: Encoding) -> MRFPlan:
        return dataclasses.replace(plan, encoding=encoding)

    def holds(encoding: Encoding) -> bool:
        return made(encoding).delta_at(epsilon, adversary) <= plan.delta

    if encoder == "sketch":
        return made(_sketch(plan, columns, num_keys, holds))
    if encoder == "randomized_response":
        return made(_response(plan, columns, holds))
    left = epsilon - plan.local_epsilon()
    return made(SharedKeyDesign(num_keys=num_keys, claimed_epsilon=left, delta=plan.delta, num_columns=len(columns)))


def _sketch(
    plan: MRFPlan, columns: Sequence[CellColumn], num_keys: int, holds: Callable[[Encoding], bool]
) -> SketchDesign:
    """The levels with the most information about a typical cell, then the fewest phantoms that the accountant allows.

    The choice of levels uses the Gaussian limit and only costs precision; the phantoms are found with the exact loss.
    """
    budget = sum(release.mu**2 for release in plan.cross_releases)
    each = budget / (num_keys * plan.num_cross_pairs)
    size = math.exp(sum(math.log(column.num_cells) for column in columns) / len(columns))
    count = plan.num_records / size
    best, chosen = -1.0, None
    for lower in _LEVELS:
        for width in _WIDTHS:
            design = _enough_phantoms(num_keys, lower, lower + width, plan, each)
            if design is None:
                continue
            information = joint_information(count, count, count**2 / plan.num_records, design)
            if information > best:
                best, chosen = information, design
    if chosen is None:
        raise ArgumentError("epsilon is out of reach for sketches of so many records; raise epsilon or cross_share")
    found = chosen

    def enough(phantoms: float) -> bool:
        design = dataclasses.replace(found, phantoms=math.ceil(phantoms))
        return design.bounded and holds(design)

    low, high = max(1.0, found.phantoms / 4), min(4.0 * found.phantoms + 4, _MOST_PHANTOMS)
    return dataclasses.replace(found, phantoms=math.ceil(smallest(enough, low, high, 1e-3)))


def _enough_phantoms(num_keys: int, lower: int, upper: int, plan: MRFPlan, each: float) -> SketchDesign | None:
    """The fewest phantoms with which one key loses at most `each`, by its second moment."""

    def design(phantoms: float) -> SketchDesign:
        return SketchDesign(num_keys=num_keys, phantoms=math.ceil(phantoms), lower=lower, upper=upper)

    def enough(phantoms: float) -> bool:
        made = design(phantoms)
        return made.bounded and squared_loss(made, plan.relation) <= each

    # more phantoms lose less until hardly any sketch is left below the upper cut
    most = math.log(2) * 2.0**lower * 8
    try:
        return design(smallest(enough, 1.0, most, 1e-2))
    except ArgumentError:
        return None


def _response(plan: MRFPlan, columns: Sequence[CellColumn], holds: Callable[[Encoding], bool]) -> ResponseDesign:
    """The largest ε of a report that the accountant allows, searched around the Gaussian limit."""
    cells = tuple(tuple(c.num_cells for c in columns if c.party == party) for party in plan.parties)
    rough = math.sqrt(sum(release.mu**2 for release in plan.cross_releases) / len(columns))

    def design(inverse: float) -> ResponseDesign:
        return ResponseDesign(epsilon_per_column=1 / inverse, cells=cells)

    low = max(1 / 30, 0.25 / rough)
    return design(smallest(lambda inverse: holds(design(inverse)), low, 8 * max(low, 1 / rough), 1e-3))
