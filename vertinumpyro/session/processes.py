"""A session with one process per party, from the side of the process that starts it and holds no table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.privacy import Plan
from vertinumpyro.secure.between_processes import BetweenProcesses
from vertinumpyro.session.apart import ApartSession
from vertinumpyro.session.party import run_party
from vertinumpyro.session.run import Payload
from vertinumpyro.session.task import PartyTask
from vertinumpyro.session.telling import ForOne
from vertinumpyro.session.work import Method
from vertinumpyro.transport import Group, Member, Traffic

__all__ = ["ProcessSession", "between_processes"]

_START_S = 300.0
_WORK_S = 3600.0

Words = Mapping[str, Any]


@final
class ProcessSession(ApartSession):
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
        self._group = Group(members, len(tasks), timeout_s)
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
        """N, which the parties found equal; of holders their records' sum."""
        return self._num_records

    @property
    def pids(self) -> list[int]:
        """The processes: the parties in order, then the helpers."""
        return self._group.pids

    def begin(self, plan: Plan, *, resume: bool) -> int:
        """See `ApartSession.begin`."""
        for rank in self._ranks:
            self._group.command(rank, {"do": "begin", "plan": plan.to_dict(), "resume": resume})
        replies = self._group.replies(self._ranks, within_s=_START_S)
        if any(words["fingerprint"] != plan.fingerprint() for words, _ in replies.values()):
            raise BackendError("a party works on another plan; start the run again")
        return max(words["steps_spent"] for words, _ in replies.values())

    def all_have(self, stored: bool) -> bool:
        """The method runs here alone."""
        return stored

    def publish(self, index: int, what: str, words: Words) -> list[Payload]:
        """See `Session.publish`."""
        replies = self._asked({"do": "publish", "step": index, "what": what, "words": dict(words)}, within_s=_WORK_S)
        return [Payload(replies[rank][0]["words"], replies[rank][1]) for rank in self._ranks]

    def iterate(self, step: int, count: int, arrays: Mapping[str, np.ndarray]) -> Payload:
        """See `Session.iterate`."""
        replies = self._asked({"do": "iterate", "step": step, "count": count}, arrays, within_s=_WORK_S)
        self.check_states({words["words"]["digest"] for words, _ in replies.values()})
        return Payload({}, replies[0][1])

    def tell(self, method: ForOne) -> None:
        """See `Session.tell`: the answers are in the file of the party that is told, and never come here."""
        self._asked({"do": "tell", "digest": method.digest()}, within_s=_WORK_S)

    def close(self) -> None:
        """End all processes."""
        self._group.close()

    def values(self, do: str, index: int | None, what: str, words: Words) -> tuple[np.ndarray, tuple[int, ...]]:
        """See `ApartSession.values`; all parties opened the same."""
        replies = self._asked({"do": do, "step": index, "what": what, "words": dict(words)}, within_s=_WORK_S)
        first, *others = [arrays["values"] for _, arrays in replies.values()]
        if not all(np.array_equal(first, other) for other in others):
            raise BackendError("the parties opened different results; run one version everywhere")
        return first, tuple(replies[0][0]["words"].get("widths", ()))

    def _asked(
        self, words: dict[str, Any], arrays: Mapping[str, np.ndarray] | None = None, *, within_s: float
    ) -> dict[int, tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """The parties' replies to one command, in their order."""
        started = time.perf_counter()
        for rank in self._ranks:
            self._group.command(rank, words, **(arrays or {}))
        replies = self._group.replies(self._ranks, within_s=within_s)
        self.seconds += time.perf_counter() - started
        self.traffic = Traffic(**replies[0][0]["traffic"])
        self.dealer_traffic = Traffic(**replies[0][0]["dealer"])
        return {rank: replies[rank] for rank in self._ranks}

    def __repr__(self) -> str:
        """Public facts alone."""
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
