"""A draft of a schema from a party's own table, for that party to look through before anybody else sees it.

A public domain may not follow from private records: an upper bound of 103 says that somebody is 103. So a draft is no
schema yet. Bounds and edges are rounded, rare categories are not named, and every column says ``confirmed = false``,
which `Schema` refuses: a person replaces the domain by public knowledge (a code book, a law, common sense), or says
``confirmed = true`` where it is public as it stands. What a column holds otherwise is outside every guarantee.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core.arguments import checked
from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.core.visible import hidden_in, visible
from vertinumpyro.data import binning, dtypes, schema_text
from vertinumpyro.data.date_columns import days_of, read_moments
from vertinumpyro.data.drafted_bins import amount_bins, codes_for_missing, common_decimals, is_code
from vertinumpyro.data.files import MISSING_TEXTS
from vertinumpyro.data.frames import Table, as_frame
from vertinumpyro.data.number_texts import looks_like_numbers
from vertinumpyro.data.wording import Place, suggest

__all__ = ["ColumnDraft", "SchemaDraft", "draft_schema"]

RARE = 10
"""A category of fewer records is not named."""

_MOST_CATEGORIES = 60
_MOST_INTEGERS = 60
_MOST_CODES, _SPARSE = 30, 4  # whole numbers that few values so far apart have are codes
_MOST_DOSES = 10  # different values that are no whole numbers
_BINS = 32
_WHOLE = re.compile(r"[+-]?\d+")
_DATES = re.compile(
    r"(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{1,2}[ -][A-Za-z]{3}[ -]\d{4})([T ].*)?"
    r"|(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])"
)
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d-%b-%Y", "%d %b %Y")
_DATE_FORMATS = (
    *_DAYS,
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%Y%m%d"),
    *(f"{day} {time}" for time in ("%H:%M", "%H:%M:%S") for day in _DAYS),
)
_ZONES = {" %z": r":\d\d [+-]\d\d:?\d\d$", "%z": r":\d\d[+-]\d\d:?\d\d$"}
_FAR_EAST = "Etc/GMT-14"
_UNITS_A_YEAR = {"month": 12, "quarter": 4, "year": 1}
_MOST_DATES = 60
_DATED, _LONG_AFTER = (1800, 2200), 1920
_YES_NO = [{"0", "1"}, {"0.0", "1.0"}]
_OTHER = "other"
_UNSEEN = "its name holds a character that is not seen, {}: rename it in the file, and draft again"


@dataclasses.dataclass(frozen=True)
class ColumnDraft:
    """A proposal for one column.

    :ivar fields: as the schema's TOML has them; empty where the column is left out.
    :ivar note: what a person should know, in one line.
    """

    fields: Mapping[str, Any]
    note: str


@dataclasses.dataclass(frozen=True)
class SchemaDraft:
    """Proposals for a party's columns. Private: its domains were read from the party's records.

    :ivar party: its name.
    :ivar id_column: by which the parties know their records.
    :ivar columns: in the table's order.
    """

    party: str
    id_column: str
    columns: Mapping[str, ColumnDraft]

    def to_toml(self, *, with_id: bool = True) -> str:
        """Return TOML text with a comment for each column, which `Schema.from_toml` refuses until all are confirmed.

        Args:
            with_id: whether the text begins with the id column, as a file does; what is added to one does not.
        """
        lines = [f"id_column = {schema_text.value(self.id_column)}"] if with_id else []
        for name, column in self.columns.items():
            lines += ["", *(f"# {line}" for line in column.note.splitlines())]
            if column.fields:
                tables = {"parties": {self.party: {"columns": {name: {**column.fields, "confirmed": False}}}}}
                lines.append(schema_text.dump(tables).strip())
            else:
                lines[-1] = f"# {visible(name)}: {column.note}"
        return "\n".join(lines).strip() + "\n"

    def __repr__(self) -> str:
        """Names alone."""
        return f"SchemaDraft({self.party!r}, {', '.join(self.columns)})"


@checked
def draft_schema(table: Table, party: str, *, id_column: str = "id", decimal: str = ".") -> SchemaDraft:
    """Propose a public domain for each column of a party's table.

    Args:
        table: pandas, polars, Arrow, or a dict of arrays; texts of a CSV file as they stand there.
        party: whose it is.
        id_column: the column that is not modelled.
        decimal: of numbers that are texts.

    Raises:
        ArgumentError: the table has no such id column, or is no table.
        DataError: it has no records, or no column beside the ids.
    """
    frame = as_frame(table, str(Place(party)))
    names = [str(name) for name in frame.columns]
    if id_column not in names:
        raise ArgumentError(f"id_column: {Place(party)!s} has no column {id_column!r}; {suggest(id_column, names)}")
    if len(frame) == 0 or len(names) < 2:
        raise DataError(f"{Place(party)}: the table has no records, or no column beside the ids")
    columns = {
        str(name): _draft(pd.Series(frame[name]).reset_index(drop=True), decimal)
        for name in frame.columns
        if name != id_column
    }
    columns |= {name: ColumnDraft({}, _UNSEEN.format(hidden)) for name in columns if (hidden := hidden_in(name))}
    return SchemaDraft(party, id_column, columns)


def _draft(series: pd.Series, decimal: str) -> ColumnDraft:
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.cat.categories.dtype if not series.isna().any() else object)
    text = series.dtype == object or isinstance(series.dtype, pd.StringDtype)
    absent = series.isna().to_numpy()
    if text:
        absent = absent | series.astype(str).str.strip().isin(MISSING_TEXTS).to_numpy()
    present = pd.Series(series[~absent])
    missing = {"missing": "category"} if len(present) < len(series) else {}
    also = "; some values are missing" if missing else ""
    if present.empty:
        return ColumnDraft({}, "holds no value; left out")
    if _is_time(present) or (text and _most(present, _DATES)):
        return _dates(present, missing, also, text=text)
    if pd.api.types.is_bool_dtype(present) or set(present.astype(str).unique()) in _YES_NO:
        return ColumnDraft({"type": "binary", **missing}, f"two values{also}")
    numbers = _numbers(present, decimal)
    if numbers is None:
        texts = pd.Series(present.astype(str).str.strip())
        if (written := looks_like_numbers(texts, decimal, RARE)) and not _begins_with_zero(texts):
            return ColumnDraft({}, f"{written}{also}. Not drafted: repair the file, and draft again")
        return _categories(pd.Series(present.astype(str)), missing, also)
    return _quantity(numbers, missing, also)


def _dates(present: pd.Series, missing: Mapping[str, Any], also: str, *, text: bool) -> ColumnDraft:
    """A date, by whole years and the unit that gives some tens of categories."""
    read = {form: pd.Series(read_moments(present, form)) for form in (_date_forms(present) if text else [None])}
    fitting = [form for form in read if not read[form].isna().any()]
    if not fitting:
        return ColumnDraft({}, "looks like dates, which are not all written in one way; left out")
    form, found = fitting[0], read[fitting[0]]
    if (odd := _no_days(found)).any() and not odd.all():
        codes = sorted(set(days_of(pd.Series(present[odd]))))
        missing = {"missing": "category", "missing_codes": codes}
        also = f"; what missing_codes lists looks like no date but a code for a missing one{also}"
        present, found = pd.Series(present[~odd]), pd.Series(found[~odd])
    years = int(found.dt.year.min()), int(found.dt.year.max())
    count = years[1] - years[0] + 1
    unit = next((unit for unit, a_year in _UNITS_A_YEAR.items() if count * a_year <= _MOST_DATES), "year")
    fields: dict[str, Any] = {"type": "date", "bounds": [f"{years[0]}-01-01", f"{years[1]}-12-31"], "unit": unit}
    fields |= {} if form is None else {"format": form}
    if {"%d/%m/%Y", "%m/%d/%Y"} <= set(fitting):
        also = f"; is the day written before the month? format says so{also}"
    if (read_moments(present, form, _FAR_EAST) != found.to_numpy()).any():  # those without an offset stay
        also = f'; a time with a UTC offset keeps its own date; timezone = "Europe/Helsinki" moves all there{also}'
    note = f"bounds are the records', by whole years{also}"
    return ColumnDraft({**fields, "out_of_bounds": "clip", **missing}, note)


def _is_time(present: pd.Series) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(present)) or dtypes.kind(present.dtype) == "time"


def _no_days(found: pd.Series) -> np.ndarray:
    """Which dates stand for a missing one, as the last day of 9999, or the first of 1900 where decades follow it."""
    years, origin = found.dt.year.to_numpy(), (found == pd.Timestamp("1900-01-01")).to_numpy()
    odd = (years < _DATED[0]) | (years > _DATED[1])
    followed = (years[~odd & ~origin] < _LONG_AFTER).any()
    return odd if followed or origin.sum() < RARE else odd | origin


def _date_forms(present: pd.Series) -> list[str | None]:
    """How these texts may be written, the likeliest first."""
    texts = present.astype(str).str.strip()
    if texts.str.fullmatch(r"\d{8}").all():
        return ["%Y%m%d"]
    zone = next((zone for zone, ending in _ZONES.items() if texts.str.contains(ending).any()), "")
    return [None, *(f"{form}{zone}" for form in _DATE_FORMATS if not zone or "%H" in form)]


def _numbers(present: pd.Series, decimal: str) -> pd.Series | None:
    """As numbers, whole ones where all are; None where they are something else, or codes that begin with a zero."""
    if pd.api.types.is_numeric_dtype(present):
        found = present.astype(float)
    else:
        texts = present.astype(str).str.strip()
        if _begins_with_zero(texts):
            return None
        found = pd.Series(pd.to_numeric(texts.str.replace(decimal, "."), errors="coerce"))
    return None if not np.isfinite(found).all() else found


def _begins_with_zero(texts: pd.Series) -> bool:
    return bool(texts.str.fullmatch(r"0\d+").any())


def _quantity(numbers: pd.Series, missing: Mapping[str, Any], also: str) -> ColumnDraft:
    if codes := codes_for_missing(numbers.to_numpy(np.float64), RARE):
        missing = {"missing": "category", "missing_codes": [int(c) if c == int(c) else c for c in codes]}
        also = f"; {_listed(codes)} looks like a code for a missing value: if it is a value, drop missing_codes{also}"
        numbers = pd.Series(numbers[~numbers.isin(codes)])
    low, high = float(numbers.min()), float(numbers.max())
    whole = bool((numbers == np.floor(numbers)).all()) and max(abs(low), abs(high)) < 2**53
    if low == high:
        return ColumnDraft({}, f"holds one value; left out{also if codes else ''}")
    counts = numbers.value_counts()
    if set(counts.index) == {0, 1}:
        return ColumnDraft({"type": "binary", **missing}, f"two values{also}")
    if not whole and len(counts) <= _MOST_DOSES and counts.min() >= RARE:
        values = sorted(float(str(value)) for value in counts.index)
        return ColumnDraft({"type": "categorical", "categories": values, **missing}, f"values are the records'{also}")
    if whole and len(counts) <= _MOST_CODES and high - low > _SPARSE * len(counts) and counts.min() >= RARE:
        listed = sorted(int(float(str(value))) for value in counts.index)
        return ColumnDraft({"type": "categorical", "categories": listed, **missing}, f"codes are the records'{also}")
    fields, note = _amounts(numbers.to_numpy(np.float64), _rounded(low, high), whole=whole)
    return ColumnDraft({**fields, "out_of_bounds": "clip", **missing}, f"{note}{also}")


def _amounts(values: np.ndarray, bounds: tuple[float, float], *, whole: bool) -> tuple[dict[str, Any], str]:
    """The fields of a bounded quantity, and what is said of them."""
    number = int if whole else float
    fields: dict[str, Any] = {"type": "integer" if whole else "real", "bounds": [number(bound) for bound in bounds]}
    if whole and bounds[1] - bounds[0] < _MOST_INTEGERS:
        return fields, "bounds are the records', rounded outwards"
    found = amount_bins(values, bounds, _BINS, RARE, whole=whole)
    if found.edges:
        fields = {"type": fields["type"], "edges": [number(edge) for edge in found.edges]}
        beyond = "; a few records lie beyond the outer ones, and count as these" if found.clipped else ""
        note = f"edges are near the records' quantiles, rounded{beyond}{_of_atoms(values, found.atoms)}"
    else:
        fields |= {"bins": _BINS}
        note = "bounds are the records', rounded outwards"
    if not whole and (decimals := common_decimals(values)) is not None:
        fields |= {"decimals": decimals} if _have_decimals(fields, decimals) else {}
    return fields, note


def _of_atoms(values: np.ndarray, atoms: Sequence[float]) -> str:
    """What a person should know of values with a bin of their own."""
    if not atoms:
        return ""
    most = [atom for atom in atoms if (values == atom).mean() > 0.5]
    told = f"; {_listed(atoms)} is frequent, and a bin of its own"
    told += " with most of the records: what else the column says rests on the others" if most else ""
    codes = [atom for atom in atoms if abs(atom) > 9 and is_code(atom)]
    return told + (f"; if {_listed(codes)} means missing, write missing_codes = [{_listed(codes)}]" if codes else "")


def _have_decimals(fields: Mapping[str, Any], decimals: int) -> bool:
    """Whether the drafted bins hold numbers of so many decimals."""
    edges = (
        fields["edges"]
        if "edges" in fields
        else binning.equal_width_edges(fields["bounds"], fields["bins"], "identity")
    )
    return binning.have_decimals(np.asarray(edges, np.float64), decimals)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.10g}" for value in values)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Bounds with one digit, or two, around a range: less telling than the smallest and the largest record."""
    step = 10.0 ** math.floor(math.log10(high - low))
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    if low >= 0 and bottom <= (top - bottom) / 2:
        bottom = 0.0
    digits = max(0, -math.floor(math.log10(step)))
    return round(bottom, digits), round(top, digits)


