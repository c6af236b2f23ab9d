"""A fitted field as a twin: records drawn from it column by column, raked to tables that no clique holds; storing and
loading.

It is drawn clique by clique along the junction tree, and draws are stratified: among the records that agree on the
columns drawn so far, every value comes up as often as its probability says, up to one record. So tables of the twin are
closer to the model's than those of independent draws. Everything here is post-processing.

**Raking.** A field's cliques are limited by memory and time, so of many dependent columns it cannot hold all pairs. But
records are drawn column by column, and there a further table takes no clique: of all distributions of the next column
under which its tables with the earlier columns come out as they should, the nearest to the field's own (least
Kullback-Leibler divergence) is

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

Last a column alone gets factors, where it is off by clearly more than the noise of what all tables together say of it:
of many columns at a small budget tables of pairs are noise, and lead the field away from columns that are known.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, final

import jax
import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.core.validation import checked
from vertinumpyro.data import Schema, decode_table
from vertinumpyro.data.constraints import drawn_within
from vertinumpyro.data.table import write_in_blocks
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.field import GraphicalModel
from vertinumpyro.mrf.marginals import Marginals, held_release, held_words, named, pack_model, unpack_model
from vertinumpyro.mrf.measurements import Measurement, one_way
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.table_selection import merged
from vertinumpyro.session import PRIVACY_RECORD

_POPULATION = (2**14, 2**16)  # records, at least and at most
_MOST_SHARES = 2**23  # of the widest column's cells, or of all columns, of all records: the memory
_MOST_WORK = 2**28  # of all tables' last columns, of all records: the time of a step, a second or so
_STEPS = 100
_LITTLE = 1e-4  # of what was gained so far; less ends the steps
_ROUNDS, _LEAST_COUNT = 20, 1e-3  # of a column alone
_CLEARLY = 3.0
"""Standard deviations of its noise's squares that a table is off by, beyond what noise would give."""

Drawn = Mapping[str, np.ndarray]


def _population_size(measurements: Sequence[Measurement], sizes: Mapping[str, int], num_records: int) -> int:
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
class _Tilt(NamedTuple):
    """Factors of one table.

    :ivar columns: the earlier columns of the table.
    :ivar shape: their cells.
    :ivar factors: float64 `[cells of the earlier columns, cells of the column]`.
    """

    columns: tuple[str, ...]
    shape: tuple[int, ...]
    factors: np.ndarray

    def rows(self, drawn: Drawn, num_records: int) -> np.ndarray:
        """Every record's row of the factors."""
        return _flat([drawn[name] for name in self.columns], self.shape, num_records)


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
        names = {name: None for m in measurements for name in m.columns}
        self._singles = {name: one_way(name, measurements, num_records) for name in names}
        self._num_records = num_records
        self.tilts: dict[str, tuple[_Tilt, ...]] = {}
        self.gaps: dict[tuple[str, ...], Gap] = {}

    def __call__(self, name: str, weights: np.ndarray, given: np.ndarray, drawn: Drawn) -> tuple[_Tilt, ...]:
        """The factors of the next column.

        :param name: the column.
        :param weights: of its cells, by the field, `[rows, cells]`.
        :param given: every record's row.
        :param drawn: the cells of the columns before it.
        """
        ending = [m for m in self._measurements if name in m.columns and {*m.columns} <= {name, *drawn}]
        shares = _shares(weights).astype(np.float32)[given]
        tables = [_Table(m, name, drawn, self._num_records, shares) for m in ending]
        before = [table.misfit(shares) for table in tables]
        tau = max((table.tau for table in tables), default=0.0)
        if tau and max(before) > _CLEARLY:
            shares = _raked(shares, tables, tau)
            self.tilts[name] = tuple(table.tilt for table in tables)
        if (single := self._singles.get(name)) and (alone := _alone(shares, single, self._num_records)) is not None:
            shares = _shares(shares * alone)
            self.tilts[name] = (*self.tilts.get(name, ()), _Tilt((), (), alone[None]))
        for m, table, found in zip(ending, tables, before, strict=True):
            self.gaps[m.columns] = Gap(found, table.misfit(shares), table.distance(shares))
        return self.tilts.get(name, ())


