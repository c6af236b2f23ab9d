"""A node's process: SPU's runtimes, its own inputs, and nothing of the others' but masked shares."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from vertinumpyro.core import compat as jax_compat
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.processes.group import Seat
from vertinumpyro.secure.processes.inputs import Layout, PartyInputs, PriorInputs, describe, layout_of
from vertinumpyro.secure.processes.links import exchange
from vertinumpyro.secure.processes.messages import pack, unpack
from vertinumpyro.secure.spu import compat, program

__all__ = ["Input", "Node", "PartyComputer", "compiled", "helped"]

_TRAFFIC = re.compile(r"Link details: total send bytes (\d+).*?send actions (\d+)")


class Input(NamedTuple):
    """A program's input: this node's own numbers, or zeros in the shape of another node's.

    owner: the node whose numbers count.
    """

    owner: int
    value: np.ndarray


def compiled(function: Any, inputs: Mapping[str, Input]) -> Any:
    """A program of secret inputs, which SPU's runtimes take; only their shapes count."""
    _, lib, frontend = compat.load()
    stand_ins = {name: np.zeros_like(given.value) for name, given in inputs.items()}
    names = sorted(inputs)  # as JAX flattens a dictionary
    seen = [lib.Visibility.VIS_SECRET] * len(names)
    with jax_compat.x64():
        executable, _ = frontend.compile(
            frontend.Kind.JAX, function, [stand_ins], {}, names, seen, lambda outputs: ["out"]
        )
    return executable


@final
class Node:
    """One node's end of SPU. Programs are compiled once for each description, and the runtimes stay.

    :param seat: links to the other nodes, by which ports and shares of the result travel.
    :param num_parties: nodes 0 to P - 1 are the parties, who learn the result; the others help.
    :param protocol: SPU's name of it.
    """

    def __init__(self, seat: Seat, num_parties: int, num_nodes: int, protocol: str, timeout_s: float) -> None:
        self._spu, self._lib, _ = compat.load()
        self._seat, self._num_parties, self._num_nodes = seat, num_parties, num_nodes
        self.rank = seat.rank
        self._log = _StandardOutput()
        self._link = self._connected(timeout_s)
        self._configs = {field: self._config(protocol, field) for field in ("FM64", "FM128")}
        self._runtimes: dict[str, Any] = {}
        self._programs: dict[str, Any] = {}
        self._placed = ""
        self.bytes_sent = self.messages = 0
        self.opened: list[np.ndarray] = []

    def run(self, key: str, field: str, build: Callable[[], Any], inputs: Mapping[str, Input]) -> np.ndarray:
        """A program's result int64, at the parties; empty at helpers.

        :param key: describes program and shapes; every node gives the same.
        """
        if field not in self._runtimes:
            self._runtimes[field] = self._spu.Runtime(self._link.spawn(), self._configs[field])
        runtime, config = self._runtimes[field], self._configs[field]
        if key not in self._programs:
            self._programs[key] = compiled(build(), inputs)
        io = self._spu.Io(self._num_nodes, config)
        for name, given in inputs.items():
            if given.owner != self.rank and key == self._placed:
                continue  # what stands in for another node's numbers stays where it is
            shares = io.make_shares(given.value, self._lib.Visibility.VIS_SECRET, given.owner)
            runtime.set_var(name, shares[self._seat.rank])
        self._placed = key
        self._log.forget()
        runtime.run(self._programs[key])
        traffic = self._log.read()
        for count, messages in _TRAFFIC.findall(traffic):
            self.bytes_sent, self.messages = self.bytes_sent + int(count), self.messages + int(messages)
        return self._opened(io, runtime.get_var("out"))

    def _opened(self, io: Any, share: Any) -> np.ndarray:
        """The result, from everybody's share of it: all that is ever opened."""
        chunks = {f"chunk_{i}": np.frombuffer(chunk, np.uint8) for i, chunk in enumerate(share.share_chunks)}
        message = pack({}, meta=np.frombuffer(share.meta, np.uint8), **chunks)
        parties = range(self._num_parties)
        outgoing = {rank: message if rank in parties else b"" for rank in self._seat.links}
        received = {**exchange(self._seat.links, outgoing), self._seat.rank: message}
        self.bytes_sent += sum(len(data) for data in outgoing.values())
        if self._seat.rank not in parties:
            return np.zeros(0, np.int64)
        result = io.reconstruct([self._share(received[rank]) for rank in range(self._num_nodes)])
        self.opened = [np.asarray(result)]
        return np.asarray(result).astype(np.int64)

    def _share(self, message: bytes) -> Any:
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
        """SPU's own links, over TCP of this machine's loopback interface."""
        port = _free_port()
        others = exchange(self._seat.links, dict.fromkeys(self._seat.links, str(port).encode()))
        ports = {**{rank: int(text) for rank, text in others.items()}, self._seat.rank: port}
        description = self._lib.link.Desc()
        description.recv_timeout_ms = int(1000 * timeout_s)
        for rank in range(self._num_nodes):
            description.add_party(f"node_{rank}", f"127.0.0.1:{ports[rank]}")
        return self._lib.link.create_brpc(description, self._seat.rank)


