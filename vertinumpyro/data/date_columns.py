"""Columns of dates and times: a public range, cut into days, months or other units, modelled as categories."""

import dataclasses
import datetime
import functools
import re
import zoneinfo
from typing import ClassVar, Literal, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import SchemaError
from vertinumpyro.core.validation import shown
from vertinumpyro.data import binning, storage_types
from vertinumpyro.data.column import CodedColumn, Encoded, Kind, OutOfBounds, within
from vertinumpyro.data.schema_checks import (
    MAX_CELLS,
    OUT_OF_BOUNDS_RULES,
    Place,
    require,
    require_bins,
    require_choice,
    require_list,
)

Unit = Literal["minute", "hour", "day", "week", "month", "quarter", "year"]

_UNITS = ("minute", "hour", "day", "week", "month", "quarter", "year")
_CLOCK = {"minute": "m", "hour": "h"}  # finer than a day: NumPy's names
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_WEEK = 7
_SHOWN = {"month": "%Y-%m", "quarter": "%Y-%m", "year": "%Y"}
_MOST_UNITS = 2**22
_OFFSETS = r"\s*(?P<offset>Z|z|UTC|GMT|[+-]\d{2}(?::?\d{2}(?::?\d{2})?)?)$"
_OFFSET = re.compile(rf"^(?P<local>.*?){_OFFSETS}")
_ISO_OFFSET = re.compile(rf"^(?P<local>.*[Tt ]\d{{2}}[\d:.,]*){_OFFSETS}")  # behind a time only
_MIDNIGHT = r"[T ]00:00(:00(\.0+)?)?$"
_FIRST, _LAST = 1678, 2261  # what nanoseconds in 64 bits hold


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DateColumn(CodedColumn):
    """A date, or a time on one place's clock, between public bounds; the model sees the number of its unit.

    Months, quarters and years are the calendar's, cut off at the bounds; weeks begin at the lower bound. ``bins``
    groups neighbouring units. What is decoded is uniform within its group: a day, or an hour or a minute where that is
    the unit.

    Of a time with a UTC offset or a zone the date is the one that it is written with, half past midnight at +02:00 its
    own day and not the day before, unless `timezone` moves all of them to one place. What is decoded has no zone.

    :param bounds: public (first, last), both included: ISO 8601 texts as "2019-01-01", dates, or TOML's dates. A last
        bound without a time of day includes that day.
    :param unit: "minute", "hour", "day", "week", "month", "quarter" or "year".
    :param bins: how many groups of equal numbers of units (up to one).
    :param format: how texts are written, in `strptime`'s letters, as "%d.%m.%Y"; None is ISO 8601. Where it is given,
        decoded values are such texts, without a UTC offset even if the format has %z.
    :param timezone: a place, as "Europe/Helsinki", to whose clock times with an offset or a zone are moved; a time
        without either is taken to be there already. By default each keeps the date that it is written with.
    :param out_of_bounds: what to do with a value outside the bounds: "error" or "clip".
    """

    bounds: tuple[str, str]
    unit: Unit = "day"
    bins: int | None = None
    format: str | None = None
    timezone: str | None = None
    out_of_bounds: OutOfBounds = "error"

    type_name: ClassVar[str] = "date"
    ordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the public domain."""
        self._check_missing()
        require_choice("out_of_bounds", self.out_of_bounds, OUT_OF_BOUNDS_RULES)
        require_choice("unit", self.unit, _UNITS)
        require(self.format is None or (isinstance(self.format, str) and "%" in self.format),
                f'format = {self.format!r}; give strptime\'s letters, e.g. "%d.%m.%Y"')  # fmt: skip
        known = self.timezone is None or _is_zone(self.timezone)
        require(known, f'timezone = {shown(self.timezone)} is no known place; give one\'s name, as "Europe/Helsinki"')
        require_list("bounds", self.bounds)
        require(len(self.bounds) == 2, f'bounds = {list(self.bounds)}; give ["2019-01-01", "2023-12-31"]')
        object.__setattr__(self, "bounds", tuple(_iso(bound) for bound in self.bounds))
        low, high = _outer(self.bounds, self.unit)
        require(low < high, f"bounds = {list(self.bounds)}; the first must lie before the last")
        require(
            high - low < _MOST_UNITS, f"bounds = {list(self.bounds)}: too many units of a {self.unit}; take longer ones"
        )
        count = len(_unit_starts(self.bounds, self.unit))
        require(count > 1, f"bounds = {list(self.bounds)} hold one {self.unit}; take a shorter unit")
        if self.bins is not None:
            require_bins(self.bins, min(count, MAX_CELLS))
        require(
            self.bins is not None or count <= MAX_CELLS,
            f"{count} {self.unit}s are too many; give bins, or a longer unit",
        )
        self._check_dtype()

    @property
    def kind(self) -> Kind:
        """The model sees codes."""
        return "categorical"

    @property
    def dtype_kinds(self) -> tuple[storage_types.DtypeKind, ...]:
        """Dates and times, or text."""
        return ("text",) if self.format is not None else ("time", "text")

    @property
    def starts(self) -> np.ndarray:
        """When each group begins, int64 [num_cells]: days, or hours or minutes, since 1970."""
        starts = _unit_starts(self.bounds, self.unit)
        return starts if self.bins is None else starts[binning.integer_starts(0, len(starts) - 1, self.bins)]

    @property
    def num_cells(self) -> int:
        """Number of units, or of their groups."""
        return len(_unit_starts(self.bounds, self.unit)) if self.bins is None else self.bins

    def cell_texts(self, max_bins: int) -> list[str]:
        """Return when each group begins."""
        shown = pd.Series(self._moments(self.starts)).dt.strftime(_SHOWN.get(self.unit, self._iso_format))
        return [str(text) for text in shown]

    def _domain_in_words(self) -> str:
        groups = "" if self.bins is None else f", in {self.bins} groups"
        return f"{self.bounds[0]} to {self.bounds[1]}, by {self.unit}{groups}"

    def _fits(self, number_type: np.dtype) -> bool:
        return False

    @property
    def _iso_format(self) -> str:
        return "%Y-%m-%dT%H:%M" if self.unit in _CLOCK else "%Y-%m-%d"

    def _moments(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.astype(f"datetime64[{_resolution(self.unit)}]").astype("datetime64[ns]")

    def _encode_present(self, series: pd.Series, place: Place) -> Encoded:
        found = self._parsed(series, place)
        numbers = found.astype(f"datetime64[{_resolution(self.unit)}]").astype(np.int64)
        values, moved = within(numbers.astype(np.float64), _outer(self.bounds, self.unit), self.out_of_bounds, place)
        return Encoded(binning.integer_codes(self.starts, values), moved)

    def _parsed(self, series: pd.Series, place: Place) -> np.ndarray:
        """Values that are dates or times, or texts of them. The conversion's own errors may quote a cell."""
        if pd.api.types.is_numeric_dtype(series.dtype):
            place.fail('holds numbers, the schema says dates; convert the column, or use type = "integer"')
        moments = read_moments(series, self.format, self.timezone)
        if np.isnat(moments).any():
            how = "ISO 8601 (2023-12-31)" if self.format is None else f"the format {self.format!r}"
            place.fail(f"holds a value that is no date in {how}; repair it, or set format in the schema")
        return moments

    def _is_code(self, present: pd.Series) -> np.ndarray:
        """As of every column, and of dates that are no texts by how ISO 8601 writes them."""
        return super()._is_code(days_of(present))

    def _decode_present(self, values: np.ndarray, rng: np.random.Generator) -> pd.Series:
        last = _outer(self.bounds, self.unit)[1]
        return pd.Series(self._moments(binning.draw_integers(self.starts, last, self._checked(values), rng)))

    def _stored(self, decoded: pd.Series) -> pd.Series:
        dtype = None if self.dtype is None else storage_types.parse(self.dtype)
        if self.format is not None or (dtype is not None and storage_types.kind(dtype) == "text"):
            decoded = decoded.dt.strftime(_without_offset(self.format) if self.format else self._iso_format)
        return decoded if dtype is None else decoded.astype(dtype)


