"""Workers on a Dask cluster: processes of this machine that are started here, or a cluster that the party has.

Dask because it is the distributed engine that a NumPy user already has, and one code runs on a laptop's cores and on
an existing cluster. The cluster is the party's own and sees its columns. Processes that are started here take orders
over TLS with a certificate that only they and this process have; to an existing cluster the connection is as its
address says, and Dask's own settings have the certificates of a `tls://` one.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, final

from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import ArgumentError, BackendError, VertinumpyroError
from vertinumpyro.core.open_files import ElsewhereError
from vertinumpyro.core.version import __version__
from vertinumpyro.core.workers import Movable, Workers

__all__ = ["DaskWorkers", "connected"]

CONNECT_S = 10
START_S = 60  # of a worker that starts, or starts again
_POLL_S = 5
_SETTINGS: dict[str, Any] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,  # which stops the work a hundred times a second
    "distributed.worker.memory.target": False,  # nor are columns written to a disk, where others may read them
    "distributed.worker.memory.spill": False,
}
_ENVIRON = "distributed.nanny.pre-spawn-environ"
# Dask has its workers give every freed array back to the system at once: the work then takes up to three times as long
_MEMORY = {"MALLOC_TRIM_THRESHOLD_": 2**28, "MALLOC_MMAP_THRESHOLD_": 2**25}
_LOOPBACK = "127.0.0.1"
_AHEAD = 2  # parts for each worker that wait or run, so that none is idle

_Made = TypeVar("_Made")

_INSTALL = "this needs dask: install it with `pip install 'vertinumpyro[dask]'`"


def connected(cluster: Any, name: str) -> tuple[Any, bool]:
    """A client of a cluster, and whether it is ours to close.

    :param cluster: a `distributed.Client`, or a scheduler's address.
    :param name: of the argument, for errors.
    :raises ArgumentError: Dask is missing, nobody answers, or it is something else.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ArgumentError(_INSTALL) from error
    if isinstance(cluster, str):
        try:
            return Client(cluster, set_as_default=False, timeout=CONNECT_S), True
        except (OSError, ValueError, TypeError) as error:  # TypeError: a tls address without certificates
            raise ArgumentError(
                f"{name}: no Dask scheduler answers at {shown(cluster)} ({type(error).__name__}); start it, or correct "
                "the address; a tls:// one needs the certificates in Dask's settings"
            ) from None
    if not isinstance(cluster, Client) or cluster.asynchronous:
        raise ArgumentError(f"{name} must be a distributed.Client or the address of a scheduler")
    return cluster, False


def _started(count: int) -> tuple[Any, Any]:
    """A client and its cluster of so many processes on this machine, which end with this one.

    Nobody else can give them orders: they take TLS with a certificate that stays in memory here, on the loopback alone,
    and have no pages that tell what they do. A party's own process may start them, though Python forbids daemons
    children, who would outlive them: these leave when the process does.

    :raises ArgumentError: Dask is missing, or they cannot be started.
    """
    try:
        from dask import config
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ArgumentError(_INSTALL) from error
    options: dict[str, Any] = {"n_workers": count, "threads_per_worker": 1, "host": _LOOPBACK}
    options |= {"dashboard_address": f"{_LOOPBACK}:0", "silence_logs": logging.ERROR}
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # see the docstring
    try:
        with config.set(_SETTINGS), config.set({_ENVIRON: {**config.get(_ENVIRON), **_MEMORY}}):
            cluster: Any = LocalCluster(security=True, **options)
    except (OSError, RuntimeError) as error:
        raise ArgumentError(
            f"workers={count}: the processes cannot be started ({type(error).__name__}); each runs the script that "
            'starts it once more, which must do nothing then: put its work under `if __name__ == "__main__":`'
        ) from None
    return Client(cluster, set_as_default=False), cluster