def _categories(texts: pd.Series, missing: Mapping[str, str], also: str) -> ColumnDraft:
    counts = texts.value_counts()
    common = sorted(str(value) for value, count in counts.items() if count >= RARE)
    if len(counts) > max(_MOST_CATEGORIES, len(texts) // 2) or len(common) > _MOST_CATEGORIES or not common:
        return ColumnDraft({}, f"many different texts{also}: names, an id or free text? left out")
    if any(name != name.strip() for name in common):
        also = f"; some have spaces around them{also}"
    if len({name.strip().lower() for name in common}) < len(common):
        also = f"; some differ in spaces or capital letters alone: make them one in the file, unless they are not{also}"
    rare = int((counts < RARE).sum())
    fields: dict[str, Any] = {"type": "categorical", "categories": common}
    if rare:
        fields |= {"categories": [*(name for name in common if name != _OTHER), _OTHER], "unknown": _OTHER}
        also = f"; values of fewer than {RARE} records are in {_OTHER!r}{also}"
    if len(fields["categories"]) + bool(missing) < 2:
        return ColumnDraft({}, "holds one value; left out")
    return ColumnDraft({**fields, **missing}, f"categories are the records'{also}")


def _most(present: pd.Series, form: re.Pattern[str]) -> bool:
    return bool(present.astype(str).str.strip().str.fullmatch(form.pattern).mean() > 0.9)
