r"""Tables of three columns across parties: two columns of one party, and one of another.

To the protocol two columns of one party are one, with a cell for every pair of their values: one-hot as any other, and
a record is in one cell of such a table as of every other. So nothing new is sent, but words: a product takes each
record's cells, so compound columns are few. Whatever else stands in the product of the compounds is opened under
one-time pads, as what no workload names (`table_selection`).

Which triples is chosen from a first look at all pairs, which a part of the budget buys: those whose pairs across
parties depend most, both of them, as far as noise pays for their cells, by the rule of triples within a party
(`local_tables`). Post-processing. Where one column is to be predicted, all are of it and of two that go with it. How
many, and whether any, is in the plan, from N, the budget and the cells alone: pairs pay for triples with the noise of
the first look, so there are none where this hides what pairs show.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import cross_pairs, table_slices
from vertinumpyro.mrf.encoders import SECURE_MARGINALS
from vertinumpyro.mrf.measurements import Measurement, TableRelease, dependence, useful_cells
from vertinumpyro.mrf.plan import MRFPlan

Triple = tuple[str, str, str]
"""Names in the schema's order, two of one party's columns and one of another's."""

FIRST_SHARE = 0.65
"""Part of the budget across parties for the first look at all pairs, where triples follow."""

MOST_TRIPLES = 100
_CHOICE = 4  # triples that could be had for each that is taken
_CHOICE_OF_TARGET = 8  # the same of one column's: fewer, so that two wide columns may be among them
_PAIRS_SEEN = 0.95  # of all pairs' cells, on the mean of pairs, that must be useful after the first look
_CELLS = 4  # in the product of compounds, for each in that of all columns


