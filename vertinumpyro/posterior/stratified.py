"""Records of a twin that are nearer to their distribution than independent ones, at no cost.

A site's draws are its quantiles at u_i = frac(U_c + r_i φ), φ the golden ratio: a Kronecker sequence, whose every run
is spread almost evenly over (0, 1). c is the record's cell, its component and its code in one of the columns drawn
before, another at each site; r_i is its place in the cell, by lot; U_c is uniform, one for each cell and site. So the
records of one component, and among them those that agree in that column, get a site's values in about their shares,
where independent draws miss them by a square root. Every u_i is uniform and independent of what came before, so each
record by itself is an exact draw of the model; and as lots and U_c are new at every site, two sites have nothing in
common within a cell, however small it is.
"""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger

from vertinumpyro.core.types import Model

__all__ = ["Stratified"]

_OVER_CODES = (dist.BernoulliProbs, dist.BernoulliLogits, dist.CategoricalProbs, dist.CategoricalLogits)
_GOLDEN = np.uint32(2654435769)  # of 2^32: sums and products wrap, so that no digit is lost


@final
class Stratified(Messenger):
    """Draws sites of finitely many values together for all records; others as ever. Goes inside `handlers.seed`.

    :param rng_key: of shifts and lots.
    :param num_records: how many; a site of another shape is none of the records'.
    :param component: the component site, by which records are ordered first.
    :param drawn: what was drawn in earlier rounds, each [n]; codes are used, numbers are not.
    """

    def __init__(self, fn: Model, rng_key: jax.Array, num_records: int, component: str | None, drawn: Any) -> None:
        super().__init__(fn)
        self._key, self._num_records, self._component = rng_key, num_records, component
        self._sites = 0
        self._codes: list[jax.Array] = []
        self._first: jax.Array | None = None
        for value in drawn:
            self._remember(value)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Gives a site its value, where it has finitely many."""
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if msg["value"] is None and (shares := _cumulative(msg["fn"], self._num_records)) is not None:
            self._sites += 1
            places = self._places(jax.random.fold_in(self._key, self._sites))
            at = places / jnp.asarray(2.0**32, shares.dtype)
            msg["value"] = (at[:, None] >= shares).sum(1).astype(jnp.result_type(int))

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Remembers what the record has drawn."""
        value = msg["value"]
        if msg["type"] != "sample" or jnp.shape(value) != (self._num_records,):
            return
        if msg["name"] == self._component:
            self._first = value
        else:
            self._remember(value)

    def _remember(self, value: Any) -> None:
        if jnp.issubdtype(jnp.result_type(value), jnp.integer) or jnp.issubdtype(jnp.result_type(value), jnp.bool_):
            self._codes.append(jnp.asarray(value))

    def _places(self, rng_key: jax.Array) -> jax.Array:
        """2^32 u_i, uint32 [n]."""
        lot_key, shift_key = jax.random.split(rng_key)
        keys = [] if self._first is None else [self._first]
        if self._codes:
            keys.insert(0, self._codes[np.random.default_rng(self._sites).integers(len(self._codes))])
        order = jnp.lexsort([jax.random.bits(lot_key, (self._num_records,)), *keys])
        rank = jnp.arange(self._num_records)
        new = rank == 0
        for key in keys:
            new |= jnp.concatenate([jnp.ones(1, bool), jnp.diff(key[order].astype(jnp.int32)) != 0])
        start = jax.lax.cummax(jnp.where(new, rank, 0))
        shift = jax.random.bits(shift_key, (self._num_records,), jnp.uint32)[start]
        found = shift + (rank - start).astype(jnp.uint32) * _GOLDEN
        return jnp.zeros(self._num_records, jnp.uint32).at[order].set(found)


def _cumulative(fn: Any, num_records: int) -> jax.Array | None:
    """P(value <= c), [n or 1, values - 1], of a distribution over codes from 0; None for others."""
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    if not isinstance(fn, _OVER_CODES):
        return None
    probs: Any = fn.probs
    if isinstance(fn, dist.BernoulliProbs | dist.BernoulliLogits):
        probs = jnp.stack([1 - probs, probs], -1)
    if probs.ndim > 2 or (probs.ndim == 2 and len(probs) not in (1, num_records)):
        return None
    return jnp.cumsum(jnp.atleast_2d(probs), -1)[:, :-1]
