"""Columns of whole numbers: integers as categories, and counts."""

import dataclasses
from typing import ClassVar, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.data import binning
from vertinumpyro.data.column import CodedColumn, Column, Encoded, Kind, OutOfBounds, integers, within
from vertinumpyro.data.schema_checks import (
    MAX_CELLS,
    OUT_OF_BOUNDS_RULES,
    Place,
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
