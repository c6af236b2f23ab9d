"""Released tables that agree on single columns, and how far two columns are from independence.

Two tables with a column in common state its counts twice, each with its own noise. Averaging what all tables say, by
inverse variance, and spreading the difference evenly over each table is the least-squares answer for one column;
a few sweeps over the columns settle all of them (section 6.2 of the VertiMRF paper, which takes plain means).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from vertinumpyro.mrf.release import Measurement

__all__ = ["consistent", "dependence", "one_way"]

_SWEEPS = 4


def consistent(measurements: Sequence[Measurement], num_records: int, sweeps: int = _SWEEPS) -> list[Measurement]:
    """The same tables with equal one-way marginals, equal totals N, and no negative counts. Post-processing."""
    values = [np.array(m.values) for m in measurements]
    columns = sorted({name for m in measurements for name in m.columns})
    for _ in range(sweeps):
        for name in columns:
            _agree_on(name, measurements, values, num_records)
        values = [_proper(table, num_records) for table in values]
    return [dataclasses.replace(m, values=table) for m, table in zip(measurements, values, strict=True)]


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


def _agree_on(name: str, measurements: Sequence[Measurement], values: list[np.ndarray], num_records: int) -> None:
    mean, _ = _mean_of(name, measurements, values)
    mean = mean + (num_records - mean.sum()) / mean.size
    for i, m in enumerate(measurements):
        if name in m.columns:
            axis = m.columns.index(name)
            off = mean - _onto(values[i], axis)
            shape = [1] * values[i].ndim
            shape[axis] = -1
            values[i] = values[i] + off.reshape(shape) / (values[i].size // off.size)


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
