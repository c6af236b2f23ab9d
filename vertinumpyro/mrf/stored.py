"""Released tables and fitted fields as named arrays and JSON metadata: what `released.npz` and `field.npz` hold.

No pickles. What comes back is checked against the columns: a file of another schema, or a damaged one, is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.junction_tree import JunctionTree
from vertinumpyro.mrf.release import Measurement

__all__ = [
    "Released",
    "columns_from_list",
    "columns_to_list",
    "named",
    "pack_model",
    "pack_released",
    "unpack_model",
    "unpack_released",
]

_MASS_TOLERANCE = 1e-6

Arrays = Mapping[str, np.ndarray]


@final
class Released(NamedTuple):
    """What a release, or all of a run, reveals: noisy tables, and noisy histograms of values within cells."""

    measurements: tuple[Measurement, ...]
    fine: Mapping[str, np.ndarray]


def columns_to_list(columns: Sequence[CellColumn]) -> list[dict[str, Any]]:
    """Columns in cells as plain data for JSON."""
    return [dataclasses.asdict(column) for column in columns]


def columns_from_list(records: Sequence[Mapping[str, Any]]) -> tuple[CellColumn, ...]:
    """Restores equal columns."""
    return tuple(CellColumn(**record) for record in records)


def pack_released(released: Released, prefix: str = "") -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of released tables; `prefix` goes before the arrays' names."""
    arrays = {f"{prefix}table/{i}": m.values for i, m in enumerate(released.measurements)}
    arrays |= {f"{prefix}fine/{i}": values for i, values in enumerate(released.fine.values())}
    tables = [{"columns": list(m.columns), "stddev": m.stddev} for m in released.measurements]
    return {"tables": tables, "fine": list(released.fine)}, arrays


def unpack_released(
    entry: Mapping[str, Any], arrays: Arrays, columns: Sequence[CellColumn], prefix: str = ""
) -> Released:
    """What `pack_released` made.

    Raises:
        ArgumentError: a table does not fit the columns.
        KeyError: something is missing.
    """
    held = {column.name: column for column in columns}
    tables = []
    for i, table in enumerate(entry["tables"]):
        names = tuple(table["columns"])
        values = _checked(arrays[f"{prefix}table/{i}"], tuple(held[name].num_cells for name in names))
        tables.append(Measurement(columns=names, values=values, stddev=float(table["stddev"])))
    fine = {name: _checked(arrays[f"{prefix}fine/{i}"], (held[name].num_fine,)) for i, name in enumerate(entry["fine"])}
    return Released(tuple(tables), fine)


def pack_model(model: GraphicalModel) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of a field, as its junction tree; the engine's own form is left out."""
    return {"cliques": [list(c) for c in model.cliques]}, {f"clique/{i}": t for i, t in enumerate(model.tables)}


def unpack_model(entry: Mapping[str, Any], arrays: Arrays, columns: Sequence[CellColumn]) -> GraphicalModel:
    """What `pack_model` made; its margins need no engine.

    Raises:
        ArgumentError: a table does not fit the columns, or is no distribution.
        KeyError: something is missing.
    """
    sizes = {column.name: column.num_cells for column in columns}
    cliques = tuple(tuple(clique) for clique in entry["cliques"])
    tables = tuple(
        _checked(arrays[f"clique/{i}"], tuple(sizes[name] for name in clique)) for i, clique in enumerate(cliques)
    )
    if {name for clique in cliques for name in clique} != set(sizes):
        raise ArgumentError("the cliques do not have all columns")
    if any((table < 0).any() or abs(table.sum() - 1) > _MASS_TOLERANCE for table in tables):
        raise ArgumentError("a table of a clique is no distribution")
    return GraphicalModel(cliques, tables, JunctionTree(cliques, tables))


def _checked(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if values.shape != shape or values.dtype != np.float64 or not np.isfinite(values).all():
        raise ArgumentError("a table does not have its columns' cells")
    return values


@contextmanager
def named(file: str) -> Iterator[None]:
    """Whatever is wrong with a stored file's contents becomes one error that names the file.

    Raises:
        ArgumentError: says what to do.
    """
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{file} cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ArgumentError(f"{file} is damaged, or another version of the library wrote it") from None
