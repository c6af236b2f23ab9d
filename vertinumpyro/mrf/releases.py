"""All releases of a plan, in their order: the parties' own tables, then those across parties, at once or in steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import numpy as np

from vertinumpyro.core.errors import PlanSpentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import Pair, check_range, cross_pairs, measured_pairs, table_slices
from vertinumpyro.mrf.encoders.base import encoded_tables
from vertinumpyro.mrf.marginals import Released, named, pack_released, unpack_released
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.party_work import ACROSS, OWN, PADS, ROUND, TRIPLES
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.table_selection import Estimate, across, crossing, run_rounds
from vertinumpyro.mrf.triples import choose_triples, compound_slices
from vertinumpyro.session import InProcessSession, Multiply, Payload, Publish, Run, Session, Sum

RELEASED = "released.npz"
_LOCAL, _ACROSS, _TRIPLES = 0, 1, 2  # steps of the plan; or rounds follow


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Releases:
    """One plan being spent in a session.

    :ivar session: the parties.
    :ivar run: the record.
    :ivar plan: the plan.
    :ivar columns: the columns in cells.
    :ivar estimate: fits a field of some columns to released tables, between the rounds of an adaptive selection.
    """

    session: Session
    run: Run
    plan: MRFPlan
    columns: tuple[CellColumn, ...]
    estimate: Estimate

    def all(self) -> Released:
        """All releases of the plan, those that are stored included.

        :raises PlanSpentError: every step was reserved before, and no table of any is stored.
        """
        for release in self.plan.cross_releases:
            check_range(self.plan.num_records, release)
        local = self._step(_LOCAL, self._own_tables)
        if self.plan.num_rounds:
            across = self._adaptive_tables(local.measurements)
        elif self.plan.num_steps > _ACROSS:
            across = self._step(_ACROSS, partial(self._all_tables, local.measurements)).measurements
            if self.plan.num_triples:
                seen = (*local.measurements, *across)
                across += self._step(_TRIPLES, partial(self._triples, seen)).measurements
        else:
            across = ()
        if not (local.measurements or across or local.fine):
            raise PlanSpentError(
                "every release of this plan was reserved, and none of the tables was stored: there is nothing to make "
                "a field from. Make a new plan, whose cost adds to this one's"
            )
        return Released((*local.measurements, *across), local.fine)

    def _step(self, index: int, compute: Callable[[], Released]) -> Released:
        """What a step released: as stored; nothing where a crash lost it; otherwise now."""
        found = self.session.step(self.run, index, lambda: Payload(*pack_released(compute())))
        return Released((), {}) if found is None else self._unpacked(found)

    def _unpacked(self, payload: Payload) -> Released:
        with named(RELEASED):
            return unpack_released(payload.words, payload.arrays, self.columns)

    def _own_tables(self) -> Released:
        local = [self._unpacked(payload) for payload in self.session.publish(Publish(_LOCAL, OWN))]
        fine = {name: values for tables in local for name, values in tables.fine.items()}
        return Released(tuple(m for tables in local for m in tables.measurements), fine)

    def _all_tables(self, own: Sequence[Measurement]) -> Released:
        """All cross-party tables at once, by the plan's encoder."""
        if self.plan.encoding is None:
            products = self.session.cross_products(Multiply(_ACROSS, ACROSS, {"release": 0}))
            named = None if self.plan.workload is None else set(across(self.plan.workload))
            release = self.plan.cross_releases[0]
            columns = crossing(self.columns, self.plan.workload)
            found = measured_pairs(columns, self.plan.parties, release, products, named)
            return Released(tuple(found), {})
        assert isinstance(self.session, InProcessSession)
        (source,) = self.session.spare_source.spawn(1)
        found = encoded_tables(self.session.dataset, self.columns, self.plan.encoding, own, source)
        return Released(tuple(found), {})

    def _triples(self, seen: Sequence[Measurement]) -> Released:
        """Tables of three columns, chosen by what is released so far."""
        chosen = choose_triples(self.columns, self.plan, seen)
        if not chosen:
            return Released((), {})
        fields = {"release": _TRIPLES - _ACROSS, "triples": [list(triple) for triple in chosen]}
        products = self.session.cross_products(Multiply(_TRIPLES, TRIPLES, fields))
        flat = np.concatenate([product.ravel() for product in products.values()])
        release = self.plan.cross_releases[-1]
        places = compound_slices(self.columns, self.plan.parties, chosen)
        return Released(tuple(release.measured(triple, flat[place]) for triple, place in places.items()), {})

    def _adaptive_tables(self, own: Sequence[Measurement]) -> tuple[Measurement, ...]:
        """Cross products whose exact results stay shared, then a first look and the rounds."""
        pairs = cross_pairs(self.columns, self.plan.parties)
        if any(self.run.stored(step) is None for step in range(_ACROSS, self.plan.num_steps)):
            # Reveals nothing, so a run that goes on may compute the shares anew: for a step that was counted, too, and
            # not received, which the parties open again as they did.
            self.session.cross_products(Multiply(None, PADS))
        seen = self._reveal(_ACROSS, lambda: pairs)

        def reveal(index: int, choose: Callable[[], Sequence[Pair]]) -> Sequence[Measurement]:
            return self._reveal(_ACROSS + 1 + index, choose)

        counts = [release.num_tables for release in self.plan.cross_releases[1:]]
        fitted = partial(self.estimate, self.columns)
        found = run_rounds([*own, *seen], counts, fitted, reveal, pairs, self.plan.num_records)
        return tuple(found[len(own) :])

    def _reveal(self, step: int, choose: Callable[[], Sequence[Pair]]) -> Sequence[Measurement]:
        """Chosen tables with noise, from the shares."""
        index = step - _ACROSS
        release = self.plan.cross_releases[index]

        def compute() -> Released:
            chosen = list(choose())
            release.check_count(len(chosen))
            fields = {"pairs": [list(pair) for pair in chosen], "release": index}
            revealed = self.session.sum(Sum(step, ROUND, fields))
            shapes = [table_slices(self.columns, self.plan.parties)[pair].shape for pair in chosen]
            cuts = np.split(revealed, np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1])
            tables = zip(chosen, cuts, shapes, strict=True)
            return Released(tuple(release.measured(pair, cut.reshape(shape)) for pair, cut, shape in tables), {})

        return self._step(step, compute).measurements
