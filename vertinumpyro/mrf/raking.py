"""Tables that no clique holds, kept all the same: every column is drawn from the field, raked to them. Post-processing.

A field's cliques are limited by memory and time, so of many dependent columns it cannot hold all pairs. But records are
drawn column by column, and there a further table takes no clique: of all distributions of the next column under which
its tables with the earlier columns come out as they should, the nearest to the field's own (least Kullback-Leibler
divergence) is

    p(v | earlier columns) ∝ field(v | its clique) · Π_t w_t[cell of t's earlier columns, v] .

A released table is what the records' is, and noise of variance s². Of the records' table the field's own, n counts in
a cell, is a guess: off by a variance of τ n there, τ being what the squares of the differences leave beside noise and
chance. So with q the distributions of a population that is drawn from the model itself (its probabilities are summed
rather than its draws), the most probable ones are those of least

    KL(q ‖ field) / τ + Σ_t ‖y_t − table t of q‖² / 2 s_t² .

That is convex, however much the tables contradict each other, and its dual is smooth and has no constraints: with
w = exp(λ), the ridge penalty r = s² / τ for λ, and all the tables' cells a(q) for a(y),

    least  Σ_records log Σ_v field(v) exp(λ in v's cells) − λ · y + ½ Σ r λ² .

Every step of L-BFGS lowers it, so no number of steps is too many, and tables with little noise count for more. τ is
that of the table that is farthest off. Others are drawn towards the field's own first, as far as their own τ says: a
table that is off by its noise alone stays the field's, and where all are, nothing is raked. So a field that holds every
table is drawn from as it is. Without noise this is the limit of iterative proportional fitting (Deming and Stephan
1940; Csiszár 1975), which has one only where the tables agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from vertinumpyro.mrf.measurements import Measurement

_POPULATION = (2**14, 2**16)  # records, at least and at most
_MOST_SHARES = 2**23  # of the widest column's cells, or of all columns, of all records: the memory
_MOST_WORK = 2**28  # of all tables' last columns, of all records: the time of a step, a second or so
_STEPS = 100
_LITTLE = 1e-4  # of what was gained so far; less ends the steps
CLEARLY = 3.0
"""Standard deviations of its noise's squares that a table is off by, beyond what noise would give."""

Drawn = Mapping[str, np.ndarray]


