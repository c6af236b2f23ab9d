"""The backend `spu`: what it states, its range proof, its processes."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from vertinumpyro.core.validation import check_fields
from vertinumpyro.secure import number_formats
from vertinumpyro.secure.backend import BackendInfo
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, PartyProtocol, Watch
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.number_formats import fixed_point_format
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.secure.simulation import InsecureSimulation
from vertinumpyro.secure.spu import node, program
from vertinumpyro.secure.spu.end import SpuEnd, run_helper
from vertinumpyro.transport import Communicator, Member

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
        """Checks the settings."""
        check_fields(self)

    def info(self) -> BackendInfo:
        """The protocol's own security model."""
        return BackendInfo(
            name=f"spu ({self.protocol})",
            security_model=_SECURITY[self.protocol],
            who_learns_what="every party learns the noisy sum, a helping node learns shapes only; links "
            "within one machine are not encrypted, those between organisations are",
            dealer="first party, which is insecure" if self.protocol == "SEMI2K" else "none",
            ring="integers modulo 2^128 for the clip, modulo 2^64 for products and sums",
            precision="weights 30 fractional bits, exponentials 20, scores 11 to 24, log densities 21; the reciprocal "
            "square root is checked in integers; the clip keeps back at most 1 % for roundings",
        )

    def missing(self) -> str | None:
        """SPU."""
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
        """The nodes that the protocol has beyond the parties."""
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
        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %.
        """
        program.check_nodes(self.protocol, shape.num_parties)
        number_formats.check_clip(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND) -> float:
        """Largest L2 distance from the exact sum where SPU's root is off by 1e-4; see `program`."""
        return program.error_bound(shape, score_norm=score_norm)
