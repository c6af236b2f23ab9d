"""Texts that are numbers to a person: how they seem to be written, in words, with what to do about it.

A guess is only ever told, never followed: it would be one about data.
"""

import re
from collections.abc import Sequence

import pandas as pd

from vertinumpyro.data.category_columns import BinaryColumn
from vertinumpyro.data.column import Column

__all__ = ["looks_like_numbers", "numbers_as_text"]

_FEW = 3  # texts that may stand for a missing value
_MANY = 30  # different numbers are no codes
_MOST = 0.9
_NO_SIGNS = "leave it out, the column's name may say it"
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
        return f"holds what look like {written}"
    if len(texts) <= _FEW and len(texts) < len(different):
        return (
            "holds texts among its numbers: where they stand for a missing value, leave the cell empty and set missing "
            "in the schema, or list them there as missing_codes too"
        )
    if _with_signs(texts):
        return f"holds numbers with a sign or a unit at each: {_NO_SIGNS}"
    if len(texts) == 2 and isinstance(column, BinaryColumn):
        return "holds two texts: list them in the schema as categories, the one to be 0 first"
    return ""


def looks_like_numbers(texts: pd.Series, decimal: str, rare: int) -> str:
    """The same of texts of which nothing is known, for a draft; empty where they are labels.

    Args:
        texts: stripped, none missing.
        decimal: the decimal mark that was stated.
        rare: a text of fewer records is not named.
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
