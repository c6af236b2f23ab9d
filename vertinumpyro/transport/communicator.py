"""A process's place among those that compute together, its number and links to the others; and the other end of a dry
run, a loopback, where the same counter counts.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import weakref
from collections.abc import Mapping
from typing import final

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.transport.links import Data, Link, PeerError, SocketLink, Traffic, Transfer, all_gather, exchange
from vertinumpyro.transport.tls import both_ends

_TIMEOUT_S = 60.0

_Orders = queue.SimpleQueue[tuple[Data | None, int | None] | None]


@final
class LoopbackLink:
    """A link with nobody at the other end, for what a computation costs before there is any data.

    What comes back is what went out last, cut or filled up with zeros to the expected length: so two ends agree
    wherever they compare what they sent. A message of unknown length comes back empty.

    A thread sends and receives at the other end what a peer would, over TLS: so all that a round takes is in its time,
    waking up with it, but for the way.
    """

    peer = "nobody"

    def __init__(self, traffic: Traffic) -> None:
        near, far = both_ends()
        self._link = SocketLink(near, self.peer, _TIMEOUT_S, traffic)
        self._orders: _Orders = queue.SimpleQueue()
        self._last: Data = b""
        other = SocketLink(far, self.peer, _TIMEOUT_S)
        threading.Thread(target=_answer, args=(other, self._orders), daemon=True).start()
        self._end = weakref.finalize(self, _hang_up, self._link, self._orders)

    @property
    def traffic(self) -> Traffic:
        """Counts what passes here."""
        return self._link.traffic

    @traffic.setter
    def traffic(self, traffic: Traffic) -> None:
        self._link.traffic = traffic

    def send(self, data: Data) -> None:
        """It arrives."""
        self._last = data
        self._orders.put((None, len(data)))
        self._link.send(data)

    def receive(self, *, size: int | None = None, limit: int = 0) -> bytearray:
        """An echo of that size."""
        echo = self._echo(size or 0)
        self._orders.put((echo, None))
        return self._link.receive(size=len(echo))

    def transfer(self, outgoing: Data, expected: int) -> Transfer:
        """For `exchange`."""
        self._last = outgoing
        self._orders.put((self._echo(expected), len(outgoing)))
        return self._link.transfer(outgoing, expected)

    def wait_forever(self) -> None:
        """It answers at once."""

    def close(self) -> None:
        """The thread ends, as it does when nobody holds this link any more."""
        self._end()

    def _echo(self, size: int) -> bytes:
        echo = bytes(self._last[:size])
        return echo + bytes(size - len(echo))


def _answer(link: SocketLink, orders: _Orders) -> None:
    """What a peer does meanwhile.

    :param orders: what it sends and how long a message it gets, either or both; None at the end.
    """
    with contextlib.suppress(PeerError):  # it was hung up in the middle
        while (order := orders.get()) is not None:
            outgoing, expected = order
            if outgoing is None:
                link.receive(size=expected)
            elif expected is None:
                link.send(outgoing)
            else:
                exchange({0: link}, {0: outgoing}, {0: expected})
    link.close()


def _hang_up(link: SocketLink, orders: _Orders) -> None:
    orders.put(None)
    link.close()


MESSAGE_BYTES = 2**28
"""The largest message where the receiver does not know the size: 1,000 batches of 40,000 records."""

_SIZE = 8


class Communicator:
    """What a process has: links to the others, by number.

    :ivar rank: this process's number; the parties come first, helpers behind them.
    :ivar num_parties: how many of all are parties.
    :ivar timeout_s: how long this process waits for another.
    :ivar carriers: between machines, a connection to each of the others for an engine with links of its own (`Relay`).
    """

    def __init__(
        self,
        rank: int,
        num_parties: int,
        links: Mapping[int, Link],
        timeout_s: float,
        carriers: Mapping[int, socket.socket] | None = None,
    ) -> None:
        self.rank, self.num_parties, self.links, self.timeout_s = rank, num_parties, links, timeout_s
        self.carriers = carriers or {}

    @property
    def is_dry_run(self) -> bool:
        """Whether this is a dry run, of which every link leads to nobody."""
        return all(isinstance(link, LoopbackLink) for link in self.links.values())

    @property
    def peers(self) -> dict[int, Link]:
        """Links to the other parties."""
        return {rank: link for rank, link in self.links.items() if rank < self.num_parties}

    def broadcast(self, message: bytes, *, limit: int = MESSAGE_BYTES) -> bytes:
        """Party 0's message, at every party; what the others give is not used.

        :param limit: the largest that it may be.
        """
        if self.rank > 0:
            return bytes(self.links[0].receive(limit=limit))
        for link in self.peers.values():
            link.send(message)
        return message

    def all_gather(self, message: bytes, size: int | None = None, *, limit: int = MESSAGE_BYTES) -> list[bytes]:
        """Every party's message, in the parties' order.

        :param size: of each of them; None where they differ, which takes a round more.
        :param limit: the largest that one may be, where they differ.
        :raises BackendError: a party announces a larger one; nothing of it was read.
        """
        if size is None:
            return self._of_any_size(message, limit)
        if len(message) != size:
            raise ArgumentError(f"message must have {size} bytes, as everybody's, got {len(message)}")
        return all_gather(self.peers, self.rank, message)

    def _of_any_size(self, message: bytes, limit: int) -> list[bytes]:
        announced = self.all_gather(len(message).to_bytes(_SIZE, "little"), _SIZE)
        sizes = [int.from_bytes(size, "little") for size in announced]
        for rank, size in enumerate(sizes):
            if size > limit:
                peer = self.links[rank].peer if rank in self.links else "this party"
                raise BackendError(f"{peer} announces a message of {size} bytes where at most {limit} are expected")
        peers = self.peers
        found = exchange(peers, dict.fromkeys(peers, message), {rank: sizes[rank] for rank in peers})
        return [message if rank == self.rank else bytes(found[rank]) for rank in range(self.num_parties)]
