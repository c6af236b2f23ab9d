"""What a whole run costs a party, before there is any data: the same program, with nobody at the other end.

A party's table, its ledger and all that it sends are stand-ins; what comes back is an echo (`transport.Nobody`). So
everything that takes time at one party takes it here, and every round and byte is counted: matching of records,
agreement, ledgers and the secure computation alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.model.stand_ins import stand_in_columns
from vertinumpyro.privacy import Plan
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost
from vertinumpyro.session.joined import JoinedSession
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.session.session import Session
from vertinumpyro.session.task import PartyTask
from vertinumpyro.session.work import Method
from vertinumpyro.transport import Nobody, Seat, Traffic

__all__ = ["RunCost", "rehearsed_cost"]

_MEASURED = 2  # of the steps of an iterative method, after the first, which compiles
_CONNECTION = 3  # round trips until links stand: TCP, TLS 1.3, what all are here for
_TIMEOUT_S = 60.0
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

    def on(self, *, round_trip_s: float, bits_per_second: float) -> float:
        """Seconds on a network, from the first connection on; see `Cost.on`."""
        network = {"round_trip_s": round_trip_s, "bits_per_second": bits_per_second}
        steps = 0.0 if self.step is None else self.further * self.step.on(**network)
        return _CONNECTION * round_trip_s + self.whole.on(**network) + steps


def rehearsed_cost(task: PartyTask, plan: Plan, release: Callable[[Session, Path], object]) -> RunCost:
    """What a run costs until its plan is spent; on a table of stand-ins, so nothing is read and nothing is spent.

    At the first party, which gets the dealer's words besides.

    Of a holder of whole records, as if it held them all.

    :param task: any party's part; its table, ledger and linkage are not looked at.
    :param release: runs the method on a session, with a folder for its results.
    :raises BackendError: what the backend takes is not installed, or it has links of its own, which need somebody at
        the other end.
    """
    schema, method = task.read_schema(), task.build()
    backend = method.backend
    assert isinstance(backend, BetweenProcesses)
    if backend.own_links:
        raise BackendError(f"{backend.info().name} has links of its own, so its runs cannot be rehearsed alone")
    num_parties = len(task.parties)
    others = range(1, num_parties + len(backend.helpers(num_parties)))
    seat = Seat(0, num_parties, {other: Nobody(Traffic()) for other in others}, _TIMEOUT_S)
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        table = os.path.join(folder, "table.csv")
        _stand_in_table(schema, next(iter(schema.parties)), plan.num_records, table)
        own = dataclasses.replace(
            task,
            party=task.parties[0],
            table=Path(table),
            ledger=Path(folder) / "ledger",
            approved=None,
            limit=None,
            linkage=None,
            read_options={},
        )
        started = time.perf_counter()
        with JoinedSession(seat, own) as session:
            watched = _UntilReleased(session, plan, started)
            with contextlib.suppress(_Released):
                release(watched, Path(folder) / "run")
            return watched.cost()


def _stand_in_table(schema: Schema, party: str, num_records: int, path: str) -> None:
    own = schema.restrict(party)
    frame = VerticalDataset(own, {party: stand_in_columns(own, num_records)}).to_frame()
    frame.insert(0, schema.id_column, [f"{number:09d}" for number in range(num_records)])
    frame.to_csv(path, index=False)


class _Released(BaseException):
    """Everything that costs something is over."""


@final
class _UntilReleased(Session):
    """A session that ends with the plan's last release, and takes few of many steps."""

    def __init__(self, session: JoinedSession, plan: Plan, started: float) -> None:
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
    def schema(self) -> Schema:
        return self._session.schema

    @property
    def num_records(self) -> int:
        return self._session.num_records

    @property
    def parties(self) -> tuple[str, ...]:
        return self._session.parties

    def open(self, method: Method, plan: Plan, **settings: Any) -> Run:
        # under an id of its own: the plan itself is as unspent as before
        stand_in = Plan.from_dict({**plan.to_dict(), "plan_id": secrets.token_hex(_ID_BYTES)})
        return self._session.open(method, stand_in, **settings)

    def catch_up(self, run: Run) -> None:
        self._session.catch_up(run)

    def step(self, run: Run, index: int, compute: Callable[[], Payload]) -> Payload | None:
        released = self._session.step(run, index, compute)
        if index == self._plan.num_steps - 1:
            raise _Released
        return released

    def publish(self, index: int, what: str, words: Words) -> list[Payload]:
        return self._session.publish(index, what, words)

    def cross_products(self, index: int | None, what: str, words: Words) -> dict[tuple[int, int], np.ndarray]:
        return self._session.cross_products(index, what, words)

    def sum(self, index: int, what: str, words: Words) -> np.ndarray:
        return self._session.sum(index, what, words)

    def agreed(self, count: int) -> int:
        return self._session.agreed(count)

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
