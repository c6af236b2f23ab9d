"""The ways to make a twin that `vertimrf.py` compares, and how far each is from the real table."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from common import at_one_party
from numpy.random import default_rng
from sklearn.svm import LinearSVC

from vertinumpyro.data import VerticalDataset, decode_table
from vertinumpyro.dpvi import DPVI
from vertinumpyro.evaluation import k_way_tvd, train_on_synthetic_test_on_real
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.field import DEFAULT_ITERATIONS
from vertinumpyro.privacy import OUTSIDE_ANALYST, PrivacyWarning

__all__ = [
    "ABLATIONS",
    "ARMS",
    "Arm",
    "Twin",
    "distances",
    "make_twin",
    "misclassification",
]

_POOLED_SCRIPT = Path(__file__).with_name("pooled_mechanisms.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to make the twin.

    Attributes:
        label: in figures.
        kind: "field" (VertiMRF), "dpvi" (the library's mixture), "aim", "mst" or "swift" (their authors' code, pooled).
        system: settings of `VertiMRF`.
        plan: settings of its plan.
        pooled: all columns at one party.
        adversary: whose row ε is; None is everyone's.
    """

    label: str
    kind: str = "field"
    system: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooled: bool = False
    adversary: str | None = OUTSIDE_ANALYST


ARMS = {
    "secure_marginals": Arm(label="secure marginals"),
    "adaptive": Arm(label="secure marginals, adaptive", system={"selection": "adaptive"}),
    "sketch": Arm(label="sketches, a pair's own keys", system={"encoder": "sketch"}),
    "randomized_response": Arm(label="randomised response", system={"encoder": "randomized_response"}),
    "sketch_shared_key": Arm(
        label="the paper's sketches (not private)", system={"encoder": "sketch_shared_key", "allow_unproven": True}
    ),
    "dpvi": Arm(label="DPVI, the library's mixture", kind="dpvi"),
    "apart": Arm(label="local models apart", plan={"cross_share": 0.0}),
    "pooled": Arm(label="pooled (no parties)", pooled=True),
    "everyone": Arm(label="secure marginals, ε for everyone", adversary=None),
    "aim": Arm(label="AIM, pooled", kind="aim", pooled=True),
    "mst": Arm(label="MST, pooled", kind="mst", pooled=True),
}

