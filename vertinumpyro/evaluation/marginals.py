"""Distances between the marginals of a real table and of its synthetic twin.

Every column is cut into the cells of its public domain first, so that both tables are compared on cells
that no private value has chosen. The distance is the total variation distance (TVD)

    TVD(P, Q) = 1/2 * sum over cells |P(cell) - Q(cell)|,       0 (identical) to 1 (disjoint).

Nothing here is differentially private: each function that takes the real table returns an exact statistic
of it. Keep the results internal, or publish them only under a budget of their own.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.table import Table, as_frame

if TYPE_CHECKING:
    from vertinumpyro.data import Schema

DEFAULT_MAX_BINS = 16  # cells of a real, a count or a wide integer column
_LARGEST_KEY = 2**62  # mixed-radix keys stay below it, so they never wrap in int64


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KWayResult:
    """TVD of a set of k-way marginals.

    :ivar k: columns in each marginal.
    :ivar marginals: the m sets of column names, each in the schema's order.
    :ivar tvd: float array [m], the distance of each marginal, in [0, 1].
    :ivar is_dp: always False; the distances are exact statistics of the real table.
    """

    k: int
    marginals: tuple[tuple[str, ...], ...]
    tvd: np.ndarray
    is_dp: bool = dataclasses.field(default=False, init=False)

    @property
    def mean(self) -> float:
        """Mean distance over the marginals, in [0, 1]."""
        return float(self.tvd.mean())

    def __repr__(self) -> str:
        return f"KWayResult(k={self.k}, num_marginals={len(self.marginals)}, mean={self.mean:.4f}, not DP)"

    def worst(self, count: int = 5) -> tuple[tuple[tuple[str, ...], float], ...]:
        """The `count` marginals with the largest distance, worst first, as (columns, TVD)."""
        order = np.argsort(-self.tvd, kind="stable")[:count]
        return tuple((self.marginals[i], float(self.tvd[i])) for i in order)


def k_way_tvd(
    real: Table,
    synthetic: Table,
    schema: "Schema",
    k: int,
    *,
    rng: np.random.Generator | int,
    num_marginals: int = 300,
    max_bins: int = DEFAULT_MAX_BINS,
) -> KWayResult:
    """TVD of `num_marginals` random k-way marginals (all of them when there are no more).

    Memory is O(rows) for each marginal: only the cells that occur are counted, whatever the size of the
    product domain. The same seed draws the same marginals, for any pair of tables with this schema.

    :param real: table with at least the schema's columns; other columns are ignored. Not DP.
    :param synthetic: table with at least the schema's columns; its number of rows is free.
    :param schema: the public schema of the joined table.
    :param k: columns in a marginal, 1 to the schema's number of columns.
    :param rng: generator or seed for the choice of marginals.
    :param num_marginals: how many marginals to draw, without repetition.
    :param max_bins: cells of a real or wide integer column.
    :raises ArgumentError: a table lacks a column or has no rows, or `k`, `num_marginals`, `max_bins` is out of range.
    """
    subsets = draw_subsets(len(schema.columns), k, num_marginals, np.random.default_rng(rng))
    return _k_way(real, synthetic, schema, subsets, max_bins)


def tvd_floor(
    real: Table,
    schema: "Schema",
    k: int,
    *,
    rng: np.random.Generator | int,
    num_synthetic: int | None = None,
    num_marginals: int = 300,
    max_bins: int = DEFAULT_MAX_BINS,
) -> KWayResult:
    """The k-way TVD of a perfect twin: `num_synthetic` rows drawn from the real table with replacement.

    No generator that learns the population can be expected to score better with that many rows, so it is
    the floor to read `k_way_tvd` against. The same seed compares the same marginals as `k_way_tvd`. Not DP.

    :param real: table with at least the schema's columns.
    :param schema: the public schema of the joined table.
    :param k: columns in a marginal.
    :param rng: generator or seed for the choice of marginals, then for the resampling.
    :param num_synthetic: rows to draw; None means as many as `real` has.
    :param num_marginals: how many marginals to draw, without repetition.
    :param max_bins: cells of a real or wide integer column.
    :raises ArgumentError: as `k_way_tvd`, or `num_synthetic` is below 1.
    """
    generator = np.random.default_rng(rng)
    subsets = draw_subsets(len(schema.columns), k, num_marginals, generator)
    table = checked_table(real, schema, "real")
    size = len(table) if num_synthetic is None else num_synthetic
    if num_synthetic is not None and num_synthetic < 1:
        raise ArgumentError(f"num_synthetic must be at least 1, got {num_synthetic}")
    rows = generator.integers(len(table), size=size)
    return _k_way(table, table.iloc[rows], schema, subsets, max_bins)


def pairwise_tvd(
    real: Table,
    synthetic: Table,
    schema: "Schema",
    *,
    max_bins: int = DEFAULT_MAX_BINS,
) -> pd.DataFrame:
    """TVD of every pair of columns; a symmetric [d, d] table with the 1-way TVD on its diagonal. Not DP.

    :param real: table with at least the schema's columns.
    :param synthetic: table with at least the schema's columns.
    :param schema: the public schema of the joined table; it gives the order of rows and columns.
    :param max_bins: cells of a real or wide integer column.
    :raises ArgumentError: a table lacks a column or has no rows, or `max_bins` is out of range.
    """
    tables = TableCells.of(real, schema, "real", max_bins), TableCells.of(synthetic, schema, "synthetic", max_bins)
    return pairwise_tvd_of_cells(*tables, schema)


def cross_party_pairs(schema: "Schema") -> tuple[tuple[str, str], ...]:
    """Pairs of columns that two different parties hold, in the schema's order."""
    return tuple((a, b) for a, b, across in _pairs(schema) if across)


