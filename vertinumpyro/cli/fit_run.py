"""A job's plan spent, and what it bought kept; the part of the budget for a score of the twin; and the tables: all in
this process, or each in its party's own when the backend works between processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

from rich.console import RenderableType
from rich.text import Text

from vertinumpyro.cli.config import Config, config_of
from vertinumpyro.cli.job import Job, plan_to_continue
from vertinumpyro.cli.methods.base import method_of
from vertinumpyro.cli.methods.tables import QualityCommand, config_of_part
from vertinumpyro.cli.terminal import checklist_item, console, heading, progress_in_log
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, TableFacts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable, ReportText
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.privacy.account import TotalLimit
from vertinumpyro.privacy.forecast import spoken_seconds
from vertinumpyro.reports.plain_language import count, rounded_up
from vertinumpyro.reports.release import ReleaseReport, quality_items
from vertinumpyro.secure import BetweenProcesses
from vertinumpyro.secure.between_processes import Cost
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import PRIVACY_RECORD, Method, PartyTask, ProcessSession, Session, lock_folder, require_space
from vertinumpyro.session.cost_estimate import LONGEST_S


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


Costs = Sequence[tuple[Cost, int]]
"""What each secure computation costs, and how often it runs."""


def costs_of(backend: Any, computations: Sequence[tuple[Computation, int]]) -> Costs:
    """By a dry run, for a backend that sends messages; empty for others."""
    if not isinstance(backend, BetweenProcesses):
        return ()
    return [(backend.cost(computation), times) for computation, times in computations]


def cost_lines(costs: Costs) -> Iterator[RenderableType]:
    """What the secure computation costs, in words."""
    for cost, times in costs:
        each = f"Each of {count(times, 'secure sum')}" if times > 1 else "The computation across parties"
        dealt = f", {cost.dealer_traffic.bytes_received / 1e6:.2g} MB by the dealer"
        dealt = dealt if cost.dealer_traffic.bytes_received else ""
        total = "All of them would take" if times > 1 else "It would take"
        yield Text(
            f"\n{each}: {cost.traffic.rounds} rounds, {cost.traffic.bytes_sent / 1e6:.2g} MB sent by a party{dealt}. "
            f"{total} about "
            f"{spoken_seconds(times * cost.lan_seconds)} on a LAN (1 ms round trip, 1 Gbit/s) and about "
            f"{spoken_seconds(times * cost.wan_seconds)} on a WAN (50 ms round trip, 100 Mbit/s), besides each party's "
            "own work."
        )


_NETWORK = "the network between organisations, on which `vertinumpyro doctor` rehearses the run"


def time_of(job: Job, plan: Plan, costs: Costs) -> FitTime | None:
    """How long the fit takes on this machine, the parties' computation among it; kept with the plan."""
    found = job.method.time(plan)
    if found is None:
        return None
    if costs:
        together = sum(times * cost.seconds for cost, times in costs)
        unknown = "; ".join(filter(None, (found.unknown, _NETWORK)))
        before = {**found.before, "the secure computation": together}
        found = dataclasses.replace(found, before=before, unknown=unknown)
    plan.keep_time(found)
    return found


def time_lines(found: FitTime | None) -> Iterator[RenderableType]:
    """The same, in words."""
    if found is not None:
        wants = ". It will want --allow-long" if found.seconds > LONGEST_S else ""
        yield Text(f"\nA fit takes {found}{wants}.")


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
    if job.config.data.account is not True:
        raise ArgumentError(
            "[data] account is for runs in one process; parties that are processes keep theirs beside their files, or "
            "where [data.ledgers] says: leave it out"
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
        limit=None if config.data.total_epsilon is None else TotalLimit(epsilon=config.data.total_epsilon),
        holders=config.holders,
        spool=None if config.spool is None else config.spool.resolve(),
        workers=config.data.workers,
    )


def party_method(name: str, schema: Mapping[str, Any], sections: Mapping[str, Any], path: str) -> Method:
    """The method of a configuration, in a party's process; names no table."""
    return method_of(name)(config_of(Path(path), schema, sections)).method


SCORE = "quality"
"""The folder of a score's record, in its run's."""

_BYTES_OF_A_VALUE = 64  # in both formats of the twin, generously
_BYTES_OF_THE_REST = 2**26