@final
@dataclasses.dataclass(frozen=True)
class Compound:
    """One column of a party, or two as one: a cell for every pair of their values. Public.

    :ivar parts: the columns.
    """

    parts: tuple[CellColumn, ...]

    @property
    def name(self) -> tuple[str, ...]:
        """Of its columns."""
        return tuple(part.name for part in self.parts)

    @property
    def party(self) -> str:
        """Who holds it."""
        return self.parts[0].party

    @property
    def num_cells(self) -> int:
        """Of all columns together."""
        return math.prod(part.num_cells for part in self.parts)

    def codes(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Every record's cell, int64 `[N]`. Secret."""
        found = self.parts[0].codes(arrays)
        for part in self.parts[1:]:
            found = found * part.num_cells + part.codes(arrays)
        return found


@final
class Decision(NamedTuple):
    """Of a plan.

    num: how many triples.
    why: the reason, in words.
    """

    num: int
    why: str


def decided(
    columns: Sequence[CellColumn], plan: MRFPlan, asked: Literal["auto"] | int, first_share: float,
    encoder: str = SECURE_MARGINALS, target: str | None = None,
) -> Decision:  # fmt: skip
    """How many triples a plan takes, from public facts.

    :param columns: in cells.
    :param plan: without triples, calibrated; how its budget is divided is what is asked.
    :param asked: "auto", or the most.
    :param first_share: part of the budget across parties for the first look.
    :param encoder: of the tables across parties.
    :param target: the column that all triples are to be of.
    """
    if refused := _refusal(plan, encoder):
        return Decision(0, refused)
    _, cells = _candidates(columns, plan.parties, target)
    budget = sum(release.mu**2 for release in plan.cross_releases)
    first = _one_table(plan, budget * first_share) * math.sqrt(plan.num_cross_pairs)
    sizes = {c.name: c.num_cells for c in columns}
    pairs = np.array([sizes[a] * sizes[b] for a, b in cross_pairs(columns, plan.parties)])
    seen = float(np.mean(np.minimum(1.0, useful_cells(plan.num_records, first) / pairs)))
    if asked == "auto" and seen < _PAIRS_SEEN:
        return Decision(0, "a first look would hide in noise what pairs show: so few records, or so many cells")
    second = _one_table(plan, budget * (1 - first_share))
    choice = _CHOICE if target is None else _CHOICE_OF_TARGET
    most, for_each = (MOST_TRIPLES, choice) if asked == "auto" else (asked, 1)
    for num in range(min(most, cells.size), 0, -1):
        useful = np.count_nonzero(cells < useful_cells(plan.num_records, second * math.sqrt(num)))
        if useful >= min(for_each * num, cells.size):
            return Decision(num, "their cells hold clearly more than noise" if asked == "auto" else "asked for")
    return Decision(0, "noise would hide what is in their cells")


def _refusal(plan: MRFPlan, encoder: str) -> str:
    """Why the tables across parties cannot be of three columns; empty where they can."""
    if encoder != SECURE_MARGINALS:
        return "an encoder reports pairs alone"
    if plan.workload is not None:
        return "a workload names pairs"
    if plan.num_rounds:
        return "rounds measure pairs again"
    if not plan.cross_releases or not plan.num_cross_triples:
        return "no party has two columns beside another's"
    return ""


def _one_table(plan: MRFPlan, mu_squared: float) -> float:
    """The noise of a release of one table; of k tables it is sqrt(k) times as much."""
    return TableRelease(num_tables=1, mu=math.sqrt(mu_squared), noise=plan.noise, relation=plan.relation).stddev


def most_cells(columns: Sequence[CellColumn]) -> int:
    """Of all parties' compounds together, at most."""
    return _CELLS * sum(column.num_cells for column in columns)


def _candidates(
    columns: Sequence[CellColumn], parties: Sequence[str], target: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """All triples, of a target if any, as places of columns `[T, 3]`, two of a party and the other; and their cells."""
    sizes = np.array([column.num_cells for column in columns], np.int64)
    places = [np.array([i for i, c in enumerate(columns) if c.party == party], np.int64) for party in parties]
    found = [np.zeros((0, 3), np.int64)]
    for own in places:
        pairs = np.array(list(itertools.combinations(own.tolist(), 2)), np.int64).reshape(-1, 2)
        others = np.setdiff1d(np.arange(len(columns)), own)
        found.append(np.column_stack([np.repeat(pairs, len(others), axis=0), np.tile(others, len(pairs))]))
    triples = np.concatenate(found)
    if target is not None:
        triples = triples[np.any(triples == _place(columns, target), axis=1)]
    cells = np.prod(sizes[triples], axis=1)
    needed = sizes[triples[:, 0]] * sizes[triples[:, 1]] + sizes[triples[:, 2]]
    fits = needed <= most_cells(columns)
    return triples[fits], cells[fits]


def _place(columns: Sequence[CellColumn], name: str) -> int:
    return [column.name for column in columns].index(name)


def choose_triples(columns: Sequence[CellColumn], plan: MRFPlan, measurements: Sequence[Measurement]) -> list[Triple]:
    """Those that the plan's last release measures, from released tables. Post-processing.

    Those come first of which both columns of the one party depend most on the other's, by the weaker of the two: where
    one says nothing of it, the other's table has all there is; of a target, by the weaker of its own two pairs. None
    whose cells the noise hides, and none beyond what the product of compounds may take.

    :param measurements: of the parties' own tables and of the first look; a pair without one counts as independent.
    """
    release = plan.cross_releases[-1]
    triples, cells = _candidates(columns, plan.parties, plan.target)
    strength = _strength(columns, measurements, plan.num_records)
    a, b, c = triples.T
    if plan.target is not None:
        c = np.full(len(triples), _place(columns, plan.target))
        a, b = triples[triples != c[:, None]].reshape(-1, 2).T
    scores = np.minimum(strength[a, c], strength[b, c])
    useful = np.flatnonzero(cells < useful_cells(plan.num_records, release.stddev))
    order = useful[np.argsort(-scores[useful], kind="stable")]
    sizes, left = [column.num_cells for column in columns], most_cells(columns)
    taken: set[tuple[int, ...]] = set()
    chosen: list[Triple] = []
    for first, second, other in triples[order].tolist():
        if len(chosen) == release.num_tables:
            break
        new = {part: math.prod(sizes[i] for i in part) for part in ((first, second), (other,)) if part not in taken}
        if sum(new.values()) <= left:
            taken |= new.keys()
            left -= sum(new.values())
            x, y, z = sorted((first, second, other))
            chosen.append((columns[x].name, columns[y].name, columns[z].name))
    return chosen


def _strength(columns: Sequence[CellColumn], measurements: Sequence[Measurement], num_records: int) -> np.ndarray:
    """How far each pair is from independence, by its table with the least noise."""
    places = {column.name: place for place, column in enumerate(columns)}
    found = np.zeros((len(columns), len(columns)))
    for m in sorted((m for m in measurements if len(m.columns) == 2), key=lambda m: -m.stddev):
        i, j = (places[name] for name in m.columns)
        found[i, j] = found[j, i] = dependence(m, num_records)
    return found


def checked_triples(columns: Sequence[CellColumn], plan: MRFPlan, given: Any) -> list[Triple]:
    """Triples that somebody asks for, which the plan's last release pays for.

    :raises ArgumentError: one is there twice, which moves twice as far, or is none of two columns of a party with one
        of another in the schema's order; or they are more, or have more cells, than the plan takes.
    """
    party = {column.name: column.party for column in columns}
    order = {column.name: place for place, column in enumerate(columns)}
    listed = isinstance(given, list | tuple) and all(isinstance(names, list | tuple) for names in given)
    asked: list[tuple[Any, ...]] = [tuple(names) for names in given] if listed else [()]
    triples: list[Triple] = []
    for names in asked:
        known = len(names) == 3 and all(isinstance(name, str) and name in party for name in names)
        if not known or len({party[n] for n in names}) != 2 or not order[names[0]] < order[names[1]] < order[names[2]]:
            raise ArgumentError("a table of three columns has two of one party and one of another, in their order")
        triples.append((names[0], names[1], names[2]))
    if not triples:
        raise ArgumentError("no table of three columns was asked for")
    if len(set(triples)) < len(triples):
        raise ArgumentError("a table of three columns is there twice, and would move twice as far")
    plan.cross_releases[-1].check_count(len(triples))
    if sum(column.num_cells for column in compounds(columns, triples)) > most_cells(columns):
        raise ArgumentError(f"compound columns have more than {most_cells(columns)} cells together")
    return triples


def compounds(columns: Sequence[CellColumn], triples: Sequence[Triple]) -> list[Compound]:
    """The columns of the product that holds these triples' tables, in the columns' order."""
    held = {column.name: column for column in columns}
    order = {column.name: place for place, column in enumerate(columns)}
    needed = {part for triple in triples for part in _parts(held, triple)}
    in_order = sorted(needed, key=lambda part: [order[name] for name in part])
    return [Compound(tuple(held[name] for name in part)) for part in in_order]


def _parts(held: Mapping[str, CellColumn], triple: Triple) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A triple as two compounds, each of one party."""
    a, b, c = triple
    return ((a, b), (c,)) if held[a].party == held[b].party else ((a,), (b, c))


def compound_slices(
    columns: Sequence[CellColumn], parties: Sequence[str], triples: Sequence[Triple]
) -> dict[Triple, np.ndarray]:
    """Where each triple's cells stand in the flat vector of the products: integers, an axis for each column."""
    held = {column.name: column for column in columns}
    places = table_slices(compounds(columns, triples), parties)
    return {t: places[_parts(held, t)].reshape([held[name].num_cells for name in t]) for t in triples}
