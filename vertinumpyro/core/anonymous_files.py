"""Arrays in files without a name, found again by another process of the same user on the same machine.

A party's encoded columns lie in such files. Its workers on this machine map them where they lie, through Linux's table
of a process's open files, which shows them to nobody that could not read the process's memory as well. So no column
travels; a worker elsewhere says that it finds none, and is sent the rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, final

import numpy as np

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class ElsewhereError(Exception):
    """What was named is not on this machine, or not this user's to open."""


class _File(io.BufferedRandom):
    """Open as long as anybody refers to it: columns and the arrays that map them, in whichever order they go."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take was said by whoever wrote it
            self.close()


def anonymous_file(folder: Path) -> IO[bytes]:
    """A new file without a name, on this folder's disk, which closes when nobody refers to it.

    :raises OSError: nothing can be written there.
    """
    return _File(tempfile.TemporaryFile(dir=folder, buffering=0))


@functools.cache
def _machine() -> str | None:
    """Names this run of this machine's kernel; None where a process's open files are not to be found by number."""
    try:
        return _BOOT.read_text() if Path("/proc/self/fd").is_dir() else None
    except OSError:
        return None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenFile:
    """A file that a process holds open. On one kernel, device and inode are one file's as long as it is open.

    :ivar process: its number, and that of the file in its table.
    """

    machine: str
    process: int
    number: int
    device: int
    inode: int

    @classmethod
    def of(cls, file: IO[bytes]) -> OpenFile | None:
        """A file of this process; None where others cannot find it."""
        machine, found = _machine(), os.fstat(file.fileno())
        if machine is None:
            return None
        return cls(machine=machine, process=os.getpid(), number=file.fileno(), device=found.st_dev, inode=found.st_ino)

    def opened(self, *, write: bool = False) -> IO[bytes]:
        """The same file, opened here.

        :raises ElsewhereError: it is not here.
        """
        if self.machine != _machine():
            raise ElsewhereError
        try:
            held = Path(f"/proc/{self.process}/fd/{self.number}")
            file = held.open("r+b" if write else "rb", buffering=0)
        except OSError:
            raise ElsewhereError from None
        found = os.fstat(file.fileno())
        if (found.st_dev, found.st_ino) == (self.device, self.inode):
            return file
        file.close()
        raise ElsewhereError


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Consecutive elements of an array in such a file.

    :ivar start: in bytes.
    """

    file: OpenFile
    dtype: str
    start: int
    length: int

    def array(self) -> np.ndarray:
        """They, mapped [length].

        :raises ElsewhereError: the file is not here.
        """
        if not self.length:
            return np.empty(0, self.dtype)
        with self.file.opened() as file:
            return np.memmap(file, self.dtype, mode="r", offset=self.start, shape=(self.length,))


def mapped(file: IO[bytes], dtype: np.dtype, length: int, *, findable: bool = False) -> np.ndarray:
    """A whole file as an array [length]; `findable` keeps it open as well, for `rows_on_disk`."""
    if not length:
        return np.empty(0, dtype)
    array = np.memmap(file, dtype, mode="r", shape=(length,))
    if findable and (place := OpenFile.of(file)) is not None:
        array.place, array.opened = place, file  # type: ignore[attr-defined]
    return array


def rows_on_disk(array: np.ndarray) -> Rows | None:
    """Where the elements of a view of a findable array lie; None where the array is something else."""
    whole: object = array
    while whole is not None and not isinstance(getattr(whole, "place", None), OpenFile):
        whole = getattr(whole, "base", None)
    if not isinstance(whole, np.ndarray) or array.ndim != 1 or not array.flags.c_contiguous:
        return None
    address: Callable[[np.ndarray], int] = lambda held: held.__array_interface__["data"][0]  # noqa: E731
    start = address(array) - address(whole) if array.size else 0
    return Rows(file=whole.place, dtype=array.dtype.str, start=start, length=len(array))  # type: ignore[attr-defined]
