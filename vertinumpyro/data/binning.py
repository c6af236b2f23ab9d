"""Public bins as pure functions on arrays: edges in, codes or uniform draws out.

Real bins are given by `edges` e_0 <= e_1 <= ... <= e_B. Bin i is [e_i, e_{i+1}), and the last one is
closed. Two equal neighbours make an *atom*: a bin that holds that one value, for a lump such as the
zeros of a payment. The bins beside an atom leave its value out.

Integer bins are given by their first integers, `starts`, and the last integer of all, `last`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

Transform = Literal["identity", "log1p", "sqrt"]
Array = np.ndarray


def _identity(values: Array) -> Array:
    return values


FORWARD: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"identity": _identity, "log1p": np.log1p, "sqrt": np.sqrt}
)
INVERSE: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"identity": _identity, "log1p": np.expm1, "sqrt": np.square}
)


def to_unit(values: Array, bounds: tuple[float, float], transform: Transform) -> Array:
    """Map [lo, hi] onto [0, 1], linearly on the transformed scale."""
    forward = FORWARD[transform]
    low, high = forward(np.asarray(bounds, np.float64))
    return (forward(values) - low) / (high - low)


def from_unit(unit: Array, bounds: tuple[float, float], transform: Transform) -> Array:
    """Map [0, 1] back onto [lo, hi]; rounding never leaves the bounds."""
    low, high = FORWARD[transform](np.asarray(bounds, np.float64))
    return np.clip(INVERSE[transform](low + unit * (high - low)), *bounds)


def equal_width_edges(bounds: tuple[float, float], bins: int, transform: Transform) -> Array:
    """Return `bins` + 1 edges, equally spaced on the transformed scale, from lo to hi exactly."""
    edges = from_unit(np.linspace(0.0, 1.0, bins + 1), bounds, transform)
    edges[[0, -1]] = bounds
    return edges


def real_codes(edges: Array, values: Array) -> Array:
    """Return the bin of each value; values lie within the outer edges."""
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    first = np.searchsorted(edges, values, side="left")
    following = np.minimum(first + 1, len(edges) - 1)
    in_atom = (following > first) & (edges[first] == values) & (edges[following] == values)
    return np.where(in_atom, first, codes)


def draw_reals(edges: Array, codes: Array, rng: np.random.Generator) -> Array:
    """Return one uniform draw from each coded bin."""
    low, high = edges[codes], edges[codes + 1]
    draws = low + rng.random(len(codes)) * (high - low)
    # An edge may belong to the neighbour (the next bin or an atom), so stay strictly inside: a decoded
    # value then always encodes to the bin it came from.
    inside = np.clip(draws, np.nextafter(low, high), np.nextafter(high, low))
    return np.where(low == high, low, inside)


def integer_starts(low: int, high: int, bins: int) -> Array:
    """Split low..high into `bins` runs whose sizes differ by at most one; return their first integers."""
    count = high - low + 1
    return low + -(-np.arange(bins, dtype=np.int64) * count // bins)


def integer_codes(starts: Array, values: Array) -> Array:
    """Return the run of each integer."""
    return np.searchsorted(starts, values, side="right") - 1


def draw_integers(starts: Array, last: int, codes: Array, rng: np.random.Generator) -> Array:
    """Return one uniform integer from each coded run."""
    stops = np.append(starts[1:], last + 1)
    return rng.integers(starts[codes], stops[codes])


def group(codes: Array, num_cells: int, max_cells: int) -> tuple[Array, int]:
    """Merge neighbouring ordered cells until at most `max_cells` remain."""
    if num_cells <= max_cells:
        return codes, num_cells
    return codes * max_cells // num_cells, max_cells
