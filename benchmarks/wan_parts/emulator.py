"""A network between hosts of one machine, where the kernel has no netem: a switch that delays, limits and cuts.

Every host is a network namespace whose `eth0` is a TUN device, and a process of its own carries the packets between
them. Each waits for its sender's line, flies for half a round trip, and waits for its receiver's line. A line carries
the rate in each direction, and both queues drop their tails. Where there is no distance, the kernel's bridge and its
token buckets take the switch's place: nothing has to wait in a process that takes its part of the members' cores.
Needs root, `ip` and `tc` (iproute2) and /dev/net/tun; nothing leaves the machine, as no namespace has another device.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Network", "missing", "network"]

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI, _NEWNET = 0x400454CA, 1, 0x1000, 0x40000000
_SWITCH = "wan-switch"
_PREFIX = "198.18.7."  # RFC 2544: addresses for measurements
_MTU = 1500
_SHORTEST_QUEUE_S = 0.2


@dataclass(frozen=True)
class Network:
    """Hosts that see each other through the switch.

    :ivar hosts: their names.
    """

    hosts: Sequence[str]

    def namespace(self, host: str) -> str:
        """What `ip netns` calls it."""
        return f"wan-{host}"

    def address(self, host: str) -> str:
        """Its IPv4 address."""
        return f"{_PREFIX}{self.hosts.index(host) + 1}"

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """A command, as it runs at a host."""
        return ["ip", "netns", "exec", self.namespace(host), *command]


def missing() -> str | None:
    """What keeps this machine from it; None where all is there."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{absent[0]} is not installed (iproute2)"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    return None


@contextlib.contextmanager
def network(hosts: Sequence[str], *, round_trip_s: float, bits_per_second: float) -> Iterator[Network]:
    """The hosts, joined while the block runs.

    :param round_trip_s: between every two of them.
    :param bits_per_second: of each host's line, in either direction.
    """
    made = Network(tuple(hosts))
    line = _carried(made, round_trip_s, bits_per_second) if round_trip_s else _bridged(made, bits_per_second)
    with _namespaces([*map(made.namespace, hosts), _SWITCH]), line:
        yield made


@contextlib.contextmanager
def _namespaces(names: Sequence[str]) -> Iterator[None]:
    try:
        for name in names:
            _ip("netns", "delete", name, check=False)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in names:
            _ip("netns", "delete", name, check=False)


@contextlib.contextmanager
def _carried(made: Network, round_trip_s: float, bits_per_second: float) -> Iterator[None]:
    """A process between the hosts' TUN devices."""
    devices = []
    carrier = None
    try:
        for host in made.hosts:
            devices.append(_tun(made.namespace(host)))
            _up(made, host)
        carrier = multiprocessing.get_context("fork").Process(
            target=_carry, args=(devices, round_trip_s / 2, bits_per_second / 8), daemon=True
        )
        carrier.start()
        yield
    finally:
        if carrier is not None:
            carrier.kill()
            carrier.join()
        for device in devices:
            os.close(device)


@contextlib.contextmanager
def _bridged(made: Network, bits_per_second: float) -> Iterator[None]:
    """The kernel's own bridge, with a token bucket at either end of each host's line."""
    _ip("-n", _SWITCH, "link", "add", "switch", "type", "bridge")
    _ip("-n", _SWITCH, "link", "set", "switch", "up")
    for host in made.hosts:
        space, port = made.namespace(host), f"port{made.hosts.index(host)}"
        _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", _SWITCH)
        _ip("-n", _SWITCH, "link", "set", port, "master", "switch", "up")
        _up(made, host)
        for where, device in ((space, "eth0"), (_SWITCH, port)):
            line = ["rate", f"{bits_per_second:.0f}bit", "burst", "64kb", "latency", f"{_SHORTEST_QUEUE_S}s"]
            subprocess.run(["tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", *line], check=True)
    yield


def _up(made: Network, host: str) -> None:
    space = made.namespace(host)
    _ip("-n", space, "address", "add", f"{made.address(host)}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "mtu", str(_MTU), "txqueuelen", "5000", "up")


def _carry(devices: Sequence[int], delay_s: float, bytes_per_second: float) -> None:
    """The switch: for ever."""
    up, down = [0.0] * len(devices), [0.0] * len(devices)  # when each host's line is free again, either way
    flying: list[tuple[float, int, bool, int, bytes]] = []  # (when, order, whether that is its arrival, to, packet)
    number, longest = 0, max(_SHORTEST_QUEUE_S, 8 * delay_s)
    while True:
        now = time.monotonic()
        wait = max(0.0, flying[0][0] - now) if flying else None
        ready, _, _ = select.select(devices, [], [], wait)
        now = time.monotonic()
        for device in ready:
            sender = devices.index(device)
            for packet in _packets(device):
                to = packet[19] - 1
                if not 0 <= to < len(devices) or up[sender] - now > longest:
                    continue
                up[sender] = max(up[sender], now) + len(packet) / bytes_per_second
                number += 1
                heapq.heappush(flying, (up[sender] + delay_s, number, False, to, packet))
        now = time.monotonic()
        while flying and flying[0][0] <= now:
            when, order, arrives, to, packet = heapq.heappop(flying)
            if arrives:
                with contextlib.suppress(OSError):  # a host whose queue is full, or that is gone
                    os.write(devices[to], packet)
            elif down[to] - when <= longest:
                down[to] = max(down[to], when) + len(packet) / bytes_per_second
                heapq.heappush(flying, (down[to], order, True, to, packet))


def _packets(device: int) -> Iterator[bytes]:
    """IPv4 packets of this network that wait."""
    for _ in range(64):
        try:
            packet = os.read(device, 2**16)
        except BlockingIOError:
            return
        if len(packet) >= 20 and packet[0] >> 4 == 4 and ".".join(map(str, packet[16:19])) + "." == _PREFIX:
            yield packet


def _tun(namespace: str) -> int:
    """A TUN device named eth0 in a namespace, from here."""
    libc = ctypes.CDLL(None, use_errno=True)
    home, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
        return device
    finally:
        libc.setns(home, _NEWNET)
        os.close(home)
        os.close(there)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, stderr=None if check else subprocess.DEVNULL)
