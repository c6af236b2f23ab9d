"""Checks on the public domains of a schema; their errors may quote what the schema says."""

import math
from collections.abc import Iterable

import numpy as np

from vertinumpyro.core.arguments import shown
from vertinumpyro.core.errors import SchemaError

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
