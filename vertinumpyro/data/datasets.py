"""Data sets to start with: for each its public schema, its source and its loader. A file lies in a given folder, in the
folder of `VERTINUMPYRO_DATA`, or at its public home.
"""

import dataclasses
import hashlib
import http.client
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Literal

import pandas as pd

from vertinumpyro.core.errors import ArgumentError, DataError
from vertinumpyro.data.category_columns import BinaryColumn, CategoricalColumn
from vertinumpyro.data.column import Column
from vertinumpyro.data.dataset import VerticalDataset
from vertinumpyro.data.number_columns import BinnedColumn, IntegerColumn, RealColumn
from vertinumpyro.data.schema import PartySchema, Schema

#: The environment variable that names a folder of data sets.
FOLDER_VARIABLE = "VERTINUMPYRO_DATA"

_TIMEOUT_SECONDS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One public data file.

    :param path: where it lies below a data folder and below the cache, e.g. ``adult/adult.data``.
    :param home: what it is and where it is described, for the error message.
    :param url: its public home, or None when no stable one is known.
    :param sha256: digest of the bytes at `url`, in hexadecimal. A file from a folder is not held to it: copies differ
        in line endings.
    """

    path: str
    home: str
    url: str | None = None
    sha256: str | None = None

    def locate(self, folder: str | Path | None = None) -> Path:
        """Return a path to the file, fetching it when no folder is named.

        :param folder: a data folder; None takes the one in `VERTINUMPYRO_DATA`, and without that the cache
            (``$XDG_CACHE_HOME/vertinumpyro``, else ``~/.cache/vertinumpyro``), filled from `url`.
        :raises DataError: the named folder lacks the file, it has no public home, it cannot be fetched, or what was
            fetched has the wrong checksum.
        """
        named = folder or os.environ.get(FOLDER_VARIABLE)
        if named:
            return self._in_folder(Path(named))
        if self.url is None or self.sha256 is None:
            raise DataError(
                f"{self.path} has no stable public address. {self.home}. Put it at FOLDER/{self.path}, and "
                f"pass folder=FOLDER or set {FOLDER_VARIABLE}=FOLDER"
            )
        return self._in_cache(self.url, self.sha256)

    def _in_folder(self, folder: Path) -> Path:
        path = folder / self.path
        if not path.is_file():
            fetched = "" if self.url is None else f", or unset {FOLDER_VARIABLE} to fetch it from {self.url}"
            raise DataError(f"there is no file {str(path)!r}. {self.home}. Put it there{fetched}")
        return path

    def _in_cache(self, url: str, sha256: str) -> Path:
        path = cache_folder() / self.path
        if not (path.is_file() and _digest(path.read_bytes()) == sha256):
            content = _download(url)
            if _digest(content) != sha256:
                raise DataError(
                    f"{url} does not have the expected SHA-256 {sha256}, so it is not used; get {self.path} "
                    f"elsewhere and set {FOLDER_VARIABLE} to its folder"
                )
            _write_whole(path, content)
        return path


def cache_folder() -> Path:
    """Return the folder of fetched files; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vertinumpyro"


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            return response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"cannot fetch {url} ({error}); set {FOLDER_VARIABLE} to a folder that has it") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    # Under another name first, so that no reader ever meets half a file.
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as partial:
        partial.write(content)
    Path(partial.name).replace(path)


ABALONE_SOURCE = Source(
    path="abalone/abalone.data",
    home="UCI Abalone (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/1/abalone",
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/abalone/abalone.data",
    sha256="de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
)