ABLATIONS = {
    "full": Arm(label="everything"),
    "without_local": Arm(label="without local models", plan={"cross_share": 1.0}),
    "without_recovery": Arm(label="without recovery", system={"recovery": False}),
    **{f"cross_share_{s:g}": Arm(label=f"{s:g} across", plan={"cross_share": s}) for s in (0.2, 0.4, 0.8)},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twin:
    """A synthetic table, what it took, and the largest ε of a party's row of the privacy table.

    Attributes:
        table: the synthetic records.
        seconds: plan, fit and sampling.
        party_seconds: of that all parties' releases, one after the other; NaN where there are none.
        party_epsilon: NaN without parties.
        tables: AIM's model's shares in the cells of the asked triples, one after another; None where none were.
    """

    table: pd.DataFrame
    seconds: float
    party_seconds: float = float("nan")
    party_epsilon: float = float("nan")
    tables: np.ndarray | None = None


def make_twin(
    dataset: VerticalDataset,
    arm: Arm,
    epsilon: float,
    seed: int,
    *,
    iterations: int = DEFAULT_ITERATIONS,
    pooled_by: Sequence[str] | None = None,
    triples: Sequence[Sequence[int]] | None = None,
) -> Twin:
    """Plan, fit and sample, replace, δ = 1/n; noise from the operating system.

    Args:
        pooled_by: an interpreter and a clone, for AIM, MST and SWIFT; see `pooled_mechanisms.py`.
        triples: places of columns, of which AIM's model is asked as well.
    """
    held = at_one_party(dataset) if arm.pooled else dataset
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n
        if arm.kind == "field":
            return _field(held, arm, epsilon, seed, iterations, started)
        if arm.kind == "dpvi":
            return _mixture(held, epsilon, seed, started)
    if pooled_by is None:
        raise SystemExit(f"the arm {arm.kind} needs --private-pgm PYTHON CLONE; see pooled_mechanisms.py")
    return _pooled(held, arm.kind, epsilon, seed, pooled_by, started, triples)


def _field(held: VerticalDataset, arm: Arm, epsilon: float, seed: int, iterations: int, started: float) -> Twin:
    system = VertiMRF(iterations=iterations, **arm.system)
    plan = system.plan(held, epsilon=epsilon, delta=1 / held.num_records, adversary=arm.adversary, **arm.plan)
    twin = system.fit(held, plan)
    table = twin.sample_synthetic(rng_key=jax.random.key(seed))
    worst = max((row.epsilon for row in plan.adversaries[1:]), default=float("nan"))
    seconds = time.perf_counter() - started
    return Twin(table=table, seconds=seconds, party_seconds=twin.seconds["parties"], party_epsilon=worst)


def _mixture(held: VerticalDataset, epsilon: float, seed: int, started: float) -> Twin:
    dpvi, key = DPVI(), jax.random.key(seed)
    plan = dpvi.plan(held, epsilon=epsilon, delta=1 / held.num_records, adversary=OUTSIDE_ANALYST)
    posterior = dpvi.fit(held, plan, key, progress_bar=False)
    table = posterior.sample_synthetic(held.num_records, rng_key=key)
    worst = max(row.epsilon for row in plan.adversaries[1:])
    return Twin(table=table, seconds=time.perf_counter() - started, party_epsilon=worst)


def _pooled(
    held: VerticalDataset, name: str, epsilon: float, seed: int, pooled_by: Sequence[str], started: float,
    triples: Sequence[Sequence[int]] | None,
) -> Twin:  # fmt: skip
    """Codes out, synthetic codes back; the other interpreter never sees a schema."""
    python, clone = pooled_by
    columns = VertiMRF().columns(held.schema)
    codes = np.column_stack([c.codes(held.arrays(c.party)) for c in columns])
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.npz"), Path(folder, "out.npz")
        given = {"codes": codes, "cells": np.array([c.num_cells for c in columns])}
        given |= {} if triples is None else {"triples": np.array(triples)}
        np.savez(source, **given)  # pyright: ignore[reportArgumentType]
        words = [clone, name, source, target, epsilon, 1 / held.num_records, seed]
        fixed = {**os.environ, "PYTHONHASHSEED": "0"}  # they walk through sets of names: a seed alone fixes no order
        subprocess.run([python, _POOLED_SCRIPT, *map(str, words)], check=True, stdout=subprocess.DEVNULL, env=fixed)
        written = np.load(target)
        drawn, tables = written["codes"], written.get("tables")
    rng = default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for column, cells in zip(columns, drawn.T, strict=True):
        arrays |= column.values(cells, rng)
    return Twin(table=decode_table(held.schema, arrays, rng), seconds=time.perf_counter() - started, tables=tables)


def distances(dataset: VerticalDataset, twin: Twin, num_marginals: int) -> dict[int, float]:
    """Mean TVD of random k-way marginals, k = 3, 4, 5. Not DP."""
    real, schema = dataset.to_frame(), dataset.schema
    most = len(schema.columns)
    return {
        k: k_way_tvd(real, twin.table, schema, min(k, most), rng=0, num_marginals=num_marginals).mean for k in (3, 4, 5)
    }


def misclassification(dataset: VerticalDataset, test: VerticalDataset, twin: Twin, targets: list[str]) -> float:
    """Mean share of wrong predictions on real held-out records of linear SVMs trained on the twin. Not DP."""
    wrong = [
        1
        - train_on_synthetic_test_on_real(
            twin.table, None, test.to_frame(), target, dataset.schema, LinearSVC(random_state=0)
        ).synthetic.accuracy
        for target in targets
    ]
    return float(np.mean(wrong))
