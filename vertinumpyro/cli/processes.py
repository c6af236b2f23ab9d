"""A run's tables: all in this process, or each in its party's own when the backend works between processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from vertinumpyro.cli.config import (
    Config,
    DataSettings,
    FitSettings,
    ModelSettings,
    MRFSettings,
    PrivacySettings,
    RunSettings,
)
from vertinumpyro.cli.job import Job
from vertinumpyro.cli.model_loading import build_dpvi
from vertinumpyro.cli.terminal import console, ticked
from vertinumpyro.cli.wording import count
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.runtime import PartyTask, Session, cost_of_a_step
from vertinumpyro.secure.processes.backend import BetweenProcesses

__all__ = ["checked_records", "cost_line", "cost_view", "needed", "opened", "parties_of_public_table"]


def needed(job: Job) -> bool:
    """Whether the parties must be processes of their own."""
    return isinstance(job.dpvi.backend, BetweenProcesses)


@contextmanager
def opened(job: Job) -> Iterator[tuple[VerticalDataset, Callable[..., Posterior]]]:
    """(what a plan is made for, how a plan is spent).

    With parties as processes, the first is a stand-in drawn from the public domains: no table is opened here.
    """
    if not needed(job):
        dataset = job.dataset()
        yield dataset, partial(job.dpvi.fit, dataset)
        return
    with _started(job) as session:
        yield session.stand_in, partial(session.fit, job.dpvi)


def checked_records(job: Job) -> VerticalDataset:
    """The check of files and records, each in its party's own process."""
    with ticked("records") as found:
        with _started(job) as session:
            found += [f"{count(session.num_records, 'record')} matched by a keyed digest of their ids"]
            found += ["all values in their public domains", "each table in its party's process"]
        return session.stand_in


def cost_view(job: Job, plan: PrivacyPlan, stand_in: VerticalDataset) -> Iterator[RenderableType]:
    """What a step of the secure computation costs, for a backend that sends messages."""
    if needed(job):
        yield cost_line(job.dpvi, plan, stand_in)


def cost_line(dpvi: DPVI, plan: PrivacyPlan, stand_in: VerticalDataset) -> RenderableType:
    """Messages of a step, and how long a plan would take on two networks."""
    cost = cost_of_a_step(dpvi, plan, stand_in)
    return Text(
        f"\nA step: {cost.rounds} rounds, {cost.bytes_per_party / 1e6:.1f} MB sent by a party, "
        f"{cost.dealer_bytes / 1e6:.1f} MB by the dealer. The {count(plan.num_steps, 'step')} would take about "
        f"{_hours(plan.num_steps * cost.lan_seconds)} on a LAN (0.5 ms a round, 1 Gbit/s) and about "
        f"{_hours(plan.num_steps * cost.wan_seconds)} on a WAN (50 ms a round, 100 Mbit/s), "
        "besides each party's own scores."
    )


def parties_of_public_table(dataset: VerticalDataset, folder: Path, build: Callable[[], DPVI]) -> Session:
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
        return Session(tasks)


@contextmanager
def _started(job: Job) -> Iterator[Session]:
    job.check_files()
    if job.config.run.diagnostics:
        raise ArgumentError(
            "[run] diagnostics compares with the joined table, which no process holds with this backend; "
            "set it to false"
        )
    with console.status("[dim]one process per party …"):
        session = Session([_task(job.config, party) for party in job.schema.parties])
    with session:
        stated = job.config.data.num_records
        if stated not in (None, session.num_records):
            raise ArgumentError(f"[data] num_records = {stated}, and the tables hold {session.num_records}; correct it")
        yield session


def _task(config: Config, party: str) -> PartyTask:
    fields = {
        "path": str(config.path.resolve()),
        "model": _plain(config.model),
        "fit": _plain(config.fit),
        "privacy": _plain(config.privacy),
    }
    schema = config.schema.to_dict()
    build = partial(party_inference, schema, fields)
    return PartyTask(party=party, schema=schema, table=config.files[party].resolve(), build=build)


def party_inference(schema: Mapping[str, Any], fields: Mapping[str, Any]) -> DPVI:
    """The inference of a configuration, in a party's process; names no table."""
    config = Config(
        path=Path(fields["path"]),
        schema=Schema.from_dict(schema),
        data=DataSettings(),
        model=ModelSettings(**fields["model"]),
        privacy=PrivacySettings(**fields["privacy"]),
        fit=FitSettings(**fields["fit"]),
        mrf=MRFSettings(),
        run=RunSettings(),
    )
    return build_dpvi(config, config.fit.num_steps)


def _plain(section: Any) -> dict[str, Any]:
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _hours(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
