"""What public choices and posteriors are when they are pickled: their fields, without compiled programs.

pickle writes a function down as the name by which its module has it. A model that has no such name can be copied, and
`cloudpickle` writes it as code, which joblib's and Dask's processes use; pickle alone ends with an error about an
attribute of some frame. So whoever holds functions of the user looks first, and says which one it is.

Short because `privacy` speaks it, which may not know JAX.
"""

from __future__ import annotations

import dataclasses
import functools
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from vertinumpyro.core.errors import ArgumentError

_OF_OTHERS = ("cloudpickle", "_dill", "copy")  # modules that take functions as they are


def public_state(instance: Any, **instead: Any) -> dict[str, Any]:
    """A dataclass's fields for `__getstate__`, with others in the place of some; what is cached beside them stays."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)} | instead


def require_names(owner: str, functions: Mapping[str, Any]) -> None:
    """Refuses functions that pickle has no name for, unless it is not pickle that asks.

    :raises ArgumentError: names the argument, the function and what to do.
    """
    if _others_ask():
        return
    for name, function in functions.items():
        try:
            pickle.dumps(function)
        except Exception:  # what pickle raises differs by version and by what it met
            raise ArgumentError(
                f"{name}={_named(function)}: pickle cannot write it down, so neither this {owner}. Define it by def at "
                "the top of a module, or pickle with cloudpickle; a posterior's save(path) writes no function at all"
            ) from None


def _others_ask() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").rpartition(".")[2] in _OF_OTHERS:
            return True
        frame = frame.f_back
    return False


def _named(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)
