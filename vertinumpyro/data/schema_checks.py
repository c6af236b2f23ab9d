"""How this package words its errors, the place first, then the problem, then the fix, never a value; and its checks on
the public domains of a schema, whose errors may quote what the schema says.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from vertinumpyro.core.errors import DataError, SchemaError
from vertinumpyro.core.validation import shown

NO_DATASET = (
    'is no VerticalDataset; make one: VerticalDataset.from_files(Schema.from_toml("schema.toml"), '
    "{party: file, ...}), or from_frames; or give a session"
)


@dataclasses.dataclass(frozen=True)
class Place:
    """A party's column (or a party's whole table, when `column` is empty), as errors name it."""

    party: str
    column: str = ""

    def __str__(self) -> str:
        """Return e.g. ``party 'clinic', column 'age'``."""
        return f"party {self.party!r}" + (f", column {self.column!r}" if self.column else "")

    def fail(self, problem: str) -> NoReturn:
        """Raise a `DataError` that names this place.

        Call it outside any ``except`` block: an exception raised inside one keeps the caught exception
        as its context, and NumPy, pandas and the CSV parser put cell values in theirs.
        """
        raise DataError(f"{self}: {problem}")


def suggest(word: object, known: Iterable[str]) -> str:
    """Return a hint that ends an error about an unknown name: the closest known name, or all of them."""
    options = list(known)
    close = difflib.get_close_matches(str(word), options, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(map(repr, options)) or 'none'}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the closest known name in brackets, to end an error with; nothing where none is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


#: More categories than this are a mistake: each costs a parameter per component.
MAX_CELLS = 1000

OUT_OF_BOUNDS_RULES = ("error", "clip")
MISSING_RULES = ("forbid", "mask", "category")


def require(condition: bool, problem: str) -> None:
    """Raise a `SchemaError` unless the condition on the public schema holds."""
    if not condition:
        raise SchemaError(problem)


def require_list(field: str, value: object) -> None:
    """Raise a `SchemaError` unless a field holds a list or a tuple."""
    require(isinstance(value, (list, tuple)), f"{field} = {shown(value)}; give a list")


def require_bounds(bounds: tuple[float, ...], kind: str) -> None:
    """Raise a `SchemaError` unless bounds are a finite (lo, hi) with lo < hi."""
    require(len(bounds) == 2, f"bounds = {list(bounds)}; give [lo, hi]")
    low, high = bounds
    require(bool(np.isfinite(bounds).all()), f"bounds = {list(bounds)}; {kind} bounds are finite")
    require(low < high, f"bounds = {list(bounds)}; lo must be less than hi")
    require(bool(np.isfinite(high - low)), f"bounds = {list(bounds)}; hi - lo overflows")


def require_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a `SchemaError` unless a field holds one of its choices."""
    known = isinstance(value, str) and value in choices
    require(known, f"{field} = {shown(value)}; choose one of {', '.join(map(repr, choices))}")


def floats(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return a field's numbers as floats, or raise a `SchemaError`."""
    require_list("bounds or edges", values)
    require(all(_is_number(v) for v in values), f"{_listed(values)} holds something that is not a number")
    return tuple(float(v) for v in values)


def whole_numbers(field: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return a field's numbers as integers, or raise a `SchemaError`."""
    require_list(field, values)
    whole = all(_is_number(v) and math.isfinite(v) and v == int(v) and abs(v) < 2**53 for v in values)
    require(whole, f"{field} = {_listed(values)}; give integers of magnitude below 2^53")
    return tuple(int(v) for v in values)


def missing_codes(codes: tuple[float | str, ...]) -> tuple[float | str, ...]:
    """Return a field's codes for a missing value, whole numbers as integers, or raise a `SchemaError`."""
    require_list("missing_codes", codes)
    plain = [code.item() if isinstance(code, np.generic) else code for code in codes]
    fine = all(
        code.strip() != "" if isinstance(code, str) else _is_number(code) and math.isfinite(code) for code in plain
    )
    require(fine, f"missing_codes = {_listed(plain)}; give finite numbers or texts")
    return tuple(code.strip() if isinstance(code, str) else int(code) if code == int(code) else code for code in plain)


def _listed(values: Iterable[object]) -> str:
    return f"[{', '.join(map(shown, values))}]"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def require_bins(bins: int, most: int) -> None:
    """Raise a `SchemaError` unless a number of bins is an integer from 2 to `most`."""
    require(type(bins) is int and 2 <= bins <= most, f"bins = {shown(bins)}; give an integer from 2 to {most}")
