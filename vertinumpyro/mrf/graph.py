"""Which tables the global field is built on: the surest dependences first, as long as its cliques stay within a limit.

GraphCom of the VertiMRF paper (section 5.1) over local and cross-party tables alike: each is kept if the triangulated
graph's maximal cliques still have at most `clique_limit` cells together. The paper takes them in descending R-score,
in which a wide table's noise counts as dependence; here a table's place is how many standard deviations its
dependence is above its noise, so that strength, noise and cells all count. Weak tables do harm where they are many:
the fit ends before it learns their noise, and with them the strong ones. So the strong alone are a second choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy.cluster.hierarchy import DisjointSet

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.dependence import significance
from vertinumpyro.mrf.graphical_model import FEW_COLUMNS, junction_tree_cells
from vertinumpyro.mrf.release import Measurement

__all__ = [
    "DEFAULT_CLIQUE_LIMIT",
    "bins_within",
    "check_clique_limit",
    "select_measurements",
    "strong_measurements",
]

DEFAULT_CLIQUE_LIMIT = 300_000

_STRONG = 2.0  # standard deviations of its noise
_MOST_REFUSED = 50


def check_clique_limit(sizes: Mapping[str, int], clique_limit: int) -> None:
    """Refuses a domain in which a single pair of columns passes the limit, before anything is spent.

    Raises:
        ArgumentError: names the two widest columns and what to bin.
    """
    if len(sizes) < 2:
        return
    (first, a), (second, b) = sorted(sizes.items(), key=lambda item: -item[1])[:2]
    if a * b + sum(sizes.values()) > clique_limit:
        example = {name: cells for name, cells in bins_within(sizes, clique_limit).items() if name in (first, second)}
        raise ArgumentError(
            f"columns {first!r} ({a} cells) and {second!r} ({b} cells) make a table beyond "
            f"clique_limit={clique_limit}; bin them, for instance bins={example}, or raise clique_limit"
        )


def bins_within(sizes: Mapping[str, int], clique_limit: int) -> dict[str, int]:
    """Cells for the columns that are too wide, so that any two make a table within the limit; none where all do."""
    fits = math.isqrt(clique_limit // 2)
    while fits > 2 and fits**2 + sum(min(size, fits) for size in sizes.values()) > clique_limit:
        fits = fits * 9 // 10
    fits = max(2, fits)
    return {name: fits for name, size in sizes.items() if size > fits}


def strong_measurements(measurements: Sequence[Measurement], singles: Sequence[Measurement]) -> list[Measurement]:
    """The tables whose dependence stands clear of their noise; empty where that is all of them."""
    known = {m.columns[0]: m.values for m in singles}
    strong = [m for m in measurements if significance(m, known) >= _STRONG]
    return strong if len(strong) < len(measurements) else []


def select_measurements(
    measurements: Sequence[Measurement], singles: Sequence[Measurement], sizes: Mapping[str, int], clique_limit: int
) -> list[Measurement]:
    """The tables that the field is fitted to. Post-processing of released tables.

    Args:
        measurements: released tables, one for each set of columns.
        singles: what they say about single columns.
        sizes: cells of every column.
        clique_limit: most cells of all maximal cliques together.

    Returns:
        Pairs before wider tables, and those of single columns that would otherwise have none.
    """
    known = {m.columns[0]: m.values for m in singles}
    ranked = sorted(measurements, key=lambda m: (len(m.columns) > 2, -significance(m, known)))
    chosen = (_one_by_one if len(sizes) <= FEW_COLUMNS else _in_blocks)(ranked, sizes, clique_limit)
    covered = {name for m in chosen for name in m.columns}
    return chosen + [m for m in singles if m.columns[0] not in covered]


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
