"""The encoder `sketch`: sketches whose hash keys belong to one pair of columns, as a plan sees them.

A party knows the hash keys of its own sketches, with which nothing but the phantoms hides the others' values: no ε is
claimed against it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders.base import Budget, Encoding, Estimator, Observed, Reporting, composed_delta, smallest
from vertinumpyro.mrf.encoders.sketch import (
    KEY_BYTES,
    SketchDesign,
    count_pair,
    count_single,
    estimator_bytes,
    grid_interval,
    joint_information,
    sketch_column_pair,
    sketch_pld,
    squared_loss,
)
from vertinumpyro.mrf.measurements import one_way
from vertinumpyro.privacy import NeighbouringRelation

__all__ = ["SketchEncoding"]

_LEVELS = range(3, 30)
_WIDTHS = (1, 2, 3)
_MOST_PHANTOMS = 1e9
_MOST_COMPOSITIONS = 2**40


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SketchEncoding(Encoding):
    """Sketches of every pair of columns at different parties, each pair under keys of its own.

    Attributes:
        num_keys: as in `SketchDesign`, which checks them all.
        phantoms: see there.
        lower: see there.
        upper: see there.
    """

    name: ClassVar[str] = "sketch"
    holds_against_parties: ClassVar[bool] = False
    unproven: ClassVar[tuple[str, ...]] = ()

    num_keys: int
    phantoms: int
    lower: int
    upper: int

    def __post_init__(self) -> None:
        _ = self.design  # validates

    @cached_property
    def design(self) -> SketchDesign:
        """Of every pair."""
        return SketchDesign(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def calibrated(cls, budget: Budget) -> SketchEncoding:
        """The most informative levels for a typical cell, then the fewest phantoms that the accountant allows.

        The choice of levels uses the Gaussian limit and only costs precision; the phantoms are found with the exact
        loss.
        """
        found = _most_informative(budget)

        def enough(phantoms: float) -> bool:
            design = dataclasses.replace(found, phantoms=math.ceil(phantoms))
            return design.bounded and budget.holds(cls(**dataclasses.asdict(design)))

        low, high = max(1.0, found.phantoms / 4), min(4.0 * found.phantoms + 4, _MOST_PHANTOMS)
        phantoms = math.ceil(smallest(enough, low, high, 1e-3))
        return cls(**{**dataclasses.asdict(found), "phantoms": phantoms})

    def delta_at(self, epsilon: float, relation: NeighbouringRelation, observed: Observed) -> float:
        """See `Encoding.delta_at`."""
        compositions = self.num_keys * observed.num_pairs
        if compositions > _MOST_COMPOSITIONS:
            raise ArgumentError(f"num_keys={self.num_keys} for {observed.num_pairs} pairs of columns are too many")
        loss, interval = sketch_pld(self.design, observed.num_pairs, relation), grid_interval(self.design, relation)
        return composed_delta(loss, observed.mu, epsilon, interval=interval, compositions=compositions)

    def estimator(self, reporting: Reporting) -> Estimator:
        """Sketches with a key set for each pair, then maximum likelihood."""
        own, num_records = reporting.own, reporting.num_records
        known = {name: one_way(name, own, num_records).values for name in {n for m in own for n in m.columns}}

        def estimate(a: CellColumn, b: CellColumn) -> tuple[np.ndarray, float]:
            first, second, shared = reporting.source.spawn(3)
            sizes, pair = (a.num_cells, b.num_cells), (reporting.codes[a.name], reporting.codes[b.name])
            sketches = sketch_column_pair(pair, sizes, self.design, shared.random_bytes(KEY_BYTES), (first, second))
            counts = [
                known[c.name] if c.name in known else count_single(sketch, num_records, self.design)
                for c, sketch in zip((a, b), sketches, strict=True)
            ]
            return count_pair(sketches, (counts[0], counts[1]), num_records, self.design)

        return estimate

    def reported_bytes(self, columns: Sequence[CellColumn], num_records: int) -> dict[str, int]:
        """A byte for a level, once for every column of the others."""
        sent = dict.fromkeys((c.party for c in columns), 0)
        for c in columns:
            sent[c.party] += self.num_keys * c.num_cells * sum(other.party != c.party for other in columns)
        return sent

    def estimator_bytes(self, columns: Sequence[CellColumn]) -> int:
        """Of one pair's sketches and estimate."""
        return estimator_bytes(self.num_keys, self.upper - self.lower + 1, max(c.num_cells for c in columns))

    def secrets(self, owner: str) -> str:
        """See `Encoding.secrets`."""
        return f"the hash keys of {owner} sketches"


def _most_informative(budget: Budget) -> SketchDesign:
    """The levels that say most about a typical cell, each with about as many phantoms as the budget asks for."""
    each = budget.mu_squared / (budget.num_keys * budget.num_pairs)
    size = math.exp(sum(math.log(column.num_cells) for column in budget.columns) / len(budget.columns))
    count = budget.num_records / size
    best, chosen = -1.0, None
    for lower in _LEVELS:
        for width in _WIDTHS:
            design = _enough_phantoms(budget.num_keys, lower, lower + width, budget.relation, each)
            if design is None:
                continue
            information = joint_information(count, count, count**2 / budget.num_records, design)
            if information > best:
                best, chosen = information, design
    if chosen is None:
        raise ArgumentError("epsilon is out of reach for sketches of so many records; raise epsilon or cross_share")
    return chosen


def _enough_phantoms(
    num_keys: int, lower: int, upper: int, relation: NeighbouringRelation, each: float
) -> SketchDesign | None:
    """The fewest phantoms with which one key loses at most `each`, by its second moment."""

    def design(phantoms: float) -> SketchDesign:
        return SketchDesign(num_keys=num_keys, phantoms=math.ceil(phantoms), lower=lower, upper=upper)

    def enough(phantoms: float) -> bool:
        made = design(phantoms)
        return made.bounded and squared_loss(made, relation) <= each

    # more phantoms lose less until hardly any sketch is left below the upper cut
    most = math.log(2) * 2.0**lower * 8
    try:
        return design(smallest(enough, 1.0, most, 1e-2))
    except ArgumentError:
        return None
