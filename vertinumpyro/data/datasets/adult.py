"""UCI Adult: 48,842 people of the 1994 US census, 45,222 without a missing answer."""

from pathlib import Path
from typing import Literal

import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.column import Column
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.datasets.sources import Source
from vertinumpyro.data.integer_columns import IntegerColumn
from vertinumpyro.data.real_columns import RealColumn
from vertinumpyro.data.schema import PartySchema, Schema

_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_HOME = "UCI Adult (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/2/adult"
SOURCES = {
    "train": Source(
        path="adult/adult.data",
        home=_HOME,
        url=f"{_BASE}/adult.data",
        sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "test": Source(
        path="adult/adult.test",
        home=_HOME,
        url=f"{_BASE}/adult.test",
        sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
}

_FILE_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation"),
    *("relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country"),
    "income",
)

# Categories as adult.names lists them: also those that no complete record has.
_WORKCLASS = (
    *("Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov"),
    *("Without-pay", "Never-worked"),
)
_MARITAL_STATUS = (
    *("Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed"),
    *("Married-spouse-absent", "Married-AF-spouse"),
)
_OCCUPATION = (
    *("Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty"),
    *("Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving"),
    *("Priv-house-serv", "Protective-serv", "Armed-Forces"),
)
_RELATIONSHIP = ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried")
_RACE = ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")
_NATIVE_COUNTRY = (
    *("United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany"),
    *("Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran"),
    *("Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal"),
    *("Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia"),
    *("Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador"),
    *("Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands"),
)

_DEMOGRAPHIC: dict[str, Column] = {
    # The census form takes ages up to 90; survey weights have no documented range, hence the clip.
    "age": RealColumn(bounds=(17, 90), out_of_bounds="clip", decimals=0),
    "education_num": IntegerColumn(bounds=(1, 16)),
    "marital_status": CategoricalColumn(categories=_MARITAL_STATUS),
    "relationship": CategoricalColumn(categories=_RELATIONSHIP),
    "race": CategoricalColumn(categories=_RACE),
    "sex": BinaryColumn(categories=("Female", "Male")),
    "native_country": CategoricalColumn(categories=_NATIVE_COUNTRY),
}
# Sixteen equal groups of the whole public range, as in the DPVI paper. The paper then keeps the groups
# that the data fill; which ones are filled is private, so all sixteen stay.
_FINANCIAL: dict[str, Column] = {
    "workclass": CategoricalColumn(categories=_WORKCLASS),
    "fnlwgt": RealColumn(bounds=(12_285, 1_490_400), out_of_bounds="clip", decimals=0),
    "occupation": CategoricalColumn(categories=_OCCUPATION),
    "capital_gain": IntegerColumn(bounds=(0, 99_999), bins=16, out_of_bounds="clip"),
    "capital_loss": IntegerColumn(bounds=(0, 4_356), bins=16, out_of_bounds="clip"),
    "hours_per_week": IntegerColumn(bounds=(1, 99), bins=16, out_of_bounds="clip"),
}
_INCOME: dict[str, Column] = {"income": BinaryColumn(categories=("<=50K", ">50K"))}

SCHEMAS = {
    "features": Schema(
        {"demographic": PartySchema(_DEMOGRAPHIC), "financial": PartySchema(_FINANCIAL)},
    ),
    "with_income": Schema(
        {"demographic": PartySchema(_DEMOGRAPHIC), "financial": PartySchema(_FINANCIAL | _INCOME)},
    ),
}


def load_adult(
    *,
    layout: Literal["features", "with_income"] = "features",
    split: Literal["train", "test"] = "train",
    folder: str | Path | None = None,
) -> VerticalDataset:
    """Return UCI Adult as the DPVI paper lays it out, demographics and finances at two parties.

    Records with a missing answer are dropped: 30,162 remain for training and 15,060 for testing. The text
    column `education` is left out, as it repeats `education_num`.

    Args:
        layout: "features" (13 columns) or "with_income" (14, the label too, at the financial party).
        split: "train" or "test", as the file's donors split it.
        folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).

    Raises:
        ArgumentError: unknown layout or split.
        DataError: the file cannot be found or fetched.
    """
    if layout not in SCHEMAS or split not in SOURCES:
        raise ArgumentError(
            f"layout={layout!r}, split={split!r}; choose a layout of {list(SCHEMAS)} and a split of {list(SOURCES)}"
        )
    return VerticalDataset.from_pooled(SCHEMAS[layout], _complete_records(SOURCES[split].locate(folder)))


def _complete_records(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(
        path,
        names=list(_FILE_COLUMNS),
        comment="|",  # the first line of adult.test
        skipinitialspace=True,
        na_values=["?"],
        keep_default_na=False,
    ).dropna()
    frame["income"] = frame["income"].str.removesuffix(".")  # adult.test ends its labels so
    return frame.reset_index(drop=True)
