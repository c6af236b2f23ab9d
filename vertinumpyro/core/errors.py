"""What people are told: every error that the library raises on purpose, how text of others is shown in it, and when a
line about what goes on for long is due.

Characters that nobody sees, or that move what stands around them, are refused in names and shown as escapes elsewhere.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import final


class VertinumpyroError(Exception):
    """Base class of the library's own errors."""


class ArgumentError(VertinumpyroError, ValueError):
    """An argument or a setting is wrong; the message names it and the fix."""


class SchemaError(VertinumpyroError, ValueError):
    """The public schema contradicts itself."""


class DataError(VertinumpyroError, ValueError):
    """A party's table breaks the public schema; the message names party and column, never a value."""


class AlignmentError(DataError):
    """The parties' records cannot be matched by their id column."""


class ModelContractError(VertinumpyroError, ValueError):
    """The model cannot be split between the parties; the message names the site."""


class RangeError(VertinumpyroError, ArithmeticError):
    """A fixed-point value could wrap around the ring, so the run refuses to start."""


class PrivacyError(VertinumpyroError):
    """A privacy requirement is not met."""


class PlanSpentError(PrivacyError):
    """The plan's privacy budget is already spent."""


class UnprovenError(PrivacyError):
    """A privacy bound is not proved for this configuration, and nobody opted in."""


class BackendError(VertinumpyroError, RuntimeError):
    """A secure backend failed or is not available."""


class CheckFailedError(BackendError):
    """What a party sent failed a check of a protocol that holds against parties that cheat, or was not what it had
    committed to; text and outcome depend on nobody's column.

    :param said: what it did, without its name: "failed a check: ...".
    :param party: its number; None where the text says all.
    """

    def __init__(self, said: str, party: int | None = None) -> None:
        super().__init__(said if party is None else f"party {party} {said}")
        self._said, self._party = said, party

    def named(self, parties: Sequence[str]) -> CheckFailedError:
        """The same with the party's name."""
        return self if self._party is None else CheckFailedError(f"{parties[self._party]!r} {self._said}")


class InferenceWarning(UserWarning):
    """A fit has not converged, or its model cannot have made what it was fitted to."""


class LongFitWarning(UserWarning):
    """A fit will take long, as a step of it on stand-ins took."""


_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode's categories: control, format, unassigned, private, surrogate, line and paragraph separators."""


def visible(text: str, *, keep: str = "") -> str:
    r"""A text that others wrote, every hidden character of it as an escape, `\x1b` or `\u202e`.

    :param keep: characters that stay as they are: a line break where lines are meant.
    """
    if text.translate(dict.fromkeys(map(ord, keep))).isprintable():
        return text
    return "".join(_escape(one) if _is_hidden(one) and one not in keep else one for one in text)


def hidden_in(text: str) -> str:
    """The first hidden character of a text as an escape; empty where there is none."""
    if text.isprintable():  # nothing hidden is
        return ""
    return next((_escape(one) for one in text if _is_hidden(one)), "")


def _is_hidden(one: str) -> bool:
    return unicodedata.category(one) in _HIDDEN


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


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
