"""How the process of a group starts: with the libraries read already, where that is safe.

A process that is spawned reads JAX, torch and this library anew, for some seconds of processor each. On Linux a server
reads them once, without a table and before any of them begins a thread, and every process is forked from it. Nothing
secret is made while modules are read: keys and noise come from the operating system, in the process that uses them.
The generators that a module has of its own (NumPy's, torch's, Python's) are seeded anew in every process.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import random
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError

__all__ = ["LIBRARIES", "check_sendable", "started"]

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_READ_AT_IMPORT = ("CUDA", "JAX", "LD_", "MKL", "NUM", "OMP", "OPENBLAS", "PYTHON", "TORCH", "XLA")
_READ_AHEAD = "vertinumpyro.transport.read_ahead"
LIBRARIES = "VERTINUMPYRO_LIBRARIES"  # names them in the environment; what the user names there is read besides
_served: list[Mapping[str, str]] = []  # the server's settings, once there is one


def started(run: Callable[..., None], arguments: tuple[Any, ...], libraries: Sequence[str]) -> Any:
    """Start `run(*arguments)` in a process of its own, which ends with this one; return its handle.

    :param libraries: modules that it will import, none of which may begin a thread or read a file of anybody's.
    """
    # OpenBLAS's threads spin while they wait for each other, and the processes share the machine
    with _no_main(), _set(_BLAS_THREADS, os.environ.get(_BLAS_THREADS, "1")):
        environment = dict(os.environ)
        context: Any = multiprocessing.get_context("spawn")
        if sys.platform == "linux":
            settings = {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}
            if not _served:
                multiprocessing.set_forkserver_preload([_READ_AHEAD])
                _served.append(settings)
            if _served[0] == settings:
                context = multiprocessing.get_context("forkserver")
        process = context.Process(target=_run, args=(environment, run, arguments), daemon=True)
        with _set(LIBRARIES, " ".join((__name__, *environment.get(LIBRARIES, "").split(), *libraries))):
            process.start()
    return process


def check_sendable(name: str, given: Any) -> None:
    """Refuses what a new process could not be given, before any is started.

    :param name: whose process it is.
    :param given: functions and data; functions and classes travel by their names.
    :raises ArgumentError: says which function or class cannot be found by its name, and what to do.
    """
    try:
        _ByName(name).dump(given)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"{name}: what its process is given cannot be sent to one ({type(error).__name__}): give functions of a "
            "module and plain settings, no open files, locks or generators"
        ) from None


@final
class _ByName(pickle.Pickler):
    """Writes nowhere, and looks at each function and class."""

    def __init__(self, name: str) -> None:
        super().__init__(_Nowhere(), protocol=5, buffer_callback=lambda _: None)
        self._name = name

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (FunctionType, type)):
            self._check(value.__module__, value.__qualname__)
        return NotImplemented

    def _check(self, module: str | None, name: str) -> None:
        if "<" in name:
            raise ArgumentError(
                f"{self._name}: its process cannot import {name!r}, which is made while {module} runs: give a "
                "function that stands in a module by itself, and its arguments by functools.partial"
            )
        if module in ("__main__", "__mp_main__"):
            raise ArgumentError(
                f"{self._name}: its process cannot import {name!r} from the script or notebook that is running "
                "(__main__): move it to a module, a .py file beside the script, and import it from there"
            )


class _Nowhere(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


def _run(environment: Mapping[str, str], run: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """In the new process: the environment is that of now, not of when the server began."""
    os.environ.clear()
    os.environ.update(environment)
    _reseed()
    run(*arguments)


def _reseed() -> None:
    """Every generator that a module read ahead may have: a fork has its state, alike in all processes."""
    random.seed()
    np.random.seed()
    if torch := sys.modules.get("torch"):
        torch.manual_seed(secrets.randbits(63))


@contextlib.contextmanager
def _set(name: str, value: str):
    """The environment with this variable, for a process that begins meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _no_main():
    """New processes import the starter's main script again unless it seems to have no file; they need not."""
    main = sys.modules["__main__"]
    saved = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        for name in saved:
            setattr(main, name, None)
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)
