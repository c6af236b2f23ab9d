"""The file that describes one run: schema, tables, model, privacy, fit, outputs.

Every key is public: nothing in the file, and nothing that is derived from it here, depends on a record.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from vertinumpyro.cli.config_sections import (
    SECTIONS,
    DataSettings,
    FitSettings,
    ModelSettings,
    MRFSettings,
    PrivacySettings,
    QualitySettings,
    RegressionSettings,
    RunSettings,
    check_keys,
    read_section,
)
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CsvFormat, Schema
from vertinumpyro.data.dataset import Source
from vertinumpyro.data.schema_checks import suggest
from vertinumpyro.data.toml import dump, read_settings

CONFIG_COPY = "config.toml"
SCHEMA_COPY = "schema.toml"


# post-processing of released tables: a run may go on with others, say where memory did not suffice
_OF_THE_SERVERS_FIT = ("clique_limit", "iterations", "memory_limit")

_CSV_KEYS = ("separator", "encoding", "decimal")
_READ_KEYS = (*_CSV_KEYS, "id_column")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run as its file describes it.

    :ivar path: the file; relative paths in it start at its folder.
    """

    path: Path
    schema: Schema
    data: DataSettings
    model: ModelSettings
    privacy: PrivacySettings
    fit: FitSettings
    mrf: MRFSettings
    regression: RegressionSettings
    quality: QualitySettings
    run: RunSettings

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.path.parent

    @property
    def parties(self) -> tuple[str, ...]:
        """Who takes part with a table: the schema's parties, or the holders."""
        return self.holders or tuple(self.schema.parties)

    @property
    def holders(self) -> tuple[str, ...]:
        """Who hold whole records; empty where the schema's parties hold columns."""
        return tuple(self.data.holders or ())

    def columns_of(self, party: str) -> str:
        """The party of the schema whose columns a table has."""
        return next(iter(self.schema.parties)) if self.holders else party

    @cached_property
    def files(self) -> dict[str, Path]:
        """Each party's table."""
        return {party: self.folder / name for party, name in self.data.files.items()}

    @property
    def spool(self) -> Path | None:
        """Where encoded columns go that memory would not hold."""
        return None if self.data.spool is None else self.folder / self.data.spool

    @property
    def source(self) -> Source:
        """The files, and the account that runs in one process are charged to.

        :raises ArgumentError: there is a limit, and no account to hold it against.
        """
        account = self.data.account
        ledgers = {party: self.folder / name for party, name in self.data.ledgers.items()}
        kept = self.folder / account if isinstance(account, str) else account and (ledgers or True)
        return Source(files=self.files, account=kept, total_epsilon=self.data.total_epsilon)

    def read_options(self, party: str) -> dict[str, str]:
        """How a party's file is read: the arguments of `read_table` that are not its defaults.

        :raises ArgumentError: names the key and what it takes.
        """
        stated = {key: getattr(self.data, key) for key in _READ_KEYS}
        own = {key: value.get(party) if isinstance(value, Mapping) else value for key, value in stated.items()}
        given = {key: value for key, value in own.items() if value is not None}
        try:
            CsvFormat(**{key: given[key] for key in _CSV_KEYS if key in given})
        except ArgumentError as error:
            raise ArgumentError(f"[data] {error}") from None
        return given

    @property
    def budget(self) -> PrivacySettings:
        """What the method spends: all of [privacy] but the part that a score of the twin is bought with.

        Costs add up for every adversary, ε and δ each (basic composition).
        """
        return self.part_of_budget(1.0 - (self.quality.part or 0.0))

    def part_of_budget(self, part: float) -> PrivacySettings:
        """ε and δ times a part."""
        if part == 1.0:
            return self.privacy
        assert self.privacy.epsilon is not None  # `load_config` asks for both
        assert self.privacy.delta is not None
        return dataclasses.replace(self.privacy, epsilon=self.privacy.epsilon * part, delta=self.privacy.delta * part)

    @property
    def model_folder(self) -> Path:
        """Where the model's module is imported from."""
        return self.folder / (self.model.folder or ".")

    def run_dir(self, out: Path | None = None) -> Path:
        """The folder of the outputs; `out` comes from the command line and starts at the current folder."""
        return self.folder / self.run.out if out is None else out

    def of_the_method(self) -> dict[str, dict[str, Any]]:
        """The settings that a method reads, as plain data; those of tables and outputs are left out."""
        return {name: _given(getattr(self, name)) for name in ("model", "privacy", "fit", "mrf", "regression")}

    def fixed_settings(self) -> dict[str, Any]:
        """What may not change between the start of a run and its continuation."""
        return {
            "schema": self.schema.to_dict(),
            "model": _given(self.model) | {"folder": None},
            "privacy": _given(self.privacy),
            "fit": _given(self.fit),
            "mrf": {key: value for key, value in _given(self.mrf).items() if key not in _OF_THE_SERVERS_FIT},
            "regression": _given(self.regression),
            "quality": _given(self.quality) | {"twin": None},
            "run": {"seed": self.run.seed},
        }

    def save_copy(self, run_dir: Path, method: str) -> None:
        """Write config and schema into the run's folder, with every path relative to that folder, and the method.

        The copy is a valid configuration of the same run, and names no folder outside the common one.
        """

        def moved(path: Path) -> str:
            return Path(os.path.relpath(path, run_dir)).as_posix()

        tables = {
            "schema": SCHEMA_COPY,
            "data": _given(self.data)
            | {"files": {p: moved(file) for p, file in self.files.items()}}
            | ({} if self.spool is None else {"spool": moved(self.spool)}),
            "model": _given(self.model) | ({"folder": moved(self.model_folder)} if self.model.function else {}),
            "privacy": _given(self.privacy),
            "fit": _given(self.fit),
            "mrf": _given(self.mrf),
            "regression": _given(self.regression),
            "quality": _given(self.quality) | self._twin_seen_from(run_dir),
            "run": _given(self.run) | {"out": ".", "method": method},
        }
        tables = {name: table for name, table in tables.items() if name != "quality" or table}
        (run_dir / SCHEMA_COPY).write_text(self.schema.to_toml(), encoding="utf-8")
        (run_dir / CONFIG_COPY).write_text(dump(tables), encoding="utf-8")

    def _twin_seen_from(self, run_dir: Path) -> dict[str, str]:
        if self.quality.twin is None:
            return {}
        return {"twin": Path(os.path.relpath(self.folder / self.quality.twin, run_dir)).as_posix()}


