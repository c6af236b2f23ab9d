"""A run's tables: all in this process, or each in its party's own when the backend works between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from vertinumpyro.cli.config import config_of
from vertinumpyro.cli.job import Job
from vertinumpyro.cli.methods.base import method_of
from vertinumpyro.cli.terminal import checklist_item, console
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import TableFacts, VerticalDataset
from vertinumpyro.reports.plain_language import count
from vertinumpyro.secure import BetweenProcesses
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Method, PartyTask, ProcessSession

__all__ = ["checked_records", "cost_lines", "needed", "opened", "parties_of_public_table", "party_method"]


def needed(job: Job) -> bool:
    """Whether the parties must be processes of their own."""
    return isinstance(job.method.method.backend, BetweenProcesses)


@contextmanager
def opened(job: Job) -> Iterator[VerticalDataset | ProcessSession]:
    """The records: here, or at parties in their processes, of which this one opens no table."""
    if needed(job):
        with _started(job) as session:
            yield session
    else:
        yield job.dataset()


def checked_records(job: Job) -> TableFacts:
    """The check of files and records, each in its party's own process; what a plan needs of them."""
    with checklist_item("records") as found:
        with _started(job) as session:
            if job.config.data.holders:
                found += [f"{count(session.num_records, 'record')} together, at {', '.join(session.parties)}"]
            else:
                found += [f"{count(session.num_records, 'record')} matched by a keyed digest of their ids"]
            found += ["all values in their public domains", "each table in its party's process"]
        return TableFacts(session.schema, session.num_records, job.config.holders)


def cost_lines(backend: Any, computations: Sequence[tuple[Computation, int]]) -> Iterator[RenderableType]:
    """What the secure computation costs, for a backend that sends messages: counted by a dry run."""
    if not isinstance(backend, BetweenProcesses):
        return
    for computation, times in computations:
        cost = backend.cost(computation)
        each = f"Each of {count(times, 'secure sum')}" if times > 1 else "The computation across parties"
        dealt = f", {cost.dealer_traffic.bytes_received / 1e6:.2g} MB by the dealer"
        dealt = dealt if cost.dealer_traffic.bytes_received else ""
        total = "All of them would take" if times > 1 else "It would take"
        yield Text(
            f"\n{each}: {cost.traffic.rounds} rounds, {cost.traffic.bytes_sent / 1e6:.2g} MB sent by a party{dealt}. "
            f"{total} about "
            f"{_hours(times * cost.lan_seconds)} on a LAN (1 ms round trip, 1 Gbit/s) and about "
            f"{_hours(times * cost.wan_seconds)} on a WAN (50 ms round trip, 100 Mbit/s), besides each party's own "
            "work."
        )


def parties_of_public_table(dataset: VerticalDataset, folder: Path, build: Callable[[], Method]) -> ProcessSession:
    """One process per party on files that this process writes: for a demonstration, whose table is public."""
    folder.mkdir(parents=True, exist_ok=True)
    schema, frame = dataset.schema, dataset.to_frame()
    frame.insert(0, schema.id_column, [f"{number:09d}" for number in range(len(frame))])
    tasks = []
    for party, part in schema.parties.items():
        table = folder / f"{party}.parquet"
        frame[[schema.id_column, *part.columns]].to_parquet(table, index=False)
        tasks.append(PartyTask(party=party, schema=schema.to_dict(), table=table.resolve(), build=build))
    with console.status("[dim]one process per party …"):
        return ProcessSession(tasks)


@contextmanager
def _started(job: Job) -> Iterator[ProcessSession]:
    job.check_files()
    if job.config.data.unmatched == "drop":
        raise ArgumentError(
            '[data] unmatched = "drop" needs all tables in one process; between processes and organisations, '
            "`vertinumpyro link` finds the common records"
        )
    if job.config.run.diagnostics:
        raise ArgumentError(
            "[run] diagnostics compares with the joined table, which no process holds with this backend; "
            "set it to false"
        )
    with console.status("[dim]one process per party …"):
        session = ProcessSession([_task(job, party) for party in job.config.parties])
    with session:
        stated = job.config.data.num_records
        if stated not in (None, session.num_records):
            raise ArgumentError(f"[data] num_records = {stated}, and the tables hold {session.num_records}; correct it")
        yield session


def _task(job: Job, party: str) -> PartyTask:
    config, schema = job.config, job.config.schema.to_dict()
    ledger = config.data.ledgers.get(party)
    return PartyTask(
        party=party,
        schema=schema,
        table=config.files[party].resolve(),
        read_options=config.read_options(party),
        build=partial(party_method, job.method.name, schema, config.of_the_method(), str(config.path.resolve())),
        ledger=None if ledger is None else (config.folder / ledger).resolve(),
        holders=config.holders,
        spool=None if config.spool is None else config.spool.resolve(),
        workers=config.data.workers,
    )


def party_method(name: str, schema: Mapping[str, Any], sections: Mapping[str, Any], path: str) -> Method:
    """The method of a configuration, in a party's process; names no table."""
    return method_of(name)(config_of(Path(path), schema, sections)).method


def _hours(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
