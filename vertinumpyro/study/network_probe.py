"""What a run between organisations will meet: measured between every two of them, before anything is approved.

All members call `check_network` at the same time. Each two of them measure in turn, while the others wait: round trip,
bandwidth in both directions, the difference of their clocks; and each hears the others' public facts.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import platform
import statistics
import struct
import time
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, final

from vertinumpyro.core import __version__
from vertinumpyro.core.errors import BackendError, visible
from vertinumpyro.transport import Communicator, Link, NetworkProfile, pack, unpack

FACTS = ("vertinumpyro", "jax", "numpyro", "numpy", "dp-accounting")
"""Packages whose versions all should have alike: public values are computed by them."""

_PINGS = 9
_STAMP = struct.Struct("<d")
_SPEED = struct.Struct("<dd")
_BLOCKS = (2 * 2**20, 4 * 2**20, 8 * 2**20, 16 * 2**20)
_COUNT = 8
_LONG_S = 0.4  # a block that takes as long fills any line
_HEAD, _SHORT, _TRIES = 2**16, 2**20, 3  # a message that fits the window of a line that is neither short nor slow
_FACTS_BYTES, _FACT = 2**14, 40


class Speed(NamedTuple):
    """Bytes per second.

    :ivar at_once: of a message that fits TCP's window: all of it is sent before any of it has arrived.
    :ivar sustained: of the second of two blocks of 2 MiB, and of up to 16 where that takes less than .4 s.
    """

    at_once: float
    sustained: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One other member, as seen from this one.

    :ivar round_trip_s: the median of a message of 8 bytes and its answer.
    :ivar sent: how fast it receives what this one sends.
    :ivar received: how fast what it sends comes.
    :ivar clock_s: how far its clock is ahead, give or take half of the round trip.
    :ivar facts: its versions and its processor.
    """

    round_trip_s: float
    sent: Speed
    received: Speed
    clock_s: float
    facts: Mapping[str, Any]


def own_facts() -> dict[str, str]:
    """This member's public facts."""
    found = {"python": platform.python_version(), "processor": platform.machine(), "vertinumpyro": __version__}
    for name in FACTS[1:]:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def slowest_line(measured: Collection[Measured]) -> NetworkProfile:
    """The slowest of them in each respect, in either direction."""
    speeds = [speed for one in measured for speed in (one.sent, one.received)]
    return NetworkProfile(
        round_trip_s=max(one.round_trip_s for one in measured),
        bits_per_second=8 * min(speed.at_once for speed in speeds),
        sustained_bits_per_second=8 * min(speed.sustained for speed in speeds),
    )


def check_network(communicator: Communicator, facts: Mapping[str, str]) -> dict[int, Measured]:
    """Measures the links to all others, by number; all members call it together.

    :param facts: what the others are told of this one.
    :raises PeerError: a link broke, or a member fell silent; names it.
    """
    found = {}
    for one, other in itertools.combinations(range(len(communicator.links) + 1), 2):
        if communicator.rank not in (one, other):
            continue
        first = communicator.rank == one
        link = communicator.links[other if first else one]
        theirs = _exchanged_facts(link, facts, first)
        if first:
            round_trip, clock = _asked(link)
            sent = _sent(link)
            received = _received(link)
            link.send(_STAMP.pack(round_trip))
        else:
            clock = -_answered(link)
            received = _received(link)
            sent = _sent(link)
            (round_trip,) = _numbers(link, _STAMP, positive=True)
        found[other if first else one] = Measured(
            round_trip_s=round_trip, sent=sent, received=received, clock_s=clock, facts=theirs
        )
    return found


def _exchanged_facts(link: Link, facts: Mapping[str, str], first: bool) -> Mapping[str, Any]:
    if first:
        link.send(pack(dict(facts)))
    theirs, _ = unpack(link.receive(limit=_FACTS_BYTES))
    if not first:
        link.send(pack(dict(facts)))
    return {visible(str(name)): visible(str(value))[:_FACT] for name, value in theirs.items()}


def _asked(link: Link) -> tuple[float, float]:
    """(median round trip, how far the other's clock is ahead)."""
    trips, ahead = [], []
    for _ in range(_PINGS):
        clock, started = time.time(), time.perf_counter()
        link.send(_STAMP.pack(clock))
        (theirs,) = _numbers(link, _STAMP)
        trips.append(time.perf_counter() - started)
        ahead.append(theirs - clock - trips[-1] / 2)
    clock = statistics.median(ahead)
    link.send(_STAMP.pack(clock))
    return statistics.median(trips), clock


def _answered(link: Link) -> float:
    """How far this clock is ahead of the other's, as that one found."""
    for _ in range(_PINGS):
        link.receive(size=_STAMP.size)
        link.send(_STAMP.pack(time.time()))
    return _numbers(link, _STAMP)[0]


def _numbers(link: Link, of: struct.Struct, *, positive: bool = False) -> tuple[float, ...]:
    """What the other measured.

    :raises BackendError: names it, where that is no measure.
    """
    found = of.unpack(link.receive(size=of.size))
    if not all(math.isfinite(number) and (number > 0 or not positive) for number in found):
        raise BackendError(f"{link.peer} sent no measure of time or speed; are both of one version?")
    return found


def _sent(link: Link) -> Speed:
    """As the other received it."""
    while size := int.from_bytes(link.receive(size=_COUNT), "little"):
        if size not in (*_BLOCKS, _SHORT):
            raise BackendError(f"{link.peer} asks for a block of {size} bytes; are both of one version?")
        link.send(bytes(_HEAD if size == _SHORT else size))
        link.send(bytes(size))
    return Speed(*_numbers(link, _SPEED, positive=True))


def _received(link: Link) -> Speed:
    """Of the second of two blocks: with the first the connection has found the line's width.

    A line that is wide and long holds more than a short block, so blocks grow until one takes its time. The fastest
    counts: now and then a connection pauses to find its way anew. A short message after them all is sent at once;
    on a line that is slow anyway there is no difference.
    """
    sustained, size = 0.0, 0
    for size in _BLOCKS:
        seconds = _timed(link, size, size)
        sustained = max(sustained, size / seconds)
        if seconds > _LONG_S:
            break
    tries = _TRIES if size > _BLOCKS[0] else 0
    at_once = max([sustained, *(_SHORT / _timed(link, _HEAD, _SHORT) for _ in range(tries))])
    link.send(bytes(_COUNT))
    link.send(_SPEED.pack(at_once, sustained))
    return Speed(at_once, sustained)


def _timed(link: Link, first: int, size: int) -> float:
    """Seconds of a block that comes behind another one."""
    link.send(size.to_bytes(_COUNT, "little"))
    link.receive(size=first)
    started = time.perf_counter()
    link.receive(size=size)
    return max(time.perf_counter() - started, 1e-9)
