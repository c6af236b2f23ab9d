r"""Of how many pairs of columns a release tells what is in them: forecast from public numbers, and as it was released.

Two things are asked of a pair. Whether it is *held*: whether noise is so small that an association would be seen in its
table if there were one, of medium size, a rank correlation of .3. That depends on the noise, the number of records and
of cells, and a little on the single columns. And whether it *shows* one, of any size, which only records know.

A table shows an association where its distance from independence stands three standard deviations above what noise and
the chance of a sample give (`measurements.significance`). For N records whose columns have the cells' shares p, q and
joint shares t, with noise of standard deviation s in each of K cells, v = s^2 + N p q' is the variance in a cell of
independent columns, and the distance has the mean

    z = sum N^2 (t - p q')^2 / v / sqrt(2 K)

and the variance 1 + 2 z sqrt(2 / K). An association of a size is that of a bivariate normal distribution cut into these
cells, whose correlation r gives t - p q' = sum_k r^k a_k b_k', a_k the differences of the k-th Hermite function at the
cuts (Mehler's formula). So a pair is held by its chance to be seen at r = 2 sin(.3 pi / 6), and the number of pairs
that are held is the sum of these: as many as would show an association if all had one of that size. Released tables say
p and q; before, columns have a usual histogram for their kind.

A twin keeps less than all of a correlation. Its tables are drawn towards independence by James and Stein's factor
(`measurements.shrunk`): of what stands beside the single columns, with energy S = sum N^2 (t - p q')^2 / s^2 in
D = (a - 1)(b - 1) dimensions and noise e of standard deviation 1 along it, it keeps

    (1 - (D - 2) / E)_+ (1 + e / sqrt(S)),  E = (sqrt(S) + e)^2 + (1 + N / (K s^2)) chi^2_{D-1},

and a column whose cells hold many values says of its ranks 1 - sum p^3 of their variance. So a plan says how much of
a correlation is left, whatever the records' correlations are.

How many show one differs more than all that is public: of two tables with the same records, columns and noise
40 of 78 pairs did, and 14. An earlier release says it: its tables know which r are likely here, and for each
pair that it has, which is likely there (`_Beliefs`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from scipy.optimize import root_scalar
from scipy.stats import chi2, norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column, Schema, VerticalDataset
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.contingency import exact_tables
from vertinumpyro.mrf.marginals import Marginals
from vertinumpyro.mrf.measurements import MEDIUM, Measurement, one_way, significance
from vertinumpyro.mrf.table_selection import merged

LEARNED = 3.0
"""Standard deviations of noise and chance that a table's dependence must stand above them."""

_SIZES = (0.1, 0.2, 0.4)
"""Rank correlations of which a plan says how much a twin keeps: small, between, and rather large."""

_WANTED = 0.6  # of the smallest of them: for less, a plan says what would keep so much
_MOST_TIMES = 100.0
_QUANTILES = (np.arange(15) + 0.5) / 15

_GRID = np.minimum(
    np.outer(
        [0.4, 1.0, 2.5],  # where columns hardly depend on each other, as usual, and closely
        [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.13, 0.16, 0.20, 0.26, 0.34, 0.45, 0.60, 0.85],
    ),
    0.95,
).ravel()
"""Correlations that pairs of columns have before a release is seen, each as often."""

_STEPS = np.linspace(0.01, 0.99, 99)

_PRIOR_PAIRS = 5  # that the usual correlations count as, beside the pairs of an earlier release
_PASSES = 20
_MISFIT = 0.1  # of a table's distance: dependence is not quite a normal distribution's
_EVENLY = np.full(_GRID.size, 1 / _GRID.size)

_FEW = 1 / 3  # of the pairs, below which a release is of little use for relations
_FREQUENT = 0.75  # of the first category where there are two, and of zeros where they leave room for two cells beside
_MISSING = 0.05
_TERMS = 12
_MOST_NAMED = 3
_TOLD_APART = 0.02  # correlations that are as good as one

