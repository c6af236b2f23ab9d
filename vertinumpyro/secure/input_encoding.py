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
from vertinumpyro.core.types import ComponentPrior, Contribution, ScoreTable
from vertinumpyro.secure.input_bounds import as_float64, bounded, bounded_prior
from vertinumpyro.secure.number_formats import (
    EXP_BITS,
    LOG_BITS,
    clip_share_kept,
    fixed_point_format,
    float64_room,
    norm_bits,
    score_bound,
    weight_bounds,
)
from vertinumpyro.secure.shape import BatchShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How the released vector is made up; public.

    :ivar prior: d0.
    :ivar plated: each party's d, tables included.
    :ivar shared: each party's s.
    :ivar tables: each party's tables, whose scores stand behind those that belong to no table: (number of values V,
        width d), V being 0 where the scores are written out for every record, as that is less.
    """

    prior: int
    plated: tuple[int, ...]
    shared: tuple[int, ...]
    tables: tuple[tuple[tuple[int, int], ...], ...]

    def written_out(self, party: int) -> int:
        """How many of a party's plated scores are written out for every record."""
        return self.plated[party] - sum(width for num_values, width in self.tables[party] if num_values)

    @classmethod
    def of(cls, contributions: Sequence[Contribution], prior: ComponentPrior) -> Layout:
        """The layout of arrays, or of their shapes."""
        return cls(
            prior=prior.scores.shape[-1],
            plated=tuple(
                c.plated_scores.shape[-1] + sum(table.scores.shape[-1] for table in c.tables) for c in contributions
            ),
            shared=tuple(c.shared_scores.shape[-1] for c in contributions),
            tables=tuple(
                tuple((t.scores.shape[0] if _pays(t) else 0, t.scores.shape[-1]) for t in c.tables)
                for c in contributions
            ),
        )


class PartyInputs(NamedTuple):
    """One party's ring elements. Secret.

    NumPy's, or jax's while a program is traced.

    log_density:  [n, Z], `LOG_BITS`; numbers of its own `EXP_BITS`.
    plated:       [K, n, d] of the scores that are written out, `score_bits`.
    codes:        [n, T], each record's row in each table that is kept as one.
    tables:       these tables' scores, each [K, V, d], flat and side by side, `score_bits`.
    shared:       [n K, s], `score_bits`.
    squared_norm: ||s_nk||^2 / C'^2 of the plated scores [n, K], `norm_bits`, rounded up.
    gram:         s_nk . s_nl / C'^2 of the shared scores [n, K, K], the same. Both have no columns where the party
        clips its scores itself.
    """

    log_density: Any
    plated: Any
    codes: Any
    tables: Any
    shared: Any
    squared_norm: Any
    gram: Any


class PriorInputs(NamedTuple):
    """The public component prior as ring elements: [Z], [K, d0] and the Gram matrix of its scores [K, K]."""

    log_weights: Any
    scores: Any
    gram: Any


def encode_party(shape: BatchShape, contribution: Contribution, party: int) -> PartyInputs:
    """Runs where the party's columns are, before anything is shared.

    :param party: its number.
    """
    with compat.x64():
        return PartyInputs(*(np.asarray(leaf) for leaf in encode_party_traced(shape, contribution, party)))


