"""Contingency tables with discrete Gaussian noise: what every part of a fit releases.

One record is in exactly one cell of every table. So replacing it moves k tables together by at most √(2k) in L2
norm, and zeroing its contribution by √k. Tables are released on the grid 2^-12; the least noise there that keeps a
budget is solved for in integers (`privacy.adversary.smallest_share_variance`).

What noisy tables say about single columns, and how far two columns are from independence.

Every table with a column states its counts, each with its own noise; the inverse-variance mean is what all of them say.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.privacy import (
    Adversary,
    GaussianEvent,
    NeighbouringRelation,
    NoiseSource,
    Release,
    sample_discrete_gaussian,
)
from vertinumpyro.privacy.adversary import gaussian_parameter, smallest_share_variance
from vertinumpyro.privacy.discrete_gaussian import require_drawable

GRID_BITS = 12
OWN_NOISE = NoiseSource(kind="trusted", num_parties=1)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """A noisy contingency table. Released.

    :ivar columns: its axes.
    :ivar values: counts, float64, one axis for each column.
    :ivar stddev: standard deviation of the noise in a cell.
    """

    columns: tuple[str, ...]
    values: np.ndarray
    stddev: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRelease(Release):
    """Some contingency tables of the same records, released together.

    Formal guarantee: `noisy` tables are Gaussian differentially private with parameter at most `mu` (one record,
    `relation`) towards whoever knows no more shares of the noise than its collusion threshold; `mu_against` says what
    knowing some of them changes.

    :ivar num_tables: k.
    :ivar mu: the budget, > 0.
    :ivar noise: who adds it; by default the tables' owner alone.
    :ivar relation: the neighbouring relation.
    """

    num_tables: int
    mu: float
    noise: NoiseSource = OWN_NOISE
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE

    def __post_init__(self) -> None:
        if self.num_tables < 1:
            raise ArgumentError(f"num_tables must be at least 1, got {self.num_tables}")
        require_drawable(self.share_variance * self.noise.num_shares)

    @property
    def name(self) -> str:
        """See `Release.name`."""
        return "the tables across parties"

    def event(self, adversary: Adversary) -> GaussianEvent:
        """Gaussian with `mu_against`, where every table may change."""
        mu = self.mu_against(adversary.colluders)
        return GaussianEvent(noise_multiplier=self.relation.sensitivity / mu, count=1)

    @functools.cached_property
    def share_variance(self) -> int:
        """Variance of each noise share, in grid units²."""
        squared = self._squared_sensitivity(self.num_tables)
        return smallest_share_variance(mu=self.mu, squared_sensitivity=squared, grid_bits=GRID_BITS, noise=self.noise)

    def _squared_sensitivity(self, num_tables: int) -> int:
        """Δ²: a record leaves one cell of every table, and enters another where it is replaced."""
        return num_tables * self.relation.sensitivity

    @property
    def stddev(self) -> float:
        """Standard deviation of all the noise in a cell, in counts."""
        return math.sqrt(self.share_variance * self.noise.num_shares) / 2**GRID_BITS

    def mu_against(self, colluders: int, num_tables: int | None = None) -> float:
        """The parameter towards an adversary who holds `colluders` of the noise's parties.

        :param colluders: how many shares of the noise are known.
        :param num_tables: how many of the tables can change at all, given what the adversary knows anyway.
        """
        return gaussian_parameter(
            share_variance=self.share_variance,
            num_unknown=self.noise.num_unknown(colluders),
            squared_sensitivity=self._squared_sensitivity(self.num_tables if num_tables is None else num_tables),
            grid_bits=GRID_BITS,
        )

    def draw_shares(self, num_values: int, source: RandomSource) -> np.ndarray:
        """Every party's noise, each from its own source: int64 `[num_shares, num_values]`, in grid units. Secret."""
        own = source.spawn(self.noise.num_shares)
        return np.stack([sample_discrete_gaussian(self.share_variance, num_values, each) for each in own])

    def noisy(
        self, tables: Sequence[tuple[tuple[str, ...], np.ndarray]], source: RandomSource
    ) -> tuple[Measurement, ...]:
        """Tables that one party owns, with its noise: what comes back is released.

        :raises ArgumentError: more tables than the release pays for, or noise that several parties should add.
        """
        self.check_count(len(tables))
        if self.noise.num_shares != 1:
            raise ArgumentError("noise of several parties is for tables that no party owns")
        return tuple(
            self.measured(columns, (table << GRID_BITS) + self.draw_shares(table.size, source)[0].reshape(table.shape))
            for columns, table in tables
        )

    def check_count(self, num_tables: int) -> None:
        """Refuses more tables than the release pays for."""
        if num_tables > self.num_tables:
            raise ArgumentError(f"this release pays for {self.num_tables} tables, got {num_tables}")

    def measured(self, columns: tuple[str, ...], revealed: np.ndarray) -> Measurement:
        """A revealed table in grid units as counts."""
        return Measurement(columns=columns, values=revealed.astype(np.float64) / 2**GRID_BITS, stddev=self.stddev)


