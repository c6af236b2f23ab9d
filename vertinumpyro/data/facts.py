"""What of a table is public: its schema and its number of records."""

from __future__ import annotations

import dataclasses
from typing import Protocol, final, runtime_checkable

from vertinumpyro.core.arguments import check_fields
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.schema import Schema, check_schema

__all__ = ["Facts", "TableFacts"]


@runtime_checkable
class Facts(Protocol):
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
