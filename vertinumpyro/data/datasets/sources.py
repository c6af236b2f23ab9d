"""Where a data file lies: a given folder, the folder of `VERTINUMPYRO_DATA`, or its public home."""

import dataclasses
import hashlib
import http.client
import os
import tempfile
import urllib.request
from pathlib import Path

from vertinumpyro.core.errors import DataError

#: The environment variable that names a folder of data sets.
FOLDER_VARIABLE = "VERTINUMPYRO_DATA"

_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One public data file.

    Args:
        path: where it lies below a data folder and below the cache, e.g. ``adult/adult.data``.
        home: what it is and where it is described, for the error message.
        url: its public home, or None when no stable one is known.
        sha256: digest of the bytes at `url`, in hexadecimal. A file from a folder is not held to it:
            copies differ in line endings.
    """

    path: str
    home: str
    url: str | None = None
    sha256: str | None = None

    def locate(self, folder: str | Path | None = None) -> Path:
        """Return a path to the file, fetching it when no folder is named.

        Args:
            folder: a data folder; None takes the one in `VERTINUMPYRO_DATA`, and without that the cache
                (``$XDG_CACHE_HOME/vertinumpyro``, else ``~/.cache/vertinumpyro``), filled from `url`.

        Raises:
            DataError: the named folder lacks the file, it has no public home, it cannot be fetched, or
                what was fetched has the wrong checksum.
        """
        named = folder or os.environ.get(FOLDER_VARIABLE)
        if named:
            return self._in_folder(Path(named))
        if self.url is None or self.sha256 is None:
            raise DataError(
                f"{self.path} has no stable public address. {self.home}. Put it at FOLDER/{self.path}, and "
                f"pass folder=FOLDER or set {FOLDER_VARIABLE}=FOLDER"
            )
        return self._in_cache(self.url, self.sha256)

    def _in_folder(self, folder: Path) -> Path:
        path = folder / self.path
        if not path.is_file():
            fetched = "" if self.url is None else f", or unset {FOLDER_VARIABLE} to fetch it from {self.url}"
            raise DataError(f"there is no file {str(path)!r}. {self.home}. Put it there{fetched}")
        return path

    def _in_cache(self, url: str, sha256: str) -> Path:
        path = cache_folder() / self.path
        if not (path.is_file() and _digest(path.read_bytes()) == sha256):
            content = _download(url)
            if _digest(content) != sha256:
                raise DataError(
                    f"{url} does not have the expected SHA-256 {sha256}, so it is not used; get {self.path} "
                    f"elsewhere and set {FOLDER_VARIABLE} to its folder"
                )
            _write_whole(path, content)
        return path


def cache_folder() -> Path:
    """Return the folder of fetched files; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vertinumpyro"


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            return response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot fetch {url} ({error}); set {FOLDER_VARIABLE} to a folder that has it") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    # Under another name first, so that no reader ever meets half a file.
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
        partial.write(content)
    Path(partial.name).replace(path)
