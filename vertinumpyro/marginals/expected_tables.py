"""Public points of a column's domain, with weights, from which the mass of every cell of a table is summed up.

The tables that a model expects: the probability of every cell of every released table, as a function of theta.

Given theta and the component z the sites of one party that read no common column are independent, so a table's cell
has probability sum_k pi_k prod_b P(cell of the columns of block b | z = k, theta). A block is a set of a party's
columns that its sites tie together; its cells are summed up over the points of a public grid, exactly for finite
domains and by quadrature for real ones, and normalised over the domain: values outside it cannot be recorded.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.data import OBSERVED_SUFFIX, Column
from vertinumpyro.model import SplitModel
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.enumeration import log_densities, trace_at
from vertinumpyro.mrf.cells import CellColumn

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

    :ivar columns: for each column, the points in model units `[G]`, and its mask where it has one.
    :ivar cells: for each column, the cell of every point `[G]`.
    :ivar fine: for a single binned column, the cell of its finer histogram `[G]`.
    :ivar log_weights: of the points `[G]`; 0 for a value of a finite domain.
    :ivar pattern: which of the columns' masked values are missing at a point, as a number `[G]`.
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

    :param column: the column of the schema.
    :param cells: the same in cells.
    :param coarse: a few points a cell of its tables instead of its finer histogram's, for products of columns.
    :param absent: of a masked column, whether the last point is a missing value.
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
    if cells.ends_apart and not coarse:
        edges = np.unique([0, 1, *edges[1:-1], size - 1, size])
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


_TINY = 1e-30
_MOST_POINTS = 2**16
"""Points of a block's grid; K times as many densities are held at once."""

_FEW_POINTS = 64  # blocks of so many are traced on their own, so that those of many have no company
_MOST_MULTIPLIED = 32  # cells of a block: of more, gathering records' rows takes less than a product with one-hot codes


def tied_columns(split: SplitModel) -> Iterator[tuple[str, set[str], list[str]]]:
    """Each party's columns that its sites tie together given the component, with the party and these sites."""
    structure = split.structure
    for party, sites in structure.party_sites.items():
        groups: list[tuple[set[str], list[str]]] = []
        for site in sites:
            read = {name.removesuffix(OBSERVED_SUFFIX) for name in structure.site_columns[site]}
            joined = [group for group in groups if group[0] & read]
            groups = [group for group in groups if not group[0] & read]
            groups.append((read.union(*(g[0] for g in joined)), [*(s for g in joined for s in g[1]), site]))
        yield from ((party, read, names) for read, names in groups)


@final
@dataclasses.dataclass(frozen=True)
class TableKey:
    """Which table: its columns in their order, in cells, or a single column in the cells of its finer histogram."""

    columns: tuple[str, ...]
    fine: bool = False


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Block:
    """Columns of one party that sites tie together, the sites, and the points to sum over."""

    columns: tuple[str, ...]
    sites: tuple[str, ...]
    grid: Grid


_Feature = tuple[_Block, tuple[str, ...], bool]
"""Cells of some of a block's columns, fine ones or not."""

Sums = tuple[Any, ...]
"""Which points of a block's grid are added up to which cell. The bins follow a release's noise, and so do these: as
arguments of compiled functions they let the same program serve the next release."""


