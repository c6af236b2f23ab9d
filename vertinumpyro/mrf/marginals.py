"""A release of noisy tables, which any number of models can be fitted to at no further cost, and its files: tables and
fitted fields as named arrays and JSON, without pickles. What comes back is checked against the columns: a file of
another schema, or a damaged one, is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.files import load_arrays, save_arrays
from vertinumpyro.data import Schema
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.factor_engine import JunctionTree
from vertinumpyro.mrf.field import GraphicalModel
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.session import PRIVACY_RECORD

_MASS_TOLERANCE = 1e-6

Arrays = Mapping[str, np.ndarray]


@final
class Released(NamedTuple):
    """What a release, or all of a run, reveals: noisy tables, and noisy histograms of values within cells."""

    measurements: tuple[Measurement, ...]
    fine: Mapping[str, np.ndarray]


def columns_to_list(columns: Sequence[CellColumn]) -> list[dict[str, Any]]:
    """Columns in cells as plain data for JSON; without `ends_apart` as an earlier version's."""
    records = [dataclasses.asdict(column) for column in columns]
    return [{k: v for k, v in record.items() if k != "ends_apart" or v} for record in records]


def columns_from_list(records: Sequence[Mapping[str, Any]]) -> tuple[CellColumn, ...]:
    """Restores equal columns."""
    return tuple(CellColumn(**record) for record in records)


def pack_released(released: Released) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of released tables."""
    arrays = {f"table/{i}": m.values for i, m in enumerate(released.measurements)}
    arrays |= {f"fine/{i}": values for i, values in enumerate(released.fine.values())}
    tables = [{"columns": list(m.columns), "stddev": m.stddev} for m in released.measurements]
    return {"tables": tables, "fine": list(released.fine)}, arrays


def unpack_released(entry: Mapping[str, Any], arrays: Arrays, columns: Sequence[CellColumn]) -> Released:
    """What `pack_released` made.

    :raises ArgumentError: a table does not fit the columns.
    :raises KeyError: something is missing.
    """
    held = {column.name: column for column in columns}
    tables = []
    for i, table in enumerate(entry["tables"]):
        names = tuple(table["columns"])
        values = _checked(arrays[f"table/{i}"], tuple(held[name].num_cells for name in names))
        tables.append(Measurement(columns=names, values=values, stddev=float(table["stddev"])))
    fine = {name: _checked(arrays[f"fine/{i}"], (held[name].num_fine,)) for i, name in enumerate(entry["fine"])}
    return Released(tuple(tables), fine)


def pack_model(model: GraphicalModel) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays of a field, as its junction tree; the engine's own form is left out."""
    return {"cliques": [list(c) for c in model.cliques]}, {f"clique/{i}": t for i, t in enumerate(model.tables)}


def unpack_model(entry: Mapping[str, Any], arrays: Arrays, columns: Sequence[CellColumn]) -> GraphicalModel:
    """What `pack_model` made; its margins need no engine.

    :raises ArgumentError: a table does not fit the columns, or is no distribution.
    :raises KeyError: something is missing.
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

    :raises ArgumentError: says what to do.
    """
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{file} cannot be used: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ArgumentError(f"{file} is damaged, or another version of the library wrote it") from None


