"""Sessions with parties in their own processes: what they share, whoever asks the parties; the one with a process for
each party, from the side of the process that starts it and holds no table; and the one between organisations.

There nobody starts the others and nobody collects the results. All run one program on the same public inputs, so at
every point they ask their own party for the same; what a party releases goes to the others, and everybody ends with the
same releases, the same posterior and a record of its own. What only a clock or a processor decides, how many steps come
next and where an iterative method begins, is party 0's word: it follows from public numbers, and whatever it says is
post-processing to the others.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.data import Schema
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import LedgerRegistry
from vertinumpyro.secure.between_processes import BetweenProcesses
from vertinumpyro.session.party import Party, check_apart, run_party
from vertinumpyro.session.party_computation import Begin, Iterate, Method, Multiply, Publish, Request, Reveal, Sum
from vertinumpyro.session.reveal_to_one import PrivateOutput
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.session import Session, by_pair
from vertinumpyro.session.task import PartyTask
from vertinumpyro.transport import Communicator, Member, ProcessGroup, Traffic, pack, unpack

_Self = TypeVar("_Self", bound="DistributedSession")


class DistributedSession(Session):
    """Parties that keep their own records, and release each step once. Use as a context manager.

    :param parties: their names, in their order.
    :param seeds: of the parties' noise; None where it is the operating system's.
    :param book: where the run's own ledger is noted; None is this process's.
    """

    def __init__(
        self, schema: Schema, parties: tuple[str, ...], seeds: set[int | None], book: LedgerRegistry | None = None
    ) -> None:
        self._schema, self._parties, self._seeds, self._book, self._reached = schema, parties, seeds, book, 0
        self.traffic, self.dealer_traffic, self.seconds = Traffic(), Traffic(), 0.0

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def parties(self) -> tuple[str, ...]:
        return self._parties

    @abc.abstractmethod
    def begin(self, plan: Plan, *, resume: bool) -> int:
        """Begins the plan at every ledger; the most steps that any of them has on record."""

    @abc.abstractmethod
    def all_have(self, stored: bool) -> bool:
        """Whether a step's release is stored wherever this method runs, as it is here."""

    @abc.abstractmethod
    def values(self, request: Multiply | Sum) -> tuple[np.ndarray, tuple[int, ...]]:
        """What the parties open together, and the widths of a product's factors."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what was opened."""

    def open(
        self,
        method: Method,
        plan: Plan,
        *,
        run_dir: str | Path | None,
        results: str,
        resume: bool = False,
        facts: Mapping[str, Any] | None = None,
        insecure_seed: int | None = None,
    ) -> Run:
        """See `Session.open`; every party begins the plan at its own ledger.

        :raises ArgumentError: the plan wants what parties apart cannot keep: hidden batch indices, trusted noise.
        :raises PlanSpentError: a party agreed to another plan, or has begun this one before.
        """
        check_apart(plan)
        if self._seeds != {insecure_seed}:
            raise ArgumentError(
                "insecure_seed: every party draws its own noise; give it to the parties' tasks, and here"
            )
        run = Run.opened(
            plan,
            run_dir,
            results=results,
            resume=resume,
            secure_noise=insecure_seed is None,
            facts=facts,
            book=self._book,
        )
        try:
            self._reached = self.begin(plan, resume=resume)
        except BaseException:
            run.ledger.pause()
            raise
        return run

    def catch_up(self, run: Run) -> None:
        """Counts here what any party has on record: an iterative method goes on behind all of it."""
        run.ledger.reserve_up_to(self._reached)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        """See `Session.step`. The parties see to it that it is released once, so it is counted here and asked for."""
        stored = run.stored(index)
        if self.all_have(stored is not None):
            return stored
        run.ledger.reserve_up_to(index + 1)
        released = compute()
        run.keep(index, released)
        return released

    def cross_products(self, request: Multiply) -> dict[tuple[int, int], np.ndarray]:
        return by_pair(*self.values(request))

    def sum(self, request: Sum) -> np.ndarray:
        return self.values(request)[0]

    @staticmethod
    def check_states(digests: set[str]) -> None:
        """Refuses parties that reached different states.

        :raises BackendError: they did.
        """
        if len(digests) > 1:
            raise BackendError("the parties' states differ after the same releases; run one version everywhere")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_START_S = 300.0
_WORK_S = 3600.0


