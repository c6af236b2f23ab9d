"""All releases of a VertiMRF plan, in their order: the parties' own tables, then those across parties, at once or in
steps; and a party's part of each: its noisy tables, its share of products and sums across parties, its noise on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import (
    Crossed,
    Pair,
    check_range,
    cross_pairs,
    measured_pairs,
    one_hot,
    pads,
    product_widths,
    table_slices,
    tables_form,
)
from vertinumpyro.mrf.encoders.base import encoded_tables
from vertinumpyro.mrf.local_tables import measure_locally
from vertinumpyro.mrf.marginals import Released, named, pack_released, unpack_released
from vertinumpyro.mrf.measurements import Measurement, TableRelease
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.table_selection import Estimate, across, crossing, own, run_rounds
from vertinumpyro.mrf.triples import Triple, checked_triples, choose_triples, compound_slices, compounds
from vertinumpyro.privacy import sample_discrete_gaussian
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.session import (
    InProcessSession,
    Multiply,
    PartyComputation,
    Payload,
    Publish,
    ReleaseRequest,
    Run,
    Session,
    Sum,
)

OWN, ACROSS, PADS, ROUND = "own tables", "tables across parties", "one-time pads", "a round"
TRIPLES = "tables of three columns"


@final
class TablesWork(PartyComputation):
    """One party's part of a plan.

    :param columns: all parties' columns in cells, public.
    :param party: whose part this is.
    :param arrays: its encoded table. Secret.
    :param plan: the plan.
    :param source: its own randomness.
    """

    def __init__(
        self,
        columns: Sequence[CellColumn],
        party: str,
        arrays: Mapping[str, np.ndarray],
        plan: MRFPlan,
        source: RandomSource,
    ) -> None:
        self._columns, self._party, self._arrays = columns, party, arrays
        self._plan, self._source = plan, source
        self._share: np.ndarray | None = None
        self._first = plan.parties[0] == party

    def check(self, request: ReleaseRequest) -> None:
        """See `PartyComputation.check`: own tables, then all products, and triples; or chosen tables of shared ones."""
        releases, rounds = self._plan.cross_releases, self._plan.num_rounds
        allowed: list[ReleaseRequest] = [Publish(0, OWN)]
        if rounds:
            allowed.append(Multiply(None, PADS))
        elif releases:
            allowed.append(Multiply(1, ACROSS, {"release": 0}))
        if request in allowed:
            return
        step, fields = request.step, request.fields
        if self._plan.num_triples and request == Multiply(2, TRIPLES, {"release": 1, "triples": fields.get("triples")}):
            checked_triples(self._columns, self._plan, fields["triples"])
            return
        if not (rounds and step and request == Sum(step, ROUND, fields) and set(fields) == {"release", "pairs"}):
            raise request.refused()
        self._check_round(step, fields)

    def _check_round(self, step: int, fields: Mapping[str, Any]) -> None:
        """Refuses what a step's release does not pay for: a table twice is two tables, and moves twice as far."""
        chosen = [tuple(pair) for pair in fields["pairs"]]
        known = set(cross_pairs(self._columns, self._plan.parties))
        if fields["release"] != step - 1 or len(set(chosen)) < len(chosen) or not set(chosen) <= known:
            raise ArgumentError(f"step {step} releases different tables of two parties' columns, with its own noise")
        self._plan.cross_releases[step - 1].check_count(len(chosen))
        if self._share is None:
            raise ArgumentError("tables were asked for before the products that they are taken from")

    def publish(self, request: Publish) -> Payload:
        """The party's own tables, with its noise alone."""
        budget = self._plan.local_budget(self._party)
        if not budget.mu:
            return Payload(*pack_released(Released((), {})))
        named = None if self._plan.workload is None else own(self._plan.workload, self._party)
        measured = measure_locally(self._own, self._arrays, budget, self._source, named)
        return Payload(*pack_released(Released(measured.measurements, measured.fine)))

    def factor(self, request: Multiply) -> RowBlocks:
        """One-hot columns."""
        own = [column for column in self._crossed(request) if column.party == self._party]
        return one_hot(own, self._arrays, self._plan.num_records)

    def widths(self, request: Multiply) -> tuple[int, ...]:
        """Every party's cells."""
        return product_widths(self._crossed(request), self._plan.parties)

    def input_form(self, request: Multiply) -> InputForm:
        """One-hot columns."""
        return tables_form(self._crossed(request), self._plan.parties)

    def adds_shares(self, request: Sum) -> bool:
        """All sums do."""
        return True

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """A share of the noise of the step's release, beside pads where no table is named; or a pad for all.

        The party keeps its pads to itself.
        """
        if request.name == PADS:
            self._share = pads(size, self._source, verified=self.verified)
            return self._share
        release = self._plan.cross_releases[request.fields["release"]]
        if request.name == TRIPLES:
            tables = list(compound_slices(self._columns, self._plan.parties, self._asked(request)).values())
        elif request.name == ACROSS and self._plan.workload is not None:
            places = table_slices(self._crossing, self._plan.parties)
            tables = [places[pair] for pair in across(self._plan.workload)]
        else:
            return self._noise_of(release, size)
        named = np.concatenate([table.ravel() for table in tables])
        values = pads(size, self._source, verified=self.verified)
        values[named] = self._noise_of(release, len(named))
        return values

    def _noise_of(self, release: TableRelease, size: int) -> np.ndarray:
        if release.noise.num_shares == 1 and not self._first:
            return np.zeros(size, np.int64)  # trusted noise, of which there is one share
        return sample_discrete_gaussian(release.share_variance, size, self._source)

    def opened(self, request: Multiply | Sum, values: np.ndarray) -> None:
        """The padded products, int64 flat: from here on the party holds a share of the exact ones."""
        if request.name == PADS:
            assert self._share is not None
            padded = values if self._first else np.zeros_like(values)
            if self.verified:
                self._share = field.subtract(field.from_integers(padded), field.from_integers(self._share))
            else:
                self._share = padded - self._share

    def summand(self, request: Sum) -> np.ndarray:
        """The party's share of the chosen tables."""
        assert self._share is not None
        places = table_slices(self._columns, self._plan.parties)
        return np.concatenate([self._share[places[a, b].ravel()] for a, b in request.fields["pairs"]])

    def _asked(self, request: Multiply | Sum) -> list[Triple]:
        return checked_triples(self._columns, self._plan, request.fields["triples"])

    def _crossed(self, request: Multiply) -> Sequence[Crossed]:
        return compounds(self._columns, self._asked(request)) if request.name == TRIPLES else self._crossing

    @property
    def _crossing(self) -> list[CellColumn]:
        return crossing(self._columns, self._plan.workload)

    @property
    def _own(self) -> list[CellColumn]:
        return [column for column in self._columns if column.party == self._party]

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"TablesWork({self._party!r})"


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
