r"""Of how many pairs of columns a release tells more than noise: forecast from public numbers, and as it was released.

A table of two columns is held where its distance from independence stands three standard deviations above what its
noise alone would give (`measurements.significance`). For records whose columns have the cells' shares p, q and joint
shares t, noise of standard deviation s in each of K cells and N records, that distance has the mean

    z = N^2 ||t - p q'||^2 / (s^2 sqrt(2 K))

and the variance 1 + 2 z sqrt(2 / K). Before records are seen, p, q and t are unknown. So stand-ins take their place:
columns have a usual histogram for their kind, and two of them the dependence of a bivariate normal distribution cut
into these cells, whose correlation r gives t - p q' = sum_k r^k a_k b_k', a_k the differences of the k-th Hermite
function at the cuts (Mehler's formula); as records are a sample, N^2 ||t - p q'||^2 has N (1 - p'p) (1 - q'q) more.
How often a usual pair has which r is set down here, in `USUAL`.

How tables depend differs more than all that is public: of two with the same records, columns and noise one held 46 of
its 78 pairs, and the other 15. So no public number can be near both, and two further forecasts, of weaker and of closer
dependence, stand beside the usual one. What does come near is an earlier release: its tables say which r are likely
here, and for each pair that it has, which is likely there (`_Beliefs`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import exact_tables
from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.measurements import Measurement, one_way, significance
from vertinumpyro.mrf.table_selection import merged

LEARNED = 3.0
"""Standard deviations of its noise that a table's dependence must stand above it."""

USUAL = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.13, 0.16, 0.20, 0.26, 0.34, 0.45, 0.60, 0.85)
"""Correlations of as many pairs of usual columns each."""

_WEAK, _CLOSE = 0.4, 2.5  # times as large where columns hardly depend on each other, and where they do closely
_LARGEST = 0.95
_GRID = np.minimum(np.outer([_WEAK, 1.0, _CLOSE], USUAL), _LARGEST).ravel()
_STEPS = np.linspace(0.01, 0.99, 99)

_PRIOR_PAIRS = 5  # that the usual correlations count as, beside the pairs of an earlier release
_PASSES = 20
_MISFIT = 0.1  # of a table's distance: dependence is not quite a normal distribution's
_EVENLY = np.full(_GRID.size, 1 / _GRID.size)
_USUALLY = np.repeat([0.0, 1 / len(USUAL), 0.0], len(USUAL))  # of the grid, the usual ones alone

_FEW = 1 / 3  # of the pairs, below which a release is of little use for relations
_FREQUENT = 0.75  # of the first category where there are two; a usual missing value's share is _MISSING
_MISSING = 0.05
_TERMS = 12
_MOST_NAMED = 3
_TOLD_APART = 0.02  # correlations that are as good as one


STEPS_SAY_NOTHING = (
    "How much of what its columns have to do with each other is noise, noisy steps do not say: a release of tables of "
    "the same records does."
)
"""The verdict on a model of tables without noisy tables."""


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


def held_by_records(dataset: VerticalDataset, stand_in: Marginals) -> dict[tuple[str, ...], float]:
    """The chance that each pair will be held, by the records themselves. NOT DP: for who holds them all, alone.

    :param stand_in: tables as many, as large and as noisy as the release's.
    """
    pairs = [m for m in merged(stand_in.measurements) if len(m.columns) == 2]
    place = {column.name: i for i, column in enumerate(stand_in.columns)}
    ordered = [sorted(m.columns, key=place.__getitem__) for m in pairs]
    sets = [tuple(place[name] for name in names) for names in ordered]
    found = {}
    for m, table in zip(pairs, exact_tables(stand_in.columns, dataset.pooled(), sets), strict=True):
        gap = table - np.outer(table.sum(1), table.sum(0)) / table.sum()
        z = float((gap**2).sum()) / (m.stddev**2 * math.sqrt(2 * table.size))
        found[m.columns] = float(_chance(z, table.size))
    return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairsForecast:
    """How many pairs a release will hold where columns depend on each other as is usual. Public; no bound.

    :ivar expected: of how many of all.
    :ivar weak: the same where columns hardly depend on each other; by an earlier release the least to expect.
    :ivar close: the same where they closely do; by an earlier release the most to expect.
    :ivar smallest: for each pair the smallest rank correlation that will stand out of its noise; 1 where none does.
    :ivar by_cells: the most cells of a column -> how many would be expected with at most so many.
    :ivar widest: the columns that cost most: more cells than the others have, the most first.
    :ivar by_release: whether an earlier release of such records says how columns depend.
    """

    expected: Held
    weak: float
    close: float
    smallest: Mapping[tuple[str, ...], float]
    by_cells: Mapping[int, float]
    widest: Mapping[str, int]
    by_release: bool = False

    def __str__(self) -> str:
        """In words."""
        return (
            f"Pairs of columns that it will hold: {self.words}." if self.expected.num_pairs else "No pairs of columns."
        )

    @property
    def words(self) -> str:
        """How many, from which correlation on a pair is held, and what would hold more."""
        count, of = round(self.expected.num_held), self.expected.num_pairs
        ends = f"{self.weak:.0f} to {self.close:.0f}"
        told = (
            f"as the earlier release has their dependence; {ends} by chance"
            if self.by_release
            else f"if columns depend on each other as is usual, which only the records know; {ends} if they hardly or "
            "closely do"
        )
        return f"about {count} of {of}, {told}. {self._visible}{self.remedy}"

    @property
    def _visible(self) -> str:
        """From which rank correlation on a pair is held."""
        low, middle, high = np.quantile(list(self.smallest.values()) or [1.0], [0.1, 0.5, 0.9])
        spread = (
            f" ({low:.2f} to {high:.2f}, as its columns' cells are few or many)" if high - low >= _TOLD_APART else ""
        )
        return f"A pair is held from a rank correlation of about {middle:.2f} on{spread}"

    @property
    def is_little(self) -> bool:
        """Whether so few pairs will be held that it is of little use for relations."""
        return self.expected.num_held < _FEW * self.expected.num_pairs

    @property
    def remedy(self) -> str:
        """What would hold more; empty where most pairs are held, or cells are few already."""
        of = self.expected
        best = max(self.by_cells, key=lambda cells: self.by_cells[cells], default=0)
        if self.by_cells.get(best, 0.0) < 1.15 * of.num_held + 1:
            more = "; of little use for relations: leave columns out, or name pairs as the workload"
            return more if self.is_little else ""
        wide = ", ".join(f"{name} ({cells})" for name, cells in list(self.widest.items())[:_MOST_NAMED])
        return f". Coarser cells would hold about {self.by_cells[best]:.0f}: max_cells = {best}, or fewer for {wide}"


