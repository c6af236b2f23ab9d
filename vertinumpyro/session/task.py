"""What a party's process is started with: its own table, its own ledger, and public facts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import pandas as pd

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.core.workers import workers_of
from vertinumpyro.data import CsvFormat, Linkage, Schema, VerticalDataset, read_table, record_ids
from vertinumpyro.data.aggregation import records_of
from vertinumpyro.data.streaming import Spool, encoded_file
from vertinumpyro.privacy.account import ACCOUNT, Account, TotalLimit
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.session.party_computation import Method
from vertinumpyro.session.run import PRIVACY_RECORD
from vertinumpyro.transport import Communicator

_PLAN_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyTask:
    """One party's part of a run. Nothing of another party's table is in it, not even where it lies.

    :ivar party: its name in the schema, or among the holders.
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
    :ivar holders: the names of all that hold whole records of the schema, where each holds other ones; its one party
        says what columns they have. Empty where the schema's parties hold columns of the same records.
    :ivar linkage: the file of this party's linkage, where its table holds others than the common records too.
    :ivar told: the file that this party's process writes where it alone is told something of each record
        (`Session.reveal_to`); None takes one beside its table.
    :ivar read_options: how the file is read, as `read_table` takes it.
    :ivar spool: a folder on a disk with room: the file is read in blocks, and its encoded columns lie there, as in
        `VerticalDataset.from_files`.
    :ivar workers: who computes on blocks of its records, the party's own business: a number of processes, or the
        address of its Dask cluster, as there.
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
    holders: tuple[str, ...] = ()
    linkage: Path | None = None
    told: Path | None = None
    read_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spool: Path | None = None
    workers: int | str | None = None
    insecure_seed: int | None = None

    def read_schema(self) -> Schema:
        """The public schema.

        :raises ArgumentError: holders of whole records, and a schema of several parties; or names that are no list.
        """
        schema = Schema.from_dict(self.schema)
        if self.holders and (self.party not in self.holders or len(set(self.holders)) < max(2, len(self.holders))):
            raise ArgumentError(
                f"holders={self.holders} must be two or more names, {self.party!r} among them, each once"
            )
        if self.holders and len(schema.parties) > 1:
            raise ArgumentError(
                f"{', '.join(self.holders)} hold whole records, and the schema divides the columns among "
                f"{', '.join(schema.parties)}; put all columns under one party, whose name then says what the table is"
            )
        return schema

    def check_schema(self, communicator: Communicator, schema: Schema) -> None:
        """Compares the parties' schemas by digest: columns in another order would stand under each other's names.

        :raises SchemaError: they differ; names the parties whose schema is another.
        """
        own = schema.digest().encode()
        found = zip(self.parties, communicator.all_gather(own, len(own)), strict=True)
        if others := [repr(party) for party, digest in found if digest != own]:
            raise SchemaError(
                f"{self.party!r} has another schema than {', '.join(others)}: names, domains or the order of columns "
                "differ. Take one file everywhere; nothing was computed"
            )

    @property
    def parties(self) -> tuple[str, ...]:
        """Everybody who takes part with a table, in their order."""
        return self.holders or tuple(self.schema["parties"])

    @property
    def columns_of(self) -> str:
        """The schema's party whose columns the table has."""
        return next(iter(self.schema["parties"])) if self.holders else self.party

    @property
    def ledger_folder(self) -> Path:
        """Where this party keeps its records."""
        return self.table.with_name(self.table.name + ".ledger") if self.ledger is None else self.ledger

    def folder_of(self, plan_id: str) -> Path:
        """Where this party keeps what it has of a plan.

        :raises ArgumentError: the id, which others may have written, is no name of a folder.
        """
        if not _PLAN_ID.fullmatch(plan_id):
            raise ArgumentError("plan_id must be up to 64 letters, digits, _ and -: a party's record is named by it")
        return self.ledger_folder / plan_id

    def has_begun(self, plan_id: str) -> bool:
        """Whether this party has a plan on record.

        :raises PlanSpentError: it was closed when a check failed.
        """
        record = self.folder_of(plan_id) / PRIVACY_RECORD
        if not record.exists():
            return False
        read_record(record).refuse_failed()
        return True

    @property
    def told_file(self) -> Path:
        """Where this party's process writes what it alone is told."""
        return self.table.with_name(self.table.name + ".told.csv") if self.told is None else self.told

    @property
    def account(self) -> Account:
        """Of its data set, in that folder."""
        name = self.table.name if self.data_set is None else self.data_set
        return Account(self.ledger_folder / ACCOUNT, self.party, name, self.limit)

    def read_records(self, schema: Schema) -> tuple[VerticalDataset, Sequence[str]]:
        """This party's records, encoded, in ascending order of their ids, and these; of holders their ids are no use.

        :raises DataError: the table cannot be read, or breaks the schema.
        :raises AlignmentError: ids occur twice, or have changed since they were linked.
        :raises ArgumentError: there is no such folder, or there are no such workers.
        """
        own, workers = schema.restrict(self.columns_of), workers_of(self.workers)
        if self.spool is None:
            frame = self.read_frame(schema)
            dataset = VerticalDataset.from_records(own, {self.columns_of: frame}).computed_by(workers)
            return dataset, () if self.holders else sorted(record_ids(frame, schema, self.party))
        linkage = None if self.linkage is None else Linkage.load(self.linkage)
        written, spool = CsvFormat(**self.read_options), Spool(self.spool, findable=workers.count > 0)
        dtypes, columns, ids = encoded_file(own, self.columns_of, self.table, written, spool, workers, linkage)
        return VerticalDataset(own.with_dtypes(dtypes), {self.columns_of: columns}, workers), ids

    def read_frame(self, schema: Schema) -> pd.DataFrame:
        """This party's table: its common records alone, under their common ids, where they were linked.

        :raises DataError: the table cannot be read, or its ids have changed since they were linked.
        """
        frame = records_of(
            read_table(self.table, schema, self.columns_of, **self.read_options), schema, self.columns_of
        )
        return frame if self.linkage is None else Linkage.load(self.linkage).applied(frame, schema, self.party)