def _alone(shares: np.ndarray, single: Measurement, num_records: int) -> np.ndarray | None:
    """Factors by which a population has a column as all tables together say; None where it is as near as their noise.

    Where noise hides how columns go together, the tables of two may have led the field away from it.
    """
    scale = num_records / len(shares)
    counts = shares.sum(0, dtype=np.float64) * scale
    variance = single.stddev**2 + scale * np.maximum(counts, 1.0)
    squares = float(((single.values - counts) ** 2 / variance).sum())
    if squares - len(counts) <= _CLEARLY * math.sqrt(2 * len(counts)):
        return None
    wanted, factors = np.maximum(single.values, _LEAST_COUNT), np.ones(len(counts))
    for _ in range(_ROUNDS):
        counts = _shares(shares * factors).sum(0, dtype=np.float64) * scale
        factors *= wanted / np.maximum(counts, _LEAST_COUNT)
        factors /= factors.max()
    return factors


def _raked(shares: np.ndarray, tables: Sequence[_Table], tau: float) -> np.ndarray:
    """The population's probabilities once they are raked to all tables; the tables keep their factors."""
    for table in tables:
        table.aim(tau)
    logs = np.log(np.maximum(shares, np.finfo(np.float32).tiny))

    def dual(flat: np.ndarray) -> tuple[float, np.ndarray]:
        found, value = _under_factors(logs, tables, flat)
        terms = [table.term(found, part) for table, part in zip(tables, _parts(tables, flat), strict=True)]
        gradient = np.concatenate([slope.ravel() for _, slope in terms])
        return tables[0].scale * value + sum(term for term, _ in terms), gradient

    start = np.zeros(sum(table.released.size for table in tables))  # where the dual is 0, so that `ftol` is of the gain
    best = minimize(dual, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS, "ftol": _LITTLE, "gtol": 0.0})
    for table, part in zip(tables, _parts(tables, best.x), strict=True):
        logs_of_factors = part / table.size  # may be hundreds; a row's largest is 1, as a draw divides by its row's sum
        factors = np.exp(logs_of_factors - logs_of_factors.max(axis=-1, keepdims=True))
        table.tilt = table.tilt._replace(factors=factors)
    return _under_factors(logs, tables, best.x)[0]


def _parts(tables: Sequence[_Table], flat: np.ndarray) -> list[np.ndarray]:
    """Every table's cells."""
    ends = np.cumsum([table.released.size for table in tables])[:-1]
    return [part.reshape(table.released.shape) for table, part in zip(tables, np.split(flat, ends), strict=True)]


def _under_factors(logs: np.ndarray, tables: Sequence[_Table], flat: np.ndarray) -> tuple[np.ndarray, float]:
    """The population's probabilities under some factors, and the logarithms of what they were divided by, summed."""
    shares = logs.copy()
    for table, part in zip(tables, _parts(tables, flat), strict=True):
        shares += np.take((part / table.size).astype(np.float32), table.rows, axis=0)  # a tenth of [table.rows]'s time
    shares = np.ascontiguousarray(shares.T)  # as is this of maxima and sums over few cells
    largest = shares.max(axis=0)
    np.exp(np.subtract(shares, largest, out=shares), out=shares)
    mass = shares.sum(axis=0)
    shares /= mass
    return np.ascontiguousarray(shares.T), float(largest.sum(dtype=np.float64) + np.log(mass).sum(dtype=np.float64))


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
        self.tilt = _Tilt(columns, values.shape[:-1], np.ones((math.prod(values.shape[:-1]), values.shape[-1])))
        population = len(shares)
        self.rows = self.tilt.rows(drawn, population)
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


Tilts = Callable[[str, np.ndarray, np.ndarray, Mapping[str, np.ndarray]], Sequence[_Tilt]]
"""A column, its weights by the field `[rows, cells]`, every record's row, the columns drawn before: their factors."""