_Shares = tuple[float, ...]  # of a column's cells


STEPS_SAY_NOTHING = (
    "How much of what its columns have to do with each other is noise, noisy steps do not say: a release of tables of "
    "the same records does."
)
"""The verdict on a model of tables without noisy tables."""


class Held(NamedTuple):
    """Pairs of columns in which an association of medium size would be seen, of all pairs, or those of a workload.

    num_showing: those of all that show one, of any size; None where nothing says so yet.
    """

    num_held: float
    num_pairs: int
    num_showing: float | None = None

    @property
    def is_little(self) -> bool:
        """Whether they are so few that the release is of little use for relations."""
        return self.num_held < _FEW * self.num_pairs

    @property
    def verdict(self) -> str:
        """In words."""
        size = f"an association of {MEDIUM} (as a rank correlation)"
        other = self.num_pairs - round(self.num_held)
        if not other:
            told = f"holds all {self.num_pairs} pairs of columns: each would show {size}"
        else:
            little = ", so it is of little use for relations" if self.is_little else ""
            told = (
                f"holds {self.num_held:.0f} of {self.num_pairs} pairs of columns{little}: {size} would be seen in these"
            )
            told += f", and noise would hide it in the other {other}"
            told += ". Fewer columns or coarser cells would hold more" if little else ""
        if self.num_showing is None:
            return told
        return f"{told}. {self.num_showing:.0f} " + ("pair shows one" if self.num_showing == 1 else "pairs show one")


def single_tables(tables: Sequence[Measurement], num_records: int) -> dict[str, Measurement]:
    """The table of each column, by all that tables say of it."""
    return {name: one_way(name, tables, num_records) for name in dict.fromkeys(n for m in tables for n in m.columns)}


def significances(tables: Sequence[Measurement], num_records: int) -> dict[tuple[str, ...], float]:
    """How many standard deviations of noise and chance each pair's table stands above them. Post-processing.

    :param tables: merged, one for each set of columns.
    """
    known = {name: m.values for name, m in single_tables(tables, num_records).items()}
    return {m.columns: significance(m, known, of_sample=True) for m in tables if len(m.columns) == 2}


def held(released: Marginals) -> Held:
    """The pairs that a release holds, and those that show an association. Post-processing."""
    tables = merged(released.measurements)
    found, shares = significances(tables, released.num_records), _released_shares(tables, released.num_records)
    pairs = [m for m in tables if len(m.columns) == 2]
    seen = sum(_seen(*_of(m, shares), released.num_records) for m in pairs)
    return Held(seen, len(found) + len(_hidden(released, pairs)), sum(z >= LEARNED for z in found.values()))


def _hidden(released: Marginals, measured: Sequence[Measurement]) -> list[Measurement]:
    """Pairs of a party's columns that it left out, as noise would hide them: the tables that they would have had."""
    if released.plan.workload is not None:
        return []
    known, found = {frozenset(m.columns) for m in measured}, []
    for party in released.plan.parties:
        own, budget = [c for c in released.columns if c.party == party], released.plan.local_budget(party)
        pairs = list(itertools.combinations(own, 2)) if budget.mu else []
        for a, b in pairs:
            if {a.name, b.name} not in known:
                stddev = budget.release(len(pairs), 1.0).stddev
                table = np.zeros((a.num_cells, b.num_cells))
                found.append(Measurement(columns=(a.name, b.name), values=table, stddev=stddev))
    return found