def population_size(measurements: Sequence[Measurement], sizes: Mapping[str, int], num_records: int) -> int:
    """Records that factors are fitted on: as many as the twin's, where memory and time allow."""
    least, most = _POPULATION
    work = sum(max(m.values.shape) for m in measurements if len(m.columns) > 1)
    wanted = min(max(least, num_records), most, max(least, _MOST_WORK // max(work, 1)))
    return min(wanted, _most_records(sizes))


def _most_records(sizes: Mapping[str, int]) -> int:
    return max(1, _MOST_SHARES // max(len(sizes), *sizes.values()))


def raking_bytes(sizes: Mapping[str, int]) -> int:
    """What a column takes at most while it is raked: shares, logarithms and copies, and records' rows of the tables."""
    population = min(_POPULATION[1], _most_records(sizes))
    return population * (8 * 4 * max(sizes.values()) + 32 * len(sizes))


@final
class Tilt(NamedTuple):
    """Factors of one table.

    :ivar columns: the earlier columns of the table.
    :ivar shape: their cells.
    :ivar factors: float64 `[cells of the earlier columns, cells of the column]`.
    """

    columns: tuple[str, ...]
    shape: tuple[int, ...]
    factors: np.ndarray

    def rows(self, drawn: Drawn) -> np.ndarray:
        """Every record's row of the factors."""
        return np.ravel_multi_index(tuple(drawn[name] for name in self.columns), self.shape)


@final
class Gap(NamedTuple):
    """How far a table of the twin is from the released one.

    :ivar of_field: squares over variances of the field's own table, in standard deviations above what noise would give.
    :ivar remaining: the same of the raked one.
    :ivar distance: its total variation distance, less what noise would give.
    """

    of_field: float
    remaining: float
    distance: float


@final
class Raking:
    """Finds the factors while a population is drawn, column by column.

    :ivar tilts: for each raked column, its factors.
    :ivar gaps: for each table of several columns, how far the twin is from it.
    """

    def __init__(self, measurements: Sequence[Measurement], num_records: int) -> None:
        self._measurements = [m for m in measurements if len(m.columns) > 1]
        self._num_records = num_records
        self.tilts: dict[str, tuple[Tilt, ...]] = {}
        self.gaps: dict[tuple[str, ...], Gap] = {}

    def __call__(self, name: str, weights: np.ndarray, given: np.ndarray, drawn: Drawn) -> tuple[Tilt, ...]:
        """The factors of the next column.

        :param name: the column.
        :param weights: of its cells, by the field, `[rows, cells]`.
        :param given: every record's row.
        :param drawn: the cells of the columns before it.
        """
        ending = [m for m in self._measurements if name in m.columns and {*m.columns} <= {name, *drawn}]
        if not ending:
            return ()
        shares = _shares(weights).astype(np.float32)[given]
        tables = [_Table(m, name, drawn, self._num_records, shares) for m in ending]
        before = [table.misfit(shares) for table in tables]
        tau = max(table.tau for table in tables)
        if tau and max(before) > CLEARLY:
            shares = _raked(shares, tables, tau)
            self.tilts[name] = tuple(table.tilt for table in tables)
        for m, table, found in zip(ending, tables, before, strict=True):
            self.gaps[m.columns] = Gap(found, table.misfit(shares), table.distance(shares))
        return self.tilts.get(name, ())


def _raked(shares: np.ndarray, tables: Sequence[_Table], tau: float) -> np.ndarray:
    """The population's probabilities once they are raked to all tables; the tables keep their factors."""
    for table in tables:
        table.aim(tau)
    logs = np.log(np.maximum(shares, np.finfo(np.float32).tiny))

    def dual(flat: np.ndarray) -> tuple[float, np.ndarray]:
        found, value = _tilted(logs, tables, flat)
        terms = [table.term(found, part) for table, part in zip(tables, _parts(tables, flat), strict=True)]
        gradient = np.concatenate([slope.ravel() for _, slope in terms])
        return tables[0].scale * value + sum(term for term, _ in terms), gradient

    start = np.zeros(sum(table.released.size for table in tables))  # where the dual is 0, so that `ftol` is of the gain
    best = minimize(dual, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": _LITTLE, "gtol": 0.0})
    for table, part in zip(tables, _parts(tables, best.x), strict=True):
        table.tilt = table.tilt._replace(factors=np.exp(part / table.size))
    return _tilted(logs, tables, best.x)[0]


def _parts(tables: Sequence[_Table], flat: np.ndarray) -> list[np.ndarray]:
    """Every table's cells."""
    ends = np.cumsum([table.released.size for table in tables])[:-1]
    return [part.reshape(table.released.shape) for table, part in zip(tables, np.split(flat, ends), strict=True)]


def _tilted(logs: np.ndarray, tables: Sequence[_Table], flat: np.ndarray) -> tuple[np.ndarray, float]:
    """The population's probabilities under some factors, and the logarithms of what they were divided by, summed."""
    shares = logs.copy()
    for table, part in zip(tables, _parts(tables, flat), strict=True):
        shares += (part / table.size).astype(np.float32)[table.rows]
    largest = shares.max(axis=1, keepdims=True)
    np.exp(np.subtract(shares, largest, out=shares), out=shares)
    mass = shares.sum(axis=1, keepdims=True)
    shares /= mass
    return shares, float(largest.sum(dtype=np.float64) + np.log(mass).sum(dtype=np.float64))


@final
class _Table:
    """A released table, its last column the one to be drawn, and a population.

    :ivar tau: how much farther its counts are off by the field than chance gives.
    :ivar size: of a step in each cell that lowers the dual by about as much.
    """

    def __init__(self, measured: Measurement, name: str, drawn: Drawn, num_records: int, shares: np.ndarray) -> None:
        axis = measured.columns.index(name)
        values = np.moveaxis(measured.values, axis, -1)
        columns = tuple(other for other in measured.columns if other != name)
        self.tilt = Tilt(columns, values.shape[:-1], np.ones((math.prod(values.shape[:-1]), values.shape[-1])))
        self.rows = self.tilt.rows(drawn)
        population = len(self.rows)
        self.scale, self._num_records = num_records / population, num_records
        self.released = values.reshape(self.tilt.factors.shape)
        ones = np.ones(population, np.float32)
        self._sums = csr_matrix((ones, (self.rows, np.arange(population))), (len(self.released), population))
        self._of_field, self._noise = self.counts(shares), measured.stddev**2
        self._variance = self._with_chance(self._of_field)
        self._off = self._off_within_rows()
        self.tau = max(0.0, float((self._off**2 - self._variance).sum()) / max(float(self._of_field.sum()), 1.0))
        self._target, self._ridge, self.size = self._of_field, self._variance, self._variance

    def counts(self, shares: np.ndarray) -> np.ndarray:
        """The table of the population, as of all records."""
        return (self._sums @ shares).astype(np.float64) * self.scale

    def _with_chance(self, counts: np.ndarray) -> np.ndarray:
        """The noise's variance, and that of a population's counts."""
        return self._noise + self.scale * np.maximum(counts, 1.0)

    def _off_within_rows(self) -> np.ndarray:
        """What the field lacks, with the population's own counts of the earlier columns."""
        off = self.released - self._of_field
        rows = np.maximum(self._of_field.sum(axis=1, keepdims=True), 1e-9)
        return off - off.sum(axis=1, keepdims=True) * self._of_field / rows

    def misfit(self, shares: np.ndarray) -> float:
        """Standard deviations by which the differences' squares are above what noise would give."""
        counts, size = self.counts(shares), self.released.size
        squares = float(((self.released - counts) ** 2 / self._with_chance(counts)).sum())
        return (squares - size) / math.sqrt(2 * size)

    def distance(self, shares: np.ndarray) -> float:
        """Total variation, less what noise would give."""
        counts = self.counts(shares)
        noise = math.sqrt(2 / math.pi) * np.sqrt(self._with_chance(counts)).sum()
        return max(0.0, float(np.abs(self.released - counts).sum() - noise)) / (2 * self._num_records)

    def aim(self, tau: float) -> None:
        """Fixes what the table should be, such that the penalty of the largest τ leaves of it what its own τ says."""
        self._ridge = self._variance / tau
        kept = self.tau * (self._of_field + self._ridge) / (self.tau * self._of_field + self._variance)
        self._target = self._of_field + kept * self._off
        self.size = np.sqrt(self._of_field + self._ridge)

    def term(self, shares: np.ndarray, part: np.ndarray) -> tuple[float, np.ndarray]:
        """The table's own terms of the dual, at λ times `size`, and the slope of all of it there."""
        logs = part / self.size
        value = float((logs * (0.5 * self._ridge * logs - self._target)).sum())
        return value, (self.counts(shares) - self._target + self._ridge * logs) / self.size


def _shares(weights: np.ndarray) -> np.ndarray:
    """Rows that add up to 1; uniform where a row has no weight."""
    mass = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, mass, out=np.full_like(weights, 1 / weights.shape[1]), where=mass > math.ulp(0.0))
