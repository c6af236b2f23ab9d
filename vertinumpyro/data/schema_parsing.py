"""A schema as plain dicts and lists: the columns that they describe, everything that is wrong with them, and the JSON
schemas by which editors complete the keys of TOML files and mark mistakes.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from vertinumpyro.core.errors import SchemaError, hidden_in
from vertinumpyro.core.validation import shown
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.column import Column
from vertinumpyro.data.constraints import Constraint, constraint_of
from vertinumpyro.data.date_columns import DateColumn
from vertinumpyro.data.number_columns import BinnedColumn, CountColumn, IntegerColumn, RealColumn
from vertinumpyro.data.row_rules import Rows, Take
from vertinumpyro.data.schema_checks import Place, suggest

#: Suffix of the arrays that say where a masked column is observed.
OBSERVED_SUFFIX = "_observed"

_HIDES = "holds a character that is not seen, or moves what stands beside it:"

COLUMN_TYPES: Mapping[str, type[Column]] = MappingProxyType(
    {c.type_name: c for c in (IntegerColumn, CountColumn, CategoricalColumn, BinaryColumn, RealColumn, DateColumn)}
)
"""Every column type, by its TOML `type`; a real with bins is a `BinnedColumn`."""


class Problem(NamedTuple):
    """One mistake in a schema: `where` is (), (party,) or (party, column)."""

    where: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where a schema's tables stand in its text."""

    file: str = ""
    lines: Mapping[tuple[str, ...], int] = dataclasses.field(default_factory=dict)

    def told(self, problem: Problem) -> str:
        """Return the problem after its file, line, party and column, as far as they are known."""
        place = [self.file] if self.file else []
        if problem.where:
            path = [key for pair in zip(("parties", "columns"), problem.where, strict=False) for key in pair]
            place += [f"line {line}" for line in [self.lines.get(tuple(path))] if line is not None]
            place.append(str(Place(*problem.where)))
        return f"{', '.join(place)}: {problem.text}" if place else problem.text

    def told_together(self, problems: Sequence[Problem]) -> str:
        """Return what several columns of a party have in common, with each one's line."""
        names = []
        for party, name in (problem.where for problem in problems):
            line = self.lines.get(("parties", party, "columns", name))
            names.append(repr(name) if line is None else f"{name!r} (line {line})")
        place = [*([self.file] if self.file else []), str(Place(problems[0].where[0])), f"{len(names)} columns"]
        return f"{', '.join(place)}: {', '.join(names)}: {problems[0].text.replace('its domain', 'the domain of each')}"


def refuse(problems: Sequence[Problem], places: Places | None = None) -> None:
    """Raise one `SchemaError` that tells all of the problems, unless there are none."""
    told = _paragraphs(problems, places or Places())
    if len(told) == 1:
        raise SchemaError(told[0])
    if told:
        raise SchemaError("\n  ".join([f"{len(told)} mistakes in the schema:", *told]))


def _paragraphs(problems: Sequence[Problem], places: Places) -> list[str]:
    """Each by itself, but a party's columns that nobody has confirmed in one paragraph."""
    drafted: dict[str, list[Problem]] = {}
    for problem in problems:
        if problem.text == _unconfirmed(False) and len(problem.where) == 2:
            drafted.setdefault(problem.where[0], []).append(problem)
    found = []
    for problem in problems:
        alike = drafted.get(problem.where[0], []) if problem.text == _unconfirmed(False) else []
        if len(alike) < 2:
            found.append(places.told(problem))
        elif problem is alike[0]:
            found.append(places.told_together(alike))
    return found


def party_problems(names: Mapping[str, object]) -> Iterator[str]:
    """Yield what is wrong with the names of one party's columns."""
    if not names:
        yield "has no columns; list at least one, or drop the party"
    for name in names:
        if not isinstance(name, str) or name == "":
            yield f"column name {name!r}; give a non-empty text"
        elif name.endswith(OBSERVED_SUFFIX):
            yield f"column {name!r} ends in {OBSERVED_SUFFIX!r}, which marks masks; rename it"
        elif hidden := hidden_in(name):
            yield f"column {name!r} {_HIDES} {hidden}; rename it, here and in the party's table"


def label_problems(column: object) -> Iterator[str]:
    """Yield which of a column's own texts, labels above all, hold characters that nobody sees."""
    for field in dataclasses.fields(column) if isinstance(column, Column) else ():
        value = getattr(column, field.name)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (hidden := hidden_in(text)):
                yield f"{field.name}: {shown(text)} {_HIDES} {hidden}; take it out, here and in the party's table"


