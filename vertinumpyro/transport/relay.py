"""Connections between local sockets of two organisations, carried by one encrypted connection between them.

For an engine that brings links of its own. It connects to a Unix socket in a folder of this user alone; each connection
to it becomes a stream in the carrier to that peer, and comes out at the socket where the peer's engine listens.
Everything that leaves the machine passes the carrier, so it is TLS with pinned certificates as all else is.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from typing import final

_FRAME = struct.Struct("<IBI")  # number of the stream, what it is, how many bytes follow
_OPEN, _DATA, _CLOSE = range(3)
_PIECE = 2**16
_ENOUGH = 2**23  # a side that has so much to write waits before it reads more for it
_PAUSE_S = 0.05
_WANTS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


@final
class Relay:
    """Carries connections until it is closed; a thread of its own.

    :param rank: this process's number.
    :param carriers: a connected socket to every peer, by number.
    :param folder: for this user alone; sockets to the peers are made in it.
    :param own: path of the socket where this process's engine listens, or will.
    """

    def __init__(self, rank: int, carriers: Mapping[int, socket.socket], folder: str, own: str) -> None:
        self._folder, self._own = folder, own
        self._selector = selectors.DefaultSelector()
        self._events: dict[_End, int] = {}
        self._woken, self._wakes = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        for peer, connection in carriers.items():
            carrier = _Carrier(self, connection, first=int(rank > peer))
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(self.path(peer))
            listener.listen()
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, carrier)
            self.add(carrier)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def path(self, peer: int) -> str:
        """Where to connect to reach a peer's engine."""
        return os.path.join(self._folder, f"to{peer}")

    def close(self) -> None:
        """End all connections."""
        self._wakes.close()
        self._thread.join()

    def add(self, end: _End) -> None:
        """From now on watch it."""
        self._events[end] = 0

    def connected(self) -> socket.socket:
        """A new connection to this process's own engine.

        :raises OSError: it does not listen.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(self._own)
        except OSError:
            connection.close()
            raise
        return connection

    def _run(self) -> None:
        try:
            while self._watch():
                for key, _ in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if isinstance(key.fileobj, socket.socket) and isinstance(key.data, _Carrier):
                        self._accept(key.fileobj, key.data)
                    else:
                        key.data.proceed()
        finally:
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            for end in self._events:
                end.connection.close()
            self._selector.close()

    def _accept(self, listener: socket.socket, carrier: _Carrier) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(_PAUSE_S)  # no file is left: the engine waits, and its connection stays to be taken
            return
        carrier.open(connection)

    def _watch(self) -> bool:
        """Wait for what each end wants next; whether there is anybody left to serve."""
        for end, before in list(self._events.items()):
            wanted = end.wants()
            if end.over:
                if before:
                    self._selector.unregister(end)
                del self._events[end]
                end.connection.close()
                continue
            if end.has_more():
                end.proceed()
                wanted = end.wants()
            if wanted != before:
                if not before:
                    self._selector.register(end, wanted, end)
                elif not wanted:
                    self._selector.unregister(end)
                else:
                    self._selector.modify(end, wanted, end)
                self._events[end] = wanted
        return any(isinstance(end, _Carrier) for end in self._events)


class _End:
    """One connection: what is to be written to it, and what is done with what comes."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection, self.out = connection, bytearray()
        self.over = self.ending = False

    def fileno(self) -> int:
        return self.connection.fileno()

    def wants(self) -> int:
        """What to wait for."""
        if self.ending and not self.out:
            self.over = True
        return (selectors.EVENT_WRITE if self.out else 0) | (selectors.EVENT_READ if self.may_read() else 0)

    def has_more(self) -> bool:
        """Whether something has arrived that no `select` tells of: TLS decrypts more than it was asked for."""
        return isinstance(self.connection, ssl.SSLSocket) and self.may_read() and self.connection.pending() > 0

    def proceed(self) -> None:
        """Write and read what can be written and read now."""
        try:
            while self.out:
                del self.out[: self.connection.send(bytes(self.out[:_PIECE]))]
        except _WANTS:
            pass
        except OSError:
            self.gone()
        try:
            while self.may_read() and not self.over:
                data = self.connection.recv(_PIECE)
                if not data:
                    self.gone()
                    return
                self.take(data)
        except _WANTS:
            pass
        except OSError:
            self.gone()

    def may_read(self) -> bool:
        raise NotImplementedError

    def take(self, data: bytes) -> None:
        raise NotImplementedError

    def gone(self) -> None:
        self.over = True


class _Carrier(_End):
    """The encrypted connection to a peer, and the streams in it.

    :param first: 0 or 1, so that both sides open streams of different numbers.
    """

    def __init__(self, relay: Relay, connection: socket.socket, *, first: int) -> None:
        super().__init__(connection)
        self._relay, self._next = relay, first
        self._streams: dict[int, _Stream] = {}
        self._arrived = bytearray()

    def open(self, connection: socket.socket) -> None:
        """A stream for a connection of this process's engine."""
        number, self._next = self._next, self._next + 2
        self.frame(number, _OPEN)
        self._stream(number, connection)

    def frame(self, number: int, kind: int, data: bytes = b"") -> None:
        self.out += _FRAME.pack(number, kind, len(data)) + data

    def forget(self, number: int) -> None:
        """A stream's connection here has ended."""
        if self._streams.pop(number, None) is not None:
            self.frame(number, _CLOSE)

    def may_read(self) -> bool:
        return all(len(stream.out) < _ENOUGH for stream in self._streams.values())

    def take(self, data: bytes) -> None:
        self._arrived += data
        while len(self._arrived) >= _FRAME.size:
            number, kind, size = _FRAME.unpack_from(self._arrived)
            if size > _PIECE or kind > _CLOSE:
                self.gone()  # no relay writes that
                return
            if len(self._arrived) < _FRAME.size + size:
                return
            payload = bytes(self._arrived[_FRAME.size : _FRAME.size + size])
            del self._arrived[: _FRAME.size + size]
            self._got(number, kind, payload)

    def gone(self) -> None:
        self.over = True
        for stream in self._streams.values():
            stream.ending = True
        self._streams.clear()

    def _got(self, number: int, kind: int, payload: bytes) -> None:
        stream = self._streams.get(number)
        if kind == _OPEN and stream is None:
            try:
                self._stream(number, self._relay.connected())
            except OSError:
                self.frame(number, _CLOSE)  # the engine over there tries again
        elif kind == _DATA and stream is not None:
            stream.out += payload
        elif kind == _CLOSE and stream is not None:
            del self._streams[number]
            stream.ending = True

    def _stream(self, number: int, connection: socket.socket) -> None:
        self._streams[number] = stream = _Stream(self, number, connection)
        self._relay.add(stream)


class _Stream(_End):
    """A connection of this process's engine."""

    def __init__(self, carrier: _Carrier, number: int, connection: socket.socket) -> None:
        super().__init__(connection)
        self._carrier, self._number = carrier, number

    def may_read(self) -> bool:
        return not self.ending and len(self._carrier.out) < _ENOUGH

    def take(self, data: bytes) -> None:
        self._carrier.frame(self._number, _DATA, data)

    def gone(self) -> None:
        self.over = True
        self._carrier.forget(self._number)
