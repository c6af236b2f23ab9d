"""The backend `crypten`: what it states, its range proof, and its simulation from one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat as jax_compat
from vertinumpyro.core import ring
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure import paper
from vertinumpyro.secure.backend import (
    AnyArray,
    BackendInfo,
    BatchShape,
    check_shape,
    total,
)
from vertinumpyro.secure.crypten import compat, formats
from vertinumpyro.secure.crypten.estimate import estimate
from vertinumpyro.secure.crypten.member import PartyComputer, joined_engine, run_dealer, run_worker
from vertinumpyro.secure.local import SCORE_BOUND
from vertinumpyro.secure.processes.backend import Computer, StepCost
from vertinumpyro.secure.processes.group import Member, Seat
from vertinumpyro.secure.processes.inputs import Layout, describe, encode_party_traced, encode_prior_traced
from vertinumpyro.secure.processes.rehearsal import Rehearsable
from vertinumpyro.secure.processes.simulation import by_party, handed_out
from vertinumpyro.secure.range_proof import PAPER_BITS, check_paper_range, fixed_point_format

__all__ = ["Crypten"]


@dataclasses.dataclass(frozen=True)
class Crypten(Rehearsable):
    """CrypTen 0.4.1's secret sharing between processes, with a third process as the dealer of randomness.

    Formal guarantee: every record adds an integer vector of L2 norm at most clip_norm 2^f to the revealed sum,
    whatever the columns hold and however truncations round (`formats`); no step can fail, so nothing is added to
    delta. Security is semi-honest: processes that follow the protocol, and of whom the dealer colludes with nobody,
    learn the noisy sum and nothing else, as long as AES-256 is a pseudo-random permutation.

    The methods of `SecureBackend` take every party's numbers, so whoever calls them knows them all. They hand them to
    processes that then run the protocol for real: for tests, benchmarks and rehearsals, under
    `insecure_simulation=True`. A run with every party's columns in its own process alone is
    `vertinumpyro fit --backend crypten` (`vertinumpyro.runtime`).

    :ivar insecure_simulation: allow the methods that see every party's numbers.
    :ivar dealer: "third_party", a process of its own; or "first_party" in a simulation, to measure what that process
        costs: party 0 deals and could read everything.
    :ivar formulation: "fused", the library's protocol; or in a simulation, as what benchmarks compare with: "paper",
        and "paper_lean", which is "paper" without Algorithm 2's comparisons for signs.
    :ivar timeout_s: how long a process waits for another before the run ends.
    :ivar prefetch: ask the dealer a step ahead; False asks at every product, to measure the gain.
    :ivar watched: record what is opened, for tests.
    """

    option: ClassVar[str] = "crypten"

    dealer: Literal["third_party", "first_party"] = "third_party"
    formulation: Literal["fused", "paper", "paper_lean"] = "fused"
    prefetch: bool = True
    watched: bool = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        if self.dealer not in ("third_party", "first_party"):
            raise ArgumentError(f"dealer must be 'third_party' or 'first_party', got {self.dealer!r}")
        if self.dealer == "first_party" and not self.insecure_simulation:
            raise ArgumentError(
                "dealer='first_party' lets party 0 read everything; it needs insecure_simulation=True, or choose "
                "'third_party'"
            )
        if self.formulation not in ("fused", "paper", "paper_lean"):
            raise ArgumentError(f"formulation must be 'fused', 'paper' or 'paper_lean', got {self.formulation!r}")
        if self.formulation != "fused" and not self.insecure_simulation:
            raise ArgumentError(
                f"formulation={self.formulation!r} has no proved clip; it needs insecure_simulation=True"
            )

    def info(self) -> BackendInfo:
        """Semi-honest parties, third-party dealer."""
        simulated = ", simulated: the calling process knows everything" if self.insecure_simulation else ""
        third_party = self.dealer == "third_party"
        fused = self.formulation == "fused"
        kinds = [] if fused else [self.formulation]
        kinds += ["insecure simulation"] if self.insecure_simulation else []
        return BackendInfo(
            name=f"crypten ({', '.join(kinds)})" if kinds else "crypten",
            security_model=(
                "semi-honest parties, one process each, and a dealer that colludes with no party"
                if third_party
                else "none: party 0 deals and can read everything"
            )
            + simulated,
            who_learns_what="every party learns the noisy sum; the dealer learns shapes only; links are within one "
            "machine and not encrypted",
            dealer="third party: a process of its own, without data; its randomness is AES-256 under keys from the "
            "operating system"
            if third_party
            else "first party: party 0, which is insecure",
            ring="integers modulo 2^64, additive shares of all parties; products of 64 bits",
            precision="weights 30 fractional bits, exponentials 20, scores 11 to 24, log densities 21; truncation "
            "never fails; the clip keeps back at most 1 % for roundings"
            if fused
            else f"{PAPER_BITS} fractional bits, products to 30",
            unproven=() if fused else (paper.UNPROVEN,),
        )

    def missing(self) -> str | None:
        """CrypTen and torch."""
        return None if compat.is_installed() else compat.MISSING

    def helpers(self, num_parties: int) -> list[Member]:
        """The dealer."""
        return [Member(name="the dealer", run=run_dealer)]

    def party(self, seat: Seat, num_parties: int) -> Computer:
        """See `BetweenProcesses`."""
        return PartyComputer(joined_engine(seat))

    def cost(self, shape: BatchShape, layout: Layout) -> StepCost:
        """Counted by running the protocol with nobody at the other end."""
        return estimate(shape, layout)

    def grid_bits(self, shape: BatchShape) -> int:
        """The grid of `FixedPoint`.

        :raises RangeError: also if the squared norms do not fit, or the clip would have to keep back more than 1 %.
        """
        if self.formulation != "fused":
            check_paper_range(shape)
            return PAPER_BITS
        formats.norm_bits(shape)
        formats.clip_share_kept(shape)
        return fixed_point_format(shape).grid_bits

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND, least_evidence: float = 0.0) -> float:
        """Largest L2 distance from the exact sum; see `formats`. Only the paper's depends on the evidence."""
        if self.formulation != "fused":
            return formats.paper_error_bound(shape, score_norm=score_norm, least_evidence=least_evidence)
        return formats.error_bound(shape, score_norm=score_norm)

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
        layout = Layout.of(contributions, prior)
        with jax_compat.x64():
            common, parties = self._encoded(shape, contributions, prior)
            simulation = self.simulation(shape.num_parties)
            words = {"run": "clipped_noisy_sum", "formulation": self.formulation, **describe(shape, layout)}

            _ = total(noise_shares)  # refuses narrow noise
            run = partial(simulation.run, words)
            summed = handed_out(run, shape.num_values, parties, {**common, "mask": mask}, noise_shares)
            return ring.decode(summed, bits)

    def _encoded(
        self, shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(what is public, what each party puts in), by name."""
        if self.formulation != "fused":
            pi, scores = paper.ring_prior(shape, prior)
            parties = [paper.ring_party(shape, c, renormalise=True)._asdict() for c in contributions]
            return {"pi": pi, "prior_scores": scores}, parties
        common = {f"prior_{name}": leaf for name, leaf in encode_prior_traced(shape, prior)._asdict().items()}
        return common, [encode_party_traced(shape, c)._asdict() for c in contributions]

    def noisy_cross_product(self, a: AnyArray, b: AnyArray, noise_shares: AnyArray) -> jax.Array:
        """See `SecureBackend.noisy_cross_product`; modulo 2^64. A simulation: see the class."""
        with jax_compat.x64():
            _ = total(noise_shares)
            own = [np.asarray(matrix).astype(np.int64) for matrix in (a, b)]
            words = {"run": "noisy_cross_product", "shapes": [matrix.shape for matrix in own]}
            noise = by_party(np.asarray(noise_shares), 2)
            inputs = [{"matrix": m, "noise": share} for m, share in zip(own, noise, strict=True)]
            return jnp.asarray(self.simulation(2).run(words, inputs))

    def noisy_sum(self, vectors: AnyArray, noise_shares: AnyArray) -> jax.Array:
        """See `SecureBackend.noisy_sum`; modulo 2^64. A simulation: two processes hold the vectors in turn."""
        with jax_compat.x64():
            _ = total(noise_shares)
            held = by_party(np.asarray(vectors).astype(np.int64), 2)
            noise = by_party(np.asarray(noise_shares), 2)
            inputs = [{"vector": v + share} for v, share in zip(held, noise, strict=True)]
            return jnp.asarray(self.simulation(2).run({"run": "noisy_sum"}, inputs))

    def members(self, num_parties: int) -> list[Member]:
        """See `Rehearsable`."""
        third_party = self.dealer == "third_party"
        arguments = (third_party, self.prefetch, self.watched)
        workers = [Member(name=f"party {rank}", run=run_worker, arguments=arguments) for rank in range(num_parties)]
        return [*workers, *(self.helpers(num_parties) if third_party else ())]
