"""Which tables the global field is built on: the surest dependences first, as long as its cliques stay within a limit.

GraphCom of the VertiMRF paper (section 5.1) over local and cross-party tables alike: each is kept if the triangulated
graph's maximal cliques still have at most `clique_limit` cells together. The paper takes them in descending R-score,
in which a wide table's noise counts as dependence; here a table's place is how many standard deviations its
dependence is above its noise, so that strength, noise and cells all count.

A workload: the tables that a user names, in the place of those of all pairs of columns.

A table that nobody asks for takes budget from those that somebody does. Within a party named tables are all that is
measured. Across parties one product of one-hot columns holds the tables of all pairs; in the cells that nobody named
every party's noise is a one-time pad, a uniform element of Z_{2^64} that it keeps to itself. What is opened there is
uniform whatever the tables hold, to every coalition that lacks a party, so it is no release, and it is thrown away.
Columns that no named table crosses parties with stay out of the product.

A workload is public: it is named before anything is seen, so what it costs is its tables' noise, and no more.

Rounds that measure again the cross-party tables which the model so far gets most wrong.

As in AIM (McKenna, Mullins, Sheldon and Miklau 2022), but nothing exact is ever looked at: the first release shows all
pair tables with much noise, and each round compares those, and what later rounds revealed, with the model that they
gave. So a choice is post-processing and costs no budget; AIM pays for an exponential mechanism on exact errors.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import DisjointSet

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import require_collection, shown
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import Pair
from vertinumpyro.mrf.field import FEW_COLUMNS, GraphicalModel, junction_tree_cells
from vertinumpyro.mrf.measurements import Measurement, one_way, significance

CELLS_A_SECOND = 2_000
"""Cells of cliques for each second that a core fits a field: up to 12,000 steps, of 40 ns a cell."""

FIT_SECONDS = 60
"""What a field's cliques may take, unless `clique_limit` says more or less."""

WIDEST_TABLE = 150 * CELLS_A_SECOND
"""Cells of a pair of columns, which nothing takes apart; a wider one is refused unless `clique_limit` says more."""

_MOST_REFUSED = 50


def check_clique_limit(sizes: Mapping[str, int], clique_limit: int) -> None:
    """Refuses a domain in which a single pair of columns passes the limit, before anything is spent.

    :raises ArgumentError: names the two widest columns and what to bin.
    """
    if len(sizes) < 2:
        return
    (first, a), (second, b) = sorted(sizes.items(), key=lambda item: -item[1])[:2]
    if widest_pair(sizes) > clique_limit:
        example = {name: cells for name, cells in bins_within(sizes, clique_limit).items() if name in (first, second)}
        raise ArgumentError(
            f"columns {first!r} ({a} cells) and {second!r} ({b} cells) make a table beyond "
            f"clique_limit={clique_limit}; bin them, for instance bins={example}, or raise clique_limit"
        )


def widest_pair(sizes: Mapping[str, int]) -> int:
    """Cells of a field that has the table of the two widest columns."""
    return math.prod(sorted(sizes.values())[-2:]) + sum(sizes.values())


