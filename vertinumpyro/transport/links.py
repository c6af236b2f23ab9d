"""Messages between two processes: framed, timed, counted, never pickled, and never larger than is expected; and public
fields and arrays as one message, a `.npz` without pickles and without compression.

The one counter of what travels between processes, for real links and for dry runs alike; and what that takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import select
import socket
import ssl
import struct
import time
import zipfile
from collections.abc import Collection, Mapping
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from vertinumpyro.core.errors import BackendError

_FIRST_WINDOW = 10 * 1460  # bytes, RFC 6928


@final
@dataclasses.dataclass(kw_only=True)
class Traffic:
    """What one process sent and received so far, over all links that count here.

    :ivar rounds: how often it waited for others; where a backend cannot tell, how many messages it sent.
    :ivar bytes_sent: frames included.
    :ivar bytes_received: frames included.
    :ivar bulks: messages of more than 64 KiB, either way: nearly all of the bytes, where there are many.
    """

    rounds: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bulks: int = 0

    @property
    def bulk_bytes(self) -> float:
        """The mean length of a long message; 0 where there was none."""
        return (self.bytes_sent + self.bytes_received) / self.bulks if self.bulks else 0.0

    def snapshot(self) -> Traffic:
        """The counts as they are now."""
        return dataclasses.replace(self)

    def since(self, earlier: Traffic) -> Traffic:
        """What was added after a snapshot."""
        return Traffic(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})

    def over(self, times: int) -> Traffic:
        """The part of each of so many equal computations, rounded up."""
        return Traffic(**{name: -(-value // times) for name, value in vars(self).items()})

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkProfile:
    """What a message takes between two members.

    :ivar round_trip_s: of a short message and its answer.
    :ivar bits_per_second: of a message that fits TCP's window: all of it is sent before any of it has arrived.
    :ivar sustained_bits_per_second: of one that does not; None where the line is no slower then.
    """

    round_trip_s: float
    bits_per_second: float
    sustained_bits_per_second: float | None = None

    def byte_s(self, message: float) -> float:
        """Seconds for each byte of messages of so many bytes: what is beyond the window waits for what is within."""
        if self.sustained_bits_per_second is None:
            return 8 / self.bits_per_second
        beyond = max(0.0, 1 - self.held_bytes / message) if message else 0.0
        return 8 * ((1 - beyond) / self.bits_per_second + beyond / self.sustained_bits_per_second)

    def slow_start_s(self, num_bytes: int) -> float:
        """What a message that fills the line takes longer where that was idle.

        TCP begins with ten segments a round trip and doubles them until as many are under way as its window, or the
        line, holds.
        """
        longer = num_bytes > self.held_bytes > _FIRST_WINDOW
        return self.round_trip_s * math.log2(self.held_bytes / _FIRST_WINDOW) if longer else 0.0

    @property
    def held_bytes(self) -> float:
        """What is under way at most."""
        return (self.sustained_bits_per_second or self.bits_per_second) * self.round_trip_s / 8


_HEADER = struct.Struct("<IQ")
HEADER_BYTES = _HEADER.size
_BULK = 2**16
_PACE = 2**16  # bytes: whoever sends or takes fewer within the time-out is as good as silent
_FIRST_WRITE = 2**16  # a header travels with this much of its message: on a network two writes may be two packets

Data = bytes | bytearray | memoryview


class PeerError(BackendError):
    """Another process is gone or silent; that one has the reason."""


@runtime_checkable
class Transfer(Protocol):
    """A message out and a message in, at the same time, without ever blocking.

    incoming: the message, once `waits_for` is 0.
    """

    incoming: bytearray

    @property
    def waits_for(self) -> int:
        """What `select.poll` should wait for; 0 once both messages are through."""
        ...

    def fileno(self) -> int:
        """The file to wait on."""
        ...

    def advance(self) -> None:
        """Send and receive what can be sent and received now.

        :raises PeerError: names the peer, if it is gone.
        """
        ...

    def silent_after(self, now: float) -> float | None:
        """Seconds from now after which the peer counts as silent; None for never.

        :raises PeerError: names the peer, if that has passed.
        """
        ...


@runtime_checkable
class Link(Protocol):
    """One end of a connection: to a process over a socket, or to nobody.

    peer: who is at the other end, as errors should name it.
    """

    peer: str

    @property
    def traffic(self) -> Traffic:
        """Counts what passes here; may be shared with other links."""
        ...

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None: ...

    def send(self, data: Data) -> None:
        """Send one message."""
        ...

    def receive(self, *, size: int | None = None, limit: int = 0) -> bytearray:
        """The next message, of exactly `size` bytes, or of at most `limit` where its size is not known."""
        ...

    def transfer(self, outgoing: Data, expected: int) -> Transfer:
        """A message out and one of exactly `expected` bytes in, for `exchange`."""
        ...

    def wait_forever(self) -> None:
        """From now on wait as long as the peer lives: it may have nothing to say for a long time."""
        ...

    def close(self) -> None:
        """Let the peer know that nothing more comes."""
        ...


@final
class SocketLink:
    """A link over a connected socket, of whatever kind.

    :param peer: who is at the other end, as errors should name it.
    :param timeout_s: how long to wait for the peer, and for each 64 KiB of what it has begun to send or to take.
    :param traffic: where to count; None makes a counter of its own.
    """

    def __init__(self, connection: socket.socket, peer: str, timeout_s: float, traffic: Traffic | None = None) -> None:
        connection.setblocking(False)
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.peer, self.timeout_s = connection, peer, timeout_s
        self.traffic = Traffic() if traffic is None else traffic
        self._sent = self._received = 0

    def send(self, data: Data) -> None:
        """Send one message.

        :raises PeerError: names the peer, if it is gone or does not take the message.
        """
        _complete([_SocketTransfer(self, data, None)])

    def receive(self, *, size: int | None = None, limit: int = 0) -> bytearray:
        """The next message, of exactly `size` bytes, or of at most `limit` where its size is not known.

        :raises PeerError: names the peer, if it is gone or does not answer in time.
        :raises BackendError: the message is another one, or claims another length; nothing of it was read.
        """
        self.traffic.rounds += 1
        arriving = _SocketTransfer(self, None, (0, limit) if size is None else (size, size))
        _complete([arriving])
        return arriving.incoming

    def transfer(self, outgoing: Data, expected: int) -> Transfer:
        """See `exchange`."""
        return _SocketTransfer(self, outgoing, (expected, expected))

    def header(self, length: int) -> bytes:
        """The frame of the next message that is sent: its number and its length."""
        self._sent += 1
        self.traffic.bulks += length > _BULK
        return _HEADER.pack(self._sent % 2**32, length)

    def expected_length(self, header: Data, least: int, most: int) -> int:
        """The length of the next message, from its frame; checked before anything is allocated for it."""
        number, length = _HEADER.unpack(header)
        self._received += 1
        if number != self._received % 2**32:
            raise BackendError(f"{self.peer} is at another step of the protocol; are both of one version?")
        if not least <= length <= most:
            expected = f"{least}" if least == most else f"at most {most}"
            raise BackendError(
                f"{self.peer} announces a message of {length} bytes where {expected} are expected; are both of one "
                "version?"
            )
        self.traffic.bulks += length > _BULK
        return length

    def wait_forever(self) -> None:
        """See `Link`."""
        self.timeout_s = math.inf

    def fileno(self) -> int:
        """For waiting on several links."""
        number = self.socket.fileno()
        if number < 0:
            raise self.gone()
        return number

    def close(self) -> None:
        """Let the peer know that nothing more comes, and wake whoever waits here."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def silent(self) -> PeerError:
        """The peer did not answer."""
        return PeerError(f"{self.peer} did not answer within {self.timeout_s:g} s")

    def gone(self) -> PeerError:
        """The peer is no more, or this end was closed."""
        return PeerError(f"{self.peer} stopped")

    def __repr__(self) -> str:
        return f"SocketLink({self.peer!r})"


