"""A configuration made ready to run: dataset, method, plan, and the record of what is spent. Where nobody names the
method, public facts alone choose it, and the reason is said.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from pathlib import Path
from typing import NamedTuple, final

import pandas as pd

from vertinumpyro.cli.config import CONFIG_COPY, Config, load_config
from vertinumpyro.cli.methods.base import METHODS, CommandMethod, given, method_of, refuse_unread
from vertinumpyro.core.errors import ArgumentError, ModelContractError, PlanSpentError
from vertinumpyro.core.workers import Workers, workers_of
from vertinumpyro.data import CsvFormat, Schema, TableFacts, VerticalDataset, align, read_ids, read_table
from vertinumpyro.data.aggregation import absent_ids
from vertinumpyro.data.streaming import count_common
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.session import PRIVACY_RECORD, recorded_plan

_MANY_RECORDS = 10**6  # where nothing is known of N: more records, more cells are worth measuring
_OF_DPVI = {
    "fit": (
        *("num_steps", "batch_size", "clip_norm", "clip", "residual_bound"),
        *("guide", "learning_rate", "block_size", "num_devices", "warm_start"),
    ),
    "privacy": ("noise_multiplier", "batch_indices"),
}
_ENGINE = "`pip install 'vertinumpyro[mrf]'`"


@final
class Choice(NamedTuple):
    """A method and the reason for it, in words."""

    name: str
    why: str


def chosen(config: Config) -> Choice:
    """The method: as `[run] method` says, or else the best that can be had.

    One release of tables pays once where DPVI pays for every step, so its twins are nearer at the same ε wherever the
    model has tables: through a Markov field where no model is given, through the model where one is. DPVI is for all
    other models, for tables too wide to be measured where nobody set any, and where the settings are DPVI's own.
    """
    if config.run.method is not None:
        return Choice(config.run.method, "[run] method says so")
    if config.quality.twin is not None:
        return Choice("quality", "[quality] twin is a table to compare")
    if config.data.holders:
        if config.regression.label is None:
            return Choice("horizontal", "the holders have whole records")
        return Choice("bayesian_linear", "the holders have whole records, and [regression] label is to be predicted")
    if config.regression.label is not None:
        raise ArgumentError("[regression] is set: name the regression, --method logistic or --method linear")
    for section, names in _OF_DPVI.items():
        if own := [name for name in names if name in given(getattr(config, section))]:
            return Choice("dpvi", f"[{section}] {own[0]} is a setting of DPVI's")
    if config.model.function is None and config.model.num_components is None and has_engine():
        wanted = Choice("vertimrf", "no model is given, and a Markov field of noisy tables makes the nearest twins")
    else:
        why = "tables are paid for once, where DPVI pays for every step"
        wanted = Choice("marginals", why if has_engine() else f"{why}; {_ENGINE} makes nearer twins")
    if given(config.mrf):  # who sets tables wants tables: where they cannot be had, their plan says why
        return wanted
    refused = _refusal(wanted, config)
    return wanted if refused is None else Choice("dpvi", f"{wanted.name} cannot be had here: {refused}")


def _refusal(wanted: Choice, config: Config) -> str | None:
    """Why a method's plan cannot be made for any table of this schema."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plan that is kept says what there is to say
        try:
            method: CommandMethod = method_of(wanted.name)(config)
            method.plan(TableFacts(config.schema, config.data.num_records or _MANY_RECORDS))
        except (ArgumentError, ModelContractError) as error:
            return str(error)
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A configuration and the method that runs it. No table is opened before `dataset`."""

    config: Config
    method: CommandMethod
    why: str | None = None

    @classmethod
    def load(cls, path: Path, method: str | None, *, backend: str | None = None) -> Job:
        """Read a configuration, then as `of`."""
        return cls.of(load_config(path, backend), method)

    @classmethod
    def of(cls, config: Config, method: str | None) -> Job:
        """Import the configuration's model; without a method, choose one and say why."""
        name, why = chosen(config) if method is None else (method, None)
        found = method_of(name)
        if found.for_holders != bool(config.data.holders):
            raise ArgumentError(
                f"--method {name} is for organisations that hold whole records: name them, [data] holders = [...]"
                if found.for_holders
                else f"--method {name} is for parties with columns of the same records; [data] holders hold whole "
                "records: take bayesian_linear or horizontal"
            )
        return cls(config=config, method=found(config), why=why)

    def refuse_unread(self) -> None:
        """See `methods.base.refuse_unread`."""
        refuse_unread(self.method, self.why)

    @property
    def schema(self) -> Schema:
        """The public schema."""
        return self.config.schema

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every party's table as it stands in its file.

        :raises DataError: names the party, and the file or the column.
        """
        self.check_files()
        files, written = self.config.files, self.config.read_options
        return {party: read_table(files[party], self.schema, party, **written(party)) for party in self.schema.parties}

    def dataset(self, tables: dict[str, pd.DataFrame] | None = None) -> VerticalDataset:
        """The parties' tables, checked against the schema, aligned and encoded.

        :raises DataError: names the party and the column, never a value.
        """
        dataset = self._spooled(self.config.spool) if tables is None and self.config.spool else self._in_memory(tables)
        stated = self.config.data.num_records
        if stated not in (None, dataset.num_records):
            raise ArgumentError(
                f"[data] num_records = {stated}, and the tables hold {dataset.num_records}; correct it, or leave it out"
            )
        return dataset.charged_to(self.config.source)

    def _in_memory(self, tables: dict[str, pd.DataFrame] | None) -> VerticalDataset:
        tables = self.tables() if tables is None else tables
        config = self.config.data
        found = VerticalDataset.from_frames(self.schema, tables, unmatched=config.unmatched)
        return found if config.workers is None else found.computed_by(self._workers)

    def _spooled(self, spool: Path) -> VerticalDataset:
        self.check_files()
        config = self.config
        return VerticalDataset.spooled(
            self.schema, config.files, self._formats(), spool, unmatched=config.data.unmatched, workers=self._workers
        )

    @functools.cached_property
    def _workers(self) -> Workers:
        """Started once, however often the records are read."""
        return workers_of(self.config.data.workers)

    def _formats(self) -> dict[str, CsvFormat]:
        return {party: CsvFormat(**self.config.read_options(party)) for party in self.config.parties}

    def facts(self) -> TableFacts:
        """Schema and N: a plan needs nothing else. Of the tables the id columns are read, unless N is given."""
        return TableFacts(self.schema, self.config.data.num_records or self._count_records(), self.config.holders)

    def _count_records(self) -> int:
        """N from the id columns alone, after matching them; of holders all together."""
        self.check_files()
        config, files, written = self.config, self.config.files, self.config.read_options
        if config.spool is not None and not config.data.holders:
            return count_common(self.schema, files, self._formats(), config.data.unmatched)
        ids = {p: read_ids(files[p], self.schema, config.columns_of(p), **written(p)) for p in config.parties}
        if config.data.holders:
            return sum(len(table) for table in ids.values())
        for party, absent in absent_ids(ids, self.schema).items():
            ids[party] = pd.DataFrame(
                {self.schema.id_column: [*ids[party][self.schema.id_column].astype(str), *absent]}
            )
        return len(next(iter(align(ids, self.schema, unmatched=config.data.unmatched).values())))

    def prepare(self, run_dir: Path) -> None:
        """Make the run's folder, with a copy of the configuration.

        :raises ArgumentError: it cannot be written to.
        """
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self.config.save_copy(run_dir, self.method.name)
        except OSError as error:
            raise ArgumentError(f"cannot write to the run's folder {str(run_dir)!r}: {error.strerror}") from None

    def check_files(self) -> None:
        """Whether every party has a file in the configuration; none is opened.

        :raises ArgumentError: names the party.
        """
        for party in self.config.parties:
            if party not in self.config.files:
                raise ArgumentError(f'[data.files] has no file for party {party!r}; add {party} = "{party}.csv"')


def refuse_started(run_dir: Path) -> None:
    """A folder that holds a privacy record is a run that has begun to spend its budget.

    :raises PlanSpentError: says how to go on.
    """
    record = run_dir / PRIVACY_RECORD
    if record.exists():
        read_record(record)  # an unreadable one says something else
        raise PlanSpentError(
            f"{record} records that this run has begun to spend its budget. Continue a fit "
            "with --resume, or give another folder with --out: a new run, whose cost adds to this one's"
        )


def plan_to_continue(run_dir: Path, method: str) -> Plan:
    """The plan of a run that was started before.

    :raises PlanSpentError: there is no readable record, so nothing may be continued.
    :raises ArgumentError: the run is of another method.
    """
    record = run_dir / PRIVACY_RECORD
    if not record.exists():
        raise PlanSpentError(f"there is no {record}, so there is no run to continue; leave --resume out")
    return recorded_plan(run_dir, method_of(method).plan_class)


def method_to_continue(run_dir: Path) -> str | None:
    """The method of a run that was started before; None where there is none, or its folder does not say."""
    record, stored = run_dir / PRIVACY_RECORD, run_dir / CONFIG_COPY
    if not record.exists():
        return None
    kind = read_record(record).plan.kind
    named = load_config(stored).run.method if stored.exists() else None
    return named or (kind if kind in METHODS else None)


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
