"""The other end of a dry run: there is nobody, and the same counter counts."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from typing import final

from vertinumpyro.transport.link import Data, PeerError, SocketLink, Transfer, exchange
from vertinumpyro.transport.tls import both_ends
from vertinumpyro.transport.traffic import Traffic

__all__ = ["Nobody"]

_TIMEOUT_S = 60.0

_Orders = queue.SimpleQueue[tuple[Data | None, int | None] | None]


@final
class Nobody:
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