def days_of(series: pd.Series) -> pd.Series:
    """Dates, times and texts as texts, a midnight by its day alone."""
    return series.astype(object).map(str).astype(object).str.strip().str.replace(_MIDNIGHT, "", regex=True)


def read_moments(series: pd.Series, written: str | None = None, timezone: str | None = None) -> np.ndarray:
    """Return dates and times on the clock of the place, datetime64[s] [n]; NaT where a value is none.

    :param series: dates, times, or texts of them, with zones or without, none missing.
    :param written: the texts' format; None is ISO 8601.
    :param timezone: as in `DateColumn`.
    """
    if _has_zone(series):
        return _seconds(_on_clock(series, timezone))
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "M":
        return _seconds(series)
    values = pd.Series(series.astype(object)).reset_index(drop=True)
    is_text = storage_types.are_texts(values)
    found = np.full(len(values), "NaT", "datetime64[s]")
    numbers, different = pd.factorize(values.to_numpy(object)[is_text])  # days repeat
    found[is_text] = _read_texts(pd.Series(different, dtype=str), written, timezone)[numbers]
    others = pd.Series(values[~is_text]).map(lambda value: _on_its_clock(value, timezone))
    found[~is_text] = _parsed(pd.Series(others), None)
    return found


def _has_zone(series: pd.Series) -> bool:
    arrow = getattr(series.dtype, "pyarrow_dtype", None)
    return isinstance(series.dtype, pd.DatetimeTZDtype) or getattr(arrow, "tz", None) is not None


