"""Lines about what goes on for long: not too many, and not the same words over and over.

Short because the terminal and the connections between organisations say lines by it, and share nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

LEAST_S = 10.0
"""Between two lines."""


@final
class Sparing:
    """When a line about something is due: at once where nothing was said yet; where it has changed, ten seconds after
    the last line; and where it is as it was, after a pause that doubles each time.

    :param clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._about: object = None
        self._said_at, self._pause = -LEAST_S, LEAST_S

    def is_due(self, about: object, least: float = 0.0) -> bool:
        """Whether to say a line now; then it counts as said.

        :param about: what the line says, but for what changes all the time, as how long it has taken.
        :param least: seconds that are to have passed since the last line in any case.
        """
        pause = LEAST_S if about != self._about else 2 * self._pause
        if self._clock() - self._said_at < max(pause, least):
            return False
        self.said(about)
        return True

    def said(self, about: object) -> None:
        """A line was said, whether it was due or not."""
        self._pause = LEAST_S if about != self._about else 2 * self._pause
        self._about, self._said_at = about, self._clock()