def held_by_records(dataset: VerticalDataset, stand_in: Marginals) -> dict[tuple[str, ...], float]:
    """The chance that each pair will show an association, by the records. NOT DP: for who holds them all, alone.

    :param stand_in: tables as many, as large and as noisy as the release's.
    """
    pairs = [m for m in merged(stand_in.measurements) if len(m.columns) == 2]
    place = {column.name: i for i, column in enumerate(stand_in.columns)}
    ordered = [sorted(m.columns, key=place.__getitem__) for m in pairs]
    sets = [tuple(place[name] for name in names) for names in ordered]
    found = {}
    for m, table in zip(pairs, exact_tables(stand_in.columns, dataset.pooled(), sets), strict=True):
        by_chance = np.outer(table.sum(1), table.sum(0)) / table.sum()
        gap = ((table - by_chance) ** 2 - by_chance) / (m.stddev**2 + by_chance)
        found[m.columns] = float(_chance(max(0.0, float(gap.sum()) / math.sqrt(2 * table.size)), table.size))
    return found


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairsForecast:
    """How many pairs a release will hold. Public; no bound.

    :ivar expected: of how many of all; by an earlier release how many will show an association, too.
    :ivar smallest: for each pair the smallest rank correlation that will stand out of its noise; 1 where none does.
    :ivar by_cells: the most cells of a column -> how many would be expected with at most so many.
    :ivar widest: the columns that cost most: more cells than the others have, the most first.
    :ivar kept: rank correlation -> the share of it that a twin keeps, on average over pairs of columns with an order.
    :ivar times: as many times the epsilon, or the records, would keep 60% of the smallest of these; 1 where it is kept
        already, infinite where only finer cells would.
    :ivar fewest: by an earlier release the fewest pairs to expect that show an association.
    :ivar most: and the most.
    """

    expected: Held
    smallest: Mapping[tuple[str, ...], float]
    by_cells: Mapping[int, float]
    widest: Mapping[str, int]
    kept: Mapping[float, float] = dataclasses.field(default_factory=dict)
    times: float = 1.0
    fewest: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        """In words."""
        return (
            f"Pairs of columns that it will hold: {self.words}." if self.expected.num_pairs else "No pairs of columns."
        )

    @property
    def words(self) -> str:
        """How many, from which correlation on one is seen, how many will show one, and what would hold more."""
        held, of, showing = self.expected
        told = (
            "How many pairs have one, only the records know"
            if showing is None
            else f"About {showing:.0f} pairs will show one, as the earlier release has their dependence; "
            f"{self.fewest:.0f} to {self.most:.0f} by chance"
        )
        hidden = "" if round(held) == of else ", and noise would hide it in the others"
        return (
            f"about {held:.0f} of {of}: an association of {MEDIUM} (as a rank correlation) would be seen in these"
            f"{hidden}. {self._visible}. {told}{self.remedy}{self._left}"
        )

    @property
    def _left(self) -> str:
        """How much of rank correlations a twin has, and what would keep more of small ones."""
        if not self.kept:
            return ""
        sizes = ", ".join(f"{100 * share:.0f} % if it is {size}" for size, share in self.kept.items())
        told = f". Of a rank correlation between numbers or dates a twin keeps about {sizes}"
        if self.times <= 1:
            return told
        small, more = min(self.kept), f"{self.times:.2g} times the ε or the records"
        enough = "finer cells" if math.isinf(self.times) else more
        return f"{told}. {100 * _WANTED:.0f} % of one of {small} would take {enough}, or fewer columns"

    @property
    def _visible(self) -> str:
        """From which rank correlation on half of the pairs show it."""
        low, middle, high = np.quantile(list(self.smallest.values()) or [1.0], [0.1, 0.5, 0.9])
        spread = (
            f" ({low:.2f} to {high:.2f}, as their columns' cells are few or many)" if high - low >= _TOLD_APART else ""
        )
        return (
            f"Half of the pairs would show one of {middle:.2f}{spread}" if middle < 1 else "Most would show none at all"
        )

    @property
    def is_little(self) -> bool:
        """Whether so few pairs will be held that it is of little use for relations."""
        return self.expected.is_little

    @property
    def remedy(self) -> str:
        """What would hold more; empty where most pairs are held, or cells are few already."""
        of = self.expected
        best = max(self.by_cells, key=lambda cells: self.by_cells[cells], default=0)
        if self.by_cells.get(best, 0.0) < 1.15 * of.num_held + 1:
            more = ". It is of little use for relations: leave columns out, or name pairs as the workload"
            return more if self.is_little else ""
        wide = ", ".join(f"{name} ({cells})" for name, cells in list(self.widest.items())[:_MOST_NAMED])
        fewer = f", or fewer for {wide}" if wide else ""
        return f". Coarser cells would hold about {self.by_cells[best]:.0f}: max_cells = {best}{fewer}"


