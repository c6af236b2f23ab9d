"""What every column promises: a public domain, and the way between a table's units and the model's.

    table units (a pandas Series) --encode--> model units (an array) --decode--> table units

| model kind    | encoded array                                     | a natural likelihood |
|---------------|---------------------------------------------------|----------------------|
| "real"        | float32 in [1e-6, 1 - 1e-6]                       | Beta                 |
| "categorical" | int32 codes 0..num_categories-1                   | Categorical          |
| "binary"      | int32 0/1                                         | Bernoulli            |
| "count"       | int32 0..upper                                    | Poisson              |

Everything that a column knows is public: it comes from the schema, never from a table.
"""

import abc
import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, SchemaError
from vertinumpyro.data import binning, storage_types
from vertinumpyro.data.number_texts import NumberFormat
from vertinumpyro.data.schema_checks import MISSING_RULES, Place, missing_codes, require, require_choice

Kind = Literal["real", "categorical", "binary", "count"]
Missing = Literal["forbid", "mask", "category"]
OutOfBounds = Literal["error", "clip"]

_REDRAWS = 30
_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal"})


class Moved(NamedTuple):
    """Of a column's present values, how many lay outside its bounds and count as the nearest end. NOT DP: it is for the
    column's party alone.
    """

    count: int
    of: int

    def and_of(self, more: "Moved") -> "Moved":
        """With those of more records."""
        return Moved(self.count + more.count, self.of + more.of)


class Encoded(NamedTuple):
    """Model units, and how many values were moved to an end; None of a column without ends."""

    values: np.ndarray
    moved: Moved | None = None


