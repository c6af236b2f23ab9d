"""A draft of a schema from a party's own table, for that party to look through before anybody else sees it; bins that
it proposes keep the records' median, mean and share of zeros.

How many bins: where tables of two columns with b bins each are released with noise of standard deviation s in a cell,
records with a correlation of r move the cells by N^2 r^2 / b^2 in squares, and the noise by s^2 b^2 (1 +- sqrt(2) / b).
So what stands out by z standard deviations has b^3 <= r^2 N^2 / (sqrt(2) z s^2), and tables of k pairs under a Gaussian
mu have s^2 = 2 k / mu^2. Few bins keep nearly all of a correlation: 1 - 1 / b^2 of it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, DataError, hidden_in, visible
from vertinumpyro.core.validation import checked
from vertinumpyro.data import binning, storage_types, text_formats, toml
from vertinumpyro.data.date_columns import days_of, read_moments
from vertinumpyro.data.files import MISSING_TEXTS
from vertinumpyro.data.number_texts import NumberFormat, pictures
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.data.table import Table, as_frame

_LEVELS = (0.01, 0.02, 0.05, *(tenth / 10 for tenth in range(1, 10)), 0.95, 0.98, 0.99)
_LEAST_SHARE = 0.0075  # of a bin; a smaller one would be noise
_ATOM_SHARE, _MOST_ATOMS = 0.03, 8
_MOST_DECIMALS = 4
_LARGEST_SHARE = 0.2  # of equal bins
_ASTRAY = 0.03  # of the size of a usual value
_NOISE_SHARE = 0.002  # what noise may put into an empty bin
_HEAVY, _TAIL_ASTRAY = 4.0, 0.06


class AmountBins(NamedTuple):
    """A proposal. Private, as are the records.

    edges: as a schema has them; none where equal bins do.
    atoms: the values that have a bin of their own.
    clipped: whether records lie beyond the outer edges.
    """

    edges: tuple[float, ...]
    atoms: tuple[float, ...]
    clipped: bool


def common_decimals(values: np.ndarray) -> int | None:
    """How many decimals all numbers have at most; None where that are many."""
    return next((d for d in range(_MOST_DECIMALS + 1) if (np.round(values, d) == values).all()), None)


def most_cells(num_records: int, epsilon: float, num_columns: int) -> int:
    """How many bins of a number its tables with other columns may have, so that usual dependence stands out of noise.

    :param num_records: N.
    :param epsilon: of the release.
    :param num_columns: of all parties.
    """
    variance = max(num_columns * (num_columns - 1), 1) / (_MU_OF_EPSILON * epsilon) ** 2  # two for each pair
    wanted = (_CORRELATION * num_records) ** 2 / (math.sqrt(2) * _CLEARLY * variance)
    return int(min(max(wanted ** (1 / 3), _FEWEST_CELLS), _BINS))


def amount_bins(values: np.ndarray, bounds: tuple[float, float], bins: int, rare: int, *, whole: bool) -> AmountBins:
    """Propose bins for numbers.

    :param values: [n], more than one.
    :param bounds: rounded, around all of them.
    :param bins: about how many; 32 may be equal ones, and fewer hold about as many records each.
    :param rare: a bin has so many records at least.
    :param whole: whether values are integers, and bins theirs.
    """
    atoms = _atoms(values, rare, bins)
    if not atoms and bins >= _BINS and _equal_do(values, bounds, bins):
        return AmountBins((), (), clipped=False)
    rest = np.sort(values[np.isin(values, atoms, invert=True)])
    levels = _levels(bins, len(rest) / len(values))
    inner = _cuts(rest, levels, max(rare, min(_LEAST_SHARE * len(values), len(rest) / 4)), whole=whole)
    ends = [_end(rest, cut, bound, values) for cut, bound in zip((inner[:1], inner[-1:]), bounds, strict=True)]
    low, high = (float(round(end)) for end in ends) if whole else ends
    low = 1.0 if whole and low == 0 < values.min() else low  # a twin draws zeros from a bin that begins there
    low, high = min([low, *atoms]), max([high, *atoms])
    edges = _joined(low, [cut for cut in inner if low < cut < high], high, atoms, whole=whole)
    if len(edges) < 3:  # few records
        return AmountBins((), (), clipped=False)
    return AmountBins(tuple(edges), atoms, clipped=bool(values.min() < low or values.max() > high))


def _levels(bins: int, share: float) -> Sequence[float]:
    """Of the inner edges of values with so much of the records: as many in each bin where these are to be few, and
    narrow ones at both ends otherwise."""
    if bins > len(_LEVELS):
        return _LEVELS
    bins = max(2, math.ceil(bins * share))
    return [i / bins for i in range(1, bins)]


def _atoms(values: np.ndarray, rare: int, bins: int) -> tuple[float, ...]:
    """Single values that many records share, the zero before all others; of few bins, as good as a bin's records."""
    different, counts = np.unique(values, return_counts=True)
    few = bins <= len(_LEVELS)
    usual = np.quantile(np.repeat(counts, counts), 0.25) if few else np.median(counts)
    lumps = (counts >= text_formats.LUMP * usual) | (counts > len(values) / 2) | (different == 0)
    least = np.where(few & (different != 0), len(values) / (2 * bins), 0.0)
    many = np.flatnonzero(lumps & (counts >= np.maximum(least, max(rare, _ATOM_SHARE * len(values)))))
    by_records = np.lexsort((counts[many], different[many] == 0))
    return tuple(np.sort(different[many[by_records[-_MOST_ATOMS:]]]).tolist())


