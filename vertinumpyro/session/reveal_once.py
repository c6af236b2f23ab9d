"""What the parties open together, once: on record before it is opened, and the same if it has to be opened again.

A step passes three states at every party, each on disk before the party goes on:

    ready    the message with which this party will open the result, alone uniform, and what it was asked for
    sent     every party is ready, so this one may send; from here on the step is what it is
    opened   the result

Nobody sends before everybody is ready. So where a party is not ready after a crash, nobody has sent anything, and the
step is computed anew; where all are ready with messages of one attempt, these are sent as they are. A party that has
sent never makes another message for that step, whatever it is asked and whatever the others have on record.

Randomness that several parties make together, so that none of them chooses it.

Each draws a seed and shows its SHA-256 first; once it has everybody's, it shows the seed. Nobody can choose a seed by
the others', so the key made of all seeds is uniform as long as one party's is. What is drawn under it (which records
are in a batch) is known to the parties and to nobody else.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from vertinumpyro.core.errors import CheckFailedError, PlanSpentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.session.run import Payload, Run
from vertinumpyro.transport import Communicator

_ATTEMPT = 16
_NO_ATTEMPT = bytes(_ATTEMPT)
_READY = b"\x01"


@final
class RevealLog:
    """One party's openings of one plan.

    Formal guarantee: of each step at most one message is ever sent, over all processes that work on this record.

    :param run: this party's record; its ledger is held as long as a step may still be computed anew.
    :param party: its name, for errors.
    """

    def __init__(self, communicator: Communicator, end: PartyProtocol, run: Run, party: str) -> None:
        self._communicator, self._end, self._run, self._party = communicator, end, run, party

    def opened(self, step: int, request: str, protocol: Callable[[], np.ndarray]) -> np.ndarray:
        """What a step opens, int64 flat: as it was opened, or now.

        :param request: a digest of what all parties were asked for.
        :param protocol: computes and opens it.
        :raises PlanSpentError: the step was sent as something else, or a record of it is gone.
        """
        stored = self._stored(step, request)
        found = self._communicator.all_gather(_state(stored), _ATTEMPT + 1)
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
        attempt = fresh_bytes(self._communicator.all_gather)[:_ATTEMPT]  # nobody can name it as an earlier one
        ready = Payload({"request": request, "sent": False}, {"attempt": np.frombuffer(attempt, np.uint8)})

        def on_record(message: bytes) -> None:
            nonlocal ready
            ready = Payload(ready.words, {**ready.arrays, "message": np.frombuffer(message, np.uint8)})
            self._put(step, ready)
            self._communicator.all_gather(_READY, len(_READY))
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


SEED_BYTES = 32

AllGather = Callable[[bytes, int], list[bytes]]
"""(this party's message, its size) -> every party's, in the parties' order."""


def fresh_bytes(all_gather: AllGather) -> bytes:
    """Bytes [32] that a part of every party is in, so that none can make them those of before."""
    return hashlib.sha256(b"".join(all_gather(secrets.token_bytes(SEED_BYTES), SEED_BYTES))).digest()


def toss_coins(all_gather: AllGather, rank: int) -> SharedRandomSource:
    """A source that all parties draw alike from; they call this together.

    :param rank: this party's number, so that no party can show another's commitment as its own.
    :raises CheckFailedError: a party showed another seed than it had committed to.
    """
    own = secrets.token_bytes(SEED_BYTES)
    commitments = all_gather(_commitment(rank, own), SEED_BYTES)
    seeds = all_gather(own, SEED_BYTES)
    for number, (commitment, shown) in enumerate(zip(commitments, seeds, strict=True)):
        if not secrets.compare_digest(commitment, _commitment(number, shown)):
            raise CheckFailedError("showed another seed than it had committed to; nothing was released", number)
    return SharedRandomSource(hashlib.sha256(b"".join(seeds)).digest())


def _commitment(rank: int, seed: bytes) -> bytes:
    return hashlib.sha256(rank.to_bytes(4, "big") + seed).digest()


@final
class SharedRandomSource(RandomSource):
    """AES-256 in counter mode under a tossed key: the same stream at every party. For batches, never for noise."""

    secure = True

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._children = Cipher(algorithms.AES(key), modes.CTR(bytes([128]) + bytes(15))).encryptor()

    @classmethod
    def fresh(cls) -> SharedRandomSource:
        """Under a key that nobody else has, for a dry run."""
        return cls(secrets.token_bytes(SEED_BYTES))

    def random_bytes(self, num_bytes: int) -> bytes:
        return self._stream.update(bytes(num_bytes))

    def uint64(self, size: int) -> np.ndarray:
        return np.frombuffer(self.random_bytes(8 * size), "<u8")

    def spawn(self, num_sources: int) -> tuple[SharedRandomSource, ...]:
        """Returns sources under keys of their own, alike at every party."""
        return tuple(SharedRandomSource(self._children.update(bytes(SEED_BYTES))) for _ in range(num_sources))
