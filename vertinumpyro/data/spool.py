"""Encoded columns on disk: in files without a name, which nobody else can open and which go with the process.

Workers of the party on its own machine find them through this process, see `core.open_files`, and write there as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.open_files import OpenFile, Rows, mapped, rows_on_disk
from vertinumpyro.core.row_blocks import slices
from vertinumpyro.core.workers import HERE, Workers, part_rows

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

__all__ = ["Kept", "Slot", "Spool", "in_order"]

_FILES = 2**16


@final
class Spool:
    """A folder on a disk with room for the encoded columns: a byte to four for each value.

    :param findable: whether workers on this machine may find the files, see `core.open_files`.
    :raises ArgumentError: there is no such folder, or nothing can be written there.
    """

    def __init__(self, folder: str | Path, *, findable: bool = False) -> None:
        self._folder, self.findable = Path(folder), findable
        if not self._folder.is_dir():
            raise ArgumentError(f"spool: there is no folder {str(folder)!r}; create it, on a disk with room")
        _allow_many_files()

    def column(self, dtype: np.dtype) -> Kept:
        """A column without records yet."""
        try:
            return Kept(tempfile.TemporaryFile(dir=self._folder), dtype, self)
        except OSError as error:
            raise ArgumentError(f"spool: cannot write to {str(self._folder)!r}: {error.strerror}") from None

    def __repr__(self) -> str:
        return "Spool()"


@final
class Kept:
    """A column that grows block by block, and is then read where it lies. Secret."""

    def __init__(self, file: IO[bytes], dtype: np.dtype, spool: Spool) -> None:
        self._file, self.dtype, self._spool, self._length = file, dtype, spool, 0

    def append(self, values: np.ndarray) -> None:
        """More records; their values fit the column's type.

        :raises ArgumentError: the disk is full.
        """
        with _writing():
            self._file.write(np.ascontiguousarray(values, self.dtype).data)
        self._length += len(values)

    def reserve(self, length: int) -> Slot | None:
        """Makes room for so many records, which anybody who finds the file may put in its places.

        :returns: for a worker on this machine; None where it could not find the file.
        """
        with _writing():
            self._file.truncate(length * self.dtype.itemsize)
        self._length = length
        place = OpenFile.of(self._file) if self._spool.findable else None
        return None if place is None else Slot(place, self.dtype)

    def put(self, start: int, values: np.ndarray) -> None:
        """Records in their places, from `start` on; errors as `append`'s."""
        _put(self._file, self.dtype, start, values)

    def array(self) -> np.ndarray:
        """All records [n], mapped from the file; errors as `append`'s."""
        with _writing():
            self._file.flush()
        return mapped(self._file, self.dtype, self._length, findable=self._spool.findable)

    def __repr__(self) -> str:
        return "Kept()"


class Slot(NamedTuple):
    """A column's file, for whoever puts records in their places."""

    file: OpenFile
    dtype: np.dtype

    def put(self, start: int, values: np.ndarray) -> None:
        """As `Kept.put`.

        :raises ElsewhereError: the file is not on this machine.
        """
        with self.file.opened(write=True) as file:
            _put(file, self.dtype, start, values)


def in_order(
    columns: Mapping[str, Kept], order: np.ndarray | None, spool: Spool, workers: Workers = HERE
) -> dict[str, np.ndarray]:
    """The columns' records of these numbers, in this order, mapped from files of their own; None is all as they are.

    :param order: int64 [n].
    :param workers: each takes some of these rows from all columns; this process takes a column in each thread.
    :raises ArgumentError: the disk is full.
    :raises BackendError: the workers are lost.
    """
    held = {name: kept.array() for name, kept in columns.items()}
    if order is None:
        return held
    made = {name: spool.column(kept.dtype) for name, kept in columns.items()}
    slots = {name: kept.reserve(len(order)) for name, kept in made.items()}
    found = tuple((rows, slot) for name, slot in slots.items() if slot and (rows := rows_on_disk(held[name])))
    if workers.count and len(found) == len(held):
        numbers = spool.column(order.dtype)
        numbers.append(order)
        on_disk = numbers.array()
        place = rows_on_disk(on_disk)
        assert place is not None  # as those of the columns
        blocks = slices(len(order), part_rows(len(order), workers))
        for _ in workers.map(_gathered, [_Gather(place, rows, found) for rows in blocks]):
            pass
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda name: _gather(held[name], order, 0, made[name].put), made))
    return {name: kept.array() for name, kept in made.items()}


@final
@dataclasses.dataclass(frozen=True, repr=False)
class _Gather:
    """An order, which of its rows, and from and to where each column's records go."""

    order: Rows
    rows: slice
    columns: tuple[tuple[Rows, Slot], ...]

    def moved(self) -> None:
        """Whoever does not find the files cannot write there either."""


def _gathered(part: _Gather) -> None:
    order = part.order.array()[part.rows]
    for own, slot in part.columns:
        _gather(own.array(), order, part.rows.start, slot.put)


def _gather(own: np.ndarray, order: np.ndarray, start: int, put: Callable[[int, np.ndarray], None]) -> None:
    for rows in slices(len(order)):
        put(start + rows.start, np.take(own, order[rows]))


def _put(file: IO[bytes], dtype: np.dtype, start: int, values: np.ndarray) -> None:
    content, offset = memoryview(np.ascontiguousarray(values, dtype).data).cast("B"), start * dtype.itemsize
    with _writing():
        while len(content):
            written = os.pwrite(file.fileno(), content, offset)
            content, offset = content[written:], offset + written


def _allow_many_files() -> None:
    """As many as the system lets this process have: a mapped column is an open file, and 1,024 is a common limit."""
    if resource is not None:
        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if most == resource.RLIM_INFINITY else min(most, _FILES)
        if now != resource.RLIM_INFINITY and now < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArgumentError(f"spool: the encoded columns cannot be written: {error.strerror}") from None
