"""The backend `spu`: what it states, its range proof, and its simulation from one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat as jax_compat
from vertinumpyro.core import ring
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import (
    AnyArray,
    BackendInfo,
    BatchShape,
    check_shape,
    total,
)
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.processes import formats
from vertinumpyro.secure.processes.backend import Computer, StepCost
from vertinumpyro.secure.processes.group import Member, Seat
from vertinumpyro.secure.processes.inputs import Layout, describe, encode_party_traced, encode_prior_traced
from vertinumpyro.secure.processes.rehearsal import Rehearsable
from vertinumpyro.secure.processes.simulation import by_party, handed_out
from vertinumpyro.secure.range_proof import fixed_point_format
from vertinumpyro.secure.spu import compat, program
from vertinumpyro.secure.spu.node import PartyComputer
from vertinumpyro.secure.spu.worker import rehearsed, run_helper, run_worker

__all__ = ["Spu"]

_SECURITY = {
    "ABY3": "semi-honest nodes, three, of which no two collude",
    "CHEETAH": "semi-honest parties, two, by homomorphic encryption and oblivious transfer",
    "SEMI2K": "none: in the released package one of the nodes deals the randomness and could read everything",
}


@dataclasses.dataclass(frozen=True)
class Spu(Rehearsable):
    """SecretFlow SPU 0.9.5 between processes: the protocol as one JAX function, compiled once.

    Formal guarantee: every record adds an integer vector of L2 norm at most clip_norm 2^f to the revealed sum,
    whatever the columns hold and whatever SPU's approximations give (`program`); nothing is added to delta. Security
    is SPU's protocol's, semi-honest; its links are TCP on this machine's loopback interface, not encrypted.

    The methods of `SecureBackend` take every party's numbers, so whoever calls them knows them all. They hand them to
    processes that then run the protocol for real: for tests, benchmarks and rehearsals, under
    `insecure_simulation=True`.

    :ivar protocol: "ABY3", three nodes, for one to three parties: with fewer than three parties, nodes without data
        help; "CHEETAH", two nodes, for up to two parties, fifteen times slower; "SEMI2K", not secure as released,
        only in a simulation.
    :ivar insecure_simulation: allow the methods that see every party's numbers.
    :ivar timeout_s: how long a node waits for another before the run ends.
    """

    option: ClassVar[str] = "spu"

    protocol: Literal["ABY3", "CHEETAH", "SEMI2K"] = "ABY3"
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.protocol not in _SECURITY:
            raise ArgumentError(f"protocol must be one of {sorted(_SECURITY)}, got {self.protocol!r}")
        if self.protocol == "SEMI2K" and not self.insecure_simulation:
            raise ArgumentError(
                "protocol='SEMI2K': one node of the released package deals the randomness and could read everything; "
                "it needs insecure_simulation=True, or choose 'ABY3'"
            )

    def info(self) -> BackendInfo:
        """The protocol's own security model."""
        simulated = ", simulated: the calling process knows everything" if self.insecure_simulation else ""
        kind = f"{self.protocol}, insecure simulation" if self.insecure_simulation else self.protocol
        return BackendInfo(
            name=f"spu ({kind})",
            security_model=_SECURITY[self.protocol] + simulated,
            who_learns_what="every party learns the noisy sum, a helping node learns shapes only; links "
            "are within one machine and not encrypted",
            dealer="first party, which is insecure" if self.protocol == "SEMI2K" else "none",
            ring="integers modulo 2^128 for the clip, modulo 2^64 for products and sums",
            precision="weights 30 fractional bits, exponentials 20, scores 11 to 24, log densities 21; the reciprocal "
            "square root is checked in integers; the clip keeps back at most 1 % for roundings",
        )

    def missing(self) -> str | None:
        """SPU."""
        return None if compat.is_installed() else compat.MISSING

    def helpers(self, num_parties: int) -> list[Member]:
        """The nodes that the protocol has beyond the parties."""
        nodes = program.check_nodes(self.protocol, num_parties)
        arguments = (num_parties, nodes, self.protocol, self.timeout_s)
        names = [f"helper {rank}" for rank in range(num_parties, nodes)]
        return [Member(name=name, run=run_helper, arguments=arguments) for name in names]

    def party(self, seat: Seat, num_parties: int) -> Computer:
        """See `BetweenProcesses`."""
        nodes = program.check_nodes(self.protocol, num_parties)
        return PartyComputer(seat, num_parties, nodes, self.protocol, self.timeout_s)

    def cost(self, shape: BatchShape, layout: Layout) -> StepCost:
        """Measured: a step on zeros between processes of this machine. SPU counts messages, not rounds."""
        rehearsal = dataclasses.replace(self, insecure_simulation=True)
        try:
            return rehearsed(rehearsal.simulation(shape.num_parties), shape, layout)
        finally:
            rehearsal.close()

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`.

        :raises ArgumentError: the protocol has fewer nodes than there are parties.
        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %.
        """
        program.check_nodes(self.protocol, shape.num_parties)
        formats.norm_bits(shape)
        formats.clip_share_kept(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND, least_evidence: float = 0.0) -> float:
        """Largest L2 distance from the exact sum where SPU's root is off by 1e-4; see `program`."""
        return program.error_bound(shape, score_norm=score_norm)

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Sequence[Contribution],
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: AnyArray,
    ) -> jax.Array:
        """See `SecureBackend.clipped_noisy_sum`. A simulation: see the class."""
        check_shape(shape, contributions, prior, mask)
        bits = self.grid_bits(shape)
        words = {"run": "clipped_noisy_sum", **describe(shape, Layout.of(contributions, prior))}
        with jax_compat.x64():
            common = {f"prior_{name}": leaf for name, leaf in encode_prior_traced(shape, prior)._asdict().items()}
            parties = [encode_party_traced(shape, c)._asdict() for c in contributions]
            simulation = self.simulation(shape.num_parties)
            _ = total(noise_shares)  # refuses narrow noise

            run = partial(simulation.run, words)
            summed = handed_out(run, shape.num_values, parties, {**common, "mask": mask}, noise_shares)
            return ring.decode(summed, bits)

    def noisy_cross_product(self, a: AnyArray, b: AnyArray, noise_shares: AnyArray) -> jax.Array:
        """See `SecureBackend.noisy_cross_product`; modulo 2^64. A simulation: see the class."""
        return self._integers("noisy_cross_product", {"a": a}, {"b": b}, noise_shares)

    def noisy_sum(self, vectors: AnyArray, noise_shares: AnyArray) -> jax.Array:
        """See `SecureBackend.noisy_sum`; modulo 2^64. A simulation: two nodes hold the vectors in turn."""
        with jax_compat.x64():
            _ = total(noise_shares)
        sums = zip(by_party(np.asarray(vectors).astype(np.int64), 2), by_party(noise_shares, 2), strict=True)
        first, second = (vector + noise for vector, noise in sums)
        return self._integers("noisy_sum", {"vector_0": first}, {"vector_1": second}, None)

    def _integers(
        self, run: str, first: dict[str, AnyArray], second: dict[str, AnyArray], noise_shares: AnyArray | None
    ) -> jax.Array:
        inputs = [{name: np.asarray(array).astype(np.int64) for name, array in own.items()} for own in (first, second)]
        with jax_compat.x64():
            if noise_shares is not None:
                _ = total(noise_shares)
                for rank, share in enumerate(by_party(noise_shares, 2)):
                    inputs[rank][f"noise_{rank}"] = share
            sizes = [{name: list(array.shape) for name, array in own.items()} for own in inputs]
            return jnp.asarray(self.simulation(2).run({"run": run, "inputs": sizes}, inputs))

    def members(self, num_parties: int) -> list[Member]:
        """See `Rehearsable`."""
        arguments = (num_parties, program.check_nodes(self.protocol, num_parties), self.protocol, self.timeout_s)
        workers = [Member(name=f"party {rank}", run=run_worker, arguments=arguments) for rank in range(num_parties)]
        return [*workers, *self.helpers(num_parties)]
