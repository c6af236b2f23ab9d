"""The public schema: which party holds which column, and every column's public domain; and what of a table is public,
its schema and its number of records.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, final, runtime_checkable

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.core.validation import check_fields, shown
from vertinumpyro.data import toml
from vertinumpyro.data.column import Column
from vertinumpyro.data.constraints import Constraint, WithoutRows, check_constraints, constraint_of, without_rows
from vertinumpyro.data.row_rules import Rows
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.data.schema_parsing import (
    Places,
    Problem,
    column_to,
    columns_from,
    constraints_from,
    party_problems,
    refuse,
    row_problems,
    rows_from,
    schema_problems,
)


@dataclasses.dataclass(frozen=True, eq=False)
class PartySchema:
    """The columns that one party holds, in order.

    :param columns: of one record.
    :param rows: how a record follows from several rows of one id; None where the party's table has one row each.
    :raises SchemaError: there are none, or a name is empty or ends in ``_observed``, or a rule does not fit its column.
    """

    columns: Mapping[str, Column]
    rows: Rows | None = None

    def __post_init__(self) -> None:
        """Check the names and freeze the mapping."""
        strangers = [name for name, column in self.columns.items() if not isinstance(column, Column)]
        problems = [f"column {name!r} is not a Column; build e.g. a RealColumn" for name in strangers]
        refuse([Problem((), text) for text in (*party_problems(self.columns), *problems)])
        refuse([] if self.rows is None else list(row_problems((), self.rows, self.columns)))
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))

    @property
    def sources(self) -> Mapping[str, Column]:
        """The columns of the party's file that are read, and as what: its own, or those that the rules take."""
        return self.columns if self.rows is None else self.rows.sources(self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain dicts: the frozen mapping itself does not pickle."""
        return PartySchema, (dict(self.columns), self.rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Schema:
    """The public description of a vertically partitioned table.

    Two schemas are equal when their TOML is: same parties and columns, in the same order.

    :param parties: each party's columns, in order.
    :param id_column: the column by which every party knows its records. Never encoded, never modelled.
    :param constraints: what is publicly known of every record, which every twin keeps.
    :raises SchemaError: no party, a party without columns, a column at two parties, a column named as the id column,
        a constraint that does not fit its columns.
        The message names party and column and the fix.
    """

    parties: Mapping[str, PartySchema]
    id_column: str = "id"
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        """Check that the parties' columns make one table, and freeze the mapping."""
        if not isinstance(self.parties, Mapping):
            refuse([Problem((), f"parties={shown(self.parties)} is no mapping; give {{name: PartySchema}}")])
        strangers = [party for party, part in self.parties.items() if not isinstance(part, PartySchema)]
        refuse([Problem((str(party),), "is not a PartySchema") for party in strangers])
        refuse(list(schema_problems({party: part.columns for party, part in self.parties.items()}, self.id_column)))
        for party, part in self.parties.items():
            if part.rows is not None and part.rows.per != self.id_column:
                refuse(
                    [Problem((party,), f"rows: per = {shown(part.rows.per)}; give the id column, {self.id_column!r}")]
                )
        object.__setattr__(self, "parties", MappingProxyType(dict(self.parties)))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        check_constraints(self.constraints, self.columns)

    @property
    def columns(self) -> dict[str, Column]:
        """Every column of every party, in order."""
        return {name: column for part in self.parties.values() for name, column in part.columns.items()}

    @property
    def kept_by_twins(self) -> tuple[Constraint | WithoutRows, ...]:
        """The constraints, and what follows from the parties' rules about rows."""
        found = (without_rows(part.rows, part.columns) for part in self.parties.values() if part.rows is not None)
        return *self.constraints, *(one for one in found if one is not None)

    @property
    def dtypes(self) -> dict[str, str | None]:
        """The name of every column's storage type; None is the default."""
        return {name: column.dtype for name, column in self.columns.items()}

    def with_dtypes(self, dtypes: Mapping[str, str | None]) -> Schema:
        """Return this schema with other storage types of decoded columns: ``{column: name}``, in any number.

        :raises SchemaError: no such column, or a type that cannot hold a column.
        """
        for name in dtypes:
            self.party_of(name)
        parts = {
            party: PartySchema(
                {name: _typed(column, Place(party, name), dtypes) for name, column in part.columns.items()}, part.rows
            )
            for party, part in self.parties.items()
        }
        return Schema(parts, self.id_column, self.constraints)

    def column_names(self, party: str) -> tuple[str, ...]:
        """Return one party's column names, in order; a `SchemaError` for an unknown party."""
        return tuple(self._party(party).columns)

    def party_of(self, column: str) -> str:
        """Return the party that holds a column; a `SchemaError` for an unknown column."""
        for party, part in self.parties.items():
            if column in part.columns:
                return party
        raise SchemaError(f"no party holds column {column!r}; {suggest(column, self.columns)}")

    def restrict(self, party: str) -> Schema:
        """Return the schema of one party alone."""
        part = self._party(party)
        return Schema({party: part}, self.id_column, self._known_of(part.columns))

    def select(self, columns: Iterable[str]) -> Schema:
        """Return the schema of some columns of the records; parties without one are not in it, nor rules for rows, nor
        constraints that need other columns.
        """
        kept = set(columns)
        parts = {
            party: {name: column for name, column in part.columns.items() if name in kept}
            for party, part in self.parties.items()
        }
        kept_parties = {party: PartySchema(own) for party, own in parts.items() if own}
        return Schema(kept_parties, self.id_column, self._known_of(kept))

    def _known_of(self, columns: Collection[str]) -> tuple[Constraint, ...]:
        return tuple(one for one in self.constraints if set(one.names) <= set(columns))

    def _party(self, party: str) -> PartySchema:
        if party not in self.parties:
            raise SchemaError(f"no party {party!r}; {suggest(party, self.parties)}")
        return self.parties[party]

    def digest(self) -> str:
        """Return 32 hexadecimal digits that identify the parties, columns and domains of this public schema.

        Storage types do not enter them: one table in two formats, or two clients' tables, are of one schema.
        """
        text = self.with_dtypes(dict.fromkeys(self.columns)).to_toml()
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @classmethod
    def from_toml(cls, source: str | Path) -> Schema:
        """Read a schema from TOML text, or from a file given by a `Path` or a name ending in ``.toml``.

        :raises SchemaError: the file is missing, is not TOML, or does not describe a schema; the message tells every
            mistake in it, with the line on which the column begins.
        """
        text, file = toml.read(source)
        spec = toml.parse(text, file)
        return cls._of(spec, Places(file=file, lines=toml.header_lines(text)))

    def to_toml(self) -> str:
        """Return TOML text that `from_toml` reads back to an equal schema."""
        return self._text

    @functools.cached_property
    def _text(self) -> str:
        """Made once: schemas are compared and looked up at every step of the way."""
        return toml.dump(self.to_dict())

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Schema:
        """Build a schema from the plain dicts and lists that its TOML would hold.

        :raises SchemaError: unknown keys (with a suggestion), unknown types, bad domains; the message names the party
            and the column of each.
        """
        return cls._of(spec, Places())

    @classmethod
    def _of(cls, spec: Mapping[str, Any], places: Places) -> Schema:
        columns, problems = columns_from(spec)
        if problems and not columns:
            refuse(problems, places)
        id_column = spec.get("id_column", "id")
        rows, of_rows = rows_from(spec, columns)
        constraints, of_constraints = constraints_from(spec)
        refuse([*problems, *of_rows, *of_constraints, *schema_problems(columns, id_column)], places)
        parts = {party: {n: c for n, c in part.items() if c is not None} for party, part in columns.items()}
        built = {party: PartySchema(part, rows.get(party)) for party, part in parts.items()}
        return cls(built, id_column, tuple(constraints))

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists that `from_dict` reads back to an equal schema."""
        parties = {
            party: {
                **({} if part.rows is None else {"rows": part.rows.to_dict()}),
                "columns": {name: column_to(column) for name, column in part.columns.items()},
            }
            for party, part in self.parties.items()
        }
        known = {"constraint": [one.to_dict() for one in self.constraints]} if self.constraints else {}
        return {"id_column": self.id_column, **known, "parties": parties}

    def to_sdmetrics(self) -> dict[str, Any]:
        """Return the metadata of one table, in the tables' storage types, as SDMetrics' reports take them."""
        return {"columns": {name: _sdmetrics(column) for name, column in self.columns.items()}}

    def __eq__(self, other: object) -> bool:
        """Compare the schemas' public text."""
        return isinstance(other, Schema) and self.to_toml() == other.to_toml()

    def __hash__(self) -> int:
        """Hash the schema's public text."""
        return hash(self.to_toml())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain dicts: the frozen mapping itself does not pickle."""
        return _schema, (dict(self.parties), self.id_column, [one.to_dict() for one in self.constraints])


def _schema(parties: Mapping[str, PartySchema], id_column: str, constraints: Iterable[Any] = ()) -> Schema:
    return Schema(parties, id_column, tuple(map(constraint_of, constraints)))


def _sdmetrics(column: Column) -> dict[str, Any]:
    if column.type_name == "date":
        written = getattr(column, "format", None)
        return {"sdtype": "datetime", **({"datetime_format": written} if written else {})}
    if column.type_name in ("categorical", "binary"):
        return {"sdtype": "boolean" if (column.dtype or "").startswith("bool") else "categorical"}
    return {"sdtype": "numerical"}


def _typed(column: Column, place: Place, dtypes: Mapping[str, str | None]) -> Column:
    try:
        return dataclasses.replace(column, dtype=dtypes.get(place.column, column.dtype))
    except SchemaError as error:
        raise SchemaError(f"{place}: {error}") from None


def check_schema(schema: object) -> None:
    """Raise an `ArgumentError` where something else than a `Schema` was given: a path, a table."""
    if not isinstance(schema, Schema):
        raise ArgumentError(f'schema={shown(schema)} is no Schema; read one: Schema.from_toml("schema.toml")')


@runtime_checkable
class DatasetInfo(Protocol):
    """All that a plan needs: a `TableFacts`, a `VerticalDataset` or a session."""

    @property
    def schema(self) -> Schema:
        """The public schema."""
        ...

    @property
    def num_records(self) -> int:
        """N, public."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the schema's order."""
        ...


@final
@dataclasses.dataclass(frozen=True)
class TableFacts:
    """Schema and N of a table that is elsewhere, or that nobody has opened yet.

    :ivar holders: who hold whole records of it, each other ones; empty where the schema's parties hold columns.
    :raises ArgumentError: there are no records.
    """

    schema: Schema
    num_records: int
    holders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_schema(self.schema)
        check_fields(self)
        if self.num_records < 1:
            raise ArgumentError(f"num_records={self.num_records}; give 1 or more")

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties' names, in the schema's order; or the holders'."""
        return self.holders or tuple(self.schema.parties)
