"""Three public tables of 60,000 to 163,000 people and one of 6,524, one for each model.

None is in the repository. Columns of two values are declared so, as a user would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from noise_aware_parts.models import LATEST, Family, Table
from noise_aware_parts.public_survival import FLCHAIN

from vertinumpyro.core.errors import DataError
from vertinumpyro.data import CountColumn, RealColumn
from vertinumpyro.data.datasets import Source, load_dutch

WAGES = Source(
    path="cpssw/CPSSW8.csv",
    home="Hourly earnings in the US Current Population Survey (Stock and Watson 2007), described at "
    "https://vincentarelbundock.github.io/Rdatasets/doc/AER/CPSSW8.html",
    url="https://vincentarelbundock.github.io/Rdatasets/csv/AER/CPSSW8.csv",
    sha256="908a60fa4fb5f12d6dad1e5beb2181e5da606346b75046f41f0316572bcfaf27",
)
CLAIMS = Source(
    path="bemtpl/beMTPL97.rda",
    home="Claims on Belgian motor third-party liability in 1997 (Denuit and Lang 2004), of the R package CASdatasets; "
    "read by the package rdata (pip install rdata)",
    url="https://github.com/dutangc/CASdatasets/raw/dbac69aca3dc8dc872a744e20b94c60c06cbd440/data/beMTPL97.rda",
    sha256="955a821a7a693bf18076c425e4d5a5a99889f3c89e1fbd99eca6239c11e963a6",
)
_LOG_WAGE, _SPREAD, _FARTHEST = 2.485, 0.42, 4.3  # of the logarithms: middle, about a residual's deviation, end


def public_table(family: Family) -> Table:
    """Of a model.

    :raises DataError: it is not there.
    """
    return _LOADERS[family.law](family)


def _dutch(family: Family) -> Table:
    """Prestigious occupations in the Dutch census of 2001, by household positions where there are groups."""
    frame = load_dutch().to_frame()
    one = {name: frame[name].astype(str) for name in frame}
    columns = [
        _scaled(frame["age"], 4, 15), one["sex"] == "male", _scaled(frame["edu_level"], 0, 5),
        one["marital_status"] == "2", one["household_size"] == "112", one["household_size"] == "111",
        one["economic_status"] == "111",
    ]  # fmt: skip
    groups = frame["household_position"].astype("category").cat.codes if family.grouped else None
    return _table(family, columns, frame["occupation"], indicators=(1, 3, 4, 5, 6), groups=groups)


def _wages(family: Family) -> Table:
    frame = pd.read_csv(WAGES.locate())
    columns = [
        _scaled(frame["age"], 21, 64), _scaled(frame["education"], 6, 20), _scaled((frame["age"] - 42.0) ** 2, 0, 484),
        frame["gender"] == "male", *(frame["region"] == name for name in ("South", "West", "Midwest")),
    ]  # fmt: skip
    wages = (np.log(frame["earnings"]) - _LOG_WAGE) / _SPREAD
    column = RealColumn(bounds=(-_FARTHEST, _FARTHEST))
    return _table(dataclasses.replace(family, outcome_column=column), columns, wages, indicators=(3, 4, 5, 6))


def _claims(family: Family) -> Table:
    try:
        rdata = import_module("rdata")
    except ImportError:
        raise DataError("the table of claims is an R file: pip install rdata") from None
    frame = rdata.read_rda(CLAIMS.locate())["beMTPL97"]
    columns = [
        _scaled(frame["ageph"], 18, 95), _scaled(frame["bm"], 0, 22), frame["sex"].astype(str) == "male",
        _scaled(frame["power"], 10, 150), _scaled(frame["agec"], 0, 30), frame["fuel"].astype(str) == "diesel",
        frame["coverage"].astype(str) != "TPL",
    ]  # fmt: skip
    family = dataclasses.replace(family, outcome_column=CountColumn(upper=5))
    exposed = np.asarray(frame["expo"], float) if family.exposed else 1.0
    return _table(family, columns, frame["nclaims"], indicators=(2, 5, 6), exposed=exposed)


def _deaths(family: Family) -> Table:
    """Of those whose creatinine is known, by fifteen years, which are the model's four."""
    frame = pd.read_csv(FLCHAIN.locate()).dropna(subset=["creatinine"])
    columns = [
        _scaled(frame["age"], 50, 100), frame["sex"] == "M", _scaled(frame["sample.yr"], 1995, 2003),
        _scaled(np.log1p(frame["creatinine"]), 0, np.log1p(11)), _scaled(frame["flc.grp"], 1, 10),
        _scaled(np.log1p(frame["kappa"]), 0, np.log1p(21)), frame["mgus"] == 1,
    ]  # fmt: skip
    time = np.clip(np.asarray(frame["futime"], float) / 365.25 / 15, 0, 1) * LATEST
    return _table(family, columns, frame["death"], indicators=(1, 6), time=time)


_LOADERS: Mapping[str, Callable[[Family], Table]] = {
    "logistic": _dutch, "linear": _wages, "poisson": _claims, "negative_binomial": _claims,
    "survival": _deaths,
}  # fmt: skip


def _table(
    family: Family, columns: Sequence[Any], outcome: Any, *, indicators: tuple[int, ...], groups: Any = None, **own: Any
) -> Table:
    x = np.column_stack([np.asarray(column, float) for column in columns])
    y = np.asarray(outcome, float)
    groups = np.zeros(len(y), int) if groups is None else np.asarray(groups, int)
    return Table(dataclasses.replace(family, indicators=indicators), x, y, groups, **own)


def _scaled(values: Any, low: float, high: float) -> np.ndarray:
    return np.clip(2 * (np.asarray(values, float) - low) / (high - low) - 1, -1, 1)
