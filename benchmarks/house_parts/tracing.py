"""Which functions of the package a block of code calls, and how often."""

from __future__ import annotations

import collections
import contextlib
import importlib
import pkgutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import vertinumpyro
from vertinumpyro.core.errors import BackendError

PACKAGE = f"{Path(vertinumpyro.__file__).parent}/"


class Calls:
    """Counts calls of the package's own functions in this thread, and in all threads that start meanwhile."""

    def __init__(self) -> None:
        self._by_code: collections.Counter[CodeType] = collections.Counter()
        self.running = False

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Counts within the block."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        self.running = True
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self.running = False

    def taken(self) -> dict[str, int]:
        """Calls by "file: function", most first; what comes next is counted anew."""
        found: collections.Counter[str] = collections.Counter()
        for code, calls in list(self._by_code.items()):
            if code.co_name != "<module>":  # an import is no call
                found[f"{code.co_filename.removeprefix(PACKAGE)}: {code.co_qualname}"] += calls
        self._by_code.clear()
        return dict(found.most_common())

    def _saw(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._by_code[frame.f_code] += 1


def import_everything() -> None:
    """All modules whose engines are here, so that none is imported, and none of its lines counted, within a trace."""
    for module in pkgutil.walk_packages(vertinumpyro.__path__, "vertinumpyro.", onerror=lambda _: None):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, BackendError):
                importlib.import_module(module.name)


def files_of(calls: dict[str, int]) -> set[str]:
    """The files whose functions were called."""
    return {name.partition(": ")[0] for name in calls}
