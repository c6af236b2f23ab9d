"""Public points of a column's domain, with weights, from which the mass of every cell of a table is summed up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from vertinumpyro.data import OBSERVED_SUFFIX, Column
from vertinumpyro.mrf.cells import CellColumn

__all__ = ["Grid", "column_grid", "product_grid"]

_MOST_VALUES = 2048
"""A finite domain is summed up value by value up to this size, beyond it by a value for each fine cell."""

_INNER, _OUTER, _POWER = 3, 8, 4
"""Gauss-Legendre nodes of a real column's inner cells and of the two at its ends, where densities may be infinite:
there x = w t^4, after which x^(a-1) is bounded for a >= 1/4."""


_OPEN = (2.0**-23, 1 - 2.0**-23)
"""As near to the ends of the unit interval as single precision comes from both sides."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """Points of one column's domain, or of several columns' product.

    Attributes:
        columns: for each column, the points in model units `[G]`, and its mask where it has one.
        cells: for each column, the cell of every point `[G]`.
        fine: for a single binned column, the cell of its finer histogram `[G]`.
        log_weights: of the points `[G]`; 0 for a value of a finite domain.
        pattern: which of the columns' masked values are missing at a point, as a number `[G]`.
    """

    columns: Mapping[str, np.ndarray]
    cells: Mapping[str, np.ndarray]
    fine: Mapping[str, np.ndarray]
    log_weights: np.ndarray
    pattern: np.ndarray

    def __len__(self) -> int:
        """How many points there are."""
        return len(self.log_weights)


def column_grid(column: Column, cells: CellColumn, *, coarse: bool = False, absent: bool = False) -> Grid:
    """The grid of one column.

    Args:
        column: the column of the schema.
        cells: the same in cells.
        coarse: a few points a cell of its tables instead of its finer histogram's, for products of columns.
        absent: of a masked column, whether the last point is a missing value.
    """
    if not cells.domain_size:
        points, weights = _unit_interval(cells.num_bins if coarse else cells.num_fine - (cells.missing != "forbid"))
    else:
        points, weights = _integers(cells, coarse)
    if absent:
        points, weights = np.append(points, column.placeholder()), np.append(weights, 1.0)
    elif cells.missing == "category":
        points, weights = np.append(points, cells.domain_size), np.append(weights, 1.0)
    dtype = column.example(1, np.random.default_rng(0)).dtype
    columns = {cells.name: (points if cells.domain_size else np.clip(points, *_OPEN)).astype(dtype)}
    missing = np.arange(len(points)) >= len(points) - absent
    if cells.missing == "mask":
        columns[cells.name + OBSERVED_SUFFIX] = ~missing
    raw = {**columns, cells.name: points}
    fine = {} if coarse or not cells.binned else {cells.name: cells.codes(raw, fine=True)}
    return Grid(
        columns=columns,
        cells={cells.name: cells.codes(raw)},
        fine=fine,
        log_weights=np.log(weights),
        pattern=missing.astype(np.int64),
    )


def _integers(cells: CellColumn, coarse: bool) -> tuple[np.ndarray, np.ndarray]:
    size = cells.domain_size
    if size <= _MOST_VALUES and not coarse:
        return np.arange(size), np.ones(size)
    bins = min(size, 4 * cells.num_bins if coarse else _MOST_VALUES)
    edges = np.floor(np.linspace(0, size, bins + 1)).astype(np.int64)
    return (edges[:-1] + edges[1:] - 1) // 2, np.diff(edges).astype(float)


def _unit_interval(num_cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on (0, 1), cell by cell."""
    inner, weight = np.polynomial.legendre.leggauss(_INNER)
    outer, outer_weight = np.polynomial.legendre.leggauss(_OUTER)
    t = (outer + 1) / 2
    end, end_weight = t**_POWER / num_cells, outer_weight / 2 * _POWER * t ** (_POWER - 1) / num_cells
    starts = np.arange(1, num_cells - 1)[:, None] / num_cells
    middle = (starts + (inner + 1) / 2 / num_cells).ravel()
    middle_weight = np.tile(weight / 2 / num_cells, max(num_cells - 2, 0))
    return np.concatenate([end, middle, 1 - end[::-1]]), np.concatenate([end_weight, middle_weight, end_weight[::-1]])


def product_grid(grids: Sequence[Grid]) -> Grid:
    """Every combination of the points of several columns."""
    if len(grids) == 1:
        return grids[0]
    places = np.meshgrid(*(np.arange(len(grid)) for grid in grids), indexing="ij")
    columns, cells, log_weights, pattern = {}, {}, 0.0, 0
    for grid, place in zip(grids, places, strict=True):
        at = place.ravel()
        columns |= {name: values[at] for name, values in grid.columns.items()}
        cells |= {name: values[at] for name, values in grid.cells.items()}
        log_weights = log_weights + grid.log_weights[at]
        pattern = 2 * pattern + grid.pattern[at]
    return Grid(columns=columns, cells=cells, fine={}, log_weights=np.asarray(log_weights), pattern=np.asarray(pattern))
