"""What noisy tables say about single columns, and how far two columns are from independence.

Every table with a column states its counts, each with its own noise; the inverse-variance mean is what all of them say.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from vertinumpyro.mrf.release import Measurement

__all__ = ["dependence", "one_way", "significance"]


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


def significance(measurement: Measurement, singles: Mapping[str, np.ndarray]) -> float:
    """How far a noisy table is from independence, in standard deviations of what its noise alone would give.

    Args:
        measurement: a table.
        singles: counts of its columns; the expected ones are their product.
    """
    counts = [singles[name] / max(singles[name].sum(), 1.0) for name in measurement.columns]
    expected = functools.reduce(np.multiply.outer, counts) * singles[measurement.columns[0]].sum()
    squares = ((measurement.values - expected) / measurement.stddev) ** 2
    return float((squares - 1).sum()) / math.sqrt(2 * squares.size)


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