@final
class ProcessSession(DistributedSession):
    """The parties' processes and the backend's helpers, on this machine. Use as a context manager.

    Starting reads and checks every party's table in its own process, and matches the records by a keyed digest of
    their ids. This process learns the number of records, the columns' storage types, and later what is released. Every
    party has a ledger of its own, which refuses a plan that it did not agree to and a step that it has on record.

    :param tasks: one for each party of the schema, in its order; or for each of its holders.
    :param timeout_s: how long a process waits for another before the run ends with an error.
    :raises DataError: a table breaks the schema; the message names the party and the column.
    :raises AlignmentError: the parties' records differ.
    :raises BackendError: the backend is not installed, or a process failed; the message names it.
    """

    def __init__(self, tasks: Sequence[PartyTask], *, timeout_s: float = 120.0) -> None:
        backend = between_processes(tasks[0].build())
        if missing := backend.missing():
            raise BackendError(missing)
        backend.check_release()
        schema = tasks[0].read_schema()
        parties = tasks[0].parties
        if tuple(task.party for task in tasks) != parties:
            raise ArgumentError(f"tasks must be one for each party, in the order {parties}")
        if len(tasks) < 2:
            raise ArgumentError("tasks: a secure run needs at least two parties; use the backend fixed_point for one")
        super().__init__(schema, parties, {task.insecure_seed for task in tasks})
        self.backend, self._ranks = backend, range(len(tasks))
        libraries = (type(tasks[0].build()).__module__, *backend.libraries)
        members = [Member(name=f"party {t.party!r}", run=run_party, arguments=(t,), libraries=libraries) for t in tasks]
        members += backend.helpers(len(tasks))
        self._group = ProcessGroup(members, len(tasks), timeout_s)
        try:
            found = self._group.replies(self._ranks, within_s=_START_S)
            self._num_records: int = found[0][0]["num_records"]
            for words, _ in found.values():
                self._schema = self._schema.with_dtypes(words["dtypes"])
        except BaseException:
            self._group.close()
            raise

    @property
    def num_records(self) -> int:
        return self._num_records

    @property
    def pids(self) -> list[int]:
        """The processes: the parties in order, then the helpers."""
        return self._group.pids

    def begin(self, plan: Plan, *, resume: bool) -> int:
        for rank in self._ranks:
            self._group.command(rank, Begin(plan.to_dict(), resume).to_dict())
        replies = self._group.replies(self._ranks, within_s=_START_S)
        if any(words["fingerprint"] != plan.fingerprint() for words, _ in replies.values()):
            raise BackendError("a party works on another plan; start the run again")
        return max(words["steps_spent"] for words, _ in replies.values())

    def all_have(self, stored: bool) -> bool:
        """The method runs here alone."""
        return stored

    def publish(self, request: Publish) -> list[Payload]:
        replies = self._asked(request)
        return [Payload(replies[rank][0]["words"], replies[rank][1]) for rank in self._ranks]

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        replies = self._asked(Iterate(step, count), arrays)
        self.check_states({words["words"]["digest"] for words, _ in replies.values()})
        return Payload({}, replies[0][1])

    def reveal_to(self, method: PrivateOutput) -> None:
        """See `Session.reveal_to`: the answers are in the file of the party that is told, and never come here."""
        self._asked(Reveal(method.digest()))

    def close(self) -> None:
        self._group.close()

    def values(self, request: Multiply | Sum) -> tuple[np.ndarray, tuple[int, ...]]:
        """See `DistributedSession.values`; all parties opened the same."""
        replies = self._asked(request)
        first, *others = [arrays["values"] for _, arrays in replies.values()]
        if not all(np.array_equal(first, other) for other in others):
            raise BackendError("the parties opened different results; run one version everywhere")
        return first, tuple(replies[0][0]["words"].get("widths", ()))

    def _asked(
        self, request: Request, arrays: Mapping[str, np.ndarray] | None = None
    ) -> dict[int, tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The parties' replies to one request, in their order."""
        started = time.perf_counter()
        for rank in self._ranks:
            self._group.command(rank, request.to_dict(), **(arrays or {}))
        replies = self._group.replies(self._ranks, within_s=_WORK_S)
        self.seconds += time.perf_counter() - started
        self.traffic = Traffic(**replies[0][0]["traffic"])
        self.dealer_traffic = Traffic(**replies[0][0]["dealer"])
        return {rank: replies[rank] for rank in self._ranks}

    def __repr__(self) -> str:
        return f"ProcessSession({self.num_records} records at {', '.join(self.parties)})"


def between_processes(method: Method) -> BetweenProcesses:
    """A method's backend.

    :raises ArgumentError: it has no processes for the parties.
    """
    backend = method.backend
    if not isinstance(backend, BetweenProcesses):
        name = "None" if backend is None else backend.info().name
        raise ArgumentError(
            f"backend {name} runs in one process; take one with a process for each party, Crypten() or Spu()"
        )
    return backend


_COUNT = 8


@final
class OrganisationSession(DistributedSession):
    """One party's side. Use as a context manager: it closes the links.

    :param communicator: this party's number and its links to all others, helpers last; see `transport.connect_all`.
    :param task: this party's part.
    :raises DataError: the table breaks the schema; names the column.
    :raises AlignmentError: the parties' records differ.
    :raises PeerError: another party is gone or silent.
    """

    def __init__(self, communicator: Communicator, task: PartyTask) -> None:
        # a book of its own: the party's record of the same plan is the one that this process notes
        super().__init__(task.read_schema(), task.parties, {task.insecure_seed}, LedgerRegistry())
        self._communicator, self._task = communicator, task
        self._party = Party.seated(communicator, task)
        for words, _ in self._all_gather({"num_records": self._party.num_records, "dtypes": dict(self._party.dtypes)}):
            self._schema = self._schema.with_dtypes(words["dtypes"])

    @property
    def num_records(self) -> int:
        return self._party.num_records

    def begin(self, plan: Plan, *, resume: bool) -> int:
        """See `DistributedSession.begin`; the other parties begin it at theirs."""
        words, _ = self._do(Begin(plan.to_dict(), resume))
        return max(found["steps_spent"] for found, _ in self._all_gather({"steps_spent": words["steps_spent"]}))

    def all_have(self, stored: bool) -> bool:
        """Whether every party has it; otherwise all go through the step, who released it the same again."""
        return all(found["stored"] for found, _ in self._all_gather({"stored": stored}))

    def publish(self, request: Publish) -> list[Payload]:
        replied, arrays = self._do(request)
        found = self._all_gather({"words": replied["words"]}, arrays)
        return [Payload(theirs["words"], held) for theirs, held in found]

    def broadcast(self, count: int) -> int:
        return int.from_bytes(self._communicator.broadcast(count.to_bytes(_COUNT, "little"), limit=_COUNT), "little")

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `Session.iterate`; the first call's state is party 0's."""
        if arrays:
            given = unpack(self._communicator.broadcast(pack({}, **arrays)))[1]
            arrays = _of_the_same_form(given, arrays, self.parties[0])
        replied, reached = self._do(Iterate(step, count), arrays)
        self.check_states({found["digest"] for found, _ in self._all_gather({"digest": replied["words"]["digest"]})})
        return Payload({}, reached)

    def reveal_to(self, method: PrivateOutput) -> pd.DataFrame | None:
        self._do(Reveal(method.digest()))
        return self._party.answers

    def close(self) -> None:
        """Let the others know that nothing more comes."""
        with contextlib.suppress(BackendError):  # who is gone need not be told
            self._party.close()
        for link in self._communicator.links.values():
            link.close()

    def values(self, request: Multiply | Sum) -> tuple[np.ndarray, tuple[int, ...]]:
        replied, arrays = self._do(request)
        return arrays["values"], tuple(replied["words"].get("widths", ()))

    def _do(
        self, request: Request, arrays: Mapping[str, np.ndarray] | None = None
    ) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
        """This party's answer."""
        started = time.perf_counter()
        with self._party.answering():
            replied, found = self._party.do(request, arrays or {})
        self.seconds += time.perf_counter() - started
        if "traffic" in replied:
            self.traffic, self.dealer_traffic = Traffic(**replied["traffic"]), Traffic(**replied["dealer"])
        return replied, found

    def _all_gather(
        self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None
    ) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """Every party's public fields and arrays, which have the names of this one's.

        :raises BackendError: a party sent something else; names it.
        """
        found = [unpack(message) for message in self._communicator.all_gather(pack(dict(fields), **(arrays or {})))]
        for party, (theirs, _) in zip(self.parties, found, strict=True):
            if theirs.keys() != fields.keys() or any(type(theirs[key]) is not type(fields[key]) for key in fields):
                raise BackendError(f"{party} sent something else than {', '.join(fields)}; run one version everywhere")
        return found

    def __repr__(self) -> str:
        return f"OrganisationSession({self._task.party!r} of {', '.join(self.parties)}, {self.num_records} records)"


def _of_the_same_form(
    given: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], party: str
) -> Mapping[str, np.ndarray]:
    """Another party's arrays, where they have this one's names, shapes and types.

    :raises BackendError: they have not.
    """
    forms = [{name: (value.shape, str(value.dtype)) for name, value in arrays.items()} for arrays in (given, own)]
    if forms[0] != forms[1]:
        raise BackendError(f"{party!r} begins with a state of another form; run one version and one model everywhere")
    return given