def forecast_pairs(schema: Schema, stand_in: Marginals, earlier: Marginals | None = None) -> PairsForecast:
    """What a release will hold.

    :param schema: of its columns.
    :param stand_in: tables as many, as large and as noisy (`VertiMRF.stand_in`).
    :param earlier: a release of such records, as last month's: it knows how columns depend on each other, of its own
        pairs and, in all, of those that it has not.
    :raises ArgumentError: the earlier release has no tables of two columns.
    """
    pairs = [m for m in merged(stand_in.measurements) if len(m.columns) == 2]
    columns = {column.name: column for column in stand_in.columns}
    ordered = {name: schema.columns[name].ordered for name in columns}
    most = max((c.num_cells for c in columns.values() if ordered[c.name]), default=0)
    beliefs = None if earlier is None else _Beliefs.by(earlier)

    def of_at_most(cells: int) -> dict[tuple[str, ...], _Pair]:
        shares = {name: _shares(columns[name], ordered[name], cells) for name in columns}
        shares |= (
            {} if beliefs is None else {n: s for n, s in beliefs.shares.items() if len(s) == len(shares.get(n, ()))}
        )
        return {
            m.columns: _of_pair(*(shares[name] for name in m.columns), m.stddev, stand_in.num_records) for m in pairs
        }

    def chances(found: Mapping[tuple[str, ...], _Pair]) -> np.ndarray:
        weights = [_USUALLY if beliefs is None else beliefs.of(pair) for pair in found]
        return np.array([weight @ one.chances for weight, one in zip(weights, found.values(), strict=True)])

    found = of_at_most(most)
    each = chances(found)
    if beliefs is None:
        weak, _, close = np.sum([one.chances.reshape(3, -1).mean(axis=1) for one in found.values()] or [np.zeros(3)], 0)
    else:
        spread = 2 * math.sqrt(float((each * (1 - each)).sum()))
        weak, close = max(0.0, each.sum() - spread), min(float(len(each)), each.sum() + spread)
    typical = float(np.median([column.num_cells for column in columns.values()]))
    wide = sorted((c for c in columns.values() if c.num_cells > typical), key=lambda c: -c.num_cells)
    return PairsForecast(
        expected=Held(float(each.sum()), len(found)),
        weak=float(weak),
        close=float(close),
        smallest={pair: one.smallest for pair, one in found.items()},
        by_cells={cells: float(chances(of_at_most(cells)).sum()) for cells in (4, 5, 6, 8, 12) if cells < most},
        widest={column.name: column.num_cells for column in wide},
        by_release=beliefs is not None,
    )


def _shares(column: CellColumn, ordered: bool, most: int) -> tuple[float, ...]:
    """A usual histogram: even in the cells of numbers, falling in those of categories."""
    cells = min(column.num_bins, most) if ordered else column.num_bins
    if ordered:
        shares = np.ones(cells)
    elif cells == 2:
        shares = np.array([_FREQUENT, 1 - _FREQUENT])
    else:
        shares = 1 / np.arange(1, cells + 1)
    shares = shares / shares.sum()
    return tuple((shares if column.missing == "forbid" else np.append((1 - _MISSING) * shares, _MISSING)).tolist())