@final
class _SocketTransfer:
    """See `Transfer`. Either direction may be left out.

    :param expected: the least and the largest length of what comes.
    """

    def __init__(self, link: SocketLink, outgoing: Data | None, expected: tuple[int, int] | None) -> None:
        self._link, self._expected = link, expected
        self._out = [] if outgoing is None else _framed(link.header(len(outgoing)), memoryview(outgoing).cast("B"))
        self.incoming = bytearray()
        self._header = bytearray(0 if expected is None else HEADER_BYTES)
        self._missing = memoryview(self._header)
        self._in_payload = False
        self.waits_for = 1  # not yet known; `advance` says
        self._last_progress, self._moved = time.monotonic(), 0

    def fileno(self) -> int:
        return self._link.fileno()

    def advance(self) -> None:
        self.waits_for = 0
        try:
            self._send()
            self._receive()
        except OSError:
            raise self._link.gone() from None

    def silent_after(self, now: float) -> float | None:
        left = self._last_progress + self._link.timeout_s - now
        if left <= 0:
            raise self._link.silent()
        return None if math.isinf(left) else left

    def _send(self) -> None:
        while self._out:
            try:
                count = self._link.socket.send(self._out[0])
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.waits_for |= select.POLLOUT
                return
            except ssl.SSLWantReadError:
                self.waits_for |= select.POLLIN
                return
            self._link.traffic.bytes_sent += count
            self._out[0] = self._out[0][count:]
            if not self._out[0]:
                del self._out[0]
            self._progress(count, through=not self._out)

    def _receive(self) -> None:
        while self._missing:
            try:
                count = self._link.socket.recv_into(self._missing)
            except (BlockingIOError, ssl.SSLWantReadError):
                self.waits_for |= select.POLLIN
                return
            except ssl.SSLWantWriteError:
                self.waits_for |= select.POLLOUT
                return
            if count == 0:
                raise self._link.gone()
            self._link.traffic.bytes_received += count
            self._missing = self._missing[count:]
            self._progress(count, through=not self._missing)
            if not self._missing and not self._in_payload:
                self._start_payload()

    def _progress(self, count: int, *, through: bool) -> None:
        """Waits anew from the first byte on, then for each 64 KiB: a byte now and then would keep it here for ever."""
        first, self._moved = not self._moved, self._moved + count
        enough = through or self._moved >= _PACE
        if first or enough:
            self._last_progress = time.monotonic()
        if enough:
            self._moved = 0

    def _start_payload(self) -> None:
        assert self._expected is not None
        self._in_payload = True
        self.incoming = bytearray(self._link.expected_length(self._header, *self._expected))
        self._missing = memoryview(self.incoming)