def forecast_pairs(schema: Schema, stand_in: Marginals, earlier: Marginals | None = None) -> PairsForecast:
    """What a release will hold.

    :param schema: of its columns.
    :param stand_in: tables as many, as large and as noisy (`VertiMRF.stand_in`).
    :param earlier: a release of such records, as last month's: it knows the columns, and how they depend on each other,
        of its own pairs and, in all, of those that it has not.
    :raises ArgumentError: the earlier release has no tables of two columns.
    """
    pairs = [m for m in merged(stand_in.measurements) if len(m.columns) == 2]
    hidden = _hidden(stand_in, pairs)
    columns = {column.name: column for column in stand_in.columns}
    most = max((c.num_cells for c in columns.values() if schema.columns[c.name].ordered), default=0)
    beliefs = None if earlier is None else _Beliefs.by(earlier)

    def usual(cells: int) -> Mapping[str, _Shares]:
        shares = {name: _shares(column, schema.columns[name], cells) for name, column in columns.items()}
        known = {} if beliefs is None else beliefs.shares
        return shares | {n: s for n, s in known.items() if len(s) == len(shares.get(n, ()))}

    def seen(cells: int) -> float:
        shares, measured = usual(cells), pairs if cells == most else [*pairs, *hidden]  # with fewer cells all may be
        return float(sum(_seen(*_of(m, shares), stand_in.num_records) for m in measured))

    shares = usual(most)
    found = {m.columns: _of_pair(*_of(m, shares), stand_in.num_records) for m in pairs}
    showing: dict[str, Any] = {} if beliefs is None else beliefs.showing(found)
    ordered, ordered_hidden = (
        [m for m in tables if all(schema.columns[name].ordered for name in m.columns)] for tables in (pairs, hidden)
    )
    typical = float(np.median([column.num_cells for column in columns.values()]))
    wide = sorted((c for c in columns.values() if c.num_cells > typical), key=lambda c: -c.num_cells)
    return PairsForecast(
        expected=Held(seen(most), len(found) + len(hidden), showing.pop("expected", None)),
        smallest={pair: one.smallest for pair, one in found.items()} | {m.columns: 1.0 for m in hidden},
        by_cells={cells: seen(cells) for cells in (4, 5, 6, 8, 12) if cells < most},
        widest={column.name: column.num_cells for column in wide},
        **_kept_by_twin(ordered, ordered_hidden, columns, schema, shares, stand_in.num_records),
        **showing,
    )


def _kept_by_twin(
    pairs: Sequence[Measurement],
    hidden: Sequence[Measurement],
    columns: Mapping[str, CellColumn],
    schema: Schema,
    shares: Mapping[str, _Shares],
    num_records: int,
) -> dict[str, Any]:
    """`PairsForecast.kept` and `times`, of pairs of columns that have an order.

    :param hidden: without a table, of which it keeps nothing; more budget would measure them.
    """
    both = [*pairs, *hidden]
    if not both:
        return {}
    told = {name: _ranks_told(columns[name], schema.columns[name], shares[name]) for m in both for name in m.columns}

    def kept(size: float, times: float = 1.0) -> float:
        of_pairs = [
            _kept(*_of(m, shares), num_records, size, times) * math.prod(told[name] for name in m.columns)
            for m in (pairs if times == 1 else both)
        ]
        return sum(of_pairs) / len(both)

    found, small = {size: kept(size) for size in _SIZES}, _SIZES[0]
    times = 1.0
    if kept(small, _MOST_TIMES) < _WANTED:
        times = math.inf
    elif found[small] < _WANTED:
        missing = lambda times: kept(small, times) - _WANTED  # noqa: E731
        times = root_scalar(missing, bracket=(1.0, _MOST_TIMES), rtol=1e-3).root
    return {"kept": found, "times": times}


