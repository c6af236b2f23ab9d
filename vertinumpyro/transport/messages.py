"""Public words and arrays as one message: a `.npz` without pickles."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

__all__ = ["pack", "unpack"]

_WORDS = "words"


def pack(words: dict[str, Any], **arrays: np.ndarray) -> bytes:
    """JSON words and named arrays as bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, **{_WORDS: np.array(json.dumps(words)), **arrays})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def unpack(message: bytes | bytearray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `pack` was given."""
    with np.load(io.BytesIO(message), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files if name != _WORDS}
        return json.loads(str(stored[_WORDS])), arrays
