"""A fitted field: sampling, storing, loading.

Records drawn from a Markov random field, clique by clique along its junction tree.

Draws are stratified: among the records that agree on the columns drawn so far, every value comes up as often as its
probability says, up to one record. So tables of the twin are closer to the model's than those of independent draws.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, final

import jax
import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.core.durable_files import load_arrays, save_arrays
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.core.validation import checked
from vertinumpyro.data import Schema, decode_table
from vertinumpyro.data.constraints import drawn_within
from vertinumpyro.data.table import write_in_blocks
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.field import GraphicalModel
from vertinumpyro.mrf.marginals import Marginals, held_release, held_words, named, pack_model, unpack_model
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.raking import CLEARLY, Raking, Tilt, population_size
from vertinumpyro.mrf.table_selection import merged
from vertinumpyro.session import PRIVACY_RECORD

Tilts = Callable[[str, np.ndarray, np.ndarray, Mapping[str, np.ndarray]], Sequence[Tilt]]
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
    :param tilts: what columns' weights are multiplied by; see `raking`.
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
            factors = [(tilt.factors, tilt.rows(drawn)) for tilt in tilts(name, counts, given, drawn)]
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
    order = np.lexsort((rng.random(len(given)), given))
    rows, first, counts = np.unique(given[order], return_index=True, return_counts=True)
    rank = np.arange(len(given)) - np.repeat(first, counts)
    unit = (rank + rng.random(len(given))) / np.repeat(counts, counts)
    if factors:
        units = np.empty(len(given))
        units[order] = unit
        return _tilted(weights, given, units, factors)
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
    """Where each record's number from 0 to 1 falls in its own distribution function."""
    cells = np.empty(len(given), np.int64)
    for block in slices(len(given), max(1, _WEIGHTS_AT_A_TIME // weights.shape[1])):
        own = weights[given[block]]
        for table, rows in factors:
            own = own * table[rows[block]]
        cells[block] = (_cumulative(own)[:, :-1] <= unit[block, None]).sum(axis=1)
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
        size = population_size(tables, sizes, self.plan.num_records)
        draw_cells(self.model, size, np.random.default_rng(0), raking)
        return raking

    @property
    def missed(self) -> dict[tuple[str, ...], float]:
        """The released tables that the twin is off by clearly more than their noise, the worst first.

        Each with its total variation distance, less what noise would give. Post-processing of the tables.
        """
        clear = {columns: gap.distance for columns, gap in self._raking.gaps.items() if gap.remaining > CLEARLY}
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
