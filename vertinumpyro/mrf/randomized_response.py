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
from typing import final

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.mrf.release import count_table

__all__ = ["ResponseDesign", "estimate_pair", "response_pld"]

_MOST_CELLS = 2**16
_GRID_PER_LOSS = 64


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ResponseDesign:
    """The public parameters of randomised response.

    Attributes:
        epsilon_per_column: ε of each column's report, under replace.
        cells: for every party the number of cells of each of its columns.
    """

    epsilon_per_column: float
    cells: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Refuses values outside the documented ranges."""
        object.__setattr__(self, "cells", tuple(tuple(own) for own in self.cells))
        if not 0 < self.epsilon_per_column < 40:
            raise ArgumentError(f"epsilon_per_column must lie in (0, 40), got {self.epsilon_per_column}")
        if any(cells < 1 or cells > _MOST_CELLS for own in self.cells for cells in own):
            raise ArgumentError(f"a column has no cell, or more than {_MOST_CELLS}; bin it")

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

    Args:
        design: of all columns.
        outside: the parties, by position, whose columns may change.
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
    inverse = [_inverse(design, size) for size in sizes]
    table = inverse[0] @ seen @ inverse[1].T
    variance = (inverse[0] ** 2) @ seen @ (inverse[1] ** 2).T - table**2 / max(len(reports[0]), 1)
    free = max((sizes[0] - 1) * (sizes[1] - 1), 1)
    return table, math.sqrt(max(float(variance.mean()), 1e-9) * table.size / free)


def _inverse(design: ResponseDesign, cells: int) -> np.ndarray:
    q = design.other_probability(cells)
    return (np.eye(cells) - q) / (math.exp(design.epsilon_per_column) * q - q)