MARGINALS = "marginals.npz"


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Marginals:
    """Noisy tables of one data set. Everything in it is released, so whatever is computed from it costs nothing more.

    :ivar schema: the public schema.
    :ivar columns: its columns in cells, the tables' axes.
    :ivar plan: what was spent.
    :ivar measurements: the tables, each with the standard deviation of its cells' discrete Gaussian noise.
    :ivar fine: noisy histograms of single columns in finer cells.
    :ivar secure_noise: whether the noise came from the operating system's CSPRNG; where it is False there is no
        privacy.
    :ivar missing: releases that were spent and lost in a crash.
    """

    schema: Schema
    columns: tuple[CellColumn, ...]
    plan: MRFPlan
    measurements: tuple[Measurement, ...]
    fine: Mapping[str, np.ndarray]
    secure_noise: bool
    missing: tuple[str, ...] = ()

    @property
    def num_records(self) -> int:
        """N, public."""
        return self.plan.num_records

    @property
    def triples(self) -> tuple[tuple[str, ...], ...]:
        """The tables of three columns across parties, each by its columns."""
        owner = {column.name: column.party for column in self.columns}
        names = [m.columns for m in self.measurements if len(m.columns) == 3]
        return tuple(columns for columns in names if len({owner[name] for name in columns}) > 1)

    @property
    def fine_stddevs(self) -> dict[str, float]:
        """The noise of the cells of each finer histogram, which the plan fixes."""
        return {name: self.plan.fine_stddev(self._party_of(name)) for name in self.fine}

    def _party_of(self, name: str) -> str:
        return next(column.party for column in self.columns if column.name == name)

    def save(self, folder: str | Path) -> None:
        """Write the tables to ``folder/marginals.npz``: arrays and JSON, no pickles; `load` reads it.

        :raises ArgumentError: there is no such folder.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ArgumentError(f"there is no folder {str(folder)!r}; create it first")
        words, arrays = held_words(self)
        save_arrays(folder / MARGINALS, arrays, words)

    @classmethod
    def load(cls, folder: str | Path) -> Marginals:
        """The tables that `save` wrote.

        :raises ArgumentError: the folder holds none, their plan was changed since or is not that of the folder's
            privacy record, or tables do not fit the schema.
        """
        path = Path(folder) / MARGINALS
        if not path.exists():
            raise ArgumentError(f"{str(folder)!r} holds no {MARGINALS}, the file that Marginals.save writes")
        words, arrays = load_arrays(path)
        with named(MARGINALS):
            return held_release(words, arrays, Path(folder) / PRIVACY_RECORD)

    def __repr__(self) -> str:
        """Shows public facts."""
        return f"Marginals({len(self.columns)} columns, {len(self.measurements)} tables)"


def held_words(marginals: Marginals) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A release as JSON and arrays."""
    released, arrays = pack_released(Released(marginals.measurements, marginals.fine))
    words = {
        "schema": marginals.schema.to_dict(),
        "columns": columns_to_list(marginals.columns),
        "plan": marginals.plan.to_dict(),
        "fingerprint": marginals.plan.fingerprint(),
        "secure_noise": marginals.secure_noise,
        "missing": list(marginals.missing),
        "released": released,
    }
    return words, arrays


def held_release(words: Mapping[str, Any], arrays: Mapping[str, np.ndarray], record: Path) -> Marginals:
    """What `held_words` made; `record` is the privacy record that lies beside it, if one does.

    :raises ArgumentError: it does not fit together; says what.
    :raises KeyError: something is missing.
    """
    schema, columns = Schema.from_dict(words["schema"]), columns_from_list(words["columns"])
    if {c.name: c.party for c in columns} != {name: schema.party_of(name) for name in schema.columns}:
        raise ArgumentError("its columns are not its schema's")
    released = unpack_released(words["released"], arrays, columns)
    return Marginals(
        schema=schema,
        columns=columns,
        plan=_plan(words, record),
        measurements=released.measurements,
        fine=released.fine,
        secure_noise=bool(words["secure_noise"]),
        missing=tuple(words["missing"]),
    )


def _plan(words: Mapping[str, Any], record: Path) -> MRFPlan:
    """The stored plan, which is the one that its fingerprint says, and the one that was spent in this folder."""
    plan = MRFPlan.from_dict(words["plan"])
    if plan.fingerprint() != words["fingerprint"]:
        raise ArgumentError("its plan was changed since")
    if record.exists() and plan.fingerprint() not in _recorded_fingerprints(record):
        raise ArgumentError(f"it belongs to another plan than the {PRIVACY_RECORD} beside it")
    return plan


def _recorded_fingerprints(record: Path) -> list[str]:
    """Of the plan that was spent, and of what it starts from."""
    try:
        plan = read_record(record).plan
        return [one.fingerprint() for one in (plan, getattr(plan, "start", None)) if one is not None]
    except PlanSpentError:
        raise ArgumentError(f"the {record.name} beside it is not a readable record") from None
