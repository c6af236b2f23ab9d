"""Hypothesis strategies for public schemas and the columns in them."""

import datetime

import numpy as np
from hypothesis import strategies as st

from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    Column,
    CountColumn,
    DateColumn,
    IntegerColumn,
    PartySchema,
    RealColumn,
    Schema,
)

NAMES = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1, max_size=8).filter(
    lambda name: not name.endswith("_observed") and name != "record"
)
MISSING = st.sampled_from(["forbid", "mask", "category"])
CODES = st.sampled_from([(), (-9999, 0.125, "not given")])
RULES = st.sampled_from(["error", "clip"])
TRANSFORMS = st.sampled_from(["identity", "log1p", "sqrt"])


@st.composite
def real_bounds(draw):
    low = draw(st.floats(0, 1e4))
    return low, low + draw(st.floats(0.01, 1e4))


@st.composite
def edges(draw):
    steps = draw(st.lists(st.floats(0.01, 100), min_size=2, max_size=6))
    listed = [draw(st.floats(-100, 100))]
    for step in steps:
        atom = draw(st.booleans())
        listed += [listed[-1]] * atom + [listed[-1] + step]
    return tuple(listed)


@st.composite
def reals(draw):
    options = {"bounds": draw(real_bounds()), "transform": draw(TRANSFORMS), "out_of_bounds": draw(RULES)}
    return RealColumn(**options, missing=draw(MISSING), missing_codes=draw(CODES))


@st.composite
def binned(draw):
    options = {"missing": draw(MISSING), "missing_codes": draw(CODES), "out_of_bounds": draw(RULES)}
    if draw(st.booleans()):
        return BinnedColumn(edges=draw(edges()), **options)
    bins = draw(st.integers(2, 20))
    return BinnedColumn(bounds=draw(real_bounds()), bins=bins, transform=draw(TRANSFORMS), **options)


@st.composite
def integers(draw):
    options = {"missing": draw(MISSING), "missing_codes": draw(CODES), "out_of_bounds": draw(RULES)}
    low, count = draw(st.integers(-1000, 1000)), draw(st.integers(2, 60))
    if draw(st.booleans()):
        inner = draw(st.sets(st.integers(low + 1, low + count), min_size=2))
        return IntegerColumn(edges=(low, *sorted(inner)), **options)
    bins = draw(st.none() | st.integers(2, count))
    return IntegerColumn(bounds=(low, low + count - 1), bins=bins, **options)


@st.composite
def categoricals(draw):
    labels = st.sampled_from([NAMES, st.integers(-99, 99), st.floats(-9, 9).map(lambda x: round(x, 2))])
    missing = draw(MISSING)
    listed = draw(st.lists(draw(labels), min_size=1 if missing == "category" else 2, max_size=6, unique=True))
    unknown = draw(st.sampled_from(["error", *listed]))
    return CategoricalColumn(categories=tuple(listed), unknown=unknown, missing=missing)


def binaries():
    pairs = st.sampled_from([None, ("no", "yes"), (1, 2), (False, True)])
    return st.builds(BinaryColumn, categories=pairs, missing=MISSING)


def counts():
    return st.builds(CountColumn, upper=st.integers(1, 10_000), missing=MISSING, out_of_bounds=RULES)


@st.composite
def dates(draw):
    unit = draw(st.sampled_from(["hour", "day", "week", "month", "quarter", "year"]))
    low = draw(st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)))
    days = {"hour": 5, "day": 300, "week": 900, "month": 2000, "quarter": 4000, "year": 9000}[unit]
    shortest = {"hour": 1, "day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}[unit]
    high = low + datetime.timedelta(days=draw(st.integers(shortest, days)))
    form = draw(st.sampled_from([None, "%d.%m.%Y %H:%M"]))
    bins = draw(st.sampled_from([None, 2]))
    bounds = (low.isoformat(), high.isoformat())
    zone = draw(st.sampled_from([None, "Europe/Helsinki"]))
    return DateColumn(
        timezone=zone,
        missing_codes=draw(CODES),
        bounds=bounds,
        unit=unit,
        bins=bins,
        format=form,
        missing=draw(MISSING),
        out_of_bounds=draw(RULES),
    )


def columns() -> st.SearchStrategy[Column]:
    return st.one_of(reals(), binned(), integers(), categoricals(), binaries(), counts(), dates())


@st.composite
def schemas(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    parties = draw(st.lists(NAMES, min_size=1, max_size=len(names), unique=True))
    cuts = np.array_split(np.asarray(names, dtype=object), len(parties))
    built = {p: PartySchema({n: draw(columns()) for n in cut}) for p, cut in zip(parties, cuts, strict=True)}
    return Schema(built, "record")
