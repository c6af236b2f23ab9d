"""Rehearsals in which one process holds all numbers and hands them out: how they leave a JAX program and come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.secure.backend import AnyArray

__all__ = ["by_party", "handed_out"]

Arrays = Mapping[str, Any]


def handed_out(
    run: Callable[[list[dict[str, np.ndarray]]], np.ndarray],
    num_values: int,
    parties: Sequence[Arrays],
    common: Arrays,
    noise_shares: AnyArray,
) -> jax.Array:
    """What `run` computes from the parties' inputs, int64 `[num_values]`, inside a JAX program in 64-bit mode.

    :param run: takes a mapping for each party: its own arrays, the common ones, and `noise`, its part of the shares.
    """

    def outside(*halves: Any) -> np.ndarray:
        parties, common, noise = jax.tree_util.tree_map(_joined, halves)
        shares = by_party(noise, len(parties))
        inputs = [{**common, **own, "noise": share} for own, share in zip(parties, shares, strict=True)]
        return run(inputs).view(np.uint32).reshape(-1, 2)

    out = jax.ShapeDtypeStruct((num_values, 2), jnp.uint32)
    arguments = list(parties), dict(common), jnp.asarray(noise_shares, jnp.int64)
    result = jax.pure_callback(outside, out, *jax.tree_util.tree_map(_halves, arguments))
    return jax.lax.bitcast_convert_type(result, jnp.int64)


def _halves(array: jax.Array) -> jax.Array:
    """Integers as pairs of 32 bits: a callback may run in a thread without 64-bit mode, which would cut them in two."""
    array = jnp.asarray(array)
    return array if array.dtype == bool else jax.lax.bitcast_convert_type(array.astype(jnp.int64), jnp.uint32)


def _joined(halves: Any) -> np.ndarray:
    """What `_halves` was given."""
    halves = np.ascontiguousarray(halves)
    return halves if halves.dtype == bool else halves.view(np.int64)[..., 0]


def by_party(rows: AnyArray, num_parties: int) -> list[np.ndarray]:
    """Rows dealt out in turn and added up, modulo 2^64: one vector for each party."""
    rows = np.asarray(rows)
    return [rows[rank::num_parties].sum(axis=0, dtype=np.int64) for rank in range(num_parties)]
