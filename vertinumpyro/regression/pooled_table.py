"""Pooled tables, for research: a DataFrame in the schema's own types stands for the parties' columns of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.data.wording import suggest
from vertinumpyro.regression.scikit import BaseEstimator, TransformerMixin

__all__ = ["PooledTable", "part_of"]


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
