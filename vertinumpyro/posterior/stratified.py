"""Records of a twin that are nearer to their distribution than independent ones, at no cost.

A site's draws are its quantiles at u_i = frac(U + r_i φ), φ the golden ratio and U uniform: a Kronecker sequence, whose
every run is spread almost evenly over (0, 1). r_i is the record's rank among all, in the order of its component and of
what it has drawn before. So the records of one component, and among them those that agree in other columns, get a
site's values in about their shares, where independent draws miss them by a square root. Every u_i is uniform and
independent of what came before, so each record by itself is an exact draw of the model.
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

    :param rng_key: of the shifts and lots.
    :param num_records: how many; a site of another shape is none of the records'.
    :param component: the component site, by which records are ordered first.
    :param drawn: what was drawn in earlier rounds, each [n].
    """

    def __init__(self, fn: Model, rng_key: jax.Array, num_records: int, component: str | None, drawn: Any) -> None:
        super().__init__(fn)
        self._key, self._num_records, self._component = rng_key, num_records, component
        self._sites = 0
        self._before: list[jax.Array] = list(drawn)
        self._first: jax.Array | None = None

    def process_message(self, msg: dict[str, Any]) -> None:
        """Gives a site its value, where it has finitely many."""
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if msg["value"] is None and (shares := _cumulative(msg["fn"], self._num_records)) is not None:
            self._sites += 1
            shift_key, tie_key = jax.random.split(jax.random.fold_in(self._key, self._sites))
            shift = jax.random.bits(shift_key, dtype=jnp.uint32)
            at = (shift + self._ranks(tie_key).astype(jnp.uint32) * _GOLDEN) / jnp.asarray(2.0**32, shares.dtype)
            msg["value"] = (at[:, None] >= shares).sum(1).astype(jnp.result_type(int))

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Remembers what the record has drawn."""
        value = msg["value"]
        if msg["type"] != "sample" or jnp.shape(value) != (self._num_records,):
            return
        if msg["name"] == self._component:
            self._first = value
        else:
            self._before.append(value)

    def _ranks(self, tie_key: jax.Array) -> jax.Array:
        """Every record's place, by component, then by what it has drawn, another column first each time; then by lot,
        or the order of one site's values would be in the next one's.
        """
        turn = self._sites % max(len(self._before), 1)
        keys = [jax.random.bits(tie_key, (self._num_records,)), *self._before[turn:], *self._before[:turn]]
        if self._first is not None:
            keys.append(self._first)
        order = jnp.lexsort(keys)
        return jnp.zeros(self._num_records, order.dtype).at[order].set(jnp.arange(self._num_records))


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