# The ranges that abalone.names prints, rounded outwards, in its units (200 mm and 200 g).
ABALONE_SCHEMA = Schema(
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

    :param folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).
    :raises DataError: the file cannot be found or fetched.
    """
    frame = pd.read_csv(ABALONE_SOURCE.locate(folder), header=None, names=list(ABALONE_SCHEMA.columns))
    return VerticalDataset.from_pooled(ABALONE_SCHEMA, frame)


_ADULT_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_ADULT_HOME = "UCI Adult (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/2/adult"
ADULT_SOURCES = {
    "train": Source(
        path="adult/adult.data",
        home=_ADULT_HOME,
        url=f"{_ADULT_BASE}/adult.data",
        sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "test": Source(
        path="adult/adult.test",
        home=_ADULT_HOME,
        url=f"{_ADULT_BASE}/adult.test",
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

ADULT_SCHEMAS = {
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

    :param layout: "features" (13 columns) or "with_income" (14, the label too, at the financial party).
    :param split: "train" or "test", as the file's donors split it.
    :param folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).
    :raises ArgumentError: unknown layout or split.
    :raises DataError: the file cannot be found or fetched.
    """
    if layout not in ADULT_SCHEMAS or split not in ADULT_SOURCES:
        raise ArgumentError(
            f"layout={layout!r}, split={split!r}; choose a layout of {list(ADULT_SCHEMAS)} and a split of "
            f"{list(ADULT_SOURCES)}"
        )
    return VerticalDataset.from_pooled(ADULT_SCHEMAS[layout], _complete_records(ADULT_SOURCES[split].locate(folder)))


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


DUTCH_SOURCE = Source(
    path="dutch/dutch.csv",
    home="The Dutch census of 2001 is distributed by Statistics Netherlands through IPUMS; its 60,420-line "
    "extract of 12 columns is among the benchmark tables of fairness papers (research use, cite)",
)

# Codes of the census's code book: numbers, but not quantities.
_HOUSEHOLD_POSITION = (1110, 1121, 1122, 1131, 1132, 1140, 1210, 1220)
_ECONOMIC_ACTIVITY = (111, 122, 124, 131, 132, 133, 134, 135, 136, 137, 138, 139)

