"""Small encoded tables that hold every edge of their columns, for contracts that walk all column types."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import VertinumpyroError
from vertinumpyro.data import (
    OBSERVED_SUFFIX,
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    Column,
    CountColumn,
    DateColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
)
from vertinumpyro.data.column import CodedColumn

BASES: Mapping[str, Column] = {
    "real": RealColumn(bounds=(-1, 10)),
    "real_log": RealColumn(bounds=(0, 100), transform="log1p"),
    "bins": BinnedColumn(bounds=(0, 10), bins=3),
    "atoms": BinnedColumn(edges=(0, 0, 1, 10, 10, 60)),
    "integer": IntegerColumn(bounds=(-2, 3)),
    "integer_bins": IntegerColumn(bounds=(0, 40), bins=20),
    "groups": IntegerColumn(edges=(0, 1, 2, 5, 9)),  # two groups of one, and two of several
    "count": CountColumn(upper=9),
    "category": CategoricalColumn(categories=("a", "b", "c")),
    "binary": BinaryColumn(),
    "days": DateColumn(bounds=("2020-01-01", "2020-01-06")),
    "months": DateColumn(bounds=("2020-01-10", "2020-09-01"), unit="month", bins=3),
}
"""Every column type, in its variants."""

COLUMNS: Mapping[str, Column] = {
    f"{name}_{rule}": dataclasses.replace(column, missing=rule)
    for name, column in BASES.items()
    for rule in ("forbid", "mask", "category")
}
"""Each of them under each rule for missing values."""

PARTIES = ("clinic", "insurer")

Table = Mapping[str, Mapping[str, np.ndarray]]
"""Party -> array -> [n]."""


def taken(columns: Mapping[str, Column], take: Any) -> dict[str, Column]:
    """The columns that a method takes.

    :param take: raises one of the library's errors for others.
    """
    return {name: column for name, column in columns.items() if _takes(take, column)}


def _takes(take: Any, column: Column) -> bool:
    try:
        take(column)
    except VertinumpyroError:
        return False
    return True


def dealt(columns: Mapping[str, Column], parties: Sequence[str] = PARTIES) -> Schema:
    """A schema whose columns are dealt out to the parties in turn."""
    dealt_out = {p: list(columns)[i :: len(parties)] for i, p in enumerate(parties)}
    return Schema({p: PartySchema({name: columns[name] for name in names}) for p, names in dealt_out.items()})


def drawn(schema: Schema, num_records: int, seed: int) -> Table:
    """Records with all edges of every column among them, in an order of its own for each; the others are random."""
    rng = np.random.default_rng(seed)
    return {
        party: {k: v for name, column in part.columns.items() for k, v in _column(name, column, num_records, rng)}
        for party, part in schema.parties.items()
    }


def _column(name: str, column: Column, n: int, rng: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    edges = edge_values(column)
    inner = complete(column).decode(complete(column).example(n, rng), rng).tolist()
    values = pd.Series([(edges + inner)[i] for i in rng.permutation(n)])
    encoded = [(name, column.encode(values, party="", name=name))]
    return encoded + [(name + OBSERVED_SUFFIX, column.observed(values))] * column.masked


def complete(column: Column) -> Column:
    """The same column without missing values."""
    return dataclasses.replace(column, missing="forbid")


def edge_values(column: Column) -> list[Any]:
    """The lowest and highest value, the ends of groups and bins, atoms; a missing one where the schema has it."""
    found: list[Any] = list(column.labels) if len(column.labels) < 4 else [column.labels[0], column.labels[-1]]
    if isinstance(column, DateColumn):
        found = [pd.Timestamp(bound) for bound in column.bounds]
    elif isinstance(column, BinnedColumn):
        found = sorted(set(column.bin_edges.tolist()))
    elif isinstance(column, IntegerColumn) and column.edges is not None:
        found = [*column.edges, column.edges[-1] - 1]
    elif not isinstance(column, CodedColumn) and column.limits is not None:
        found = list(column.limits)
    return found + [None] * (column.missing != "forbid")
