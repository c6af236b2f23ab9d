"""What is publicly known of every record, across parties: combinations that cannot be, an order of columns, a column
that another one determines. Twins keep it; nothing is computed on a real table, and nobody's table is checked for it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, InferenceWarning, SchemaError
from vertinumpyro.core.validation import shown
from vertinumpyro.data.column import Column, plain
from vertinumpyro.data.date_columns import DateColumn, read_moments
from vertinumpyro.data.row_rules import Rows
from vertinumpyro.data.schema_checks import require, suggest

_ROUNDS = 50  # so that one record in ten that holds is enough


@final
@dataclasses.dataclass(frozen=True)
class Impossible:
    """No record has all of these at once.

    :param impossible: for each column the labels that it has there, or of numbers and dates their range: `{"max": 14}`,
        `{"min": 15}` or both, ends included. A missing value is none of them.
    """

    impossible: Mapping[str, Any]

    def __post_init__(self) -> None:
        require(
            isinstance(self.impossible, Mapping) and len(self.impossible) > 1,
            f"impossible = {shown(self.impossible)}; give two columns or more, each with its labels or its range",
        )
        parts = {name: _part(name, part) for name, part in self.impossible.items()}
        object.__setattr__(self, "impossible", MappingProxyType(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it speaks of."""
        return tuple(self.impossible)

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise a `SchemaError` where a label or an end is none of its column's domain."""
        for name, part in self.impossible.items():
            if isinstance(part, Mapping):
                require(not _has_labels(columns[name]), f"{name!r} has labels; list them in the place of min and max")
                _ends(columns[name], part, name)
            else:
                _check_labels(columns[name], name, part)

    def kept(self, frame: pd.DataFrame, columns: Mapping[str, Column]) -> np.ndarray:
        """Whether each record holds, bool [n]."""
        found = np.ones(len(frame), bool)
        for name, part in self.impossible.items():
            found &= _within(pd.Series(frame[name]), columns[name], part, name)
        return ~found

    def to_dict(self) -> dict[str, Any]:
        """Plain."""
        parts = self.impossible.items()
        return {"impossible": {n: dict(part) if isinstance(part, Mapping) else list(part) for n, part in parts}}


