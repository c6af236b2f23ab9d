"""Schemas as TOML text: tables, text, numbers, booleans and lists of them, nothing more."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vertinumpyro.core.errors import SchemaError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def load(source: str | Path) -> dict[str, Any]:
    """Parse TOML text, or the file that a `Path` or a one-line name ending in ``.toml`` gives."""
    is_file = isinstance(source, Path) or ("\n" not in source and source.endswith(".toml"))
    text = _read(Path(source)) if is_file else str(source)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"the schema is not valid TOML: {error}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SchemaError(f"cannot read the schema {str(path)!r}: {error.strerror}") from None


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
