"""`log.jsonl`: what happened in a run between organisations, a line of JSON each, for the programs that watch it.

Public facts alone: who was awaited, what was agreed on, how many steps are on record, rounds and bytes, how it ended.
Short because it is one format, which others read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vertinumpyro.core.errors import VertinumpyroError

__all__ = ["LOG", "RunLog", "last_events"]

LOG = "log.jsonl"


class RunLog:
    """Appends events to a file; each is on disk for a reader when the call returns.

    :param path: made with its folder if need be; an earlier run's lines stay.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: int | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def event(self, what: str, **facts: Any) -> None:
        """One line: the time, UTC, what happened, and public facts."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": stamp, "event": what, **facts}) + "\n")

    def steps(self, spent: int, total: int) -> None:
        """A line where more steps are on record than at the last call."""
        if spent != self._steps:
            self._steps = spent
            self.event("steps", on_record=spent, of=total)

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Says how it ended: our own errors in full, which quote no record; of others the kind alone."""
        started = time.perf_counter()
        try:
            yield
        except BaseException as error:
            said = {"message": str(error)} if isinstance(error, VertinumpyroError) else {}
            self.event("failed", error=type(error).__name__, seconds=_seconds(started), **said)
            raise
        self.event("finished", seconds=_seconds(started))


def last_events(path: Path, count: int) -> list[dict[str, Any]]:
    """The last lines of a log that can be read; none without a log."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-count:]:
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError):  # cut off while it was written
            continue
    return found


def _seconds(started: float) -> float:
    return round(time.perf_counter() - started, 3)
