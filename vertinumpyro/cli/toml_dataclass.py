"""From one table of a TOML file to a frozen dataclass: unknown keys, types and ranges are checked by name."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.wording import suggest

__all__ = ["at_least_zero", "check_keys", "one_of", "positive", "read_section"]

_Section = TypeVar("_Section")

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Mapping: "a table",
    list: "a list of texts",
}


def positive(default: Any = None) -> Any:
    """A field for a number above 0."""
    return dataclasses.field(default=default, metadata={"positive": True})


def at_least_zero(default: int = 0) -> Any:
    """A field for a number from 0 on."""
    return dataclasses.field(default=default, metadata={"at_least_zero": True})


def one_of(choices: typing.Iterable[str], default: str) -> Any:
    """A field for one of some names."""
    return dataclasses.field(default=default, metadata={"choices": tuple(choices)})


def check_keys(place: str, table: Mapping[str, Any], known: typing.Iterable[str]) -> None:
    """Refuse keys that nobody reads: a misspelt setting would silently keep its default.

    :raises ArgumentError: names the key and the closest known one.
    """
    known = list(known)
    for key in table:
        if key not in known:
            raise ArgumentError(f"{place}: unknown key {key!r}; {suggest(key, known)}")


def read_section(cls: type[_Section], place: str, table: Any) -> _Section:
    """Build `cls` from a table of the file.

    :param cls: a dataclass; its annotations give each key's type, `positive` its range.
    :raises ArgumentError: names the place, the key and the fix.
    """
    if not isinstance(table, Mapping):
        raise ArgumentError(f"{place} is not a table; write its keys under {place}")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_keys(place, table, fields)
    hints = typing.get_type_hints(cls)
    values = {key: _checked(f"{place} {key}", value, hints[key]) for key, value in table.items()}
    for key, value in values.items():
        if fields[key].metadata.get("positive") and not value > 0:
            raise ArgumentError(f"{place} {key} = {value}; give a number above 0")
        if fields[key].metadata.get("at_least_zero") and value < 0:
            raise ArgumentError(f"{place} {key} = {value}; give 0 or more")
        if value not in fields[key].metadata.get("choices", (value,)):
            raise ArgumentError(f"{place} {key} = {value!r}; {suggest(value, fields[key].metadata['choices'])}")
    return cls(**values)


def _checked(place: str, value: Any, hint: Any) -> Any:
    """The value as its hint wants it; the settings are public, so an error may quote them."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        kinds = [(option, typing.get_origin(option) or option) for option in options]
        hint = next((option for option, kind in kinds if kind is not Literal and isinstance(value, kind)), options[0])
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ArgumentError(f"{place} = {value!r}; {suggest(value, choices)}")
        return value
    expected = typing.get_origin(hint) or hint
    expected = Mapping if issubclass(expected, Mapping) else expected
    if expected is float and type(value) is int:
        value = float(value)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ArgumentError(f"{place} = {value!r}; give {_WORDS[expected]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{place} = {value!r}; give a finite number")
    return value
