"""Tables of four records at two parties, of which one takes every value of a small domain."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from vertinumpyro.data import BinaryColumn, CategoricalColumn, Column, IntegerColumn, PartySchema, RealColumn, Schema
from vertinumpyro.privacy import NeighbouringRelation

NUM_RECORDS, DELTA = 4, 0.01
PARTIES = ("clinic", "insurer")
REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE
PLACES = (0, NUM_RECORDS - 1)

UNIT = RealColumn(bounds=(0, 1))
GROUPS = IntegerColumn(edges=(0, 1, 2, 5))  # {0}, {1} and 2 to 5
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "clinic": {"age": UNIT, "smoker": BinaryColumn()},
    "insurer": {"cost": GROUPS, "plan": CategoricalColumn(categories=("a", "b", "c"))},
}
SCHEMA = Schema({party: PartySchema(columns) for party, columns in COLUMNS.items()})
NUMBERS = Schema({"table": PartySchema({"age": UNIT, "smoker": BinaryColumn(), "cost": GROUPS, "late": UNIT})})

Record = tuple[float, ...]
Table = Mapping[str, Mapping[str, np.ndarray]]


def domain(schema: Schema, quick: bool) -> list[Record]:
    """Every joint value of the columns' values; of a real its extremes and one between."""
    return list(itertools.product(*(_values(column, quick) for column in schema.columns.values())))


def _values(column: Column, quick: bool) -> list[float]:
    low, high = column.encoded_range
    if column.kind == "real":
        return [low, high] if quick else [low, 0.3, high]
    return [float(code) for code in range(int(high) + 1)]


def table_of(schema: Schema, records: Sequence[Record]) -> Table:
    rows, columns = np.array(records), list(schema.columns)
    return {
        party: {
            name: rows[:, columns.index(name)].astype(column.placeholder().dtype)
            for name, column in part.columns.items()
        }
        for party, part in schema.parties.items()
    }


def beside(values: Sequence[Record]) -> list[Record]:
    """The other records: the first ones of the domain in an order that mixes them."""
    return [values[i] for i in np.random.default_rng(1).permutation(len(values))[: NUM_RECORDS - 1]]


def replaced(values: Sequence[Record], place: int, *, absent: bool) -> list[list[Record]]:
    """The table with each value at a place; last without a record there, where one is asked for."""
    others = beside(values)
    tables = [[*others[:place], value, *others[place:]] for value in values]
    return [*tables, others] if absent else tables


def held_of(values: Sequence[Record]) -> dict[str, list[Record]]:
    return {"clinic": [value[:2] for value in values], "insurer": [value[2:] for value in values]}