def count_table(codes: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """The exact contingency table of some columns, int64 `sizes`. Secret."""
    flat = np.ravel_multi_index(tuple(codes), tuple(sizes))
    return np.bincount(flat, minlength=math.prod(sizes)).reshape(tuple(sizes))


def noise_per_cell(stddev: float) -> float:
    """The expected absolute value of the noise in a cell."""
    return math.sqrt(2 / math.pi) * stddev


def useful_cells(num_records: int, stddev: float) -> float:
    """A table with fewer cells is θ-useful: a cell holds more than six times its noise, on average (PrivMRF's rule)."""
    return num_records / (6 * noise_per_cell(stddev))


MEDIUM, LARGE = 0.3, 0.5
"""Rank correlations, in Cohen's words; a pair is held for a medium one, "large enough to be visible"."""


def cells_that_show(num_records: int, stddev: float) -> float:
    """A table of two columns with more cells hides a large association.

    One of r moves evenly filled cells by about N r / √cells in L2 norm, of which noise has the square of `stddev` in
    each, give or take √(2 cells) of them in all; two of these are seen.
    """
    return (LARGE * num_records / stddev) ** (4 / 3) / 2


def one_way(name: str, measurements: Sequence[Measurement], num_records: int) -> Measurement:
    """What all tables together say about one column."""
    values = [m.values for m in measurements]
    mean, variance = _mean_of(name, measurements, values)
    return Measurement(columns=(name,), values=_proper(mean, num_records), stddev=math.sqrt(variance))


def dependence(measurement: Measurement, num_records: int) -> float:
    """The R-score ½ ‖P_AB − P_A P_B‖₁ of a noisy two-way table, less what its noise alone would give."""
    joint = _proper(measurement.values, num_records) / num_records
    gap = 0.5 * float(np.abs(joint - np.outer(joint.sum(1), joint.sum(0))).sum())
    free = math.prod(side - 1 for side in joint.shape)  # degrees of freedom of the difference
    return gap - 0.5 * math.sqrt(2 / math.pi * joint.size * free) * measurement.stddev / num_records


def significance(measurement: Measurement, singles: Mapping[str, np.ndarray], *, of_sample: bool = False) -> float:
    """How far a noisy table is from independence, in standard deviations of what its noise alone would give.

    :param measurement: a table.
    :param singles: counts of its columns; the expected ones are their product.
    :param of_sample: whether the chance of a sample counts as noise: how far those are that records were drawn from.
    """
    counts = [singles[name] / max(singles[name].sum(), 1.0) for name in measurement.columns]
    expected = functools.reduce(np.multiply.outer, counts) * singles[measurement.columns[0]].sum()
    stddev = np.hypot(measurement.stddev, np.sqrt(expected)) if of_sample else measurement.stddev
    squares = ((measurement.values - expected) / stddev) ** 2
    return float((squares - 1).sum()) / math.sqrt(2 * squares.size)


def shrunk(measurement: Measurement, singles: Mapping[str, Measurement]) -> Measurement:
    """A noisy table of two columns, drawn towards independence by the positive part of James and Stein's factor.

    What the table says beside its columns' counts has (a − 1)(b − 1) dimensions and a noise that is known, so of a
    strong dependence nearly all stays and of noise nothing. Tables of other numbers of columns stay as they are.

    :param measurement: a table.
    :param singles: what is known of its columns; their counts take the place of the table's own.
    """
    if len(measurement.columns) != 2:
        return measurement
    rows, cells = (singles[name].values for name in measurement.columns)
    expected = np.outer(rows, cells) / max(rows.sum(), 1.0)
    gap = measurement.values - expected
    gap = gap - gap.mean(0, keepdims=True) - gap.mean(1, keepdims=True) + gap.mean()
    dimensions, squares = (len(rows) - 1) * (len(cells) - 1), (gap**2).sum() / measurement.stddev**2
    kept = max(0.0, 1 - max(0, dimensions - 2) / max(squares, 1.0))
    return dataclasses.replace(measurement, values=expected + kept * gap)


def _mean_of(name: str, measurements: Sequence[Measurement], values: Sequence[np.ndarray]) -> tuple[np.ndarray, float]:
    """Inverse-variance mean of a column's counts over all tables that have it, and its variance."""
    total, weights = np.zeros(()), 0.0
    for m, table in zip(measurements, values, strict=True):
        if name in m.columns:
            axis = m.columns.index(name)
            weight = 1 / (m.stddev**2 * (table.size // table.shape[axis]))
            total, weights = total + weight * _onto(table, axis), weights + weight
    return total / weights, 1 / weights


def _onto(table: np.ndarray, axis: int) -> np.ndarray:
    return table.sum(axis=tuple(i for i in range(table.ndim) if i != axis))


def _proper(table: np.ndarray, num_records: int) -> np.ndarray:
    """No negative counts, total N: the nearest such table in Euclidean distance (a simplex projection)."""
    ordered = np.sort(table, axis=None)[::-1]
    excess = (np.cumsum(ordered) - num_records) / np.arange(1, table.size + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.maximum(table - excess[last], 0.0)
