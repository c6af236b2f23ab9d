"""Public rules that make one record of all rows that a party's file has of one person: which column of the file each
column of the schema is taken from, how, and what a person without rows gets.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, final, get_args

from vertinumpyro.core.errors import DataError, SchemaError
from vertinumpyro.core.validation import shown
from vertinumpyro.data.category_columns import CategoricalColumn
from vertinumpyro.data.column import Column
from vertinumpyro.data.date_columns import DateColumn
from vertinumpyro.data.number_columns import RealColumn
from vertinumpyro.data.schema_checks import missing_codes, require, require_choice, suggest

Rule = Literal["count", "sum", "mean", "min", "max", "first", "last", "any", "most frequent", "days between"]
NUMBER = "number"
"""What `order_format` says of an order column that holds numbers."""

_NUMBERS, _EVERY = ("integer", "count", "real"), ("integer", "count", "real", "categorical", "binary", "date")
_TYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("count", "sum", "days between"), _NUMBERS),
        **dict.fromkeys(("min", "max"), (*_NUMBERS, "date")),
        **dict.fromkeys(("first", "last", "most frequent"), _EVERY),
        "mean": ("real",),
        "any": ("binary",),
    }
)
_MADE = ("count", "sum", "mean", "days between")
"""Rules whose results are numbers that no row holds."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Take:
    """How one column of the records follows from a person's rows.

    :param rule: "count" of rows, or of those where `of` has a value; "sum", "mean", "min" and "max" of its values;
        "first" and "last" by the order column; "any", whether a row has the second of two values; "most frequent", of
        several the smallest; "days between" its first and its last date. Rows without a value in `of` are passed over.
    :param of: the column of the file; by default the one of the record's name, and of a "count" none.
    :param without_rows: what a person without rows gets; left out, a missing value, and of a "count" 0.
    :param format: how texts of dates are written, for "days between"; left out: ISO 8601.
    :param missing_codes: as of columns, in the rows of a "count", "sum", "mean" or "days between".
    """

    rule: Rule
    of: str | None = None
    without_rows: float | str | bool | None = None
    format: str | None = None
    missing_codes: tuple[float | str, ...] = ()

    def __post_init__(self) -> None:
        """Check what does not depend on the column."""
        require_choice("rule", self.rule, get_args(Rule))
        require(self.of is None or (isinstance(self.of, str) and self.of != ""), f"of = {shown(self.of)}; give a name")
        object.__setattr__(self, "missing_codes", missing_codes(self.missing_codes))
        require(
            self.format is None or self.rule == "days between",
            f'format is read by "days between"; of "{self.rule}" the column\'s own format says how dates are written',
        )
        if self.rule == "count" and self.without_rows is None:
            object.__setattr__(self, "without_rows", 0)

    @property
    def makes_numbers(self) -> bool:
        """Whether its results are numbers that no row holds."""
        return self.rule in _MADE

    def source(self, name: str) -> str | None:
        """The column of the file, for a column of this name; None where rows alone are counted."""
        return self.of if self.of is not None or self.rule == "count" else name

    def read_as(self, column: Column) -> Column:
        """A column that is read as the source is, and has its values missing where that has."""
        if not self.makes_numbers:
            return column
        if self.rule == "count":  # whatever it holds: of these labels, neither texts nor numbers are expected
            return CategoricalColumn(categories=(False, True), missing="mask", missing_codes=self.missing_codes)
        if self.rule == "days between":
            return _dates(self.format, self.missing_codes)
        own = None if column.written is None else column.written.picture
        return RealColumn(bounds=(0.0, 1.0), missing="mask", missing_codes=self.missing_codes, number_format=own)

    def problem(self, column: Column) -> str:
        """What is wrong with the rule for this column; empty where nothing is."""
        said = f'rule "{self.rule}"'
        if column.type_name not in _TYPES[self.rule]:
            return f"{said} makes no {column.type_name} column; give type = {' or '.join(map(repr, _TYPES[self.rule]))}"
        if self.makes_numbers and column.missing_codes:
            return f"{said} may come to a number in missing_codes; move them from the column to the rule"
        if not self.makes_numbers and self.missing_codes:
            return f"{said} takes values as they stand; move missing_codes from the rule to the column"
        if self.without_rows is not None and not _holds(column, self.without_rows):
            return f"without_rows = {shown(self.without_rows)} is no value of the column; give one that its domain has"
        return ""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """What one record of a party's file with several rows of a person is. Public.

    :param per: what one record is: the id column.
    :param take: for each column of the party, how it follows from a person's rows.
    :param order: the column of the file by which rows come "first" and "last"; of equal ones the value decides, the
        smaller text before the larger.
    :param order_format: how its dates are written; left out: ISO 8601; "number" where it holds numbers.
    """

    per: str
    take: Mapping[str, Take]
    order: str | None = None
    order_format: str | None = None

    def __post_init__(self) -> None:
        """Freeze the rules."""
        object.__setattr__(self, "take", MappingProxyType(dict(self.take)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as plain dicts: the frozen mapping itself does not pickle."""
        return _rows, (self.per, dict(self.take), self.order, self.order_format)

    def problems(self, columns: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
        """Yield a column, or "", and what is wrong with its rule."""
        for name in columns:
            if name not in self.take:
                yield (
                    name,
                    f'has no rule; say under rows.take.{name} what is taken of a person\'s rows, e.g. rule = "sum"',
                )
        for name, take in self.take.items():
            if name not in columns:
                yield "", f"rows.take: there is no column {name!r}; {suggest(name, columns)}"
                continue
            if problem := take.problem(columns[name]):
                yield name, problem
            if take.rule in ("first", "last") and self.order is None:
                yield name, f'rule "{take.rule}" needs an order; name a column of the file: order under rows'
            if take.source(name) == self.per:
                yield name, "is taken of the id column, which is the same in all rows; name another one in of"
        if not self.order and self.order_format is not None:
            yield "", "rows: order_format says how order is written; name that column too"
        if not any(True for name in columns if name not in self.take):
            try:
                self.sources(columns)
            except SchemaError as error:
                yield "", str(error)

    def sources(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """The columns of the file that are needed, each with a column of the schema that is read alike.

        :raises SchemaError: one is read as numbers and as texts.
        """
        found: dict[str, Column] = {}
        by_rank = sorted(self.take.items(), key=lambda item: item[1].rule == "count")  # it takes any kind of values
        for name, take in by_rank:
            source, column = take.source(name), take.read_as(columns[name])
            if source is not None and take.rule == "count":
                found.setdefault(source, column)
            elif source is not None:
                _add(found, source, column)
        if self.order is not None:
            numbers = RealColumn(bounds=(0.0, 1.0), missing="mask")
            _add(found, self.order, numbers if self.order_format == NUMBER else _dates(self.order_format))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the plain dict that describes it."""
        return {
            **{key: value for key in ("per", "order", "order_format") if (value := getattr(self, key)) is not None},
            "take": {name: _told(take) for name, take in self.take.items()},
        }


def _rows(per: str, take: Mapping[str, Take], order: str | None, order_format: str | None) -> Rows:
    return Rows(per=per, take=take, order=order, order_format=order_format)


def _told(take: Take) -> dict[str, Any]:
    given = {f.name: getattr(take, f.name) for f in dataclasses.fields(take) if getattr(take, f.name) != f.default}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


def _dates(written: str | None, codes: tuple[float | str, ...] = ()) -> DateColumn:
    return DateColumn(bounds=("2000-01-01", "2000-12-31"), unit="day", format=written, missing_codes=codes)


def _add(found: dict[str, Column], source: str, column: Column) -> None:
    before = found.setdefault(source, column)
    if ("text" in before.dtype_kinds) != ("text" in column.dtype_kinds):
        raise SchemaError(f"rows: {source!r} is taken as a number and as a text or a date; take one of these alone")


def _holds(column: Column, value: object) -> bool:
    import pandas as pd

    strict = {"out_of_bounds": "error"} if hasattr(column, "out_of_bounds") else {}
    try:
        dataclasses.replace(column, missing="forbid", missing_codes=(), dtype=None, **strict).encode(
            pd.Series([value]), party="", name=""
        )
    except (DataError, SchemaError):
        return False
    return True
