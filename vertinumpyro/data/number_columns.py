"""Columns of numbers: integers as categories, counts, reals, and reals cut into public bins."""

import dataclasses
import math
from typing import ClassVar, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.core.validation import shown
from vertinumpyro.data import binning
from vertinumpyro.data.column import CodedColumn, Column, Encoded, Kind, OutOfBounds, integers, numbers, within
from vertinumpyro.data.number_texts import NumberFormat
from vertinumpyro.data.schema_checks import (
    MAX_CELLS,
    OUT_OF_BOUNDS_RULES,
    Place,
    floats,
    require,
    require_bins,
    require_bounds,
    require_choice,
    whole_numbers,
)
from vertinumpyro.data.storage_types import DtypeKind, holds


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegerColumn(CodedColumn):
    """An integer between public bounds, modelled as categories.

    Each integer is a category, unless `bins` or `edges` group them; a group is decoded to a uniform
    integer from it. ``bounds=(0, 9), bins=2`` has the groups 0..4 and 5..9;
    ``edges=(0, 1, 5, 77)`` has {0}, 1..4 and 5..77 (only the last group holds its upper edge), and
    ``edges=(0, 1, 5, 77, 77)`` has {77} as a group of its own.

    :param bounds: public (lo, hi), both included.
    :param bins: how many groups of equal size (up to one).
    :param edges: ascending edges, of which only the last two may be equal, instead of `bounds` and `bins`.
    :param out_of_bounds: what to do with a value outside the bounds: "error" or "clip".
    :param number_format: how texts of the table write the number 1234, as "€ 1,234.50" or "(1.234)" of -1234; a twin
        writes its own so. Left out, values are numbers.
    """

    bounds: tuple[int, int] | None = None
    bins: int | None = None
    edges: tuple[int, ...] | None = None
    out_of_bounds: OutOfBounds = "error"
    number_format: str | None = None

    type_name: ClassVar[str] = "integer"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        require_choice("out_of_bounds", self.out_of_bounds, OUT_OF_BOUNDS_RULES)
        if self.edges is None:
            self._check_run()
        else:
            require(self.bounds is None and self.bins is None, "give bounds, or edges, not both")
            object.__setattr__(self, "edges", whole_numbers("edges", self.edges))
            steps = np.diff(np.asarray(self.edges))
            ascending = len(steps) >= 2 and bool((steps[:-1] > 0).all()) and bool(steps[-1] >= 0)
            require(ascending, f"edges = {list(self.edges)}; give at least three, strictly ascending")
        self._check_dtype()

    def _check_run(self) -> None:
        if self.bounds is None:
            raise SchemaError("an integer column needs bounds = [lo, hi], or edges")
        object.__setattr__(self, "bounds", whole_numbers("bounds", self.bounds))
        require_bounds(self.bounds, "integer")
        count = self.bounds[1] - self.bounds[0] + 1
        if self.bins is not None:
            require_bins(self.bins, min(count, MAX_CELLS))
        require(self.bins is not None or count <= MAX_CELLS, f"{count} integers are too many; give bins")

    @property
    def kind(self) -> Kind:
        """The model sees codes."""
        return "categorical"

    @property
    def labels(self) -> tuple[int, ...]:
        """Every integer of the domain, where they are few; of groups too."""
        return _listed(*self._outer())

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """Integers, or a category where they are few."""
        return self._kinds_of_numbers("integer", "category")

    @property
    def starts(self) -> np.ndarray:
        """The first integer of each group, int64 [num_cells]."""
        if self.edges is not None:
            return np.asarray(self.edges[:-1], np.int64)
        low, high = self._outer()
        return binning.integer_starts(low, high, self.bins or high - low + 1)

    @property
    def num_cells(self) -> int:
        """Number of integers, or of their groups."""
        return len(self.starts)

    def _outer(self) -> tuple[int, int]:
        ends = list(self.bounds or self.edges or [])
        return ends[0], ends[-1]

    @property
    def middles(self) -> np.ndarray:
        """Of each group, which is an integer where they are not grouped."""
        return (self.starts + np.append(self.starts[1:] - 1, self._outer()[1])) / 2

    @property
    def limits(self) -> tuple[int, int]:
        """The bounds, or the outer edges."""
        return self._outer()

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return the first integer of each group."""
        return [str(start) for start in self.starts]

    def _domain_in_words(self) -> str:
        low, high = self._outer()
        return f"{low} to {high}" + (f" in {self.num_cells} groups" if self.num_cells <= high - low else "")

    def _fits(self, number_type: np.dtype) -> bool:
        return holds(number_type, self._outer())

    def _encode_present(self, series: pd.Series, place: Place) -> Encoded:
        values, moved = within(integers(series, place, self.written), self._outer(), self.out_of_bounds, place)
        return Encoded(binning.integer_codes(self.starts, values), moved)

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        drawn = binning.draw_integers(self.starts, self._outer()[1], self._checked(values), rng)
        return pd.Series(drawn.astype(np.int64))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountColumn(Column):
    """A count in 0..upper, modelled by a distribution on the non-negative integers.

    :param upper: the public largest count; decoded draws above it are clipped to it.
    :param out_of_bounds: what to do with a table's value outside 0..upper: "error" or "clip".
    :param number_format: how texts of the table write the number 1234, as "€ 1,234.50" or "(1.234)" of -1234; a twin
        writes its own so. Left out, values are numbers.
    """

    upper: int
    out_of_bounds: OutOfBounds = "error"
    number_format: str | None = None

    type_name: ClassVar[str] = "count"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        require_choice("out_of_bounds", self.out_of_bounds, OUT_OF_BOUNDS_RULES)
        (upper,) = whole_numbers("upper", (self.upper,))
        require(1 <= upper < 2**31, f"upper = {upper}; give an integer from 1 to 2^31 - 1")
        self._check_dtype()

    @property
    def labels(self) -> tuple[int, ...]:
        """Every count, where they are few."""
        return _listed(0, self.upper)

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """Integers, or a category where they are few."""
        return self._kinds_of_numbers("integer", "category")

    @property
    def kind(self) -> Kind:
        """The model sees a non-negative integer."""
        return "count"

    @property
    def num_values(self) -> int:
        """0 to `upper`."""
        return self.upper + 1

    @property
    def encoded_range(self) -> tuple[float, float]:
        """0 and `upper`."""
        return 0.0, float(self.upper)

    @property
    def num_categories(self) -> int:
        """Raise a `SchemaError`: a count has none."""
        raise SchemaError('a "count" column has no categories; use type = "integer", or check `kind` first')

    def placeholder(self) -> np.generic:
        """Return 0."""
        return np.int32(0)

    def example(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `n` uniform counts."""
        return rng.integers(self.upper, size=n, dtype=np.int32, endpoint=True)

    @property
    def limits(self) -> tuple[int, int]:
        """0 and `upper`."""
        return 0, self.upper

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return every count."""
        return [str(count) for count in range(self.upper + 1)]

    def _domain_in_words(self) -> str:
        return f"0 to {self.upper}"

    def _fits(self, number_type: np.dtype) -> bool:
        return holds(number_type, (0, self.upper))

    def _encode_present(self, series: pd.Series, place: Place) -> Encoded:
        return within(integers(series, place, self.written), (0, self.upper), self.out_of_bounds, place)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """See `Column.numbers`."""
        if not np.isfinite(values).all():
            raise ArgumentError("values holds a number that is not finite")
        return np.clip(np.rint(values), 0, self.upper).astype(np.float64)

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        return pd.Series(self.numbers(values).astype(np.int64))

    def _cells(self, values: np.ndarray, max_bins: int) -> tuple[np.ndarray, int]:
        return binning.group(values.astype(np.int64), self.upper + 1, max_bins)


def _listed(low: int, high: int) -> tuple[int, ...]:
    return tuple(range(low, high + 1)) if high - low < MAX_CELLS else ()


#: Real model units stay this far from 0 and 1, where a Beta's log density is infinite.
_UNIT_MARGIN = 1e-6

_TRANSFORMS = tuple(binning.FORWARD)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RealColumn(Column):
    """A bounded real, modelled on the open unit interval.

    Model units are ``m + (1 - 2m) (t(x) - t(lo)) / (t(hi) - t(lo))`` with t the transform and m = 1e-6,
    as float32. A lump at one value (many zeros, say) is badly served by a continuous density: use
    `BinnedColumn` for it.

    :param bounds: public (lo, hi) in the table's units.
    :param transform: "identity", "log1p" (lo > -1) or "sqrt" (lo >= 0), applied before scaling.
    :param out_of_bounds: what to do with a value outside the bounds: "error" or "clip".
    :param decimals: round decoded values to so many decimals; None leaves them as they are.
    :param number_format: how texts of the table write the number 1234, as "€ 1,234.50" or "(1.234)" of -1234; a twin
        writes its own so. Left out, values are numbers.
    """

    bounds: tuple[float, float]
    transform: binning.Transform = "identity"
    out_of_bounds: OutOfBounds = "error"
    decimals: int | None = None
    number_format: str | None = None

    type_name: ClassVar[str] = "real"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        _check_scale(self.bounds, self.transform, self.out_of_bounds)
        _check_decimals(self.decimals)
        object.__setattr__(self, "bounds", floats(self.bounds))
        if self.written is not None:
            object.__setattr__(self, "decimals", _written_decimals(self.written, self.decimals))
            places = self.written.places
            fit = all(round(bound, places) == bound for bound in self.bounds)
            require(fit, f"bounds = {list(self.bounds)}; number_format has {places} decimals, so give bounds these")
        self._check_dtype()

    @property
    def kind(self) -> Kind:
        """The model sees a real in (0, 1)."""
        return "real"

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """Floats."""
        return self._kinds_of_numbers("float")

    @property
    def num_values(self) -> None:
        """Real."""
        return None

    @property
    def encoded_range(self) -> tuple[float, float]:
        """The model's interval."""
        return _UNIT_MARGIN, 1.0 - _UNIT_MARGIN

    @property
    def num_categories(self) -> int:
        """Raise a `SchemaError`: a real has none."""
        raise SchemaError('a "real" column has no categories; give it bins, or check `kind` first')

    def placeholder(self) -> np.generic:
        """Return the middle of the model's interval."""
        return np.float32(0.5)

    def example(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `n` uniform model units."""
        return _inside(rng.random(n))

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds."""
        return self.bounds

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return the lower edge of each cell."""
        return [f"{edge:.3g}" for edge in binning.equal_width_edges(self.bounds, max_bins, self.transform)[:-1]]

    def _domain_in_words(self) -> str:
        return f"{self.bounds[0]:g} to {self.bounds[1]:g}"

    def _fits(self, number_type: np.dtype) -> bool:
        return binning.has_floats(np.asarray(self.bounds), number_type)

    def _encode_present(self, series: pd.Series, place: Place) -> Encoded:
        values, moved = within(numbers(series, place, self.written), self.bounds, self.out_of_bounds, place)
        return Encoded(_inside(binning.to_unit(values, self.bounds, self.transform)), moved)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """See `Column.numbers`."""
        if not np.isfinite(values).all():
            raise ArgumentError("values holds a number that is not finite")
        unit = (values.astype(np.float64) - _UNIT_MARGIN) / (1.0 - 2.0 * _UNIT_MARGIN)
        return binning.from_unit(np.clip(unit, 0.0, 1.0), self.bounds, self.transform)

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        decoded = self.numbers(values)
        if self.decimals is not None:
            decoded = np.clip(decoded.round(self.decimals), *self.bounds)
        return pd.Series(binning.as_floats(decoded, self.bounds, self._float_type))

    def _cells(self, values: np.ndarray, max_bins: int) -> tuple[np.ndarray, int]:
        return np.minimum((values * max_bins).astype(np.int64), max_bins - 1), max_bins


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BinnedColumn(CodedColumn):
    """A real cut into public bins, modelled as categories, decoded to uniform draws from the bin.

    Give either `bounds` and `bins` (equal widths on the transformed scale) or `edges`. Two equal
    neighbouring edges make an atom, a bin of that one value: ``edges=(0, 0, 10, 60)`` has the bins
    {0}, (0, 10) and [10, 60].

    :param bounds: public (lo, hi) in the table's units.
    :param bins: how many equal bins.
    :param edges: the bins' edges in ascending order, instead of `bounds` and `bins`.
    :param transform: "identity", "log1p" or "sqrt": the scale on which `bins` are equal.
    :param out_of_bounds: what to do with a value outside the outer edges: "error" or "clip".
    :param decimals: round what is drawn from a bin to so many decimals, within the bin; None leaves it as it is.
    :param number_format: how texts of the table write the number 1234, as "€ 1,234.50" or "(1.234)" of -1234; a twin
        writes its own so. Left out, values are numbers.
    """

    bounds: tuple[float, float] | None = None
    bins: int | None = None
    edges: tuple[float, ...] | None = None
    transform: binning.Transform = "identity"
    out_of_bounds: OutOfBounds = "error"
    decimals: int | None = None
    number_format: str | None = None

    type_name: ClassVar[str] = "real"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        if self.edges is None:
            require(self.bounds is not None and self.bins is not None, "give bounds and bins, or edges")
        else:
            require(self.bounds is None and self.bins is None, "give bounds and bins, or edges, not both")
            require(self.transform == "identity", 'edges are in the column\'s own units; drop "transform"')
            object.__setattr__(self, "edges", floats(self.edges))
        if self.bounds is not None:
            object.__setattr__(self, "bounds", floats(self.bounds))
        if self.bins is not None:
            require_bins(self.bins, MAX_CELLS)
        _check_scale(self.bounds or self._outer(), self.transform, self.out_of_bounds)
        _check_decimals(self.decimals)
        if self.written is not None:
            object.__setattr__(self, "decimals", _written_decimals(self.written, self.decimals))
        _check_edges(self.bin_edges)
        if self.decimals is not None:
            fit = binning.have_decimals(self.bin_edges, self.decimals)
            require(fit, f"decimals = {self.decimals}: a bin holds no such number; give more, or wider bins")
        self._check_dtype()

    @property
    def kind(self) -> Kind:
        """The model sees codes."""
        return "categorical"

    @property
    def dtype_kinds(self) -> tuple[DtypeKind, ...]:
        """Floats."""
        return self._kinds_of_numbers("float")

    @property
    def bin_edges(self) -> np.ndarray:
        """The float64 [num_cells + 1] edges, in the table's units."""
        if self.edges is not None:
            return np.asarray(self.edges, np.float64)
        assert self.bounds is not None  # __post_init__ saw to it
        assert self.bins is not None
        edges = binning.equal_width_edges(self.bounds, self.bins, self.transform)
        return edges if self.decimals is None else binning.to_decimals(edges, self.decimals)

    @property
    def num_cells(self) -> int:
        """Number of bins."""
        return len(self.bin_edges) - 1

    def _outer(self) -> tuple[float, float]:
        edges = list(self.edges or [])
        require(len(edges) >= 3, f"edges = {edges}; two bins need at least three edges")
        return edges[0], edges[-1]

    @property
    def middles(self) -> np.ndarray:
        """Of each bin."""
        return (self.bin_edges[:-1] + self.bin_edges[1:]) / 2

    @property
    def limits(self) -> tuple[float, float]:
        """The outer edges."""
        return float(self.bin_edges[0]), float(self.bin_edges[-1])

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return the bins' lower edges; the bin after an atom leaves the atom's value out, so it is "> value"."""
        edges = self.bin_edges
        after_atom = [False, *(edges[:-2] == edges[1:-1])]
        return [f"{'>' if after else ''}{edge:.3g}" for edge, after in zip(edges[:-1], after_atom, strict=True)]

    def _domain_in_words(self) -> str:
        return "{:g} to {:g} in {} bins".format(*self.limits, self.num_cells)

    def _fits(self, number_type: np.dtype) -> bool:
        return binning.has_floats(self.bin_edges, number_type)

    def _encode_present(self, series: pd.Series, place: Place) -> Encoded:
        values, moved = within(numbers(series, place, self.written), self.limits, self.out_of_bounds, place)
        return Encoded(binning.real_codes(self.bin_edges, values), moved)

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        codes = self._checked(values)
        return pd.Series(binning.draw_reals(self.bin_edges, codes, rng, self._float_type, self.decimals))


def _inside(unit: np.ndarray) -> np.ndarray:
    return (_UNIT_MARGIN + (1.0 - 2.0 * _UNIT_MARGIN) * unit).astype(np.float32)


def _check_scale(bounds: tuple[float, float], transform: str, out_of_bounds: str) -> None:
    require_bounds(floats(bounds), "real")
    require_choice("transform", transform, _TRANSFORMS)
    require_choice("out_of_bounds", out_of_bounds, OUT_OF_BOUNDS_RULES)
    least = {"identity": -math.inf, "log1p": -1.0, "sqrt": 0.0}[transform]
    reachable = bounds[0] > least or (transform == "sqrt" and bounds[0] == 0)
    require(reachable, f"bounds = {list(bounds)}; {transform} needs lo above {least:g}")


def _check_decimals(decimals: object) -> None:
    require(decimals is None or type(decimals) is int, f"decimals = {shown(decimals)}; give an integer")


def _written_decimals(written: NumberFormat, decimals: int | None) -> int:
    """Those of the texts, unless the schema says fewer."""
    found = written.places if decimals is None else decimals
    require(
        found <= written.places, f"decimals = {decimals}, and number_format {written.picture!r} has {written.places}"
    )
    return found


def _check_edges(edges: np.ndarray) -> None:
    require(bool(np.isfinite(edges).all()), "edges must be finite")
    steps = np.diff(edges)
    require(bool((steps >= 0).all()), f"edges = {edges.tolist()}; give them in ascending order")
    triple = bool(((steps[1:] == 0) & (steps[:-1] == 0)).any())
    require(not triple, f"edges = {edges.tolist()}; an atom is two equal edges, not three")
    wide = steps[steps > 0] > 1e-12 * np.abs(edges).max()
    require(bool(wide.all()), "bins are too narrow for floating point; use fewer, or move the edges apart")