def within_party_pairs(schema: "Schema") -> tuple[tuple[str, str], ...]:
    """Pairs of different columns that one party holds, in the schema's order."""
    return tuple((a, b) for a, b, across in _pairs(schema) if not across)


def cross_party_tvd(matrix: pd.DataFrame, schema: "Schema") -> float:
    """Mean TVD over the pairs held by two different parties; NaN where the schema has no such pair.

    This is what learning on the joined table buys: parties that publish twins apart cannot keep it low.

    :param matrix: the [d, d] table of `pairwise_tvd`.
    :param schema: the public schema that `matrix` was computed with.
    :raises ArgumentError: `matrix` lacks a column of the schema.
    """
    return _mean_over(matrix, cross_party_pairs(schema), schema)


def within_party_tvd(matrix: pd.DataFrame, schema: "Schema") -> float:
    """Mean TVD over the pairs held by one party, without the diagonal; NaN where there is no such pair.

    :param matrix: the [d, d] table of `pairwise_tvd`.
    :param schema: the public schema that `matrix` was computed with.
    :raises ArgumentError: `matrix` lacks a column of the schema.
    """
    return _mean_over(matrix, within_party_pairs(schema), schema)


def one_way_tvd(matrix: pd.DataFrame, schema: "Schema") -> float:
    """Mean 1-way TVD: the mean of the diagonal of `pairwise_tvd`'s table.

    :raises ArgumentError: `matrix` lacks a column of the schema.
    """
    return _mean_over(matrix, tuple((name, name) for name in schema.columns), schema)


def r_score(frame: Table, a: str, b: str, schema: "Schema", *, max_bins: int = DEFAULT_MAX_BINS) -> float:
    """Dependence of two columns, 1/2 * ||P_AB - P_A P_B||_1: 0 when independent, always below 1.

    It is the R-score of PrivMRF and VertiMRF, without their factor n. Not DP on a real table.

    :param frame: table with at least the schema's columns.
    :param a: a column's name.
    :param b: another column's name.
    :param schema: the public schema of the joined table.
    :param max_bins: cells of a real or wide integer column.
    :raises ArgumentError: `a` or `b` is not in the schema or both are the same, or `frame` does not fit.
    """
    for argument, name in (("a", a), ("b", b)):
        if name not in schema.columns:
            raise ArgumentError(f"{argument}={name!r} is not a column of the schema: {list(schema.columns)}")
    if a == b:
        raise ArgumentError(f"a and b must be two different columns, both are {a!r}")
    names = list(schema.columns)
    return _dependence(TableCells.of(frame, schema, "frame", max_bins), names.index(a), names.index(b))


def r_scores(frame: Table, schema: "Schema", *, max_bins: int = DEFAULT_MAX_BINS) -> pd.DataFrame:
    """R-score of every pair of columns; a symmetric [d, d] table with NaN on its diagonal.

    :param frame: table with at least the schema's columns. Not DP on a real table.
    :param schema: the public schema of the joined table.
    :param max_bins: cells of a real or wide integer column.
    :raises ArgumentError: `frame` lacks a column or has no rows, or `max_bins` is out of range.
    """
    cells = TableCells.of(frame, schema, "frame", max_bins)
    matrix = np.full((len(schema.columns),) * 2, np.nan)
    for i, j in itertools.combinations(range(len(schema.columns)), 2):
        matrix[i, j] = matrix[j, i] = _dependence(cells, i, j)
    return _square(matrix, schema)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TableCells:
    """A table as cell codes: `codes` int64 [rows, d], and `sizes`, each column's number of cells. Not DP."""

    codes: np.ndarray
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, frame: Table, schema: "Schema", argument: str, max_bins: int) -> "TableCells":
        """Of a table with the schema's columns."""
        table = checked_table(frame, schema, argument)
        if max_bins < 1:
            raise ArgumentError(f"max_bins must be at least 1, got {max_bins}")
        columns = schema.columns.items()
        parts = [column.discretise(pd.Series(table[name]), max_bins) for name, column in columns]
        codes = np.column_stack([np.asarray(codes, np.int64) for codes, _ in parts])
        return cls(codes, tuple(int(size) for _, size in parts))

    def where(self, rows: np.ndarray) -> "TableCells":
        """Some of its rows."""
        return TableCells(self.codes[rows], self.sizes)


