"""The paper's formulation in one process, in floating point and on integers at scale 2^32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax

from paper_protocol import formulation
from paper_protocol.ring import PAPER_BITS
from vertinumpyro.core import compat, ring
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import AnyArray, BackendInfo, Contributions, InProcess, over_blocks, total
from vertinumpyro.secure.input_bounds import SCORE_BOUND
from vertinumpyro.secure.shape import BatchShape

__all__ = ["Paper"]


@dataclasses.dataclass(frozen=True)
class Paper(InProcess):
    """Eqs. 20-30 coordinate by coordinate; in exact arithmetic its sum is the library's.

    :ivar fixed_point: on integers at scale 2^32 (Algorithms 2 and 3); False is in floating point.
    :ivar renormalise: False leaves out Algorithm 4: records whose densities underflow add nothing.
    """

    option: ClassVar[str] = "paper"

    fixed_point: bool = True
    renormalise: bool = True

    def info(self) -> BackendInfo:
        """No security, and no proof."""
        return BackendInfo(
            name="fixed_point (paper)" if self.fixed_point else "plaintext (paper)",
            security_model="none (simulates the secure computation in one process)",
            who_learns_what="the process that runs it learns everything",
            dealer="none",
            ring="integers modulo 2^64" if self.fixed_point else "none (floating point)",
            precision=f"{PAPER_BITS} fractional bits" if self.fixed_point else "the dtype of the log densities",
            unproven=(formulation.UNPROVEN,),
        )

    def grid_bits(self, shape: BatchShape) -> int:
        """The paper's scale."""
        formulation.check_range(shape)
        return PAPER_BITS

    def error_bound(self, shape: BatchShape, *, score_norm: float = SCORE_BOUND, least_evidence: float = 0.0) -> float:
        """Infinite without a bound on the evidence; of floats their own rounding."""
        if not self.fixed_point:
            return 1e-11 * shape.num_padded * shape.clip_norm
        return formulation.error_bound(shape, score_norm=score_norm, least_evidence=least_evidence)

    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Contributions,
        prior: ComponentPrior,
        mask: jax.Array,
        noise_shares: AnyArray,
    ) -> jax.Array:
        """See `InProcess.clipped_noisy_sum`."""
        bits = self.grid_bits(shape)
        summing = formulation.ring_clipped_sum if self.fixed_point else formulation.clipped_sum

        def summed(contributions: Sequence[Contribution], mask: jax.Array) -> jax.Array:
            return summing(shape, contributions, prior, mask, renormalise=self.renormalise)

        with compat.x64():
            found = over_blocks(summed, contributions, mask)
            if self.fixed_point:
                return ring.decode(found + total(noise_shares), bits)
            return found + ring.decode(total(noise_shares), bits).astype(found.dtype)
