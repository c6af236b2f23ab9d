"""Handshakes with whoever dials: few at a time, in one thread, whatever strangers do.

Anybody may connect to a port that others can reach, say nothing, and stay. So a connection that has not shown who it is
costs a place among few, for a limited time: when all places are taken, the one that has been silent longest goes, and
so do some where the process has no file or memory left. Strangers thus never hold more than those places, the process
keeps room for its own files, and whoever answers at once comes through.

Links between organisations: mutual TLS 1.3, each side knowing the other's certificate byte by byte.

Every organisation runs the same program and none of them waits for a coordinator. For each two of them one side
listens and the other dials, until all are there, in whatever order they come. A connection of anybody else is closed
and counted, for the error of a run that nobody joined; `Listening` keeps strangers few.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import math
import selectors
import socket
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar, final

from vertinumpyro.core.errors import ArgumentError, BackendError, Sparing
from vertinumpyro.transport.identity import Certificate, Identity, make_identity
from vertinumpyro.transport.links import Link, PeerError, SocketLink

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None


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


_AGAIN_S, _FIRST_AGAIN_S = 0.3, 0.02
_LOOK_S = 1.0  # between two looks at who is missing, for who wants to know
_HELLO = hashlib.sha256().digest_size
_CAUSES = 3  # that an error names, of strangers that were refused


@final
@dataclasses.dataclass(frozen=True)
class Address:
    """Where somebody listens."""

    host: str
    port: int

    def __post_init__(self) -> None:
        """Refuses what is no port."""
        if not self.host or not 0 <= self.port < 2**16:
            raise ArgumentError(f"{self.host!r}:{self.port} is no address; give a host name and a port below 65536")

    @classmethod
    def parsed(cls, text: str) -> Address:
        """From host:port.

        :raises ArgumentError: it has another form.
        """
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit():
            raise ArgumentError(f"{text!r} is no address; write host:port, as clinic.example.org:7450")
        return cls(host.strip("[]"), int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Another organisation.

    :ivar name: for errors.
    :ivar certificate: the one that it has to show.
    :ivar dial: where it listens; None where it dials this organisation.
    """

    name: str
    certificate: Certificate
    dial: Address | None = None


def connect_all(
    identity: Identity,
    peers: Mapping[int, Peer],
    *,
    topic: bytes,
    listener: socket.socket | None = None,
    wait_s: float = 600.0,
    timeout_s: float = 120.0,
    waiting: Callable[[str], None] = lambda text: None,
) -> dict[int, Link]:
    """A link to every peer, once all of them are there.

    :param peers: by number.
    :param topic: what all are here for, as a digest of an agreement; whoever comes for another one is refused.
    :param listener: a bound socket, for the peers that dial; closed in the end.
    :param wait_s: how long to wait for all of them.
    :param timeout_s: how long the links wait for a message.
    :param waiting: called with a line about who is awaited, as seldom as `Sparing` has it.
    :raises ArgumentError: this organisation's own certificate or key cannot be used.
    :raises PeerError: somebody did not come; names each, and what was seen of it last.
    """
    sockets = connected(identity, peers, topic=topic, listener=listener, wait_s=wait_s, waiting=waiting)
    return {rank: SocketLink(sockets[rank], peers[rank].name, timeout_s) for rank in sorted(sockets)}


def connected(
    identity: Identity,
    peers: Mapping[int, Peer],
    *,
    topic: bytes,
    listener: socket.socket | None = None,
    wait_s: float = 600.0,
    waiting: Callable[[str], None] = lambda text: None,
) -> dict[int, socket.socket]:
    """The same as bare connections, for what has frames of its own."""
    gathering = _Gathering(identity, peers, hashlib.sha256(topic).digest(), time.monotonic() + wait_s)
    if listener is None and any(peer.dial is None for peer in peers.values()):
        raise ArgumentError("listener: somebody dials this organisation, which listens nowhere; give a bound socket")
    tasks = [partial(gathering.dial, rank) for rank, peer in peers.items() if peer.dial]
    rung, bell = _pair()  # for who waits for a connection when none comes any more
    with contextlib.ExitStack() as left, rung, bell:
        if listener is not None:
            left.enter_context(listener)
            tasks.append(partial(gathering.listen, listener, rung))
        threads: list[threading.Thread] = []
        try:
            for task in tasks:
                threads.append(_started(task))
            return gathering.all(waiting)
        finally:
            gathering.end()
            bell.close()
            for thread in threads:
                thread.join(HANDSHAKE_S)  # the port is free again


