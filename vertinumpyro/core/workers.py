"""Who computes on a party's blocks of records: this process, or workers of the party's own, processes started here or a
Dask cluster that it has.

What is computed so is a pure function of some rows, and what it gives is added up in integers, or taken in the rows'
order. So a result is the same, bit for bit, whoever computes it, in whatever parts, and a part whose worker is lost is
computed again elsewhere. Noise, ledgers and links to other parties never leave the process that asks.

Dask because it is the distributed engine that a NumPy user already has, and one code runs on a laptop's cores and on
an existing cluster. The cluster is the party's own and sees its columns. Processes that are started here take orders
over TLS with a certificate that only they and this process have; to an existing cluster the connection is as its
address says, and Dask's own settings have the certificates of a `tls://` one.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
import multiprocessing
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, final

import numpy as np

from vertinumpyro.core import __version__
from vertinumpyro.core.errors import ArgumentError, BackendError, VertinumpyroError
from vertinumpyro.core.files import ElsewhereError, Rows, rows_on_disk
from vertinumpyro.core.validation import shown

Block = tuple[Mapping[str, np.ndarray], ...]
"""Some rows of one or more tables' columns. Secret."""

_PARTS_EACH = 4  # of a worker's share of the rows, so that a slow one holds up a quarter of it
_MOST_ROWS = 2**20
_MOST_BYTES = 2**23  # of rows that travel

_Given = TypeVar("_Given", bound="Movable")
_Made = TypeVar("_Made")


class Movable(Protocol):
    """What a worker is given: plain data, or the place of data that it may find on its own disk."""

    def moved(self) -> Movable | None:
        """The same with all data inside, for a worker that finds none; None: only this process has it."""
        ...


class Workers(abc.ABC):
    """Computes a pure function on many parts."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """How many parts are computed at a time; 0 stands for this process alone."""

    @abc.abstractmethod
    def map(self, do: Callable[[Any], _Made], parts: Iterable[_Given]) -> Iterator[_Made]:
        """`do` of each part, in their order.

        :raises BackendError: the workers are lost; nothing was released.
        """

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 (this process has nobody to send home)
        """Sends home workers that were started here."""


@final
class _Here(Workers):
    """This process, one part after the other."""

    @property
    def count(self) -> int:
        return 0

    def map(self, do: Callable[[Any], _Made], parts: Iterable[_Given]) -> Iterator[_Made]:
        return map(do, parts)

    def __repr__(self) -> str:
        return "HERE"


HERE: Workers = _Here()
"""This process, which is the default everywhere."""


def workers_of(given: Any) -> Workers:
    """The workers that an argument or a key names: see `VerticalDataset.from_files`.

    :raises ArgumentError: there are none such; says why.
    """
    if given is None or isinstance(given, Workers):
        return HERE if given is None else given
    if isinstance(given, bool) or (isinstance(given, int) and given < 1):
        raise ArgumentError(f"workers={shown(given)} must be a number of processes from 1 on, or a Dask cluster")

    return DaskWorkers.of(given)


@final
class Columns(dict[str, np.ndarray]):
    """A party's encoded columns, each [N], and who computes on blocks of them. Secret."""

    def __init__(self, arrays: Mapping[str, np.ndarray], workers: Workers = HERE) -> None:
        super().__init__(arrays)
        self.workers = workers

    def __repr__(self) -> str:
        return f"Columns({', '.join(self)})"


@final
class Part:
    """Some rows of some tables. Pickled, the place of rows in findable files, and the others themselves. Secret."""

    def __init__(self, tables: Sequence[Mapping[str, np.ndarray]], rows: slice, *, moved: bool = False) -> None:
        self._tables, self._rows, self._moved = tables, rows, moved

    def blocks(self, at_a_time: int) -> Iterator[Block]:
        """The rows, so many at a time.

        :raises ElsewhereError: they are not on this machine.
        """
        for start in range(self._rows.start, self._rows.stop, at_a_time):
            rows = slice(start, min(start + at_a_time, self._rows.stop))
            yield tuple({name: column[rows] for name, column in table.items()} for table in self._tables)

    def moved(self) -> Part:
        """See `Movable.moved`."""
        return Part(self._tables, self._rows, moved=True)

    def __reduce__(self) -> tuple[Any, ...]:
        packed = {id(table): self._packed_table(table) for table in self._tables}  # what stands twice, once
        return _arrived, ([packed[id(table)] for table in self._tables], self._rows.stop - self._rows.start)

    def _packed_table(self, table: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray | Rows]:
        if isinstance(table, _Arrived):
            return table.sent  # a cluster's scheduler passes on what it was sent, and need not find it
        return {name: self._packed(column[self._rows]) for name, column in table.items()}

    def _packed(self, rows: np.ndarray) -> np.ndarray | Rows:
        place = None if self._moved else rows_on_disk(rows)
        return np.ascontiguousarray(rows) if place is None else place

    def __repr__(self) -> str:
        return f"Part({self._rows.stop - self._rows.start} rows)"


def _arrived(tables: Sequence[Mapping[str, np.ndarray | Rows]], num_rows: int) -> Part:
    return Part([_Arrived(table) for table in tables], slice(0, num_rows))


@final
class _Arrived(Mapping[str, np.ndarray]):
    """A part's columns at a worker, mapped when they are first asked for: what fails there is known for what it is."""

    def __init__(self, sent: Mapping[str, np.ndarray | Rows]) -> None:
        self.sent = sent
        self._mapped: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        held = self.sent[name]
        if not isinstance(held, Rows):
            return held
        if name not in self._mapped:
            self._mapped[name] = held.array()
        return self._mapped[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sent)

    def __len__(self) -> int:
        return len(self.sent)


def total(
    do: Callable[[Iterator[Block]], list[np.ndarray]], at_a_time: int, *tables: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The sum of what `do` makes of all rows, in integers, by the workers of the first table that has some.

    :param do: from blocks of rows to integer arrays that add up over them; of no block zeros. For workers it must
        pickle, and show nothing secret where it does.
    :param at_a_time: rows of a block.
    :param tables: columns of the same records each.
    """
    workers = next((table.workers for table in tables if isinstance(table, Columns)), HERE)
    num_rows = max((len(column) for table in tables for column in table.values()), default=0)
    size = max(_part_rows(tables, num_rows, workers), 1)
    size += -size % at_a_time
    parts = (Part(tables, slice(start, min(start + size, num_rows))) for start in range(0, max(num_rows, 1), size))
    found = workers.map(functools.partial(_summed, do, at_a_time), parts)
    out = next(found)
    for more in found:
        for so_far, one in zip(out, more, strict=True):
            so_far += one
    return out


def part_rows(num_rows: int, workers: Workers) -> int:
    """How many rows a part has whose rows stay where they are."""
    return min(_MOST_ROWS, -(-num_rows // (_PARTS_EACH * workers.count)))


def _part_rows(tables: Sequence[Mapping[str, np.ndarray]], num_rows: int, workers: Workers) -> int:
    """Few parts, but enough for all workers, and none that is much to send."""
    if not workers.count:
        return num_rows
    columns = [column for table in tables for column in table.values()]
    travels = sum(column.itemsize for column in columns if rows_on_disk(column) is None)
    most = _MOST_BYTES // travels if travels else _MOST_ROWS
    return min(most, part_rows(num_rows, workers))


def _summed(do: Callable[[Iterator[Block]], list[np.ndarray]], at_a_time: int, part: Part) -> list[np.ndarray]:
    return do(part.blocks(at_a_time))


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
        owned, self._owned = self._owned, ()
        for one in owned:
            one.close()


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
