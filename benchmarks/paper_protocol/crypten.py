"""The paper's formulation as a backend: the library's CrypTen processes, fed by an `InsecureSimulation`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np

from paper_protocol import formulation
from paper_protocol.ring import PAPER_BITS
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure import Crypten
from vertinumpyro.secure.backend import BackendInfo
from vertinumpyro.secure.between_processes import BetweenProcesses, Cost, Watch
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.crypten.backend import first_party_dealer, third_party_dealer
from vertinumpyro.secure.crypten.number_formats import ROOT_ERROR
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.input_encoding import Layout, PartyInputs, PriorInputs
from vertinumpyro.secure.shape import BatchShape
from vertinumpyro.transport import Communicator, Member, Traffic, all_gather

__all__ = ["CryptenPaper"]


@dataclasses.dataclass(frozen=True)
class CryptenPaper(BetweenProcesses):
    """The paper's formulation on the library's engine and dealers; in an `InsecureSimulation` alone.

    :ivar lean: without Algorithm 2's comparisons for its operands' signs.
    """

    option: ClassVar[str] = "crypten_paper"
    libraries: ClassVar[tuple[str, ...]] = Crypten.libraries

    dealer: Literal["third_party", "first_party"] = "third_party"
    lean: bool = False

    @property
    def _engine(self) -> Crypten:
        return Crypten(dealer=self.dealer)

    def info(self) -> BackendInfo:
        """CrypTen's own, without a proof."""
        return dataclasses.replace(
            self._engine.info(),
            name="crypten (paper_lean)" if self.lean else "crypten (paper)",
            precision=f"{PAPER_BITS} fractional bits, products to 30",
            unproven=(formulation.UNPROVEN,),
        )

    def missing(self) -> str | None:
        return self._engine.missing()

    def rehearsal_only(self) -> str:
        return "the paper's formulation has no proved clip"

    def helpers(self, num_parties: int) -> list[Member]:
        return self._engine.helpers(num_parties)

    def end(self, communicator: Communicator, num_parties: int, watch: Watch | None = None) -> Any:
        return _PaperEnd(communicator, third_party=self.dealer == "third_party", lean=self.lean, watch=watch)

    def encode_party(self, shape: BatchShape, contribution: Contribution, party: int) -> PartyInputs:
        """Mat and the scores stand where the library has the log densities and its scores."""
        own = formulation.ring_party(shape, contribution, renormalise=True)
        nothing = jnp.zeros((len(own.mat), 0), jnp.int64)
        return PartyInputs(own.mat, own.plated, nothing, nothing, own.shared, nothing, nothing)

    def encode_prior(self, shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
        known = formulation.ring_prior(shape, prior)
        return PriorInputs(known.pi, known.scores, jnp.zeros(0, jnp.int64))

    def cost(self, computation: Computation, *, rank: int = 0) -> Cost:
        raise NotImplementedError

    def grid_bits(self, shape: BatchShape) -> int:
        formulation.check_range(shape)
        return PAPER_BITS

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND, least_evidence: float = 1.0) -> float:
        """Products are off by 10 units, not by one; the clip factor's root is too short by `ROOT_ERROR`.

        ||g||^2 / C^2 is off by 4 units of 2^-24, half of which is in the root.
        """
        rounded = formulation.error_bound(shape, score_norm=score_norm, least_evidence=least_evidence)
        return 10 * rounded + shape.num_padded * shape.clip_norm * (ROOT_ERROR + 2.0**-23)


class _PaperEnd:
    """A party's end: the clipped sum alone."""

    def __init__(self, communicator: Communicator, *, third_party: bool, lean: bool, watch: Watch | None) -> None:
        from vertinumpyro.secure.crypten.engine import Engine

        dealer = third_party_dealer(communicator) if third_party else first_party_dealer(communicator)
        self._engine, self._lean = Engine(communicator.rank, communicator.peers, dealer, watch), lean

    @property
    def traffic(self) -> Traffic:
        return self._engine.traffic

    @property
    def dealer_traffic(self) -> Traffic:
        return self._engine.dealer.traffic

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        layout: Layout,
        own: Iterable[PartyInputs],
        prior: PriorInputs,
        mask: np.ndarray,
        noise_share: np.ndarray,
    ) -> np.ndarray:
        from paper_protocol import crypten_protocol as protocol

        all_gather(self._engine.links, self._engine.rank, bytes(32))  # as the library's end compares public numbers
        product = protocol.signed_mult if self._lean else protocol.mult
        return protocol.clipped_noisy_sum(self._engine, shape, layout, own, prior, mask, noise_share, product)
