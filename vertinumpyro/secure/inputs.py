"""A party's own numbers as ring elements: public bounds, encoding, squared norms. Runs before anything is shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat, ring
from vertinumpyro.core.types import ComponentPrior, Contribution
from vertinumpyro.secure.backend import BatchShape
from vertinumpyro.secure.formats import LOG_BITS, clip_share_kept, float64_room, norm_bits
from vertinumpyro.secure.local import as_float64, bounded, bounded_prior
from vertinumpyro.secure.range_proof import fixed_point_format

__all__ = [
    "Layout",
    "PartyInputs",
    "PriorInputs",
    "encode_party",
    "encode_party_traced",
    "encode_prior",
    "encode_prior_traced",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How the released vector is made up; public.

    :ivar prior: d0.
    :ivar plated: each party's d, tables included.
    :ivar shared: each party's s.
    """

    prior: int
    plated: tuple[int, ...]
    shared: tuple[int, ...]

    @classmethod
    def of(cls, contributions: Sequence[Contribution], prior: ComponentPrior) -> Layout:
        """The layout of arrays, or of their shapes."""
        return cls(
            prior=prior.scores.shape[-1],
            plated=tuple(
                c.plated_scores.shape[-1] + sum(table.scores.shape[-1] for table in c.tables) for c in contributions
            ),
            shared=tuple(c.shared_scores.shape[-1] for c in contributions),
        )


class PartyInputs(NamedTuple):
    """One party's ring elements. Secret.

    NumPy's, or jax's while a program is traced.

    log_density:  [n, K], `LOG_BITS`.
    plated:       [K, n, d], `score_bits`.
    shared:       [n K, s], `score_bits`.
    squared_norm: ||s_nk||^2 / C'^2 of the plated scores [n, K], `norm_bits`, rounded up.
    gram:         s_nk . s_nl / C'^2 of the shared scores [n, K, K], the same.
    """

    log_density: Any
    plated: Any
    shared: Any
    squared_norm: Any
    gram: Any


class PriorInputs(NamedTuple):
    """The public component prior as ring elements: [K], [K, d0] and the Gram matrix of its scores [K, K]."""

    log_weights: Any
    scores: Any
    gram: Any


def encode_party(shape: BatchShape, contribution: Contribution) -> PartyInputs:
    """Runs where the party's columns are, before anything is shared."""
    with compat.x64():
        return PartyInputs(*(np.asarray(leaf) for leaf in encode_party_traced(shape, contribution)))


def encode_prior(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """Runs at every party alike: the prior is public."""
    with compat.x64():
        return PriorInputs(*(np.asarray(leaf) for leaf in encode_prior_traced(shape, prior)))


@partial(jax.jit, static_argnums=0)
def encode_party_traced(shape: BatchShape, contribution: Contribution) -> PartyInputs:
    """`encode_party` for use inside a 64-bit program."""
    bits = fixed_point_format(shape).score_bits
    own = bounded(as_float64(contribution), shape.clip_norm, shape.link.bounded).without_tables()
    plated, shared = ring.encode_short(own.plated_scores, bits), ring.encode_short(own.shared_scores, bits)
    return PartyInputs(
        ring.encode_short(own.log_density, LOG_BITS),
        plated.transpose(1, 0, 2),
        shared.reshape(shared.shape[0] * shared.shape[1], shared.shape[2]),
        _rounded_up(shape, (ring.decode(plated, bits) ** 2).sum(-1), plated.shape[-1]),
        _gram(shape, ring.decode(shared, bits)),
    )


@partial(jax.jit, static_argnums=0)
def encode_prior_traced(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """`encode_prior` for use inside a 64-bit program."""
    bits = fixed_point_format(shape).score_bits
    own = bounded_prior(as_float64(prior), shape.clip_norm, shape.link.bounded)
    scores = ring.encode_short(own.scores, bits)
    gram = _gram(shape, ring.decode(scores, bits))
    return PriorInputs(ring.encode_short(own.log_weights, LOG_BITS), scores, gram)


def _gram(shape: BatchShape, scores: jax.Array) -> jax.Array:
    """The products of all pairs of components [..., K, K], from the very integers that are released."""
    return _rounded_up(shape, jnp.einsum("...ks,...ls->...kl", scores, scores), scores.shape[-1])


def _rounded_up(shape: BatchShape, products: jax.Array, num_terms: int) -> jax.Array:
    """Ceiling of sums of products / C'^2 in `norm_bits`, after room for float64's own rounding of the sums."""
    inner = shape.clip_norm * (1 - clip_share_kept(shape)) * (1 - 2.0**-40)
    room = float64_room(num_terms)
    return jnp.ceil((products / inner**2 + room) * 2.0 ** norm_bits(shape)).astype(jnp.int64)
