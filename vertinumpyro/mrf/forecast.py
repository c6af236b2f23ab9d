r"""Of how many pairs of columns a release tells more than noise: forecast from public numbers, and as it was released.

A table of two columns is held where its distance from independence stands three standard deviations above what its
noise alone would give (`measurements.significance`). For records whose columns have the cells' shares p, q and joint
shares t, noise of standard deviation s in each of K cells and N records, that distance has the mean

    z = N^2 ||t - p q'||^2 / (s^2 sqrt(2 K))

and the variance 1 + 2 z sqrt(2 / K). Before records are seen, p, q and t are unknown. So stand-ins take their place:
columns have a usual histogram for their kind, and two of them the dependence of a bivariate normal distribution cut
into these cells, whose correlation r gives t - p q' = sum_k r^k a_k b_k', a_k the differences of the k-th Hermite
function at the cuts (Mehler's formula). How often a usual pair has which r is set down here, in `USUAL`.

Tables differ: of eleven with 9 to 23 columns, five of them public, five to seven, by the noise of a release, held as
many pairs as forecast to within 20 %. One held half as many, as its columns have little to do with each other, and
where all columns measure one thing all pairs were held. So two further forecasts, of weaker and of closer dependence,
stand beside it; ten of the eleven lay between, or within 20 % of an end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from scipy.stats import norm

from vertinumpyro.data import Schema
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.measurements import Measurement, one_way, significance
from vertinumpyro.mrf.table_selection import merged

LEARNED = 3.0
"""Standard deviations of its noise that a table's dependence must stand above it."""

USUAL = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.13, 0.16, 0.20, 0.26, 0.34, 0.45, 0.60, 0.85)
"""Correlations of as many pairs of usual columns each."""

_WEAK, _CLOSE = 0.4, 2.5  # times as large where columns hardly depend on each other, and where they do closely
_LARGEST = 0.95

_FEW = 1 / 3  # of the pairs, below which a release is of little use for relations
_FREQUENT = 0.75  # of the first category where there are two; a usual missing value's share is _MISSING
_MISSING = 0.05
_TERMS = 12
_MOST_NAMED = 3


class Held(NamedTuple):
    """Pairs of columns whose tables say more than their noise, of all that were released."""

    num_held: float
    num_pairs: int

    @property
    def verdict(self) -> str:
        """In words."""
        of = f"holds {self.num_held:.0f} of {self.num_pairs} pairs of columns; the others are noise"
        if self.num_held >= self.num_pairs - 0.5:
            return f"holds all {self.num_pairs} pairs of columns"
        few = self.num_held < _FEW * self.num_pairs
        return of + (": of little use for relations; fewer columns or coarser cells would hold more" if few else "")


def single_tables(tables: Sequence[Measurement], num_records: int) -> dict[str, Measurement]:
    """The table of each column, by all that tables say of it."""
    return {name: one_way(name, tables, num_records) for name in dict.fromkeys(n for m in tables for n in m.columns)}


def significances(tables: Sequence[Measurement], num_records: int) -> dict[tuple[str, ...], float]:
    """How many standard deviations of noise each pair's table stands above it. Post-processing.

    :param tables: merged, one for each set of columns.
    """
    known = {name: m.values for name, m in single_tables(tables, num_records).items()}
    return {m.columns: significance(m, known) for m in tables if len(m.columns) == 2}


def held(released: Marginals) -> Held:
    """The pairs that a release holds. Post-processing."""
    found = significances(merged(released.measurements), released.num_records)
    return Held(sum(z >= LEARNED for z in found.values()), len(found))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairsForecast:
    """How many pairs a release will hold where columns depend on each other as is usual. Public; no bound.

    :ivar expected: of how many of all.
    :ivar weak: the same where columns hardly depend on each other.
    :ivar close: the same where they closely do.
    :ivar smallest: for each pair the smallest correlation that will stand out of its noise; 1 where none does.
    :ivar by_cells: the most cells of a column -> how many would be expected with at most so many.
    :ivar widest: the columns that cost most: more cells than the others have, the most first.
    """

    expected: Held
    weak: float
    close: float
    smallest: Mapping[tuple[str, ...], float]
    by_cells: Mapping[int, float]
    widest: Mapping[str, int]

    @property
    def words(self) -> str:
        """In one sentence, and another of what would hold more."""
        middle = float(np.median(list(self.smallest.values()))) if self.smallest else 1.0
        count, of = round(self.expected.num_held), self.expected.num_pairs
        told = f"about {count} of {of}, where columns depend on each other as is usual; {self.weak:.0f} where they "
        told += f"hardly do, {self.close:.0f} where they closely do"
        shows = f". In half of the tables a correlation below {middle:.2f} would be noise"
        return f"{told}{shows}{self.remedy}"

    @property
    def remedy(self) -> str:
        """What would hold more; empty where most pairs are held, or cells are few already."""
        of = self.expected
        best = max(self.by_cells, key=lambda cells: self.by_cells[cells], default=0)
        if self.by_cells.get(best, 0.0) < 1.15 * of.num_held + 1:
            few = of.num_held < _FEW * of.num_pairs
            return "; of little use for relations: leave columns out, or name pairs as the workload" if few else ""
        wide = ", ".join(f"{name} ({cells})" for name, cells in list(self.widest.items())[:_MOST_NAMED])
        return f". Coarser cells would hold about {self.by_cells[best]:.0f}: max_cells = {best}, or fewer for {wide}"


