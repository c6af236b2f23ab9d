"""The file that describes one run: schema, tables, model, privacy, fit, outputs.

Every key is public: nothing in the file, and nothing that is derived from it here, depends on a record.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vertinumpyro.cli.settings import check_keys, positive, read_section
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema
from vertinumpyro.data.schema_text import dump
from vertinumpyro.data.wording import suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Config",
    "DataSettings",
    "FitSettings",
    "MRFSettings",
    "ModelSettings",
    "PrivacySettings",
    "RunSettings",
    "load_config",
]

CONFIG_COPY = "config.toml"
SCHEMA_COPY = "schema.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """`[data]`: each party's file, and N where it should be known without reading one."""

    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    num_records: int | None = positive()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """`[model]`: a function "module:name" importable from `folder`, or the library's mixture."""

    function: str | None = None
    folder: str | None = None
    num_components: int | None = positive()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """`[privacy]`: the budget and who it holds against; `DPVI.plan` says what each key means."""

    epsilon: float | None = positive()
    noise_multiplier: float | None = positive()
    delta: float | None = positive()
    adversary: str | None = None
    relation: Literal["replace", "add_remove"] | None = None
    noise: Literal["collaborative", "trusted"] | None = None
    collusion_threshold: int | None = None
    batch_indices: Literal["known", "hidden"] | None = None
    allow_unproven: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSettings:
    """`[fit]`: how long and with what; keys left out take the library's defaults."""

    num_steps: int | None = positive()
    batch_size: int | None = positive()
    clip_norm: float | None = positive()
    guide: Literal["diagonal", "full_rank", "low_rank", "iaf"] | None = None
    learning_rate: float | None = positive()
    backend: Literal["fixed_point", "plaintext", "crypten", "spu"] = "fixed_point"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MRFSettings:
    """`[mrf]`: for `--method vertimrf`; `VertiMRF` and its `plan` say what each key means."""

    encoder: Literal["secure_marginals", "sketch", "randomized_response", "sketch_shared_key"] | None = None
    selection: Literal["all", "adaptive"] | None = None
    bins: Mapping[str, Any] | None = None
    max_cells: int | None = positive()
    clique_limit: int | None = positive()
    iterations: int | None = positive()
    num_keys: int | None = positive()
    consistency: bool | None = None
    recovery: bool | None = None
    cross_share: float | None = None
    recovery_share: float | None = None
    refinement_rounds: int | None = None
    refinement_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """`[run]`: where the outputs go. `seed` is model randomness: it protects nothing and may be known."""

    out: str = "run"
    seed: int = 0
    num_synthetic: int | None = positive()
    diagnostics: bool = False


# post-processing of released tables: a run may go on with others, say where memory did not suffice
_OF_THE_SERVERS_FIT = ("clique_limit", "consistency", "iterations")

_SECTIONS: Mapping[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "privacy": PrivacySettings,
    "fit": FitSettings,
    "mrf": MRFSettings,
    "run": RunSettings,
}


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
    run: RunSettings

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.path.parent

    @cached_property
    def files(self) -> dict[str, Path]:
        """Each party's table."""
        return {party: self.folder / name for party, name in self.data.files.items()}

    @property
    def model_folder(self) -> Path:
        """Where the model's module is imported from."""
        return self.folder / (self.model.folder or ".")

    def run_dir(self, out: Path | None = None) -> Path:
        """The folder of the outputs; `out` comes from the command line and starts at the current folder."""
        return self.folder / self.run.out if out is None else out

    def fixed_settings(self) -> dict[str, Any]:
        """What may not change between the start of a run and its continuation."""
        return {
            "schema": self.schema.to_dict(),
            "model": _given(self.model) | {"folder": None},
            "privacy": _given(self.privacy),
            "fit": _given(self.fit),
            "mrf": {key: value for key, value in _given(self.mrf).items() if key not in _OF_THE_SERVERS_FIT},
            "run": {"seed": self.run.seed},
        }

    def save_copy(self, run_dir: Path) -> None:
        """Write config and schema into the run's folder, with every path relative to that folder.

        The copy is a valid configuration of the same run, and names no folder outside the common one.
        """

        def moved(path: Path) -> str:
            return Path(os.path.relpath(path, run_dir)).as_posix()

        tables = {
            "schema": SCHEMA_COPY,
            "data": _given(self.data) | {"files": {p: moved(file) for p, file in self.files.items()}},
            "model": _given(self.model) | ({"folder": moved(self.model_folder)} if self.model.function else {}),
            "privacy": _given(self.privacy),
            "fit": _given(self.fit),
            "mrf": _given(self.mrf),
            "run": _given(self.run) | {"out": "."},
        }
        (run_dir / SCHEMA_COPY).write_text(self.schema.to_toml(), encoding="utf-8")
        (run_dir / CONFIG_COPY).write_text(dump(tables), encoding="utf-8")


def load_config(path: Path, backend: str | None = None) -> Config:
    """Read and check a configuration; no table is opened.

    :param backend: in the place of [fit] backend; None keeps that.
    :raises ArgumentError: names the section, the key and the fix.
    :raises SchemaError: the schema contradicts itself.
    """
    tables = _parse(path)
    check_keys(path.name, tables, ("schema", *_SECTIONS))
    if backend is not None:
        tables["fit"] = {**tables.get("fit", {}), "backend": backend}
    sections = {name: read_section(cls, f"[{name}]", tables.get(name, {})) for name, cls in _SECTIONS.items()}
    config = Config(path=path, schema=_schema(path, tables.get("schema")), **sections)
    _check_files(config)
    if (config.privacy.epsilon is None) == (config.privacy.noise_multiplier is None):
        raise ArgumentError("[privacy] needs either epsilon, to calibrate the noise, or noise_multiplier")
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path.name} is not TOML: {error}") from None


def _schema(path: Path, spec: Any) -> Schema:
    """The schema in a file of its own, or inline as [schema]."""
    if isinstance(spec, str):
        return Schema.from_toml(path.parent / spec)
    if isinstance(spec, Mapping):
        return Schema.from_dict(spec)
    raise ArgumentError(f'{path.name} has no schema; add schema = "schema.toml", or a table [schema]')


def _check_files(config: Config) -> None:
    """Each name under [data.files] is a party; whether the files are there is a later question."""
    for party, name in config.data.files.items():
        if party not in config.schema.parties:
            raise ArgumentError(
                f"[data.files]: no party {party!r} in the schema; {suggest(party, config.schema.parties)}"
            )
        if not isinstance(name, str):
            raise ArgumentError(f"[data.files] {party} = {name!r}; give a path as text")


def _given(section: Any) -> dict[str, Any]:
    """The settings that are not None, as plain data for TOML."""
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    plain = {key: dict(v) if isinstance(v, Mapping) else v for key, v in values.items()}
    return {key: value for key, value in plain.items() if value is not None}
