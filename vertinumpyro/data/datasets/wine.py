"""UCI Wine Quality: eleven measurements and a tasters' score of 1,599 red and 4,898 white wines."""

from pathlib import Path
from typing import Literal

import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets.sources import Source
from vertinumpyro.data.integer_columns import IntegerColumn
from vertinumpyro.data.real_columns import RealColumn
from vertinumpyro.data.schema import PartySchema, Schema

_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality"
_HOME = "UCI Wine Quality (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/186/wine+quality"
SOURCES = {
    "red": Source(
        path="wine/winequality-red.csv",
        home=_HOME,
        url=f"{_BASE}/winequality-red.csv",
        sha256="4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    ),
    "white": Source(
        path="wine/winequality-white.csv",
        home=_HOME,
        url=f"{_BASE}/winequality-white.csv",
        sha256="76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    ),
}

# The ranges that Cortez et al. 2009 print for both wines (their Table 1), rounded outwards.
SCHEMA = Schema(
    {
        "winery": PartySchema(
            {
                "fixed_acidity": RealColumn(bounds=(3, 17)),
                "volatile_acidity": RealColumn(bounds=(0, 2)),
                "citric_acid": RealColumn(bounds=(0, 2)),
                "residual_sugar": RealColumn(bounds=(0, 70), transform="log1p"),
                "chlorides": RealColumn(bounds=(0, 0.7), transform="sqrt"),
                "free_sulfur_dioxide": RealColumn(bounds=(0, 300), transform="sqrt"),
            }
        ),
        "laboratory": PartySchema(
            {
                "total_sulfur_dioxide": RealColumn(bounds=(0, 450), transform="sqrt"),
                "density": RealColumn(bounds=(0.98, 1.05)),
                "ph": RealColumn(bounds=(2.5, 4.5)),
                "sulphates": RealColumn(bounds=(0, 2.5)),
                "alcohol": RealColumn(bounds=(7, 16)),
                "quality": IntegerColumn(bounds=(0, 10)),
            }
        ),
    }
)


def load_wine(color: Literal["red", "white"] = "red", folder: str | Path | None = None) -> VerticalDataset:
    """Return UCI Wine Quality, 11 measurements and `quality` (0..10), six columns at each party.

    Args:
        color: "red" (1,599 wines) or "white" (4,898).
        folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).

    Raises:
        ArgumentError: unknown color.
        DataError: the file cannot be found or fetched.
    """
    if color not in SOURCES:
        raise ArgumentError(f"color={color!r}; choose one of {list(SOURCES)}")
    return VerticalDataset.from_pooled(SCHEMA, _read(SOURCES[color].locate(folder)))


def _read(path: Path) -> pd.DataFrame:
    # UCI's own file has a header and semicolons; common copies have neither.
    with path.open() as lines:
        original = ";" in next(lines, "")
    return pd.read_csv(path, sep=";" if original else ",", header=0 if original else None, names=list(SCHEMA.columns))
