"""What every secure backend states, and the three protocols of those that compute with everybody's numbers at hand.

Protocols are fused, because rounds dominate on a wide-area network: one call reveals one noisy result and nothing
between. `between_processes` has the backends whose parties are processes, `simulation` runs those from one.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.row_blocks import Factor, products
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.shape import BatchShape

AnyArray = jax.Array | np.ndarray
"""Integers may come as NumPy's: outside 64-bit mode jax would narrow them."""

Contributions: TypeAlias = Sequence[Contribution] | Callable[[jax.Array], Sequence[Contribution]]
"""Each party's contribution to a batch, or, where it comes in blocks, to the block of a number."""


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


class Backend(abc.ABC):
    """A way to compute the cross-party protocols, by its public choices alone.

    :cvar option: what configurations and `--backend` call it.
    """

    option: ClassVar[str]

    @property
    def verifies_tables(self) -> bool:
        """Whether a party that cheats gets no more than one that does not, from what can be verified.

        That is tables of one-hot rows, products of numbers within public bounds, and sums of the parties' own vectors.
        """
        return False

    @abc.abstractmethod
    def info(self) -> BackendInfo:
        """Security model, who learns what, dealer, ring, precision."""

    @abc.abstractmethod
    def grid_bits(self, shape: BatchShape) -> int:
        """Fractional bits f of the revealed sum: noise is integer noise on the grid 2^-f.

        :raises RangeError: if a value of this shape could wrap around the ring.
        """

    @abc.abstractmethod
    def error_bound(self, shape: BatchShape, *, score_norm: float) -> float:
        """Largest L2 distance between the revealed sum, without its noise, and the exact one on float64 numbers.

        :param score_norm: a bound, in clip norms, on a record's scores under one component, joined over the
            component prior and each party; `input_bounds.SCORE_BOUND` holds for each of them whatever the columns hold.
        """


class InProcess(Backend):
    """A backend that takes every party's numbers in one process, which therefore knows them all."""

    @abc.abstractmethod
    def clipped_noisy_sum(
        self,
        shape: BatchShape,
        contributions: Contributions,
        prior: ComponentPrior,
        mask: Bool[Array, "*blocks n"],
        noise_shares: Int[Array, "shares D"],
    ) -> Float[Array, " D"]:
        """sum_n clip(g_n, C) + noise, where g_n is record n's gradient of the link's log density.

        A mixture's is log sum_k pi_k exp(sum_p l^p_nk).

        Coordinates: the component prior's d0, then for each party its plated [K, d] (tables included) and its
        shared [s] scores, flattened. The L2 norm of what a record adds is at most C, rounding included.

        :param contributions: each party's; of a batch in blocks, a function from a block's number to them.
        :param mask: False for padding; of a batch in blocks [num_blocks, n].
        """

    def noisy_cross_products(
        self, matrices: Sequence[Factor], noise_shares: Int[AnyArray, "shares D"]
    ) -> Int[Array, " D"]:
        """A_i^T A_j + noise modulo 2^64 for integer matrices [n, d_p] of all parties and all pairs i < j.

        Pairs in the order of `itertools.combinations`, each product row by row: D = sum_{i<j} d_i d_j. The products
        themselves are never revealed. By default in the clear, a block of rows at a time, so that a factor may be
        `RowBlocks`, which are never whole; narrow integers are widened.
        """
        flat = [product.ravel() for product in products(matrices)]
        with compat.x64():
            return jnp.asarray(np.concatenate([np.zeros(0, np.int64), *flat])) + total(noise_shares)

    def noisy_sum(
        self, vectors: Int[AnyArray, "holders D"], noise_shares: Int[AnyArray, "shares D"]
    ) -> Int[Array, " D"]:
        """The sum of the holders' integer vectors and of all noise shares, modulo 2^64; by default in the clear."""
        with compat.x64():
            return jnp.asarray(vectors).astype(jnp.int64).sum(axis=0) + total(noise_shares)

    @final
    def noisy_cross_product(
        self, a: Int[AnyArray, "n da"], b: Int[AnyArray, "n db"], noise_shares: Int[AnyArray, "shares da db"]
    ) -> Int[Array, "da db"]:
        """a^T b + noise of two parties; a^T b itself is never revealed."""
        flat = noise_shares.reshape(len(noise_shares), a.shape[1] * b.shape[1])
        return self.noisy_cross_products([np.asarray(a), np.asarray(b)], flat).reshape(a.shape[1], b.shape[1])