def schema_problems(columns: Mapping[str, Mapping[str, object]], id_column: object) -> Iterator[Problem]:
    """Yield what is wrong with the names of a schema's parties, columns and ids."""
    if not columns:
        yield Problem((), "the schema has no parties; list at least one")
    if not isinstance(id_column, str) or id_column == "":
        yield Problem((), f"id_column = {shown(id_column)}; give a non-empty text")
    elif hidden := hidden_in(id_column):
        yield Problem((), f"id_column = {shown(id_column)} {_HIDES} {hidden}; rename it, here and in the tables")
    owners: dict[str, str] = {}
    for party, names in columns.items():
        if not isinstance(party, str) or party == "":
            yield Problem((), f"party name {party!r}; give a non-empty text")
        elif hidden := hidden_in(party):
            yield Problem((), f"party {party!r} {_HIDES} {hidden}; rename it")
        yield from (Problem((party,), text) for text in party_problems(names))
        for name, column in names.items():
            yield from (Problem((party, name), text) for text in label_problems(column))
            if name in owners:
                yield Problem((), f"column {name!r} is at {owners[name]!r} and at {party!r}; rename one")
            if isinstance(id_column, str) and name == id_column:
                yield Problem((party, name), "is the id column; rename it, or id_column")
            owners[name] = party


def columns_from(spec: Mapping[str, Any]) -> tuple[dict[str, dict[str, Column | None]], list[Problem]]:
    """Return each party's columns, None for one that cannot be built, and what is wrong with the description."""
    if not isinstance(spec, Mapping):
        return {}, [Problem((), f"{shown(spec)} is no mapping; give what a schema's TOML would hold")]
    problems = _unknown_keys((), "the schema: ", spec, ("id_column", "parties", "constraint"))
    built: dict[str, dict[str, Column | None]] = {}
    for party, part in _tables((), "parties", spec.get("parties", {}), problems):
        problems += _unknown_keys((party,), "", part, ("columns", "rows"))
        built[party] = {}
        for name, fields in _tables((party,), "columns", part.get("columns", {}), problems):
            column, found = _column_from((party, name), fields)
            problems += found
            built[party][name] = column
    return built, problems


def constraints_from(spec: Mapping[str, Any]) -> tuple[list[Constraint], list[Problem]]:
    """Return what is known of every record, and what is wrong with it."""
    given = spec.get("constraint", [])
    if not isinstance(given, list):
        return [], [Problem((), "constraint is no list of tables; write [[constraint]]")]
    found: list[Constraint] = []
    problems: list[Problem] = []
    for number, fields in enumerate(given, 1):
        try:
            found.append(constraint_of(fields))
        except SchemaError as error:
            problems.append(Problem((), f"constraint {number}: {error}"))
    return found, problems


def rows_from(
    spec: Mapping[str, Any], columns: Mapping[str, Mapping[str, Column | None]]
) -> tuple[dict[str, Rows], list[Problem]]:
    """Return the rules of each party whose table has several rows of an id, and what is wrong with them."""
    found: dict[str, Rows] = {}
    problems: list[Problem] = []
    for party, own in columns.items():
        part = spec["parties"][party].get("rows")
        if part is None:
            continue
        try:
            found[party] = _rows_from(part)
        except SchemaError as error:
            problems.append(Problem((party,), f"rows: {error}"))
            continue
        known = {name: column for name, column in own.items() if column is not None}
        if len(known) == len(own):
            problems += row_problems((party,), found[party], known)
    return found, problems


def row_problems(where: tuple[str, ...], rows: Rows, columns: Mapping[str, Column]) -> Iterator[Problem]:
    """Yield what is wrong with the rules for a party's columns."""
    for name, text in rows.problems(columns):
        yield Problem(
            (*where, name) if name and where else where, text if where or not name else f"column {name!r} {text}"
        )


def _rows_from(spec: Any) -> Rows:
    if not isinstance(spec, Mapping):
        raise SchemaError("is not a table; write [parties.NAME.rows]")
    fields = dict(spec)
    if problem := _unconfirmed(fields.pop("confirmed", True), "the rules follow from"):
        raise SchemaError(problem)
    taken = fields.pop("take", {})
    rest = _fields_of(Rows, fields, ("take",))
    if not isinstance(taken, Mapping):
        raise SchemaError("take is not a table; write [parties.NAME.rows.take.COLUMN]")
    rules = {}
    for name, own in taken.items():
        try:
            rules[name] = Take(**_fields_of(Take, own))
        except SchemaError as error:
            raise SchemaError(f"take.{name}: {error}") from None
    return Rows(**rest, take=rules)


