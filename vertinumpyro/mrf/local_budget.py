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
    """

    mu: float
    recovery_share: float
    num_records: int
    relation: NeighbouringRelation

    def release(self, num_tables: int, share: float) -> TableRelease:
        """A release of some tables for a share of μ²."""
        return TableRelease(num_tables=num_tables, mu=self.mu * math.sqrt(share), relation=self.relation)
