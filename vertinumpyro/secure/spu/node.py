"""A node's process: SPU's runtimes, its own inputs, and nothing of the others' but masked shares.

**Links.** SPU 0.9.5 brings its own. Over TCP any process of the machine could push messages into them: with
`enable_ssl`, and certificates demanded of both sides, SPU's server turns away a stranger's TLS connection, but takes
a plain POST all the same, since brpc looks at the first bytes and SPU leaves its `force_ssl` unset. So nodes on one
machine listen on Unix sockets, each in a folder of its own that only this user may enter, and remove them once
every node is connected to every other. There is no port that another process could take first, and nothing is left
to connect to. Between machines the socket of another node is one of this process's own, whose connections a
`transport.Relay` carries to that node inside mutual TLS.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure.spu import program
from vertinumpyro.transport import Communicator, Relay, Traffic, all_gather, exchange, pack, unpack

MISSING = "the backend 'spu' needs SPU 0.9.5, which stops at jax 0.4.34: pip install 'vertinumpyro[spu]'"
_VERSION = "0.9.5"


def is_installed() -> bool:
    """Whether SPU is there; does not import it."""
    return importlib.util.find_spec("spu") is not None


def load() -> tuple[Any, Any, Any]:
    """(spu, its library, its compiler front end).

    :raises BackendError: SPU is not installed, or another release than the one whose arithmetic the clip's proof and
        the tests speak of.
    """
    if not is_installed():
        raise BackendError(MISSING)
    version = metadata.version("spu")
    if version != _VERSION:
        raise BackendError(f"SPU {version} is installed; the backend needs {_VERSION}")
    spu = importlib.import_module("spu")
    return spu, importlib.import_module("spu.libspu"), importlib.import_module("spu.utils.frontend")


_TRAFFIC = re.compile(r"Link details: total send bytes (\d+), recv bytes (\d+), send actions (\d+)")
_LONGEST_PATH = 103  # of a Unix socket, on macOS; Linux has four more
_READY = b"\x01"


class Input(NamedTuple):
    """A program's input: this node's own numbers, or zeros in the shape of another node's.

    owner: the node whose numbers count.
    """

    owner: int
    value: np.ndarray


def compiled(function: Any, inputs: Mapping[str, Input]) -> Any:
    """A program of secret inputs, which SPU's runtimes take; only their shapes count."""
    _, lib, frontend = load()
    stand_ins = {name: np.zeros_like(given.value) for name, given in inputs.items()}
    names = sorted(inputs)  # as JAX flattens a dictionary
    seen = [lib.Visibility.VIS_SECRET] * len(names)
    with compat.x64():
        executable, _ = frontend.compile(
            frontend.Kind.JAX, function, [stand_ins], {}, names, seen, lambda outputs: ["out"]
        )
    return executable


