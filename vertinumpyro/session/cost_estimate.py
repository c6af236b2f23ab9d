"""What a run will take, before anything is spent: how long a fit, and who may refuse it for that; and what a whole run
costs a party, before there is any data.

Fields, models and steps are tried on stand-ins by the methods themselves, in the programs that the fit runs next. What
is left, work that is in proportion to the records, follows from their number and from one matrix product, which says
how fast this machine is.

A whole run is the same program, with nobody at the other end: a party's table, its ledger and all that it sends are
stand-ins; what comes back is an echo (`transport.LoopbackLink`). So everything that takes time at one party takes it
here, and every round and byte is counted: matching of records, agreement, ledgers and the secure computation alike.
Engines that talk for themselves hear no echo: their members are all here, as processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError, LongFitWarning
from vertinumpyro.core.row_blocks import threads_for
from vertinumpyro.data import DatasetInfo, Schema, VerticalDataset
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.privacy.ledger import begun
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost
from vertinumpyro.session.distributed import OrganisationSession
from vertinumpyro.session.party_computation import Method
from vertinumpyro.session.run import PRIVACY_RECORD, Payload, Run
from vertinumpyro.session.session import Session, SessionWrapper
from vertinumpyro.session.task import PartyTask
from vertinumpyro.transport import (
    Communicator,
    GroupCommunicator,
    LoopbackLink,
    Member,
    NetworkProfile,
    ProcessGroup,
    Traffic,
)

_MEASURED = 4  # of the steps of an iterative method, after the first, which compiles
_CONNECTION = 3  # round trips until links stand: TCP, TLS 1.3, what all are here for
_TIMEOUT_S, _LONGEST_S = 60.0, 900.0
_ID_BYTES = 8

Words = Mapping[str, Any]


@final
@dataclasses.dataclass(frozen=True)
class RunCost:
    """The cost of a run at one party, until everything is released.

    :ivar whole: all but further steps of an iterative method.
    :ivar step: one of these.
    :ivar further: how many they are.
    """

    whole: Cost
    step: Cost | None = None
    further: int = 0

    def on(self, line: NetworkProfile) -> float:
        """Seconds on a network, from the first connection on, over lines that were idle; see `Cost.on`."""
        steps = 0.0 if self.step is None else self.further * self.step.on(line)
        begin = _CONNECTION * line.round_trip_s + line.slow_start_s(self.whole.traffic.bytes_sent)
        return begin + self.whole.on(line) + steps


def estimate_cost(task: PartyTask, plan: Plan, release: Callable[[Session, Path], object]) -> RunCost:
    """What a run costs until its plan is spent; on a table of stand-ins, so nothing is read and nothing is spent.

    At the first party, which gets the dealer's words besides. Of a holder of whole records, as if it held them all.

    A backend whose engine has links of its own (SPU) is rehearsed by all its members as processes of this machine,
    which share its cores; any other by one party alone, with nobody at the other end.

    :param task: any party's part; its table, ledger and linkage are not looked at.
    :param release: runs the method on a session, with a folder for its results; importable by name where there are
        processes.
    :raises BackendError: what the backend takes is not installed.
    """
    backend = task.build().backend
    assert isinstance(backend, BetweenProcesses)
    if missing := backend.missing():
        raise BackendError(missing)
    backend.load()  # as a party does before it connects
    num_parties = len(task.parties)
    helpers = backend.helpers(num_parties)
    stand_in = {**plan.to_dict(), "plan_id": secrets.token_hex(_ID_BYTES)}  # the plan itself is as unspent as before
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        if not backend.own_links:
            others = range(1, num_parties + len(helpers))
            own = _stand_in_task(task, 0, plan, folder)
            started = time.perf_counter()  # keys are read and hands shaken in the first second of a run, too
            communicator = Communicator(
                0, num_parties, {other: LoopbackLink(Traffic()) for other in others}, _TIMEOUT_S
            )
            return _rehearsed(communicator, own, stand_in, release, folder, started)
        tasks = [_stand_in_task(task, rank, plan, folder) for rank in range(num_parties)]
        members = [
            Member(name=f"the rehearsal of {own.party}", run=_member, arguments=(own, stand_in, release, folder))
            for own in tasks
        ]
        with ProcessGroup([*members, *helpers], num_parties, _LONGEST_S) as group:
            words, _ = group.replies(range(num_parties))[0]
        return RunCost(_cost(words["whole"]), words["step"] and _cost(words["step"]), words["further"])


def _rehearsed(
    communicator: Communicator,
    task: PartyTask,
    stand_in: Words,
    release: Callable[[Session, Path], object],
    folder: str,
    started: float,
    tell: Callable[[RunCost], None] = lambda _: None,
) -> RunCost:
    """One member's part; it tells while the others can still hear it."""
    with OrganisationSession(communicator, task) as session:
        watched = _UntilReleased(session, Plan.from_dict(dict(stand_in)), started)
        with contextlib.suppress(_Released):
            release(watched, Path(folder, f"run {task.party}"))
        found = watched.cost()
        tell(found)
    return found


