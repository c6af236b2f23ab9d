"""One process per party, and one for the dealer: started together, wired in pairs, and stopped together.

A process that is spawned reads JAX, torch and this library anew, for some seconds of processor each. On Linux a server
reads them once (`preload`), without a table and before any of them begins a thread, and every process is forked from
it. No process is forked from the starting one: JAX and torch hold threads. Nothing secret is made while modules are
read: keys and noise come from the operating system, in the process that uses them. The generators that a module has of
its own (NumPy's, torch's, Python's) are seeded anew in every process.

The wires are unnamed socket pairs that the starting process makes, hands over and closes, so there is no port, and
nobody else can connect. Every process has a control wire to the starting one; when that breaks, the process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import multiprocessing
import os
import pickle
import queue
import random
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from types import FunctionType
from typing import Any, final

import numpy as np

from vertinumpyro.core import errors
from vertinumpyro.core.errors import ArgumentError, BackendError, VertinumpyroError
from vertinumpyro.transport.communicator import Communicator
from vertinumpyro.transport.links import Link, PeerError, SocketLink, pack, unpack

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_READ_AT_IMPORT = ("CUDA", "JAX", "LD_", "MKL", "NUM", "OMP", "OPENBLAS", "PYTHON", "TORCH", "XLA")
_PRELOAD = "vertinumpyro.transport.preload"
LIBRARIES = "VERTINUMPYRO_LIBRARIES"  # names them in the environment; what the user names there is read besides
_served: list[Mapping[str, str]] = []  # the server's settings, once there is one


def start_process(run: Callable[..., None], arguments: tuple[Any, ...], libraries: Sequence[str]) -> Any:
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
                multiprocessing.set_forkserver_preload([_PRELOAD])
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


_GRACE_S = 2.0  # for the others to say what they saw, once one has failed
_STARTER = "the process that started this one"

CONTROL_BYTES = 2**31
"""The largest message between a process and the one that started it. They trust each other, and a rehearsal hands whole
tables over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A process to start: `run(communicator, *arguments)`, importable by name.

    :ivar name: for errors, say "party 'clinic'".
    :ivar libraries: heavy modules that it will import, none of which begins a thread when it is read.
    """

    name: str
    run: Callable[..., None]
    arguments: tuple[Any, ...] = ()
    libraries: tuple[str, ...] = ()


@final
class GroupCommunicator(Communicator):
    """The place of a process that another one started: besides links, a control wire to that one."""

    def __init__(
        self, rank: int, num_parties: int, links: Mapping[int, Link], control: SocketLink, timeout_s: float
    ) -> None:
        super().__init__(rank, num_parties, links, timeout_s)
        self._control = control
        self._commands: queue.Queue[bytearray] = queue.Queue()
        self.verdict = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def command(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next command; waits for it."""
        return unpack(self._commands.get())

    def reply(self, words: Mapping[str, Any], **arrays: np.ndarray) -> None:
        """Answer the starting process. Whatever goes here leaves the party: released results and public facts."""
        self._control.send(pack(dict(words), **arrays))

    def _listen(self) -> None:
        """Commands to the queue; "stop" closes the links, and a broken control wire ends the process at once."""
        while True:
            try:
                message = self._control.receive(limit=CONTROL_BYTES)
            except BackendError:
                os._exit(1)
            words, _ = unpack(message)
            if "stop" in words:
                self.verdict = words["stop"]
                for link in self.links.values():
                    link.close()
            self._commands.put(message)


