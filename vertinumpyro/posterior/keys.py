"""The key of a model's own randomness, checked by type."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import ArgumentError

__all__ = ["checked_key"]


def checked_key(rng_key: Any) -> jax.Array:
    """The key as uint32 numbers, which every NumPyro release takes and a file can hold; typed keys give theirs.

    :raises ArgumentError: it is a seed, several keys, or something else than a key of jax's present generator.
    """
    if isinstance(rng_key, jax.Array | np.ndarray):
        typed = jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
        numbers = jax.random.key_data(rng_key) if typed else jnp.asarray(rng_key)
        if numbers.dtype == jnp.uint32 and numbers.shape == compat.random_key(0).shape:
            return numbers
    raise ArgumentError(f"rng_key={shown(rng_key)} is no key; give one, jax.random.PRNGKey(seed)")
