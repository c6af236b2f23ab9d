"""A fitted field: sampling, storing, loading."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.stored_arrays import load_arrays, save_arrays
from vertinumpyro.data import Schema, decode_table
from vertinumpyro.mrf.cells import CellColumn
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.plan import MRFPlan
from vertinumpyro.mrf.release import Measurement
from vertinumpyro.mrf.stored import (
    Released,
    columns_from_list,
    columns_to_list,
    named,
    pack_model,
    pack_released,
    unpack_model,
    unpack_released,
)
from vertinumpyro.mrf.synthesis import draw_cells
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.session import PRIVACY_RECORD

__all__ = ["FIELD", "MarkovTwin"]

FIELD = "field.npz"


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MarkovTwin:
    """A fitted field. Everything in it is released.

    Attributes:
        schema: the public schema.
        columns: its columns in cells.
        plan: what was spent.
        model: the field, in cells.
        measurements: the noisy tables that it was made from.
        fine: noisy histograms of values within cells.
        secure_noise: whether the noise came from the operating system's CSPRNG; where it is False the fit used
            `insecure_seed` and has no privacy.
        seconds: wall time of all parties' releases, one after the other, and of the server's fit afterwards; of the
            process that ended the fit.
        missing: releases that were spent and lost in a crash, so that nothing here is made from them.
    """

    schema: Schema
    columns: tuple[CellColumn, ...]
    plan: MRFPlan
    model: GraphicalModel
    measurements: tuple[Measurement, ...]
    fine: Mapping[str, np.ndarray]
    secure_noise: bool
    seconds: Mapping[str, float]
    missing: tuple[str, ...] = ()

    def sample_synthetic(self, num_records: int | None = None, *, rng_key: jax.Array) -> pd.DataFrame:
        """A synthetic table in the schema's own types; N of the plan by default.

        Post-processing: as many tables as you like cost no further privacy.
        """
        num_records = self.plan.num_records if num_records is None else num_records
        if num_records < 1:
            raise ArgumentError(f"num_records={num_records}; give 1 or more")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).ravel())
        cells = draw_cells(self.model, num_records, rng)
        arrays: dict[str, np.ndarray] = {}
        for column in self.columns:
            weights = self.fine.get(column.name)
            weights = None if weights is None else np.maximum(weights, 0.0)
            arrays |= column.values(cells[column.name], rng, weights)
        return decode_table(self.schema, arrays, rng)

    def save(self, folder: str | Path) -> None:
        """Write the field to ``folder/field.npz``: arrays and JSON, no pickles; `load` reads it.

        Raises:
            ArgumentError: there is no such folder.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ArgumentError(f"there is no folder {str(folder)!r}; create it first")
        released, arrays = pack_released(Released(self.measurements, self.fine))
        model, cliques = pack_model(self.model)
        metadata = {
            "schema": self.schema.to_dict(),
            "columns": columns_to_list(self.columns),
            "plan": self.plan.to_dict(),
            "fingerprint": self.plan.fingerprint(),
            "secure_noise": self.secure_noise,
            "seconds": dict(self.seconds),
            "missing": list(self.missing),
            "released": released,
            "model": model,
        }
        save_arrays(folder / FIELD, {**arrays, **cliques}, metadata)

    @classmethod
    def load(cls, folder: str | Path) -> MarkovTwin:
        """The field that `save` wrote, equal to it but for the engine's own form of the model.

        Needs no engine: `model.marginal` is computed from the model's tables.

        Raises:
            ArgumentError: the folder holds no field, the field's plan was changed since or is not that of the folder's
                privacy record, or tables do not fit the schema.
        """
        path = Path(folder) / FIELD
        if not path.exists():
            raise ArgumentError(f"{str(folder)!r} holds no {FIELD}, the file that MarkovTwin.save writes")
        metadata, arrays = load_arrays(path)
        with named(FIELD):
            schema, columns = Schema.from_dict(metadata["schema"]), columns_from_list(metadata["columns"])
            if {c.name: c.party for c in columns} != {name: schema.party_of(name) for name in schema.columns}:
                raise ArgumentError("its columns are not its schema's")
            released = unpack_released(metadata["released"], arrays, columns)
            return cls(
                schema=schema,
                columns=columns,
                plan=_plan(metadata, Path(folder) / PRIVACY_RECORD),
                model=unpack_model(metadata["model"], arrays, columns),
                measurements=released.measurements,
                fine=released.fine,
                secure_noise=bool(metadata["secure_noise"]),
                seconds=metadata["seconds"],
                missing=tuple(metadata["missing"]),
            )

    def __repr__(self) -> str:
        """Shows public facts."""
        size = sum(table.size for table in self.model.tables)
        return f"MarkovTwin({len(self.columns)} columns, {len(self.model.cliques)} cliques, {size} cells)"


def _plan(metadata: Mapping[str, Any], record: Path) -> MRFPlan:
    """The stored plan, which is the one that its fingerprint says, and the one that was spent in this folder."""
    plan = MRFPlan.from_dict(metadata["plan"])
    if plan.fingerprint() != metadata["fingerprint"]:
        raise ArgumentError("its plan was changed since")
    if record.exists() and _recorded_fingerprint(record) != plan.fingerprint():
        raise ArgumentError(f"it belongs to another plan than the {PRIVACY_RECORD} beside it")
    return plan


def _recorded_fingerprint(record: Path) -> str:
    try:
        return read_record(record).plan.fingerprint()
    except PlanSpentError:
        raise ArgumentError(f"the {record.name} beside it is not a readable record") from None
