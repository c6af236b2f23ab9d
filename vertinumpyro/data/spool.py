"""Encoded columns on disk: in files without a name, which nobody else can open and which go with the process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.open_files import OpenFile, mapped
from vertinumpyro.core.row_blocks import slices

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None

__all__ = ["Kept", "Slot", "Spool"]

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
        self._file, self._dtype, self._spool, self._length = file, dtype, spool, 0

    def append(self, values: np.ndarray) -> None:
        """More records; their values fit the column's type.

        :raises ArgumentError: the disk is full.
        """
        with _writing():
            self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._length += len(values)

    def reserve(self, length: int) -> Slot | None:
        """Makes room for so many records, which anybody who finds the file may put in its places.

        :returns: for a worker on this machine; None where it could not find the file.
        """
        with _writing():
            self._file.truncate(length * self._dtype.itemsize)
        self._length = length
        place = OpenFile.of(self._file) if self._spool.findable else None
        return None if place is None else Slot(place, self._dtype)

    def put(self, start: int, values: np.ndarray) -> None:
        """Records in their places, from `start` on; errors as `append`'s."""
        _put(self._file, self._dtype, start, values)

    def array(self) -> np.ndarray:
        """All records [n], mapped from the file; errors as `append`'s."""
        with _writing():
            self._file.flush()
        return mapped(self._file, self._dtype, self._length, findable=self._spool.findable)

    def taken(self, order: np.ndarray | None) -> np.ndarray:
        """The records of these numbers, in this order, mapped from a file of their own; None is all as they are."""
        if order is None:
            return self.array()
        own, out = self.array(), self._spool.column(self._dtype)
        for rows in slices(len(order)):
            out.append(np.take(own, order[rows]))
        return out.array()

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
