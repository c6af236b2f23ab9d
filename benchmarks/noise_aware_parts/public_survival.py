"""A public survival table of 6,524 people: serum free light chain and death in Olmsted County, at a clinic and a lab.

`flchain` of R's package survival (Dispenzieri et al. 2012, Mayo Clinic Proceedings 87:512-523), as Rdatasets has it
(GPL-3; the package LGPL-2 or later). Those without a creatinine are left out. The table is not in the repository.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from vertinumpyro import VerticalGLM
from vertinumpyro.data import BinaryColumn, IntegerColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.data.datasets import Source
from vertinumpyro.regression.dataframe_input import concordance

FLCHAIN = Source(
    path="flchain/flchain.csv",
    home="Serum free light chain and mortality, described at "
    "https://vincentarelbundock.github.io/Rdatasets/doc/survival/flchain.html",
    url="https://vincentarelbundock.github.io/Rdatasets/csv/survival/flchain.csv",
    sha256="a96bcc58addb4c127e5012c5974aec8c7daf66123ddb104f309a78f158daa563",
)
SCHEMA = Schema(
    {
        "clinic": PartySchema(
            {
                "death": BinaryColumn(),
                "years": RealColumn(bounds=(0, 15)),
                "age": RealColumn(bounds=(50, 100)),
                "sex": BinaryColumn(categories=("F", "M")),
            }
        ),
        "laboratory": PartySchema(
            {"flc_group": IntegerColumn(bounds=(1, 10)), "creatinine": RealColumn(bounds=(0, 11), transform="log1p")}
        ),
    }
)
CUTPOINTS = (5.0, 10.0)
SETTINGS: dict[str, Any] = {
    "family": "survival", "label": "death", "time": "years", "cutpoints": CUTPOINTS, "linear": ["flc_group"],
}  # fmt: skip


def load() -> VerticalDataset:
    """The table at its parties.

    :raises DataError: it is not there.
    """
    frame = pd.read_csv(FLCHAIN.locate()).dropna(subset=["creatinine"])
    frame["years"], frame["flc_group"] = frame["futime"] / 365.25, frame["flc.grp"]
    frame["age"] = frame["age"].astype(float).clip(50, 100)
    return VerticalDataset.from_pooled(SCHEMA, frame[list(SCHEMA.columns)].reset_index(drop=True))


class Pooled(NamedTuple):
    """Cox's regression by statsmodels: log hazard ratios, their standard errors, and the concordance."""

    log_ratios: dict[str, float]
    std_errors: dict[str, float]
    concordance: float


def pooled(dataset: VerticalDataset) -> Pooled:
    """Of the columns as the model scales them, men over women."""
    from statsmodels.duration.hazard_regression import PHReg

    columns, design = dataset.pooled(), {}
    for name in ("age", "flc_group", "creatinine"):
        low, high = SCHEMA.columns[name].encoded_range
        design[name] = (2 * np.asarray(columns[name], float) - low - high) / (high - low)
    design["sex"] = np.asarray(columns["sex"], float)
    x, time, seen = np.column_stack(list(design.values())), 15 * np.asarray(columns["years"], float), columns["death"]
    found = PHReg(time, x, status=np.asarray(seen, float)).fit()
    slopes, errors = np.asarray(found.params, float), np.asarray(found.bse, float)
    by_name = [dict(zip(design, values.tolist(), strict=True)) for values in (slopes, errors)]
    return Pooled(by_name[0], by_name[1], concordance(x @ slopes, np.asarray(seen), time))


def private(dataset: VerticalDataset, epsilon: float, seed: int) -> tuple[VerticalGLM, dict[str, tuple[float, ...]]]:
    """A fit, and of each log hazard ratio the mean and the ends of its 95 % interval."""
    model = VerticalGLM(**SETTINGS, insecure_seed=seed)
    model.fit(dataset, plan=model.plan(dataset, epsilon=epsilon))
    draws = {name: np.asarray(of) for name, of in model.posterior_.sample(jax.random.key(0), 2000).items()}
    values = {name: draws[f"{name}_coef"] for name in ("age", "creatinine", "flc_group")}
    values["sex"] = draws["sex_coef"][:, 1] - draws["sex_coef"][:, 0]
    return model, {name: (v.mean(), *np.quantile(v, [0.025, 0.975])) for name, v in values.items()}


def results(epsilons: tuple[float, ...], num_runs: int) -> dict[str, Any]:
    """Beside the pooled table; see `noise_aware.py` for the keys."""
    dataset = load()
    known, found = pooled(dataset), {}
    for epsilon in epsilons:
        runs = [private(dataset, epsilon, seed) for seed in range(num_runs)]
        within = [low <= known.log_ratios[n] <= high for _, of in runs for n, (_, low, high) in of.items()]
        scores = [model.score(dataset) for model, _ in runs]
        found[f"{epsilon:g}"] = {
            "hazard_ratios": {n: [float(np.exp(value)) for value in triple] for n, triple in runs[0][1].items()},
            "within": float(np.mean(within)),
            "concordance": float(np.median(scores)),
            "concordance_less": max(known.concordance - score for score in scores),
            "epsilon_worst": runs[0][0].plan_.worst.epsilon,
        }
    return {
        "pooled": {
            "hazard_ratios": {n: float(np.exp(value)) for n, value in known.log_ratios.items()},
            "std_errors": known.std_errors,
            "concordance": known.concordance,
        },
        "num_records": dataset.num_records,
        **found,
    }
