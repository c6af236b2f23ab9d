"""Pytrees of arrays under public names, and back: what a run stores, and a saved posterior.

Short because the files themselves are written by `core.stored_arrays`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.stored_arrays import load_arrays, read_metadata, save_arrays

__all__ = ["as_numbers", "from_numbers", "load_tree", "read_metadata", "save_tree", "tree_arrays", "tree_of"]


def as_numbers(leaf: Any) -> np.ndarray:
    """An array as files and messages hold it: of typed keys their numbers."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def from_numbers(numbers: np.ndarray, like: Any) -> jax.Array:
    """The array that `as_numbers` took apart, which was of the kind of `like`."""
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(numbers), impl=jax.random.key_impl(like))
    return jnp.asarray(numbers)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def tree_arrays(tree: Any) -> dict[str, np.ndarray]:
    """A pytree's leaves by their paths."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(key): as_numbers(leaf) for key, leaf in named}


def tree_of(stored: Mapping[str, np.ndarray], like: Any, name: str) -> Any:
    """The stored leaves in the structure of `like`.

    :param name: the file's, for errors.
    :raises ArgumentError: if names or shapes differ: the file is of another model, guide or optimiser.
    """
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(key) for key, _ in named]
    if sorted(names) != sorted(stored):
        raise ArgumentError(f"{name} was saved for another model, guide or optimizer")
    leaves = []
    for key, (_, expected) in zip(names, named, strict=True):
        found, needed = stored[key], np.shape(as_numbers(expected))
        if found.shape != needed:
            raise ArgumentError(f"{name} holds {key} of shape {found.shape}, and this model needs {needed}")
        leaves.append(from_numbers(found, expected))
    return jax.tree_util.tree_unflatten(structure, leaves)


def save_tree(path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write a pytree's leaves and JSON metadata, atomically: a reader sees the old file or the new one."""
    save_arrays(path, tree_arrays(tree), metadata)


def load_tree(path: str | os.PathLike[str], like: Any) -> Any:
    """What `save_tree` wrote, in the structure of `like`; raises as `tree_of`."""
    return tree_of(load_arrays(path)[1], like, Path(path).name)
