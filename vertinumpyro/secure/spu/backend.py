"""The backend `spu`: what it states, its range proof, and its processes, a party's end and the helper of every run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, final

import numpy as np

from vertinumpyro.core.errors import BackendError
from vertinumpyro.core.row_blocks import Factor, factor_rows
from vertinumpyro.core.validation import check_fields
from vertinumpyro.secure import number_formats
from vertinumpyro.secure.backend import BackendInfo
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, OnRecord, PartyProtocol, Watch
from vertinumpyro.secure.computation import ClippedSum, Computation, CrossProducts, VectorSum, computation_of, described
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.input_encoding import Layout, PartyInputs, PriorInputs, norm_width, without_tables
from vertinumpyro.secure.number_formats import fixed_point_format
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.secure.simulation import InsecureSimulation
from vertinumpyro.secure.spu import node, program
from vertinumpyro.secure.spu.node import Input, Node
from vertinumpyro.transport import Communicator, Member, Traffic, all_gather, pack, unpack

_ANNOUNCEMENT_BYTES = 2**16  # the largest message of party 0 to a helper: the shapes of a computation


@final
class SpuEnd(PartyProtocol):
    """A party's end: party 0 tells the helpers what is computed, and everyone puts in what it holds.

    :param num_nodes: parties and helpers.
    :param protocol: SPU's name of it.
    :param watch: called with every opened array; for tests.
    """

    def __init__(self, communicator: Communicator, num_nodes: int, protocol: str, watch: Watch | None = None) -> None:
        self._communicator, self._helpers, self._watch = communicator, range(communicator.num_parties, num_nodes), watch
        self.rank, self.num_parties = communicator.rank, communicator.num_parties
        self._node = Node(communicator, num_nodes, protocol)

    @property
    def traffic(self) -> Traffic:
        """With all other nodes. SPU does not say which messages wait for each other, so all count as rounds."""
        return self._node.traffic

    @property
    def dealer_traffic(self) -> Traffic:
        return Traffic()

    def _set_on_record(self, on_record: OnRecord | None) -> None:
        self._node.on_record = on_record

    def open(self, message: bytes) -> np.ndarray:
        """Not possible: what the helpers held of the result died with them."""
        raise BackendError(
            "the run stopped while a result was being opened, and SPU's helpers hold their part of it no more: that "
            "release is lost, and stays counted. Make a new plan, whose cost adds to this one's"
        )

    def _everyones(self, digest: bytes) -> Sequence[bytes]:
        return all_gather(self._communicator.peers, self.rank, digest)

    def _clipped_noisy_sum(
        self, clipped: ClippedSum, own: Iterable[PartyInputs], prior: PriorInputs, mask: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        common: dict[str, Any] = {f"prior_{name}": value for name, value in prior._asdict().items()}
        result, last = np.zeros(0, np.int64), clipped.shape.num_blocks - 1
        for number, (block, rows) in enumerate(zip(own, mask, strict=True)):
            mine = without_tables(clipped.layout, self.rank, block)._asdict()
            added = noise if number == last else np.zeros_like(noise)
            result = self._computed(clipped, {**common, **mine, "mask": rows, "noise": added}, number)
        return result

    def _noisy_cross_products(self, computation: CrossProducts, matrix: Factor, noise_share: np.ndarray) -> np.ndarray:
        result, blocks = np.zeros(0, np.int64), computation.blocks
        for number, rows in enumerate(blocks):
            noise = noise_share if number == len(blocks) - 1 else np.zeros_like(noise_share)
            mine = {"matrix": _padded(factor_rows(matrix, rows), computation.block_rows), "noise": noise}
            result = self._computed(computation, mine, number)
        return result

    def _noisy_sum(self, computation: VectorSum, noisy_vector: np.ndarray) -> np.ndarray:
        return self._computed(computation, {"vector": noisy_vector})

    def _computed(self, computation: Computation, mine: Mapping[str, Any], block: int = 0) -> np.ndarray:
        if computation.num_values == 0:
            return np.zeros(0, np.int64)  # SPU takes no empty arrays
        for rank in self._helpers if self.rank == 0 else ():
            self._communicator.links[rank].send(pack({"computation": described(computation), "block": block}))
        result = _run(self._node, computation, mine, block)
        if self._watch is not None and len(result):
            self._watch("reveal", result)
        return result


def run_helper(communicator: Communicator, num_nodes: int, protocol: str) -> None:
    """A node without data: learns from party 0 what is computed, and holds masked shares alone."""
    node = Node(communicator, num_nodes, protocol)
    while True:
        communicator.links[0].wait_forever()  # between two computations nobody asks; a party that dies breaks its link
        words, _ = unpack(communicator.links[0].receive(limit=_ANNOUNCEMENT_BYTES))
        _run(node, computation_of(words["computation"]), {}, words["block"])


def inputs_of(computation: Computation, rank: int, mine: Mapping[str, Any]) -> dict[str, Input]:
    """The inputs of a computation's program at a node, zeros in place of what others hold.

    Party 0 puts in what all parties know, the prior and the mask, so that a helper sees neither.

    :param mine: this party's numbers, by name; nothing at a helper.
    """
    common, own = _sizes(computation)
    owners = {name: (0, name, size) for name, size in common.items()}
    owners |= {f"{name}_{p}": (p, name, size) for p, sizes in enumerate(own) for name, size in sizes.items()}
    return {
        label: Input(owner, _held(mine.get(name) if owner == rank else None, size))
        for label, (owner, name, size) in owners.items()
        if name in common or 0 not in size
    }


def _run(node: Node, computation: Computation, mine: Mapping[str, Any], block: int) -> np.ndarray:
    """A program's result; nothing for a block that others follow, whose sum stays shared."""
    field, blocks = "FM64", 1
    if isinstance(computation, ClippedSum):
        field, blocks = "FM128", computation.shape.num_blocks
    elif isinstance(computation, CrossProducts):
        blocks = len(computation.blocks)
    inputs = inputs_of(computation, node.rank, mine)
    return node.run(
        str(computation),
        field,
        lambda: _program(computation),
        inputs,
        carried=program.SO_FAR,
        goes_on=block > 0,
        opened=block == blocks - 1,
    )