@final
class DaskWorkers(Workers):
    """Any number of them; each part goes to one, and to another where that is lost.

    :param client: of the cluster.
    :param owned: what `close` ends, the client last.
    :raises ArgumentError: it has no workers, or they run another version of the library.
    """

    def __init__(self, client: Any, owned: tuple[Any, ...] = ()) -> None:
        self._client, self._owned, self._moves = client, owned, False
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of(cls, given: Any) -> DaskWorkers:
        """From a number of processes, an address or a client.

        :raises ArgumentError: as the class and `connected`.
        """
        if not isinstance(given, int):
            client, owned = connected(given, "workers")
            return cls(client, (client,) if owned else ())
        client, cluster = _started(given)
        return cls(client, (client, cluster))

    def _check(self) -> None:
        from distributed import TimeoutError as Late  # Python's own from 3.11 on

        try:
            self._client.wait_for_workers(1, timeout=START_S)
        except Late:
            raise ArgumentError("workers: the Dask cluster has no workers; start some") from None
        try:
            found = set(self._client.run(_version).values())
        except Exception as error:
            raise ArgumentError(
                f"workers: vertinumpyro cannot be imported on the Dask cluster ({type(error).__name__}); install it "
                "wherever a worker runs"
            ) from None
        if found != {__version__}:
            raise ArgumentError(f"workers: they run vertinumpyro {sorted(found)}; run {__version__} everywhere")

    @property
    def count(self) -> int:
        """See `Workers.count`; at least 1, as lost workers may come back."""
        return max(1, sum(self._client.nthreads().values()))

    def map(self, do: Callable[[Any], _Made], parts: Iterable[Any]) -> Iterator[_Made]:
        """See `Workers.map`."""
        task, ahead = _Task(do), (1 + _AHEAD) * self.count
        waiting: deque[tuple[Movable, Any]] = deque()
        try:
            for part in parts:
                waiting.append((part, self._sent(task, part.moved() if self._moves else part)))
                if len(waiting) >= ahead:
                    yield self._made(task, *waiting.popleft())
            while waiting:
                yield self._made(task, *waiting.popleft())
        finally:
            for _, future in waiting:
                if future is not None:
                    future.cancel()

    def _sent(self, task: _Task, part: Movable | None) -> Any:
        if part is None:
            return None
        with _large_parts_are_meant():
            return self._client.submit(task, part, key=f"rows-{uuid.uuid4().hex}", pure=False)

    def _made(self, task: _Task, part: Movable, future: Any) -> Any:
        """A part's result; a part that its worker did not find is sent again with all that is in it."""
        made = _NOT_FOUND if future is None else self._awaited(future)
        if isinstance(made, _NotFound) and future is not None:
            self._moves = True  # and so are the following
            again = self._sent(task, part.moved())
            made = made if again is None else self._awaited(again)
        return task(part) if isinstance(made, _NotFound) else made

    def _awaited(self, future: Any) -> Any:
        from distributed import TimeoutError as Late

        idle = 0
        while True:
            try:
                return future.result(timeout=_POLL_S)
            except Late:
                idle = 0 if self._client.nthreads() else idle + _POLL_S
                if idle >= START_S:
                    raise BackendError(_lost("no worker is left")) from None
            except VertinumpyroError:
                raise
            except Exception as error:
                raise BackendError(_lost(type(error).__name__)) from None

    def close(self) -> None:
        """See `Workers.close`."""
        owned, self._owned = self._owned, ()
        for one in owned:
            one.close()

    def __repr__(self) -> str:
        """Shows no address."""
        return "DaskWorkers()"


def _lost(why: str) -> str:
    return (
        f"workers: the Dask cluster is lost ({why}; its log says more). What it computed is released nowhere; start "
        "it, and continue the run with resume=True (`--resume`)"
    )


def _version() -> str:
    """What a worker runs."""
    return __version__


@final
class _NotFound:
    """The answer of a worker that does not find a part's rows."""


_NOT_FOUND = _NotFound()


@final
class _Task:
    """A function as workers run it: what it raises has no value of the data, and what they log names nothing."""

    def __init__(self, do: Callable[[Any], Any]) -> None:
        self._do = do

    def __call__(self, part: Any) -> Any:
        try:
            return self._do(part)
        except ElsewhereError:
            return _NOT_FOUND
        except VertinumpyroError:
            raise
        except Exception as error:
            raise BackendError(f"a part of the rows failed at a worker: {type(error).__name__}") from None

    def __repr__(self) -> str:
        return "rows"


@contextlib.contextmanager
def _large_parts_are_meant() -> Iterator[None]:
    """Without Dask's advice on large parts, which are rows that its workers do not find."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph", category=UserWarning)
        yield