def _equal_do(values: np.ndarray, bounds: tuple[float, float], bins: int) -> bool:
    """Whether equal bins keep the records apart, and the mean even when noise fills the empty ones."""
    edges = np.linspace(*bounds, bins + 1)
    shares = np.histogram(values, edges)[0] / len(values)
    middles = (edges[1:] + edges[:-1]) / 2
    usual = np.abs(values).mean()
    drift = _NOISE_SHARE * (middles - values.mean())[shares < _LEAST_SHARE].sum()
    astray = max(abs(shares @ middles - values.mean()), abs(drift))
    return bool(shares.max() <= _LARGEST_SHARE and astray <= _ASTRAY * usual)


def _cuts(rest: np.ndarray, levels: Sequence[float], least: float, *, whole: bool) -> list[float]:
    """Short numbers near the levels' quantiles, with enough records between them."""
    if len(rest) < 2 * least:
        return []
    quantiles = np.unique(np.quantile(rest, levels))
    around = [rest[0], *quantiles, rest[-1]]
    cuts: list[float] = []
    for before, value, after in zip(around, quantiles, around[2:], strict=False):
        cut = _short(value, 0.25 * max(min(value - before, after - value), 0.0))
        cut = float(round(cut)) if whole else cut
        below = np.searchsorted(rest, cuts[-1]) if cuts else 0
        here = np.searchsorted(rest, cut)
        if here - below >= least and len(rest) - here >= least:
            cuts.append(cut)
    return cuts


def _short(value: float, room: float) -> float:
    """The number of fewest digits within `room` of a value."""
    if abs(value) <= room:
        return 0.0
    return next((n for d in range(1, 17) if abs((n := float(f"{value:.{d}g}")) - value) <= room), float(value))


def _end(rest: np.ndarray, cut: Sequence[float], bound: float, values: np.ndarray) -> float:
    """An outer edge: the bound, or of a heavy tail one so near that uniform draws have the mean of its records."""
    if not cut:
        return bound
    tail = rest[rest >= cut[0]] if bound > cut[0] else rest[rest < cut[0]]
    excess = tail.mean() - cut[0]
    error = abs((bound - cut[0]) / 2 - excess) * len(tail) / len(values)
    if abs(bound - cut[0]) <= _HEAVY * abs(excess) or error <= _TAIL_ASTRAY * np.abs(values).mean():
        return bound
    return _short(cut[0] + 2 * excess, 0.1 * abs(excess))


