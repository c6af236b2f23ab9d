"""Regressions by products of numbers, between parties of which one cheats, and what it then reads of the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from cheating_parts.cheat import HUGE, PROOF, ROUNDS

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import factor_rows
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import second_moments
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.privacy import Plan
from vertinumpyro.regression import VerticalLinearRegression, noisy_moments
from vertinumpyro.secure import Crypten
from vertinumpyro.session import Multiply, ProcessSession

NUM_RECORDS, LABEL, ACROSS = 400, "label", 1
_DEALT = ["large", "negative", "half", "outside", "single_records"]
KINDS = {"functional": [*_DEALT, "two_hot", "all_zero"], "second_moments": [*_DEALT, "too_long", "slack"]}
"""What a cheat's numbers may be; see `cheat.rows`."""


def attacks(method: str) -> list[str]:
    """All that is tried on a method."""
    return [
        *(f"rows {kind}" for kind in KINDS[method]),
        "short rows",
        "long rows",
        "order",
        *(f"noise {kind}" for kind in ("omitted", "absurd")),
        *(f"altered {name}" for name in (*ROUNDS, *PROOF, "share") if name != "proofs"),
        *(f"filled {name}" for name in ("rows", "proofs", "opening")),
        *(f"different {name}" for name in ("rows", "challenge", "proofs", "agreed", "opening")),
        *(f"swapped {name}" for name in ("keys", "proofs")),
        *(f"repeated {name}" for name in ROUNDS[1:]),
        *(f"{how} {name}" for how in ("delayed", "dropped", "stop") for name in ROUNDS),
        *(f"rushing {name}" for name in ("proofs", "opening")),
        "own pairs",
        *(f"colluding {how}" for how in ("large", "rows", "shift")),
        *("second start", "start after stop", "repeated attempt", "unverified"),
    ]


def functional(backend: Crypten) -> VerticalLinearRegression:
    """A linear regression from noisy products: one-hot features, signs and numbers."""
    return VerticalLinearRegression(backend=backend)


def second_moments_of(backend: Crypten) -> VerticalGLM:
    """The same by steps, which begin with noisy second moments; no step is run here."""
    return VerticalGLM(family="normal", label=LABEL, backend=backend)


METHODS: Mapping[str, Callable[..., Any]] = {"functional": functional, "second_moments": second_moments_of}


def dataset(num_parties: int) -> VerticalDataset:
    """The label is the first party's; three columns at each, and the label's."""
    number, kinds = RealColumn(bounds=(0.0, 1.0)), CategoricalColumn(categories=("a", "b", "c"))
    parts = {f"p{p}": {f"kind{p}": kinds, f"sign{p}": BinaryColumn(), f"x{p}": number} for p in range(num_parties)}
    parts["p0"][LABEL] = number
    schema = Schema({name: PartySchema(columns) for name, columns in parts.items()})
    rng = np.random.default_rng(0)
    drawn = {
        name: rng.choice(list("abc"), NUM_RECORDS) if column is kinds
        else rng.integers(0, 2, NUM_RECORDS) if name.startswith("sign")
        else rng.random(NUM_RECORDS)
        for name, column in schema.columns.items()
    }  # fmt: skip
    return VerticalDataset.from_pooled(schema, pd.DataFrame(drawn))


def plan_of(method: str, made: Any, data: VerticalDataset) -> Plan:
    """At epsilon = 1 for everybody; of scores as they are, so that what is read is compared with them."""
    label = {"label": LABEL} if method == "functional" else {}
    plan = made.plan(data, epsilon=1.0, delta=1e-5, **label)
    if method == "functional":
        return plan
    return dataclasses.replace(plan, start=dataclasses.replace(plan.start, whitened=False))


def released(method: str, session: ProcessSession, plan: Any, folder: Path) -> np.ndarray:
    """The products of the first two parties as all of them have them, in units of the grid."""
    with session.open(None, plan, run_dir=folder, results="moments.npz", resume=folder.exists()) as run:  # type: ignore[arg-type]
        if method == "functional":
            noisy_moments.noisy_moments(session, run, plan)
        else:
            second_moments.noisy_moments(session, run, plan.start, lambda *_: [])
        stored = run.stored(ACROSS)
    assert stored is not None
    return next(iter(stored.arrays.values()))


def records_read(values: np.ndarray, made: Any, plan: Any, data: VerticalDataset) -> int:
    """Of the first records, those of which party 0's numbers all stand in the products, by the cheat's columns.

    :param values: [party 0's columns, the cheat's], of which each is a record's in its attack.
    """
    work = made.work(data, "p0", data.arrays("p0"), plan, SystemRandomSource())
    numbers = factor_rows(work.factor(Multiply(ACROSS, "")), slice(0, values.shape[1]))
    return int((np.rint(values.T / HUGE) == numbers).all(axis=1).sum())