@final
class Node:
    """One node's end of SPU. Programs are compiled once for each description, and the runtimes stay.

    :param communicator: links to the other nodes, by which addresses and shares of the result travel.
        The parties among them learn the result; the others help.
    :param protocol: SPU's name of it.
    """

    def __init__(self, communicator: Communicator, num_nodes: int, protocol: str) -> None:
        self._spu, self._lib, _ = load()
        self._communicator, self._num_nodes = communicator, num_nodes
        self.traffic = Traffic()
        for link in communicator.links.values():
            link.traffic = self.traffic
        self.rank = communicator.rank
        self.on_record: Callable[[bytes], None] | None = None
        self._log = _StandardOutput()
        self._link = self._connected(communicator.timeout_s)
        self._configs = {field: self._config(protocol, field) for field in ("FM64", "FM128")}
        self._runtimes: dict[str, Any] = {}
        self._programs: dict[str, Any] = {}
        self._placed = ""

    def run(
        self,
        key: str,
        field: str,
        build: Callable[[], Any],
        inputs: Mapping[str, Input],
        *,
        carried: str | None = None,
        goes_on: bool = False,
        opened: bool = True,
    ) -> np.ndarray:
        """A program's result int64, at the parties; empty at helpers.

        :param key: describes program and shapes; every node gives the same.
        :param carried: the input that a result which stays shared comes back by.
        :param goes_on: the result of the program before does; otherwise that input is what was given.
        :param opened: False leaves the result shared, and returns nothing.
        """
        if field not in self._runtimes:
            self._runtimes[field] = self._spu.Runtime(self._link.spawn(), self._configs[field])
        runtime, config = self._runtimes[field], self._configs[field]
        if key not in self._programs:
            self._programs[key] = compiled(build(), inputs)
        io = self._spu.Io(self._num_nodes, config)
        for name, given in inputs.items():
            if name == carried and goes_on:
                runtime.set_var(name, runtime.get_var("out"))
                continue
            if given.owner != self.rank and key == self._placed and name != carried:
                continue  # what stands in for another node's numbers stays where it is
            shares = io.make_shares(given.value, self._lib.Visibility.VIS_SECRET, given.owner)
            runtime.set_var(name, shares[self._communicator.rank])
        self._placed = key
        self._log.forget()
        runtime.run(self._programs[key])
        self._count(self._log.read())
        return self._opened(io, runtime.get_var("out")) if opened else np.zeros(0, np.int64)

    def _count(self, log: str) -> None:
        """SPU's own links, by what it says at the end of a program; it does not say which messages wait for others.

        Of one program with comparisons, on the same inputs, it says 1% more or less from run to run.
        """
        for sent, received, messages in _TRAFFIC.findall(log):
            self.traffic.bytes_sent += int(sent)
            self.traffic.bytes_received += int(received)
            self.traffic.rounds += int(messages)

    def _opened(self, io: Any, share: Any) -> np.ndarray:
        """The result, from everybody's share of it: all that is ever opened."""
        chunks = {f"chunk_{i}": np.frombuffer(chunk, np.uint8) for i, chunk in enumerate(share.share_chunks)}
        message = pack({}, meta=np.frombuffer(share.meta, np.uint8), **chunks)
        self._wait_for_the_parties(message)
        parties = range(self._communicator.num_parties)
        outgoing = {rank: message if rank in parties else b"" for rank in self._communicator.links}
        size = len(message) if self._communicator.rank in parties else 0  # all nodes' shares have one form
        received = exchange(self._communicator.links, outgoing, dict.fromkeys(self._communicator.links, size))
        received[self._communicator.rank] = bytearray(message)
        if self._communicator.rank not in parties:
            return np.zeros(0, np.int64)
        result = io.reconstruct([self._share(received[rank]) for rank in range(self._num_nodes)])
        return np.asarray(result).astype(np.int64)

    def _wait_for_the_parties(self, message: bytes) -> None:
        """Nobody sends its share before every party is ready: a helper's, with a party's own, could be the result."""
        if self._communicator.rank >= self._communicator.num_parties:
            self._communicator.links[0].receive(size=len(_READY))
            return
        if self.on_record is not None:
            self.on_record(message)
        for rank in range(self._communicator.num_parties, self._num_nodes) if self._communicator.rank == 0 else ():
            self._communicator.links[rank].send(_READY)

    def _share(self, message: bytearray) -> Any:
        _, arrays = unpack(message)
        share = self._lib.Share()
        share.meta = arrays["meta"].tobytes()
        share.share_chunks = [arrays[f"chunk_{i}"].tobytes() for i in range(len(arrays) - 1)]
        return share

    def _config(self, protocol: str, field: str) -> Any:
        config = self._lib.RuntimeConfig(
            protocol=self._spu.parse_protocol_kind(protocol), field=self._spu.parse_field_type(field)
        )
        if field == "FM128":
            config.fxp_fraction_bits = program.FRACTION_BITS
        config.experimental_enable_colocated_optimization = True
        config.enable_pphlo_profile = True  # the only way to learn what was sent
        return config

    def _connected(self, timeout_s: float) -> Any:
        """SPU's own links, over Unix sockets that nobody else can reach; see the module."""
        links = self._communicator.links
        with tempfile.TemporaryDirectory(prefix="spu-") as folder:  # for this user alone
            found = self._addresses(folder)
            description = self._lib.link.Desc()
            description.recv_timeout_ms = int(1000 * timeout_s)
            for rank, address in enumerate(found):
                description.add_party(f"node_{rank}", f"unix:{address.rstrip().decode()}")
            link = self._lib.link.create_brpc(description, self.rank)
            all_gather(links, self.rank, _READY)  # all are connected to all: the sockets' names can go
        return link

    def _addresses(self, folder: str) -> list[bytes]:
        """Where each node's socket is, as this one reaches it."""
        own, carriers = _address(folder), self._communicator.carriers
        if not carriers:
            return all_gather(self._communicator.links, self.rank, own)
        self._relay = Relay(self.rank, carriers, folder, own.rstrip().decode())
        return [own if rank == self.rank else self._relay.path(rank).encode() for rank in range(self._num_nodes)]


def _address(folder: str) -> bytes:
    """Where this node's socket is to be, filled up to the longest path that a socket can have."""
    path = os.path.join(folder, "node").encode()
    if len(path) > _LONGEST_PATH:
        raise BackendError(
            f"a socket's path may have {_LONGEST_PATH} bytes; set TMPDIR to a folder with a shorter path"
        )
    return path.ljust(_LONGEST_PATH)


@final
class _StandardOutput:
    """SPU's standard output as a file: it prints there what it sent, and there is no other way to ask.

    What Python prints goes where it went before.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        for name, number in (("stdout", 1), ("stderr", 2)):
            if getattr(sys, name) is getattr(sys, f"__{name}__"):  # nobody captures it
                setattr(sys, name, os.fdopen(os.dup(number), "w", buffering=1))
            os.dup2(self._file.fileno(), number)

    def forget(self) -> None:
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)

    def read(self) -> str:
        size = os.fstat(1).st_size
        return os.pread(1, size, 0).decode(errors="replace")
