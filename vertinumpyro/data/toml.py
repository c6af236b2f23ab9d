"""TOML files of settings; and schemas as TOML text: tables, text, numbers, booleans, lists of them, nothing more."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.core.validation import shown
from vertinumpyro.data.text_formats import read_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read(source: str | Path) -> tuple[str, str]:
    """Return TOML text, and the name of its file: a `Path`, or a one-line text ending in ``.toml``; or no name."""
    if not isinstance(source, str | Path):
        raise SchemaError(f"source={shown(source)} is no schema's text; give TOML text or the path of a file")
    is_file = isinstance(source, Path) or ("\n" not in source and source.endswith(".toml"))
    if not is_file:
        return str(source), ""
    try:
        return read_utf8(Path(source)), Path(source).name
    except ArgumentError as error:
        problem = str(error)
    raise SchemaError(f"the schema: {problem}")


def read_settings(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file that people write.

    :raises ArgumentError: it cannot be read, or is not TOML; the message names the file.
    """
    try:
        return tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path.name} is not TOML: {error}") from None


def parse(text: str, file: str = "") -> dict[str, Any]:
    """Return the tables of TOML text, which a file of this name may hold."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"the schema{file and f', {file},'} is not valid TOML: {error}") from None


def header_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the number of the line on which each table of TOML text begins, counted from 1."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("["):
            found[_header_path(line)] = number
    return found


def _header_path(line: str) -> tuple[str, ...]:
    # A line of a list that goes over several lines parses as no table, or as one that nobody asks for.
    try:
        table: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    path = []
    while isinstance(table, dict) and table:
        key, table = next(iter(table.items()))
        path.append(key)
    return tuple(path)


def dump(tables: Mapping[str, Any]) -> str:
    """Write nested tables as TOML text."""
    return "\n".join(_lines(tables, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: found for key, found in table.items() if not isinstance(found, Mapping)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, found in plain.items():
        yield f"{_key(key)} = {value(found)}"
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            yield from _lines(inner, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else value(key)


def value(found: Any) -> str:
    """Write a text, a number, a boolean, or a list or a table of them as TOML."""
    if isinstance(found, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {value(inner)}" for key, inner in found.items()) + "}"
    if isinstance(found, list):
        return f"[{', '.join(map(value, found))}]"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str):
        # JSON's escapes are a subset of TOML's; TOML alone wants DEL escaped too.
        return json.dumps(found, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(found)