def draw_cells(
    model: GraphicalModel,
    num_records: int,
    rng: np.random.Generator,
    tilts: Tilts = lambda name, weights, given, drawn: (),
) -> dict[str, np.ndarray]:
    """Cells of synthetic records, int64 `[num_records]` for every column.

    :param model: the fitted field.
    :param num_records: how many.
    :param rng: public randomness; the model is released, so draws protect nothing.
    :param tilts: what columns' weights are multiplied by; see `Raking`.
    """
    drawn: dict[str, np.ndarray] = {}
    for clique, table in zip(model.cliques, model.tables, strict=True):
        known = [name for name in clique if name in drawn]
        fresh = [name for name in clique if name not in drawn]
        table = np.transpose(table, [clique.index(name) for name in known + fresh])
        given = _flat([drawn[n] for n in known], table.shape[: len(known)], num_records)
        for position, name in enumerate(fresh):
            axis = len(known) + position
            counts = table.sum(axis=tuple(range(axis + 1, table.ndim))).reshape(-1, table.shape[axis])
            factors = [(tilt.factors, tilt.rows(drawn, num_records)) for tilt in tilts(name, counts, given, drawn)]
            drawn[name] = _stratified(counts, given, rng, factors)
            given = given * table.shape[axis] + drawn[name]
    return drawn


def _flat(codes: list[np.ndarray], shape: tuple[int, ...], num_records: int) -> np.ndarray:
    return np.ravel_multi_index(tuple(codes), shape) if codes else np.zeros(num_records, np.int64)


def _stratified(
    weights: np.ndarray,
    given: np.ndarray,
    rng: np.random.Generator,
    factors: Sequence[tuple[np.ndarray, np.ndarray]] = (),
) -> np.ndarray:
    """One cell for each record from its row of weights `[rows, cells]`, by systematic draws within each row.

    :param factors: what a record's weights are multiplied by: tables, and every record's row of each.
    """
    narrow = np.uint16 if len(weights) <= 2**16 else np.int64  # of 16 bits the sort is by radix
    shuffled = rng.permutation(len(given))
    order = shuffled[np.argsort(given.astype(narrow)[shuffled], kind="stable")]
    counts = np.bincount(given, minlength=len(weights))
    rows = np.flatnonzero(counts)
    counts = counts[rows]
    rank = np.arange(len(given)) - np.repeat(np.cumsum(counts) - counts, counts)
    unit = (rank + rng.random(len(given))) / np.repeat(counts, counts)
    if factors:
        unit[order] = unit.copy()  # by record
        return _tilted(weights, given, unit, factors)
    cells = np.empty(len(given), np.int64)
    cumulative = _cumulative(weights[rows])
    # rows as consecutive intervals of length one, so that a single search serves all of them
    edges = (cumulative[:, :-1] + np.arange(len(rows))[:, None]).ravel()
    index = np.repeat(np.arange(len(rows)), counts)
    below = np.searchsorted(edges, index + unit, side="right") - index * (weights.shape[1] - 1)
    cells[order] = np.clip(below, 0, weights.shape[1] - 1)
    return cells


