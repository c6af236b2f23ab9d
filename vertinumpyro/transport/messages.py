"""Public words and arrays as one message: a `.npz` without pickles and without compression."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np

from vertinumpyro.core.errors import BackendError

__all__ = ["pack", "unpack"]

_WORDS = "words"


def pack(words: dict[str, Any], **arrays: np.ndarray) -> bytes:
    """JSON words and named arrays as bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{_WORDS: np.array(json.dumps(words)), **arrays})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(message: bytes | bytearray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `pack` was given.

    :raises BackendError: it is something else, or would be larger than it was sent: then nothing of it is read.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(message)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("compressed")
        with np.load(io.BytesIO(message), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != _WORDS}
            return dict(json.loads(str(stored[_WORDS]))), arrays
    except (ValueError, TypeError, KeyError, EOFError, OSError, MemoryError, zipfile.BadZipFile):
        raise BackendError("a message is not what this version writes; run one version everywhere") from None