def _member(
    communicator: GroupCommunicator,
    task: PartyTask,
    stand_in: Words,
    release: Callable[[Session, Path], object],
    folder: str,
) -> None:
    """The same, in a process of its own, until it is stopped."""

    def tell(found: RunCost) -> None:
        words = {"whole": dataclasses.asdict(found.whole), "step": found.step and dataclasses.asdict(found.step)}
        communicator.reply({**words, "further": found.further})
        communicator.command()

    _rehearsed(communicator, task, stand_in, release, folder, time.perf_counter(), tell)


def _cost(words: Mapping[str, Any]) -> Cost:
    counted = {name: Traffic(**words[name]) for name in ("traffic", "dealer_traffic")}
    return Cost(**{**words, **counted})


def _stand_in_task(task: PartyTask, rank: int, plan: Plan, folder: str) -> PartyTask:
    """A party's part with a table of stand-ins, and a ledger that goes with it."""
    schema, party = task.read_schema(), task.parties[rank]
    table = Path(folder, f"{rank}.csv")
    held = next(iter(schema.parties)) if party not in schema.parties else party
    _stand_in_table(schema, held, plan.num_records, table)
    return dataclasses.replace(
        task,
        party=party,
        table=table,
        ledger=Path(folder, f"ledger {rank}"),
        approved=None,
        limit=None,
        linkage=None,
        read_options={},
    )


def _stand_in_table(schema: Schema, party: str, num_records: int, path: Path) -> None:
    own = schema.restrict(party)
    frame = VerticalDataset(own, {party: stand_in_columns(own, num_records)}).to_frame()
    frame.insert(0, schema.id_column, [f"{number:09d}" for number in range(num_records)])
    frame.to_csv(path, index=False)


class _Released(BaseException):
    """Everything that costs something is over."""


@final
class _UntilReleased(SessionWrapper):
    """A session that ends with the plan's last release, and takes few of many steps."""

    def __init__(self, session: OrganisationSession, plan: Plan, started: float) -> None:
        self._session, self._plan, self._started = session, plan, started
        self._step: Cost | None = None
        self._further = 0

    def cost(self) -> RunCost:
        """What it has cost."""
        whole = Cost(
            traffic=self._session.traffic.snapshot(),
            dealer_traffic=self._session.dealer_traffic.snapshot(),
            seconds=time.perf_counter() - self._started,
        )
        return RunCost(whole, self._step, self._further)

    @property
    def inner(self) -> Session:
        return self._session

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        return self._session.open(method, self._plan, **settings)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        released = self._session.step(run, index, compute)
        if index == self._plan.num_steps - 1:
            raise _Released
        return released

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        left = self._plan.num_steps - step
        self._session.iterate(step, 1, arrays)
        measured = min(_MEASURED, left - 1)
        if measured:
            before = self.cost().whole
            self._session.iterate(step + 1, measured, {})
            after = self.cost().whole
            self._step = Cost(
                traffic=after.traffic.since(before.traffic).over(measured),
                dealer_traffic=after.dealer_traffic.since(before.dealer_traffic).over(measured),
                seconds=(after.seconds - before.seconds) / measured,
                ahead=True,
            )
            self._further = left - 1 - measured
        raise _Released


