"""Messages between two processes: framed, timed, counted, and never pickled."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from typing import final

from vertinumpyro.core.errors import BackendError

__all__ = ["HEADER_BYTES", "Link", "PeerError", "exchange"]

_HEADER = struct.Struct("<IQ")
HEADER_BYTES = _HEADER.size
_PIECE = 2**16  # less than a socket's buffer: sending a piece never waits for a peer that is sending too


class PeerError(BackendError):
    """Another process is gone or silent; that one has the reason."""


@final
class Link:
    """One end of a connected pair of sockets.

    :param peer: who is at the other end, as errors should name it.
    :param timeout_s: how long to wait for the peer.
    """

    def __init__(self, connection: socket.socket, peer: str, timeout_s: float) -> None:
        connection.settimeout(timeout_s)
        self._socket, self.peer, self._timeout_s = connection, peer, timeout_s
        self._sent = self._received = 0
        self.bytes_sent = self.bytes_received = 0

    def send(self, data: bytes | memoryview) -> None:
        """Send one message.

        :raises PeerError: names the peer, if it is gone or does not take the message.
        """
        self.send_piece(self.header(len(data)))
        self.send_piece(data)

    def receive(self) -> bytes:
        """The next message.

        :raises PeerError: names the peer, if it is gone or does not answer in time.
        """
        buffer = bytearray(self.expect())
        self.receive_into(memoryview(buffer))
        return bytes(buffer)

    def header(self, length: int) -> bytes:
        """The frame of the next message that is sent: its number and its length."""
        self._sent += 1
        return _HEADER.pack(self._sent % 2**32, length)

    def expect(self) -> int:
        """The length of the next message."""
        buffer = bytearray(_HEADER.size)
        self.receive_into(memoryview(buffer))
        number, length = _HEADER.unpack(buffer)
        self._received += 1
        if number != self._received % 2**32:
            raise BackendError(f"{self.peer} is at another step of the protocol; are both of one version?")
        return length

    def send_piece(self, data: bytes | memoryview) -> None:
        """Send raw bytes of a message."""
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise self._silent() from None
        except OSError:
            raise self._gone() from None
        self.bytes_sent += len(data)

    def receive_into(self, view: memoryview) -> None:
        """Fill the view with raw bytes of a message."""
        while len(view):
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                raise self._silent() from None
            except OSError:
                raise self._gone() from None
            if count == 0:
                raise self._gone()
            self.bytes_received += count
            view = view[count:]

    def wait_forever(self) -> None:
        """From now on wait as long as the peer lives: it may have nothing to ask for a long time."""
        self._socket.settimeout(None)

    def fileno(self) -> int:
        """For waiting on several links."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let the peer know that nothing more comes, and wake whoever waits here."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _silent(self) -> PeerError:
        return PeerError(f"{self.peer} did not answer within {self._timeout_s:g} s")

    def _gone(self) -> PeerError:
        return PeerError(f"{self.peer} stopped")

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"Link({self.peer!r})"


def exchange(links: Mapping[int, Link], outgoing: Mapping[int, bytes]) -> dict[int, bytes]:
    """Send each peer its message and receive one from each, all at the same time.

    Messages go in pieces, a piece to everyone and then a piece from everyone, so that two peers never wait for
    each other to read.
    """
    for rank, link in links.items():
        link.send_piece(link.header(len(outgoing[rank])))
    incoming = {rank: bytearray(link.expect()) for rank, link in links.items()}
    longest = max((len(data) for data in (*outgoing.values(), *incoming.values())), default=0)
    for start in range(0, longest, _PIECE):
        for rank, link in links.items():
            if piece := memoryview(outgoing[rank])[start : start + _PIECE]:
                link.send_piece(piece)
        for rank, link in links.items():
            if piece := memoryview(incoming[rank])[start : start + _PIECE]:
                link.receive_into(piece)
    return {rank: bytes(data) for rank, data in incoming.items()}
