"""Pooled tables, for research: a table in the schema's own types stands for the parties' columns of its rows. Labels
between model units and the table's own, and scores of predictions, which read labels and are not DP.

A label's codes follow the schema's order of its values. scikit-learn has classes in ascending order, and its scorers
take that for granted (`log_loss` the columns of probabilities, `roc_auc` the second class), so `classes_` are sorted.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.special import xlogy

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import shown
from vertinumpyro.data import Column, DatasetInfo, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.data.table import Table, as_frame
from vertinumpyro.privacy import Plan
from vertinumpyro.regression.sklearn_compat import BaseEstimator, TransformerMixin
from vertinumpyro.session import Session


def values_of(column: Column) -> np.ndarray:
    """The value of each code of a label, in its storage's type; the codes where one stands for several values."""
    if len(column.labels) != column.num_categories:
        return np.arange(column.num_categories)
    values = column.decode(np.arange(column.num_categories), np.random.default_rng(0)).tolist()
    return np.array(values)


def value_texts(column: Column) -> list[str]:
    """A text for each code of a column, of a bin its lower edge; the codes where two would be the same text."""
    texts = [*column.cell_texts(column.num_categories), "missing"][: column.num_categories]
    return texts if len(set(texts)) == len(texts) else [str(code) for code in range(column.num_categories)]


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

    :raises ArgumentError: there are more or fewer than records.
    :raises DataError: a label is not in the public domain.
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


def concordance(risk: np.ndarray, event: np.ndarray, time: np.ndarray, entry: np.ndarray | None = None) -> float:
    """Harrell's C: of two people at risk when one of them has an event, how often that one has the larger risk.

    Equal risks count half; 1/2 where no two can be compared.
    """
    entry = np.full(len(time), -np.inf) if entry is None else entry
    at_risk, entered, found, pairs = [], set(), 0.0, 0
    latest = np.argsort(-time, kind="stable")
    by_entry, out, added = np.argsort(-entry, kind="stable"), 0, 0
    for person in latest[event[latest] == 1]:
        while added < len(latest) and time[latest[added]] > time[person]:
            bisect.insort(at_risk, risk[latest[added]])
            entered.add(latest[added])
            added += 1
        while out < len(by_entry) and entry[by_entry[out]] >= time[person]:
            if by_entry[out] in entered:
                del at_risk[bisect.bisect_left(at_risk, risk[by_entry[out]])]
            out += 1
        below, above = bisect.bisect_left(at_risk, risk[person]), bisect.bisect_right(at_risk, risk[person])
        found, pairs = found + (below + above) / 2, pairs + len(at_risk)
    return found / pairs if pairs else 0.5


Records: TypeAlias = VerticalDataset | Table | np.ndarray
"""Of predictions: a dataset, a table of any library, or an array whose columns `features=` names in order."""


def part_of(schema: Schema, columns: Iterable[str]) -> Schema:
    """The schema of some of its columns; parties without any of them drop out.

    :raises ArgumentError: the schema has no such column.
    """
    wanted = set(columns)
    for name in sorted(wanted - set(schema.columns)):
        raise ArgumentError(f"the schema has no column {name!r}; {suggest(name, schema.columns)}")
    kept = {p: {n: c for n, c in part.columns.items() if n in wanted} for p, part in schema.parties.items()}
    return Schema({party: PartySchema(columns) for party, columns in kept.items() if columns}, schema.id_column)


def schema_of(X: Any, schema: Schema | None) -> Schema:
    """A dataset's or a session's own schema, a table's from the estimator's settings.

    :raises ArgumentError: the schema is missing.
    """
    if isinstance(X, VerticalDataset | Session):
        return X.schema
    if isinstance(schema, Schema):
        return schema
    raise ArgumentError(
        "schema: a pooled table does not say its columns' public domains; in research, give the constructor schema=, "
        "or put a PooledTable in front of this estimator in a Pipeline. Parties' own tables make a VerticalDataset"
    )


def as_records(X: Any, features: Iterable[str] | None = None) -> Any:
    """A dataset and a session as they are, a table of any library as a DataFrame; an array is named by `features`.

    :raises ArgumentError: it is none of them, or an array without names; the message says what to give.
    """
    if isinstance(X, VerticalDataset | Session | pd.DataFrame):
        return X
    if isinstance(X, np.ndarray):
        return _named(X, features)
    if isinstance(X, Mapping) and any(hasattr(table, "columns") for table in X.values()):
        raise ArgumentError("X is a table for each party: make it one, by VerticalDataset.from_frames(schema, X)")
    return as_frame(X, "X")


def _named(X: np.ndarray, features: Any) -> pd.DataFrame:
    if not isinstance(features, list | tuple):
        raise ArgumentError(
            "X: a NumPy array has no column names; pass a DataFrame, or list the array's columns in order in the "
            "constructor's features=[...]. scikit-learn's transformers make DataFrames after "
            "set_output(transform='pandas'); features need no scaler, as the schema's bounds scale them"
        )
    if X.ndim != 2 or X.shape[1] != len(features):
        raise ArgumentError(f"X has shape {X.shape}, and features= names {len(features)} columns; give one for each")
    return pd.DataFrame(X, columns=list(features)).infer_objects()


