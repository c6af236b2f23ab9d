"""Saving and loading pytrees of arrays with a little public metadata, as one `.npz` file without pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vertinumpyro.core.errors import ArgumentError

__all__ = ["load_tree", "read_metadata", "save_tree"]

_METADATA = "metadata"


def save_tree(path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write a pytree's leaves and JSON metadata, atomically: a reader sees the old file or the new one."""
    path = Path(path)
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    leaves = {jax.tree_util.keystr(key): np.asarray(leaf) for key, leaf in named}
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as stream:
        np.savez(stream, **{_METADATA: np.array(json.dumps(metadata)), **leaves})  # pyright: ignore[reportArgumentType]
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON metadata alone.

    :raises ArgumentError: if there is no such file, or it was not written by `save_tree`.
    """
    with _open(path) as stored:
        return json.loads(str(stored[_METADATA]))


def load_tree(path: str | os.PathLike[str], like: Any) -> Any:
    """The stored leaves in the structure of `like`.

    :raises ArgumentError: if names or shapes differ: the file is of another model, guide or optimiser.
    """
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    with _open(path) as stored:
        names = [jax.tree_util.keystr(key) for key, _ in named]
        if sorted(names) != sorted(set(stored.files) - {_METADATA}):
            raise ArgumentError(f"{Path(path).name} was saved for another model, guide or optimizer")
        leaves = [stored[name] for name in names]
    for name, leaf, (_, expected) in zip(names, leaves, named, strict=True):
        if leaf.shape != np.shape(expected):
            raise ArgumentError(
                f"{Path(path).name} holds {name} of shape {leaf.shape}, and this model needs {np.shape(expected)}"
            )
    return jax.tree_util.tree_unflatten(structure, [jax.numpy.asarray(leaf) for leaf in leaves])


def _open(path: str | os.PathLike[str]) -> Any:
    try:
        stored = np.load(Path(path), allow_pickle=False)
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {Path(path).name}; check the path") from None
    except (OSError, ValueError):
        raise ArgumentError(f"{Path(path).name} is not a file that this library saved") from None
    if _METADATA not in getattr(stored, "files", ()):
        raise ArgumentError(f"{Path(path).name} is not a file that this library saved")
    return stored
