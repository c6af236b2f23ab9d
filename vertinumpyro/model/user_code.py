"""The user's own code: where in it something happened, for messages that send their reader to a file and a line; and
what public choices and posteriors that hold functions of it are when they are pickled.

Pickled are their fields, without compiled programs. pickle writes a function down as the name by which its module has
it. A model that has no such name can be copied, and `cloudpickle` writes it as code, which joblib's and Dask's
processes use; pickle alone ends with an error about an attribute of some frame. So whoever holds functions of the user
looks first, and says which one it is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import linecache
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpyro

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.model import enumeration
from vertinumpyro.model.enumeration import log_density_of

_OURS = Path(__file__).parents[1]
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LIBRARIES = frozenset({"jax", "jaxlib", "numpyro", "numpy"})
_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_INTERACTIVE = ("<stdin>", "<ipython")
_OF_A_SITE = tuple(inspect.unwrap(function).__code__ for function in (numpyro.sample, log_density_of))
"""Functions whose `name` is that of the site that they were called for."""


class UserLine(NamedTuple):
    """A line of a user's file, by the file's name without its folder."""

    file: str
    number: int
    text: str

    def __str__(self) -> str:
        """As in "my_models.py:8"."""
        return f"{self.file}:{self.number}"


def line_of(error: BaseException) -> UserLine | None:
    """The innermost line of the user's that an error passed on its way to this library; None where there is none."""
    return _user_line(_below(error, _OURS))


def line_in_model(error: BaseException) -> UserLine | None:
    """The same of a model that this library ran, in no installed package: of an error of whatever origin."""
    return next((_line(*frame) for frame in _below(error, _OURS / "model") if _is_own_file(frame[0])), None)


def _below(error: BaseException, folder: Path) -> list[tuple[str, int]]:
    """Frames that files of a folder called, innermost first."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next((place for place, (name, _) in enumerate(frames) if Path(name).is_relative_to(folder)), len(frames))
    return frames[: first - 1 if first else None : -1]


def traced_at(equation: Any) -> UserLine | None:
    """The line of the user's model that an equation of its jaxpr was traced for; None where it is a library's."""
    frames = getattr(getattr(equation.source_info, "traceback", None), "frames", ())
    # what is further out than this library's run of the model called it
    of_model = itertools.takewhile(lambda frame: frame.file_name != enumeration.__file__, frames)
    return _user_line([(frame.file_name, frame.line_num) for frame in of_model])


def _user_line(frames: Sequence[tuple[str, int]]) -> UserLine | None:
    """The first of these frames, innermost first, that is the user's; of an installed package if there is no other."""
    users = (_line(*frame) for is_users in (_is_own_file, _is_installed) for frame in frames if is_users(frame[0]))
    return next(users, None)


def _line(name: str, number: int) -> UserLine:
    return UserLine(Path(name).name, number, linecache.getline(name, number).strip())


def where(error: BaseException) -> str:
    """The site and the line of the user's, as ", of site 'age', at my_models.py:8"; what is known of it."""
    site, line = _site_of(error), line_of(error)
    return ("" if site is None else f", of site {site!r},") + ("" if line is None else f" at {line}")


def text_of(error: BaseException) -> str:
    """The error's first line; of one without words, as most asserts, the line that raised it."""
    line = line_of(error)
    return next(filter(None, map(str.strip, str(error).splitlines())), "" if line is None else line.text)


def _site_of(error: BaseException) -> str | None:
    """The site that was being drawn, or whose log density was being computed."""
    frames: list[Any] = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_locals.get("name") for frame in frames if frame.f_code in _OF_A_SITE]
    return names[-1] if names else None


def _is_own_file(name: str) -> bool:
    path = Path(name)
    if name.startswith("<"):
        return name.startswith(_INTERACTIVE)
    return not (path.is_relative_to(_OURS) or _INSTALLED.intersection(path.parts) or path.is_relative_to(_STANDARD))


def _is_installed(name: str) -> bool:
    parts = Path(name).parts
    at = next((place for place, part in enumerate(parts) if part in _INSTALLED), len(parts))
    return at + 1 < len(parts) and parts[at + 1] not in (*_LIBRARIES, _OURS.name)


_OF_OTHERS = ("cloudpickle", "_dill", "copy")  # modules that take functions as they are


def public_state(instance: Any, **instead: Any) -> dict[str, Any]:
    """A dataclass's fields for `__getstate__`, with others in the place of some; what is cached beside them stays."""
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)} | instead


def require_names(owner: str, functions: Mapping[str, Any]) -> None:
    """Refuses functions that pickle has no name for, unless it is not pickle that asks.

    :raises ArgumentError: names the argument, the function and what to do.
    """
    if _others_ask():
        return
    for name, function in functions.items():
        try:
            pickle.dumps(function)
        except Exception:  # what pickle raises differs by version and by what it met
            raise ArgumentError(
                f"{name}={_named(function)}: pickle cannot write it down, so neither this {owner}. Define it by def at "
                "the top of a module, or pickle with cloudpickle; a posterior's save(path) writes no function at all"
            ) from None


def _others_ask() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").rpartition(".")[2] in _OF_OTHERS:
            return True
        frame = frame.f_back
    return False


def _named(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)