@final
class ProcessGroup:
    """The processes, from the side that started them. Use as a context manager.

    :param members: the processes, by number: the parties, then the helpers. Every two of them are wired.
    :param num_parties: how many of them are parties.
    :param timeout_s: how long a process waits for another.
    :raises ArgumentError: a process could not find what it is to run by its name; nothing was started.
    """

    def __init__(self, members: Sequence[Member], num_parties: int, timeout_s: float) -> None:
        for member in members:
            check_sendable(member.name, (member.run, member.arguments))
        self._names = [member.name for member in members]
        self._timeout_s = timeout_s
        self._controls: list[SocketLink] = []
        self._processes: list[Any] = []
        self._failed: VertinumpyroError | None = None
        pairs = [(pair, socket.socketpair()) for pair in itertools.combinations(range(len(members)), 2)]
        libraries = list(dict.fromkeys(name for m in members for name in (m.run.__module__, *m.libraries)))
        for rank, member in enumerate(members):
            ours, theirs = socket.socketpair()
            ends = {pair[1 - pair.index(rank)]: s[pair.index(rank)] for pair, s in pairs if rank in pair}
            names = {other: self._names[other] for other in ends}
            place = (rank, num_parties, ends, names, theirs, timeout_s)
            self._processes.append(start_process(_main, (member.run, member.arguments, *place), libraries))
            theirs.close()
            self._controls.append(SocketLink(ours, member.name, timeout_s))
        for _, sockets in pairs:
            for end in sockets:
                end.close()

    @property
    def pids(self) -> list[int]:
        """Process numbers, by member."""
        return [process.pid for process in self._processes]

    def command(self, rank: int, words: dict[str, Any], **arrays: np.ndarray) -> None:
        """Send a command to one process."""
        if self._failed is not None:
            raise self._failed
        try:
            self._controls[rank].send(pack(words, **arrays))
        except PeerError:
            self._fail(rank)

    def replies(
        self, ranks: Sequence[int], *, within_s: float | None = None
    ) -> dict[int, tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """One reply from each of these processes.

        :param within_s: how long to wait without any reply; None takes twice the processes' own timeout.

        :raises BackendError: one failed; the message names it, and the others were stopped. An error of the library
            that a process met in its own data or settings comes as what it is.
        """
        if self._failed is not None:
            raise self._failed
        found: dict[int, tuple[dict[str, Any], dict[str, np.ndarray]]] = {}
        patience = 2 * self._timeout_s if within_s is None else within_s
        deadline = time.monotonic() + patience
        while set(ranks) - set(found):
            ready = wait(
                [*self._controls_of(set(ranks) - set(found)), *self._sentinels(without={*found, *self._done(ranks)})],
                max(0.0, deadline - time.monotonic()),
            )
            if not ready:
                self._fail(next(iter(set(ranks) - set(found))))
            for rank, control in enumerate(self._controls):
                if control in ready:
                    reply = self._read(rank)
                    if reply is None or "error" in reply[0]:
                        self._fail(rank, reply)
                    else:
                        found[rank] = reply
                        deadline = time.monotonic() + patience
            ended = [rank for rank, process in enumerate(self._processes) if process.sentinel in ready]
            for rank in ended:
                self._processes[rank].join(_GRACE_S)  # its pipe closes a moment before there is an exit code
            dead = sorted(set(ended) - self._done(ranks))
            if dead and not any(self._controls[rank] in ready for rank in dead):
                self._fail(dead[0])
        return found

    def close(self) -> None:
        """End all processes; the polite way first."""
        for control in self._controls:
            with contextlib.suppress(BackendError):
                control.send(pack({"stop": "the run is over"}))
        deadline = time.monotonic() + _GRACE_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for control in self._controls:
            control.close()
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def _controls_of(self, ranks: set[int]) -> list[Any]:
        return [self._controls[rank] for rank in ranks]

    def _done(self, asked: Sequence[int]) -> set[int]:
        """Those who were asked nothing and have ended well, as a helper does once a party that answered is gone.

        Whoever needs one of them longer sees its links end, and says so.
        """
        return {rank for rank, process in enumerate(self._processes) if rank not in asked and process.exitcode == 0}

    def _sentinels(self, without: Container[int]) -> list[int]:
        """Of the processes that may not end now; one that has answered may."""
        return [process.sentinel for rank, process in enumerate(self._processes) if rank not in without]

    def _read(self, rank: int) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        try:
            return unpack(self._controls[rank].receive(limit=CONTROL_BYTES))
        except BackendError:
            return None

    def _fail(self, rank: int, reply: Any = None) -> None:
        """Find who failed first, stop everyone, and raise."""
        evidence = {rank: reply} if reply else {}
        deadline = time.monotonic() + _GRACE_S
        open_ranks = [other for other in range(len(self._controls)) if other not in evidence]
        while open_ranks and time.monotonic() < deadline:
            ready = wait(self._controls_of(set(open_ranks)), max(0.0, deadline - time.monotonic()))
            for other in [other for other in open_ranks if self._controls[other] in ready]:
                found = self._read(other)
                if found is None:
                    open_ranks.remove(other)
                elif "error" in found[0]:
                    evidence[other] = found
                    open_ranks.remove(other)
            if any(not found[0]["peer"] for found in evidence.values()):
                break
        self._failed = self._verdict(rank, evidence)
        for control in self._controls:
            with contextlib.suppress(BackendError):
                control.send(pack({"stop": str(self._failed)}))
        self.close()
        raise self._failed

    def _verdict(self, rank: int, evidence: dict[int, Any]) -> VertinumpyroError:
        """The first cause: an error of its own, then a process that died without a word, then a silent one."""
        said = {other: words for other, (words, _) in evidence.items()}
        for other, words in said.items():
            if not words["peer"]:
                return _as_error(self._names[other], words)
        for other, process in enumerate(self._processes):
            process.join(0.1)
            if process.exitcode is not None and other not in said:
                how = f"killed by signal {-process.exitcode}" if process.exitcode < 0 else "ended"
                return BackendError(f"{self._names[other]} was {how}, so the run stopped{self._saw(said)}")
        if said:
            return BackendError(f"the run stopped{self._saw(said)}")
        return BackendError(f"{self._names[rank]} did not answer within {2 * self._timeout_s:g} s, so the run stopped")

    def _saw(self, said: dict[int, Any]) -> str:
        return "".join(f"; {self._names[other]} saw: {words['error']}" for other, words in said.items())

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _as_error(name: str, words: dict[str, Any]) -> VertinumpyroError:
    """The library's own error of the same kind, with the process's name; other errors without their text."""
    kind = getattr(errors, words["kind"], None)
    text = f"{name}: {words['error']}"
    return kind(text) if isinstance(kind, type) and issubclass(kind, VertinumpyroError) else BackendError(text)


def _main(
    run: Callable[..., None],
    arguments: tuple[Any, ...],
    rank: int,
    num_parties: int,
    ends: Mapping[int, socket.socket],
    names: Mapping[int, str],
    control: socket.socket,
    timeout_s: float,
) -> None:
    """In the new process: run the member, report how it ended, and never print a traceback, which could quote data."""
    links = {other: SocketLink(end, names[other], timeout_s) for other, end in ends.items()}
    wire = SocketLink(control, _STARTER, timeout_s)
    wire.wait_forever()  # commands come when they come
    communicator = GroupCommunicator(rank, num_parties, links, wire, timeout_s)
    try:
        run(communicator, *arguments)
    except Exception as error:
        own = isinstance(error, VertinumpyroError)
        text = str(error) if own else f"failed with {_where(error)}; its text could quote data and is not shown"
        with contextlib.suppress(BackendError):
            communicator.reply(
                {
                    "error": communicator.verdict or text,
                    "kind": type(error).__name__,
                    "peer": isinstance(error, PeerError),
                }
            )
        for link in links.values():
            link.close()
        os._exit(1)


def _where(error: Exception) -> str:
    """The kind of an error, and the last line of this library that it passed: nothing of its text."""
    here = Path(__file__).parents[1]
    lines = [f for f in traceback.extract_tb(error.__traceback__) if here in Path(f.filename).parents]
    place = f" at {Path(lines[-1].filename).name}, line {lines[-1].lineno}" if lines else ""
    return type(error).__name__ + place
