"""Every column as a few public cells, and the way back: equal-width binning with recovery of values in a bin.

A Markov random field counts cells, so a wide or continuous column is cut into equal cells of its public domain. Its
owner may also release a finer histogram of it (under the plan); then a cell is decoded by drawing from
P(value | cell) as that histogram has it, and uniformly otherwise.

Where numbers have more values than that histogram has cells, the smallest and the largest have one of their own: zero,
and the bound at which larger numbers count, are what many records share, and would be spread over their neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import shown
from vertinumpyro.data import OBSERVED_SUFFIX, Column, Schema
from vertinumpyro.data import binning as bins_of

DEFAULT_MAX_CELLS = 16
_FINE_PER_CELL = 8  # of a real column
_MOST_FINE = 1024


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CellColumn:
    """One column cut into cells. Everything here is public.

    :ivar name: the column.
    :ivar party: who holds it.
    :ivar domain_size: how many values it has in model units; 0 for a real column.
    :ivar num_bins: cells of present values; equal to `domain_size` where nothing is binned.
    :ivar missing: as the values are encoded, "forbid", "mask" or "category"; missing ones have the last cell.
    :ivar ends_apart: whether the smallest and the largest value have a cell each in the finer histogram, its first and
        its last; releases of earlier versions have none.
    """

    name: str
    party: str
    domain_size: int
    num_bins: int
    missing: str
    ends_apart: bool = False

    @property
    def num_cells(self) -> int:
        """Cells of the column, that of missing values included."""
        return self.num_bins + (self.missing != "forbid")

    @property
    def num_fine(self) -> int:
        """Cells of the finer histogram from which a bin's values are recovered; `num_cells` where nothing is binned."""
        return self._num_equal + 2 * self.ends_apart + (self.missing != "forbid")

    @property
    def _num_equal(self) -> int:
        """Of its cells those of equal width."""
        return min(self.domain_size or self.num_bins * _FINE_PER_CELL, max(_MOST_FINE, self.num_bins))

    @property
    def binned(self) -> bool:
        """Whether a cell holds several values."""
        return self.num_fine > self.num_cells

    def codes(self, arrays: Mapping[str, np.ndarray], *, fine: bool = False) -> np.ndarray:
        """Every record's cell, int64 `[N]`. Secret.

        :param arrays: the party's encoded columns, as `VerticalDataset.arrays` gives them.
        :param fine: in the finer histogram instead.
        """
        size = self.num_fine if fine else self.num_cells
        values, present = arrays[self.name], self._present(arrays)
        out, seen = np.full(len(values), size - 1, np.int64), values[present]
        out[present] = self._cut(seen, self._num_equal if fine else self.num_bins)
        if fine and self.ends_apart:
            out[present] = np.select(
                [seen == 0, seen == self.domain_size - 1], [0, self._num_equal + 1], out[present] + 1
            )
        return out

    def _present(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.missing == "mask":
            return arrays[self.name + OBSERVED_SUFFIX].astype(bool)
        if self.missing == "category":
            return arrays[self.name] != self.domain_size
        return np.ones(len(arrays[self.name]), bool)

    def _cut(self, values: np.ndarray, num_bins: int) -> np.ndarray:
        if not self.domain_size:  # as the cells of a real column in `data`
            return np.minimum((values * num_bins).astype(np.int64), num_bins - 1)
        return bins_of.group(values.astype(np.int64), self.domain_size, num_bins)[0]

    def values(
        self, codes: np.ndarray, rng: np.random.Generator, fine_weights: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Encoded values drawn within cells: ``{name: [n]}``, with a mask where the schema has one.

        :param codes: cells `[n]`.
        :param rng: public randomness.
        :param fine_weights: non-negative weights of the finer histogram `[num_fine]`; None draws uniformly.
        """
        present = codes < self.num_bins
        values = np.zeros(len(codes), np.float64 if not self.domain_size else np.int64)
        values[present] = self._draw(codes[present], rng, fine_weights)
        if self.missing == "category":
            values[~present] = self.domain_size
        out = {self.name: values if self.domain_size else np.where(present, values, 0.5)}
        return out | ({self.name + OBSERVED_SUFFIX: present} if self.missing == "mask" else {})

    def _draw(self, cells: np.ndarray, rng: np.random.Generator, fine_weights: np.ndarray | None) -> np.ndarray:
        num_bins = self.num_bins
        if fine_weights is not None and self.binned:
            num_bins = self._num_equal
            owner = bins_of.group(np.arange(num_bins), num_bins, self.num_bins)[0]
            owner = np.pad(owner, int(self.ends_apart), mode="edge")
            cells = _draw_fine(cells, self.num_bins, owner, fine_weights[: len(owner)], rng)
            if self.ends_apart:
                return self._within_ends(cells, rng)
        if not self.domain_size:
            return (cells + rng.random(len(cells))) / num_bins
        starts = bins_of.integer_starts(0, self.domain_size - 1, num_bins)
        return bins_of.draw_integers(starts, self.domain_size - 1, cells, rng)

    def _within_ends(self, cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Values of cells of a finer histogram whose first and last are the ends; of one that has no other, the end."""
        last = self.domain_size - 1
        starts = bins_of.integer_starts(0, last, self._num_equal)
        low = np.concatenate([[0], np.maximum(starts, 1), [last]])
        high = np.concatenate([[0], starts[1:] - 1, [last - 1, last]])
        return rng.integers(low[cells], np.maximum(low, high)[cells] + 1)


def _draw_fine(
    cells: np.ndarray, num_bins: int, owner: np.ndarray, weights: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """A fine cell within each cell, by weight; uniform in a cell whose weights are all zero.

    :param owner: the cell of each fine cell, ascending.
    """
    mass = np.bincount(owner, weights, minlength=num_bins)
    weights = np.where(mass[owner] > 0, weights, 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    first = np.searchsorted(owner, cells, side="left")
    after = np.searchsorted(owner, cells, side="right")
    target = cumulative[first] + rng.random(len(cells)) * (cumulative[after] - cumulative[first])
    return np.clip(np.searchsorted(cumulative, target, side="right") - 1, first, after - 1)


def cell_columns(
    schema: Schema, bins: Mapping[str, int] | None = None, max_cells: int = DEFAULT_MAX_CELLS
) -> tuple[CellColumn, ...]:
    """Every column of the schema cut into cells, in the schema's order.

    Categories stay as they are; reals, counts and integers get at most `max_cells` cells. `bins` sets the number
    for single columns, categories included (neighbours in the schema's order are merged).

    :raises ArgumentError: `bins` names no column of the schema, or a number is below 2.
    """
    if not isinstance(bins, Mapping | None):
        raise ArgumentError(f"bins={shown(bins)} must be a mapping from columns to numbers of cells")
    bins = dict(bins or {})
    unknown = sorted(set(bins) - set(schema.columns))
    if unknown:
        raise ArgumentError(f"bins names {unknown}, which are no columns of the schema: {list(schema.columns)}")
    words = sorted(name for name, count in bins.items() if isinstance(count, bool) or not isinstance(count, int))
    if words:
        raise ArgumentError(f"bins of {words} must be whole numbers")
    small = sorted(name for name, count in bins.items() if count < 2)
    if small or max_cells < 2:
        raise ArgumentError(f"bins of {small or 'max_cells'} must be at least 2")
    return tuple(_cut(name, column, schema.party_of(name), bins, max_cells) for name, column in schema.columns.items())


def _cut(name: str, column: Column, party: str, bins: Mapping[str, int], max_cells: int) -> CellColumn:
    size = column.num_values or 0
    wanted = bins.get(name, max_cells if column.ordered else size)
    num_bins = min(wanted, size) if size else wanted
    return CellColumn(
        name=name,
        party=party,
        domain_size=size,
        num_bins=num_bins,
        missing="mask" if column.masked else column.missing,
        ends_apart=column.ordered and num_bins < size and size > _MOST_FINE,
    )
