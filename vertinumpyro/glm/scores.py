"""Labels between model units and the table's own, and how well predictions meet them. Scores read labels: not DP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import xlogy

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column
from vertinumpyro.data.wording import Place

__all__ = ["d2_poisson", "encoded_labels", "in_table_units", "r2", "values_of"]


def values_of(column: Column) -> np.ndarray:
    """The value of each code of a label with classes; the codes themselves where one stands for several values."""
    labels = column.labels
    return np.array(labels) if len(labels) == column.num_categories else np.arange(column.num_categories)


def in_table_units(column: Column, values: np.ndarray) -> np.ndarray:
    """Means of a number in model units as floats in the table's, those of a real within its bounds."""
    if column.kind != "real":
        return np.asarray(values, np.float64)
    return column.numbers(np.asarray(values, np.float64))


def encoded_labels(column: Column, place: Place, y: Any, num_records: int) -> np.ndarray:
    """Labels `[N]` in the table's own types, in model units.

    Raises:
        ArgumentError: there are more or fewer than records.
        DataError: a label is not in the public domain.
    """
    labels = np.asarray(y)
    if labels.shape != (num_records,):
        raise ArgumentError(f"y has shape {labels.shape}, and X {num_records} records")
    return column.encode(pd.Series(labels), party=place.party, name=place.column)


def r2(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of the squared deviations from the mean that predictions explain."""
    return float(1 - np.sum((truth - predicted) ** 2) / np.sum((truth - truth.mean()) ** 2))


def d2_poisson(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of the Poisson deviance of the mean that predictions explain."""

    def deviance(mean: Any) -> float:
        return float(np.sum(xlogy(truth, truth / mean) - truth + mean))

    return 1 - deviance(predicted) / deviance(truth.mean())
