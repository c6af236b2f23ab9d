"""Named arrays with a little public metadata in one `.npz` file: written in one step, read without pickles."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vertinumpyro.core.durable_files import replaced
from vertinumpyro.core.errors import ArgumentError

__all__ = ["load_arrays", "read_metadata", "save_arrays", "write_arrays"]

_METADATA = "metadata"


def save_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    *,
    private: bool = False,
) -> None:
    """Write arrays and JSON metadata, atomically: a reader sees the old file or the new one.

    :param private: nobody but its owner may read it, at any moment.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    with replaced(path, temporary, private=private):
        write_arrays(temporary, arrays, metadata)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write them in place, with the mode that the file has; on disk when this returns."""
    with path.open("wb") as stream:
        np.savez(stream, **{_METADATA: np.array(json.dumps(metadata)), **arrays})  # pyright: ignore[reportArgumentType]
        stream.flush()
        os.fsync(stream.fileno())


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON metadata alone.

    :raises ArgumentError: if there is no such file, or it was not written by `save_arrays`.
    """
    return _read(path, only_metadata=True)[0]


def load_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays.

    :raises ArgumentError: if there is no such file, it is damaged, or it was not written by `save_arrays`.
    """
    return _read(path, only_metadata=False)


def _read(path: str | os.PathLike[str], *, only_metadata: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    name = Path(path).name
    try:
        with np.load(Path(path), allow_pickle=False) as stored:
            metadata = json.loads(str(stored[_METADATA]))
            wanted = () if only_metadata else set(stored.files) - {_METADATA}
            return metadata, {key: stored[key] for key in wanted}
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {name}; check the path") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise ArgumentError(f"{name} is not a file that this library saved") from None
