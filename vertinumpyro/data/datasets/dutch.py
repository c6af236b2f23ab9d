"""The Dutch census of 2001: 60,420 people, twelve categorical columns, occupation as the 0/1 label."""

from pathlib import Path

import pandas as pd

from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets.sources import Source
from vertinumpyro.data.schema import PartySchema, Schema

SOURCE = Source(
    path="dutch/dutch.csv",
    home="The Dutch census of 2001 is distributed by Statistics Netherlands through IPUMS; its 60,420-line "
    "extract of 12 columns is among the benchmark tables of fairness papers (research use, cite)",
)

# Codes of the census's code book: numbers, but not quantities.
_HOUSEHOLD_POSITION = (1110, 1121, 1122, 1131, 1132, 1140, 1210, 1220)
_ECONOMIC_ACTIVITY = (111, 122, 124, 131, 132, 133, 134, 135, 136, 137, 138, 139)

SCHEMA = Schema(
    {
        "registry": PartySchema(
            {
                "sex": BinaryColumn(categories=("female", "male")),
                "age": CategoricalColumn(categories=tuple(range(4, 16))),
                "household_position": CategoricalColumn(categories=_HOUSEHOLD_POSITION),
                "household_size": CategoricalColumn(categories=(111, 112, 113, 114, 125, 126)),
                "prev_residence_place": BinaryColumn(categories=(1, 2)),
                "citizenship": CategoricalColumn(categories=(1, 2, 3)),
                "country_birth": CategoricalColumn(categories=(1, 2, 3)),
            }
        ),
        "labour_office": PartySchema(
            {
                "edu_level": CategoricalColumn(categories=tuple(range(6))),
                "economic_status": CategoricalColumn(categories=(111, 112, 120)),
                "cur_eco_activity": CategoricalColumn(categories=_ECONOMIC_ACTIVITY),
                "marital_status": CategoricalColumn(categories=(1, 2, 3, 4)),
                "occupation": BinaryColumn(),
            }
        ),
    }
)


def load_dutch(folder: str | Path | None = None) -> VerticalDataset:
    """Return the Dutch census of 2001, 60,420 records of 12 codes; who people are, and what they do.

    Args:
        folder: a data folder; None takes `VERTINUMPYRO_DATA`. There is no public address to fetch from.

    Raises:
        DataError: the file cannot be found; the message says how to get it and where to put it.
    """
    return VerticalDataset.from_pooled(SCHEMA, pd.read_csv(SOURCE.locate(folder)))