def _released_shares(tables: Sequence[Measurement], num_records: int) -> dict[str, _Shares]:
    singles = {name: m.values for name, m in single_tables(tables, num_records).items()}
    return {name: tuple((values / values.sum()).tolist()) for name, values in singles.items()}


def _of(measurement: Measurement, shares: Mapping[str, _Shares]) -> tuple[_Shares, _Shares, float]:
    first, second = measurement.columns
    return shares[first], shares[second], measurement.stddev


def _shares(column: CellColumn, domain: Column, most: int) -> _Shares:
    """A usual histogram: even in the cells of numbers, but for zeros; falling in those of categories."""
    cells = min(column.num_bins, most) if domain.ordered else column.num_bins
    if (cells == 2 and not domain.ordered) or _mostly_zero(domain):
        shares = np.array([_FREQUENT, *[(1 - _FREQUENT) / (cells - 1)] * (cells - 1)])
    else:
        shares = np.ones(cells) if domain.ordered else 1 / np.arange(1, cells + 1)
    shares = shares / shares.sum()
    return tuple((shares if column.missing == "forbid" else np.append((1 - _MISSING) * shares, _MISSING)).tolist())


def _mostly_zero(domain: Column) -> bool:
    """Whether its lowest value has a cell of its own, and the others have but two: so they are drafted where few have
    another one."""
    edges = getattr(domain, "edges", None)
    return edges is not None and len(edges) <= 4 and not _several_values(edges)[0]


def _several_values(edges: Sequence[float]) -> np.ndarray:
    """Which bins hold several values: not an atom, nor one whole number."""
    return np.diff(edges) > isinstance(edges[0], int)


def _ranks_told(column: CellColumn, domain: Column, shares: _Shares) -> float:
    """The share of the variance of its ranks that its cells tell; within those of several values they are lost."""
    edges = getattr(domain, "bin_edges", getattr(domain, "edges", None))
    if column.binned:
        several = np.ones(column.num_bins, bool)
    elif edges is None:
        return 1.0
    else:
        several = _several_values(edges)
    return 1 - float((np.array(shares[: len(several)]) ** 3)[several].sum())


@functools.lru_cache(maxsize=4096)
def _waves(shares: _Shares) -> np.ndarray:
    """The normal distribution cut into cells of these shares: a_k of each, `[terms, cells]`."""
    cuts = norm.ppf(np.clip(np.cumsum(shares)[:-1], 1e-12, 1 - 1e-12))
    hermite = [np.ones_like(cuts), cuts]  # He_0, He_1
    for k in range(1, _TERMS):
        hermite.append(cuts * hermite[k] - k * hermite[k - 1])
    at = np.stack([norm.pdf(cuts) * h / math.sqrt(math.factorial(k + 1)) for k, h in enumerate(hermite[:_TERMS])])
    edges = np.pad(at, ((0, 0), (1, 1)))
    return edges[:, :-1] - edges[:, 1:]


def _gap(first: _Shares, second: _Shares, rank_correlation: float) -> np.ndarray:
    """t - p q' of a normal distribution with this rank correlation."""
    powers = (2 * math.sin(math.pi * rank_correlation / 6)) ** np.arange(1, _TERMS + 1)
    return (_waves(first).T * powers) @ _waves(second)


@functools.lru_cache(maxsize=4096)
def _kept(
    first: _Shares, second: _Shares, stddev: float, num_records: int, rank_correlation: float, times: float
) -> float:
    """The share of such a correlation that James and Stein's factor leaves, with noise so many times smaller."""
    root = times * num_records * float(np.linalg.norm(_gap(first, second, rank_correlation))) / stddev
    dimensions = (len(first) - 1) * (len(second) - 1)
    along = norm.ppf(_QUANTILES)[:, None]
    of_sample = num_records / (len(first) * len(second)) * (times / stddev) ** 2  # variance by chance, on average
    beside = (1 + of_sample) * (chi2.ppf(_QUANTILES, dimensions - 1) if dimensions > 1 else np.zeros(1))
    factor = np.maximum(0.0, 1 - max(0, dimensions - 2) / np.maximum((root + along) ** 2 + beside, 1.0))
    return float(np.clip(factor * (1 + along / root), 0.0, 1.0).mean())