@final
class PartyComputer:
    """A party's end: tells the helpers what is computed, and puts in what it holds."""

    def __init__(self, seat: Seat, num_parties: int, num_nodes: int, protocol: str, timeout_s: float) -> None:
        self._seat, self._helpers = seat, range(num_parties, num_nodes)
        self.node = Node(seat, num_parties, num_nodes, protocol, timeout_s)

    @property
    def bytes_sent(self) -> int:
        """To all other nodes."""
        return self.node.bytes_sent

    @property
    def rounds(self) -> int:
        """Messages: SPU does not say which of them wait for each other."""
        return self.node.messages

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: PartyInputs,
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        """See `processes.Computer`."""
        self._announce({"run": "clipped_noisy_sum", **describe(shape, layout)})
        inputs = _clipped_inputs(self._seat.rank, shape, layout, own, prior, mask, noise_share)
        return _clipped(self.node, shape, layout, inputs)

    def integers(self, run: str, sizes: Sequence[Mapping[str, Sequence[int]]], own: Mapping[str, Any]) -> np.ndarray:
        """`noisy_cross_product` or `noisy_sum` between parties 0 and 1, modulo 2^64.

        :param sizes: the arrays that each of the two puts in.
        :param own: this party's.
        """
        self._announce({"run": run, "inputs": sizes})
        return _integers(self.node, run, sizes, own)

    def _announce(self, words: dict[str, Any]) -> None:
        for rank in self._helpers if self._seat.rank == 0 else ():
            self._seat.links[rank].send(pack(words))


def helped(node: Node, words: dict[str, Any]) -> None:
    """A helper's part of what party 0 announced: zeros in, nothing out."""
    if words["run"] == "clipped_noisy_sum":
        shape, layout = BatchShape(**words["shape"]), layout_of(words["layout"])
        _clipped(node, shape, layout, _clipped_inputs(node.rank, shape, layout, None, None, None, None))
    else:
        _integers(node, words["run"], words["inputs"], {})


def _clipped(node: Node, shape: BatchShape, layout: Layout, inputs: Mapping[str, Input]) -> np.ndarray:
    key = f"clipped_noisy_sum {shape} {layout}"
    return node.run(key, "FM128", lambda: program.clipped_noisy_sum(shape, layout), inputs)


def _integers(
    node: Node, run: str, sizes: Sequence[Mapping[str, Sequence[int]]], own: Mapping[str, np.ndarray]
) -> np.ndarray:
    build = {"noisy_cross_product": program.noisy_cross_product, "noisy_sum": program.noisy_sum}[run]
    inputs = {
        name: Input(owner, _held(own[name] if owner == node.rank else None, size))
        for owner, named in enumerate(sizes)
        for name, size in named.items()
    }
    return node.run(f"{run} {sizes}", "FM64", lambda: build, inputs)


def _clipped_inputs(
    rank: int,
    shape: BatchShape,
    layout: Layout,
    own: PartyInputs | None,
    prior: PriorInputs | None,
    mask: np.ndarray | None,
    noise_share: np.ndarray | None,
) -> dict[str, Input]:
    """The inputs of `program.clipped_noisy_sum` at a node, zeros in place of what others hold.

    Party 0 puts in what all parties know, the prior and the mask, so that a helper sees neither.

    :param own: this party's numbers; None at a helper.
    """
    n, K, D = shape.batch_size, shape.num_components, shape.num_values
    known = {"log_weights": (K,), "scores": (K, layout.prior), "gram": (K, K)}
    inputs = {f"prior_{name}": Input(0, _held(getattr(prior, name, None), size)) for name, size in known.items()}
    inputs["mask"] = Input(0, _held(mask, (n,)))
    for p in range(shape.num_parties):
        mine = own if p == rank else None
        inputs[f"noise_{p}"] = Input(p, _held(noise_share if p == rank else None, (D,)))
        for name, dimensions in _sizes(n, K, layout, p).items():
            inputs[f"{name}_{p}"] = Input(p, _held(None if mine is None else getattr(mine, name), dimensions))
    return inputs


def _sizes(n: int, K: int, layout: Layout, party: int) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = {"log_density": (n, K), "squared_norm": (n, K)}
    if layout.plated[party]:
        sizes["plated"] = (K, n, layout.plated[party])
    if layout.shared[party]:
        sizes["shared"] = (n * K, layout.shared[party])
    if any(layout.shared):
        sizes["gram"] = (n, K, K)
    return sizes


def _held(value: np.ndarray | None, dimensions: Sequence[int]) -> np.ndarray:
    return np.zeros(tuple(dimensions), np.int64) if value is None else np.asarray(value).astype(np.int64)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _StandardOutput:
    """This process's standard output as a file: SPU prints there what it sent, and there is no other way to ask."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        os.dup2(self._file.fileno(), 1)
        os.dup2(self._file.fileno(), 2)

    def forget(self) -> None:
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)

    def read(self) -> str:
        size = os.fstat(1).st_size
        return os.pread(1, size, 0).decode(errors="replace")
