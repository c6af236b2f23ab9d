"""`schema draft` and `schema json`: a proposal for a party's columns, and what editors complete keys by."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from vertinumpyro.cli.config_sections import SECTIONS
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import SchemaDraft, draft_schema, read_everything, toml
from vertinumpyro.data.schema_parsing import columns_schema, properties, table

FILES = {"schema.toml": "schema.schema.json", "config.toml": "config.schema.json"}


def draft(
    file: Path,
    *,
    party: str,
    id_column: str,
    out: Path,
    separator: str | None,
    encoding: str,
    decimal: str,
    epsilon: float,
    number_formats: Sequence[str] = (),
) -> None:
    """Write the draft to a new file, or behind the other parties' in one that is there."""
    begun, common_name, others = _begun(out, party, id_column)
    frame = read_everything(file, party, id_column, separator=separator, encoding=encoding, decimal=decimal)
    num_columns = others + len(frame.columns) - 1 if others else None
    pairs = {name: picture for name, _, picture in (text.partition("=") for text in number_formats)}
    made = draft_schema(
        frame,
        party,
        id_column=id_column,
        decimal=decimal,
        epsilon=epsilon,
        num_columns=num_columns,
        number_formats=pairs,
    )
    text = made.to_toml(with_id=not begun)
    out.write_text(f"{begun}\n{text}" if begun else text, encoding="utf-8")
    _show(made, out)
    if common_name != id_column:
        setting = escape(f"id_column.{party} = {toml.value(id_column)}")
        console.print(
            f"The schema calls the ids {escape(repr(common_name))}: set {setting} under \\[data] in config.toml."
        )


def _begun(out: Path, party: str, id_column: str) -> tuple[str, str, int]:
    """What the file has already of other parties, its name of the ids, and how many columns they have.

    :raises ArgumentError: it has this party.
    """
    if not out.exists():
        return "", id_column, 0
    there = toml.read_settings(out)
    ids = there.get("id_column", "id")
    if party in there.get("parties", {}):
        raise ArgumentError(f"--out {out}: {party!r} is in it already; take another file, or remove that part")
    others = sum(len(other.get("columns", {})) for other in there.get("parties", {}).values())
    return out.read_text(encoding="utf-8"), str(ids), others


def _show(made: SchemaDraft, out: Path) -> None:
    of_rows = any(column.take for column in made.columns.values())
    heads = ("column", *(["of the rows"] if of_rows else []), "type", "domain", "what to know")
    shown = Table(*heads, box=None, padding=(0, 2, 0, 0))
    for name, column in made.columns.items():
        rule = [str(column.take.get("rule", ""))] if of_rows else []
        kind = str(column.fields.get("type", "[dim]none[/]"))
        shown.add_row(escape(name), *rule, kind, _domain(column.fields), escape(column.note))
    left_out = sum(not column.fields for column in made.columns.values())
    console.print(heading(f"Draft of {made.party}'s columns: read from its records, so not public yet"), shown)
    console.print(f"\n[green]✓[/] {escape(str(out))}", soft_wrap=True)
    if of_rows:
        console.print(
            "Ids repeat, so all rows of one become one record: look at every rule, and write what a person without "
            "rows gets (without_rows), if it is not a missing value. The epsilon is then a person's, not a row's."
        )
    if left_out:
        console.print(f"{left_out} left out; what a person knows of them can be added by hand.")
    console.print(
        "Look at every column: write bounds and categories that anybody could know without the file, then "
        "[bold]confirmed = true[/]. No command takes the schema before."
    )


def _domain(fields: Mapping[str, Any]) -> str:
    if "categories" in fields:
        return f"{len(fields['categories'])} categories"
    ends = fields.get("bounds") or fields.get("edges")
    if not ends:
        return ""
    low, high = (end if isinstance(end, str) else f"{end:g}" for end in (ends[0], ends[-1]))  # dates are texts
    return f"{low} to {high}"


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


def write_json_schemas(folder: Path) -> None:
    """Write both, and say how an editor finds them.

    :raises ArgumentError: there is no such folder.
    """
    if not folder.is_dir():
        raise ArgumentError(f"--out {folder}: there is no such folder; create it first")
    for source, name in FILES.items():
        made = columns_schema() if source == "schema.toml" else config_schema()
        (folder / name).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        console.print(f"[green]✓[/] {escape(str(folder / name))}: begin {toml} with  #:schema ./{name}", soft_wrap=True)


def _first_sentence(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