@final
class ModelTables:
    """Probabilities of the cells of tables under a split model.

    :param split: the model.
    :param columns: all columns in cells.
    :param keys: the tables. Cells of values that are missing under a mask have probability 0 unless the model observes
        the mask: the others are given that both are present.
    :raises ModelContractError: a column's tables cannot be computed from the model; names the site and what to do.
    """

    def __init__(self, split: SplitModel, columns: Sequence[CellColumn], keys: Sequence[TableKey]) -> None:
        self._split = split
        self._cells = {column.name: column for column in columns}
        self._blocks = self._made_blocks()
        self._block_of = {name: block for block in self._blocks for name in block.columns}
        self.keys = tuple(keys)
        self.shapes = tuple(self._shape(key) for key in self.keys)
        self._features, self._places = self._layout()
        self._whole = [(block, block.columns, bool(block.grid.fine)) for block in self._blocks]
        self.sums = tuple(self._cells_of_points(*feature) for feature in [*self._features, *self._whole])

    def __call__(self, flat: Float[Array, " theta"], sums: Sums) -> Float[Array, " M"]:
        """Probabilities of all cells, table after table; `sums` is the attribute, traced where this is compiled."""
        values = self._split.constrain(flat)
        weights, masses = jnp.exp(self._split.log_weights(values)), self._masses(values)
        features = zip(self._features, sums[: len(self._features)], strict=True)
        summed = [self._summed(masses[feature[0].columns], feature, cells) for feature, cells in features]
        Q = jnp.concatenate(summed, axis=1)
        found = []
        for places, order in self._places:
            if len(places) == 1:
                values = (weights @ Q)[places[0]]
            elif len(places) == 2:
                values = ((Q * weights[:, None]).T @ Q)[places[0], places[1]]
            else:
                product = weights[:, None] * Q[:, places[0]]
                for place in places[1:]:
                    product = product * Q[:, place]
                values = product.sum(0)
            found.append((values, order))
        together = jnp.concatenate([values for values, _ in found])
        return together[np.argsort(np.concatenate([order for _, order in found]))]

    def masses(self, values: Mapping[str, jax.Array]) -> list[Float[Array, "K G"]]:
        """P(point of its grid | z = k) of every block, at latents on their own supports."""
        found = self._masses(values)
        return [found[block.columns] for block in self._blocks]

    def cells_of_points(self) -> list[Int[np.ndarray, "tables G"]]:
        """For every block, what each point of its grid adds to a record's cell in each table, numbered as there."""
        found = [np.zeros((len(self.keys), len(block.grid)), np.int64) for block in self._blocks]
        start = 0
        for number, (key, shape) in enumerate(zip(self.keys, self.shapes, strict=True)):
            found[0][number] += start
            for axis, name in enumerate(key.columns):
                block = self._blocks.index(self._block_of[name])
                grid = self._blocks[block].grid
                found[block][number] += math.prod(shape[axis + 1 :]) * (grid.fine if key.fine else grid.cells)[name]
            start += math.prod(shape)
        return found

    @property
    def num_blocks(self) -> int:
        """Columns, or groups of those that depend on each other within a component."""
        return len(self._blocks)

    def of_records(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The place of every record among the cells of each block, `[n, blocks]`, for `log_density`.

        :param arrays: encoded records `[n]` with their masks.
        """
        found = []
        for block in self._blocks:
            fine = bool(block.grid.fine)
            codes = [self._cells[name].codes(arrays, fine=fine) for name in block.columns]
            found.append(np.ravel_multi_index(codes, self._shape(TableKey(block.columns, fine))))
        return np.stack(found, axis=1)

    def log_density(
        self, flat: Float[Array, " theta"], places: Int[Array, "n blocks"], sums: Sums
    ) -> Float[Array, " n"]:
        """log P(a record's cells | theta), of records at these places; a masked value that is missing says nothing."""
        values = self._split.constrain(flat)
        log_masses, total = self._log_masses(values, sums), self._split.log_weights(values)
        few = [block for block, of_cells in enumerate(log_masses) if len(of_cells) <= _MOST_MULTIPLIED]
        for block, of_cells in enumerate(log_masses):
            if block not in few:
                total = total + of_cells[places[:, block]]
        if few:
            one_hot = [jax.nn.one_hot(places[:, block], len(log_masses[block])) for block in few]
            of_cells = jnp.concatenate([log_masses[block] for block in few])
            total = total + jnp.dot(jnp.concatenate(one_hot, axis=1), of_cells, precision=jax.lax.Precision.HIGHEST)
        return jax.nn.logsumexp(total, axis=1)

    def _log_masses(self, values: Mapping[str, jax.Array], sums: Sums) -> list[Float[Array, "cells K"]]:
        """log P(cell of a block | z = k), block after block; 0 where the model does not speak of a cell."""
        masses, found = self._masses(values), []
        for feature, cells in zip(self._whole, sums[len(self._features) :], strict=True):
            mass = self._summed(masses[feature[0].columns], feature, cells)
            log_mass = jnp.log(jnp.maximum(mass, _TINY))
            unmodelled = self._masked(feature[0])
            found.append((log_mass if unmodelled is None else jnp.where(unmodelled, 0.0, log_mass)).T)
        return found

    def _masked(self, block: _Block) -> np.ndarray | None:
        """Cells of a block in which a masked value is missing, of which the model does not speak."""
        shape = self._shape(TableKey(block.columns, bool(block.grid.fine)))
        spoken_of = self._split.structure.modelled_masks
        masked = [self._cells[name].missing == "mask" and name not in spoken_of for name in block.columns]
        if not any(masked):
            return None
        cells = np.indices(shape).reshape(len(shape), -1)
        return np.any([cells[i] == shape[i] - 1 for i, is_masked in enumerate(masked) if is_masked], axis=0)

    def cells_of(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The cell of every record in each table, `[n, tables]`, numbered as `__call__` has them.

        :param arrays: encoded records `[n]` with their masks, of simulated records.
        """
        coarse = {name: self._cells[name].codes(arrays) for key in self.keys for name in key.columns}
        found, start = [], 0
        for key, shape in zip(self.keys, self.shapes, strict=True):
            codes = [self._cells[name].codes(arrays, fine=True) if key.fine else coarse[name] for name in key.columns]
            found.append(start + np.ravel_multi_index(codes, shape))
            start += math.prod(shape)
        return np.stack(found, axis=1)

    # -- blocks -----------------------------------------------------------------------------------

    def _made_blocks(self) -> list[_Block]:
        schema, blocks = self._split.schema, []
        for party, read, names in tied_columns(self._split):
            self._check(party, read, names)
            columns = tuple(name for name in schema.columns if name in read)
            blocks.append(_Block(columns=columns, sites=tuple(names), grid=self._grid(columns, names)))
        return blocks

    def _check(self, party: str, columns: set[str], sites: Sequence[str]) -> None:
        structure = self._split.structure
        for name in sorted(columns):
            if name in structure.covariates:
                site = next(s for s in sites if name in structure.site_columns[s])
                raise ModelContractError(
                    f"site '{site}' of party '{party}' reads column '{name}', which the model does not model: a table "
                    f"of '{name}' with others has no probability under it. Observe '{name}' at a site of its own, or "
                    "fit the model by DPVI"
                )
            own = next(
                (s for s in sites if name in structure.site_covariates[s] and structure.is_observed_at(name, s)), None
            )
            if own is not None:
                raise ModelContractError(
                    f"site '{own}' of party '{party}' observes column '{name}', and its distribution or its mask reads "
                    f"'{name}' too: what it gives the column's values are no probabilities, and tables of them cannot "
                    "be computed. Give it a distribution over all of the column's values, as a mixture or a truncated "
                    "one, or fit the model by DPVI"
                )
            at = structure.modelled_columns.get(name)
            if at is None or at.site not in sites:
                raise ModelContractError(
                    f"column '{name}' of party '{party}' is modelled through something computed from it; observe the "
                    "column itself, with numpyro.distributions.TransformedDistribution where a transform is meant, or "
                    "fit the model by DPVI"
                )

    def _grid(self, columns: tuple[str, ...], sites: Sequence[str]) -> Grid:
        schema, masks = self._split.schema, self._split.structure.modelled_masks
        for coarse in (False, True):
            grids = [
                column_grid(schema.columns[name], self._cells[name], coarse=coarse, absent=name in masks)
                for name in columns
            ]
            if math.prod(map(len, grids)) <= _MOST_POINTS or (len(columns) == 1 and coarse):
                return product_grid(grids)
        sizes = ", ".join(f"'{name}' ({len(grid)} points)" for name, grid in zip(columns, grids, strict=True))
        raise ModelContractError(
            f"sites {sorted(sites)} tie the columns {sizes} together: too many combinations to sum over. Let fewer "
            "columns share a site, lower their bins, or fit the model by DPVI"
        )

    # -- layout -----------------------------------------------------------------------------------

    def _shape(self, key: TableKey) -> tuple[int, ...]:
        columns = [self._cells[name] for name in key.columns]
        return tuple(column.num_fine if key.fine else column.num_cells for column in columns)

    def has(self, key: TableKey) -> bool:
        """Whether the model has the table's columns, and points fine enough for it."""
        if any(name not in self._block_of for name in key.columns):
            return False
        return not key.fine or key.columns[0] in self._block_of[key.columns[0]].grid.fine

    def _layout(self) -> tuple[list[_Feature], list[tuple[list[np.ndarray], np.ndarray]]]:
        """Which sums of blocks are needed, and where the factors of every cell stand among them."""
        starts: dict[tuple[tuple[str, ...], bool], int] = {}
        features: list[_Feature] = []
        by_factors: dict[int, list[tuple[list[np.ndarray], np.ndarray]]] = {}
        size, start = 0, 0
        for key, shape in zip(self.keys, self.shapes, strict=True):
            cells = np.indices(shape).reshape(len(shape), -1)
            factors = []
            for block in dict.fromkeys(self._block_of[name] for name in key.columns):
                kept = tuple(name for name in block.columns if name in key.columns)
                if (kept, key.fine) not in starts:
                    starts[kept, key.fine] = size
                    features.append((block, kept, key.fine))
                    size += math.prod(self._shape(TableKey(kept, key.fine)))
                at = [cells[key.columns.index(name)] for name in kept]
                flat = np.ravel_multi_index(at, self._shape(TableKey(kept, key.fine)))
                factors.append(starts[kept, key.fine] + flat)
            order = np.arange(start, start + cells.shape[1])
            by_factors.setdefault(len(factors), []).append((factors, order))
            start += cells.shape[1]
        places = [
            (
                [np.concatenate([f[i] for f, _ in parts]) for i in range(count)],
                np.concatenate([order for _, order in parts]),
            )
            for count, parts in sorted(by_factors.items())
        ]
        return features, places

    # -- numbers ----------------------------------------------------------------------------------

    def _masses(self, values: Mapping[str, jax.Array]) -> dict[tuple[str, ...], Float[Array, "K G"]]:
        """P(point of a block's grid | z = k), by the block's columns; values are the latents' on their own supports."""
        few = [block for block in self._blocks if len(block.grid) <= _FEW_POINTS]
        many = [block for block in self._blocks if len(block.grid) > _FEW_POINTS]
        return {columns: mass for blocks in (few, many) if blocks for columns, mass in self._masses_of(blocks, values)}

    def _masses_of(
        self, blocks: Sequence[_Block], values: Mapping[str, jax.Array]
    ) -> Iterator[tuple[tuple[str, ...], Float[Array, "K G"]]]:
        """Those of some blocks: all their sites in one trace, of as many rows as the largest has points."""
        split, rows = self._split, max(len(block.grid) for block in blocks)
        columns = {name: jnp.asarray(values) for name, values in self._stand_ins(blocks, rows).items()}
        trace = trace_at(split.model, {}, split.structure.component_site, columns, rows, known=values)
        sites = tuple(itertools.chain.from_iterable(block.sites for block in blocks))
        densities = log_densities(trace, sites, split.num_components, rows)
        for block in blocks:
            of_masks = [site for site in block.sites if site in split.structure.modelled_masks.values()]
            of_values = [site for site in block.sites if site not in of_masks]
            log_density = jnp.stack([densities[site] for site in of_values]).sum(0)[:, : len(block.grid)]
            log_mass = log_density + block.grid.log_weights
            if of_masks:
                log_mass = _within_patterns(log_mass, block.grid.pattern)
                log_mass += jnp.stack([densities[site] for site in of_masks]).sum(0)[:, : len(block.grid)]
            yield block.columns, jax.nn.softmax(log_mass, axis=1)

    def _stand_ins(self, blocks: Sequence[_Block], rows: int) -> Mapping[str, np.ndarray]:
        """Every block's points in the first rows of its columns, and the first point in what is left."""
        found = stand_in_columns(self._split.schema, rows)
        for block in blocks:
            for name, points in block.grid.columns.items():
                found[name] = np.concatenate([points, np.repeat(points[:1], rows - len(points))])
        return found

    def _cells_of_points(self, block: _Block, kept: tuple[str, ...], fine: bool) -> np.ndarray | None:
        """The cell of some of its columns that every point of a block's grid is in; None where they are the same."""
        shape = self._shape(TableKey(kept, fine))
        at = [(block.grid.fine if fine else block.grid.cells)[name] for name in kept]
        flat = np.ravel_multi_index(at, shape)
        is_same = len(flat) == math.prod(shape) and (flat == np.arange(len(flat))).all()
        return None if is_same else flat

    def _summed(self, masses: Float[Array, "K G"], feature: _Feature, cells: Any) -> jax.Array:
        """A block's mass in the cells of some of its columns, [K, cells]."""
        if cells is None:
            return masses
        _, kept, fine = feature
        size = math.prod(self._shape(TableKey(kept, fine)))
        return jnp.zeros((len(masses), size), masses.dtype).at[:, cells].add(masses)


def _within_patterns(log_mass: Float[Array, "K G"], pattern: np.ndarray) -> Float[Array, "K G"]:
    """log P(point | which values are missing there): the sites of masks say how likely that is."""
    totals = [jax.nn.logsumexp(log_mass[:, pattern == number], axis=1) for number in range(pattern.max() + 1)]
    return log_mass - jnp.stack(totals, axis=1)[:, pattern]
