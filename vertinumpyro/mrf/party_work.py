"""VertiMRF at one party: its own noisy tables, its part of the products and sums across parties, its noise on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import (
    Crossed,
    cross_pairs,
    one_hot,
    pads,
    product_widths,
    table_slices,
    tables_form,
)
from vertinumpyro.mrf.local_tables import measure_locally
from vertinumpyro.mrf.marginals import Released, pack_released
from vertinumpyro.mrf.measurements import TableRelease
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.table_selection import across, crossing, own
from vertinumpyro.mrf.triples import Triple, checked_triples, compound_slices, compounds
from vertinumpyro.privacy import sample_discrete_gaussian
from vertinumpyro.secure import prime_field as field
from vertinumpyro.secure.input_form import InputForm
from vertinumpyro.session import Multiply, PartyComputation, Payload, Publish, ReleaseRequest, Sum

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
