"""Tables that no clique holds, kept all the same: every column is drawn from the field, raked to them. Post-processing.

A field's cliques are limited by memory and time, so of many dependent columns it cannot hold all pairs. But records are
drawn column by column, and there a further table takes no clique: of all distributions of the next column under which
its tables with the earlier columns come out as they should, the nearest to the field's own (least Kullback-Leibler
divergence) is

    p(v | earlier columns) ∝ field(v | its clique) · Π_t w_t[cell of t's earlier columns, v] .

Iterative proportional fitting (Deming and Stephan 1940; Csiszár 1975) finds the factors w_t on a population that is
drawn from the model itself, whose probabilities are summed rather than its draws. A table comes out as it was
released, drawn towards the field's own by the positive part of James and Stein's factor: where a table is off by its
noise alone, nothing is raked; so a field that holds every table is drawn from as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
from scipy.sparse import csr_matrix

from vertinumpyro.mrf.measurements import Measurement

_POPULATION = (2**14, 2**17)  # records, at least and at most
_MOST_SHARES = 2**23  # of the widest column's cells, of all records: the memory
_MOST_WORK = 2**29  # of all tables' last columns, of all records: the time of a cycle, a few seconds
_CYCLES = 10
CLEARLY = 3.0
"""Standard deviations of its noise's squares that a table is off by, beyond what noise would give."""

_LEAST = 0.05  # of the field's own count, which a cell keeps
_LARGEST = 1e3  # factor of one step

Drawn = Mapping[str, np.ndarray]


def population_size(measurements: Sequence[Measurement], sizes: Mapping[str, int], num_records: int) -> int:
    """Records that factors are fitted on: as many as the twin's, where memory and time allow."""
    least, most = _POPULATION
    work = sum(max(m.values.shape) for m in measurements if len(m.columns) > 1)
    wanted = min(max(least, num_records), most, max(least, _MOST_WORK // max(work, 1)))
    return max(1, min(wanted, _MOST_SHARES // max(sizes.values())))


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
        tables = [_Table(m, name, drawn, self._num_records) for m in ending]
        before = [table.misfit(shares) for table in tables]
        if max(before) > CLEARLY:
            for table in tables:
                table.aim(shares)
            shares = _fitted(shares, tables)
            self.tilts[name] = tuple(table.tilt for table in tables)
        for m, table, found in zip(ending, tables, before, strict=True):
            self.gaps[m.columns] = Gap(found, table.misfit(shares), table.distance(shares))
        return self.tilts.get(name, ())


def _fitted(shares: np.ndarray, tables: Sequence[_Table]) -> np.ndarray:
    """The population's probabilities once they are raked to all tables in turn; the tables keep their factors."""
    for _ in range(_CYCLES):
        for table in tables:
            shares *= table.step(shares)
            shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return shares


@final
class _Table:
    """A released table, its last column the one to be drawn, and a population."""

    def __init__(self, measured: Measurement, name: str, drawn: Drawn, num_records: int) -> None:
        axis = measured.columns.index(name)
        values = np.moveaxis(measured.values, axis, -1)
        columns = tuple(other for other in measured.columns if other != name)
        self.tilt = Tilt(columns, values.shape[:-1], np.ones((math.prod(values.shape[:-1]), values.shape[-1])))
        self._rows = self.tilt.rows(drawn)
        population = len(self._rows)
        self._scale, self._num_records = num_records / population, num_records
        self._released, self._variance = values.reshape(self.tilt.factors.shape), measured.stddev**2
        ones = np.ones(population, np.float32)
        self._sums = csr_matrix((ones, (self._rows, np.arange(population))), (len(self._released), population))
        self._target = self._released

    def counts(self, shares: np.ndarray) -> np.ndarray:
        """The table of the population, as of all records."""
        return (self._sums @ shares).astype(np.float64) * self._scale

    def _squares(self, counts: np.ndarray) -> float:
        """Of the differences, in variances: the noise's, and that of a population's counts."""
        return float(((self._released - counts) ** 2 / (self._variance + self._scale * np.maximum(counts, 1.0))).sum())

    def misfit(self, shares: np.ndarray) -> float:
        """Standard deviations by which the squares are above what noise would give."""
        size = self._released.size
        return (self._squares(self.counts(shares)) - size) / math.sqrt(2 * size)

    def distance(self, shares: np.ndarray) -> float:
        """Total variation, less what noise would give."""
        counts = self.counts(shares)
        noise = math.sqrt(2 / math.pi) * np.sqrt(self._variance + self._scale * np.maximum(counts, 1.0)).sum()
        return max(0.0, float(np.abs(self._released - counts).sum() - noise)) / (2 * self._num_records)

    def aim(self, shares: np.ndarray) -> None:
        """Fixes what the table should be, with the population's own counts of the earlier columns."""
        counts = self.counts(shares)
        kept = max(0.0, 1.0 - self._released.size / max(self._squares(counts), 1.0))
        target = np.maximum(counts + kept * (self._released - counts), _LEAST * counts)
        rows = counts.sum(axis=1, keepdims=True) / np.maximum(target.sum(axis=1, keepdims=True), 1e-9)
        self._target = target * rows

    def step(self, shares: np.ndarray) -> np.ndarray:
        """Every record's factors by which the table becomes what it should be."""
        counts = self.counts(shares)
        ratio = np.divide(self._target, counts, out=np.ones_like(counts), where=counts > 1e-6)
        ratio = np.clip(ratio, 1 / _LARGEST, _LARGEST)
        self.tilt = self.tilt._replace(factors=self.tilt.factors * ratio)
        return ratio.astype(np.float32)[self._rows]


def _shares(weights: np.ndarray) -> np.ndarray:
    """Rows that add up to 1; uniform where a row has no weight."""
    mass = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, mass, out=np.full_like(weights, 1 / weights.shape[1]), where=mass > math.ulp(0.0))