def checked_table(table: Table, schema: "Schema", argument: str) -> pd.DataFrame:
    """Return a table as a DataFrame; an `ArgumentError` that names `argument` where rows or columns lack."""
    frame = as_frame(table, argument)
    missing = [name for name in schema.columns if name not in frame.columns]
    if missing:
        raise ArgumentError(f"{argument} lacks columns of the schema: {missing}")
    if not len(frame):
        raise ArgumentError(f"{argument} has no rows")
    return frame


def draw_subsets(num_columns: int, k: int, count: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Sets of k places of columns, all of them where there are no more than `count`."""
    if not 1 <= k <= num_columns:
        raise ArgumentError(f"k must be between 1 and the schema's {num_columns} columns, got {k}")
    if count < 1:
        raise ArgumentError(f"num_marginals must be at least 1, got {count}")
    if math.comb(num_columns, k) <= count:
        return list(itertools.combinations(range(num_columns), k))
    chosen: set[tuple[int, ...]] = set()
    while len(chosen) < count:
        chosen.add(tuple(sorted(rng.choice(num_columns, size=k, replace=False).tolist())))
    return sorted(chosen)


def pairwise_tvd_of_cells(real: TableCells, synthetic: TableCells, schema: "Schema") -> pd.DataFrame:
    """See `pairwise_tvd`."""
    size = len(schema.columns)
    matrix = np.zeros((size, size))
    for i, j in itertools.combinations_with_replacement(range(size), 2):
        matrix[i, j] = matrix[j, i] = _subset_tvd(real, synthetic, sorted({i, j}))
    return _square(matrix, schema)


def mean_tvd(real: TableCells, synthetic: TableCells, subsets: Sequence[tuple[int, ...]]) -> float:
    """Mean distance of the marginals of these places of columns."""
    return float(np.mean([_subset_tvd(real, synthetic, subset) for subset in subsets]))


def num_occupied(table: TableCells, subsets: Sequence[tuple[int, ...]]) -> int:
    """How many cells of these marginals have a record, over all of them."""
    return sum(len(np.unique(_keys(table.codes[:, s], [table.sizes[i] for i in s]))) for s in subsets)


def _k_way(
    real: Table,
    synthetic: Table,
    schema: "Schema",
    subsets: Sequence[tuple[int, ...]],
    max_bins: int,
) -> KWayResult:
    tables = TableCells.of(real, schema, "real", max_bins), TableCells.of(synthetic, schema, "synthetic", max_bins)
    names = list(schema.columns)
    return KWayResult(
        k=len(subsets[0]),
        marginals=tuple(tuple(names[i] for i in subset) for subset in subsets),
        tvd=np.array([_subset_tvd(*tables, subset) for subset in subsets]),
    )


def _subset_tvd(real: TableCells, synthetic: TableCells, subset: Sequence[int]) -> float:
    stacked = np.concatenate([real.codes[:, subset], synthetic.codes[:, subset]])
    keys = _keys(stacked, [real.sizes[i] for i in subset])
    cells, index = np.unique(keys, return_inverse=True)
    num_real = len(real.codes)
    p = np.bincount(index[:num_real], minlength=len(cells)) / num_real
    q = np.bincount(index[num_real:], minlength=len(cells)) / len(synthetic.codes)
    return min(1.0, 0.5 * float(np.abs(p - q).sum()))


def _keys(codes: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """One int64 for each row of `codes` [n, k], equal exactly where the rows are equal."""
    keys, span = codes[:, 0], sizes[0]
    for column, size in zip(codes.T[1:], sizes[1:], strict=True):
        if span > _LARGEST_KEY // size:  # renumber the at most n keys in use, then go on
            used, keys = np.unique(keys, return_inverse=True)
            span = len(used)
        keys, span = keys * size + column, span * size
    return keys


def _dependence(cells: TableCells, i: int, j: int) -> float:
    shape = cells.sizes[i], cells.sizes[j]
    joint, counts = np.unique(_keys(cells.codes[:, [i, j]], shape), return_counts=True)
    total = len(cells.codes)
    p, q = (np.bincount(cells.codes[:, c], minlength=cells.sizes[c]) / total for c in (i, j))
    product = p[joint // shape[1]] * q[joint % shape[1]]
    # cells that never occur differ from the product by the product itself
    return 0.5 * max(0.0, float(np.abs(counts / total - product).sum() + (1.0 - product.sum())))


def _pairs(schema: "Schema") -> Iterator[tuple[str, str, bool]]:
    for a, b in itertools.combinations(schema.columns, 2):
        yield a, b, schema.party_of(a) != schema.party_of(b)


def _mean_over(matrix: pd.DataFrame, pairs: Sequence[tuple[str, str]], schema: "Schema") -> float:
    missing = [n for n in schema.columns if n not in matrix.index or n not in matrix.columns]
    if missing:
        raise ArgumentError(f"matrix lacks columns of the schema: {missing}")
    known = [value for value in (matrix.at[a, b] for a, b in pairs) if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _square(matrix: np.ndarray, schema: "Schema") -> pd.DataFrame:
    return pd.DataFrame(matrix, index=list(schema.columns), columns=list(schema.columns))
