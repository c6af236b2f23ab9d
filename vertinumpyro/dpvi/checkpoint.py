"""Saving and loading pytrees of arrays with a little public metadata, as one `.npz` file without pickles."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.stored_arrays import load_arrays, read_metadata, save_arrays

__all__ = ["load_tree", "read_metadata", "save_tree"]


def save_tree(path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write a pytree's leaves and JSON metadata, atomically: a reader sees the old file or the new one."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    save_arrays(path, {jax.tree_util.keystr(key): np.asarray(leaf) for key, leaf in named}, metadata)


def load_tree(path: str | os.PathLike[str], like: Any) -> Any:
    """The stored leaves in the structure of `like`.

    :raises ArgumentError: if names or shapes differ: the file is of another model, guide or optimiser.
    """
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    names = [jax.tree_util.keystr(key) for key, _ in named]
    _, stored = load_arrays(path)
    if sorted(names) != sorted(stored):
        raise ArgumentError(f"{Path(path).name} was saved for another model, guide or optimizer")
    leaves = [stored[name] for name in names]
    for name, leaf, (_, expected) in zip(names, leaves, named, strict=True):
        if leaf.shape != np.shape(expected):
            raise ArgumentError(
                f"{Path(path).name} holds {name} of shape {leaf.shape}, and this model needs {np.shape(expected)}"
            )
    return jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves])
