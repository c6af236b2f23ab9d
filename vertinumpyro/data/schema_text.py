"""TOML files of settings; and schemas as TOML text: tables, text, numbers, booleans, lists of them, nothing more."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.data.encodings import read_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read(source: str | Path) -> tuple[str, str]:
    """Return TOML text, and the name of its file: a `Path`, or a one-line text ending in ``.toml``; or no name."""
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

    Raises:
        ArgumentError: it cannot be read, or is not TOML; the message names the file.
    """
    try:
        return tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path.name} is not TOML: {error}") from None


def parse(text: str) -> dict[str, Any]:
    """Return the tables of TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"the schema is not valid TOML: {error}") from None


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
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if values and path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are a subset of TOML's; TOML alone wants DEL escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