class Cells(NamedTuple):
    """A column cut into public cells: `codes` int32 [n] in 0..num_cells-1."""

    codes: np.ndarray
    num_cells: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column(abc.ABC):
    """One column of the public schema.

    Where values are missing is private, and learned only where that is asked for: "category". A model of a column
    with "mask" need not say anything about it, and what it then generates is complete.

    :param missing: what a missing value (an empty cell, NaN, None, NA) means. "forbid": an error. "mask": it is left
        out of the likelihood; encoded as the placeholder, and reported as not observed by `observed`. "category": it is
        learned that it is missing, and a twin has it missing again: of codes it is one more, the last one; of reals and
        counts, which have none, it is masked (`masked`), and the model has a site for the mask.
    :param missing_codes: numbers or texts that stand for a missing value in the table, as -999 or "unknown"; `missing`
        then says what becomes of them. A twin has missing values there, never the codes.
    :param dtype: the storage type of decoded values, e.g. "int16" or "category" (`data.storage_types` has the names).
        By default int64, float64, pandas' default for text, or a nullable type where values may be missing. It is
        public, and says nothing that the model sees.
    """

    missing: Missing = "forbid"
    missing_codes: tuple[float | str, ...] = ()
    dtype: str | None = None

    #: The TOML `type` that stands for this class.
    type_name: ClassVar[str]

    #: Whether neighbouring values are alike: they may be merged into cells, and scaled to a number.
    ordered: ClassVar[bool]

    @property
    def labels(self) -> tuple[Any, ...]:
        """The values of the public domain, where it is a short list; otherwise none."""
        return ()

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and the largest value of a quantity, in table units; None of a column of mere labels."""
        return None

    @property
    def middles(self) -> np.ndarray | None:
        """The middle of each code's values, float64 [num_cells] in table units; None of what is no coded number."""
        return None

    @abc.abstractmethod
    def cell_texts(self, max_bins: int) -> list[str]:
        """Return a short text for each code of a present value, or for each of a real's `max_bins` cells."""

    @abc.abstractmethod
    def _domain_in_words(self) -> str:
        """The public domain of present values."""

    @property
    @abc.abstractmethod
    def dtype_kinds(self) -> tuple[storage_types.DtypeKind, ...]:
        """What kinds of storage hold this column."""

    @abc.abstractmethod
    def _fits(self, number_type: np.dtype) -> bool:
        """Whether a type of numbers holds the whole public domain, each value where it belongs."""

    @property
    @abc.abstractmethod
    def kind(self) -> Kind:
        """The model's view of the column."""

    @property
    def masked(self) -> bool:
        """Whether a mask beside the encoded values says where they are missing, instead of a code of its own."""
        return self.missing == "mask" or self.mask_is_learned

    @property
    def mask_is_learned(self) -> bool:
        """Whether a twin is to have missing values again that no code stands for."""
        return self.missing == "category" and self.kind in ("real", "count")

    @property
    @abc.abstractmethod
    def num_values(self) -> int | None:
        """Number of encoded values 0..num_values-1 of present ones; None where they are real."""

    @property
    @abc.abstractmethod
    def encoded_range(self) -> tuple[float, float]:
        """The smallest and the largest encoded value, the missing category included."""

    @property
    @abc.abstractmethod
    def num_categories(self) -> int:
        """Number of codes, the missing category included; a `SchemaError` for "real" and "count"."""

    @abc.abstractmethod
    def placeholder(self) -> np.generic:
        """Return one valid encoded scalar, the same for every table."""

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """The number that each encoded, present value stands for, float64 [n] in table units; of a bin its middle.

        What a release adds up may hold these and never `decode`'s draws: a draw comes from a stream that all records
        share, so one record's value would decide about the numbers of others.

        :raises SchemaError: the column has labels and no numbers.
        """
        raise SchemaError(f'a "{self.type_name}" column has labels and no numbers')

    @abc.abstractmethod
    def example(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `n` valid encoded values from the public domain alone: stand-ins for tracing a model."""

    @abc.abstractmethod
    def _encode_present(self, series: pd.Series, place: Place) -> "np.ndarray | Encoded":
        """Encode a series without missing values; with what it moves, where it has ends."""

    @abc.abstractmethod
    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        """Decode values of which none stands for a missing one."""

    @abc.abstractmethod
    def _cells(self, values: np.ndarray, max_bins: int) -> tuple[np.ndarray, int]:
        """Cut encoded, present values into public cells."""

    def describe(self) -> str:
        """Return the public domain in words, say "0 to 60 in 15 bins, may be missing"."""
        learned = ", missing is learned" if self.masked else ", missing is a category"
        rule = {"forbid": "", "mask": ", may be missing", "category": learned}[self.missing]
        codes = f" ({', '.join(map(str, self.missing_codes))})" if self.missing_codes else ""
        return f"{self._domain_in_words()}{rule}{codes}"

    def encode(self, series: pd.Series, *, party: str, name: str) -> np.ndarray:
        """Return the column in model units.

        :param series: the column as it stands in the party's table, in the schema's own units.
        :param party: who owns it; only for the error message.
        :param name: what it is called; only for the error message.
        :return: An array of ``len(series)`` model units (see the module's table).
        :raises DataError: a value is missing where that is forbidden, has the wrong type, is not finite, or lies
            outside the public domain. The message names party and column, never the value.
        """
        return self.encode_counted(series, party=party, name=name).values

    def encode_counted(self, series: pd.Series, *, party: str, name: str) -> Encoded:
        """As `encode`, and of the present values how many lay outside the bounds. NOT DP."""
        present, moved = ~self._absent(series, Place(party, name)), None
        filler = self.placeholder() if self.masked or self.missing == "forbid" else self.num_categories - 1
        encoded = np.full(len(series), filler, dtype=self.placeholder().dtype)
        if present.any():
            found = self._encode_present(plain(series.loc[present]), Place(party, name))
            encoded[present], moved = found if isinstance(found, Encoded) else (found, None)
        return Encoded(encoded, moved)

    def quantities(self, series: pd.Series) -> np.ndarray:
        """A quantity's values in table units as numbers, float64 [n]; NaN where one is missing or none."""
        if self.written is not None and not pd.api.types.is_numeric_dtype(series.dtype):
            return self.written.read(series.astype(object))
        found = pd.Series(pd.to_numeric(plain(series), errors="coerce"))
        return found.astype("Float64").to_numpy(np.float64, na_value=np.nan)

    def observed(self, series: pd.Series) -> np.ndarray:
        """Return bool [n]: True where a value is present. It matters to columns that are `masked`."""
        present = storage_types.are_present(series)
        return _narrowed(present, ~self._is_code(plain(series.loc[present]))) if self.missing_codes else present

    def _is_code(self, present: pd.Series) -> np.ndarray:
        """Which of these values, none missing, stand for a missing one."""
        of_numbers = [code for code in self.missing_codes if not isinstance(code, str)]
        if pd.api.types.is_numeric_dtype(present.dtype):
            return np.isin(present.to_numpy(np.float64), of_numbers)
        as_numbers = present.isin(of_numbers).to_numpy(bool)
        texts = present.astype(str).str.strip().isin(list(map(str, self.missing_codes))).to_numpy(bool)
        if self.written is not None:
            texts |= np.isin(self.written.read(present), of_numbers)
        return np.where(storage_types.are_texts(present), texts, as_numbers)

    def decode(self, values: np.ndarray, rng: np.random.Generator, *, observed: np.ndarray | None = None) -> pd.Series:
        """Return model units as a Series of the type that `dtype` names.

        Where it is None, reals come as float64 inside the bounds, integers and counts as int64, categories as
        themselves; where the schema allows missing values, integers are nullable ``Int64``. A bin becomes a uniform
        draw from it. Draws that leave an unbounded model's domain (a Poisson above `upper`) are clipped.

        :param values: [n] model units.
        :param rng: draws within bins. Public randomness: it protects nothing.
        :param observed: bool [n]; where False the decoded value is missing.
        :raises ArgumentError: `values` is not one-dimensional or holds something that no table encodes to.
        """
        encoded = np.asarray(values)
        if encoded.dtype.kind == "i":  # as wide as the arithmetic below needs
            encoded = encoded.astype(np.int64)
        if encoded.ndim != 1:
            raise ArgumentError(f"values has {encoded.ndim} dimensions; decode takes one column, [n]")
        present = np.ones(len(encoded), bool) if observed is None else np.asarray(observed, bool)
        if self.missing == "category" and not self.masked:
            present = present & (encoded != self.num_categories - 1)
        decoded = self._drawn(encoded[present], rng)
        if self.missing == "forbid" and present.all():
            return decoded
        if self.missing_codes:  # the one value of a bin is a code: it would be read as missing
            kept = ~self._is_code(plain(decoded))
            decoded, present = pd.Series(decoded[kept]), _narrowed(present, kept)
        nullable = decoded.astype(storage_types.nullable(decoded.dtype))
        return nullable.set_axis(np.flatnonzero(present)).reindex(range(len(encoded)))

    def _drawn(self, encoded: np.ndarray, rng: np.random.Generator) -> pd.Series:
        """As the table has it; what would be read as missing is drawn again, as often as a bin may hold little else."""
        found = self._stored(self._decode_present(encoded, rng))
        for _ in range(_REDRAWS if self.missing_codes else 0):
            codes = np.flatnonzero(self._is_code(plain(found)))
            if not len(codes):
                break
            order = np.arange(len(found))
            order[codes] = len(found) + np.arange(len(codes))
            again = self._stored(self._decode_present(encoded[codes], rng))
            found = pd.Series(pd.concat([found, again], ignore_index=True).iloc[order]).reset_index(drop=True)
        return found

    def _stored(self, decoded: pd.Series) -> pd.Series:
        dtype = None if self.dtype is None else storage_types.parse(self.dtype)
        if isinstance(dtype, pd.CategoricalDtype):
            return pd.Series(pd.Categorical(decoded, categories=list(self.labels), ordered=bool(dtype.ordered)))
        if self.written is not None:
            decoded = pd.Series(self.written.write(decoded.to_numpy(np.float64)), dtype=str)
        return decoded if dtype is None else decoded.astype(dtype)

    @property
    def written(self) -> NumberFormat | None:
        """How its numbers are written, where they are texts."""
        picture: str | None = getattr(self, "number_format", None)
        return None if picture is None else NumberFormat.of(picture)

    def _kinds_of_numbers(self, *kinds: storage_types.DtypeKind) -> tuple[storage_types.DtypeKind, ...]:
        """What holds its numbers: texts alone, where these are its numbers."""
        return ("text",) if self.written is not None else kinds

    @property
    def _float_type(self) -> np.dtype:
        plain_type = self.dtype is None or self.written is not None
        return np.dtype(np.float64) if plain_type else storage_types.number_type(storage_types.parse(str(self.dtype)))

    def _check_missing(self) -> None:
        """Raise a `SchemaError` unless it is said well what is missing; the first line of a subclass's checks."""
        require_choice("missing", self.missing, MISSING_RULES)
        object.__setattr__(self, "missing_codes", missing_codes(self.missing_codes))
        if (picture := getattr(self, "number_format", None)) is not None:
            NumberFormat.of(picture)  # refuses what shows no number

    def _check_dtype(self) -> None:
        """Raise a `SchemaError` unless `dtype` holds this column; the last line of a subclass's checks."""
        both = [] if self.ordered else [code for code in self.missing_codes if code in self.labels]
        require(
            not both, f"missing_codes holds {', '.join(map(repr, both))}, a category; drop it from one of the lists"
        )
        if self.dtype is None:
            return
        require(isinstance(self.dtype, str), f'dtype = {self.dtype!r}; give its name, e.g. "int16"')
        said, dtype = f"dtype = {self.dtype!r}", storage_types.parse(self.dtype)
        kind = storage_types.kind(dtype)
        require(kind in self.dtype_kinds, f"{said}; this column is stored as {' or '.join(self.dtype_kinds)}")
        if kind == "category":
            require(self.labels != (), f"{said}; the public domain is too large to list as categories")
        if kind in ("boolean", "integer", "float"):
            fits = self._fits(storage_types.number_type(dtype))
            require(fits, f"{said} does not hold the whole public domain; give a wider one, or leave it out")
        roomy = storage_types.nullable(dtype)
        require(self.missing == "forbid" or roomy == dtype, f'{said} has no missing values; give "{roomy}"')

    def discretise(self, series: pd.Series, max_bins: int = 16) -> Cells:
        """Cut a column in table units into public cells, to compare marginals of two tables.

        Reals, counts, integers and bins use at most `max_bins` equal cells of the public domain (equal on
        the transformed scale); categories stay as they are. Where the schema allows missing values they
        have a cell of their own, the last.

        :raises DataError: as in `encode`.
        """
        if max_bins < 1:
            raise ArgumentError(f"max_bins={max_bins}; give at least 1")
        place = Place("evaluated table", str(series.name))
        present = ~self._absent(series, place)
        encoded = self.encode(series.loc[present], party=place.party, name=place.column)
        cells, num_cells = self._cells(encoded, max_bins)
        codes = np.full(len(series), num_cells, np.int32)
        codes[present] = cells
        return Cells(codes, num_cells + (self.missing != "forbid"))

    @property
    def _value_for_missing(self) -> str:
        if self.kind in ("real", "count"):
            coded = "bins" if self.kind == "real" else 'type = "integer" with edges'
            return f'give it {coded} and missing = "category", which regressions take'
        return 'missing = "category", which regressions take'

    def _absent(self, series: pd.Series, place: Place) -> np.ndarray:
        absent = ~self.observed(series)
        if self.missing == "forbid" and absent.any():
            place.fail(
                'has missing values; fill them, or set missing = "mask" in the schema, which leaves them out of a '
                f"model, or {self._value_for_missing}"
            )
        return absent


def _narrowed(chosen: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """A choice of rows, without those of the chosen that are not kept."""
    narrowed = chosen.copy()
    narrowed[chosen] = kept
    return narrowed


class CodedColumn(Column):
    """A column that the model sees as codes; `num_cells` of them stand for present values."""

    @property
    @abc.abstractmethod
    def num_cells(self) -> int:
        """Number of codes for present values."""

    @property
    def num_values(self) -> int:
        """`num_cells`."""
        return self.num_cells

    @property
    def encoded_range(self) -> tuple[float, float]:
        """The first and the last code."""
        return 0.0, float(self.num_categories - 1)

    @property
    def num_categories(self) -> int:
        """Number of codes, the missing category included."""
        return self.num_cells + (self.missing == "category")

    def placeholder(self) -> np.generic:
        """Return code 0."""
        return np.int32(0)

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """See `Column.numbers`: the middle of each code."""
        middles = self.middles
        return super().numbers(values) if middles is None else middles[self._checked(values)]

    def example(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw `n` uniform codes."""
        return rng.integers(self.num_categories, size=n, dtype=np.int32)

    def _cells(self, values: np.ndarray, max_bins: int) -> tuple[np.ndarray, int]:
        return binning.group(values, self.num_cells, max_bins if self.ordered else self.num_cells)

    def _checked(self, codes: np.ndarray) -> np.ndarray:
        integral = np.issubdtype(codes.dtype, np.integer) or codes.dtype == bool
        if not integral or ((codes < 0) | (codes >= self.num_cells)).any():
            raise ArgumentError(f"values are not integer codes in 0..{self.num_categories - 1}")
        return codes.astype(np.int64)


def plain(series: pd.Series) -> pd.Series:
    """Undo categorical storage, pandas' or Arrow's, which hides the type of the values."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series.astype(series.dtype.categories.dtype)
    if str(series.dtype).startswith("dictionary<"):
        return series.astype(object)
    return series


def numbers(series: pd.Series, place: Place, written: NumberFormat | None = None) -> np.ndarray:
    """Return a series without missing values as finite float64, or fail naming the place.

    :param written: how texts are written that are numbers.
    """
    if written is not None and not pd.api.types.is_numeric_dtype(series.dtype):
        values = written.read(series)
        if not np.isfinite(values).all():
            place.fail(
                f"holds a text that is not written as number_format = {written.picture!r} shows; repair it, or show in "
                "the schema how numbers are written"
            )
        return values
    found = pd.api.types.infer_dtype(series, skipna=True)
    if found not in _NUMBERS:
        place.fail(f"holds {found} values, the schema says numbers; convert the column")
    values = _as_floats(series)
    if values is None or not np.isfinite(values).all():
        place.fail("holds a value that is not a finite number; repair it")
    return values


def _as_floats(series: pd.Series) -> np.ndarray | None:
    # The conversion's own errors may quote a cell, so they are dropped before anything is raised.
    try:
        return series.to_numpy(dtype=np.float64)
    except (TypeError, ValueError, ArithmeticError):
        return None


def integers(series: pd.Series, place: Place, written: NumberFormat | None = None) -> np.ndarray:
    """As `numbers`, integral ones."""
    values = numbers(series, place, written)
    if (values != np.rint(values)).any():
        place.fail('holds a value that is not an integer; round it, or use type = "real"')
    return values


def within(values: np.ndarray, bounds: tuple[float, float], rule: OutOfBounds, place: Place) -> Encoded:
    """Apply the schema's rule to values outside the bounds, and count what it moves."""
    low, high = bounds
    outside = (values < low) | (values > high)
    if rule == "error" and outside.any():
        place.fail(
            f"holds a value outside the public bounds [{low}, {high}]; "
            'widen the bounds, or set out_of_bounds = "clip" in the schema'
        )
    return Encoded(np.clip(values, low, high), Moved(int(outside.sum()), len(values)))
