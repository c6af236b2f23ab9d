"""Everything of a fit that looks at records: the parties' own tables, then the cross-party ones, as the plan says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import final

from vertinumpyro.core.errors import PlanSpentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf.adaptive import run_rounds
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.cross_tables import Pair, SharedTables, cross_pairs, reveal_all, share_all
from vertinumpyro.mrf.encoded_tables import encoded_tables
from vertinumpyro.mrf.local_budget import LocalBudget
from vertinumpyro.mrf.local_model import LocalTables, measure_locally
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.refinement import Estimate
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.release_log import ReleaseLog
from vertinumpyro.mrf.stored import Released
from vertinumpyro.privacy import Spending
from vertinumpyro.secure import SecureBackend

__all__ = ["Run"]

_LOCAL, _ACROSS = 0, 1  # steps of the ledger; rounds follow


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
    """One plan being spent on one dataset; in a simulation it stands for all parties.

    `spending` is None where every step was reserved before; then nothing is released any more.
    """

    dataset: VerticalDataset
    columns: tuple[CellColumn, ...]
    plan: MRFPlan
    backend: SecureBackend
    spending: Spending | None
    source: RandomSource
    log: ReleaseLog

    def release(self, estimate: Estimate) -> Released:
        """All releases of the plan, those that the log has included; each is counted as spent before it is computed.

        Args:
            estimate: fits a field of some columns to released tables, between the rounds of an adaptive selection,
                and of a party's own refinement.

        Raises:
            PlanSpentError: every step was reserved before, and no table of any is stored.
        """
        if self.spending is None and not any(released.measurements for released in self.log.steps.values()):
            raise PlanSpentError(
                "every release of this plan was reserved, and none of the tables was stored: there is nothing to make "
                "a field from. Make a new plan, whose cost adds to this one's"
            )
        local = self._step(_LOCAL, lambda: partial(self._own_tables, estimate))
        if self.plan.num_rounds:
            across = self._adaptive_tables(local.measurements, estimate)
        elif self.plan.num_steps > _ACROSS:
            across = self._step(_ACROSS, lambda: partial(self._all_tables, local.measurements)).measurements
        else:
            across = ()
        return Released((*local.measurements, *across), local.fine)

    def _step(self, step: int, prepare: Callable[[], Callable[[], Released]]) -> Released:
        """What a step released: as stored; nothing where a crash lost it; otherwise now.

        Args:
            step: of the ledger.
            prepare: all that the step needs before it is reserved; gives what computes it.
        """
        if step in self.log.steps:
            return self.log.steps[step]
        if step < self.log.first_step:
            return Released((), {})
        release = prepare()
        assert self.spending is not None
        self.spending.reserve(1)
        released = release()
        self.log.add(step, released, secure_noise=self.source.secure)
        return released

    def _own_tables(self, estimate: Estimate) -> Released:
        local = [self._local_tables(party, estimate) for party in self.dataset.parties]
        fine = {name: values for tables in local for name, values in tables.fine.items()}
        return Released(tuple(m for tables in local for m in tables.measurements), fine)

    def _local_tables(self, party: str, estimate: Estimate) -> LocalTables:
        """One party's own work, with noise from its own generator; its models see its own released tables only."""
        (own_source,) = self.source.spawn(1)
        budget = LocalBudget(
            mu=self.plan.local_mu(party),
            recovery_share=self.plan.recovery_share,
            num_records=self.plan.num_records,
            relation=self.plan.relation,
            refinement_rounds=self.plan.refinement_rounds,
            refinement_share=self.plan.refinement_share,
        )
        if not budget.mu:
            return LocalTables((), {})
        own = [column for column in self.columns if column.party == party]
        return measure_locally(own, self.dataset.arrays(party), budget, own_source, estimate)

    def _all_tables(self, own: Sequence[Measurement]) -> Released:
        """All cross-party tables at once, by the plan's encoder."""
        if self.plan.encoding is not None:
            found = encoded_tables(self.dataset, self.columns, self.plan.encoding, own, self.source)
        else:
            found = reveal_all(self.dataset, self.columns, self.plan.cross_releases[0], self.backend, self.source)
        return Released(tuple(found), {})

    def _adaptive_tables(self, own: Sequence[Measurement], estimate: Estimate) -> tuple[Measurement, ...]:
        """One cross product, whose exact result stays shared, then a first look and the rounds."""
        pairs = cross_pairs(self.columns, self.dataset.parties)
        seen = self._reveal(_ACROSS, lambda: pairs)

        def reveal(index: int, choose: Callable[[], Sequence[Pair]]) -> Sequence[Measurement]:
            return self._reveal(_ACROSS + 1 + index, choose)

        counts = [release.num_tables for release in self.plan.cross_releases[1:]]
        fitted = partial(estimate, self.columns)
        found = run_rounds([*own, *seen], counts, fitted, reveal, pairs, self.plan.num_records)
        return tuple(found[len(own) :])

    def _reveal(self, step: int, choose: Callable[[], Sequence[Pair]]) -> Sequence[Measurement]:
        """Chosen tables with noise, from the shares."""
        release = self.plan.cross_releases[step - _ACROSS]

        def prepare() -> Callable[[], Released]:
            shared, chosen = self._shared, list(choose())
            return lambda: Released(tuple(shared.reveal(chosen, release, self.backend, self.source)), {})

        return self._step(step, prepare).measurements

    @cached_property
    def _shared(self) -> SharedTables:
        """All cross-party tables, secret-shared. Reveals nothing, so a run that goes on may compute them anew."""
        return share_all(self.dataset, self.columns, self.plan.cross_releases[0], self.backend, self.source)
