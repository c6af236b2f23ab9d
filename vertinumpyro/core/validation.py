"""Arguments of the wrong kind, refused by name where they come in, from the signatures' own annotations.

Numbers, flags, texts, choices and paths alone: what else an argument must be is said where it is used. A value that is
no number or short text may hold records, so a message names its type and never shows it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from vertinumpyro.core.errors import ArgumentError

_LONGEST = 60
_WORDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_F = TypeVar("_F", bound=Callable[..., Any])


def shown(value: object) -> str:
    """A short public value as it stands, of anything else the type alone: it may hold records."""
    if isinstance(value, str | int | float) or value is None:
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{value.__name__} (a class)" if isinstance(value, type) else f"a {type(value).__name__}"


def checked(function: _F) -> _F:
    """The function, which refuses an argument that its annotation's numbers, flags, texts and choices rule out.

    :raises ArgumentError: from the function made; names the argument.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checks(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # Python's own words name the argument
        expected = _expected(function)
        for name, value in given.items():
            if name in expected:
                _check(name, value, expected[name])
        return function(*args, **kwargs)

    return typing.cast(_F, checks)


def check_fields(instance: Any) -> None:
    """Does so for a dataclass's fields, from its `__post_init__`, or for a scikit-learn estimator's settings.

    :raises ArgumentError: names the field.
    """
    owner = type(instance) if dataclasses.is_dataclass(instance) else type(instance).__init__
    for name, kinds in _expected(owner).items():
        if hasattr(instance, name):
            _check(name, getattr(instance, name), kinds)


def require_collection(name: str, value: object, of: str) -> None:
    """Refuses a single text, a number or a table where several things are wanted.

    :raises ArgumentError: names the argument.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or hasattr(value, "columns"):
        raise ArgumentError(f"{name}={shown(value)} must be a list of {of}")


def _check(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if any(_fits(value, choice) for choice in choices):
        return
    literals = [repr(choice) for choice in choices if isinstance(choice, str)]
    words = [_WORDS[choice] for choice in choices if choice in _WORDS and not (choice is int and float in choices)]
    none = ["None"] if None in choices else []
    raise ArgumentError(f"{name}={shown(value)} must be {' or '.join([*literals, *words, *none])}")


def _fits(value: Any, choice: Any) -> bool:
    if choice is None or isinstance(choice, str | int):
        return type(value) is type(choice) and value == choice
    if choice is bool:
        return isinstance(value, bool) or _scalar(value) == "b"
    if choice in (int, float):
        kinds = "iu" if choice is int else "iuf"
        number = numbers.Integral if choice is int else numbers.Real
        return (isinstance(value, number) and not isinstance(value, bool)) or _scalar(value) in tuple(kinds)
    return isinstance(value, os.PathLike if choice is Path else choice)


def _scalar(value: Any) -> str:
    """The kind of a NumPy or JAX array without dimensions."""
    return getattr(value.dtype, "kind", "") if getattr(value, "ndim", None) == 0 and hasattr(value, "dtype") else ""


@functools.cache
def _expected(owner: Any) -> dict[str, tuple[Any, ...]]:
    """For each name whose annotation is made of simple kinds alone: these, None and a Literal's choices."""
    found = {}
    for name, annotation in _annotations(owner):
        kinds = tuple(_kinds(annotation))
        if kinds and object not in kinds:
            found[name] = kinds
    return found


def _annotations(owner: Any) -> Iterator[tuple[str, Any]]:
    owners = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    for one in owners:
        names = vars(inspect.getmodule(one) or types.ModuleType("")) | {"Literal": Literal}
        for name, annotation in getattr(one, "__annotations__", {}).items():
            if isinstance(annotation, str):
                try:
                    annotation = eval(annotation, dict(names))  # of our own source, as typing.get_type_hints does
                except Exception:
                    continue  # a name that is imported for type checkers alone: no simple kind
            yield name, annotation


def _kinds(annotation: Any) -> Iterator[Any]:
    """The kinds of an annotation; `object` stands for one that is not simple."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _kinds(part)
    elif origin is Literal:
        yield from typing.get_args(annotation)
    elif annotation in (None, type(None)):
        yield None
    elif annotation in _WORDS:
        yield annotation
    else:
        yield object