DUTCH_SCHEMA = Schema(
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

    :param folder: a data folder; None takes `VERTINUMPYRO_DATA`. There is no public address to fetch from.
    :raises DataError: the file cannot be found; the message says how to get it and where to put it.
    """
    return VerticalDataset.from_pooled(DUTCH_SCHEMA, pd.read_csv(DUTCH_SOURCE.locate(folder)))


NLTCS_SOURCE = Source(
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

NLTCS_SCHEMA = Schema(
    {
        "hospital": PartySchema({name: BinaryColumn() for name in _HOSPITAL}),
        "home_care": PartySchema({name: BinaryColumn() for name in _HOME_CARE}),
    }
)


def load_nltcs(folder: str | Path | None = None) -> VerticalDataset:
    """Return the National Long Term Care Survey, 21,574 records of 16 binary items, 8 at each party.

    :param folder: a data folder; None takes `VERTINUMPYRO_DATA`. There is no public address to fetch from.
    :raises DataError: the file cannot be found; the message says how to get it and where to put it.
    """
    frame = pd.read_csv(NLTCS_SOURCE.locate(folder)).rename(columns=_snake_case)
    return VerticalDataset.from_pooled(NLTCS_SCHEMA, frame)


def _snake_case(name: str) -> str:
    return name.strip().replace("/", "_").replace(" ", "_").lower()


# The experiment's design, published in the documentation of the file, fixes every domain here.

# ln(coinsurance + 1) for the plans' rates of 0, 25, 50, 95 and 100 percent: five labels, not a scale.
_LOG_COINSURANCE = (0.0, 3.258096, 3.931826, 4.564348, 4.61512)

# ln(max(1, payment)): zero for who gets none, and lumps at the family payments of $450, $750 and $1000.
# A density cannot carry a lump, so each is an atom (an edge given twice); wide steps lie between. Coarse on
# purpose: every further cell costs noise in a private fit.
_LOG_PAYMENT = (*(0.0, 0.0, 5.0, 6.109248, 6.109248, 6.620073, 6.620073, 6.907755, 6.907755, 7.25),)

# ln(max(1, MDE / coinsurance)): zero under an individual deductible, and lumps at the plans' caps, such
# as $450 / 0.95, $1000 / 0.95 and $1000 / 0.25.
_LOG_EXPENDITURE = (
    *(0.0, 0.0, 5.5, 6.160541, 6.160541, 6.959049, 6.959049, 7.600903, 7.600903, 8.006368, 8.006368),
    *(8.294049, 8.294049, 8.5),
)

# Visits: nearly a third are 0 and the tail is long, which a Poisson mixture would need many components
# for; single visits up to 4 and ever wider groups above keep both. The last group is closed.
_VISITS = (0, 1, 2, 3, 4, 5, 7, 10, 15, 25, 80)

# 0 and 1 are answers; what lies between was imputed by the survey, mostly with means below 1/4.
_LIMITATION = (0.0, 0.0, 0.25, 1.0, 1.0)

# An index of chronic diseases from 0 (none, an atom); steps of 4 widen where people are few.
_DISEASES = (0.0, 0.0, 4.0, 8.0, 12.0, 16.0, 20.0, 30.0, 60.0)

RAND_HIE_SCHEMA = Schema(
    {
        "insurer": PartySchema(
            {
                "lncoins": CategoricalColumn(categories=_LOG_COINSURANCE),
                "idp": BinaryColumn(),
                "lpi": BinnedColumn(edges=_LOG_PAYMENT),
                "fmde": BinnedColumn(edges=_LOG_EXPENDITURE),
                "mdvis": IntegerColumn(edges=_VISITS),
            }
        ),
        "clinic": PartySchema(
            {
                "physlm": BinnedColumn(edges=_LIMITATION),
                "disea": BinnedColumn(edges=_DISEASES),
                "hlthg": BinaryColumn(),
                "hlthf": BinaryColumn(),
                "hlthp": BinaryColumn(),
            }
        ),
    }
)


def load_rand_hie() -> VerticalDataset:
    """Return the RAND Health Insurance Experiment, 20,190 records, plan at the insurer, health at the clinic.

    Columns: ``lncoins`` (ln of coinsurance percent + 1), ``idp`` (individual deductible), ``lpi`` (ln of
    the participation incentive), ``fmde`` (ln of the maximum expenditure), ``mdvis`` (visits to a doctor);
    ``physlm`` (physical limitation), ``disea`` (index of chronic diseases), ``hlthg``, ``hlthf``, ``hlthp``
    (self-rated health good, fair, poor). The table is in the public domain.

    :raises DataError: statsmodels is not installed.
    """
    frame = _table()
    if frame is None:
        raise DataError("load_rand_hie needs statsmodels; run: pip install 'vertinumpyro[report]'")
    return VerticalDataset.from_pooled(RAND_HIE_SCHEMA, frame)


def _table() -> pd.DataFrame | None:
    try:
        from statsmodels.datasets import randhie
    except ImportError:
        return None
    return randhie.load_pandas().data


_WINE_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality"
_WINE_HOME = "UCI Wine Quality (CC BY 4.0), described at https://archive.ics.uci.edu/dataset/186/wine+quality"
WINE_SOURCES = {
    "red": Source(
        path="wine/winequality-red.csv",
        home=_WINE_HOME,
        url=f"{_WINE_BASE}/winequality-red.csv",
        sha256="4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    ),
    "white": Source(
        path="wine/winequality-white.csv",
        home=_WINE_HOME,
        url=f"{_WINE_BASE}/winequality-white.csv",
        sha256="76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    ),
}

# The ranges that Cortez et al. 2009 print for both wines (their Table 1), rounded outwards.
WINE_SCHEMA = Schema(
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

    :param color: "red" (1,599 wines) or "white" (4,898).
    :param folder: a data folder; None takes `VERTINUMPYRO_DATA`, or fetches the file (CC BY 4.0).
    :raises ArgumentError: unknown color.
    :raises DataError: the file cannot be found or fetched.
    """
    if color not in WINE_SOURCES:
        raise ArgumentError(f"color={color!r}; choose one of {list(WINE_SOURCES)}")
    return VerticalDataset.from_pooled(WINE_SCHEMA, _read_wine(WINE_SOURCES[color].locate(folder)))


def _read_wine(path: Path) -> pd.DataFrame:
    # UCI's own file has a header and semicolons; common copies have neither.
    with path.open() as lines:
        original = ";" in next(lines, "")
    return pd.read_csv(
        path, sep=";" if original else ",", header=0 if original else None, names=list(WINE_SCHEMA.columns)
    )
