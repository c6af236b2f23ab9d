"""Everything of a fit that looks at records: the parties' own tables, then the cross-party ones, as the plan says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.adaptive import run_rounds
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.cross_tables import Pair, reveal_all, share_all
from vertinumpyro.mrf.encoded_tables import encoded_tables
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.local_model import LocalBudget, LocalTables, measure_locally
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.privacy import Spending
from vertinumpyro.secure import SecureBackend

__all__ = ["Released", "Run"]


@final
class Released(NamedTuple):
    """What a run reveals: noisy tables, and noisy histograms of values within cells."""

    measurements: tuple[Measurement, ...]
    fine: dict[str, np.ndarray]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
    """One plan being spent on one dataset; in a simulation it stands for all parties."""

    dataset: VerticalDataset
    columns: tuple[CellColumn, ...]
    plan: MRFPlan
    backend: SecureBackend
    spending: Spending
    source: RandomSource

    def release(self, estimate: Callable[[Sequence[Measurement]], GraphicalModel]) -> Released:
        """All releases of the plan; each is counted as spent before it is computed.

        Args:
            estimate: fits the field to released tables, between the rounds of an adaptive selection.
        """
        self.spending.reserve(1)
        local = [self._local_tables(party) for party in self.dataset.parties]
        own = tuple(m for tables in local for m in tables.measurements)
        fine = {name: values for tables in local for name, values in tables.fine.items()}
        if self.plan.num_rounds:
            return Released(self._adaptive_tables(own, estimate), fine)
        if self.plan.encoding is not None:
            self.spending.reserve(1)
            found = encoded_tables(self.dataset, self.columns, self.plan.encoding, own, self.source)
            return Released((*own, *found), fine)
        return Released((*own, *self._all_tables()), fine)

    def _local_tables(self, party: str) -> LocalTables:
        """One party's own work, with noise from its own generator."""
        (own_source,) = self.source.spawn(1)
        budget = LocalBudget(
            mu=self.plan.local_mu(party),
            recovery_share=self.plan.recovery_share,
            num_records=self.plan.num_records,
            relation=self.plan.relation,
        )
        if not budget.mu:
            return LocalTables((), {})
        own = [column for column in self.columns if column.party == party]
        return measure_locally(own, self.dataset.arrays(party), budget, own_source)

    def _all_tables(self) -> list[Measurement]:
        if not self.plan.cross_releases:
            return []
        self.spending.reserve(1)
        return reveal_all(self.dataset, self.columns, self.plan.cross_releases[0], self.backend, self.source)

    def _adaptive_tables(
        self, own: Sequence[Measurement], estimate: Callable[[Sequence[Measurement]], GraphicalModel]
    ) -> tuple[Measurement, ...]:
        """One cross product, whose exact result stays shared, then a first look and the rounds."""
        first, *rounds = self.plan.cross_releases
        shared = share_all(self.dataset, self.columns, first, self.backend, self.source)
        self.spending.reserve(1)
        seen = shared.reveal(list(shared.shares), first, self.backend, self.source)

        def reveal(index: int, chosen: Sequence[Pair]) -> list[Measurement]:
            self.spending.reserve(1)
            return shared.reveal(chosen, rounds[index], self.backend, self.source)

        counts = [release.num_tables for release in rounds]
        found = run_rounds([*own, *seen], counts, estimate, reveal, list(shared.shares), self.plan.num_records)
        return tuple(found)
