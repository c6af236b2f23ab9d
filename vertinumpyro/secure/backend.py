"""What every secure backend is: three fused protocols, a range proof, and a statement of who learns what.

Fused, because rounds dominate on a wide-area network: one call reveals one noisy result and nothing between.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import jax
from jaxtyping import Array, Bool, Float, Int

from vertinumpyro.core.types import ComponentPrior, Contribution

__all__ = ["BackendInfo", "BackendStats", "BatchShape", "SecureBackend"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchShape:
    """The public size of one `clipped_noisy_sum`: all that a range proof needs.

    :ivar batch_size: padded records n in a batch.
    :ivar num_components: K.
    :ivar num_parties: P.
    :ivar num_values: length D of the released vector.
    :ivar clip_norm: C, the bound on the L2 norm of a record's contribution.
    :ivar noise_stddev: standard deviation of the total noise in one coordinate, in the units of C.
    """

    batch_size: int
    num_components: int
    num_parties: int
    num_values: int
    clip_norm: float
    noise_stddev: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """A backend's statement of security and precision, for the plan and the report."""

    name: str
    security_model: str
    who_learns_what: str
    dealer: str
    ring: str
    precision: str
    unproven: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackendStats:
    """What the protocols cost so far: bytes sent by each party, rounds, seconds."""

    bytes_per_party: int = 0
    rounds: int = 0
    seconds: float = 0.0


class SecureBackend(abc.ABC):
    """A way to compute the three cross-party protocols."""

    @abc.abstractmethod
    def info(self) -> BackendInfo:
        """Security model, who learns what, dealer, ring, precision."""

    @abc.abstractmethod
    def stats(self) -> BackendStats:
        """Cost so far; zero for backends that compute in one process."""

    @abc.abstractmethod
    def grid_bits(self, shape: BatchShape) -> int:
        """Fractional bits f of the revealed sum: noise is integer noise on the grid 2^-f.

        :raises RangeError: if a value of this shape could wrap around the ring.
        """

    @abc.abstractmethod
    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Sequence[Contribution],
        prior: ComponentPrior,
        mask: Bool[Array, " n"],
        noise_shares: Int[Array, "shares D"],
    ) -> Float[Array, " D"]:
        """sum_n clip(g_n, C) + noise, where g_n is record n's gradient of log sum_k pi_k exp(sum_p l^p_nk).

        Coordinates: the component prior's d0, then for each party its plated [K, d] and its shared [s]
        scores, flattened. The L2 norm of what a record adds is at most C, rounding included.
        """

    @abc.abstractmethod
    def noisy_cross_product(
        self, a: Int[Array, "n da"], b: Int[Array, "n db"], noise_shares: Int[Array, "shares da db"]
    ) -> Int[Array, "da db"]:
        """a^T b + noise for integer matrices of two parties; a^T b itself is never revealed."""

    @abc.abstractmethod
    def noisy_sum(
        self, vectors: Int[Array, "holders D"], noise_shares: Int[Array, "shares D"]
    ) -> Int[Array, " D"]:
        """The sum of the holders' integer vectors and of all noise shares."""


def total(noise_shares: jax.Array) -> jax.Array:
    """Sum of the noise shares; in the ring, where wrapping around is addition modulo 2^64."""
    return noise_shares.sum(axis=0)
