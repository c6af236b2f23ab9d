"""How texts in a file are written: its encoding, guessed from its first bytes, and numbers as people of other countries
write them; so that an error can say it and what to do about it.
"""

import codecs
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.category_columns import BinaryColumn
from vertinumpyro.data.column import Column

_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_HEAD = 2**16
GZIP = "compressed by gzip: let its name end in .csv.gz"
_NO_TEXT = {
    b"PK\x03\x04": "an Excel workbook, or a zip archive: save the sheet as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save the sheet as CSV",
    b"\x1f\x8b": GZIP,
    b"PAR1": "a Parquet file: let its name end in .parquet",
    b"ARROW1": "an Arrow file: convert it to Parquet",
    b"SQLite format 3": "a database: export the table as CSV",
    b"%PDF": "a PDF: export the table as CSV",
}
_OTHER_TEXT = {b"<": "a web page or XML", b"[": "JSON", b"{": "JSON"}


def suspected(content: bytes) -> str:
    """Return Python's name of the encoding that bytes look like: UTF-8, UTF-16 or, where neither, Windows-1252.

    :param content: the file's first bytes, or all of them.
    """
    for mark, name in _MARKS.items():
        if content.startswith(mark):
            return name
    head = content[:_HEAD]
    if b"\0" in head:  # half of the bytes, where the text is Western
        return "utf-16-le" if head[1::2].count(0) > head[::2].count(0) else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)  # a character cut off at the end is no error
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def other_format(content: bytes) -> str:
    """Return what a file is that is no table of text, and what to do with it; empty where it may be one."""
    if not content.strip():
        return "empty"
    known = [text for mark, text in _NO_TEXT.items() if content.startswith(mark)]
    text = content[:_HEAD].removeprefix(codecs.BOM_UTF8).lstrip()
    known += [f"{what}: export the table as CSV" for mark, what in _OTHER_TEXT.items() if text.startswith(mark)]
    return known[0] if known else ""


def read_utf8(path: Path) -> str:
    """Return a settings file's text, without a byte order mark.

    :raises ArgumentError: it cannot be read, or is in another encoding; the message names the file and the encoding.
    """
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise ArgumentError(f"{str(path)!r} is a folder; give the file in it") from None
    except OSError as error:
        raise ArgumentError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if (encoding := suspected(content)) != "utf-8":
        raise ArgumentError(f"{path.name} looks like {encoding} text; save it as UTF-8")
    return content.decode("utf-8-sig", errors="replace")


def is_known(encoding: str) -> bool:
    """Whether Python knows an encoding of text by this name."""
    try:
        "".encode(encoding)
    except (LookupError, ValueError):
        return False
    return True


def same(one: str, other: str) -> bool:
    """Whether two known names are of one encoding."""
    return codecs.lookup(one).name == codecs.lookup(other).name


def contradicts(content: bytes, encoding: str) -> bool:
    """Whether bytes cannot be text of an encoding, or are of the other width."""
    guess = suspected(content)
    if same(guess, encoding):
        return False
    if ("16" in guess) != ("16" in encoding):
        return True
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        return True
    return False


_FEW = 3  # texts that may stand for a missing value
_MANY = 30  # different numbers are no codes
_MOST = 0.9
_NO_SIGNS = "leave it out, the column's name may say it"
_OR_SHOWN = ', or show in the schema how 1234 is written, as number_format = "1,234.50 $"'
_SIGN, _THOUSANDS = "[+-]?", "separators of thousands"
_WRITTEN = {
    "decimal commas": rf"{_SIGN}\d*,\d+",
    "decimal points": rf"{_SIGN}\d*\.\d+",
    _THOUSANDS: rf"{_SIGN}\d{{1,3}}([,. '\u00a0\u202f]\d{{3}})+([.,]\d+)?",
}
_CURRENCY = re.compile(r"US|[A-Z]{3}|Rs\.?|[Kk]r\.?|[Ff]r\.?")
_WITH_SIGNS = re.compile(rf"(?P<before>[^\d+-]{{0,4}}?)\s*{_SIGN}\d[\d.,' ]*(?P<behind>[^\d.,' ].{{0,7}})?")


def numbers_as_text(series: pd.Series, column: Column, decimal: str) -> str:
    """What a column of numbers that was read as text looks like, and the remedy; empty where it is none."""
    if not {"integer", "float"} & set(column.dtype_kinds) or pd.api.types.infer_dtype(series) != "string":
        return ""
    different = [str(text) for text in series.dropna().astype(str).str.strip().unique()]
    usual = _usual(decimal)
    texts = [text for text in different if not usual.fullmatch(text)]
    # An integer has no decimals, so 1,299 is one with a separator of thousands.
    if written := _otherwise(texts, decimal, whole="float" not in column.dtype_kinds):
        return f"holds what look like {written}{_OR_SHOWN if _THOUSANDS in written else ''}"
    if len(texts) <= _FEW and len(texts) < len(different):
        return (
            "holds texts among its numbers: where they stand for a missing value, leave the cell empty and set missing "
            "in the schema, or list them there as missing_codes too"
        )
    if _with_signs(texts):
        return f"holds numbers with a sign or a unit at each: {_NO_SIGNS}{_OR_SHOWN}"
    if len(texts) == 2 and isinstance(column, BinaryColumn):
        return "holds two texts: list them in the schema as categories, the one to be 0 first"
    return ""


