"""The public schema: which party holds which column, and every column's public domain.

    id_column = "person_id"

    [parties.insurer.columns.plan]
    type = "categorical"
    categories = ["a", "b"]

    [parties.clinic.columns.disea]
    type = "real"
    bounds = [0, 60]
    bins = 16

Nothing in it is inferred from a table, so it can be published, compared and hashed freely.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vertinumpyro.core.errors import SchemaError
from vertinumpyro.data import schema_text
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.column import Column
from vertinumpyro.data.domain import require
from vertinumpyro.data.integer_columns import CountColumn, IntegerColumn
from vertinumpyro.data.real_columns import BinnedColumn, RealColumn
from vertinumpyro.data.wording import Place, suggest

#: Suffix of the arrays that say where a column with missing = "mask" is observed.
OBSERVED_SUFFIX = "_observed"

_TYPES: Mapping[str, type[Column]] = MappingProxyType(
    {c.type_name: c for c in (IntegerColumn, CountColumn, CategoricalColumn, BinaryColumn, RealColumn)}
)


@dataclasses.dataclass(frozen=True, eq=False)
class PartySchema:
    """The columns that one party holds, in order.

    Raises:
        SchemaError: there are none, or a name is empty or ends in ``_observed``.
    """

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        """Check the names and freeze the mapping."""
        require(len(self.columns) > 0, "has no columns; list at least one, or drop the party")
        for name, column in self.columns.items():
            require(isinstance(name, str) and name != "", f"column name {name!r}; give a non-empty text")
            require(
                not name.endswith(OBSERVED_SUFFIX),
                f"column {name!r} ends in {OBSERVED_SUFFIX!r}, which marks masks; rename it",
            )
            require(isinstance(column, Column), f"column {name!r} is not a Column; build e.g. a RealColumn")
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain dicts: the frozen mapping itself does not pickle."""
        return PartySchema, (dict(self.columns),)


