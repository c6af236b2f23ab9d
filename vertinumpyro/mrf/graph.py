"""Which tables the global field is built on: the strongest first, as long as its cliques stay within a limit.

GraphCom of the VertiMRF paper (section 5.1) over local and cross-party tables alike: edges in descending R-score,
each kept if the triangulated graph's maximal cliques still have at most `clique_limit` cells together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.consistency import dependence, one_way
from vertinumpyro.mrf.graphical_model import junction_tree_cells
from vertinumpyro.mrf.release import Measurement, useful_cells

__all__ = ["DEFAULT_CLIQUE_LIMIT", "check_clique_limit", "pair_scores", "select_measurements"]

DEFAULT_CLIQUE_LIMIT = 1_000_000

Key = frozenset[str]


def check_clique_limit(sizes: Mapping[str, int], clique_limit: int) -> None:
    """Refuses a domain in which a single pair of columns passes the limit, before anything is spent.

    Raises:
        ArgumentError: names the two widest columns and what to bin.
    """
    if len(sizes) < 2:
        return
    (first, a), (second, b) = sorted(sizes.items(), key=lambda item: -item[1])[:2]
    if a * b + sum(sizes.values()) > clique_limit:
        fits = max(2, math.isqrt(clique_limit // 2))
        example = {first: min(a, fits), second: min(b, fits)}
        raise ArgumentError(
            f"columns {first!r} ({a} cells) and {second!r} ({b} cells) make a table beyond "
            f"clique_limit={clique_limit}; bin them, for instance bins={example}, or raise clique_limit"
        )


def pair_scores(measurements: Sequence[Measurement], num_records: int) -> dict[Key, float]:
    """Every measured pair's R-score less its noise, from its most precise table."""
    best: dict[Key, Measurement] = {}
    for m in measurements:
        key = frozenset(m.columns)
        if len(key) == 2 and (key not in best or m.stddev < best[key].stddev):
            best[key] = m
    return {key: dependence(m, num_records) for key, m in best.items()}


def select_measurements(
    measurements: Sequence[Measurement], sizes: Mapping[str, int], num_records: int, clique_limit: int
) -> list[Measurement]:
    """The tables that the field is fitted to, and one-way tables of columns that would have none.

    Tables without dependence beyond their noise, and too fine to be θ-useful, are left out: fitting them would
    only fit noise. Post-processing of released tables.
    """
    scores = pair_scores(measurements, num_records)
    by_columns: dict[tuple[str, ...], list[Measurement]] = {}
    for m in measurements:
        by_columns.setdefault(m.columns, []).append(m)
    ranked = sorted(by_columns, key=lambda columns: (len(columns) > 2, -_strength(columns, scores)))
    chosen: list[tuple[str, ...]] = []
    for columns in ranked:
        if not _worthwhile(columns, by_columns[columns], scores, num_records):
            continue
        inside = any(set(columns) <= set(other) for other in chosen)
        if inside or junction_tree_cells(sizes, [*chosen, columns]) <= clique_limit:
            chosen.append(columns)
    missing = set(sizes) - {name for columns in chosen for name in columns}
    singles = [one_way(n, measurements, num_records) for n in sizes if n in missing and _measured(n, measurements)]
    return [m for columns in chosen for m in by_columns[columns]] + singles


def _strength(columns: Sequence[str], scores: Mapping[Key, float]) -> float:
    pairs = (scores.get(frozenset(pair)) for pair in itertools.combinations(columns, 2))
    return sum(score for score in pairs if score is not None)


def _worthwhile(
    columns: Sequence[str], tables: Sequence[Measurement], scores: Mapping[Key, float], num_records: int
) -> bool:
    stddev = min(m.stddev for m in tables)
    useful = tables[0].values.size < useful_cells(num_records, stddev)
    return useful or len(columns) > 2 or _strength(columns, scores) > 0


def _measured(name: str, measurements: Sequence[Measurement]) -> bool:
    return any(name in m.columns for m in measurements)
