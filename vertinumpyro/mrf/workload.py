"""A workload: the tables that a user names, in the place of those of all pairs of columns.

A table that nobody asks for takes budget from those that somebody does. Within a party named tables are all that is
measured. Across parties one product of one-hot columns holds the tables of all pairs; in the cells that nobody named
every party's noise is a one-time pad, a uniform element of Z_{2^64} that it keeps to itself. What is opened there is
uniform whatever the tables hold, to every coalition that lacks a party, so it is no release, and it is thrown away.
Columns that no named table crosses parties with stay out of the product.

A workload is public: it is named before anything is seen, so what it costs is its tables' noise, and no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vertinumpyro.core.arguments import require_collection, shown
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn

__all__ = ["MOST_PAIRS", "NamedTable", "across", "crossing", "named_tables", "own", "require_workload"]

MOST_PAIRS = 20_000
"""Tables that are measured without being named, at most: those of 200 columns."""

_MOST_NAMES = 20  # in a message

NamedTable = tuple[str, str, str, str]
"""(party, column, party, column)."""


def named_tables(columns: Sequence[CellColumn], entries: str | Sequence[str | Sequence[str]]) -> tuple[NamedTable, ...]:
    """The tables of some pairs of columns, in the order of the columns.

    Args:
        columns: all parties' columns.
        entries: pairs of names, and words for many of them: `"star:COLUMN"`, a column with each other one; `"chains"`,
            each party's columns with their neighbours in the schema; `"blocks:K"`, all pairs of each K columns of a
            party that follow each other. What several words name is measured once.

    Raises:
        ArgumentError: names the entry that is neither a pair of different columns nor such a word, or is there twice,
            or the columns that no table would tell anything of.
    """
    entries = [entries] if isinstance(entries, str) else entries
    require_collection("workload", entries, "pairs of columns")
    places = {column.name: place for place, column in enumerate(columns)}
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
        "K columns of a party at a time, 2 or more"
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

    Raises:
        ArgumentError: says what to name instead.
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