def forecast_pairs(schema: Schema, stand_in: Marginals) -> PairsForecast:
    """What a release will hold.

    :param schema: of its columns.
    :param stand_in: tables as many, as large and as noisy (`VertiMRF.stand_in`).
    """
    pairs = [m for m in merged(stand_in.measurements) if len(m.columns) == 2]
    columns = {column.name: column for column in stand_in.columns}
    ordered = {name: schema.columns[name].ordered for name in columns}
    most = max((c.num_cells for c in columns.values() if ordered[c.name]), default=0)

    def of_at_most(cells: int) -> dict[tuple[str, ...], _Pair]:
        waves = {name: _waves(_shares(columns[name], ordered[name], cells)) for name in columns}
        return {m.columns: _of_pair(m, waves, stand_in.num_records) for m in pairs}

    def count(found: Mapping[tuple[str, ...], _Pair], strength: int) -> float:
        return sum(pair.chances[strength] for pair in found.values())

    found = of_at_most(most)
    by_cells = {cells: count(of_at_most(cells), 1) for cells in (4, 5, 6, 8, 12) if cells < most}
    typical = float(np.median([column.num_cells for column in columns.values()]))
    wide = sorted((c for c in columns.values() if c.num_cells > typical), key=lambda c: -c.num_cells)
    return PairsForecast(
        expected=Held(count(found, 1), len(found)),
        weak=count(found, 0),
        close=count(found, 2),
        smallest={pair: one.smallest for pair, one in found.items()},
        by_cells=by_cells,
        widest={column.name: column.num_cells for column in wide},
    )


def _shares(column: CellColumn, ordered: bool, most: int) -> np.ndarray:
    """A usual histogram: even in the cells of numbers, falling in those of categories."""
    cells = min(column.num_bins, most) if ordered else column.num_bins
    if ordered:
        shares = np.ones(cells)
    elif cells == 2:
        shares = np.array([_FREQUENT, 1 - _FREQUENT])
    else:
        shares = 1 / np.arange(1, cells + 1)
    shares = shares / shares.sum()
    return shares if column.missing == "forbid" else np.append((1 - _MISSING) * shares, _MISSING)


def _waves(shares: np.ndarray) -> np.ndarray:
    """The normal distribution cut into cells of these shares: a_k of each, `[terms, cells]`."""
    cuts = norm.ppf(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    hermite = [np.ones_like(cuts), cuts]  # He_0, He_1
    for k in range(1, _TERMS):
        hermite.append(cuts * hermite[k] - k * hermite[k - 1])
    at = np.stack([norm.pdf(cuts) * h / math.sqrt(math.factorial(k + 1)) for k, h in enumerate(hermite[:_TERMS])])
    edges = np.pad(at, ((0, 0), (1, 1)))
    return edges[:, :-1] - edges[:, 1:]


class _Pair(NamedTuple):
    """chances: that its table is held, of weak, usual and close dependence. smallest: the least r that is."""

    chances: tuple[float, ...]
    smallest: float


def _of_pair(m: Measurement, waves: Mapping[str, np.ndarray], num_records: int) -> _Pair:
    a, b = (waves[name] for name in m.columns)
    cells = a.shape[1] * b.shape[1]
    products = (a @ a.T) * (b @ b.T)  # of <a_k, a_l> <b_k, b_l>, so that ||t - pq'||^2 is a form of r^k
    steps = np.linspace(0.01, 0.99, 99)
    usual = np.minimum(np.outer([_WEAK, 1.0, _CLOSE], USUAL), _LARGEST)
    grid = np.concatenate([usual.ravel(), steps])
    powers = grid[:, None] ** np.arange(1, _TERMS + 1)
    distances = np.einsum("rk,kl,rl->r", powers, products, powers)
    z = num_records**2 * distances / (m.stddev**2 * math.sqrt(2 * cells))
    chances = norm.sf((LEARNED - z) / np.sqrt(1 + 2 * z * math.sqrt(2 / cells)))[: usual.size].reshape(usual.shape)
    above = np.flatnonzero(z[usual.size :] >= LEARNED)
    return _Pair(tuple(chances.mean(axis=1).tolist()), float(steps[above[0]]) if len(above) else 1.0)
