r"""Rounds in which a party measures again what its own model gets most wrong (PrivMRF's refinement, Cai et al. 2021).

In each round the party fits a model to what it has released so far, publishes with noise how far the model is from its
records on some candidate sets of columns, and measures the worst of these sets with fresh noise. Candidates, and how
many there are, come from public facts and released tables alone.

Sensitivity of the gaps. Let e_S be the model's expected counts of a set S, rounded to integers, and c_S the exact
counts; e_S is computed from released tables, so for neighbours it is the same. The gap g_S = Σ_i |e_S[i] − c_S[i]| is
an integer, so it lies on the release's grid. Replacing a record lowers one cell of c_S by 1 and raises one by 1, or
changes nothing. By the triangle inequality each of the two terms moves by at most 1, so g_S by at most 2; T gaps
together move by at most 2√T in L2 norm, which is what √(2k) says of k = 2T tables. Zeroing a record's contribution
moves one term by 1, so T gaps by at most √T, as k = T tables. In both cases k = T·s, s = 2 under replace and 1 under
add/remove, and the release of the gaps is the release of T·s tables: Gaussian with its parameter μ. Every round looks
at released quantities besides, so that the rounds' parameters add up as squares.

What it gains. Little, as all pairs and all useful triples are measured before: mean 3-way TVD without rounds, with one
and with two, a fifth of the local budget for them, is .0057, .0056, .0054 on NLTCS at ε = 0.8 (six fits each; standard
deviation of a fit .0003), .0039, .0040, .0042 at ε = 1.6 (five; .0002), and .0645, .0634, .0648 on Adult at ε = 0.8
(three; .0006). So the default is no rounds. `benchmarks/vertimrf.py --only ablations` has them for NLTCS at ε = 0.8.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.exact_tables import exact_tables
from vertinumpyro.mrf.graph import pair_scores
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.local_budget import LocalBudget
from vertinumpyro.mrf.release import Measurement, noise_per_cell, useful_cells

__all__ = ["ROUND_TABLES", "Estimate", "candidate_sets", "gaps", "refine"]

Estimate = Callable[[Sequence[CellColumn], Sequence[Measurement]], GraphicalModel]

_WIDTHS = (2, 3, 4)
_MOST_CANDIDATES = 30
ROUND_TABLES = 4  # of a round
_GAP_SHARE = 0.3  # of a round's budget


def refine(
    columns: Sequence[CellColumn],
    arrays: Mapping[str, np.ndarray],
    tables: Sequence[Measurement],
    budget: LocalBudget,
    share: float,
    estimate: Estimate,
    source: RandomSource,
) -> list[Measurement]:
    """The tables that the rounds measure. Released.

    Args:
        columns: the party's columns, two at least.
        arrays: its encoded table. Secret.
        tables: what it has released so far.
        budget: its part of the plan.
        share: part of μ² for all rounds together.
        estimate: fits a model of the party's columns to released tables; post-processing.
        source: its own noise.
    """
    found: list[Measurement] = []
    each = share / budget.refinement_rounds
    for _ in range(budget.refinement_rounds):
        known = [*tables, *found]
        fresh = budget.release(ROUND_TABLES, each * (1 - _GAP_SHARE))
        sets = candidate_sets(columns, known, budget.num_records, fresh.stddev)
        chosen = _worst(columns, arrays, sets, estimate(columns, known), budget, each, source)
        exact = list(zip(chosen, _counts(columns, arrays, chosen), strict=True))
        found += budget.release(len(exact), each * (1 - _GAP_SHARE)).noisy(exact, source)
    return found


def candidate_sets(
    columns: Sequence[CellColumn], tables: Sequence[Measurement], num_records: int, stddev: float
) -> list[tuple[str, ...]]:
    """θ-useful sets of two to four columns, the strongest of each width in turn; all pairs where none is useful.

    Args:
        columns: the party's columns.
        tables: what it has released so far.
        num_records: N.
        stddev: of the noise in a cell of the round's tables.
    """
    scores = pair_scores(tables, num_records)
    sizes = {column.name: column.num_cells for column in columns}
    most = useful_cells(num_records, stddev)
    by_width = []
    for width in _WIDTHS:
        sets = itertools.combinations(sizes, width)
        useful = [names for names in sets if math.prod(sizes[name] for name in names) < most]
        by_width.append(sorted(useful, key=lambda names: -_strength(names, scores)))
    in_turn = [names for row in itertools.zip_longest(*by_width) for names in row if names is not None]
    return (in_turn or list(itertools.combinations(sizes, 2)))[:_MOST_CANDIDATES]


def _strength(names: Sequence[str], scores: Mapping[frozenset[str], float]) -> float:
    return sum(scores.get(frozenset(pair), 0.0) for pair in itertools.combinations(names, 2))


def _worst(
    columns: Sequence[CellColumn],
    arrays: Mapping[str, np.ndarray],
    sets: Sequence[tuple[str, ...]],
    model: GraphicalModel,
    budget: LocalBudget,
    share: float,
    source: RandomSource,
) -> list[tuple[str, ...]]:
    """The sets with the largest noisy gaps, less the gap that a fresh table's own noise would leave."""
    expected = [np.rint(budget.num_records * model.marginal(names)).astype(np.int64) for names in sets]
    exact = _counts(columns, arrays, sets)
    release = budget.gap_release(len(sets), share * _GAP_SHARE)
    (noisy,) = release.noisy([(("gaps",), gaps(expected, exact))], source)
    number = min(ROUND_TABLES, len(sets))
    per_cell = noise_per_cell(budget.release(number, share * (1 - _GAP_SHARE)).stddev)
    gains = noisy.values - per_cell * np.array([table.size for table in expected])
    return [sets[i] for i in np.argsort(-gains, kind="stable")[:number]]


def gaps(expected: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> np.ndarray:
    """L1 distances of integer tables, int64 `[T]`. Secret, as `exact` is."""
    return np.array([np.abs(e - c).sum() for e, c in zip(expected, exact, strict=True)], np.int64)


def _counts(
    columns: Sequence[CellColumn], arrays: Mapping[str, np.ndarray], sets: Sequence[tuple[str, ...]]
) -> list[np.ndarray]:
    places = {column.name: place for place, column in enumerate(columns)}
    return exact_tables(columns, arrays, [tuple(places[name] for name in names) for names in sets])