def _joined(low: float, inner: Sequence[float], high: float, atoms: Sequence[float], *, whole: bool) -> list[float]:
    """All edges in ascending order; an atom's twice, or of integers its own and the next."""
    if whole:
        beside = [atom + 1 for atom in atoms if atom + 1 < high]
        return [*sorted({low, *inner, *atoms, *beside, high}), *([high] if high in atoms else [])]
    return sorted([*({low, *inner, high} - set(atoms)), *atoms, *atoms])


RARE = 10
"""A category of fewer records is not named."""

_FORMAT = "number_formats"
_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"
_MOST_CATEGORIES = _MOST_INTEGERS = _MOST_DATES = 60
_MOST_CODES, _SPARSE = 30, 4  # whole numbers that few values so far apart have are codes
_MOST_DOSES = 10  # different values that are no whole numbers
_BINS, _FEWEST_CELLS = 32, 4
_MU_OF_EPSILON = 0.24  # of a Gaussian release; at delta = 1e-5 nearly proportional around epsilon = 1
_CORRELATION, _CLEARLY = 0.15, 3.0  # is to stand out of the noise, by so many standard deviations
_MORE_CELLS = 1.5  # times as many where values or dates can be left as they are
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
_DATED, _LONG_AFTER = (1800, 2200), 1920
_YES_NO = [{"0", "1"}, {"0.0", "1.0"}]
_OTHER = "other"
_OF_ROWS = (
    "Ids repeat: all rows of one become one record by these rules, or repair the file if each should have one row.\n"
    "# who has no row gets a missing value, but for what without_rows says, and a count of 0"
)
_UNSEEN = "its name holds a character that is not seen, {}: rename it in the file, and draft again"


@dataclasses.dataclass(frozen=True)
class ColumnDraft:
    """A proposal for one column.

    :ivar fields: as the schema's TOML has them; empty where the column is left out.
    :ivar note: what a person should know, in one line.
    :ivar take: how it follows from several rows of an id, as under ``rows.take``; empty where ids have one.
    """

    fields: Mapping[str, Any]
    note: str
    take: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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

        :param with_id: whether the text begins with the id column, as a file does; what is added to one does not.
        """
        lines = [f"id_column = {toml.value(self.id_column)}"] if with_id else []
        if take := {name: dict(column.take) for name, column in self.columns.items() if column.take}:
            rows = {"per": self.id_column, "confirmed": False, "take": take}
            lines += ["", f"# {_OF_ROWS}", toml.dump({"parties": {self.party: {"rows": rows}}}).strip()]
        for name, column in self.columns.items():
            lines += ["", *(f"# {line}" for line in column.note.splitlines())]
            if column.fields:
                tables = {"parties": {self.party: {"columns": {name: {**column.fields, "confirmed": False}}}}}
                lines.append(toml.dump(tables).strip())
            else:
                lines[-1] = f"# {visible(name)}: {column.note}"
        return "\n".join(lines).strip() + "\n"

    def __repr__(self) -> str:
        """Names alone."""
        return f"SchemaDraft({self.party!r}, {', '.join(self.columns)})"


@checked
def draft_schema(
    table: Table,
    party: str,
    *,
    id_column: str = "id",
    decimal: str = ".",
    epsilon: float = 1.0,
    num_columns: int | None = None,
    number_formats: Mapping[str, str] | None = None,
) -> SchemaDraft:
    """Propose a public domain for each column of a party's table.

    Numbers and dates get as few bins as the noise of tables of all pairs asks for, so that usual dependence shows.

    :param table: pandas, polars, Arrow, or a dict of arrays; texts of a CSV file as they stand there.
    :param party: whose it is.
    :param id_column: the column that is not modelled.
    :param decimal: of numbers that are texts.
    :param epsilon: that is to be spent on a twin.
    :param num_columns: of all parties together; None takes it that the others have as many again.
    :param number_formats: by column, how its texts write the number 1234, where more than one reading fits: a draft
        says so of "1,234", which is "1,234" or "1234,5".
    :raises ArgumentError: the table has no such id column, or no such column to read, or is no table.
    :raises SchemaError: a number format shows no number.
    :raises DataError: it has no records, or no column beside the ids.
    """
    frame = as_frame(table, str(Place(party)))
    names = [str(name) for name in frame.columns]
    if id_column not in names:
        raise ArgumentError(f"id_column: {Place(party)!s} has no column {id_column!r}; {suggest(id_column, names)}")
    if len(frame) == 0 or len(names) < 2:
        raise DataError(f"{Place(party)}: the table has no records, or no column beside the ids")
    series = {str(name): pd.Series(frame[name]).reset_index(drop=True) for name in frame.columns}
    ids = series.pop(id_column)
    if not (epsilon > 0 and (num_columns is None or num_columns >= 1)):
        raise ArgumentError(f"epsilon={epsilon} and num_columns={num_columns} must be positive")
    formats = {name: NumberFormat.of(picture) for name, picture in (number_formats or {}).items()}
    for name in formats:
        if name not in series:
            raise ArgumentError(
                f"number_formats: {Place(party)!s} has no column {name!r}; {suggest(name, list(series))}"
            )
    how = _Drafting(decimal, most_cells(ids.nunique(), epsilon, num_columns or 2 * len(series)), formats)
    if ids.duplicated().any():
        columns = _drafts_of_rows(series, pd.Series(pd.factorize(ids)[0]), how)
    else:
        columns = {name: _draft(own, how) for name, own in series.items()}
    columns |= {name: ColumnDraft({}, _UNSEEN.format(hidden)) for name in columns if (hidden := hidden_in(name))}
    columns |= {name: ColumnDraft({}, text) for name, draft in columns.items() if (text := _unseen_value(draft))}
    return SchemaDraft(party, id_column, columns)


class _Drafting(NamedTuple):
    """decimal: of numbers that are texts. cells: how many bins a number gets about. formats: of columns that say it."""

    decimal: str
    cells: int
    formats: Mapping[str, NumberFormat]


def _unseen_value(draft: ColumnDraft) -> str:
    """Why no schema takes a column's categories: two that look alike would be two."""
    hidden = next(filter(None, (hidden_in(str(text)) for text in draft.fields.get("categories", ()))), "")
    return hidden and f"a value holds a character that is not seen, {hidden}: take it out of the file, and draft again"


