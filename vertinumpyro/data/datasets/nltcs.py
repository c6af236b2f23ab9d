"""The National Long Term Care Survey: 21,574 people, sixteen yes/no disability items."""

from pathlib import Path

import pandas as pd

from vertinumpyro.data.category_columns import BinaryColumn
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets.sources import Source
from vertinumpyro.data.schema import PartySchema, Schema

SOURCE = Source(
    path="nltcs/nltcs.csv",
    home="The National Long Term Care Survey's 16 binary items, a header and 21,574 lines, are among the "
    "benchmark tables of private-synthetic-data papers (research use, cite the survey)",
)

# Personal care at the hospital, running a household at the home-care service: eight items each.
_HOSPITAL = (
    *("eating", "getting_in_out_of_bed", "getting_around_inside", "dressing", "bathing", "using_toilet"),
    *("taking_medicine", "getting_about_outside"),
)
_HOME_CARE = (
    *("heavy_house_work", "light_house_work", "laundry", "cooking", "grocery_shopping", "traveling"),
    *("managing_money", "telephoning"),
)

SCHEMA = Schema(
    {
        "hospital": PartySchema({name: BinaryColumn() for name in _HOSPITAL}),
        "home_care": PartySchema({name: BinaryColumn() for name in _HOME_CARE}),
    }
)


def load_nltcs(folder: str | Path | None = None) -> VerticalDataset:
    """Return the National Long Term Care Survey, 21,574 records of 16 binary items, 8 at each party.

    Args:
        folder: a data folder; None takes `VERTINUMPYRO_DATA`. There is no public address to fetch from.

    Raises:
        DataError: the file cannot be found; the message says how to get it and where to put it.
    """
    frame = pd.read_csv(SOURCE.locate(folder)).rename(columns=_snake_case)
    return VerticalDataset.from_pooled(SCHEMA, frame)


def _snake_case(name: str) -> str:
    return name.strip().replace("/", "_").replace(" ", "_").lower()
