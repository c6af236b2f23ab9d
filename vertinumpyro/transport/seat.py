"""A process's place among those that compute together: its number, and links to the others."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.transport.link import Link, everyones, exchange
from vertinumpyro.transport.nobody import Nobody

__all__ = ["MESSAGE_BYTES", "Seat"]

MESSAGE_BYTES = 2**28
"""The largest message where the receiver does not know the size: 1,000 batches of 40,000 records."""

_SIZE = 8


class Seat:
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
    def alone(self) -> bool:
        """Whether this is a dry run, of which every link leads to nobody."""
        return all(isinstance(link, Nobody) for link in self.links.values())

    @property
    def peers(self) -> dict[int, Link]:
        """Links to the other parties."""
        return {rank: link for rank, link in self.links.items() if rank < self.num_parties}

    def from_first(self, message: bytes, *, limit: int = MESSAGE_BYTES) -> bytes:
        """Party 0's message, at every party; what the others give is not used.

        :param limit: the largest that it may be.
        """
        if self.rank > 0:
            return bytes(self.links[0].receive(limit=limit))
        for link in self.peers.values():
            link.send(message)
        return message

    def everyones(self, message: bytes, size: int) -> list[bytes]:
        """Every party's message, in the parties' order.

        :param size: of each of them.
        """
        if len(message) != size:
            raise ArgumentError(f"message must have {size} bytes, as everybody's, got {len(message)}")
        return everyones(self.peers, self.rank, message)

    def gathered(self, message: bytes, *, limit: int = MESSAGE_BYTES) -> list[bytes]:
        """Every party's message, in the parties' order, of whatever size: one round more than `everyones`.

        :param limit: the largest that one may be.
        :raises BackendError: a party announces a larger one; nothing of it was read.
        """
        sizes = [
            int.from_bytes(size, "little") for size in self.everyones(len(message).to_bytes(_SIZE, "little"), _SIZE)
        ]
        for rank, size in enumerate(sizes):
            if size > limit:
                peer = self.links[rank].peer if rank in self.links else "this party"
                raise BackendError(f"{peer} announces a message of {size} bytes where at most {limit} are expected")
        peers = self.peers
        found = exchange(peers, dict.fromkeys(peers, message), {rank: sizes[rank] for rank in peers})
        return [message if rank == self.rank else bytes(found[rank]) for rank in range(self.num_parties)]
