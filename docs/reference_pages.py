"""The reference of all keys and commands, from the classes and functions that read them."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from vertinumpyro.cli.config_sections import SECTIONS
from vertinumpyro.cli.main import app
from vertinumpyro.cli.party_file import PartyFile, PolicySettings
from vertinumpyro.cli.schema_commands import config_schema
from vertinumpyro.data.schema_parsing import columns_schema, properties

_SCHEMA = """# Keys of `schema.toml`

`id_column` is the column by which the parties know their records. Every party has a table
`[parties.NAME.columns.COLUMN]` for each of its columns; a column's `type` says what kind of values it has, and which
of the keys below it takes. All of it is public: write what anybody could know without the tables. `vertinumpyro
schema draft` proposes a schema, `vertinumpyro schema json` writes a JSON schema for editors.

`[parties.NAME.rows]` says how one record follows from several rows of one id, and `[parties.NAME.rows.take.COLUMN]`
how each column does: [Several rows of a person](../own_tables.md#several-rows-of-a-person).

`[[constraint]]` says what is publicly known of every record, and every twin keeps: `impossible`, a table of columns
with labels, or with `{ min = ..., max = ... }`, that no record has all at once; `order`, columns none of which lies
behind the next; or `column`, `by` and `values`, a column that another one determines.

`confirmed = false` marks a domain that was read from a private table; every command refuses it until a person has
replaced or confirmed it.
"""
_CONFIG = """# Keys of `config.toml`

`schema` is the path of `schema.toml`, or a table with its contents. Everything else stands in the sections below;
relative paths start at the folder of the configuration. A key that no method reads, or that the chosen method does
not read, is refused by name.
"""
_PARTY = """# Keys of `party.toml`

What one organisation keeps to itself in [a study between organisations](../organisations.md): `vertinumpyro party
init` makes it.
"""


_OF_EVERY_COLUMN = ("missing", "missing_codes", "dtype")


def write_pages(folder: Path) -> None:
    """Write `schema.md`, `config.md`, `party.md` and `commands.md`; a page that is as it should be is left alone."""
    folder.mkdir(exist_ok=True)
    pages = {"schema.md": _schema(), "config.md": _config(), "party.md": _party(), "commands.md": _commands()}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _schema() -> str:
    parties = columns_schema()["properties"]["parties"]["additionalProperties"]
    column = parties["properties"]["columns"]["additionalProperties"]
    parts, shared = [_SCHEMA], {}
    keys = {key: value for key, value in parties["properties"]["rows"]["properties"].items() if key != "confirmed"}
    take = keys.pop("take")["additionalProperties"]
    parts += [
        f"## `[parties.NAME.rows]`\n\n{_table(keys, required=('per',))}",
        f"## `[parties.NAME.rows.take.COLUMN]`\n\n{_table(take['properties'], required=('rule',))}",
    ]
    for case in column["allOf"]:
        name, then = case["if"]["properties"]["type"]["const"], case["then"]
        keys = {key: value for key, value in then["properties"].items() if key not in ("type", "confirmed")}
        if not shared:
            shared = {key: keys[key] for key in _OF_EVERY_COLUMN}
            confirmed = column["properties"]["confirmed"] | {"enum": [True]}
            parts.append(f"## Every column\n\n{_table(shared | {'confirmed': confirmed})}")
        own = {key: value for key, value in keys.items() if key not in shared}
        parts.append(f'## `type = "{name}"`\n\n{_table(own, required=then.get("required", ()))}')
    return "\n".join(parts)


def _config() -> str:
    sections = config_schema()["properties"]
    parts = [_CONFIG]
    for name, cls in SECTIONS.items():
        parts.append(f"## `[{name}]`\n\n{_about(cls)}\n\n{_table(sections[name]['properties'], _defaults(cls))}")
    return "\n".join(parts)


def _party() -> str:
    own = {key: value for key, value in properties(PartyFile).items() if key not in ("path", "policy")}
    policy = _table(properties(PolicySettings))
    return f"{_PARTY}\n{_table(own, _defaults(PartyFile))}\n## `[policy]`\n\n{_about(PolicySettings)}\n\n{policy}"


def _commands() -> str:
    command = typer.main.get_command(app)
    made = get_docs_for_click(obj=command, ctx=typer.Context(command), name="vertinumpyro", title="Commands")
    return f"{made.strip()}\n"


def _about(cls: type) -> str:
    """The first paragraph of a section's docstring, without the section's name."""
    text = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()).partition("]`: ")[2]
    return text[:1].upper() + text[1:]


def _defaults(cls: type) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _table(keys: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, required: Iterable[str] = ()) -> str:
    rows = ["| key | value | what it says |", "|---|---|---|"]
    for key, spec in keys.items():
        told = spec.get("description", "")
        default = (defaults or {}).get(key)
        plain = isinstance(default, bool | int | float | str)
        notes = " Must be given." if key in required else f" By default `{_shown(default)}`." if plain else ""
        rows.append(f"| `{key}` | {_values(spec)} | {_sentence(told)}{notes} |")
    return "\n".join(rows) + "\n"


def _sentence(text: str) -> str:
    """With a capital letter, where it does not begin with a symbol, and for a table's cell."""
    return (text[:1].upper() if text[:1].isascii() else text[:1]) + text[1:].replace("|", "\\|")


def _shown(value: Any) -> str:
    """As TOML writes it."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)


_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "table",
}


def _values(spec: Mapping[str, Any]) -> str:
    if "enum" in spec:
        return ", ".join(f"`{_shown(value)}`" for value in spec["enum"])
    if "anyOf" in spec:
        return " or ".join(dict.fromkeys(_values(option) for option in spec["anyOf"]))
    if spec.get("type") == "array":
        of = _values(spec["items"]) if "items" in spec else "text"
        return f"two of: {of}" if spec.get("maxItems") == 2 else f"list of: {of}"
    limit = " above 0" if "exclusiveMinimum" in spec else " of 0 or more" if "minimum" in spec else ""
    return _WORDS.get(spec.get("type", ""), "any") + limit


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reference")