def load_config(path: Path, backend: str | None = None) -> Config:
    """Read and check a configuration; no table is opened.

    :param backend: in the place of [fit] backend; None keeps that.
    :raises ArgumentError: names the section, the key and the fix.
    :raises SchemaError: the schema contradicts itself.
    """
    tables = read_settings(path)
    check_keys(path.name, tables, ("schema", *SECTIONS))
    if backend is not None:
        tables["fit"] = {**tables.get("fit", {}), "backend": backend}
    sections = {name: read_section(cls, f"[{name}]", tables.get(name, {})) for name, cls in SECTIONS.items()}
    config = Config(path=path, schema=_schema(path, tables.get("schema")), **sections)
    _check_files(config)
    if (config.privacy.epsilon is None) == (config.privacy.noise_multiplier is None):
        raise ArgumentError("[privacy] needs either epsilon, to calibrate the noise, or noise_multiplier")
    _check_quality(config)
    return config


def config_of(path: Path, schema: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]]) -> Config:
    """A configuration from plain data: what its sections hold, those that are left out at their defaults.

    :raises ArgumentError: a section holds what no file may; names the key.
    """
    check_keys("the settings", sections, SECTIONS)
    found = {name: read_section(cls, f"[{name}]", sections.get(name, {})) for name, cls in SECTIONS.items()}
    return Config(path=path, schema=Schema.from_dict(schema), **found)


def _schema(path: Path, spec: Any) -> Schema:
    """The schema in a file of its own, or inline as [schema]."""
    if isinstance(spec, str):
        return Schema.from_toml(path.parent / spec)
    if isinstance(spec, Mapping):
        return Schema.from_dict(spec)
    raise ArgumentError(f'{path.name} has no schema; add schema = "schema.toml", or a table [schema]')


def _check_files(config: Config) -> None:
    """Each name under [data] is a party, and CSV can be so written; whether files are there is a later question."""
    _check_holders(config)
    settings = {key: getattr(config.data, key) for key in ("files", "ledgers", *_READ_KEYS)}
    for key, by_party in settings.items():
        for party, value in by_party.items() if isinstance(by_party, Mapping) else ():
            if party not in config.parties:
                where = "among the holders" if config.data.holders else "in the schema"
                raise ArgumentError(f"[data.{key}]: no party {party!r} {where}; {suggest(party, config.parties)}")
            if not isinstance(value, str):
                raise ArgumentError(f"[data.{key}] {party} = {value!r}; give a text")
    for party in config.parties:
        _check_ids(config, party)


def _check_ids(config: Config, party: str) -> None:
    """How a party's file is written, and that its ids are no column of the schema."""
    own = config.read_options(party).get("id_column")
    if own in config.schema.parties[config.columns_of(party)].columns:
        raise ArgumentError(f"[data] id_column: {own!r} is a column of the schema; name the column of {party!r}'s ids")


def _check_quality(config: Config) -> None:
    part, privacy = config.quality.part, config.privacy
    if part is None:
        return
    if not part < 1:
        raise ArgumentError(f"[quality] part = {part:g}; give a number between 0 and 1, say 0.1")
    if config.quality.twin is not None:
        raise ArgumentError(
            "[quality] part buys a score for the twin that a fit makes, twin is one that is there; give one of them"
        )
    for key in ("epsilon", "delta"):
        if getattr(privacy, key) is None:
            raise ArgumentError(f"[quality] part is one of epsilon and of delta; give [privacy] {key}")


def _check_holders(config: Config) -> None:
    holders = config.data.holders
    if holders is None:
        return
    if not all(isinstance(name, str) for name in holders) or len(set(holders)) < max(2, len(holders)):
        raise ArgumentError(f"[data] holders = {holders!r}; give two or more names, each once")
    if len(config.schema.parties) > 1:
        raise ArgumentError(
            f"[data] holders hold whole records, and the schema divides the columns among "
            f"{', '.join(config.schema.parties)}; put all columns under one party, or leave holders out"
        )


def _given(section: Any) -> dict[str, Any]:
    """The settings that are not None, as plain data for TOML."""
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    plain = {key: dict(v) if isinstance(v, Mapping) else v for key, v in values.items()}
    return {key: value for key, value in plain.items() if value is not None}