@functools.lru_cache(maxsize=4096)
def _waves(shares: tuple[float, ...]) -> np.ndarray:
    """The normal distribution cut into cells of these shares: a_k of each, `[terms, cells]`."""
    cuts = norm.ppf(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    hermite = [np.ones_like(cuts), cuts]  # He_0, He_1
    for k in range(1, _TERMS):
        hermite.append(cuts * hermite[k] - k * hermite[k - 1])
    at = np.stack([norm.pdf(cuts) * h / math.sqrt(math.factorial(k + 1)) for k, h in enumerate(hermite[:_TERMS])])
    edges = np.pad(at, ((0, 0), (1, 1)))
    return edges[:, :-1] - edges[:, 1:]


class _Pair(NamedTuple):
    """z: what its table will show at each correlation of the grid. chances: that it is held. smallest: the least rank
    correlation that is."""

    z: np.ndarray
    chances: np.ndarray
    smallest: float


@functools.lru_cache(maxsize=4096)  # most pairs of a wide table are alike
def _of_pair(first: tuple[float, ...], second: tuple[float, ...], stddev: float, num_records: int) -> _Pair:
    a, b = _waves(first), _waves(second)
    cells = a.shape[1] * b.shape[1]
    products = (a @ a.T) * (b @ b.T)  # of <a_k, a_l> <b_k, b_l>, so that ||t - pq'||^2 is a form of r^k
    powers = np.concatenate([_GRID, _STEPS])[:, None] ** np.arange(1, _TERMS + 1)
    distances = np.einsum("rk,kl,rl->r", powers, products, powers)
    by_chance = num_records * (1 - np.square(first).sum()) * (1 - np.square(second).sum())
    z = (num_records**2 * distances + by_chance) / (stddev**2 * math.sqrt(2 * cells))
    above = np.flatnonzero(z[_GRID.size :] >= LEARNED)
    smallest = 6 / math.pi * math.asin(_STEPS[above[0]] / 2) if len(above) else 1.0  # Spearman's, of a normal r
    return _Pair(z[: _GRID.size], _chance(z[: _GRID.size], cells), smallest)


def _chance(z: Any, cells: int) -> Any:
    """That noise leaves a table of distance z held."""
    return norm.sf((LEARNED - z) / np.sqrt(1 + 2 * z * math.sqrt(2 / cells)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Beliefs:
    """How likely each correlation of the grid is, by an earlier release: of each of its pairs, and of any other.

    The distribution of correlations is what makes the release likely, beginning at the usual ones, which count as a few
    pairs more (EM): where its noise hides pairs, it says how many of them depend, though not which.

    :ivar shares: of the earlier columns' cells.
    """

    shares: Mapping[str, tuple[float, ...]]
    of_pairs: Mapping[frozenset[str], np.ndarray]
    of_others: np.ndarray

    @classmethod
    def by(cls, earlier: Marginals) -> _Beliefs:
        tables, num_records = merged(earlier.measurements), earlier.num_records
        seen = significances(tables, num_records)
        if not seen:
            raise ArgumentError("earlier: that release has no tables of two columns; leave it out")
        singles = {name: m.values for name, m in single_tables(tables, num_records).items()}
        shares = {name: tuple((values / values.sum()).tolist()) for name, values in singles.items()}
        pairs = [m for m in tables if len(m.columns) == 2]
        expected = np.stack([_of_pair(*(shares[n] for n in m.columns), m.stddev, num_records).z for m in pairs])
        found = np.array([seen[m.columns] for m in pairs])[:, None]
        found = np.minimum(found, expected.max(axis=1, keepdims=True))  # more than a normal r shows is the largest r
        cells = np.array([m.values.size for m in pairs])[:, None]
        variance = 1 + 2 * expected * np.sqrt(2 / cells) + (_MISFIT * expected) ** 2
        log_likely = -0.5 * ((found - expected) ** 2 / variance + np.log(variance))
        likely = np.exp(log_likely - log_likely.max(axis=1, keepdims=True))
        others, prior = _EVENLY, _PRIOR_PAIRS * _EVENLY
        for _ in range(_PASSES):
            others = (_rows_to_one(likely * others).sum(axis=0) + prior) / (len(pairs) + _PRIOR_PAIRS)
        own = _rows_to_one(likely * others)
        return cls(shares, {frozenset(m.columns): row for m, row in zip(pairs, own, strict=True)}, others)

    def of(self, pair: tuple[str, ...]) -> np.ndarray:
        """Of one pair."""
        return self.of_pairs.get(frozenset(pair), self.of_others)


def _rows_to_one(table: np.ndarray) -> np.ndarray:
    return table / table.sum(axis=1, keepdims=True)