LONG_S, LONGEST_S = 60.0, 600.0
_Found = TypeVar("_Found")
_SIZE, _TRIES = 512, 5
_USUAL_S = 0.006  # of a product of that size, where the constants of this module's callers were measured

COUNT_S = 4e-8
"""Seconds for a record in a table of two columns."""

_DRAW_S = 2e-6  # for a value of a synthetic record


@functools.cache
def slowness() -> float:
    """How many times as long as where constants were measured this machine takes, by a product of two matrices."""
    matrix, found = np.ones((_SIZE, _SIZE)), []
    with threads_for(_SIZE**3):
        for _ in range(_TRIES):
            started = time.perf_counter()
            np.matmul(matrix, matrix)
            found.append(time.perf_counter() - started)
    return min(found) / _USUAL_S


def timed(compute: Callable[[], _Found]) -> tuple[_Found, float]:
    """What a function returns, and the seconds that it took."""
    started = time.perf_counter()
    found = compute()
    return found, time.perf_counter() - started


def drawing_seconds(facts: DatasetInfo) -> float:
    """Seconds of drawing a twin as large as the table."""
    return _DRAW_S * slowness() * facts.num_records * len(facts.schema.columns)


def announce(
    session: Session | None,
    plan: Plan,
    estimate: Callable[[], FitTime],
    *,
    run_dir: str | Path | None,
    resume: bool,
    allow_long: bool,
    releases_alone: bool = False,
) -> None:
    """Says how long a fit will take, in a `LongFitWarning` from one minute on; refuses what nobody allowed.

    A run that goes on, and a plan that was begun, are not looked at: the first was allowed, the second says itself that
    it is spent. Nor is a party between organisations: each measures another machine, and where one refused and another
    did not, that one's plan would be begun and nobody there. So whoever drafts the study is asked, before it has a
    plan that anybody approves; an approval then holds however long it takes.

    :param estimate: asked where the plan was not (`Plan.known_time`).
    :param releases_alone: leave out what follows them.
    :raises ArgumentError: it would take more than ten minutes, and `allow_long` is False; nothing is spent.
    """
    if resume or begun(plan) or _has_record(run_dir) or not _decides(session):
        return
    found = plan.known_time or estimate()
    require_allowed(dataclasses.replace(found, after={}) if releases_alone else found, allow_long=allow_long)


def require_allowed(found: FitTime, *, allow_long: bool) -> None:
    """Warns of what takes more than a minute, and refuses what takes more than ten and nobody allowed.

    :raises ArgumentError: says how long it would take, where the time goes and what would shorten it.
    """
    if found.seconds > LONGEST_S and not allow_long:
        raise ArgumentError(
            f"allow_long: the fit would take {found.words}, more than {LONGEST_S / 60:.0f} minutes; nothing was spent. "
            f"{found.shorter}Or give allow_long=True (on the command line --allow-long, in a configuration [run] "
            "allow_long = true)"
        )
    if found.seconds > LONG_S:
        warnings.warn(f"the fit will take {found.words}", LongFitWarning, stacklevel=5)


def _has_record(run_dir: str | Path | None) -> bool:
    return run_dir is not None and Path(run_dir, PRIVACY_RECORD).exists()


def _decides(session: Session | None) -> bool:
    """Whether this process has started all parties' parts, or has all their tables; None has them."""
    while isinstance(session, SessionWrapper):
        session = session.inner
    return not isinstance(session, OrganisationSession)
