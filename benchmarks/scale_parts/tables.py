"""Two parties' tables of any length, made block by block: a record's values follow from its number alone."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    Column,
    CountColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Rows,
    Schema,
    Take,
)
from vertinumpyro.data.row_rules import Rule

__all__ = ["LABEL", "PARTIES", "ROWS_SCHEMA", "paths_of", "schema_of", "write_rows", "write_tables"]

PARTIES = ("clinic", "insurer")
LABEL = "clinic_00"
ROWS = 2**17
_KINDS = 5  # of records; every column hangs together with the kind
_STRIDE = 2_654_435_761  # a prime: it walks through all records in another order
_SEED = np.uint64(16)


def schema_of(num_columns: int) -> Schema:
    """Half of the columns each: two values, text categories, an integer and reals, over and over."""
    return Schema(
        {party: PartySchema({f"{party}_{i:02d}": _column(i) for i in range(num_columns // 2)}) for party in PARTIES}
    )


def _column(i: int) -> Column:
    return (
        BinaryColumn(),
        CategoricalColumn(categories=tuple(f"kind {k}" for k in range(5))),
        RealColumn(bounds=(0.0, 100.0)),
        IntegerColumn(bounds=(0, 60)),
        RealColumn(bounds=(-1.0, 1.0)),
        CategoricalColumn(categories=tuple(f"region {k:02d}" for k in range(12))),
        RealColumn(bounds=(0.0, 1.0)),
        BinaryColumn(missing="category"),
    )[i % 8]


def paths_of(folder: Path) -> dict[str, Path]:
    """Each party's file."""
    return {party: folder / f"{party}.parquet" for party in PARTIES}


def write_tables(folder: Path, num_records: int, num_columns: int) -> Schema:
    """Write both parties' files, each in an order of records of its own, and return their schema."""
    schema = schema_of(num_columns)
    for place, (party, path) in enumerate(paths_of(folder).items()):
        columns = schema.parties[party].columns
        writer: pq.ParquetWriter | None = None
        for start in range(0, num_records, ROWS):
            rows = np.arange(start, min(start + ROWS, num_records), dtype=np.int64)
            ids = _walk(rows, num_records) if place else rows
            block = pa.table({schema.id_column: ids} | {name: _values(ids, name, c) for name, c in columns.items()})
            writer = writer or pq.ParquetWriter(path, block.schema)
            writer.write_table(block)
        assert writer is not None
        writer.close()
    return schema


def _walk(rows: np.ndarray, num_records: int) -> np.ndarray:
    stride = next(s for s in range(_STRIDE, _STRIDE + num_records) if math.gcd(s, num_records) == 1)
    return rows * (stride % num_records) % num_records


def _values(ids: np.ndarray, name: str, column: Column) -> pa.Array:
    """A column of some records: by the record's kind in seven cases of ten."""
    kind = (_uniform(ids, "kind") * _KINDS).astype(np.int64)
    follows = _uniform(ids, name + " follows") < 0.7
    centre = _uniform(np.arange(_KINDS), name + " centre")[kind]
    unit = np.where(follows, (centre + 0.2 * _uniform(ids, name)) % 1.0, _uniform(ids, name + " else"))
    if column.num_values is None:
        assert column.limits is not None
        low, high = column.limits
        return pa.array(low + (high - low) * unit)
    codes = np.minimum((unit * column.num_values).astype(np.int64), column.num_values - 1)
    missing = _uniform(ids, name + " missing") < 0.1 if column.missing == "category" else None
    return pa.array(np.asarray(column.labels)[codes] if column.labels else codes, mask=missing)


def _uniform(numbers: np.ndarray, what: str) -> np.ndarray:
    """Numbers in [0, 1) that follow from integers and a word, by the finaliser of SplitMix64."""
    salt = np.frombuffer(what.ljust(32).encode()[:32], np.uint64)
    mixed = numbers.astype(np.uint64)
    with np.errstate(over="ignore"):
        for word in (*salt, _SEED):
            mixed = mixed + word + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


_OF_A_ROW = {
    "cost": RealColumn(bounds=(0.0, 100.0)),
    "urgent": BinaryColumn(),
    "ward": CategoricalColumn(categories=tuple(f"ward {k}" for k in range(12))),
}
_TAKE: dict[str, Rule] = {"visits": "count", "cost": "sum", "urgent": "any", "ward": "most frequent"}
ROWS_SCHEMA = Schema(
    {
        "clinic": PartySchema(
            {"visits": CountColumn(upper=100), **_OF_A_ROW, "cost": RealColumn(bounds=(0.0, 10_000.0))},
            Rows(per="id", take={name: Take(rule=rule) for name, rule in _TAKE.items()}),
        )
    }
)


def write_rows(path: Path, num_rows: int) -> int:
    """Ten rows of every person, who come in any order; the number of persons."""
    persons, writer = num_rows // 10, None
    for start in range(0, num_rows, ROWS):
        rows = np.arange(start, min(start + ROWS, num_rows), dtype=np.int64)
        ids = _walk(rows, num_rows) % persons
        block = pa.table({"id": ids} | {name: _values(rows, name, column) for name, column in _OF_A_ROW.items()})
        writer = writer or pq.ParquetWriter(path, block.schema)
        writer.write_table(block)
    assert writer is not None
    writer.close()
    return persons
