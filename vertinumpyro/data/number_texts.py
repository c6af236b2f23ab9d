"""Numbers as texts: amounts of money, percents and quantities with their separators and signs, told by a picture.

The picture is the number 1234 as the file writes it: "€ 1,234.50", "1.234,50 €", "CHF 1'234.50", "1234,5 %", with as
many decimals as a number has at most; where negative ones are written in a way of their own, -1234: "(1,234.50)". What
a picture says is read, and nothing else: a text that has other signs, a group of other than three digits or more
decimals is refused, as it may be another number than it seems.
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import SchemaError

_SPACES = "\u00a0\u202f\u2009"
_GROUPS = {"": "", ",": ",", ".": "[.]", "'": "['’]", " ": " "}
_SHOWN = re.compile(rf"1(?P<group>[,.'’ {_SPACES}]?)234(?:(?P<mark>[.,])(?P<decimals>\d{{1,9}}))?(?!\d)", re.ASCII)
_PARTS = re.compile(rf"(?P<before>\D*?)(?P<core>\d(?:[\d.,'’ {_SPACES}]*\d)?)(?P<behind>\D*)", re.ASCII)
_LONGEST_SIGN = 8
_CODES = (  # of money, and no other three letters: "LOT 123" is a label
    "AED|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KRW|MXN|MYR|NOK|NZD|PHP|PLN|RON|"
    "RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
_CURRENCY = re.compile(rf"[$€£¥₹₽₩₺₴₪฿₫₦]|US\$|{_CODES}|Rs\.?|[Kk]r\.?|[Ff]r\.?|zł|Kč")
_PART_OF = re.compile(r"[%‰]")
_WORD = re.compile(r"[^\W\d_]")
_FEWEST, _MANY = 3, 30  # different texts, of which a sign of money or one of anything makes numbers


@final
@dataclasses.dataclass(frozen=True)
class NumberFormat:
    """What a picture says; made by `of`.

    :ivar group: between groups of three digits; empty where there are none.
    :ivar mark: the decimal mark; empty where numbers are whole.
    :ivar places: decimals that a number has at most.
    :ivar positive: what stands before a number and behind it.
    :ivar negative: the same of a number below 0.
    """

    picture: str
    group: str
    mark: str
    places: int
    positive: tuple[str, str]
    negative: tuple[str, str]

    @staticmethod
    @functools.cache
    def of(picture: str) -> "NumberFormat":
        """What a picture says.

        :raises SchemaError: it is none.
        """
        found = _SHOWN.search(picture) if isinstance(picture, str) else None
        if found is None or re.search(r"\d", picture[: found.start()] + picture[found.end() :]):
            raise SchemaError(
                f"number_format = {picture!r}; show how the number 1234 is written, with as many decimals as there "
                'are, as "1,234.50 $", "€ 1.234,50", "1234,5 %" or "(1,234)" for one below 0'
            )
        if found["group"] and found["group"] == found["mark"]:
            raise SchemaError(f"number_format = {picture!r}; one mark cannot group digits and begin decimals")
        before, behind = picture[: found.start()], picture[found.end() :]
        positive = _without_minus(before, behind)
        negative = (before, behind) if positive != (before, behind) else ("-" + before, behind)
        decimals = found["decimals"] or ""
        return NumberFormat(picture, found["group"], found["mark"] or "", len(decimals), positive, negative)

    def read(self, values: pd.Series) -> np.ndarray:
        """The numbers of texts, float64 [n]; NaN where a text is not written so. What is a number stays one."""
        numbers, different = pd.factorize(values.to_numpy(object), use_na_sentinel=False)
        return np.array([self._read(value) for value in different], np.float64)[numbers] if len(values) else np.empty(0)

    @property
    def read_picture(self) -> float:
        """The number that the picture shows."""
        return self._read(self.picture)

    def write(self, numbers: np.ndarray) -> list[str]:
        """The texts of finite numbers."""
        return [self._write(number) for number in numbers.tolist()]

    def _read(self, value: object) -> float:
        if not isinstance(value, str):
            return float(value) if isinstance(value, (int, float, np.number)) else np.nan
        text = _plain(value)
        for pattern, factor in self._patterns:
            if found := pattern.fullmatch(text):
                core = re.sub("[^0-9]", "", found["whole"]) + "." + (found["decimals"] or "0")
                return (-1.0 if found.groupdict().get("minus") else 1.0) * factor * float(core)
        return np.nan

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[re.Pattern[str], float], ...]:
        whole = rf"(?P<whole>{_whole(_one_kind(self.group), '[0-9]+')})"
        decimals = rf"(?:[{self.mark}](?P<decimals>\d{{1,{self.places}}}))?" if self.mark else "(?P<decimals>(?!))?"
        before, behind = map(_escaped, self.positive)
        usual = [rf"(?P<minus>-)?{before}[+]?{whole}{decimals}{behind}"]
        usual += [rf"{before}(?P<minus>-){whole}{decimals}{behind}"] if before else []
        below = [_escaped(part) for part in self.negative]
        patterns = [(re.compile(pattern, re.ASCII), 1.0) for pattern in usual]
        return (*patterns, (re.compile(rf"{below[0]}{whole}{decimals}{below[1]}", re.ASCII), -1.0))

    def _write(self, number: float) -> str:
        text = f"{abs(number):,.{self.places}f}"
        below = number < 0 and text.strip("0.,") != ""
        before, behind = self.negative if below else self.positive
        whole, _, decimals = text.partition(".")
        return before + whole.replace(",", self.group) + self.mark + decimals + behind


def _without_minus(before: str, behind: str) -> tuple[str, str]:
    """What stands around a number that is not below 0."""
    if "(" in before and ")" in behind:
        return before.replace("(", "", 1), behind.replace(")", "", 1)
    without = re.sub("[-−]", "", before, count=1)
    return (without, behind) if without != before else (before, re.sub("[-−]", "", behind, count=1))


def _plain(text: str) -> str:
    """One kind of spaces, none around signs, one minus."""
    return re.sub(r"(?<!\d) +| +(?!\d)", "", re.sub(f"[{_SPACES}]", " ", text).strip().replace("−", "-"))


def _escaped(part: str) -> str:
    return re.escape(re.sub(rf"[ {_SPACES}]", "", part.replace("−", "-")))


def _whole(group: str, ungrouped: str) -> str:
    """The digits before decimals, in groups or in none."""
    return (rf"[1-9]\d{{0,2}}(?:{_GROUPS[group]}\d{{3}})+|" if group else "") + ungrouped


class _Parts(NamedTuple):
    """A text as sign, digits with their marks, and sign."""

    before: str
    core: str
    behind: str


def pictures(texts: Sequence[str], decimal: str = ".") -> list[str]:
    """The ways in which all of these numbers may be written, as pictures; none where they are no such numbers.

    Two ways or more read different numbers from the same texts, "1,234" for one: somebody has to say which is meant.

    :param texts: different ones, none missing.
    :param decimal: the decimal mark that was stated; "." is nobody's statement.
    """
    found = [_PARTS.fullmatch(text.strip()) for text in texts]
    if len(texts) < _FEWEST or not all(found):
        return []
    parts = [_Parts(part["before"], part["core"], part["behind"]) for part in found if part]
    around = Counter(_without_minus(part.before, part.behind) for part in parts)
    signs = {(before.strip(), behind.strip()) for before, behind in around}
    if len(signs) != 1 or not _are_signs(*next(iter(signs)), len(texts)):
        return []
    marks = list(_marks([_one_kind(part.core) for part in parts], decimal))
    if signs == {("", "")} and not any(group for group, _ in marks):
        return []  # decimal marks alone are the whole file's
    readings: dict[tuple[float, ...], str] = {}
    for group, mark in marks:
        picture = _picture(parts, group, mark)
        read = NumberFormat.of(picture).read(pd.Series(texts, dtype=object))
        if np.isnan(read).any():
            return []
        readings.setdefault(tuple(read.tolist()), picture)
    return list(readings.values())


def _one_kind(text: str) -> str:
    """One kind of spaces and of apostrophes."""
    return re.sub(f"[{_SPACES}]", " ", text).replace("’", "'")


def _are_signs(before: str, behind: str, different: int) -> bool:
    """Whether what stands at each number is a sign of money, of a part, or a unit of many different numbers: "Plan 2"
    and "J40" are labels.
    """
    if max(len(before), len(behind)) > _LONGEST_SIGN:
        return False
    if not before and not behind:
        return True
    money = [bool(_CURRENCY.fullmatch(sign)) for sign in (before, behind) if sign]
    if all(money) or (not before and _PART_OF.fullmatch(behind)):
        return True
    return different > _MANY and (not before or not _WORD.search(before) or bool(_CURRENCY.fullmatch(before)))


def _marks(cores: Sequence[str], decimal: str) -> Iterator[tuple[str, str]]:
    """What may group digits and what may begin decimals, each of them used; strictly by groups of three."""
    used = {mark for core in cores for mark in re.findall("[.,' ]", core)}
    for group, mark in itertools.product(("", *sorted(used)), ("", *sorted(used & {".", ","}))):
        stated = decimal != "," or (mark != "." and group != ",")
        if group == mark != "" or {group, mark} - {""} != used or not stated:
            continue
        whole = rf"(?:{_whole(group, '0|[1-9][0-9]*')})"
        core_of = re.compile(whole + (rf"(?:[{mark}]\d{{1,9}})?" if mark else ""), re.ASCII)
        if all(map(core_of.fullmatch, cores)):
            yield group, mark


def _picture(parts: Sequence[_Parts], group: str, mark: str) -> str:
    """How most of the numbers are written; those below 0, where there are any."""
    below = [part for part in parts if _without_minus(part.before, part.behind) != (part.before, part.behind)]
    (before, behind), _ = Counter((part.before, part.behind) for part in below or parts).most_common(1)[0]
    places = max((len(part.core.partition(mark)[2]) for part in parts), default=0) if mark else 0
    if group in ("'", " "):
        group = Counter(re.findall(f"['’ {_SPACES}]", "".join(part.core for part in parts))).most_common(1)[0][0]
    return f"{before}1{group}234{mark}{'50'.ljust(places, '0')[:places]}{behind}"