def looks_like_numbers(texts: pd.Series, decimal: str, rare: int) -> str:
    """The same of texts of which nothing is known, for a draft; empty where they are labels.

    :param texts: stripped, none missing.
    :param decimal: the decimal mark that was stated.
    :param rare: a text of fewer records is not named.
    """
    usual = _usual(decimal)
    counts = {str(text): int(str(number)) for text, number in texts.value_counts().items()}
    others = [text for text in counts if not usual.fullmatch(text)]
    if written := _otherwise(others, decimal, whole=False):
        return f"looks like {written}"
    if len(counts) > _MANY and (signs := _with_signs(list(counts), but_labels=True)):
        return f"numbers with {signs} at each: {_NO_SIGNS}"
    if len(counts) - len(others) > _MANY and sum(counts[text] for text in others) < (1 - _MOST / 2) * len(texts):
        named = [repr(text) for text in others if counts[text] >= rare][:_FEW]
        said = f" ({', '.join(named)})" if named else ""
        return f"numbers but for some texts{said}: where these stand for a missing value, leave the cell empty"
    return ""


def _usual(decimal: str) -> re.Pattern[str]:
    return re.compile(rf"{_SIGN}\d+|{_WRITTEN['decimal points' if decimal == '.' else 'decimal commas']}")


def _otherwise(texts: Sequence[str], decimal: str, *, whole: bool) -> str:
    """How most of the texts that are not written as stated are written, and the remedy."""
    other = "decimal commas" if decimal == "." else "decimal points"
    candidates = (_THOUSANDS, other) if whole else (other, _THOUSANDS)
    remedies = {other: f'set decimal = "{"," if decimal == "." else "."}"', _THOUSANDS: "leave them out"}
    # 70,526 alone could be either; where all have three digits behind the mark, these are thousands.
    if all(re.fullmatch(_WRITTEN[_THOUSANDS], text) for text in texts):
        candidates = (_THOUSANDS,)
    for written in candidates:
        if sum(re.fullmatch(_WRITTEN[written], text) is not None for text in texts) > len(texts) / 2:
            return f"numbers with {written}: {remedies[written]}"
    return ""


def _with_signs(texts: Sequence[str], *, but_labels: bool = False) -> str:
    """What stands before or behind most numbers, a percent sign or a unit; empty where it is not one thing.

    :param but_labels: whether to leave out words before a number that are no currency's: J40 and "Plan 2" are labels.
    """
    found = [match for match in map(_WITH_SIGNS.fullmatch, texts) if match]
    signs = {(match["before"].strip(), (match["behind"] or "").strip()) for match in found}
    if len(signs) != 1 or len(found) < max(_FEW, _MOST * len(texts)) or signs == {("", "")}:
        return ""
    ((before, _),) = signs
    if but_labels and re.search(r"[^\W\d_]", before) and not _CURRENCY.fullmatch(before):
        return ""
    (sign,) = (" and ".join(repr(part) for part in pair if part) for pair in signs)
    return sign


_CODE = re.compile(r"-[1-9]|-?(9*[789]|8{2,}|9+\.9+)")  # -1, 9, 98, -999, 8888, 99.9
_NO_VALUE = -70  # below it, the only negative numbers of a column are codes, however few
_MOST_SPECIAL_VALUES = 4
LUMP = 3  # times the records of a usual value
_LONGEST_SCALE = 20  # different numbers


def codes_for_missing(values: np.ndarray, rare: int) -> tuple[float, ...]:
    """Numbers at an end of a column that look like codes for a missing value, and stand apart from the rest."""
    different, counts = np.unique(values, return_counts=True)
    found: list[float] = []
    for end in (-1, 1):
        from_the_end = different[::-end].tolist()
        known = list(itertools.takewhile(lambda value, sign=end: value * sign > 0 and is_code(value), from_the_end))
        rest = np.isin(different, known, invert=True)
        if 0 < len(known) <= _MOST_SPECIAL_VALUES and rest.sum() > 1:
            is_apart = _negatives_apart if end < 0 and different[rest].min() >= 0 else _apart
            if is_apart(np.asarray(known), counts[~rest], different[rest], counts[rest], rare):
                found += sorted(known)
    return tuple(found)


def list_numbers(values: Sequence[float]) -> str:
    """Numbers as people write them."""
    return ", ".join(f"{value:.10g}" for value in values)


def if_missing(codes: Sequence[float]) -> str:
    """What to write if they are; empty of none."""
    return f"; if {list_numbers(codes)} means missing, write missing_codes = [{list_numbers(codes)}]" if codes else ""


def if_negative(values: np.ndarray) -> str:
    """The same where the few negative numbers of a column might all be codes."""
    negative = np.unique(values[values < 0]).tolist()
    return if_missing(negative if len(negative) <= _MOST_SPECIAL_VALUES and all(map(is_code, negative)) else [])


def is_code(value: float) -> bool:
    """Whether a number is one that often stands for a missing value."""
    return _CODE.fullmatch(f"{value:.10g}") is not None


def _apart(known: np.ndarray, known_counts: np.ndarray, rest: np.ndarray, _: np.ndarray, rare: int) -> bool:
    spread = rest.max() - rest.min()
    gap = max(rest.min() - known.max(), known.min() - rest.max())
    return bool(gap > spread or (gap >= max(2, 0.05 * spread) and known_counts.min() >= rare))


def _negatives_apart(
    known: np.ndarray, known_counts: np.ndarray, rest: np.ndarray, counts: np.ndarray, rare: int
) -> bool:
    """Of the only negative numbers of a column: also by far more records than usual values have, but on no short scale.

    There they may be its lowest steps, as of months behind; a code that is taken for a step loses nothing.
    """
    if _apart(known, known_counts, rest, counts, rare) or known.max() < _NO_VALUE:
        return True
    return len(rest) > _LONGEST_SCALE and bool(known_counts.min() >= max(rare, LUMP * np.median(counts)))
