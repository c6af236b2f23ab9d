"""`schema json`: what an editor needs to complete the keys of schema.toml and config.toml."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from vertinumpyro.cli.sections import SECTIONS
from vertinumpyro.cli.terminal import console
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.json_schema import columns_schema, properties, table

__all__ = ["config_schema", "write"]

FILES = {"schema.toml": "schema.schema.json", "config.toml": "config.schema.json"}


def config_schema() -> dict[str, Any]:
    """The JSON schema of a run's configuration."""
    schema = columns_schema()
    inline = {key: value for key, value in schema.items() if not key.startswith("$")}
    sections = {name: {"description": _first_sentence(cls), **table(properties(cls))} for name, cls in SECTIONS.items()}
    return {
        "$schema": schema["$schema"],
        "title": "A run of vertinumpyro",
        **table({"schema": {"anyOf": [{"type": "string"}, inline]}, **sections}, required=("schema",)),
    }


def write(folder: Path) -> None:
    """Write both, and say how an editor finds them.

    :raises ArgumentError: there is no such folder.
    """
    if not folder.is_dir():
        raise ArgumentError(f"--out {folder}: there is no such folder; create it first")
    for toml, name in FILES.items():
        made = columns_schema() if toml == "schema.toml" else config_schema()
        (folder / name).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        console.print(f"[green]✓[/] {escape(str(folder / name))}: begin {toml} with  #:schema ./{name}", soft_wrap=True)


def _first_sentence(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