def _tilted(
    weights: np.ndarray, given: np.ndarray, unit: np.ndarray, factors: Sequence[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Where each record's number from 0 to 1 falls in its own distribution function; uniform where it has no weight."""
    cells, num_cells = np.empty(len(given), np.int64), weights.shape[1]
    weights = weights.astype(np.float64, copy=False)
    for block in slices(len(given), max(1, _WEIGHTS_AT_A_TIME // num_cells)):
        own = np.take(weights, given[block], axis=0)
        for table, rows in factors:
            own *= np.take(table, rows[block], axis=0)
        own = np.ascontiguousarray(own.T)
        for cell in range(1, num_cells):
            own[cell] += own[cell - 1]
        mass, found = own[-1], np.zeros(own.shape[1], np.int64)
        reached = unit[block] * mass
        for below in own[:-1]:
            found += below <= reached
        cells[block] = np.where(mass > math.ulp(0.0), found, (unit[block] * num_cells).astype(np.int64))
    return cells


def _cumulative(weights: np.ndarray) -> np.ndarray:
    """Distribution functions `[rows, cells]`; uniform where a row has no weight."""
    mass = weights.sum(axis=1, keepdims=True)
    share = np.divide(weights, mass, out=np.full_like(weights, 1 / weights.shape[1]), where=mass > math.ulp(0.0))
    return np.minimum(np.cumsum(share, axis=1), 1.0)


FIELD = "field.npz"
ROWS_DRAWN = 2**19
"""Records that are drawn at a time at most, where a table is written block by block."""

_WEIGHTS_AT_A_TIME = 2**20
_VALUES_DRAWN = 2**24  # so at a time: fewer records of many columns


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MarkovTwin:
    """A fitted field. Everything in it but `seconds` is released.

    :ivar schema: the public schema.
    :ivar columns: its columns in cells.
    :ivar plan: what was spent.
    :ivar model: the field, in cells.
    :ivar measurements: the noisy tables that it was made from.
    :ivar fine: noisy histograms of values within cells.
    :ivar secure_noise: whether the noise came from the operating system's CSPRNG; where it is False the fit used
        `insecure_seed` and has no privacy.
    :ivar seconds: wall time of all parties' releases, one after the other, and of the server's fit afterwards; of the
        process that ended the fit. Not DP, and not stored: empty in a field that was loaded.
    :ivar missing: releases that were spent and lost in a crash, so that nothing here is made from them.
    """

    schema: Schema
    columns: tuple[CellColumn, ...]
    plan: MRFPlan
    model: GraphicalModel
    measurements: tuple[Measurement, ...]
    fine: Mapping[str, np.ndarray]
    secure_noise: bool
    seconds: Mapping[str, float]
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, released: Marginals, model: GraphicalModel, seconds: Mapping[str, float]) -> MarkovTwin:
        """The field of a release."""
        shared = {field.name: getattr(released, field.name) for field in dataclasses.fields(released)}
        return cls(**shared, model=model, seconds=seconds)

    @property
    def marginals(self) -> Marginals:
        """The release that the field was made from, for other models (`MarginalInference`)."""
        return Marginals(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Marginals)})

    @functools.cached_property
    def _raking(self) -> Raking:
        """What the field misses of its tables, on a population that is the same for every key."""
        tables, sizes = merged(self.measurements), {column.name: column.num_cells for column in self.columns}
        raking = Raking(tables, self.plan.num_records)
        size = _population_size(tables, sizes, self.plan.num_records)
        draw_cells(self.model, size, np.random.default_rng(0), raking)
        return raking

    @property
    def missed(self) -> dict[tuple[str, ...], float]:
        """The released tables that the twin is off by clearly more than their noise, the worst first.

        Each with its total variation distance, less what noise would give. Post-processing of the tables.
        """
        clear = {columns: gap.distance for columns, gap in self._raking.gaps.items() if gap.remaining > _CLEARLY}
        return dict(sorted(clear.items(), key=lambda item: -item[1]))

    @property
    def limited_by(self) -> Literal["noise", "capacity", "steps"]:
        """What a nearer twin would take: more budget; larger cliques, as no clique holds what is missed; or more steps.

        The latter two as the larger part of the distances in `missed` says, where there are any.
        """
        missed, held = self.missed, [{*clique} for clique in self.model.cliques]
        if not missed:
            return "noise"
        within = sum(far for columns, far in missed.items() if any({*columns} <= clique for clique in held))
        return "steps" if 2 * within > sum(missed.values()) else "capacity"

    @checked
    def sample_synthetic(self, num_records: int | None = None, *, rng_key: jax.Array) -> pd.DataFrame:
        """A synthetic table in the schema's own types; N of the plan by default.

        Post-processing: as many tables as you like cost no further privacy.
        """
        num_records, rng = self._asked(num_records), compat.numpy_generator(rng_key)
        return self._drawn(num_records, rng)

    @checked
    def synthetic_blocks(
        self, num_records: int | None = None, *, rng_key: jax.Array, rows: int | None = None
    ) -> Iterator[pd.DataFrame]:
        """The records of a synthetic table, up to `rows` at a time, in one block's memory.

        By default 524,288, and fewer from 32 columns on, so that a block has 16 million values.

        Draws are stratified within each block. A table of up to `rows` records is `sample_synthetic`'s with the same
        key; where nothing is raked, counts of a longer one are off the model's by a record in each block at most.

        :raises ArgumentError: a number is below 1.
        """
        rows = min(ROWS_DRAWN, max(1, _VALUES_DRAWN // len(self.columns))) if rows is None else rows
        if rows < 1:
            raise ArgumentError(f"rows={rows}; give 1 or more")
        num_records, rng = self._asked(num_records), compat.numpy_generator(rng_key)
        return (self._drawn(block.stop - block.start, rng) for block in slices(num_records, rows))

    @checked
    def write_synthetic(self, path: str | Path, num_records: int | None = None, *, rng_key: jax.Array) -> None:
        """Write a synthetic table of any length as CSV or Parquet, as the name says, block by block.

        :raises ArgumentError: the name ends in neither, or there is no such folder; or as `synthetic_blocks`.
        """
        blocks = self.synthetic_blocks(num_records, rng_key=rng_key)
        write_in_blocks(Path(path), blocks)

    def _asked(self, num_records: int | None) -> int:
        num_records = self.plan.num_records if num_records is None else num_records
        if num_records < 1:
            raise ArgumentError(f"num_records={num_records}; give 1 or more")
        return num_records

    def _drawn(self, num_records: int, rng: np.random.Generator) -> pd.DataFrame:
        known = self.schema.kept_by_twins
        return drawn_within(lambda _: self._drawn_freely(num_records, rng), known, self.schema.columns)

    def _drawn_freely(self, num_records: int, rng: np.random.Generator) -> pd.DataFrame:
        return decode_table(self.schema, self.encoded_records(num_records, rng), rng)

    def encoded_records(self, num_records: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Records as models see them, whatever the schema's constraints are."""
        raked = self._raking.tilts
        cells = draw_cells(self.model, num_records, rng, lambda name, *_: raked.get(name, ()))
        arrays: dict[str, np.ndarray] = {}
        for column in self.columns:
            weights = self.fine.get(column.name)
            weights = None if weights is None else np.maximum(weights, 0.0)
            arrays |= column.values(cells[column.name], rng, weights)
        return arrays

    def save(self, folder: str | Path) -> None:
        """Write the field to ``folder/field.npz``: arrays and JSON, no pickles; `load` reads it.

        :raises ArgumentError: there is no such folder.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ArgumentError(f"there is no folder {str(folder)!r}; create it first")
        words, arrays = held_words(self.marginals)
        model, cliques = pack_model(self.model)
        words |= {"model": model}  # without `seconds`: how long parties took follows from their records
        save_arrays(folder / FIELD, {**arrays, **cliques}, words)

    @classmethod
    def load(cls, folder: str | Path) -> MarkovTwin:
        """The field that `save` wrote, equal to it but for the engine's own form of the model.

        Needs no engine: `model.marginal` is computed from the model's tables.

        :raises ArgumentError: the folder holds no field, the field's plan was changed since or is not that of the
            folder's privacy record, or tables do not fit the schema.
        """
        path = Path(folder) / FIELD
        if not path.exists():
            raise ArgumentError(f"{str(folder)!r} holds no {FIELD}, the file that MarkovTwin.save writes")
        words, arrays = load_arrays(path)
        with named(FIELD):
            released = held_release(words, arrays, Path(folder) / PRIVACY_RECORD)
            model = unpack_model(words["model"], arrays, released.columns)
            return cls.of(released, model, {})

    def __repr__(self) -> str:
        """Shows public facts."""
        size = sum(table.size for table in self.model.tables)
        return f"MarkovTwin({len(self.columns)} columns, {len(self.model.cliques)} cliques, {size} cells)"
