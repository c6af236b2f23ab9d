"""What a party's process is started with: its own table, and public facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vertinumpyro.data import Schema
from vertinumpyro.dpvi import DPVI

__all__ = ["PartyTask"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyTask:
    """One party's part of a run. Nothing of another party's table is in it, not even where it lies.

    :ivar party: its name in the schema.
    :ivar schema: the public schema, as `Schema.to_dict` writes it.
    :ivar table: this party's file.
    :ivar build: makes the inference; a function that can be imported by name, or a `functools.partial` of one.
    """

    party: str
    schema: Mapping[str, Any]
    table: Path
    build: Callable[[], DPVI]

    def read_schema(self) -> Schema:
        """The public schema."""
        return Schema.from_dict(self.schema)
