"""Labels between model units and the table's own, and how well predictions meet them. Scores read labels: not DP.

A label's codes follow the schema's order of its values. scikit-learn has classes in ascending order, and its scorers
take that for granted (`log_loss` the columns of probabilities, `roc_auc` the second class), so `classes_` are sorted.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import xlogy

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column
from vertinumpyro.data.wording import Place

__all__ = ["class_codes", "classes_of", "d2_poisson", "encoded_labels", "in_table_units", "r2", "values_of"]


def values_of(column: Column) -> np.ndarray:
    """The value of each code of a label, in its storage's type; the codes where one stands for several values."""
    if len(column.labels) != column.num_categories:
        return np.arange(column.num_categories)
    values = column.decode(np.arange(column.num_categories), np.random.default_rng(0)).tolist()
    return np.array(values)


def class_codes(column: Column) -> np.ndarray:
    """The code of each of `classes_of`."""
    return np.argsort(values_of(column), kind="stable")


def classes_of(column: Column) -> np.ndarray:
    """The label's values in ascending order, as scikit-learn has its classes.

    Warns where a class is a group of values, whose number it then is: scorers that hold predictions against the values
    themselves would be wrong without a word.
    """
    if len(column.labels) != column.num_categories:
        warnings.warn(
            "the label's classes are groups of values, and classes_ and predictions their numbers from 0 on: use the "
            "estimator's own score, as scikit-learn's scorers compare predictions with the values themselves",
            UserWarning,
            stacklevel=3,
        )
    return np.sort(values_of(column))


def in_table_units(column: Column, values: np.ndarray) -> np.ndarray:
    """Means of a number in model units as floats in the table's, those of a real within its bounds.

    Between two codes lies what lies between the middles of their values; labels that are no numbers keep their codes.
    """
    values = np.asarray(values, np.float64)
    if column.kind == "count":
        return values
    if column.kind != "real":
        middles = column.middles
        return values if middles is None else np.interp(values, np.arange(len(middles)), middles)
    return column.numbers(values)


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