@functools.lru_cache(maxsize=4096)
def _seen(first: _Shares, second: _Shares, stddev: float, num_records: int) -> float:
    """The chance that a table of such columns shows an association of medium size."""
    gap = num_records * _gap(first, second, MEDIUM)
    z = float((gap**2 / _variance(first, second, stddev, num_records)).sum()) / math.sqrt(2 * gap.size)
    return float(_chance(z, gap.size))


def _variance(first: _Shares, second: _Shares, stddev: float, num_records: int) -> np.ndarray:
    """Of a cell of independent columns: noise, and a sample's chance."""
    return stddev**2 + num_records * np.outer(first, second)


class _Pair(NamedTuple):
    """z: what its table will show at each correlation of the grid. chances: that it shows one. smallest: the least rank
    correlation that stands out of noise."""

    z: np.ndarray
    chances: np.ndarray
    smallest: float


@functools.lru_cache(maxsize=4096)  # most pairs of a wide table are alike
def _of_pair(first: _Shares, second: _Shares, stddev: float, num_records: int) -> _Pair:
    (a, b), noise = (_waves(first), _waves(second)), _variance(first, second, stddev, num_records)
    products = np.einsum("ki,li,kj,lj,ij->kl", a, a, b, b, 1 / noise, optimize=True)  # so that z is a form of r^k
    powers = np.concatenate([_GRID, _STEPS])[:, None] ** np.arange(1, _TERMS + 1)
    z = num_records**2 * np.einsum("rk,kl,rl->r", powers, products, powers) / math.sqrt(2 * noise.size)
    above = np.flatnonzero(z[_GRID.size :] >= LEARNED)
    smallest = 6 / math.pi * math.asin(_STEPS[above[0]] / 2) if len(above) else 1.0  # Spearman's, of a normal r
    return _Pair(z[: _GRID.size], _chance(z[: _GRID.size], noise.size), smallest)


def _chance(z: Any, cells: int) -> Any:
    """That noise leaves a table of distance z to be seen."""
    return norm.sf((LEARNED - z) / np.sqrt(1 + 2 * z * math.sqrt(2 / cells)))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Beliefs:
    """How likely each correlation of the grid is, by an earlier release: of each of its pairs, and of any other.

    The distribution of correlations is what makes the release likely, beginning at the usual ones, which count as a few
    pairs more (EM): where its noise hides pairs, it says how many of them depend, though not which.

    :ivar shares: of the earlier columns' cells.
    """

    shares: Mapping[str, _Shares]
    of_pairs: Mapping[frozenset[str], np.ndarray]
    of_others: np.ndarray

    @classmethod
    def by(cls, earlier: Marginals) -> _Beliefs:
        tables, num_records = merged(earlier.measurements), earlier.num_records
        seen = significances(tables, num_records)
        if not seen:
            raise ArgumentError("earlier: that release has no tables of two columns; leave it out")
        shares = _released_shares(tables, num_records)
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

    def showing(self, found: Mapping[tuple[str, ...], _Pair]) -> dict[str, float]:
        """How many pairs will show an association: expected, the fewest and the most."""
        own = (self.of_pairs.get(frozenset(pair), self.of_others) for pair in found)
        each = np.array([weights @ one.chances for weights, one in zip(own, found.values(), strict=True)])
        expected, spread = float(each.sum()), 2 * math.sqrt(float((each * (1 - each)).sum()))
        ends = {"fewest": max(0.0, expected - spread), "most": min(float(len(each)), expected + spread)}
        return {"expected": expected, **ends}


def _rows_to_one(table: np.ndarray) -> np.ndarray:
    return table / table.sum(axis=1, keepdims=True)
