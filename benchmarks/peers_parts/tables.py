"""Public tables of others' benchmarks: where each comes from, and the public cells of its columns."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, VerticalDataset

__all__ = ["TABLES", "PeerTable"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeerTable:
    """A file of comma-separated values with a header.

    Attributes:
        path: below the folder of tables.
        home: a repository of github.com, and the file in it.
        sha256: of the file.
        tuned: whether the library's defaults were chosen with a look at it.
        only: the columns that are used; all where none is named.
        dropped: columns that are not.
        edges: where a column of numbers is cut; what is missing is a cell of its own.
        cells: how many values a column of codes may have, by the authors' file; otherwise a column's labels are those
            that its file has, which its documentation lists.
    """

    path: str
    home: str
    sha256: str
    tuned: bool = False
    only: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    edges: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    cells: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def read(self, folder: Path) -> VerticalDataset | None:
        """The table in codes at one party; None where the file is not there."""
        path = folder / self.path
        if not path.is_file():
            return None
        if (found := hashlib.sha256(path.read_bytes()).hexdigest()) != self.sha256:
            raise SystemExit(f"{path} is another file than {self.home} had: its SHA-256 is {found}")
        frame = pd.read_csv(path, keep_default_na=False, na_values={name: [""] for name in self.edges})
        names = self.only or [name for name in frame if name not in self.dropped]
        coded = {f"c{i}": self._coded(name, pd.Series(frame[name])) for i, name in enumerate(names)}
        columns = {column: CategoricalColumn(categories=tuple(range(k))) for column, (_, k) in coded.items()}
        schema = Schema({"all": PartySchema(columns)})
        return VerticalDataset.from_pooled(schema, pd.DataFrame({c: codes for c, (codes, _) in coded.items()}))

    def _coded(self, name: str, values: pd.Series) -> tuple[np.ndarray, int]:
        """Codes, and how many there may be."""
        if name in self.cells:
            return values.to_numpy(), self.cells[name]
        if name not in self.edges:
            labels, codes = np.unique(values.to_numpy(), return_inverse=True)
            return codes, len(labels)
        numbers, edges = values.to_numpy(np.float64), self.edges[name]
        missing = np.isnan(numbers)
        codes = np.where(missing, len(edges) + 1, np.digitize(numbers, edges))
        return codes, len(edges) + 1 + bool(missing.any())


_YEARS = (25, 30, 35, 40, 45, 50, 60)

# Cheapest for AIM first.
TABLES = {
    "titanic": PeerTable(
        path="titanic/titanic.csv",
        home="ryan112358/hd-datasets, clean/titanic.csv",
        sha256="025b238bf2e4e0d6dacd570d20226a6d8cbb9557a719629878e9a6dfb91142ab",
        cells={"Age": 91, "Fare": 32, "SibSp": 9},
    ),
    "compas": PeerTable(
        path="compas/compas-scores-two-years_clean.csv",
        home="tailequy/fairness_dataset, experiments/data/compas-scores-two-years_clean.csv",
        sha256="5683fadcfeb018521a9751688acdd454dc0664bcbceaa999c3d057546313cf92",
        only=(
            *("sex", "age", "race", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"),
            *("c_charge_degree", "decile_score", "v_decile_score", "is_recid", "is_violent_recid", "two_year_recid"),
        ),
        edges={
            "age": (21, *_YEARS),
            **dict.fromkeys(("juv_fel_count", "juv_misd_count", "juv_other_count"), (1, 2)),
            "priors_count": (1, 2, 3, 5, 10, 20),
        },
    ),
    "oulad": PeerTable(
        path="oulad/oulad_clean.csv",
        home="tailequy/fairness_dataset, experiments/data/oulad_clean.csv",
        sha256="79da53cda30ae6fbe069c6bfd8d6d36f3235ca13e06954ba4fc78f1124d6eeac",
        dropped=("id_student",),
        edges={"studied_credits": (60, 90, 120, 180, 240)},
    ),
    "law_school": PeerTable(
        path="law_school/law_school_clean.csv",
        home="tailequy/fairness_dataset, experiments/data/law_school_clean.csv",
        sha256="23c1b173f3480beb7afc4957b107a9917dfc4a8dc9d87ea6034ec35222152452",
        edges={
            "lsat": (25, 28, 31, 34, 37, 40, 43, 46),
            "ugpa": (2.5, 2.8, 3.0, 3.2, 3.4, 3.6, 3.8),
            "zfygpa": (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2),
            "zgpa": (-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2),
        },
    ),
    "dutch": PeerTable(
        path="dutch/dutch.csv",
        home="tailequy/fairness_dataset, experiments/data/dutch.csv",
        sha256="c0e1df7e2ca07fa84aa99b5565c7b782a381e2fab377648a6d920174d04ce090",
        tuned=True,
    ),
    "german": PeerTable(
        path="german/german_data_credit.csv",
        home="tailequy/fairness_dataset, experiments/data/german_data_credit.csv",
        sha256="61effc34f9ef78ffeeb350141608c2e8ec9bf8978b64c29dbd16bb7a19bf763f",
        edges={
            "duration": (7, 13, 19, 25, 37, 49),
            "credit-amount": (1000, 2000, 3000, 5000, 8000, 12000),
            "age": _YEARS,
        },
    ),
    "nltcs": PeerTable(
        path="nltcs/nltcs.csv",
        home="ryan112358/hd-datasets, clean/nltcs.csv",
        sha256="1b8f091c6e6ab2635cc96d4f19bd39a892fc48e488b0304e92077b4e67f1f89c",
        tuned=True,
    ),
    "br2000": PeerTable(
        path="br2000/br2000.csv",
        home="caicre/PrivMRF, data/br2000.csv",
        sha256="63d851b4cd7ee5ad18e346739f28013316aa575550a32b5841ebcd9566cddb71",
    ),
    "telco": PeerTable(
        path="telco/wa_churn.csv",
        home="vincentarelbundock/Rdatasets, csv/modeldata/wa_churn.csv",
        sha256="720b67923e990d9c6ea5b6fa07c0ff15552d7f5bd79d48843fd5c7505a8e71a6",
        dropped=("rownames",),
        edges={
            "tenure": (1, 7, 13, 25, 37, 49, 61),
            "monthly_charges": (30, 45, 60, 75, 90, 105),
            "total_charges": (100, 500, 1000, 2000, 4000, 6000),
        },
    ),
    "bank": PeerTable(
        path="bank/bank-full.csv",
        home="tailequy/fairness_dataset, experiments/data/bank-full.csv",
        sha256="03e78e93396e664a079dff3e1df1b40b6359b1f9945adfb9a09ceabd0fb79193",
        edges={
            "age": _YEARS,
            "balance": (0, 1, 100, 500, 1000, 2000, 5000),
            "day": (8, 15, 22),
            "duration": (60, 120, 180, 300, 600, 1200),
            "campaign": (2, 3, 4, 6, 11),
            "pdays": (0, 91, 181, 366),
            "previous": (1, 2, 3, 6),
        },
    ),
    "acs": PeerTable(
        path="acs/acs.csv",
        home="caicre/PrivMRF, data/acs.csv",
        sha256="89e337a3431f9b3f76d84142cb048495fec93ff10018b1f38b25a19491582cc8",
    ),
    "adult": PeerTable(
        path="adult/adult.csv",
        home="ryan112358/hd-datasets, clean/adult.csv",
        sha256="a1016062b7ea0e51919eb80239e7fd5cd73a966767848205830d0e7d23b10d2e",
        tuned=True,
        cells=dict.fromkeys(("age", "fnlwgt", "capital-gain", "capital-loss"), 32),
    ),
}
