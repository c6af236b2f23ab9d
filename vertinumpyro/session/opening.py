"""What the parties open together, once: on record before it is opened, and the same if it has to be opened again.

A step passes three states at every party, each on disk before the party goes on:

    ready    the message with which this party will open the result, alone uniform, and what it was asked for
    sent     every party is ready, so this one may send; from here on the step is what it is
    opened   the result

Nobody sends before everybody is ready. So where a party is not ready after a crash, nobody has sent anything, and the
step is computed anew; where all are ready with messages of one attempt, these are sent as they are. A party that has
sent never makes another message for that step, whatever it is asked and whatever the others have on record.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import final

import numpy as np

from vertinumpyro.core.errors import PlanSpentError
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.transport import Seat

__all__ = ["Openings", "lost"]

_ATTEMPT = 16
_NO_ATTEMPT = bytes(_ATTEMPT)
_READY = b"\x01"


@final
class Openings:
    """One party's openings of one plan.

    Formal guarantee: of each step at most one message is ever sent, over all processes that work on this record.

    :param run: this party's record; its ledger is held as long as a step may still be computed anew.
    :param party: its name, for errors.
    """

    def __init__(self, seat: Seat, end: PartyProtocol, run: Run, party: str) -> None:
        self._seat, self._end, self._run, self._party = seat, end, run, party

    def opened(self, step: int, request: str, protocol: Callable[[], np.ndarray]) -> np.ndarray:
        """What a step opens, int64 flat: as it was opened, or now.

        :param request: a digest of what all parties were asked for.
        :param protocol: computes and opens it.
        :raises PlanSpentError: the step was sent as something else, or a record of it is gone.
        """
        stored = self._stored(step, request)
        found = self._seat.everyones(_state(stored), _ATTEMPT + 1)
        if stored is None or len({state[:_ATTEMPT] for state in found}) > 1:
            if stored is not None and stored.words["sent"]:
                raise self._refused(step, "and another party's record of it is gone, or an older one")
            return self._anew(step, request, protocol)
        if all(state[_ATTEMPT] for state in found):
            return stored.arrays["values"]
        self._put(step, _with(stored, sent=True))
        return self._kept(step, _with(stored, sent=True), self._end.open(stored.arrays["message"].tobytes()))

    @property
    def complete(self) -> bool:
        """Whether every step is counted and has its result, so that nothing is computed or written any more."""
        run = self._run
        stored = [run.stored(step) for step in run.stored_steps]
        return not run.ledger.steps_left and all(
            one is not None and ("sent" not in one.words or "values" in one.arrays) for one in stored
        )

    def _stored(self, step: int, request: str) -> Payload | None:
        """This party's record of the step, if it was asked for the same; what was never sent may be replaced."""
        stored = self._run.stored(step)
        if stored is None:
            if step < self._run.ledger.steps_spent:
                raise lost(self._run, self._party, step)
            return None
        if stored.words["request"] == request:
            return stored
        if stored.words["sent"]:
            raise self._refused(step, "and was asked for something else")
        return None

    def _anew(self, step: int, request: str, protocol: Callable[[], np.ndarray]) -> np.ndarray:
        attempt = self._seat.from_first(secrets.token_bytes(_ATTEMPT), limit=_ATTEMPT)
        ready = Payload({"request": request, "sent": False}, {"attempt": np.frombuffer(attempt, np.uint8)})

        def on_record(message: bytes) -> None:
            nonlocal ready
            ready = Payload(ready.words, {**ready.arrays, "message": np.frombuffer(message, np.uint8)})
            self._put(step, ready)
            self._seat.everyones(_READY, len(_READY))
            self._put(step, _with(ready, sent=True))

        with self._end.before_opening(on_record):
            values = protocol()
        return self._kept(step, _with(ready, sent=True), values)

    def _kept(self, step: int, sent: Payload, values: np.ndarray) -> np.ndarray:
        self._put(step, Payload(sent.words, {**sent.arrays, "values": values}))
        return values

    def _put(self, step: int, payload: Payload) -> None:
        if not self._run.put(step, payload):
            raise lost(self._run, self._party, step)

    def _refused(self, step: int, why: str) -> PlanSpentError:
        return PlanSpentError(
            f"party {self._party!r} has sent its part of {self._run.plan.step_names[step]} before, {why}: a step is "
            "released once. Make a new plan, whose cost adds to this one's"
        )


def lost(run: Run, party: str, step: int) -> PlanSpentError:
    """The error of a step that is counted, and whose record is gone."""
    return PlanSpentError(
        f"party {party!r} counts {run.plan.step_names[step]} as released, and its record of it is gone; make a new "
        "plan, whose cost adds to this one's"
    )


def _state(stored: Payload | None) -> bytes:
    """The attempt, and whether its result is here."""
    if stored is None:
        return _NO_ATTEMPT + b"\x00"
    return stored.arrays["attempt"].tobytes() + bytes(["values" in stored.arrays])


def _with(payload: Payload, *, sent: bool) -> Payload:
    return Payload({**payload.words, "sent": sent}, payload.arrays)