def _program(computation: Computation) -> Callable[[Mapping[str, Any]], Any]:
    match computation:
        case ClippedSum():
            return program.clipped_noisy_sum(computation.shape, computation.layout)
        case CrossProducts():
            return program.noisy_cross_products(computation.widths, len(computation.blocks))
        case VectorSum():
            return program.noisy_sum(computation.num_parties)


Sizes = dict[str, tuple[int, ...]]


def _sizes(computation: Computation) -> tuple[Sizes, list[Sizes]]:
    """(what all parties know, what each party puts in), by name."""
    parties, D = range(computation.num_parties), computation.num_values
    match computation:
        case ClippedSum(shape=shape, layout=layout):
            n, K, Z = shape.batch_size, shape.num_components, shape.num_inputs
            known: Sizes = {"prior_log_weights": (Z,), "prior_scores": (K, layout.prior)}
            known |= {} if shape.clips_locally else {"prior_gram": (K, K)}
            known |= {program.SO_FAR: (D,)} if shape.num_blocks > 1 else {}
            return {**known, "mask": (n,)}, [_clipped_sizes(shape, layout, p) | {"noise": (D,)} for p in parties]
        case CrossProducts(block_rows=n, widths=widths):
            known = {program.SO_FAR: (D,)} if len(computation.blocks) > 1 else {}
            return known, [{"matrix": (n, width), "noise": (D,)} for width in widths]
        case VectorSum():
            return {}, [{"vector": (D,)} for _ in parties]


