"""What a backend with one process per party offers, and what its protocols cost before there is any data."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import statistics
import time
from typing import ClassVar, final

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import Backend, BatchShape
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.inputs import PartyInputs, PriorInputs, encode_party_traced, encode_prior_traced
from vertinumpyro.secure.party_end import PartyEnd, Watch
from vertinumpyro.transport import Line, Member, Seat, Traffic

__all__ = ["BetweenProcesses", "Cost", "dry_run"]

_CALLS = 3  # a dealer asked for the same a third time works one call ahead, as from then on
_ENOUGH_S = 0.2  # of short calls, for a mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one computation at one party.

    :ivar traffic: between the parties, and helpers that take part in their rounds.
    :ivar dealer_traffic: with the dealer, a step ahead; nothing without one.
    :ivar seconds: of computing, on this machine.
    :ivar ahead: whether the dealer sends while the computation before runs, so that nobody waits for it.
    """

    traffic: Traffic
    dealer_traffic: Traffic
    seconds: float
    ahead: bool = False

    def on(self, line: Line) -> float:
        """Seconds on a network: in a round all send at once, so it takes half of a round trip.

        A dealer that is asked takes a whole one. One that sends ahead takes the room that is left on the line, and
        while it does, what comes from the parties meets its words: both go at half of the speed, so it takes twice as
        long, and none of the parties' words waits for more than the dealer's.
        """
        per_byte = line.byte_s(self.traffic.bulk_bytes)
        alone = self.seconds + self.traffic.rounds * line.round_trip_s / 2 + self.traffic.bytes_sent * per_byte
        dealt = self.dealer_traffic.bytes_received * line.byte_s(self.dealer_traffic.bulk_bytes)
        if self.ahead:
            received = self.traffic.bytes_received * per_byte
            meeting = min(1.0, 2 * dealt / alone) if alone else 0.0  # the part of the time in which the dealer sends
            return max(alone + min(dealt, meeting * received), received + dealt)
        return alone + self.dealer_traffic.rounds * line.round_trip_s + dealt

    @property
    def lan_seconds(self) -> float:
        """1 ms round trip, 1 Gbit/s."""
        return self.on(Line(round_trip_s=0.001, bits_per_second=1e9))

    @property
    def wan_seconds(self) -> float:
        """50 ms round trip, 100 Mbit/s."""
        return self.on(Line(round_trip_s=0.05, bits_per_second=1e8))


class BetweenProcesses(Backend):
    """A secure backend whose parties are processes of their own: numbers 0 to P - 1 of a group, helpers behind them.

    :cvar own_links: whether its engine has links of its own, which between machines need a seat's `carriers`.
    :cvar libraries: heavy modules that its processes will import, none of which begins a thread when it is read.
    """

    own_links: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def missing(self) -> str | None:
        """What to install; None where all is there."""

    def load(self) -> None:
        """Imports its libraries, which takes seconds: before anybody else waits for this process."""
        for name in self.libraries:
            importlib.import_module(name)

    @abc.abstractmethod
    def rehearsal_only(self) -> str | None:
        """Why these settings are good for a rehearsal only; None where they are good for a release."""

    @abc.abstractmethod
    def helpers(self, num_parties: int) -> list[Member]:
        """Processes that the protocol needs beside the parties'; none of them holds a table."""

    @abc.abstractmethod
    def end(self, seat: Seat, num_parties: int, watch: Watch | None = None) -> PartyEnd:
        """A party's end; called in its process, once the group stands.

        :param watch: in a rehearsal, called with all that is opened. None in a run, which insecure settings refuse.
        :raises ArgumentError: the settings are good for a rehearsal only, and this is none.
        """

    def encode_party(self, shape: BatchShape, contribution: Contribution, party: int) -> PartyInputs:
        """What a rehearsed party puts in, inside a JAX program in 64-bit mode."""
        return encode_party_traced(shape, contribution, party)

    def encode_prior(self, shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
        """What is public, likewise."""
        return encode_prior_traced(shape, prior)

    @abc.abstractmethod
    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """What a computation costs one of the parties, from its public shapes; one of a fit's steps where it repeats.

        :raises BackendError: what it takes is not installed.
        """

    @final
    def check_release(self) -> None:
        """Refuse settings that are good for a rehearsal only.

        :raises ArgumentError: names the setting.
        """
        if reason := self.rehearsal_only():
            raise ArgumentError(f"{reason}; it needs an InsecureRehearsal")


def dry_run(end: PartyEnd, computation: Computation) -> Cost:
    """A computation on zeros at an end whose links lead to nobody."""
    inputs = computation.zeros(end.rank)
    calls: list[float] = []
    first, enough = (_CALLS - 1, _ENOUGH_S) if computation.repeated else (0, 0.0)
    while len(calls) <= first or sum(calls[first:]) < enough:
        before, dealt, started = end.traffic.snapshot(), end.dealer_traffic.snapshot(), time.perf_counter()
        computation.at(end, inputs)
        calls.append(time.perf_counter() - started)
    return Cost(
        traffic=end.traffic.since(before),
        dealer_traffic=end.dealer_traffic.since(dealt),
        seconds=statistics.fmean(calls[first:]),
        ahead=computation.repeated,
    )