def bins_within(sizes: Mapping[str, int], clique_limit: int) -> dict[str, int]:
    """Cells for the columns that are too wide, so that any two make a table within the limit; none where all do."""
    fits = math.isqrt(clique_limit // 2)
    while fits > 2 and fits**2 + sum(min(size, fits) for size in sizes.values()) > clique_limit:
        fits = fits * 9 // 10
    fits = max(2, fits)
    return {name: fits for name, size in sizes.items() if size > fits}


def select_measurements(
    measurements: Sequence[Measurement], singles: Sequence[Measurement], sizes: Mapping[str, int], clique_limit: int
) -> list[Measurement]:
    """The tables that the field is fitted to. Post-processing of released tables.

    :param measurements: released tables, one for each set of columns.
    :param singles: what they say about single columns.
    :param sizes: cells of every column.
    :param clique_limit: most cells of all maximal cliques together.
    :return: Pairs before wider tables, and those of single columns that would otherwise have none.
    """
    known = {m.columns[0]: m.values for m in singles}
    ranked = sorted(measurements, key=lambda m: (len(m.columns) > 2, -significance(m, known)))
    chosen = (_one_by_one if len(sizes) <= FEW_COLUMNS else _in_blocks)(ranked, sizes, clique_limit)
    covered = {name for m in chosen for name in m.columns}
    return chosen + [m for m in singles if m.columns[0] not in covered]


def field_tables(
    measurements: Sequence[Measurement], sizes: Mapping[str, int], num_records: int, clique_limit: int
) -> dict[str, Any]:
    """Which released tables a field is fitted to, as `field.fit_graphical_model` takes them."""
    tables = merged(measurements)
    known = {name for m in tables for name in m.columns}
    singles = [one_way(name, tables, num_records) for name in sizes if name in known]
    chosen = select_measurements(tables, singles, sizes, clique_limit)
    return {"sizes": sizes, "measurements": chosen, "num_records": num_records, "singles": singles, "released": tables}


def _one_by_one(ranked: Sequence[Measurement], sizes: Mapping[str, int], clique_limit: int) -> list[Measurement]:
    chosen: list[Measurement] = []
    for m in ranked:
        cliques = [other.columns for other in chosen]
        inside = any(set(m.columns) <= set(other) for other in cliques)
        if inside or junction_tree_cells(sizes, [*cliques, m.columns]) <= clique_limit:
            chosen.append(m)
    return chosen


def _in_blocks(ranked: Sequence[Measurement], sizes: Mapping[str, int], clique_limit: int) -> list[Measurement]:
    """The same with far fewer triangulations, as long as more tables take more cells: all at once where all fit.

    Where so many in a row did not fit, the field is full; of the rest those are left that join two parts of it.
    """
    chosen: list[Measurement] = []
    place, block, refused = 0, len(ranked), 0
    while place < len(ranked) and refused < _MOST_REFUSED:
        tried = ranked[place : place + block]
        if junction_tree_cells(sizes, [m.columns for m in (*chosen, *tried)]) <= clique_limit:
            chosen += tried
            place, block, refused = place + len(tried), 2 * block, 0
        elif block == 1:
            place, refused = place + 1, refused + 1
        else:
            block = min(block, len(tried)) // 2
    return chosen + _joining(ranked[place:], chosen, sizes, clique_limit)


def _joining(
    ranked: Sequence[Measurement], chosen: Sequence[Measurement], sizes: Mapping[str, int], clique_limit: int
) -> list[Measurement]:
    """Tables of two columns in different parts: each adds its own cells at most, and no triangulation is needed."""
    parts = DisjointSet(sizes)
    for m in chosen:
        for name in m.columns[1:]:
            parts.merge(m.columns[0], name)
    cells, found = junction_tree_cells(sizes, [m.columns for m in chosen]) if ranked else 0, []
    for m in ranked:
        if len(m.columns) == 2 and not parts.connected(*m.columns) and cells + m.values.size <= clique_limit:
            parts.merge(*m.columns)
            cells += m.values.size
            found.append(m)
    return found


MOST_PAIRS = 20_000
"""Tables that are measured without being named, at most: those of 200 columns."""

_MOST_NAMES = 20  # in a message

_BETWEEN = re.compile(r"[:,*×-]|\bx\b")
"""What people write between the names of a pair."""

NamedTable = tuple[str, str, str, str]
"""(party, column, party, column)."""


def named_tables(columns: Sequence[CellColumn], entries: str | Sequence[str | Sequence[str]]) -> tuple[NamedTable, ...]:
    """The tables of some pairs of columns, in the order of the columns.

    :param columns: all parties' columns.
    :param entries: pairs of names, in one text as "a:b", "a, b", "a x b", "a * b" or "a - b"; and words for many of
        them: `"star:COLUMN"`, a column with each other one; `"chains"`, each party's columns with their neighbours in
        the schema; `"blocks:K"`, all pairs of each K columns of a party that follow each other. What several words
        name is measured once.
    :raises ArgumentError: names the entry that is neither a pair of different columns nor such a word, or is there
        twice, or the columns that no table would tell anything of.
    """
    entries = [entries] if isinstance(entries, str) else entries
    require_collection("workload", entries, "pairs of columns")
    places = {column.name: place for place, column in enumerate(columns)}
    entries = [_pair_in_words(places, entry) if isinstance(entry, str) else entry for entry in entries]
    found = {pair for entry in entries if isinstance(entry, str) for pair in _in_words(columns, places, entry)}
    seen: set[tuple[int, int]] = set()
    for entry in (entry for entry in entries if not isinstance(entry, str)):
        pair = tuple(entry) if isinstance(entry, list | tuple) else (entry,)
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ArgumentError(f"workload: {list(pair)} is no pair; give the names of two different columns")
        first, second = sorted(_place(places, name) for name in pair)
        if (first, second) in seen:
            raise ArgumentError(f"workload: {list(pair)} is there twice, and would be paid for twice; leave one out")
        seen.add((first, second))
    found |= seen
    held = {place for pair in found for place in pair}
    if left := [name for name, place in places.items() if place not in held]:
        raise ArgumentError(
            f"workload: no table holds {_some(left)}; name a pair with each, or leave them out of the schema"
        )
    return tuple((columns[a].party, columns[a].name, columns[b].party, columns[b].name) for a, b in sorted(found))


def _pair_in_words(places: Mapping[str, int], words: str) -> str | tuple[str, str]:
    """The two columns of a pair written as a text, where that names two in one way; the text itself otherwise."""
    cuts = [found.span() for found in _BETWEEN.finditer(words)]
    pairs = [(words[:start].strip(), words[end:].strip()) for start, end in cuts]
    pairs = [pair for pair in pairs if pair[0] in places and pair[1] in places]
    return pairs[0] if len(pairs) == 1 and words not in places else words


def _in_words(columns: Sequence[CellColumn], places: Mapping[str, int], word: str) -> Iterator[tuple[int, int]]:
    """The pairs of a structure that has a name."""
    kind, _, rest = word.partition(":")
    held = itertools.groupby(sorted(range(len(columns)), key=lambda i: columns[i].party), lambda i: columns[i].party)
    if kind == "star" and rest:
        centre = _place(places, rest)
        return (tuple(sorted((centre, other))) for other in range(len(columns)) if other != centre)  # type: ignore
    if word == "chains":
        return (pair for _, own in held for pair in itertools.pairwise(own))
    if kind == "blocks" and rest.isdecimal() and int(rest) > 1:
        parties = [list(own) for _, own in held]
        blocks = [own[i : i + int(rest)] for own in parties for i in range(0, len(own), int(rest))]
        return (pair for block in blocks for pair in itertools.combinations(block, 2))
    raise ArgumentError(
        f'workload: {shown(word)} is neither a pair of columns nor one of "star:COLUMN", "chains" and "blocks:K", '
        'K columns of a party at a time, 2 or more; a pair is ["a", "b"] or "a:b"'
    )


def _place(places: Mapping[str, int], name: Any) -> int:
    if name not in places:
        raise ArgumentError(f"workload: the schema has no column {name!r}; it has {_some(list(places))}")
    return places[name]


def _some(names: Sequence[str]) -> str:
    """Names as a list that stays readable."""
    more = f" and {len(names) - _MOST_NAMES} others" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def require_workload(num_pairs: int) -> None:
    """Refuses all pairs of many columns, where each would get next to nothing.

    :raises ArgumentError: says what to name instead.
    """
    if num_pairs > MOST_PAIRS:
        raise ArgumentError(
            f"all pairs of these columns are {num_pairs:,} tables, more than {MOST_PAIRS:,}: each would get so small a "
            "part of the budget that it shows noise alone. Name those that matter as the workload, which costs "
            'nothing: workload=["star:COLUMN", "chains"] takes a column with each other one, and each party\'s columns '
            'with their neighbours; "blocks:K" all pairs of K neighbours at a time; or pairs of names'
        )


def crossing(columns: Sequence[CellColumn], workload: Sequence[NamedTable] | None) -> list[CellColumn]:
    """The columns whose products with those of other parties are computed: all, or those of a workload's tables."""
    if workload is None:
        return list(columns)
    needed = {name for pair in across(workload) for name in pair}
    return [column for column in columns if column.name in needed]


def own(workload: Sequence[NamedTable], party: str) -> list[tuple[str, str]]:
    """The pairs of a party's own columns."""
    return [(a, b) for first, a, second, b in workload if first == second == party]


def across(workload: Sequence[NamedTable]) -> list[tuple[str, str]]:
    """The pairs of columns at different parties."""
    return [(a, b) for first, a, second, b in workload if first != second]


Estimate = Callable[[Sequence[CellColumn], Sequence[Measurement]], GraphicalModel]
"""Fits a field of some columns to released tables."""


def run_rounds(
    measurements: Sequence[Measurement],
    counts: Sequence[int],
    estimate: Callable[[Sequence[Measurement]], GraphicalModel],
    reveal: Callable[[int, Callable[[], Sequence[Pair]]], Sequence[Measurement]],
    candidates: Sequence[Pair],
    num_records: int,
) -> list[Measurement]:
    """All tables, those of the rounds included.

    :param measurements: what is released so far.
    :param counts: how many tables each round may choose.
    :param estimate: fits the field; post-processing.
    :param reveal: spends round i on the pairs that a function gives it; a round that was spent before needs none.
    :param candidates: the pairs to choose from.
    :param num_records: N.
    """
    tables = list(measurements)

    def worst(count: int) -> list[Pair]:
        return worst_fitted(estimate(tables), tables, candidates, num_records)[:count]

    for index, count in enumerate(counts):
        tables.extend(reveal(index, functools.partial(worst, count)))
    return tables


def worst_fitted(
    model: GraphicalModel, measurements: Sequence[Measurement], candidates: Sequence[Pair], num_records: int
) -> list[Pair]:
    """Pairs by how far the model is from their noisy tables, less what the noise alone would give; worst first.

    A pair without a table, where a crash lost the first look, comes before all others.
    """
    found = {m.columns: m for m in merged(measurements)}

    def error(pair: Pair) -> float:
        return _excess_error(model, found[pair], num_records) if pair in found else math.inf

    return sorted(candidates, key=lambda pair: -error(pair))


def _excess_error(model: GraphicalModel, measured: Measurement, num_records: int) -> float:
    gap = np.abs(num_records * model.marginal(measured.columns) - measured.values).sum()
    return float(gap) - math.sqrt(2 / math.pi) * measured.stddev * measured.values.size


def merged(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One table for each set of columns: the inverse-variance mean of all that there are."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault(m.columns, []).append(m)
    return [_mean(columns, group) for columns, group in groups.items()]


def _mean(columns: tuple[str, ...], group: Sequence[Measurement]) -> Measurement:
    weights = [m.stddev**-2 for m in group]
    values = sum((w * m.values for w, m in zip(weights, group, strict=True)), start=np.zeros(()))
    return Measurement(columns=columns, values=values / sum(weights), stddev=sum(weights) ** -0.5)
