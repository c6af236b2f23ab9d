"""Handshakes with whoever dials: few at a time, in one thread, whatever strangers do.

Anybody may connect to a port that others can reach, say nothing, and stay. So a connection that has not shown who it is
costs a place among few, for a limited time: when all places are taken, the one that has been silent longest goes, and
so do some where the process has no file or memory left. Strangers thus never hold more than those places, the process
keeps room for its own files, and whoever answers at once comes through.
"""

from __future__ import annotations

import dataclasses
import errno
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar, final

from vertinumpyro.core.errors import BackendError

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

__all__ = ["HANDSHAKE_S", "Handshake", "Listening", "complete", "until_done"]

HANDSHAKE_S = 10.0
_PLACES, _OF_ALL_FILES = 32, 8  # at most so many, and that share of the files that the process may open
_PAUSE_S = 0.1
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Handshake = Generator[int, None, bool]
"""Yields what it waits for, `selectors.EVENT_READ` or `EVENT_WRITE`, and returns whether the connection may stay. What
is thrown into it, or fails in it, it notes, and closes the connection."""

_Made = TypeVar("_Made")


def until_done(operation: Callable[[], _Made]) -> Generator[int, None, _Made]:
    """An operation of a connection that does not block, tried whenever it may go on."""
    while True:
        try:
            return operation()
        except ssl.SSLWantReadError:
            yield selectors.EVENT_READ
        except (ssl.SSLWantWriteError, BlockingIOError):
            yield selectors.EVENT_WRITE


def complete(connection: socket.socket, handshake: Handshake) -> bool:
    """A single handshake, to its end or for `HANDSHAKE_S`; whether the connection may stay."""
    deadline = time.monotonic() + HANDSHAKE_S
    selector = _selector()
    try:
        wanted = next(handshake)
        while True:
            selector.register(connection, wanted)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            selector.unregister(connection)
            wanted = next(handshake) if ready else handshake.throw(TimeoutError())
    except StopIteration as end:
        return end.value


@final
@dataclasses.dataclass(eq=False)
class _Place:
    """One that has not shown yet who it is.

    :ivar spoke: whether anything came from it since it was taken.
    """

    connection: ssl.SSLSocket
    handshake: Handshake
    since: float
    spoke: bool = False


@final
class Listening:
    """Takes whoever dials.

    :param listener: a bound socket, closed in the end.
    :param wrap: prepares a connection for TLS that is yet to begin and does not block; closes it where that fails.
    :param greet: the handshake of such a connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        wrap: Callable[[socket.socket], ssl.SSLSocket],
        greet: Callable[[ssl.SSLSocket], Handshake],
    ) -> None:
        self._listener, self._wrap, self._greet = listener, wrap, greet
        self._selector, self._places, self._most = _selector(), list[_Place](), _places()
        self.trouble = ""
        """What last kept this process from taking a connection, for an error; empty where nothing did."""

    def run(self, bell: socket.socket) -> None:
        """Until `bell` can be read, or has been closed at its other end."""
        self._listener.setblocking(False)
        for waited_for in (self._listener, bell):
            self._selector.register(waited_for, selectors.EVENT_READ)
        with self._listener, self._selector:
            while not self._rung(self._selector.select(self._patience()), bell):
                self._drop((p for p in self._places if time.monotonic() - p.since > HANDSHAKE_S), TimeoutError())
            self._drop(self._places, TimeoutError())

    def _rung(self, ready: list[tuple[selectors.SelectorKey, int]], bell: socket.socket) -> bool:
        """Goes on with all that are ready."""
        for key, _ in ready:
            if key.fileobj is bell:
                return True
            if key.fileobj is self._listener:
                self._accept()
            elif key.data in self._places:  # or it had to go a moment ago
                key.data.spoke = True
                self._proceed(key.data)
        return False

    def _accept(self) -> None:
        try:
            raw, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # whoever it was has gone
        except OSError as error:
            self._pause(error)
            return
        try:
            connection = self._wrap(raw)
        except (OSError, ValueError, MemoryError):
            return  # it has gone, or there is no room for it
        if len(self._places) >= self._most:
            self._make_room(f"it was slow while {self._most} others stood at the door")
        place = _Place(connection, self._greet(connection), time.monotonic())
        self._places.append(place)
        self._proceed(place)

    def _pause(self, error: OSError) -> None:
        """The next one is tried a moment later, and has the files of one that went."""
        self.trouble = str(error.strerror or error)
        if error.errno in _EXHAUSTED:
            self.trouble += "; let it have more files (ulimit -n) or memory"
            self._make_room("this process had no file or memory left")
        time.sleep(_PAUSE_S)

    def _make_room(self, why: str) -> None:
        if self._places:
            self._drop([min(self._places, key=lambda place: (place.spoke, place.since))], BackendError(why))

    def _drop(self, places: Iterable[_Place], error: Exception) -> None:
        for place in list(places):
            self._proceed(place, error)

    def _proceed(self, place: _Place, error: Exception | None = None) -> None:
        """What a stranger can provoke in its own handshake ends that one alone."""
        if place.connection.fileno() in self._selector.get_map():
            self._selector.unregister(place.connection)
        try:
            wanted = next(place.handshake) if error is None else place.handshake.throw(error)
            self._selector.register(place.connection, wanted, place)
        except StopIteration:
            self._places.remove(place)
        except Exception:
            self._places.remove(place)
            place.connection.close()

    def _patience(self) -> float | None:
        """Seconds until the first of them has had its time."""
        if not self._places:
            return None
        return max(0.0, min(place.since for place in self._places) + HANDSHAKE_S - time.monotonic())


def _selector() -> selectors.BaseSelector:
    """One that needs no file of its own, where there is one."""
    return getattr(selectors, "PollSelector", selectors.SelectSelector)()


def _places() -> int:
    """Few enough for a process that may open few files."""
    if resource is None:
        return _PLACES
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _PLACES if limit == resource.RLIM_INFINITY else max(1, min(_PLACES, limit // _OF_ALL_FILES))
