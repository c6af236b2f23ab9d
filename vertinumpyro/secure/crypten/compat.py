"""The only place that imports CrypTen and torch, and what it takes to use CrypTen 0.4.1 safely and today.

- Its ONNX reader imports a private module that newer torch releases do not have. Nothing here reads ONNX, so an
  empty module stands in.
- Its metadata asks for the withdrawn distribution `sklearn`; the extra `crypten` pins that to its last empty
  release, beside the real scikit-learn.
- Its randomness is replaced (see `keystream`), and so are its channel and its dealer.

Short because nothing else may import them.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

from vertinumpyro.core.errors import BackendError

_PRIVATE = "torch.onnx._internal.registration"
MISSING = "the backend 'crypten' needs CrypTen: pip install 'vertinumpyro[crypten]'"
_VERSION = "0.4.1"


def is_installed() -> bool:
    """Whether CrypTen and torch are there; imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("crypten", "torch"))


def load() -> tuple[Any, Any]:
    """(torch, crypten).

    :raises BackendError: they are not installed, or CrypTen is another release than the one whose inner parts
        are replaced here.
    """
    if not is_installed():
        raise BackendError(MISSING)
    torch = importlib.import_module("torch")
    if _PRIVATE not in sys.modules and importlib.util.find_spec(_PRIVATE) is None:
        stand_in = types.ModuleType(_PRIVATE)
        stand_in.registry = None  # type: ignore[attr-defined]
        sys.modules[_PRIVATE] = stand_in
    crypten = importlib.import_module("crypten")
    if crypten.__version__ != _VERSION:
        raise BackendError(f"CrypTen {crypten.__version__} is installed; the backend needs {_VERSION}")
    return torch, crypten


def part(name: str) -> Any:
    """A module inside CrypTen, after `load`."""
    return importlib.import_module(f"crypten.{name}")
