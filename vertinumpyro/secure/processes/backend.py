"""What a backend offers to a run with one process per party."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.processes.group import Member, Seat
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs

__all__ = ["BetweenProcesses", "Computer", "StepCost", "pairs"]


@runtime_checkable
class Computer(Protocol):
    """A party's end of the secure computation."""

    @property
    def bytes_sent(self) -> int:
        """Sent by this process to the others so far."""
        ...

    @property
    def rounds(self) -> int:
        """Messages that wait for each other so far, or all messages where a backend cannot tell."""
        ...

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: PartyInputs,
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        """The noisy clipped sum on its grid, int64 [D].

        :param own: this party's numbers.
        :param prior: public; every party knows it.
        :param mask: [n], False for padding; every party knows it.
        :param noise_share: this party's noise, int64 [D].
        """
        ...


class BetweenProcesses(abc.ABC):
    """A secure backend whose parties can be processes of their own; a party is process 0, 1, ... of the group."""

    @abc.abstractmethod
    def missing(self) -> str | None:
        """What to install; None where all is there."""

    @abc.abstractmethod
    def helpers(self, num_parties: int) -> list[Member]:
        """Processes that the protocol needs beside the parties'; none of them holds a table."""

    @abc.abstractmethod
    def party(self, seat: Seat, num_parties: int) -> Computer:
        """Called in a party's process, once the group stands."""

    @abc.abstractmethod
    def cost(self, shape: BatchShape, layout: Layout) -> StepCost:
        """What a step costs, from public facts.

        :raises BackendError: what it takes is not installed.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepCost:
    """The cost of one `clipped_noisy_sum`.

    :ivar rounds: messages that wait for each other.
    :ivar bytes_per_party: sent by party 0, frames left out.
    :ivar dealer_bytes: sent by the dealer, a step ahead; 0 without one.
    :ivar seconds: the computation on this machine.
    """

    rounds: int
    bytes_per_party: int
    dealer_bytes: int
    seconds: float

    def on(self, *, seconds_per_round: float, bits_per_second: float) -> float:
        """Seconds a step on a network."""
        sent = 8 * (self.bytes_per_party + self.dealer_bytes) / bits_per_second
        return self.seconds + self.rounds * seconds_per_round + sent

    @property
    def lan_seconds(self) -> float:
        """0.5 ms a round, 1 Gbit/s."""
        return self.on(seconds_per_round=0.0005, bits_per_second=1e9)

    @property
    def wan_seconds(self) -> float:
        """50 ms a round, 100 Mbit/s."""
        return self.on(seconds_per_round=0.05, bits_per_second=1e8)


def pairs(members: Sequence[Member]) -> list[tuple[int, int]]:
    """Every two of the group."""
    return [(i, j) for j in range(len(members)) for i in range(j)]
