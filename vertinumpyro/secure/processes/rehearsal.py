"""Backends whose protocols a single process can rehearse: it starts the parties' processes and hands them numbers."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from vertinumpyro.core.errors import ArgumentError, BackendError
from vertinumpyro.secure.backend import BackendStats, SecureBackend
from vertinumpyro.secure.processes.backend import BetweenProcesses
from vertinumpyro.secure.processes.group import Member
from vertinumpyro.secure.processes.simulation import Simulation, Simulations

__all__ = ["Rehearsable"]


@dataclasses.dataclass(frozen=True)
class Rehearsable(BetweenProcesses, SecureBackend):
    """The part that such backends share.

    :cvar option: what `--backend` calls it.
    :ivar insecure_simulation: allow the methods that see every party's numbers.
    :ivar timeout_s: how long a process waits for another before the run ends.
    """

    option: ClassVar[str]

    insecure_simulation: bool = False
    timeout_s: float = 60.0
    _simulations: Simulations = dataclasses.field(default_factory=Simulations, init=False, repr=False, compare=False)

    @abc.abstractmethod
    def members(self, num_parties: int) -> Sequence[Member]:
        """A simulation's processes, the parties' first."""

    def check_in_process(self) -> None:
        """Refuses, but for a rehearsal."""
        if not self.insecure_simulation:
            raise ArgumentError(
                "backend: here one process would hold every party's columns. Run `vertinumpyro fit --backend "
                f"{self.option}`, where each party is a process, or rehearse with "
                f"{type(self).__name__}(insecure_simulation=True)"
            )

    def stats(self) -> BackendStats:
        """Of the simulations so far: bytes that party 0 sent, rounds (messages, where those are not told), seconds."""
        return self._simulations.stats()

    def opened(self, num_parties: int) -> list[tuple[str, np.ndarray]]:
        """What party 0 saw opened in the last computation, where the backend records it: why, and the words."""
        return self.simulation(num_parties).opened

    def close(self) -> None:
        """End the simulations' processes; the next call starts new ones."""
        self._simulations.close()

    def simulation(self, num_parties: int) -> Simulation:
        """The one that runs for so many parties, or a new one.

        :raises ArgumentError: without `insecure_simulation`.
        :raises BackendError: what the backend needs is not installed.
        """
        self.check_in_process()
        if missing := self.missing():
            raise BackendError(missing)
        return self._simulations.of(
            num_parties, lambda: Simulation(self.members(num_parties), num_parties, self.timeout_s)
        )