def spend(job: Job, data: VerticalDataset | Session, plan: Plan, run_dir: Path, resume: bool) -> Any:
    """What the plan bought; of a run that is complete, as it was stored, which costs nothing."""
    stored = job.method.stored(run_dir, plan) if resume else None
    if stored is not None:
        console.print("\nThis run is complete: its outputs are written again from what it stored.")
        return stored
    num_synthetic = job.config.run.num_synthetic or data.num_records
    require_space(run_dir, _BYTES_OF_THE_REST + _BYTES_OF_A_VALUE * num_synthetic * len(job.schema.columns))
    if not resume:
        job.prepare(run_dir)
    console.print(heading(f"{'Continuing' if resume else 'Fitting'}, {count(plan.num_steps, 'step')}"))
    known = plan.known_time
    with progress_in_log(run_dir / PRIVACY_RECORD, plan.num_steps, "" if known is None else known.words_after):
        result = job.method.fit(data, plan, run_dir=run_dir, resume=resume)
    job.method.report(result).save(run_dir)  # first of all outputs: it is what the budget bought
    return result


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BoughtScore:
    """`[quality] part`: after the fit, noisy tables of a plan of their own, in a folder below the run's.

    :ivar job: their release.
    :ivar folder: of their record.
    :ivar plan: for them; in a run that goes on, the one that it began with.
    """

    job: Job
    folder: Path
    plan: Plan

    @classmethod
    def of(
        cls, config: Config, method: str, facts: DatasetInfo, run_dir: Path, *, resume: bool = False
    ) -> BoughtScore | None:
        """Planned and tried on stand-ins before the fit spends anything; None where none is asked for.

        :param resume: whether a run goes on, with the plan that it began with.

        :raises ArgumentError: the method makes no twin.
        """
        if config.quality.part is None:
            return None
        if method not in ("dpvi", "marginals", "vertimrf"):
            raise ArgumentError(f"[quality] part: --method {method} makes no twin to compare; leave it out")
        folder = run_dir / SCORE
        quality = config_of_part(config, run_dir)
        job = Job(config=quality, method=QualityCommand(quality))
        goes_on = resume and (folder / PRIVACY_RECORD).exists()
        plan = plan_to_continue(folder, QualityCommand.name) if goes_on else job.method.plan(facts)
        return cls(job=job, folder=folder, plan=plan)

    def together(self, plan: Plan) -> dict[str, float]:
        """What everyone gets at most from the fit and the score: ε add up, and δ, by basic composition."""
        return {
            "epsilon_together": plan.worst.epsilon + self.plan.worst.epsilon,
            "delta_together": plan.delta + self.plan.delta,
        }

    def _sentence(self, plan: Plan) -> str:
        together = self.together(plan)
        return (
            f"Of the budget, ε = {rounded_up(self.plan.worst.epsilon)} buys noisy tables that the twin is not learned "
            f"from, to say how near it is. With the fit's ε = {rounded_up(plan.worst.epsilon)} that is at most "
            f"ε = {rounded_up(together['epsilon_together'])}, δ = {together['delta_together']:.3g} against everyone."
        )

    def show(self, plan: Plan) -> None:
        """Print what both plans cost together."""
        console.print(heading("The twin's score"), self._sentence(plan))

    def told(self, content: ReportContent, plan: Plan) -> ReportContent:
        """A fit's report, with what both plans cost together."""
        if not (self.folder / PRIVACY_RECORD).exists():
            return content
        told = ReportText(text=self._sentence(plan), not_dp=False)
        largest = rounded_up(self.together(plan)["epsilon_together"])
        facts = {"ε with the score": largest, **content.facts}
        return dataclasses.replace(content, summary=[*content.summary, told], facts=facts)

    def items(self, data: VerticalDataset | Session) -> Sequence[ReportFigure | ReportTable]:
        """Spends it on the twin, and says what it found; nothing is spent where the model drew no twin."""
        job, folder = self.job, self.folder
        if not Path(job.config.quality.twin or "").is_file():
            console.print("[yellow]! no twin was drawn, so its score was not bought[/]")
            return ()
        goes_on = (folder / PRIVACY_RECORD).exists()
        with lock_folder(folder), _records(job, data) as records:
            result = spend(job, records, self.plan, folder, goes_on)
        report = job.method.report(result)
        assert isinstance(report, ReleaseReport)
        assert report.score is not None  # there is a twin
        return quality_items(report.score)


@contextlib.contextmanager
def _records(job: Job, data: VerticalDataset | Session) -> Iterator[VerticalDataset | Session]:
    """The same records: where parties are processes, in new ones, which run this method."""
    if needed(job):
        with opened(job) as session:
            yield session
    else:
        yield data
