"""Files that others may rely on, there as a whole or not at all, for the right eyes alone, written by one process,
among them named arrays with a little public metadata in one `.npz` file, read without pickles; and files without a
name.

In files without a name lie arrays that another process of the same user on the same machine finds again, as a party's
encoded columns. Its workers on this machine map them where they lie, through Linux's table of a process's open files,
which shows them to nobody that could not read the process's memory as well. So no column travels; a worker elsewhere
says that it finds none, and is sent the rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, PlanSpentError, PrivacyError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


_OWNERS_ALONE, _AS_THE_UMASK_SAYS = 0o600, 0o666


def create(path: Path, *, private: bool) -> IO[bytes]:
    """A new file, open for writing.

    :param private: nobody but its owner may read it, whatever the umask.
    :raises FileExistsError: something has that name, a link included.
    """
    mode = _OWNERS_ALONE if private else _AS_THE_UMASK_SAYS
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, mode), "wb")


@contextlib.contextmanager
def replaced(path: Path, temporary: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Puts a file in the place of another in one step; when the block is left, a power cut cannot undo it.

    :param temporary: its name until then, in the same folder; what a crash left there is dropped.
    """
    temporary.unlink(missing_ok=True)
    try:
        with create(temporary, private=private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):  # some file systems have no directory handles to flush
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[FileLock]:
    """A lock beside a file, against other processes. It is kept where the block succeeds; where it fails and the file
    was not made, nothing is left.

    :raises PlanSpentError: another process has it.
    """
    lock = FileLock(path)
    try:
        yield lock
    except BaseException:
        lock.release(removed=path is not None and not path.exists())
        raise


@final
class FileLock:
    """Keeps other processes from a file; the system drops it when the process dies.

    :param path: of the file, or a folder. None locks nothing.
    :param name: of the lock; None takes `<path>.lock` beside it.
    :raises PlanSpentError: another process has it.
    :raises PrivacyError: the file system has no locks.
    """

    def __init__(self, path: Path | None, name: Path | None = None) -> None:
        self._file: IO[bytes] | None = None
        if path is None or fcntl is None:
            return
        self._path = path.with_name(path.name + ".lock") if name is None else name
        while self._file is None:
            self._file = open(self._path, "ab")  # noqa: SIM115 (held until release)
            self._lock(path)
            if not self._in_place():  # whoever had it before removed it in the meantime
                self.release()

    def release(self, *, removed: bool = False) -> None:
        """Lets others have it.

        :param removed: leaves no file behind. It goes while the lock is still held, and who opened it before looks
            whether it is still there (`_in_place`), so two never hold one lock.
        """
        if self._file is not None:
            if removed:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            self._file.close()
            self._file = None

    def _lock(self, path: Path) -> None:
        assert fcntl is not None
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the latter on some network drives
            self.release()
            raise PlanSpentError(
                f"{path} is in use by another process; wait until that has ended, or give another folder"
            ) from None
        except OSError as error:
            self.release()
            raise PrivacyError(
                f"{path} cannot be locked against other processes ({error.strerror}); give a folder on another disk"
            ) from None

    def _in_place(self) -> bool:
        assert self._file is not None
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path))
        return False


_METADATA = "metadata"


def save_arrays(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, Any],
    *,
    private: bool = False,
) -> None:
    """Write arrays and JSON metadata, atomically: a reader sees the old file or the new one.

    :param private: nobody but its owner may read it, at any moment.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    with replaced(path, temporary, private=private):
        write_arrays(temporary, arrays, metadata)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write them in place, with the mode that the file has; on disk when this returns."""
    with path.open("wb") as stream:
        np.savez(stream, **{_METADATA: np.array(json.dumps(metadata)), **arrays})  # pyright: ignore[reportArgumentType]
        stream.flush()
        os.fsync(stream.fileno())


def read_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON metadata alone.

    :raises ArgumentError: if there is no such file, or it was not written by `save_arrays`.
    """
    return _read(path, only_metadata=True)[0]


def load_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and arrays.

    :raises ArgumentError: if there is no such file, it is damaged, or it was not written by `save_arrays`.
    """
    return _read(path, only_metadata=False)


def _read(path: str | os.PathLike[str], *, only_metadata: bool) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    name = Path(path).name
    try:
        with np.load(Path(path), allow_pickle=False) as stored:
            metadata = json.loads(str(stored[_METADATA]))
            wanted = () if only_metadata else set(stored.files) - {_METADATA}
            return metadata, {key: stored[key] for key in wanted}
    except FileNotFoundError:
        raise ArgumentError(f"there is no file {name}; check the path") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise ArgumentError(f"{name} is not a file that this library saved") from None


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