def encode_prior(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """Runs at every party alike: the prior is public."""
    with compat.x64():
        return PriorInputs(*(np.asarray(leaf) for leaf in encode_prior_traced(shape, prior)))


@partial(jax.jit, static_argnums=(0, 2))
def encode_party_traced(shape: BatchShape, contribution: Contribution, party: int) -> PartyInputs:
    """`encode_party` for use inside a 64-bit program."""
    bits = fixed_point_format(shape).score_bits
    own = bounded(
        as_float64(contribution),
        shape.clip_norm,
        partial(shape.contributed, party=party),
        score_bound=score_bound(shape, party),
        weights=weight_bounds(shape),
    )
    plated, shared = ring.encode_short(own.plated_scores, bits), ring.encode_short(own.shared_scores, bits)
    tables = [t._replace(scores=ring.encode_short(t.scores, bits)) for t in own.tables]
    kept = [table for table in tables if _pays(table)]
    blocks = (plated, *(table.per_record() for table in tables if not _pays(table)))
    n, K = len(own.log_density), shape.num_components
    squared_norm, gram = _norms(shape, plated, shared, tables)
    return PartyInputs(
        log_density=shape.link.encoded(own.log_density, LOG_BITS, EXP_BITS),
        plated=jnp.concatenate(blocks, axis=-1).transpose(1, 0, 2),
        codes=jnp.stack([jnp.zeros(n, jnp.int64), *(t.codes.astype(jnp.int64) for t in kept)], axis=-1)[:, 1:],
        tables=jnp.concatenate([jnp.zeros(0, jnp.int64), *(t.scores.transpose(1, 0, 2).ravel() for t in kept)]),
        shared=shared.reshape(n * K, shared.shape[2]),
        squared_norm=squared_norm,
        gram=gram,
    )


def sums_of_tables(layout: Layout, party: int, written_out: Any, tables: Sequence[Any], beside: Any) -> Any:
    """Sums [..., d] of a party's plated scores in the order of the released vector.

    :param written_out: [..., d] of the scores that are written out.
    :param tables: those of each table that is kept as one.
    :param beside: puts blocks side by side.
    """
    widths = [width for num_values, width in layout.tables[party] if not num_values]
    start = layout.written_out(party) - sum(widths)
    blocks, kept = [written_out[..., :start]], iter(tables)
    for num_values, width in layout.tables[party]:
        blocks.append(next(kept) if num_values else written_out[..., start : start + width])
        start += 0 if num_values else width
    return beside(blocks)


def without_tables(layout: Layout, party: int, own: PartyInputs) -> PartyInputs:
    """The same with every record's plated scores written out, for a backend that has no use for tables."""
    K = own.plated.shape[0]
    rows, start = [], 0
    for index, (num_values, width) in enumerate(table for table in layout.tables[party] if table[0]):
        size = K * num_values * width
        rows.append(own.tables[start : start + size].reshape(K, num_values, width)[:, own.codes[:, index]])
        start += size
    plated = sums_of_tables(layout, party, own.plated, rows, lambda blocks: np.concatenate(blocks, axis=-1))
    return own._replace(plated=plated, codes=own.codes[:, :0], tables=own.tables[:0])


def _pays(table: ScoreTable) -> bool:
    """Whether a product over values costs less than one over records: its masked words, of codes and of scores."""
    num_values, K, width = table.scores.shape
    num_records = table.codes.shape[0]
    return num_records * num_values + K * num_values * width < num_records * K * width


def norm_width(shape: BatchShape) -> int:
    """How many squared norms a record has at a party: K, or none where the party clips its scores itself."""
    return 0 if shape.clips_locally else shape.num_components


def _norms(
    shape: BatchShape, plated: jax.Array, shared: jax.Array, tables: Sequence[ScoreTable]
) -> tuple[jax.Array, jax.Array]:
    """`PartyInputs.squared_norm` and `gram` of encoded scores."""
    n, bits = len(plated), fixed_point_format(shape).score_bits
    if shape.clips_locally:
        return jnp.zeros((n, 0), jnp.int64), jnp.zeros((n, 0, 0), jnp.int64)
    squares = sum((_squares(t.scores, bits)[t.codes] for t in tables), start=_squares(plated, bits))
    num_terms = plated.shape[-1] + sum(t.scores.shape[-1] for t in tables)
    return _rounded_up(shape, squares, num_terms), _gram(shape, ring.decode(shared, bits))


def _squares(scores: jax.Array, bits: int) -> jax.Array:
    return (ring.decode(scores, bits) ** 2).sum(-1)


@partial(jax.jit, static_argnums=0)
def encode_prior_traced(shape: BatchShape, prior: ComponentPrior) -> PriorInputs:
    """`encode_prior` for use inside a 64-bit program."""
    bits = fixed_point_format(shape).score_bits
    own = bounded_prior(as_float64(prior), shape.clip_norm, shape.contributed)
    scores = ring.encode_short(own.scores, bits)
    gram = _gram(shape, ring.decode(scores, bits))
    return PriorInputs(shape.link.encoded(own.log_weights, LOG_BITS, EXP_BITS), scores, gram)


def _gram(shape: BatchShape, scores: jax.Array) -> jax.Array:
    """The products of all pairs of components [..., K, K], from the very integers that are released."""
    return _rounded_up(shape, jnp.einsum("...ks,...ls->...kl", scores, scores), scores.shape[-1])


def _rounded_up(shape: BatchShape, products: jax.Array, num_terms: int) -> jax.Array:
    """Ceiling of sums of products / C'^2 in `norm_bits`, after room for float64's own rounding of the sums."""
    inner = shape.clip_norm * (1 - clip_share_kept(shape)) * (1 - 2.0**-40)
    room = float64_room(num_terms)
    return jnp.ceil((products / inner**2 + room) * 2.0 ** norm_bits(shape)).astype(jnp.int64)