def _drafts_of_rows(series: Mapping[str, pd.Series], person: pd.Series, how: _Drafting) -> dict[str, ColumnDraft]:
    """Rules that make a record of each person's rows, and domains of the records; first how many rows there are."""
    rows = person.value_counts().to_numpy(np.float64)
    fields, _ = _amounts(rows, (0.0, _rounded(0.0, float(rows.max()))[1]), how.cells, whole=True)
    if "edges" in fields:  # who has no row is not in the file, and no less frequent for it
        fields["edges"] = [0, 1, *(edge for edge in fields["edges"] if edge > 1)]
    name = "num_rows" if "num_rows" not in series else "num_rows_of_a_person"
    found = {name: ColumnDraft({**fields, "out_of_bounds": "clip"}, "how many rows a person has", {"rule": "count"})}
    return found | {name: _draft_of_rows(own, person, how) for name, own in series.items()}


def _draft_of_rows(series: pd.Series, person: pd.Series, how: _Drafting) -> ColumnDraft:
    of_rows = _draft(series, how)
    if not of_rows.fields:
        return of_rows
    if bool((series.groupby(person).nunique() <= 1).to_numpy().all()):
        of_records = _draft(series.groupby(person).first(), how)
        note = f"the same in all rows of a person; {of_records.note}"
        return _taken(of_records, "most frequent", note) if of_records.fields else of_records
    kind, codes = of_rows.fields["type"], of_rows.fields.get("missing_codes", [])
    picture = of_rows.fields.get("number_format")
    if kind not in ("integer", "real"):
        rule = {"binary": "any", "date": "max"}.get(kind, "most frequent")
        return _taken(of_rows, rule, of_rows.note)
    texts = series.astype(str).str.strip()
    if picture is None:
        values = pd.Series(pd.to_numeric(texts.str.replace(how.decimal, "."), errors="coerce"))
    else:
        values = pd.Series(NumberFormat.of(picture).read(texts), texts.index)
    values = pd.Series(values[values.notna() & ~values.isin(codes)])
    rule = "max" if kind == "integer" else "sum"
    labels = picture is None
    numbers = pd.Series(values.groupby(person).agg(rule)).round(_MOST_DECIMALS)
    of_records = _quantity(numbers, {}, "", how.cells, labels=labels)
    if not of_records.fields:
        return of_records
    fields = {key: value for key, value in of_records.fields.items() if key != "missing_codes"}
    fields |= {} if picture is None else {"number_format": picture}
    told = f"; {text_formats.list_numbers(codes)} looks like a code for a missing value" if codes else ""
    listed = {"missing_codes": codes} if codes else {}
    if rule == "sum":
        return dataclasses.replace(
            _taken(ColumnDraft(fields, ""), rule, f"{of_records.note}{told}"), take={"rule": rule, **listed}
        )
    return _taken(ColumnDraft({**fields, **listed}, ""), rule, f"{of_records.note}{told}")


