"""Who computes on a party's blocks of records: this process, or workers of the party's own.

What is computed so is a pure function of some rows, and what it gives is added up in integers, or taken in the rows'
order. So a result is the same, bit for bit, whoever computes it, in whatever parts, and a part whose worker is lost is
computed again elsewhere. Noise, ledgers and links to other parties never leave the process that asks.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, final

import numpy as np

from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.open_files import Rows, rows_on_disk

__all__ = ["HERE", "Block", "Columns", "Movable", "Part", "Workers", "part_rows", "total", "workers_of"]

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
        """Returns itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """See `close`."""
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
    from vertinumpyro.core.dask_workers import DaskWorkers  # here, because most users need none of it

    return DaskWorkers.of(given)


@final
class Columns(dict[str, np.ndarray]):
    """A party's encoded columns, each [N], and who computes on blocks of them. Secret."""

    def __init__(self, arrays: Mapping[str, np.ndarray], workers: Workers = HERE) -> None:
        super().__init__(arrays)
        self.workers = workers

    def __repr__(self) -> str:
        """Shows names alone."""
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
        """Shows nothing secret: clusters log what they are given."""
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