def exchange(
    links: Mapping[int, Link], outgoing: Mapping[int, Data], expected: Mapping[int, int]
) -> dict[int, bytearray]:
    """Send each peer its message and receive one from each, all at the same time: one round.

    :param expected: the exact length of each peer's message.
    :raises PeerError: names the peer, if it is gone or does not answer in time.
    :raises BackendError: a message is another one, or claims another length; nothing of it was read.
    """
    for traffic in {id(link.traffic): link.traffic for link in links.values()}.values():
        traffic.rounds += 1
    transfers = {rank: link.transfer(outgoing[rank], expected[rank]) for rank, link in links.items()}
    _complete(transfers.values())
    return {rank: transfer.incoming for rank, transfer in transfers.items()}


def all_gather(links: Mapping[int, Link], rank: int, message: bytes) -> list[bytes]:
    """Everybody's message in the order of their numbers, this process's own among them; all have the same size.

    :param rank: this process's number.
    :raises BackendError: as `exchange`.
    """
    found = {rank: message}
    for other, data in exchange(links, dict.fromkeys(links, message), dict.fromkeys(links, len(message))).items():
        found[other] = bytes(data)
    return [found[number] for number in sorted(found)]


def _framed(header: bytes, data: memoryview) -> list[memoryview]:
    """What to write: the header leaves together with the message, or with its beginning."""
    first = memoryview(b"".join([header, data[:_FIRST_WRITE]]))
    return [first, data[_FIRST_WRITE:]] if len(data) > _FIRST_WRITE else [first]


def _complete(transfers: Collection[Transfer]) -> None:
    """Advance all of them, each whenever its socket is ready, until all are through."""
    for transfer in transfers:
        transfer.advance()
    while pending := [transfer for transfer in transfers if transfer.waits_for]:
        now = time.monotonic()
        left = [seconds for transfer in pending if (seconds := transfer.silent_after(now)) is not None]
        poller, by_file = select.poll(), {transfer.fileno(): transfer for transfer in pending}
        for number, transfer in by_file.items():
            poller.register(number, transfer.waits_for)
        for number, _ in poller.poll(math.ceil(1000 * min(left)) if left else None):
            by_file[number].advance()


_WORDS = "words"


def pack(words: dict[str, Any], **arrays: np.ndarray) -> bytes:
    """JSON words and named arrays as bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{_WORDS: np.array(json.dumps(words)), **arrays})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(message: bytes | bytearray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `pack` was given.

    :raises BackendError: it is something else, or would be larger than it was sent: then nothing of it is read.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(message)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed")
        with np.load(io.BytesIO(message), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != _WORDS}
            if any(array.size > len(message) for array in arrays.values()):
                raise ValueError("numbers of no bytes")
            return dict(json.loads(str(stored[_WORDS]))), arrays
    except (ValueError, TypeError, KeyError, EOFError, OSError, MemoryError, RecursionError, zipfile.BadZipFile):
        raise BackendError("a message is not what this version writes; run one version everywhere") from None