def _taken(draft: ColumnDraft, rule: str, note: str) -> ColumnDraft:
    """With a rule, and a code for persons without rows."""
    return ColumnDraft({**draft.fields, "missing": "category"}, note, {"rule": rule})


def _draft(series: pd.Series, how: _Drafting) -> ColumnDraft:
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
        return _dates(present, missing, also, how.cells, text=text)
    if pd.api.types.is_bool_dtype(present) or set(present.astype(str).unique()) in _YES_NO:
        return ColumnDraft({"type": "binary", **missing}, f"two values{also}")
    if (stated := how.formats.get(str(series.name))) is not None:
        return _written(present, stated, missing, also, how.cells)
    numbers = _numbers(present, how.decimal)
    if numbers is None:
        texts = pd.Series(present.astype(str).str.strip())
        found = pictures(list(map(str, texts.unique())), how.decimal)
        if len(found) == 1:
            return _written(present, NumberFormat.of(found[0]), missing, also, how.cells)
        if found:
            return ColumnDraft({}, f"{_asked(found)}{also}")
        if (written := text_formats.looks_like_numbers(texts, how.decimal, RARE)) and not _begins_with_zero(texts):
            return ColumnDraft({}, f"{written}{also}. Not drafted: repair the file, and draft again")
        return _categories(pd.Series(present.astype(str)), missing, also, how.cells)
    if text and how.decimal == "." and present.astype(str).str.strip().str.fullmatch(_THOUSANDS).all():
        also = f'; if its points group thousands, draft it with {_FORMAT} = "1.234"{also}'
    return _quantity(numbers, missing, also, how.cells)


def _written(
    present: pd.Series, written: NumberFormat, missing: Mapping[str, Any], also: str, cells: int
) -> ColumnDraft:
    """Numbers that are texts, as a picture shows them."""
    numbers = pd.Series(written.read(present.astype(object)), present.index)
    if numbers.isna().any():
        return ColumnDraft({}, f"holds a text that is not written as {written.picture!r} shows; left out{also}")
    draft = _quantity(numbers, missing, also, cells, labels=False)
    if not draft.fields:
        return draft
    read = f"; texts are read as numbers, {written.picture} as {written.read_picture:.10g}"
    return ColumnDraft({**draft.fields, "number_format": written.picture}, f"{draft.note}{read}")


def _asked(found: Sequence[str]) -> str:
    """What a person has to say of texts that may be several numbers."""
    said = " or ".join(f'"{picture}"' for picture in found)
    return (
        f"may be read in {len(found)} ways, thousands in groups or decimals. Not drafted: say which, "
        f"{_FORMAT} = {said}, and draft again"
    )


