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

_FLOAT = np.dtype(np.float64)


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


def to_decimals(edges: Array, decimals: int) -> Array:
    """Return the edges, those that miss a number of so many decimals by floating point alone moved onto it."""
    short = np.round(edges, decimals)
    return np.where(np.abs(short - edges) <= 1e-12 * np.abs(edges).max(), short, edges)


def real_codes(edges: Array, values: Array) -> Array:
    """Return the bin of each value; values lie within the outer edges."""
    codes = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    first = np.searchsorted(edges, values, side="left")
    following = np.minimum(first + 1, len(edges) - 1)
    in_atom = (following > first) & (edges[first] == values) & (edges[following] == values)
    return np.where(in_atom, first, codes)


def draw_reals(
    edges: Array, codes: Array, rng: np.random.Generator, float_type: np.dtype = _FLOAT, decimals: int | None = None
) -> Array:
    """Return one uniform draw from each coded bin, as floats of a type that has some in every bin.

    With `decimals` a draw is rounded to so many, to the nearest number of its bin that has them; an atom's stays.
    """
    low, high = edges[codes], edges[codes + 1]
    draws = low + rng.random(len(codes)) * (high - low)
    if decimals is not None:
        lowest, highest = _grid_limits(edges, decimals)
        draws = np.where(low == high, low, np.clip(np.round(draws, decimals), lowest[codes], highest[codes]))
    cast = draws.astype(float_type)
    # An edge may belong to the neighbour (the next bin or an atom), so stay strictly inside where it does: a decoded
    # value then always encodes to the bin it came from.
    first, last = bin_limits(edges, float_type)
    stays = (decimals is not None) & _is_in(edges, cast.astype(np.float64), codes)
    return np.where(stays, cast, np.clip(cast, first[codes], last[codes]))


def have_decimals(edges: Array, decimals: int) -> bool:
    """Whether every bin but the atoms holds a number of so many decimals."""
    lowest, highest = _grid_limits(edges, decimals)
    return bool(((lowest <= highest) | (edges[:-1] == edges[1:])).all())


def _grid_limits(edges: Array, decimals: int) -> tuple[Array, Array]:
    """The smallest and the largest number of so many decimals that each bin's code is read from."""
    step, bins = 10.0**-decimals, np.arange(len(edges) - 1)
    lowest, highest = np.ceil(edges[:-1] / step), np.floor(edges[1:] / step)
    lowest, highest = np.round(lowest * step, decimals), np.round(highest * step, decimals)
    lowest = np.where(_is_in(edges, lowest, bins), lowest, np.round(lowest + step, decimals))
    return lowest, np.where(_is_in(edges, highest, bins), highest, np.round(highest - step, decimals))


def _is_in(edges: Array, values: Array, codes: Array) -> Array:
    within = np.clip(values, edges[0], edges[-1])
    return (within == values) & (real_codes(edges, within) == codes)


def bin_limits(edges: Array, float_type: np.dtype) -> tuple[Array, Array]:
    """Return the smallest and the largest float of a type strictly inside each bin; an atom's are its value."""
    low, high = edges[:-1], edges[1:]
    atom, value = low == high, low.astype(float_type)
    return np.where(atom, value, _inwards(low, float_type, 1)), np.where(atom, value, _inwards(high, float_type, -1))


def as_floats(values: Array, bounds: tuple[float, float], float_type: np.dtype) -> Array:
    """Return reals within bounds as floats of a type, which stay within them where rounding would not."""
    low, high = np.asarray(bounds)
    cast = values.astype(float_type)
    cast = np.where(cast < low, _inwards(low, float_type, 1), cast)
    return np.where(cast > high, _inwards(high, float_type, -1), cast)


def has_floats(edges: Array, float_type: np.dtype) -> bool:
    """Whether a type of floats reaches both outer edges, has a float in every bin, and has every atom exactly."""
    with np.errstate(over="ignore"):
        if not np.isfinite(edges.astype(float_type)).all():
            return False
    first, last = bin_limits(edges, float_type)
    atoms = edges[:-1] == edges[1:]
    return bool((first <= last).all() and (first[atoms] == edges[:-1][atoms]).all())


def _inwards(edges: Array, float_type: np.dtype, sign: int) -> Array:
    """The first float of a type strictly above each edge (sign 1), or strictly below it (sign -1)."""
    cast = edges.astype(float_type)
    return np.where((cast - edges) * sign > 0, cast, np.nextafter(cast, float_type.type(sign * np.inf)))


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
