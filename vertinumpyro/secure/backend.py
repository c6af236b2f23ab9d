"""What every secure backend is: three fused protocols, a range proof, and a statement of who learns what.

Fused, because rounds dominate on a wide-area network: one call reveals one noisy result and nothing between.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.integer_product import exact_in_float64, integer_product
from vertinumpyro.core.types import ComponentPrior, Contribution

AnyArray = jax.Array | np.ndarray
"""Integers may come as NumPy's: outside 64-bit mode jax would narrow them."""

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

    def __post_init__(self) -> None:
        """Checks the sizes."""
        for name in ("batch_size", "num_components", "num_parties", "num_values"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackendInfo:
    """A backend's statement of security and precision, for the plan and the report.

    :ivar unproven: the steps whose clip or noise bound is not proved; empty for a backend fit for a release.
    """

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

    def check_in_process(self) -> None:  # noqa: B027 (most backends have nothing to refuse)
        """Raise where the protocols must not be called with every party's numbers in one process.

        :raises ArgumentError: says how to run it instead.
        """

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

        Coordinates: the component prior's d0, then for each party its plated [K, d] (tables included) and its
        shared [s] scores, flattened. The L2 norm of what a record adds is at most C, rounding included.
        """

    @abc.abstractmethod
    def noisy_cross_product(
        self, a: Int[AnyArray, "n da"], b: Int[AnyArray, "n db"], noise_shares: Int[AnyArray, "shares da db"]
    ) -> Int[Array, "da db"]:
        """a^T b + noise for integer matrices of two parties; a^T b itself is never revealed."""

    @abc.abstractmethod
    def noisy_sum(
        self, vectors: Int[AnyArray, "holders D"], noise_shares: Int[AnyArray, "shares D"]
    ) -> Int[Array, " D"]:
        """The sum of the holders' integer vectors and of all noise shares."""


def total(noise_shares: Int[AnyArray, "shares ..."]) -> jax.Array:
    """Sum of the noise shares; in the ring, where wrapping around is addition modulo 2^64.

    :raises ArgumentError: for other integers than int64: jax narrows them silently outside 64-bit mode, and a
        narrowed noise share has another distribution.
    """
    if noise_shares.dtype != np.dtype("int64"):
        raise ArgumentError(f"noise_shares must be int64, got {noise_shares.dtype}; call under core.compat.x64()")
    return jnp.asarray(noise_shares).sum(axis=0)


def cross_product(a: Int[AnyArray, "n da"], b: Int[AnyArray, "n db"], noise_shares: AnyArray) -> jax.Array:
    """a^T b + noise modulo 2^64, for backends that compute in one process; narrow integers are widened.

    By floating-point matrix products where those give the same integers, which is some fifty times faster.
    """
    a, b = np.asarray(a), np.asarray(b)
    with compat.x64():
        if exact_in_float64(a, b):
            return jnp.asarray(integer_product(a, b)) + total(noise_shares)
        return jnp.asarray(a).astype(jnp.int64).T @ jnp.asarray(b).astype(jnp.int64) + total(noise_shares)


def vector_sum(vectors: Int[AnyArray, "holders D"], noise_shares: AnyArray) -> jax.Array:
    """The sum of all vectors and noise shares modulo 2^64, for backends that compute in one process."""
    with compat.x64():
        return jnp.asarray(vectors).astype(jnp.int64).sum(axis=0) + total(noise_shares)


def check_shape(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, mask: jax.Array
) -> None:
    """Checks that the arrays have the public shape that the range proof speaks of; never looks at a value.

    :raises ArgumentError: if a number of records, components, parties or values differs.
    """
    num_values = prior.scores.shape[-1]
    for c in contributions:
        plated = (c.plated_scores, *(table.scores for table in c.tables))
        num_values += sum(math.prod(scores.shape[1:]) for scores in plated) + c.shared_scores.shape[-1]
    found = {
        "batch_size": {
            mask.shape[0],
            *(c.log_density.shape[0] for c in contributions),
            *(table.codes.shape[0] for c in contributions for table in c.tables),
        },
        "num_components": {prior.log_weights.shape[0], *(c.log_density.shape[1] for c in contributions)},
        "num_parties": {len(contributions)},
        "num_values": {num_values},
    }
    for name, sizes in found.items():
        if sizes != {getattr(shape, name)}:
            raise ArgumentError(f"shape.{name} is {getattr(shape, name)}, but the arrays have {sorted(sizes)}")