def in_process(backend: Backend) -> InProcess:
    """The backend, if it may be given every party's numbers.

    :raises ArgumentError: says how to run it instead.
    """
    if isinstance(backend, InProcess):
        return backend
    name = type(backend).__name__
    raise ArgumentError(
        "backend: here one process would hold every party's columns. Run `vertinumpyro fit --backend "
        f"{backend.option}`, where each party is a process, or rehearse with InsecureSimulation({name}())"
    )


def over_blocks(
    summed: Callable[[Sequence[Contribution], jax.Array], jax.Array], contributions: Contributions, mask: jax.Array
) -> jax.Array:
    """What `summed` makes of a batch's contributions and mask; of a batch in blocks, the sum over its blocks.

    In integers modulo 2^64 that is the same, whatever the blocks.
    """
    if not callable(contributions):
        return summed(contributions, mask)

    @jax.jit  # one trace serves the shape and the loop
    def of_block(number: jax.Array) -> jax.Array:
        return summed(contributions(number), mask[number])

    numbers = jnp.arange(len(mask))
    like = jax.eval_shape(of_block, numbers[0])
    nothing = jnp.zeros(like.shape, like.dtype)
    return jax.lax.scan(lambda so_far, number: (so_far + of_block(number), None), nothing, numbers)[0]


def total(noise_shares: Int[AnyArray, "shares ..."]) -> jax.Array:
    """Sum of the noise shares; in the ring, where wrapping around is addition modulo 2^64.

    :raises ArgumentError: for other integers than int64: jax narrows them silently outside 64-bit mode, and a
        narrowed noise share has another distribution.
    """
    if noise_shares.dtype != np.dtype("int64"):
        raise ArgumentError(f"noise_shares must be int64, got {noise_shares.dtype}; call under core.compat.x64()")
    return jnp.asarray(noise_shares).sum(axis=0)


def check_shape(
    shape: BatchShape, contributions: Sequence[Contribution], prior: ComponentPrior, mask: jax.Array
) -> None:
    """Checks that the arrays have the public shape that the range proof speaks of; never looks at a value.

    :raises ArgumentError: if a number of records, components, parties or values differs, or the mask is no bool: its
        entries would multiply records.
    """
    if mask.dtype != bool:
        raise ArgumentError(f"mask must be bool, False for padding, got {mask.dtype}")
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
        "num_components": {scores.shape[-2] for c in contributions for scores in (c.plated_scores, c.shared_scores)},
        "num_parties": {len(contributions)},
        "num_values": {num_values},
    }
    for name, sizes in found.items():
        if sizes != {getattr(shape, name)}:
            raise ArgumentError(f"shape.{name} is {getattr(shape, name)}, but the arrays have {sorted(sizes)}")
    widths = [c.log_density.shape[1] for c in contributions]
    shape.link.check_inputs(widths, prior.log_weights.shape[0], shape.num_components)
    check_prior(shape, prior.scores.shape[-1])


def check_prior(shape: BatchShape, num_scores: int) -> None:
    """Checks that no scores of the prior are left out of a clip that has no part for them.

    :raises ArgumentError: there are some.
    """
    if shape.clips_locally and num_scores:
        raise ArgumentError(
            f"the component prior has {num_scores} scores, and clip_parts gives C to the parties' alone; leave "
            "clip_parts out"
        )