@final
@dataclasses.dataclass(frozen=True)
class Order:
    """No column of a record lies behind the next one.

    :param order: columns of numbers, or of dates; of equal ones, and where one is missing, all is well.
    """

    order: tuple[str, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.order, (list, tuple)) and len(set(map(str, self.order))) == len(self.order) > 1
        require(several, f"order = {shown(self.order)}; give two columns or more, each once")
        object.__setattr__(self, "order", tuple(self.order))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it speaks of."""
        return self.order

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise a `SchemaError` where columns cannot be compared."""
        for name in self.order:
            require(not _has_labels(columns[name]), f"{name!r} has labels, which have no order; leave it out")
        dates = {isinstance(columns[name], DateColumn) for name in self.order}
        require(len(dates) == 1, f"order = {list(self.order)}; dates are compared with dates, numbers with numbers")

    def kept(self, frame: pd.DataFrame, columns: Mapping[str, Column]) -> np.ndarray:
        """Whether each record holds, bool [n]."""
        values = [_comparable(pd.Series(frame[name]), columns[name]) for name in self.order]
        highest, found = values[0], np.ones(len(frame), bool)
        for following in values[1:]:
            found &= ~(highest > following)  # a NaN is no larger
            highest = np.fmax(highest, following)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain."""
        return {"order": list(self.order)}


@final
@dataclasses.dataclass(frozen=True)
class Determined:
    """One column follows from another.

    :param column: the one that follows, with labels.
    :param by: from which, with labels.
    :param values: `{label of by: label of column}`; other labels of `by`, and a missing value, say nothing.
    """

    column: str
    by: str
    values: Mapping[str, Any]

    def __post_init__(self) -> None:
        require(self.column != self.by, f"column = by = {shown(self.by)}; give two different ones")
        said = isinstance(self.values, Mapping) and len(self.values) > 0
        require(
            said, f"values = {shown(self.values)}; give a label of {shown(self.column)} for each of {shown(self.by)}"
        )
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it speaks of."""
        return self.column, self.by

    def check(self, columns: Mapping[str, Column]) -> None:
        """Raise a `SchemaError` where a label is none of its column's."""
        texts = {str(label): label for label in _labels(columns[self.by], self.by)}
        unknown = [label for label in self.values if str(label) not in texts]
        if unknown:
            raise SchemaError(f"values: {shown(unknown[0])} is no label of {self.by!r}; {suggest(unknown[0], texts)}")
        _check_labels(columns[self.column], self.column, tuple(self.values.values()))

    def repaired(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The records, the column as it follows."""
        follows, own = self._follows(frame), pd.Series(frame[self.column])
        changed = plain(own).astype(object).where(follows.isna(), follows)
        return frame.assign(**{self.column: changed.astype(own.dtype)})

    def kept(self, frame: pd.DataFrame, columns: Mapping[str, Column]) -> np.ndarray:
        """Whether each record holds, bool [n]."""
        follows, own = self._follows(frame), plain(pd.Series(frame[self.column])).astype(object)
        return (follows.isna() | (follows == own)).to_numpy(bool)

    def _follows(self, frame: pd.DataFrame) -> pd.Series:
        """What the column is; missing where nothing is said."""
        by = {str(label): value for label, value in self.values.items()}
        known = plain(pd.Series(frame[self.by])).astype(object)
        return pd.Series(known.map(lambda label: by.get(str(label)), na_action="ignore"), dtype=object)

    def to_dict(self) -> dict[str, Any]:
        """Plain."""
        return {"column": self.column, "by": self.by, "values": dict(self.values)}


@final
@dataclasses.dataclass(frozen=True)
class WithoutRows:
    """What a person without rows has: it follows from the rules about a party's rows, and nobody writes it.

    :param count: the column that counts rows.
    :param values: what other columns of the party are where it is 0; None where they are missing.
    """

    count: str
    values: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it speaks of."""
        return self.count, *self.values

    def repaired(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The records, the other columns as they follow."""
        counts = pd.Series(pd.to_numeric(plain(pd.Series(frame[self.count]))))
        without = counts.to_numpy(np.float64, na_value=np.nan) == 0.0
        return frame.assign(**{
            name: pd.Series(frame[name]).mask(without, pd.NA if value is None else value).astype(frame[name].dtype)
            for name, value in self.values.items()
        })  # fmt: skip

    def kept(self, frame: pd.DataFrame, columns: Mapping[str, Column]) -> np.ndarray:
        """Every record does: what is drawn is written, and what is given stays."""
        return np.ones(len(frame), bool)

    def to_dict(self) -> dict[str, Any]:
        """Plain."""
        return {"count": self.count, "values": dict(self.values)}


Constraint: TypeAlias = Impossible | Order | Determined


def without_rows(rows: Rows, columns: Mapping[str, Column]) -> WithoutRows | None:
    """What follows from a party's rules about rows; None where no column counts them."""
    counts = [name for name, take in rows.take.items() if take.source(name) is None and take.without_rows == 0]
    if not counts:
        return None
    others = {name: take.without_rows for name, take in rows.take.items() if name != counts[0]}
    written = {
        name: value
        for name, value in others.items()
        if (columns[name].missing == "category" if value is None else not isinstance(columns[name], DateColumn))
    }
    return WithoutRows(counts[0], written) if written else None


def constraint_of(fields: Any) -> Constraint:
    """From plain data.

    :raises SchemaError: it is none.
    """
    kinds = {("impossible",): Impossible, ("order",): Order, ("by", "column", "values"): Determined}
    kind = kinds.get(tuple(sorted(fields))) if isinstance(fields, Mapping) else None
    if kind is None:
        raise SchemaError(f"{shown(fields)}; give impossible = {{...}}, or order = [...], or column, by and values")
    return kind(**fields)


def check_constraints(constraints: Iterable[Constraint], columns: Mapping[str, Column]) -> None:
    """Raise a `SchemaError` where one does not fit its columns; says which."""
    for number, constraint in enumerate(constraints, 1):
        try:
            require(isinstance(constraint, Constraint), f"{shown(constraint)} is no Impossible, Order or Determined")
            for name in constraint.names:
                require(name in columns, f"there is no column {name!r}; {suggest(name, columns)}")
            constraint.check(columns)
        except SchemaError as error:
            raise SchemaError(f"constraint {number}: {error}") from None


def drawn_within(
    draw: Callable[[int], pd.DataFrame], constraints: Sequence[Constraint | WithoutRows],
    columns: Mapping[str, Column], *, given: Collection[str] = (),
) -> pd.DataFrame:  # fmt: skip
    """Records that hold: what determines others is written down, and records that do not hold are drawn again.

    So they are draws of the model given that they hold. Constraints on columns that are not drawn say nothing.

    :param draw: the table of round 0, 1, ..., each of as many records.
    :param given: covariates, which stay as they are: a record is drawn again for its own place.
    :raises ArgumentError: next to none of the drawn records hold.
    """
    frame = draw(0)
    own = [one for one in constraints if set(one.names) <= set(frame.columns)]
    if not own:
        return frame
    follow = [one for one in own if isinstance(one, Determined) and one.column not in given]
    follow = [*follow, *(one for one in own if isinstance(one, WithoutRows) and not set(one.values) & set(given))]
    frame = _repaired(frame, follow)
    good = _kept(frame, own, columns)
    for number in range(1, _ROUNDS):
        if good.all():
            return frame
        fresh = _repaired(draw(number), follow)
        holds = np.flatnonzero(_kept(fresh, own, columns))
        broken = np.flatnonzero(~good)
        broken, taken = (np.intersect1d(broken, holds),) * 2 if given else (broken[: len(holds)], holds[: len(broken)])
        frame = _with_rows(frame, broken, fresh, taken)
        good[broken] = True
    if good.all():
        return frame
    said = "; ".join(str(one.to_dict()) for one in own)
    if given or not good.any():
        raise ArgumentError(f"constraint: hardly a record that the model draws holds; see whether these can: {said}")
    broken = np.flatnonzero(~good)
    warnings.warn(
        f"constraint: {len(broken):,} of {len(frame):,} records of the twin are copies of others, as so few that the "
        f"model draws hold; see whether these can: {said}",
        InferenceWarning,
        stacklevel=2,
    )
    return _with_rows(frame, broken, frame, np.resize(np.flatnonzero(good), len(broken)))


def _repaired(frame: pd.DataFrame, constraints: Sequence[Determined | WithoutRows]) -> pd.DataFrame:
    for one in constraints:
        frame = one.repaired(frame)
    return frame


def _kept(
    frame: pd.DataFrame, constraints: Sequence[Constraint | WithoutRows], columns: Mapping[str, Column]
) -> np.ndarray:
    return np.all([one.kept(frame, columns) for one in constraints], axis=0)


def _with_rows(frame: pd.DataFrame, places: np.ndarray, other: pd.DataFrame, taken: np.ndarray) -> pd.DataFrame:
    """The frame with some rows of another in some places, types as they are."""
    order = np.arange(len(frame))
    order[places] = len(frame) + taken
    return pd.concat([frame, other], ignore_index=True).iloc[order].reset_index(drop=True).astype(frame.dtypes)


# -- columns ---------------------------------------------------------------------------------------


def _has_labels(column: Column) -> bool:
    return column.limits is None and not isinstance(column, DateColumn)


def _labels(column: Column, name: str) -> tuple[Any, ...]:
    require(_has_labels(column) and len(column.labels) > 0, f"{name!r} has no labels; choose a column with categories")
    return column.labels


def _check_labels(column: Column, name: str, labels: Sequence[Any]) -> None:
    if not _has_labels(column):
        raise SchemaError(f"{name!r} holds numbers or dates; give min, max or both in the place of labels")
    unknown = [label for label in labels if label not in column.labels]
    if unknown:
        raise SchemaError(
            f"{shown(unknown[0])} is no label of {name!r}; {suggest(unknown[0], map(str, column.labels))}"
        )


def _part(name: str, part: Any) -> Any:
    if isinstance(part, Mapping):
        known = set(part) <= {"min", "max"} and len(part) > 0
        require(known, f"impossible: {name} = {shown(dict(part))}; give min, max or both")
        return MappingProxyType(dict(part))
    require(
        isinstance(part, (list, tuple)) and len(part) > 0, f"impossible: {name} = {shown(part)}; give a list of labels"
    )
    return tuple(part)


def _ends(column: Column, part: Mapping[str, Any], name: str) -> tuple[float, float]:
    given = pd.Series([part[key] for key in ("min", "max") if key in part])
    if isinstance(column, DateColumn):
        found = _comparable(given.astype(str), dataclasses.replace(column, format=None))
    else:
        numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in part.values())
        found = np.asarray(given, np.float64) if numbers else np.full(len(given), np.nan)
    require(
        bool(np.isfinite(found).all()), f"impossible: {name} = {shown(dict(part))}; give ends as the schema has bounds"
    )
    ends = dict(zip([key for key in ("min", "max") if key in part], found.tolist(), strict=True))
    return ends.get("min", -np.inf), ends.get("max", np.inf)


def _within(series: pd.Series, column: Column, part: Any, name: str) -> np.ndarray:
    if not isinstance(part, Mapping):
        held = plain(series) if column.written is None else pd.Series(column.quantities(series))
        return held.isin(list(part)).to_numpy()
    low, high = _ends(column, part, name)
    values = _comparable(series, column)
    return (values >= low) & (values <= high)


def _comparable(series: pd.Series, column: Column) -> np.ndarray:
    """Numbers, or seconds of dates, float64 [n]; NaN where a value is missing."""
    present = series.notna().to_numpy()
    found = np.full(len(series), np.nan)
    if not present.any():
        return found
    held = plain(pd.Series(series[present]))
    if isinstance(column, DateColumn):
        moments = read_moments(held, column.format, column.timezone)
        found[present] = np.where(np.isnat(moments), np.nan, moments.astype(np.int64))
    else:
        found[present] = column.quantities(held)
    return found
