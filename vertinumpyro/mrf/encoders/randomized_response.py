r"""Generalised randomised response: the VertiMRF paper's frequency-oracle baseline, correctly accounted.

Each party replaces every value of its columns, with probability 1 − p, by one of the k − 1 others:

    p = e^ε / (e^ε + k − 1),   q = 1 / (e^ε + k − 1)   (Eq. 6),

and sends the result to the server. A record that is replaced may change every column, and each costs its own ε: the
losses are composed, not halved. Counts follow by inverting the response on each axis (Theorem 1).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, final

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.encoders.base import Budget, Encoding, Estimator, Observed, Reporting, composed_delta, smallest
from vertinumpyro.mrf.measurements import count_table
from vertinumpyro.privacy import NeighbouringRelation

_MOST_CELLS = 2**16
_GRID_PER_LOSS = 64
_COMPOSITIONS = 2**10


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseDesign(Encoding):
    """The public parameters of randomised response. Its randomness is each party's own, so it holds against parties.

    :ivar epsilon_per_column: ε of each column's report, under replace.
    :ivar cells: for every party the number of cells of each of its columns.
    """

    name: ClassVar[str] = "randomized_response"
    holds_against_parties: ClassVar[bool] = True
    unproven: ClassVar[tuple[str, ...]] = ()

    epsilon_per_column: float
    cells: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        object.__setattr__(self, "cells", tuple(tuple(own) for own in self.cells))
        if not 0 < self.epsilon_per_column < 40:
            raise ArgumentError(f"epsilon_per_column must lie in (0, 40), got {self.epsilon_per_column}")
        if any(cells < 1 or cells > _MOST_CELLS for own in self.cells for cells in own):
            raise ArgumentError(f"a column has no cell, or more than {_MOST_CELLS}; bin it")

    @classmethod
    def calibrated(cls, budget: Budget) -> ResponseDesign:
        """The largest ε of a report that the accountant allows, searched around the Gaussian limit."""
        cells = tuple(tuple(c.num_cells for c in budget.columns if c.party == party) for party in budget.parties)
        rough = math.sqrt(budget.mu_squared / len(budget.columns))

        def design(inverse: float) -> ResponseDesign:
            return cls(epsilon_per_column=1 / inverse, cells=cells)

        low = max(1 / 30, 0.25 / rough)
        return design(smallest(lambda inverse: budget.holds(design(inverse)), low, 8 * max(low, 1 / rough), 1e-3))

    def delta_at(self, epsilon: float, relation: NeighbouringRelation, observed: Observed) -> float:
        """See `Encoding.delta_at`.

        :raises ArgumentError: under add/remove.
        """
        if relation is not NeighbouringRelation.REPLACE:
            raise ArgumentError('relation: the number of responses is N; randomized_response needs "replace"')
        loss, interval = response_pld(self, observed.outside), response_interval(self)
        return composed_delta(loss, observed.mu, epsilon, interval=interval, compositions=_COMPOSITIONS)

    def estimator(self, reporting: Reporting) -> Estimator:
        """One report of every column, then its inverse on each axis."""
        sources = reporting.source.spawn(len(reporting.columns))
        reports = {
            c.name: self.respond(reporting.codes[c.name], c.num_cells, each)
            for c, each in zip(reporting.columns, sources, strict=True)
        }
        return lambda a, b: estimate_pair((reports[a.name], reports[b.name]), (a.num_cells, b.num_cells), self)

    def reported_bytes(self, columns: Sequence[CellColumn], num_records: int) -> dict[str, int]:
        """Two for a response."""
        return {party: 2 * num_records * count for party, count in Counter(c.party for c in columns).items()}

    def secrets(self, owner: str) -> str:
        """See `Encoding.secrets`."""
        return f"{owner} responses' randomness"

    def other_probability(self, num_cells: int) -> float:
        """q."""
        return 1 / (math.exp(self.epsilon_per_column) + num_cells - 1)

    def respond(self, codes: np.ndarray, num_cells: int, source: RandomSource) -> np.ndarray:
        """One column's reports, which the server sees, int64 `[N]`.

        A word below ⌈2^64 (k − 1) q⌉ moves the value by one of the k − 1 steps; rounding is upwards, towards privacy.
        """
        if num_cells == 1:
            return np.zeros_like(codes)
        moving = math.ceil(math.ldexp((num_cells - 1) * self.other_probability(num_cells), 64))
        words = source.uint64(2 * len(codes))
        moved = words[: len(codes)] < np.uint64(min(moving, 2**64 - 1))
        steps = 1 + (words[len(codes) :] >> np.uint64(32)) * np.uint64(num_cells - 1) // np.uint64(2**32)
        return np.where(moved, (codes + steps.astype(np.int64)) % num_cells, codes)


@functools.lru_cache(maxsize=64)
def response_pld(design: ResponseDesign, outside: tuple[int, ...]) -> pld_lib.PrivacyLossDistribution:
    """The privacy loss of one record's reports at some parties, under replace; an upper bound at every ε.

    :param design: of all columns.
    :param outside: the parties, by position, whose columns may change.
    """
    interval = response_interval(design)
    composed = pld_lib.identity(value_discretization_interval=interval)
    counts = Counter(cells for i in outside for cells in design.cells[i] if cells > 1)
    for cells, count in counts.items():
        composed = composed.compose(_one_column(design, cells, interval).self_compose(count))
    return composed


def response_interval(design: ResponseDesign) -> float:
    """The grid of losses."""
    return min(1e-2, design.epsilon_per_column / _GRID_PER_LOSS)


@functools.lru_cache(maxsize=256)
def _one_column(design: ResponseDesign, cells: int, interval: float) -> pld_lib.PrivacyLossDistribution:
    # steps are drawn with 32 bits, so an other value's probability is within (k − 1) 2^-32 of q, relatively
    loss = design.epsilon_per_column + 2 * cells * 2.0**-32
    noise = cells / (math.exp(loss) + cells - 1)
    return pld_lib.from_randomized_response(noise, cells, value_discretization_interval=interval)


def estimate_pair(
    reports: Sequence[np.ndarray], sizes: tuple[int, int], design: ResponseDesign
) -> tuple[np.ndarray, float]:
    """The unbiased contingency table of two columns, and the standard deviation of its noise. Post-processing.

    Nearly all noise of such a table is in its interactions, which have (k_a − 1)(k_b − 1) degrees of freedom instead
    of k_a k_b; the standard deviation is that of independent noise with interactions as large.
    """
    seen = count_table(reports, sizes).astype(np.float64)
    table = _inverted(_inverted(seen, 0, design), 1, design)
    squares = _inverted(_inverted(seen, 0, design, squared=True), 1, design, squared=True)
    variance = squares - table**2 / max(len(reports[0]), 1)
    free = max((sizes[0] - 1) * (sizes[1] - 1), 1)
    return table, math.sqrt(max(float(variance.mean()), 1e-9) * table.size / free)


def _inverted(table: np.ndarray, axis: int, design: ResponseDesign, *, squared: bool = False) -> np.ndarray:
    """(I − qJ) / (p − q) along an axis, J all ones; or its entries' squares. No matrix of cells by cells is made."""
    q = design.other_probability(table.shape[axis])
    scale, total = math.expm1(design.epsilon_per_column) * q, table.sum(axis=axis, keepdims=True)
    if squared:
        return ((1 - 2 * q) * table + q**2 * total) / scale**2
    return (table - q * total) / scale
