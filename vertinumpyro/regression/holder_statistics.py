"""Bayesian linear regression at one holder of whole records: its part of the two sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import Column, Schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.privacy import draw_noise_share
from vertinumpyro.regression.bayesian_linear_plan import BayesianLinearPlan
from vertinumpyro.regression.statistics_release import encode, scaled, statistic_vectors
from vertinumpyro.session import Multiply, PartyComputation, ReleaseRequest, Sum

_ROWS = 2**14


def feature_columns(schema: Schema, target: str | None) -> list[str]:
    """The features of a table of whole records, in the schema's order: all its columns but the target.

    :raises ArgumentError: there is no such target, or no feature.
    :raises DataError: a column is no number, or may be missing.
    """
    if target is None:
        raise ArgumentError("target: name the column that is to be predicted")
    if target not in schema.columns:
        raise ArgumentError(f"target: no column {target!r}; {suggest(target, schema.columns)}")
    for party, part in schema.parties.items():
        for name, column in part.columns.items():
            if column.missing != "forbid":
                Place(party, name).fail('may be missing; fill it, and set missing = "forbid"')
            if _largest(column) is None:
                Place(party, name).fail("has labels and no numbers; write a column of 0 and 1 for each of them")
    features = [name for name in schema.columns if name != target]
    if not features:
        raise ArgumentError(f"the schema has no column besides the target {target!r}: add one")
    return features


def schema_bounds(schema: Schema, names: list[str]) -> np.ndarray:
    """The largest absolute value that each column may have, public."""
    return np.array([_largest(schema.columns[name]) for name in names], np.float64)


def _largest(column: Column) -> float | None:
    if column.kind == "binary":
        return 1.0
    return None if column.limits is None else float(np.abs(column.limits).max())


@final
class StatisticsWork(PartyComputation):
    """A holder's part of `plan.releases`: sums over its records, and its share of the noise.

    :param target: the column that is predicted.
    :param columns: its encoded columns. Secret.
    """

    def __init__(
        self,
        plan: BayesianLinearPlan,
        schema: Schema,
        target: str,
        columns: Mapping[str, np.ndarray],
        source: RandomSource,
    ) -> None:
        self._plan, self._source = plan, source
        names = [*feature_columns(schema, target), target]
        self._table = np.column_stack([schema.columns[name].numbers(columns[name]) for name in names])

    def check(self, request: ReleaseRequest) -> None:
        """Refuses what is not the plan's release at that step, and bounds that are none."""
        names = ["statistics"] if self._plan.moments is None else ["moments", "statistics"]
        if request not in [Sum(step, name, request.fields) for step, name in enumerate(names)]:
            raise request.refused()
        bounds = np.asarray(request.fields["bounds"], np.float64)
        if bounds.shape != (self._table.shape[1],) or not (np.isfinite(bounds) & (bounds > 0)).all():
            raise ArgumentError(f"bounds must be {self._table.shape[1]} positive numbers; nothing was done")

    def summand(self, request: Sum) -> np.ndarray:
        """See `PartyComputation.summand`: a record's vector lies in [-1, 1]^D and depends on it alone."""
        bounds = np.asarray(request.fields["bounds"], np.float64)
        of_records = statistic_vectors if request.name == "statistics" else np.square
        total = np.zeros(self._release(request.name).num_values, np.int64)
        for start in range(0, len(self._table), _ROWS):
            total += encode(of_records(scaled(self._table[start : start + _ROWS], bounds))).sum(axis=0)
        return total

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """See `PartyComputation.noise`."""
        return draw_noise_share(self._release(request.name).share_variance, size, self._source)

    def _release(self, name: str) -> Any:
        return self._plan.statistics if name == "statistics" else self._plan.moments

    def __repr__(self) -> str:
        """Nothing secret."""
        return "StatisticsWork()"
