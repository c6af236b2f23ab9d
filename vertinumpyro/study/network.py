"""The network between the organisations of an agreement: measured between every two of them before anything is
approved, then links to all of them, and everybody's approval, before anything runs.

To measure it, all members call `check_network` at the same time. Each two of them measure in turn, while the others
wait: round trip, bandwidth in both directions, the difference of their clocks; and each hears the others' public facts.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import platform
import socket
import statistics
import struct
import time
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, final

from vertinumpyro.core import __version__
from vertinumpyro.core.errors import ArgumentError, BackendError, PrivacyError, visible
from vertinumpyro.study.agreement import Agreement
from vertinumpyro.study.approval import Approval, check_approvals
from vertinumpyro.transport import (
    Address,
    Communicator,
    Identity,
    Link,
    NetworkProfile,
    Peer,
    connect_all,
    connected,
    pack,
    unpack,
)

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


_APPROVAL_BYTES = 2**16


def connect_members(
    agreement: Agreement,
    name: str,
    identity: Identity,
    approval: Approval | None,
    *,
    listen: Address | None = None,
    wait_s: float = 600.0,
    timeout_s: float = 120.0,
    waiting: Callable[[str], None] = lambda text: None,
    carriers: bool = False,
) -> Communicator:
    """A member's communicator, once everybody is there and every party has shown its approval to every other.

    :param name: of this member.
    :param approval: this party's own; None for a helper.
    :param listen: the address that this machine binds, where it is not the one that others reach it by.
    :param wait_s: how long to wait for the others.
    :param timeout_s: how long a message may take.
    :param waiting: called with a line about who is awaited: at once, then as seldom as `connect_all` says.
    :param carriers: whether the backend's engine has links of its own (`BetweenProcesses.own_links`).
    :raises PrivacyError: an approval is missing or not valid; names it.
    :raises PeerError: somebody did not come.
    :raises ArgumentError: the address cannot be bound, or the certificate is not the one of the agreement.
    """
    if name in agreement.members:
        _check_own(agreement, name, approval)
    communicator = gather(
        agreement,
        name,
        identity,
        topic=agreement.digest,
        listen=listen,
        wait_s=wait_s,
        timeout_s=timeout_s,
        waiting=waiting,
    )
    if approval is not None:
        found = communicator.all_gather(json.dumps(approval.to_dict()).encode(), limit=_APPROVAL_BYTES)
        check_approvals(agreement, [_read(text) for text in found])
    if carriers:
        peers, listener = _peers(agreement, name, listen)
        topic = f"{agreement.digest} carriers".encode()
        communicator.carriers = connected(identity, peers, topic=topic, listener=listener, wait_s=wait_s)
    return communicator


def gather(
    agreement: Agreement,
    name: str,
    identity: Identity,
    *,
    topic: str,
    listen: Address | None = None,
    wait_s: float = 600.0,
    timeout_s: float = 120.0,
    waiting: Callable[[str], None] = lambda text: None,
) -> Communicator:
    """A member's communicator, once everybody has come for one topic; nobody has approved anything by that.

    :param topic: who comes for another one is refused.
    :raises PeerError: somebody did not come.
    :raises ArgumentError: the address cannot be bound, or the certificate is not the one of the agreement.
    """
    agreement.check_version()
    agreement.check_identity(name, identity)
    peers, listener = _peers(agreement, name, listen)
    links = connect_all(
        identity, peers, topic=topic.encode(), listener=listener, wait_s=wait_s, timeout_s=timeout_s, waiting=waiting
    )
    return Communicator(agreement.names.index(name), len(agreement.members), links, timeout_s)


def _peers(agreement: Agreement, name: str, listen: Address | None) -> tuple[dict[int, Peer], socket.socket | None]:
    """All others, and a socket for those that dial this member."""
    peers = {
        rank: Peer(
            name=other,
            certificate=agreement.member(other).certificate,
            dial=agreement.member(other).address if agreement.dials(name, other) else None,
        )
        for rank, other in enumerate(agreement.names)
        if other != name
    }
    dialled = any(peer.dial is None for peer in peers.values())
    return peers, bind_address(listen or agreement.member(name).address) if dialled else None


def _check_own(agreement: Agreement, name: str, approval: Approval | None) -> None:
    """A party that has not approved does not even call the others."""
    if approval is None:
        raise PrivacyError(f"{name!r} has not approved this agreement; nothing runs without every party's approval")
    if approval.member != name:
        raise ArgumentError(f"the approval is of {approval.member!r}, and this is {name!r}; approve as {name!r}")
    approval.check(agreement)


def _read(text: bytes) -> Approval:
    try:
        record: Any = json.loads(text)
        return Approval.from_dict(record if isinstance(record, dict) else {})
    except ValueError:  # ArgumentError is one
        raise BackendError("a party sent something else than its approval; run one version everywhere") from None


def bind_address(address: Address | None) -> socket.socket:
    """A socket that listens.

    :raises ArgumentError: there is no address, or it cannot be bound.
    """
    if address is None:
        raise ArgumentError("others dial this member, and it has no address to listen at; give listen")
    try:
        return socket.create_server((address.host, address.port))
    except OSError as error:
        raise ArgumentError(f"cannot listen at {address} ({error.strerror or error}); is the port taken?") from None