def _dates(present: pd.Series, missing: Mapping[str, Any], also: str, cells: int, *, text: bool) -> ColumnDraft:
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
    most = min(_MOST_DATES, _MORE_CELLS * cells) if cells < _BINS else _MOST_DATES
    unit = next((unit for unit, a_year in _UNITS_A_YEAR.items() if count * a_year <= most), "year")
    also = f"; a finer unit makes noisier tables{also}" if cells < _BINS else also
    fields: dict[str, Any] = {"type": "date", "bounds": [f"{years[0]}-01-01", f"{years[1]}-12-31"], "unit": unit}
    fields |= {"bins": 2 * cells} if cells < _BINS and count > 2 * cells else {}
    fields |= {} if form is None else {"format": form}
    if {"%d/%m/%Y", "%m/%d/%Y"} <= set(fitting):
        also = f"; is the day written before the month? format says so{also}"
    if (read_moments(present, form, _FAR_EAST) != found.to_numpy()).any():  # those without an offset stay
        also = f'; a time with a UTC offset keeps its own date; timezone = "Europe/Helsinki" moves all there{also}'
    note = f"bounds are the records', by whole years{also}"
    return ColumnDraft({**fields, "out_of_bounds": "clip", **missing}, note)


def _is_time(present: pd.Series) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(present)) or storage_types.kind(present.dtype) == "time"


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
        if _begins_with_zero(texts) or (decimal == "," and texts.str.contains(".", regex=False).any()):
            return None
        found = pd.Series(pd.to_numeric(texts.str.replace(decimal, "."), errors="coerce"))
    return None if not np.isfinite(found).all() else found


def _begins_with_zero(texts: pd.Series) -> bool:
    return bool(texts.str.fullmatch(r"0\d+").any())


def _quantity(
    numbers: pd.Series, missing: Mapping[str, Any], also: str, cells: int, *, labels: bool = True
) -> ColumnDraft:
    """A bounded number; with few values labels of these, where such are wanted."""
    if codes := text_formats.codes_for_missing(numbers.to_numpy(np.float64), RARE):
        missing = {"missing": "category", "missing_codes": [int(c) if c == int(c) else c for c in codes]}
        look = f"; {text_formats.list_numbers(codes)} looks like a code for a missing value"
        also = f"{look}: if it is a value, drop missing_codes{also}"
        numbers = pd.Series(numbers[~numbers.isin(codes)])
    else:
        also = text_formats.if_negative(numbers.to_numpy(np.float64)) + also
    low, high = float(numbers.min()), float(numbers.max())
    whole = bool((numbers == np.floor(numbers)).all()) and max(abs(low), abs(high)) < 2**53
    if low == high:
        return ColumnDraft({}, f"holds one value; left out{also if codes else ''}")
    counts = numbers.value_counts()
    if labels and set(counts.index) == {0, 1}:
        return ColumnDraft({"type": "binary", **missing}, f"two values{also}")
    if labels and not whole and len(counts) <= _MOST_DOSES and counts.min() >= RARE:
        values = sorted(float(str(value)) for value in counts.index)
        return ColumnDraft({"type": "categorical", "categories": values, **missing}, f"values are the records'{also}")
    if labels and whole and len(counts) <= _MOST_CODES and high - low > _SPARSE * len(counts) and counts.min() >= RARE:
        listed = sorted(int(float(str(value))) for value in counts.index)
        return ColumnDraft({"type": "categorical", "categories": listed, **missing}, f"codes are the records'{also}")
    bottom, top = _rounded(low, high)
    if whole and bottom == 0 < low and top < _most_integers(cells):
        bottom = 1.0  # zero would have a cell of its own, with people of whom there are none
    fields, note = _amounts(numbers.to_numpy(np.float64), (bottom, top), cells, whole=whole)
    return ColumnDraft({**fields, "out_of_bounds": "clip", **missing}, f"{note}{also}")