@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
    """The public description of a vertically partitioned table.

    Two schemas are equal when their TOML is: same parties and columns, in the same order.

    Args:
        parties: each party's columns, in order.
        id_column: the column by which every party knows its records. Never encoded, never modelled.

    Raises:
        SchemaError: no party, a party without columns, a column at two parties, a column named as the id
            column. The message names party and column and the fix.
    """

    parties: Mapping[str, PartySchema]
    id_column: str = "id"

    def __post_init__(self) -> None:
        """Check that the parties' columns make one table, and freeze the mapping."""
        require(len(self.parties) > 0, "the schema has no parties; list at least one")
        named = isinstance(self.id_column, str) and self.id_column != ""
        require(named, f"id_column = {self.id_column!r}; give a non-empty text")
        owners: dict[str, str] = {}
        for party, name in self._pairs():
            require(name not in owners, f"column {name!r} is at {owners.get(name)!r} and at {party!r}; rename one")
            require(name != self.id_column, f"{Place(party, name)}: is the id column; rename it, or id_column")
            owners[name] = party
        object.__setattr__(self, "parties", MappingProxyType(dict(self.parties)))

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for party, part in self.parties.items():
            require(isinstance(party, str) and party != "", f"party name {party!r}; give a non-empty text")
            require(isinstance(part, PartySchema), f"{Place(party)}: is not a PartySchema")
            yield from ((party, name) for name in part.columns)

    @property
    def columns(self) -> dict[str, Column]:
        """Every column of every party, in order."""
        return {name: column for part in self.parties.values() for name, column in part.columns.items()}

    def column_names(self, party: str) -> tuple[str, ...]:
        """Return one party's column names, in order; a `SchemaError` for an unknown party."""
        return tuple(self._party(party).columns)

    def party_of(self, column: str) -> str:
        """Return the party that holds a column; a `SchemaError` for an unknown column."""
        for party, part in self.parties.items():
            if column in part.columns:
                return party
        raise SchemaError(f"no party holds column {column!r}; {suggest(column, self.columns)}")

    def restrict(self, party: str) -> "Schema":
        """Return the schema of one party alone."""
        return Schema({party: self._party(party)}, self.id_column)

    def _party(self, party: str) -> PartySchema:
        if party not in self.parties:
            raise SchemaError(f"no party {party!r}; {suggest(party, self.parties)}")
        return self.parties[party]

    def digest(self) -> str:
        """Return 32 hexadecimal digits that identify this public schema; no table enters them."""
        return hashlib.blake2b(self.to_toml().encode(), digest_size=16).hexdigest()

    @classmethod
    def from_toml(cls, source: str | Path) -> "Schema":
        """Read a schema from TOML text, or from a file given by a `Path` or a name ending in ``.toml``.

        Raises:
            SchemaError: the file is missing, is not TOML, or does not describe a schema.
        """
        return cls.from_dict(schema_text.load(source))

    def to_toml(self) -> str:
        """Return TOML text that `from_toml` reads back to an equal schema."""
        return schema_text.dump(self.to_dict())

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> "Schema":
        """Build a schema from the plain dicts and lists that its TOML would hold.

        Raises:
            SchemaError: an unknown key (with a suggestion), an unknown type, or a bad domain; the message
                names party and column.
        """
        _check_keys("the schema", spec, ("id_column", "parties"))
        parties = _table("parties", spec.get("parties", {}))
        built = {party: _party_from(party, part) for party, part in parties.items()}
        return cls(built, spec.get("id_column", "id"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists that `from_dict` reads back to an equal schema."""
        parties = {
            party: {"columns": {name: _column_to(column) for name, column in part.columns.items()}}
            for party, part in self.parties.items()
        }
        return {"id_column": self.id_column, "parties": parties}

    def __eq__(self, other: object) -> bool:
        """Compare the schemas' public text."""
        return isinstance(other, Schema) and self.to_toml() == other.to_toml()

    def __hash__(self) -> int:
        """Hash the schema's public text."""
        return hash(self.to_toml())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain dicts: the frozen mapping itself does not pickle."""
        return Schema, (dict(self.parties), self.id_column)


def _party_from(party: str, spec: Any) -> PartySchema:
    place = str(Place(party))
    _check_keys(place, _table(place, spec), ("columns",))
    columns = _table(f"{place}, columns", spec.get("columns", {}))
    built = {name: _column_from(str(Place(party, name)), column) for name, column in columns.items()}
    try:
        return PartySchema(built)
    except SchemaError as error:
        raise SchemaError(f"{place}: {error}") from None


def _column_from(place: str, spec: Any) -> Column:
    fields: dict[str, Any] = dict(_table(place, spec))
    column_class = _class_for(place, fields.pop("type", None), fields)
    known = [field.name for field in dataclasses.fields(column_class)]
    if column_class is RealColumn:
        known += ["bins", "edges"]  # for the suggestion: either would have made it a BinnedColumn
    _check_keys(place, fields, (*known, "type"))
    try:
        return column_class(**_tuples(fields))
    except SchemaError as error:
        raise SchemaError(f"{place}: {error}") from None
    except TypeError:
        pass
    required = [f.name for f in dataclasses.fields(column_class) if f.default is dataclasses.MISSING]
    raise SchemaError(f"{place}: needs {', '.join(required)}")


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def _class_for(place: str, type_name: object, fields: Mapping[str, Any]) -> type[Column]:
    if type_name is None:
        raise SchemaError(f"{place}: has no type; known: {', '.join(map(repr, _TYPES))}")
    if not isinstance(type_name, str) or type_name not in _TYPES:
        raise SchemaError(f"{place}: unknown type {type_name!r}; {suggest(type_name, _TYPES)}")
    binned = type_name == "real" and ("bins" in fields or "edges" in fields)
    return BinnedColumn if binned else _TYPES[type_name]


def _column_to(column: Column) -> dict[str, Any]:
    spec: dict[str, Any] = {"type": column.type_name}
    for field in dataclasses.fields(column):
        value = getattr(column, field.name)
        if value != field.default:
            spec[field.name] = list(value) if isinstance(value, tuple) else value
    return spec


def _table(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{place}: is not a table; write [parties.NAME.columns.NAME]")
    return value


def _check_keys(place: str, spec: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in spec:
        if key not in known:
            raise SchemaError(f"{place}: unknown key {key!r}; {suggest(key, known)}")