def _on_clock(zoned: pd.Series, timezone: str | None) -> pd.Series:
    moved = zoned if timezone is None else zoned.dt.tz_convert(timezone)
    return moved.dt.tz_localize(None)


def _on_its_clock(value: object, timezone: str | None) -> object:
    """One object: a time without its zone; anything else as it is."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return value
    moved = value if timezone is None else value.astimezone(zoneinfo.ZoneInfo(timezone))
    return moved.replace(tzinfo=None)


def _read_texts(texts: pd.Series, written: str | None, timezone: str | None) -> np.ndarray:
    texts = texts.str.strip()
    if written is not None and "%z" in written.removesuffix("%z").lower():  # within the text: one by one
        values = texts.map(lambda text: _on_its_clock(_strptime(text, written), timezone))
        one_by_one, plain = _parsed(values, None), _parsed(texts, _without_offset(written))
        return np.where(np.isnat(one_by_one), plain, one_by_one)
    if written is not None and not written.lower().endswith("%z"):
        return _parsed(texts, written)
    # pandas would move a text with an offset to UTC, and takes no two offsets in one column.
    parts = texts.str.extract(_ISO_OFFSET if written is None else _OFFSET)
    local = _parsed(parts["local"].fillna(texts), "ISO8601" if written is None else _without_offset(written))
    if timezone is None:
        return local
    offsets = parts["offset"].map(_offset_seconds, na_action="ignore").astype(float).to_numpy()
    with_offset = ~np.isnan(offsets) & ~np.isnat(local)
    instants = pd.Series(local[with_offset] - offsets[with_offset].astype("timedelta64[s]"))
    local[with_offset] = _seconds(_on_clock(instants.dt.tz_localize("UTC"), timezone))
    return local


def _without_offset(written: str) -> str:
    return re.sub(r"\s*%[zZ]", "", written)


def _offset_seconds(offset: str) -> int:
    digits = re.sub(r"\D", "", offset).ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:6])
    return (-1 if offset.startswith("-") else 1) * (hours * 3600 + minutes * 60 + seconds)


def _strptime(text: str, written: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, written)
    except ValueError:
        return None


def _parsed(values: pd.Series, written: str | None) -> np.ndarray:
    """Values without zones; the conversion's own errors may quote a cell."""
    try:
        return _seconds(pd.to_datetime(values, format=written, errors="coerce"))
    except (TypeError, ValueError, OverflowError, pd.errors.OutOfBoundsDatetime):
        return np.full(len(values), "NaT", "datetime64[s]")


def _seconds(times: pd.Series) -> np.ndarray:
    return times.to_numpy(dtype="datetime64[s]", na_value=np.datetime64("NaT", "s"), copy=True)


def _is_zone(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False


def _iso(bound: object) -> str:
    """A bound as ISO text."""
    if isinstance(bound, datetime.date | datetime.datetime | pd.Timestamp):
        bound = bound.isoformat()
    try:
        moment = datetime.datetime.fromisoformat(bound) if isinstance(bound, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None or not _FIRST <= moment.year <= _LAST:
        raise SchemaError(f'bounds hold {bound!r}; give dates from {_FIRST} to {_LAST} without a zone, as "2019-01-01"')
    return str(bound)


def _resolution(unit: str) -> str:
    return _CLOCK.get(unit, "D")


def _outer(bounds: tuple[str, str], unit: str) -> tuple[int, int]:
    """The first and the last day, hour or minute, since 1970."""
    low, high = (np.datetime64(datetime.datetime.fromisoformat(bound), "m") for bound in bounds)
    if len(bounds[1]) <= len("2019-01-01"):
        high = high + np.timedelta64(1, "D") - np.timedelta64(1, "m")
    name = f"datetime64[{_resolution(unit)}]"
    return int(low.astype(name).astype(np.int64)), int(high.astype(name).astype(np.int64))


@functools.lru_cache(maxsize=256)
def _unit_starts(bounds: tuple[str, str], unit: str) -> np.ndarray:
    """When each unit begins, cut off at the first bound."""
    low, high = _outer(bounds, unit)
    if unit not in _MONTHS:
        starts = np.arange(low, high + 1, _WEEK if unit == "week" else 1, dtype=np.int64)
    else:
        size = _MONTHS[unit]
        first, last = (int(np.datetime64(day, "D").astype("datetime64[M]").astype(np.int64)) for day in (low, high))
        months = np.arange(first // size * size, last + 1, size, dtype=np.int64)
        starts = np.maximum(months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64), low)
    starts.flags.writeable = False
    return starts