def _amounts(values: np.ndarray, bounds: tuple[float, float], cells: int, *, whole: bool) -> tuple[dict[str, Any], str]:
    """The fields of a bounded quantity, and what is said of them."""
    number = int if whole else float
    fields: dict[str, Any] = {"type": "integer" if whole else "real", "bounds": [number(bound) for bound in bounds]}
    if whole and bounds[1] - bounds[0] < _most_integers(cells):
        return fields, "bounds are the records', rounded outwards"
    found = amount_bins(values, bounds, cells, RARE, whole=whole)
    if found.edges:
        fields = {"type": fields["type"], "edges": [number(edge) for edge in found.edges]}
        beyond = "; some records lie beyond the outer ones, and count as these" if found.clipped else ""
        few = "; few, as tables of many columns are noisy" if cells < len(_LEVELS) else ""
        note = f"edges are near the records' quantiles, rounded{few}{beyond}{_of_atoms(values, found.atoms)}"
    else:
        fields |= {"bins": int(min(cells, bounds[1] - bounds[0] + 1)) if whole else cells}
        note = "bounds are the records', rounded outwards"
    if not whole and (decimals := common_decimals(values)) is not None:
        fields |= {"decimals": decimals} if _have_decimals(fields, decimals) else {}
    return fields, note


def _most_integers(cells: int) -> float:
    """As many whole numbers, or fewer, are cells of their own."""
    return _MORE_CELLS * cells if cells < _BINS else _MOST_INTEGERS


def _of_atoms(values: np.ndarray, atoms: Sequence[float]) -> str:
    """What a person should know of values with a bin of their own."""
    if not atoms:
        return ""
    told = f"; {text_formats.list_numbers(atoms)} is frequent, and a bin of its own"
    if any((values == atom).mean() > 0.5 for atom in atoms):
        told += " with most of the records: what else the column says rests on the others"
    return told + text_formats.if_missing([atom for atom in atoms if abs(atom) > 9 and text_formats.is_code(atom)])


def _have_decimals(fields: Mapping[str, Any], decimals: int) -> bool:
    """Whether the drafted bins hold numbers of so many decimals."""
    if "edges" in fields:
        return binning.have_decimals(np.asarray(fields["edges"], np.float64), decimals)
    edges = binning.equal_width_edges(fields["bounds"], fields["bins"], "identity")
    return binning.have_decimals(binning.to_decimals(edges, decimals), decimals)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Bounds with one digit, or two, around a range: less telling than the smallest and the largest record."""
    step = 10.0 ** math.floor(math.log10(high - low))
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    bottom = 0.0 if low >= 0 and bottom <= (top - bottom) / 2 else bottom
    digits = max(0, -math.floor(math.log10(step)))
    return round(bottom, digits), round(top, digits)


def _categories(texts: pd.Series, missing: Mapping[str, str], also: str, cells: int) -> ColumnDraft:
    counts = texts.value_counts()
    common = sorted(str(value) for value, count in counts.items() if count >= RARE)
    if len(counts) > max(_MOST_CATEGORIES, len(texts) // 2) or len(common) > _MOST_CATEGORIES or not common:
        return ColumnDraft({}, f"many different texts{also}: names, an id or free text? left out")
    also = f"; some have spaces around them{also}" if any(name != name.strip() for name in common) else also
    if len({name.strip().lower() for name in common}) < len(common):
        also = f"; some differ in spaces or capital letters alone: make them one in the file, unless they are not{also}"
    fields: dict[str, Any] = {"type": "categorical", "categories": common}
    if (counts < RARE).any():
        fields |= {"categories": [*(name for name in common if name != _OTHER), _OTHER], "unknown": _OTHER}
        also = f"; values of fewer than {RARE} records are in {_OTHER!r}{also}"
    if len(fields["categories"]) + bool(missing) < 2:
        return ColumnDraft({}, "holds one value; left out")
    if cells < _BINS and len(fields["categories"]) > _MORE_CELLS * cells:
        many = f"its {len(fields['categories'])} make its tables noisier than those of most columns"
        also = f"; {many}: merge in the file what belongs together{also}"
    return ColumnDraft({**fields, **missing}, f"categories are the records'{also}")


def _most(present: pd.Series, form: re.Pattern[str]) -> bool:
    return bool(present.astype(str).str.strip().str.fullmatch(form.pattern).mean() > 0.9)
