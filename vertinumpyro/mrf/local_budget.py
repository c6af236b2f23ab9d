"""How a party's part of the budget is divided between the releases of its own columns."""

from __future__ import annotations

import dataclasses
import math
from typing import final

from vertinumpyro.mrf.release import TableRelease
from vertinumpyro.privacy import NeighbouringRelation

__all__ = ["LocalBudget"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalBudget:
    """A party's part of a plan.

    Attributes:
        mu: the Gaussian parameter of everything that `measure_locally` returns.
        recovery_share: part of μ² for finer histograms, where there are binned columns.
        num_records: N.
        relation: the neighbouring relation.
        refinement_rounds: rounds that measure again what the party's model gets most wrong.
        refinement_share: part of what the histograms leave that these rounds have together.
    """

    mu: float
    recovery_share: float
    num_records: int
    relation: NeighbouringRelation
    refinement_rounds: int = 0
    refinement_share: float = 0.0

    def release(self, num_tables: int, share: float) -> TableRelease:
        """A release of some tables for a share of μ²."""
        return TableRelease(num_tables=num_tables, mu=self.mu * math.sqrt(share), relation=self.relation)

    def gap_release(self, num_gaps: int, share: float) -> TableRelease:
        """A release of L1 gaps for a share of μ²; see `refinement` for why a gap moves as `sensitivity` tables do."""
        return self.release(num_gaps * self.relation.sensitivity, share)
