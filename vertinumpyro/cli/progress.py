"""Progress in a log file, where a bar that redraws itself would be noise: a plain line now and then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vertinumpyro.cli.terminal import console
from vertinumpyro.reports.plain_language import count, duration

__all__ = ["ProgressLines", "log_progress", "progress_in_log"]

_PART = 0.1  # of the total: so much more is worth a line
_SHORTEST_S = 10.0
_PARTS_OF_TIME = 20  # lines that only say how long it has taken get rarer: one per twentieth of it
_POLL_S = 0.5


class ProgressLines:
    """A callback `(step, total)` that says a line when a tenth more is done, or ten seconds or longer have passed."""

    def __init__(
        self, noun: str, say: Callable[[str], object] = console.print, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._noun, self._say, self._clock = noun, say, clock
        self._started = self._said_at = clock()
        self._said_step: int | None = None

    def __call__(self, step: int, total: int) -> None:
        """Say where the run stands, if that is worth a line."""
        if self._said_step is None:
            self._said_step = step  # a run that continues does not begin at 0
        now = self._clock()
        due = max(_SHORTEST_S, (now - self._started) / _PARTS_OF_TIME)
        if step - self._said_step >= max(1, _PART * total) or now - self._said_at >= due:
            self.say(step, total)

    def say(self, step: int, total: int) -> None:
        """Say where the run stands."""
        self._said_at, self._said_step = self._clock(), step
        share = f"{step / max(total, 1):.0%}"
        passed = duration(self._said_at - self._started)
        self._say(f"{step:,} of {count(total, self._noun)} recorded as spent ({share}), {passed}")


@contextmanager
def progress_in_log(record: Path, total: int, noun: str = "step") -> Iterator[None]:
    """Lines about a fit while it runs, read from its privacy record; none on a terminal, which shows a bar.

    The record is public, counts steps before they are computed, and is kept by every way to fit: in this process and
    with a process for each party.

    :param record: the fit's `privacy.json`; need not exist yet.
    :param total: the plan's steps.
    :param noun: what a step is called.
    """
    if console.is_terminal:
        yield
        return
    lines = ProgressLines(noun)
    with log_progress(record, lambda spent: lines(spent, total), lambda spent: lines.say(spent, total)):
        yield


@contextmanager
def log_progress(record: Path, tell: Callable[[int], object], last: Callable[[int], object]) -> Iterator[None]:
    """Calls `tell` with the steps on record, twice a second while the block runs, and `last` at its end."""
    done = threading.Event()

    def follow() -> None:
        while not done.wait(_POLL_S):
            tell(_steps_spent(record))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        last(_steps_spent(record))


def _steps_spent(record: Path) -> int:
    try:
        return int(json.loads(record.read_text(encoding="utf-8"))["steps_spent"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # not there yet; a record that is broken stops the fit itself