def _pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as error:
        raise BackendError(f"no connection can be made ({error.strerror}); let this process have more files") from None


def _started(task: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=task, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise BackendError("this process may start no further thread; let it have more of them (ulimit -u)") from None
    return thread


def both_ends() -> tuple[socket.socket, socket.socket]:
    """A connection as between organisations that leads back to this process; its key is of no use to anybody."""
    with tempfile.TemporaryDirectory() as folder:
        identity = make_identity(Path(folder, "self"), "self")
        itself = Peer(name="this process", certificate=identity.certificate, dial=Address("self", 0))
        dialling, listening = _contexts(identity, {0: itself})
    near, far = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(listening.wrap_socket, far, server_side=True)
        return dialling[0].wrap_socket(near), answering.result()


class _Gathering:
    """Who is here already, and what went wrong with the others."""

    def __init__(self, identity: Identity, peers: Mapping[int, Peer], hello: bytes, deadline: float) -> None:
        self._peers, self._hello, self._deadline = peers, hello, deadline
        self._by_der = {peer.certificate.der: rank for rank, peer in peers.items()}
        self._dialling, self._listening = _contexts(identity, peers)
        self._found: dict[int, socket.socket] = {}
        self._seen: dict[int, str] = {}
        self._strangers: Counter[str] = Counter()  # by what was wrong with them
        self._listens: Listening | None = None
        self._changed = threading.Condition()

    def all(self, waiting: Callable[[str], None]) -> dict[int, socket.socket]:
        """Everybody's socket.

        :param waiting: called with a line about who is not here yet.
        :raises PeerError: the time is over.
        """
        sparing = Sparing()
        while not self._over():
            if (missing := self._missing()) and sparing.is_due(sorted(missing)):
                waiting(f"waiting for {', '.join(missing.values())}")
            with self._changed:
                self._changed.wait_for(self._complete, min(_LOOK_S, max(0.0, self._deadline - time.monotonic())))
        with self._changed:
            complete = self._complete()
            found = dict(self._found)
            self.end()
            if complete:
                return found
            for connection in found.values():
                connection.close()
            raise PeerError("; ".join([*self._absent(), *self._refused()]))

    def end(self) -> None:
        """Nobody is taken any more, and the threads end."""
        self._deadline = -math.inf

    def dial(self, rank: int) -> None:
        """Calls a peer until it answers."""
        peer, again = self._peers[rank], _FIRST_AGAIN_S
        assert peer.dial is not None
        while not self._over():
            try:
                raw = socket.create_connection((peer.dial.host, peer.dial.port), timeout=HANDSHAKE_S)
                connection = _wrapped(self._dialling[rank], raw, server_side=False)
            except (OSError, ValueError) as error:
                self._note(rank, f"no connection to {peer.dial} ({getattr(error, 'strerror', None) or error})")
            else:
                if complete(connection, self._greeting(connection, rank)):
                    return
            time.sleep(again)
            again = min(2 * again, _AGAIN_S)

    def listen(self, listener: socket.socket, rung: socket.socket) -> None:
        """Takes whoever dials, until all are there.

        :param rung: its other end is closed then.
        """
        wrap = partial(_wrapped, self._listening, server_side=True)
        self._listens = Listening(listener, wrap, partial(self._greeting, rank=None))
        self._listens.run(rung)

    def _greeting(self, connection: ssl.SSLSocket, rank: int | None) -> Handshake:
        """Who it is, and whether it came for the same.

        :param rank: who was dialled; None for whoever dialled.
        """
        try:
            yield from until_done(connection.do_handshake)
            who = self._by_der.get(connection.getpeercert(binary_form=True) or b"")
            if who is None or (rank is not None and who != rank):
                raise BackendError("it showed another certificate than the one in the agreement")
            rank = who
            yield from until_done(partial(connection.send, self._hello))
            hello = b""
            while len(hello) < _HELLO:
                part = yield from until_done(partial(connection.recv, _HELLO - len(hello)))
                if not part:
                    raise BackendError(
                        "it closed the connection: it does not know this organisation's certificate, or ended"
                    )
                hello += part
            if hello != self._hello:
                raise BackendError("it came for another agreement or attempt")
            return self._takes(rank, connection)
        except (OSError, ValueError, BackendError) as error:
            connection.close()
            self._note(rank, _cause(error) if rank is None else f"{self._peers[rank].name}: {_cause(error)}")
            return False

    def _takes(self, rank: int, connection: socket.socket) -> bool:
        with self._changed:
            if self._over():
                connection.close()
                return False
            connection.settimeout(HANDSHAKE_S)
            if rank in self._found:  # it started again while this side was waiting for others
                self._found[rank].close()
            self._found[rank] = connection
            self._changed.notify_all()
            return True

    def _note(self, rank: int | None, what: str) -> None:
        with self._changed:
            if rank is None:
                self._strangers[what] += 1
            else:
                self._seen[rank] = what

    def _complete(self) -> bool:
        return len(self._found) == len(self._peers)

    def _over(self) -> bool:
        return self._complete() or time.monotonic() > self._deadline

    def _missing(self) -> dict[int, str]:
        """Who is not here yet, with what was seen of it last."""
        with self._changed:
            seen = {rank: f" ({self._seen[rank]})" if rank in self._seen else "" for rank in self._peers}
            return {rank: peer.name + seen[rank] for rank, peer in self._peers.items() if rank not in self._found}

    def _absent(self) -> list[str]:
        nothing = "it was not heard of"
        return [
            f"{peer.name} did not join in time: {self._seen.get(rank, nothing)}"
            for rank, peer in self._peers.items()
            if rank not in self._found
        ]

    def _refused(self) -> list[str]:
        """What else went on, where it may be why somebody is missing."""
        found = []
        if count := self._strangers.total():
            causes = "; ".join(f"{what}, {number} times" for what, number in self._strangers.most_common(_CAUSES))
            found.append(f"connections of somebody else that were refused: {count} ({causes})")
        if self._listens is not None and self._listens.trouble:
            found.append(f"this process could not take every connection: {self._listens.trouble}")
        return found


def _contexts(identity: Identity, peers: Mapping[int, Peer]) -> tuple[dict[int, ssl.SSLContext], ssl.SSLContext]:
    """For each peer that is dialled, one that takes its certificate alone; one for whoever dials."""
    dialling = {rank: _context(ssl.PROTOCOL_TLS_CLIENT, identity, [peer]) for rank, peer in peers.items() if peer.dial}
    return dialling, _context(ssl.PROTOCOL_TLS_SERVER, identity, list(peers.values()))


def _context(protocol: int, identity: Identity, peers: list[Peer]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is known, which says more than a name in it
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a pinned certificate is trusted, whoever issued it
    for peer in peers:
        context.load_verify_locations(cadata=peer.certificate.der)
    try:
        context.load_cert_chain(*identity.files)
    except (OSError, ssl.SSLError) as error:
        raise ArgumentError(
            f"the certificate and key in {str(identity.folder)!r} cannot be used ({error.strerror or error}); make new "
            "ones, or restore them"
        ) from None
    return context


def _wrapped(context: ssl.SSLContext, raw: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
    """A connection whose TLS is yet to begin, and which does not block; closed where it has gone already."""
    try:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a short message waits for the one before it
        return context.wrap_socket(raw, server_side=server_side, do_handshake_on_connect=False)
    except BaseException:
        raw.close()
        raise


def _cause(error: Exception) -> str:
    """In words that name no file of this process."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed ({error.reason or error.strerror})"
    if isinstance(error, TimeoutError):
        return f"it did not answer within {HANDSHAKE_S:g} s"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
