"""JSON schemas of the TOML files, from the classes that read them: editors complete keys and mark mistakes by them.

An editor knows less than the reader (whether bounds ascend, whether a party exists), so what it accepts may still be
refused; what it marks is always wrong.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from vertinumpyro.data.real_columns import BinnedColumn
from vertinumpyro.data.schema_spec import COLUMN_TYPES

__all__ = ["columns_schema", "properties", "table"]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_PLAIN: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_ARGUMENT = re.compile(r"^(\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)


def columns_schema() -> dict[str, Any]:
    """Return the JSON schema of `schema.toml`: parties, columns, and the keys of each type of column."""
    names = list(COLUMN_TYPES)
    column = {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": names, "description": "What kind of values the column has."},
            "confirmed": {"const": True, "description": "Set by a person: the domain is public knowledge."},
        },
        "allOf": [
            {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": _of_type(name)}
            for name in names
        ],
    }
    columns = {"type": "object", "additionalProperties": column, "minProperties": 1}
    party = table({"columns": columns}, required=("columns",))
    return {
        "$schema": _DRAFT,
        "title": "The public description of all columns",
        **table(
            {
                "id_column": {"type": "string", "description": "By which the parties know their records."},
                "parties": {"type": "object", "additionalProperties": party, "minProperties": 1},
            },
            required=("parties",),
        ),
    }


def _of_type(name: str) -> dict[str, Any]:
    classes = [COLUMN_TYPES[name], *([BinnedColumn] if name == "real" else [])]  # a real with bins is one of these
    found: dict[str, Any] = {"type": {}, "confirmed": {}}
    for cls in classes:
        found |= properties(cls)
    fields = [field for cls in classes[:1] for field in dataclasses.fields(cls)]
    required = [f.name for f in fields if f.default is dataclasses.MISSING and len(classes) == 1]
    return table(found, required=required)


def table(found: Mapping[str, Any], required: typing.Sequence[str] = ()) -> dict[str, Any]:
    """Return a table with these keys and no others."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": dict(found), "additionalProperties": False, **needed}


def properties(cls: type) -> dict[str, Any]:
    """Return a JSON schema for each field of a dataclass, with what its docstring says of it."""
    hints, told = typing.get_type_hints(cls), _told(cls)
    return {
        field.name: _of(hints[field.name], field) | ({"description": told[field.name]} if field.name in told else {})
        for field in dataclasses.fields(cls)
    }


def _told(cls: type) -> dict[str, str]:
    """What the docstrings of a class and of those that it inherits from say of each field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        _, _, arguments = inspect.cleandoc(base.__doc__ or "").partition("\nArgs:\n")
        found |= {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(inspect.cleandoc(arguments))}
    return found


def _of(hint: Any, field: "dataclasses.Field[Any]") -> dict[str, Any]:
    if "choices" in field.metadata:
        return {"enum": list(field.metadata["choices"])}
    found = _of_hint(hint)
    if field.metadata.get("positive"):
        found |= {"exclusiveMinimum": 0}
    return found | ({"minimum": 0} if field.metadata.get("at_least_zero") else {})


def _of_hint(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type of Python's; no restriction where it has none."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [_of_hint(part) for part in parts if part is not type(None)]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is Literal:
        return {"enum": list(parts)}
    if origin is tuple:
        items = _of_hint(parts[0])
        size = {} if len(parts) == 2 and parts[1] is Ellipsis else {"minItems": len(parts), "maxItems": len(parts)}
        return {"type": "array", "items": items, **size}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _of_hint(parts[1])}
    return {"type": _PLAIN[hint]} if hint in _PLAIN else {}
