"""UCI Abalone: sex, sizes, weights and rings of 4,177 abalones."""

from pathlib import Path

import pandas as pd

from vertinumpyro.data.category_columns import CategoricalColumn
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets.sources import Source
from vertinumpyro.data.integer_columns import IntegerColumn
from vertinumpyro.data.real_columns import RealColumn
from vertinumpyro.data.schema import PartySchema, Schema

SOURCE = Source(
    path="abalone/abalone.data",
    home="UCI Abalone (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/1/abalone",
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",
    sha256="de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
)

# The ranges that abalone.names prints, rounded outwards, in its units (200 mm and 200 g).
SCHEMA = Schema(
    {
        "field": PartySchema(
            {
                "sex": CategoricalColumn(categories=("M", "F", "I")),
                "length": RealColumn(bounds=(0, 1)),
                "diameter": RealColumn(bounds=(0, 0.8)),
                "height": RealColumn(bounds=(0, 1.2)),
            }
        ),
        "laboratory": PartySchema(
            {
                "whole_weight": RealColumn(bounds=(0, 3)),
                "shucked_weight": RealColumn(bounds=(0, 1.5)),
                "viscera_weight": RealColumn(bounds=(0, 0.8)),
                "shell_weight": RealColumn(bounds=(0, 1.1)),
                "rings": IntegerColumn(bounds=(1, 29)),
            }
        ),
    }
)


def load_abalone(folder: str | Path | None = None) -> VerticalDataset:
    """Return UCI Abalone, 4,177 records; sex and sizes at one party, weights and `rings` at the other.

    Args:
        folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).

    Raises:
        DataError: the file cannot be found or fetched.
    """
    frame = pd.read_csv(SOURCE.locate(folder), header=None, names=list(SCHEMA.columns))
    return VerticalDataset.from_pooled(SCHEMA, frame)
