"""What a party's process is started with: its own table, its own ledger, and public facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import pandas as pd

from vertinumpyro.data import Linkage, Schema, read_table
from vertinumpyro.privacy.account import ACCOUNT, Account, TotalLimit
from vertinumpyro.session.work import Method

__all__ = ["PartyTask"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyTask:
    """One party's part of a run. Nothing of another party's table is in it, not even where it lies.

    :ivar party: its name in the schema.
    :ivar schema: the public schema, as `Schema.to_dict` writes it.
    :ivar table: this party's file.
    :ivar build: makes the method; a function that can be imported by name, or a `functools.partial` of one.
    :ivar ledger: the party's own folder of records, one for each plan that its table ever served; None takes the folder
        `<table>.ledger` beside the table. Whoever starts the processes does not choose it by choosing a run's folder,
        so a plan is spent once here, however often it is started.
    :ivar approved: the fingerprint of the one plan that this party agreed to; None agrees to every plan that it is
        asked for, and each of them is a budget of its own, whose cost adds up.
    :ivar data_set: what the party calls the people of its table, whose account all plans go to; None takes the file's
        name.
    :ivar limit: what all plans on that data set may cost together.
    :ivar linkage: the file of this party's linkage, where its table holds others than the common records too.
    :ivar read_options: how the file is read, as `read_table` takes it.
    :ivar insecure_seed: noise from a seed, for tests: no privacy at all.
    """

    party: str
    schema: Mapping[str, Any]
    table: Path
    build: Callable[[], Method]
    ledger: Path | None = None
    approved: str | None = None
    data_set: str | None = None
    limit: TotalLimit | None = None
    linkage: Path | None = None
    read_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    insecure_seed: int | None = None

    def read_schema(self) -> Schema:
        """The public schema."""
        return Schema.from_dict(self.schema)

    @property
    def ledger_folder(self) -> Path:
        """Where this party keeps its records."""
        return self.table.with_name(self.table.name + ".ledger") if self.ledger is None else self.ledger

    @property
    def account(self) -> Account:
        """Of its data set, in that folder."""
        name = self.table.name if self.data_set is None else self.data_set
        return Account(self.ledger_folder / ACCOUNT, self.party, name, self.limit)

    def read_frame(self, schema: Schema) -> pd.DataFrame:
        """This party's table: its common records alone, under their common ids, where they were linked.

        :raises DataError: the table cannot be read, or its ids have changed since they were linked.
        """
        frame = read_table(self.table, schema, self.party, **self.read_options)
        return frame if self.linkage is None else Linkage.load(self.linkage).applied(frame, schema, self.party)
