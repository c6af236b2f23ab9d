"""A configuration made ready to run: dataset, inference, plan, and the record of what is spent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from vertinumpyro.cli.config import CONFIG_COPY, Config, load_config
from vertinumpyro.cli.model_loading import build_dpvi, split_checked
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.data import Schema, VerticalDataset, align, read_table
from vertinumpyro.dpvi import DPVI
from vertinumpyro.model import SplitModel
from vertinumpyro.mrf import MRFPlan
from vertinumpyro.privacy import PrivacyPlan

__all__ = ["PRIVACY_RECORD", "Job", "recorded_plan", "refuse_changed", "refuse_started"]

PRIVACY_RECORD = "privacy.json"
_Plan = TypeVar("_Plan", PrivacyPlan, MRFPlan)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A configuration and the inference that it describes. No table is opened before `dataset`."""

    config: Config
    dpvi: DPVI

    @classmethod
    def load(cls, path: Path, *, num_steps: int | None = None, backend: str | None = None) -> Job:
        """Read a configuration and import its model."""
        config = load_config(path, backend)
        return cls(config=config, dpvi=build_dpvi(config, num_steps))

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self.config.schema

    def split(self) -> SplitModel:
        """The model split between the parties; checks the contract on stand-in records."""
        return split_checked(self.dpvi, self.schema)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every party's table as it stands in its file.

        :raises DataError: names the party, and the file or the column.
        """
        self.check_files()
        return {party: read_table(self.config.files[party], self.schema, party) for party in self.schema.parties}

    def dataset(self, tables: dict[str, pd.DataFrame] | None = None) -> VerticalDataset:
        """The parties' tables, checked against the schema, aligned and encoded.

        :raises DataError: names the party and the column, never a value.
        """
        dataset = VerticalDataset.from_frames(self.schema, self.tables() if tables is None else tables)
        stated = self.config.data.num_records
        if stated not in (None, dataset.num_records):
            raise ArgumentError(
                f"[data] num_records = {stated}, and the tables hold {dataset.num_records}; correct it, or leave it out"
            )
        return dataset

    def stand_in(self) -> VerticalDataset:
        """As many records as there are, drawn from the public domains: a plan needs N and nothing else."""
        num_records = self.config.data.num_records or self._count_records()
        return VerticalDataset.example(self.schema, num_records, np.random.default_rng(0))

    def plan(self, dataset: VerticalDataset) -> PrivacyPlan:
        """The privacy plan; reads the dataset's schema and N only."""
        self.split()
        privacy, fit = self.config.privacy, self.config.fit
        settings: dict[str, Any] = dataclasses.asdict(privacy)
        settings |= {name: getattr(fit, name) for name in ("num_steps", "batch_size", "clip_norm")}
        return self.dpvi.plan(dataset, **{key: value for key, value in settings.items() if value is not None})

    def _count_records(self) -> int:
        """N from the id columns alone, after matching them."""
        self.check_files()
        ids = {party: self._ids(party) for party in self.schema.parties}
        return len(next(iter(align(ids, self.schema).values())))

    def _ids(self, party: str) -> pd.DataFrame:
        """A party's id column; where it cannot be read alone, `read_table` says why."""
        path, id_column = self.config.files[party], self.schema.id_column
        try:
            if path.suffix == ".parquet":
                return pd.read_parquet(path, columns=[id_column])
            return pd.read_csv(path, usecols=[id_column], dtype=str, encoding="utf-8-sig", index_col=False)
        except (OSError, ValueError, KeyError):
            pass  # outside the handler, so that no parser's message, which may quote a cell, goes along
        return read_table(path, self.schema, party)

    def prepare(self, run_dir: Path) -> None:
        """Make the run's folder, with a copy of the configuration.

        :raises ArgumentError: it cannot be written to.
        """
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self.config.save_copy(run_dir)
        except OSError as error:
            raise ArgumentError(f"cannot write to the run's folder {str(run_dir)!r}: {error.strerror}") from None

    def check_files(self) -> None:
        """Whether every party has a file in the configuration; none is opened.

        :raises ArgumentError: names the party.
        """
        for party in self.schema.parties:
            if party not in self.config.files:
                raise ArgumentError(f'[data.files] has no file for party {party!r}; add {party} = "{party}.csv"')


def refuse_started(run_dir: Path) -> None:
    """A folder that holds a privacy record is a run that has begun to spend its budget.

    :raises PlanSpentError: says how to go on.
    """
    if (run_dir / PRIVACY_RECORD).exists():
        raise PlanSpentError(
            f"{run_dir / PRIVACY_RECORD} records that this run has begun to spend its budget. Continue a fit "
            "with --resume, or give another folder with --out: a new run, whose cost adds to this one's"
        )


def recorded_plan(run_dir: Path, kind: type[_Plan]) -> _Plan:
    """The plan of a run that was started before.

    :param kind: the class of the method's plans.
    :raises PlanSpentError: there is no readable record, so nothing may be continued.
    :raises ArgumentError: the run is of the other method.
    """
    record = run_dir / PRIVACY_RECORD
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))["plan"]
        plan = _plan_of_any_method(stored)
    except FileNotFoundError:
        raise PlanSpentError(f"there is no {record}, so there is no run to continue; leave --resume out") from None
    except (OSError, KeyError, TypeError, ValueError):
        raise PlanSpentError(f"{record} is not a readable record; without it a plan counts as spent") from None
    if not isinstance(plan, kind):
        method = "vertimrf" if isinstance(plan, MRFPlan) else "dpvi"
        raise ArgumentError(f"the run in {str(run_dir)!r} was started with --method {method}; continue it with that")
    return plan


def _plan_of_any_method(stored: Mapping[str, Any]) -> PrivacyPlan | MRFPlan:
    return (MRFPlan if "cross_share" in stored else PrivacyPlan).from_dict(stored)


def refuse_changed(config: Config, run_dir: Path) -> None:
    """A run is continued with the settings it began with: the plan's noise was computed for them.

    :raises ArgumentError: names the first setting that differs.
    """
    began = load_config(run_dir / CONFIG_COPY).fixed_settings()
    for section, settings in config.fixed_settings().items():
        keys = {**settings, **began[section]}
        for key in keys:
            if settings.get(key) != began[section].get(key):
                raise ArgumentError(
                    f"[{section}] {key} has changed since the run in {run_dir} began; restore it, or start a new run"
                )
