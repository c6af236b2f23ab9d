"""A workload: the tables that a user names, in the place of those of all pairs of columns.

A table that nobody asks for takes budget from those that somebody does. Within a party named tables are all that is
measured. Across parties one product of one-hot columns holds the tables of all pairs; in the cells that nobody named
every party's noise is a one-time pad, a uniform element of Z_{2^64} that it keeps to itself. What is opened there is
uniform whatever the tables hold, to every coalition that lacks a party, so it is no release, and it is thrown away.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertinumpyro.core.arguments import require_collection
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn

__all__ = ["NamedTable", "across", "named_tables", "own"]

NamedTable = tuple[str, str, str, str]
"""(party, column, party, column)."""


def named_tables(columns: Sequence[CellColumn], pairs: Sequence[Sequence[str]]) -> tuple[NamedTable, ...]:
    """The tables of some pairs of columns, in the order of the columns.

    Raises:
        ArgumentError: names the entry that is no pair of different columns, or is there twice, or the columns that no
            table would tell anything of.
    """
    require_collection("workload", pairs, "pairs of columns")
    places = {column.name: place for place, column in enumerate(columns)}
    found: set[tuple[int, int]] = set()
    for entry in pairs:
        pair = tuple(entry) if isinstance(entry, list | tuple) else (entry,)
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ArgumentError(f"workload: {list(pair)} is no pair; give the names of two different columns")
        if unknown := [name for name in pair if name not in places]:
            raise ArgumentError(f"workload: the schema has no column {unknown[0]!r}; it has {', '.join(places)}")
        first, second = sorted(places[name] for name in pair)
        if (first, second) in found:
            raise ArgumentError(f"workload: {list(pair)} is there twice, and would be paid for twice; leave one out")
        found.add((first, second))
    if left := [name for name, place in places.items() if not any(place in pair for pair in found)]:
        raise ArgumentError(
            f"workload: no table holds {', '.join(left)}; name a pair with each, or leave them out of the schema"
        )
    return tuple((columns[a].party, columns[a].name, columns[b].party, columns[b].name) for a, b in sorted(found))


def own(workload: Sequence[NamedTable], party: str) -> list[tuple[str, str]]:
    """The pairs of a party's own columns."""
    return [(a, b) for first, a, second, b in workload if first == second == party]


def across(workload: Sequence[NamedTable]) -> list[tuple[str, str]]:
    """The pairs of columns at different parties."""
    return [(a, b) for first, a, second, b in workload if first != second]