def _clipped_sizes(shape: BatchShape, layout: Layout, party: int) -> Sizes:
    n, K, norms = shape.batch_size, shape.num_components, norm_width(shape)
    sizes: Sizes = {"log_density": (n, shape.num_inputs), "squared_norm": (n, norms)}
    sizes |= {"plated": (K, n, layout.plated[party]), "shared": (n * K, layout.shared[party])}
    return sizes | ({"gram": (n, norms, norms)} if any(layout.shared) else {})


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """With rows of zeros, which add nothing to a product: one program serves all blocks."""
    return np.pad(rows, ((0, size - len(rows)), (0, 0)))


def _held(value: np.ndarray | None, dimensions: Sequence[int]) -> np.ndarray:
    return np.zeros(tuple(dimensions), np.int64) if value is None else np.asarray(value).astype(np.int64)


_SECURITY = {
    "ABY3": "semi-honest nodes, three, of which no two collude",
    "CHEETAH": "semi-honest parties, two, by homomorphic encryption and oblivious transfer",
    "SEMI2K": "none: in the released package one of the nodes deals the randomness and could read everything",
}


@dataclasses.dataclass(frozen=True)
class Spu(BetweenProcesses):
    """SecretFlow SPU 0.9.5 between processes: the protocol as one JAX function, compiled once.

    Formal guarantee: every record adds an integer vector of L2 norm at most clip_norm 2^f to the revealed sum,
    whatever the columns hold and whatever SPU's approximations give (`program`); nothing is added to delta. Security
    is SPU's protocol's, semi-honest; its links are Unix sockets, which between machines TLS carries (`node`).

    :ivar protocol: "ABY3", three nodes, for one to three parties: with fewer than three parties, nodes without data
        help; "CHEETAH", two nodes, for up to two parties, fifteen times slower; "SEMI2K", not secure as released,
        only in a rehearsal.
    """

    option: ClassVar[str] = "spu"
    own_links: ClassVar[bool] = True

    protocol: Literal["ABY3", "CHEETAH", "SEMI2K"] = "ABY3"

    def __post_init__(self) -> None:
        check_fields(self)

    def info(self) -> BackendInfo:
        return BackendInfo(
            name=f"spu ({self.protocol})",
            security_model=_SECURITY[self.protocol],
            who_learns_what="every party learns the noisy sum, a helping node learns shapes only; links "
            "within one machine are not encrypted, those between organisations are",
            dealer="first party, which is insecure" if self.protocol == "SEMI2K" else "none",
            ring="integers modulo 2^128 for the clip, modulo 2^64 for products and sums",
            precision="weights 30 fractional bits, exponentials 20, scores up to 24, log densities 21; the reciprocal "
            "square root is checked in integers; the clip keeps back at most 1 % for roundings, of "
            "large regressions 4 %",
        )

    def missing(self) -> str | None:
        return None if node.is_installed() else node.MISSING

    def rehearsal_only(self) -> str | None:
        """A node that deals."""
        if self.protocol != "SEMI2K":
            return None
        return (
            "protocol='SEMI2K': one node of the released package deals the randomness and could read everything "
            "(choose 'ABY3')"
        )

    def helpers(self, num_parties: int) -> list[Member]:
        nodes = program.check_nodes(self.protocol, num_parties)
        names = [f"helper {rank}" for rank in range(num_parties, nodes)]
        return [Member(name=name, run=run_helper, arguments=(nodes, self.protocol)) for name in names]

    def end(self, communicator: Communicator, num_parties: int, watch: Watch | None = None) -> PartyProtocol:
        if watch is None:
            self.check_release()
        return SpuEnd(communicator, program.check_nodes(self.protocol, num_parties), self.protocol, watch)

    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        """Measured on zeros between processes of this machine. SPU counts messages, not rounds."""
        self.check_release()
        with InsecureSimulation(self) as rehearsal:
            return rehearsal.measured(computation, rank=rank)

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`.

        :raises ArgumentError: the protocol has fewer nodes than there are parties.
        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %,
            a party's own more than 4 %.
        """
        program.check_nodes(self.protocol, shape.num_parties)
        number_formats.check_clip(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        """Largest L2 distance from the exact sum where SPU's root is off by 1e-4; see `program`."""
        return program.error_bound(shape, score_norm=score_norm)
