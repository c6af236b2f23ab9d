"""The dealer: a process of its own that knows no data, and a party's side of it.

Party 0 asks. The first time that a computation runs, it asks for one correlation after another, and the dealer
keeps the list. From then on one message asks for the whole list, and it is sent a step ahead: while step t runs,
the dealer prepares step t + 1. So a step waits for the dealer once at most, not at every product; and not before it
needs what the dealer knows.
"""

from __future__ import annotations

import json
from typing import Protocol, final, runtime_checkable

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.crypten.correlations import Request, corrected, correction_size, deal, drawn
from vertinumpyro.secure.keystream import KEY_BYTES, KeyStream, derived_key
from vertinumpyro.transport import Link, Traffic

__all__ = ["Correlations", "DealerClient", "FirstPartyDealer", "serve"]

_REQUEST_BYTES = 2**16  # the largest request: the name of a computation, or shapes


@runtime_checkable
class Correlations(Protocol):
    """What a computation needs of a dealer: this party's shares, in the order of the computation.

    traffic: between this party and the dealer.
    """

    traffic: Traffic

    def begin(self, program: str) -> None:
        """Start a computation; `program` names all that its requests depend on."""
        ...

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        """This party's shares of the next correlation that nobody else need know; the dealer begins with the others."""
        ...

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        """This party's shares of the same that the dealer corrects."""
        ...

    def draw(self, request: Request) -> tuple[np.ndarray, ...]:
        """Both at once."""
        return (*self.drawn(request), *self.corrected(request))


def serve(links: list[Link]) -> None:
    """Deal until party 0 says that it is over. `links` are in the parties' order.

    Each party's first message is the key that it shares with the dealer.
    """
    keys = [bytes(link.receive(size=KEY_BYTES)) for link in links]
    programs: dict[str, list[Request]] = {}
    streams: list[KeyStream] = []
    recording: list[Request] = []
    while message := json.loads(links[0].receive(limit=_REQUEST_BYTES)):
        match message["ask"]:
            case "record":
                streams = _streams(keys, int(message["call"]), message["program"])
                recording = programs[message["program"]] = []
            case "one":
                request = _request(message["request"])
                recording.append(request)
                links[0].send(deal(request, streams).tobytes())
            case "all":
                streams = _streams(keys, int(message["call"]), message["program"])
                dealt = [deal(request, streams) for request in programs[message["program"]]]
                links[0].send(np.concatenate([np.zeros(0, np.int64), *dealt]).tobytes())


@final
class DealerClient(Correlations):
    """One party's side: its shares of every correlation, in the order of the computation.

    :param key: shared with the dealer.
    :param link: to the dealer; only party 0 uses it.
    :param prefetch: False asks for every correlation when it is needed, as CrypTen does; to measure the gain.
    """

    def __init__(self, key: bytes, rank: int, link: Link, *, prefetch: bool = True) -> None:
        self._key, self._rank, self._link, self._prefetch = key, rank, link, prefetch
        self.traffic = link.traffic = Traffic()
        link.send(key)
        self._call = 0
        self._program = ""
        self._words: dict[str, int] = {}  # that the dealer corrects, by program
        self._ahead: tuple[int, str] | None = None
        self._due: int | None = None  # words of this call that are on their way
        self._corrections: np.ndarray | None = None
        self._next = 0
        self._stream: KeyStream | None = None

    def begin(self, program: str) -> None:
        """Start a computation. `program` names all that its requests depend on; all parties use the same name."""
        self._read_due()  # of a computation that needed none of it
        self._call, self._program = self._call + 1, program
        self._stream = _stream(self._key, self._call, program)
        self._corrections, self._next = None, 0
        if self._rank > 0:
            return
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead != (self._call, program):
            self._receive(self._words[ahead[1]])  # prepared for another computation: its keys are never used again
            self.traffic.rounds -= 1  # sent long ago, nobody waits for it
            ahead = None
        if program not in self._words or not self._prefetch:
            self._words[program] = 0
            self._ask("record", self._call)
            return
        if ahead is None:
            self._ask("all", self._call)
        self._ask("all", self._call + 1)
        self._ahead = (self._call + 1, program)
        self._due = self._words[program]

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        """See `Correlations`."""
        assert self._stream is not None
        if self._rank == 0 and self._due is None and self._corrections is None:
            self._words[self._program] += correction_size(request)
            self._send(ask="one", request=request)
        return drawn(request, self._stream, self._rank)

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        """See `Correlations`."""
        assert self._stream is not None
        return corrected(request, self._stream, self._correction(request) if self._rank == 0 else None)

    def close(self) -> None:
        """Let the dealer go."""
        if self._rank == 0:
            self._link.send(b"null")

    def _correction(self, request: Request) -> np.ndarray:
        self._read_due()
        if self._corrections is None:
            return self._receive(correction_size(request))
        start, self._next = self._next, self._next + correction_size(request)
        if self._next > len(self._corrections):
            raise BackendError("the computation asks for more than it did the first time")
        return self._corrections[start : self._next]

    def _read_due(self) -> None:
        if self._due is not None:
            self._corrections, self._due = self._receive(self._due), None

    def _ask(self, what: str, call: int) -> None:
        self._send(ask=what, call=f"{call:020d}", program=self._program)  # as many bytes at every call

    def _send(self, **message: object) -> None:
        self._link.send(json.dumps(message).encode())

    def _receive(self, words: int) -> np.ndarray:
        return np.frombuffer(self._link.receive(size=8 * words), "<i8")

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return "DealerClient()"


@final
class FirstPartyDealer(Correlations):
    """Party 0 deals to everyone, so it can read everything: NOT secure, and without a third process's cost.

    :param key: shared with party 0; party 0's own, at party 0.
    :param keys: every party's key, in order, at party 0; empty elsewhere.
    """

    def __init__(self, key: bytes, rank: int, keys: list[bytes]) -> None:
        self.traffic = Traffic()  # there is nobody to talk to
        self._key, self._rank, self._keys = key, rank, keys
        self._call = 0
        self._stream: KeyStream | None = None
        self._streams: list[KeyStream] = []

    def begin(self, program: str) -> None:
        """Start a computation."""
        self._call += 1
        self._stream = _stream(self._key, self._call, program)
        self._streams = _streams(self._keys, self._call, program)

    def drawn(self, request: Request) -> tuple[np.ndarray, ...]:
        """See `Correlations`."""
        assert self._stream is not None
        return drawn(request, self._stream, self._rank)

    def corrected(self, request: Request) -> tuple[np.ndarray, ...]:
        """See `Correlations`."""
        assert self._stream is not None
        return corrected(request, self._stream, deal(request, self._streams) if self._rank == 0 else None)

    def __repr__(self) -> str:
        """Shows nothing secret."""
        return "FirstPartyDealer()"


def _request(fields: list) -> Request:
    kind, shapes, option = fields
    return Request(kind, tuple(tuple(shape) for shape in shapes), option)


def _stream(key: bytes, call: int, program: str) -> KeyStream:
    """A stream for one call of one computation: what was dealt for a call that never came is never used again."""
    return KeyStream(derived_key(key, f"{call} {program}"))


def _streams(keys: list[bytes], call: int, program: str) -> list[KeyStream]:
    return [_stream(key, call, program) for key in keys]