def _fields_of(cls: type, spec: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arguments of a class of rules, as they were given."""
    if not isinstance(spec, Mapping):
        raise SchemaError("is not a table")
    fields = dataclasses.fields(cls)
    known = tuple(field.name for field in fields)
    if unknown := _unknown_keys((), "", spec, known):
        raise SchemaError(unknown[0].text)
    if absent := [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in (*spec, *but)]:
        raise SchemaError(f"needs {', '.join(absent)}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()}


def column_to(column: Column) -> dict[str, Any]:
    """Return a column as the plain dict that describes it."""
    spec: dict[str, Any] = {"type": column.type_name}
    for field in dataclasses.fields(column):
        value = getattr(column, field.name)
        if value != field.default:
            spec[field.name] = list(value) if isinstance(value, tuple) else value
    return spec


def _tables(
    where: tuple[str, ...], key: str, value: Any, problems: list[Problem]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables under a key, by name; what is no table goes to the problems."""
    advice = "is not a table; write [parties.NAME.columns.NAME]"
    if not isinstance(value, Mapping):
        problems.append(Problem(where, f"{key}: {advice}"))
        return
    for name, table in value.items():
        if isinstance(table, Mapping):
            yield name, table
        else:
            problems.append(Problem((*where, name), advice))


def _column_from(where: tuple[str, ...], spec: Mapping[str, Any]) -> tuple[Column | None, list[Problem]]:
    fields = dict(spec)
    if problem := _unconfirmed(fields.pop("confirmed", True)):
        _, others = _column_from(where, fields)
        return None, [Problem(where, problem), *others]
    column_class = _class_for(fields.pop("type", None), fields)
    if isinstance(column_class, str):
        return None, [Problem(where, column_class)]
    known = [field.name for field in dataclasses.fields(column_class)]
    if column_class is RealColumn:
        known += ["bins", "edges"]  # for the suggestion: either would have made it a BinnedColumn
    if unknown := _unknown_keys(where, "", fields, (*known, "type")):
        return None, unknown
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
    try:
        return column_class(**values), []
    except SchemaError as error:
        return None, [Problem(where, str(error))]
    except TypeError:
        pass
    required = [f.name for f in dataclasses.fields(column_class) if f.default is dataclasses.MISSING]
    return None, [Problem(where, f"needs {', '.join(required)}")]


def _unconfirmed(confirmed: object, what: str = "its domain was read from") -> str:
    """What is wrong with a drafted mark; empty where a person has confirmed what it stands at."""
    if confirmed is True:
        return ""
    if confirmed is not False:
        return f"confirmed = {confirmed!r}; give true once its domain is public knowledge"
    return (
        f"{what} private records, which no guarantee covers: replace it by public knowledge, or keep "
        "what is public as it stands, and set confirmed = true"
    )


def _class_for(type_name: object, fields: Mapping[str, Any]) -> type[Column] | str:
    """The class of a column, or what is wrong with its type."""
    if type_name is None:
        return f"has no type; known: {', '.join(map(repr, COLUMN_TYPES))}"
    if not isinstance(type_name, str) or type_name not in COLUMN_TYPES:
        return f"unknown type {type_name!r}; {suggest(type_name, COLUMN_TYPES)}"
    binned = type_name == "real" and ("bins" in fields or "edges" in fields)
    return BinnedColumn if binned else COLUMN_TYPES[type_name]


def _unknown_keys(where: tuple[str, ...], place: str, spec: Mapping[str, Any], known: tuple[str, ...]) -> list[Problem]:
    unknown = [key for key in spec if key not in known]
    return [Problem(where, f"{place}unknown key {key!r}; {suggest(key, known)}") for key in unknown]


_DRAFT = "http://json-schema.org/draft-07/schema#"
_PLAIN: Mapping[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_ARGUMENT = re.compile(r"^:param (\w+): (.*(?:\n {4,}.*)*)", re.MULTILINE)


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
    take = {"type": "object", "additionalProperties": table(properties(Take), required=("rule",))}
    rows = table(properties(Rows) | {"take": take, "confirmed": column["properties"]["confirmed"]}, ("per", "take"))
    rows["description"] = "How one record follows from several rows of one id."
    party = table({"rows": rows, "columns": columns}, required=("columns",))
    return {
        "$schema": _DRAFT,
        "title": "The public description of all columns",
        **table(
            {
                "id_column": {"type": "string", "description": "By which the parties know their records."},
                "constraint": {"type": "array", "items": _constraints(), "description": "What every twin keeps."},
                "parties": {"type": "object", "additionalProperties": party, "minProperties": 1},
            },
            required=("parties",),
        ),
    }


def _constraints() -> dict[str, Any]:
    label: dict[str, Any] = {"type": ["string", "number", "boolean"]}
    ends = table({"min": {"type": ["string", "number"]}, "max": {"type": ["string", "number"]}})
    part = {"anyOf": [{"type": "array", "items": label, "minItems": 1}, ends]}
    impossible = {"type": "object", "additionalProperties": part, "minProperties": 2}
    order = {"type": "array", "items": {"type": "string"}, "minItems": 2}
    values = {"type": "object", "additionalProperties": label, "minProperties": 1}
    determined = {"column": {"type": "string"}, "by": {"type": "string"}, "values": values}
    kinds = {"impossible": impossible}, {"order": order}, determined
    return {"anyOf": [table(kind, required=list(kind)) for kind in kinds]}


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
        fields = _ARGUMENT.findall(inspect.cleandoc(base.__doc__ or ""))
        found |= {name: " ".join(text.split()) for name, text in fields}
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