def facts_of(data: Any, schema: Schema | None, num_records: int | None, own: Schema | None) -> DatasetInfo:
    """What a plan is made from: a dataset's or a session's own facts, a schema's with N; `own` is the estimator's.

    :raises ArgumentError: names what is missing or said twice.
    """
    if data is not None and schema is not None:
        raise ArgumentError("schema: data has one; leave one of the two out")
    data = schema if data is None else data
    if isinstance(data, DatasetInfo):
        if num_records not in (None, data.num_records):
            raise ArgumentError(f"num_records={num_records}, and data has {data.num_records}; leave it out")
        return data
    found = own if data is None else data
    if not isinstance(found, Schema):
        raise ArgumentError(
            f"schema={shown(found)} is none to make a plan with; give a schema or a dataset, or the constructor schema="
        )
    if num_records is None:
        raise ArgumentError("num_records: a schema does not say how many records there are; give their number")
    return TableFacts(found, num_records)


def label_of(y: Any, label: str | None) -> tuple[str | None, Any]:
    """(label, y) of a fit: a text in y's place is the label's name, and where none is known a Series has one.

    :raises ArgumentError: two labels are named.
    """
    if not isinstance(y, str):
        return (getattr(y, "name", None) if label is None else label), y
    if label not in (None, y):
        raise ArgumentError(f"y: names the label {y!r}, and the constructor {label!r}; leave one out")
    return y, None


def told_apart(y: Any, plan: Any, kind: type[Plan]) -> tuple[Any, Any]:
    """(labels, plan): a plan may also stand second, `fit(dataset, plan)`.

    :raises ArgumentError: there are two plans.
    """
    if not isinstance(y, kind):
        return y, plan
    if plan is not None:
        raise ArgumentError("plan was given twice: as the second argument and as plan=; leave one out")
    return None, y


def refuse_weights(sample_weight: Any) -> None:
    """Refuses weights of single records.

    :raises ArgumentError: says why, and what to do.
    """
    if sample_weight is not None:
        raise ArgumentError(
            "sample_weight: a record counts once here. The noise is for that, and what a weight multiplies lies at "
            "several parties, of which none may know another's weights. Leave it out: exposure= of VerticalGLM takes "
            "unequal times of observation, further features what the weights depend on, and BayesianLinearRegression "
            "weights from 0 to 1 of whole records"
        )


def weights_within(sample_weight: Any, num_records: int) -> np.ndarray:
    """Weights `[N]` from 0 to 1; ones where there are none.

    :raises ArgumentError: there are more or fewer than records, one lies outside, or all are 0.
    """
    if sample_weight is None:
        return np.ones(num_records)
    weights = np.asarray(sample_weight, np.float64)
    if weights.shape != (num_records,):
        raise ArgumentError(f"sample_weight has shape {weights.shape}, and X {num_records} records")
    if not ((weights >= 0) & (weights <= 1)).all() or not weights.any():
        raise ArgumentError(
            "sample_weight: they must lie from 0 to 1, and not all be zero, as the noise is for records that count "
            "once; divide them by a public upper bound"
        )
    return weights


def with_labels(X: Any, label: str, y: Any) -> Any:
    """A DataFrame with the labels as its column.

    :raises ArgumentError: there are more or fewer of them.
    """
    labels = np.asarray(y)
    if labels.shape != (len(X),):
        raise ArgumentError(f"y has shape {labels.shape}, and X {len(X)} records")
    return X.assign(**{label: labels})


def encoded(X: Any, schema: Schema, columns: list[str], features: Iterable[str] | None = None) -> VerticalDataset:
    """A table's named columns in model units; of a dataset all that it has.

    :raises ArgumentError: it is neither, or a column is missing.
    """
    X = as_records(X, features)
    if isinstance(X, VerticalDataset):
        return X
    if isinstance(X, Session):
        raise ArgumentError("X: a session's records stay at their parties; give a VerticalDataset or a table")
    missing = [name for name in columns if name not in X]
    if missing:
        raise ArgumentError(f"X lacks column {missing[0]!r}, which the model was fitted with: add it")
    return VerticalDataset.from_pooled(part_of(schema, columns), X)


class PooledTable(TransformerMixin, BaseEstimator):
    """A Pipeline's first step on the pooled side: a DataFrame becomes a `VerticalDataset`. Research only.

    Example: ``Pipeline([("table", PooledTable(schema=schema)), ("model", VerticalLogisticRegression())])``, fitted by
    ``fit(frame, plan)``. For `predict` the frame may lack columns that the model does not use.

    :param schema: the public schema.
    """

    def __init__(self, *, schema: Schema) -> None:
        self.schema = schema

    def fit(self, frame: Any, plan: Any = None) -> PooledTable:
        """Nothing is learned."""
        return self

    def transform(self, frame: Table) -> VerticalDataset:
        """Encode the columns that are there, of a table of any library."""
        frame = as_frame(frame, "X")
        present = [name for name in self.schema.columns if name in frame]
        return VerticalDataset.from_pooled(part_of(self.schema, present), frame)

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to fit."""
        return True
