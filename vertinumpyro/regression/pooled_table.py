"""Pooled tables, for research: a DataFrame in the schema's own types stands for the parties' columns of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.data.wording import suggest
from vertinumpyro.privacy import Plan
from vertinumpyro.regression.scikit import BaseEstimator, TransformerMixin
from vertinumpyro.session import Session

__all__ = ["PooledTable", "encoded", "part_of", "schema_of", "told_apart", "with_labels"]


def part_of(schema: Schema, columns: Iterable[str]) -> Schema:
    """The schema of some of its columns; parties without any of them drop out.

    Raises:
        ArgumentError: the schema has no such column.
    """
    wanted = set(columns)
    for name in sorted(wanted - set(schema.columns)):
        raise ArgumentError(f"the schema has no column {name!r}; {suggest(name, schema.columns)}")
    kept = {p: {n: c for n, c in part.columns.items() if n in wanted} for p, part in schema.parties.items()}
    return Schema({party: PartySchema(columns) for party, columns in kept.items() if columns}, schema.id_column)


def schema_of(X: Any, schema: Schema | None) -> Schema:
    """A dataset's or a session's own schema, a DataFrame's from the estimator's settings.

    Raises:
        ArgumentError: it is none of them, or the schema is missing.
    """
    if isinstance(X, VerticalDataset | Session):
        return X.schema
    if isinstance(X, pd.DataFrame) and isinstance(schema, Schema):
        return schema
    raise ArgumentError(
        "X must be a VerticalDataset: build it from the parties' tables. For a pooled pandas DataFrame, in "
        "research, give the constructor schema=, or put a PooledTable in front of this estimator in a Pipeline"
    )


def told_apart(y: Any, plan: Any, kind: type[Plan]) -> tuple[Any, Any]:
    """(labels, plan): a plan may also stand second, `fit(dataset, plan)`.

    Raises:
        ArgumentError: there are two plans.
    """
    if not isinstance(y, kind):
        return y, plan
    if plan is not None:
        raise ArgumentError("plan was given twice: as the second argument and as plan=; leave one out")
    return None, y


def with_labels(X: Any, label: str, y: Any) -> Any:
    """A DataFrame with the labels as its column.

    Raises:
        ArgumentError: there are more or fewer of them.
    """
    labels = np.asarray(y)
    if isinstance(X, pd.DataFrame) and labels.shape != (len(X),):
        raise ArgumentError(f"y has shape {labels.shape}, and X {len(X)} records")
    return X.assign(**{label: labels}) if isinstance(X, pd.DataFrame) else X


def encoded(X: Any, schema: Schema, columns: list[str]) -> VerticalDataset:
    """A DataFrame's named columns in model units; of a dataset all that it has.

    Raises:
        ArgumentError: it is neither, or a column is missing.
    """
    if isinstance(X, VerticalDataset):
        return X
    if not isinstance(X, pd.DataFrame):
        raise ArgumentError("X must be a VerticalDataset, or a pandas DataFrame in the schema's own types")
    missing = [name for name in columns if name not in X]
    if missing:
        raise ArgumentError(f"X lacks column {missing[0]!r}, which the model was fitted with: add it")
    return VerticalDataset.from_pooled(part_of(schema, columns), X)


class PooledTable(TransformerMixin, BaseEstimator):
    """A Pipeline's first step on the pooled side: a DataFrame becomes a `VerticalDataset`. Research only.

    Example: ``Pipeline([("table", PooledTable(schema=schema)), ("model", VerticalLogisticRegression())])``, fitted by
    ``fit(frame, plan)``. For `predict` the frame may lack columns that the model does not use.

    Args:
        schema: the public schema.
    """

    def __init__(self, *, schema: Schema) -> None:
        self.schema = schema

    def fit(self, frame: Any, plan: Any = None) -> PooledTable:
        """Nothing is learned."""
        return self

    def transform(self, frame: pd.DataFrame) -> VerticalDataset:
        """Encode the columns that are there."""
        present = [name for name in self.schema.columns if name in frame]
        return VerticalDataset.from_pooled(part_of(self.schema, present), frame)

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to fit."""
        return True
