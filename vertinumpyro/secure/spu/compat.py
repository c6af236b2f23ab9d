"""The only place that imports SPU."""

from __future__ import annotations

import importlib
import importlib.util
from importlib import metadata
from typing import Any

from vertinumpyro.core.errors import BackendError

__all__ = ["MISSING", "is_installed", "load"]

MISSING = "the backend 'spu' needs SPU 0.9.5, which stops at jax 0.4.34: pip install 'vertinumpyro[spu]'"
_VERSION = "0.9.5"


def is_installed() -> bool:
    """Whether SPU is there; does not import it."""
    return importlib.util.find_spec("spu") is not None


def load() -> tuple[Any, Any, Any]:
    """(spu, its library, its compiler front end).

    :raises BackendError: SPU is not installed, or another release than the one whose arithmetic the clip's proof and
        the tests speak of.
    """
    if not is_installed():
        raise BackendError(MISSING)
    version = metadata.version("spu")
    if version != _VERSION:
        raise BackendError(f"SPU {version} is installed; the backend needs {_VERSION}")
    spu = importlib.import_module("spu")
    return spu, importlib.import_module("spu.libspu"), importlib.import_module("spu.utils.frontend")
