"""Whole methods between processes: what their secure part takes, and whether it releases what one process releases."""

from __future__ import annotations

import dataclasses
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optax
from common import SIGMA, Files, regrouped, written
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.rng import InsecureRandomnessWarning
from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.datasets import load_adult, load_nltcs
from vertinumpyro.dpvi import DPVI
from vertinumpyro.mrf import VertiMRF, vertimrf
from vertinumpyro.mrf.releases import RELEASED, Releases
from vertinumpyro.regression import VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression.noisy_moments import MOMENTS, noisy_moments
from vertinumpyro.secure import CrossProducts, Crypten, FixedPoint, Spu, VectorSum
from vertinumpyro.session import InProcessSession, PartyTask, ProcessSession, Session

__all__ = ["measured_methods", "with_nulls"]

SEED = 0
DELTA = 1e-6
BACKENDS = {"crypten": Crypten, "spu": Spu}
LABELS = {"logistic": "income", "linear": "hours_per_week"}
QUICK_COLUMNS = {"demographic": ["age"], "financial": ["hours_per_week", "income"]}

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """One method on one table.

    :ivar settings: of the method.
    :ivar plan: of its plan.
    """

    method: str
    data: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def tasks(quick: bool) -> list[Task]:
    """All that is measured."""
    fields = {"epsilon": 1.0, "delta": DELTA}
    steps = {"noise_multiplier": SIGMA, "batch_size": 20 if quick else 100, "num_steps": 2 if quick else 10}
    return [
        Task("vertimrf", "nltcs", plan=fields),
        Task("vertimrf", "adult", plan=fields),
        Task("logistic", "adult", plan=fields),
        Task("linear", "adult", plan=fields),
        Task("dpvi", "adult", {"num_components": 3 if quick else 20, "clip": 1.0}, steps),
    ]


def table(name: str, quick: bool) -> VerticalDataset:
    """All records; quick the first few hundred, and of Adult three columns."""
    whole = load_nltcs() if name == "nltcs" else load_adult(layout="with_income")
    if not quick:
        return whole
    return (whole if name == "nltcs" else regrouped(whole, QUICK_COLUMNS)).take(np.arange(300))


def build(method: str, backend: Any, settings: Mapping[str, Any]) -> Any:
    """The method; called in the parties' processes too."""
    if method == "dpvi":
        return DPVI(num_components=settings["num_components"], optimizer=optax.adam(0.01), backend=backend)
    made = {"vertimrf": VertiMRF, "logistic": VerticalLogisticRegression, "linear": VerticalLinearRegression}
    return made[method](backend=backend)


def measured_methods(quick: bool) -> dict[str, Any]:
    """`methods` of the results: method -> table -> backend -> figures, for the backends that are installed."""
    found: dict[str, Any] = {}
    here = {name: backend() for name, backend in BACKENDS.items() if backend().missing() is None}
    with tqdm(total=len(here) * len(tasks(quick)), unit="run") as bar:
        for task in tasks(quick):
            with tempfile.TemporaryDirectory(prefix="methods-") as folder:
                files = written(table(task.data, quick), Path(folder))
                for name, backend in here.items():
                    bar.set_description(f"{task.method} on {task.data}, {name}")
                    found.setdefault(task.method, {}).setdefault(task.data, {})[name] = _measured(task, files, backend)
                    bar.update()
    return found


def with_nulls(found: Mapping[str, Any]) -> dict[str, Any]:
    """Every key, null where neither this run nor an earlier one had the backend."""
    every: dict[str, Any] = {}
    for task in tasks(quick=True):
        known = found.get(task.method, {}).get(task.data, {})
        every.setdefault(task.method, {})[task.data] = {name: known.get(name) for name in BACKENDS}
    return every


def _measured(task: Task, files: Files, backend: Crypten | Spu) -> dict[str, Any]:
    schema = files.dataset.schema
    made = partial(build, task.method, backend, task.settings)
    parties = [
        PartyTask(party=p, schema=schema.to_dict(), table=files.paths[p], build=made, insecure_seed=SEED)
        for p in schema.parties
    ]
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="run-") as run_dir:
        warnings.simplefilter("ignore", InsecureRandomnessWarning)
        started = time.perf_counter()
        with ProcessSession(parties, timeout_s=600.0) as session:
            released = _released(task, session, made(), Path(run_dir) / "apart")
            whole = time.perf_counter() - started
            figures = {
                "seconds": session.seconds,
                "seconds_from_start": whole,
                "bytes": session.traffic.bytes_sent,
                "dealer_bytes": session.dealer_traffic.bytes_received,
                "rounds": session.traffic.rounds,
            }
        here = InProcessSession(files.dataset, FixedPoint())
        expected = _released(task, here, build(task.method, FixedPoint(), task.settings), Path(run_dir) / "here")
    figures["equal"] = None if released is None or expected is None else _equal(released, expected)
    if task.method == "vertimrf":
        figures["product_rounds"] = _product_rounds(backend, files.dataset)
    return figures


def _released(task: Task, session: Session, made: Any, run_dir: Path) -> Arrays | None:
    """Everything that is released, by name. None for steps, whose batches the parties toss: no other run has them."""
    if task.method == "dpvi":
        if isinstance(session, InProcessSession):
            return None
        plan = made.plan(session, clip_norm=task.settings["clip"], **task.plan)
        key = compat.random_key(0)
        made.fit(session, plan, key, run_dir=run_dir, progress_bar=False, insecure_seed=SEED)
        return None
    with mock.patch.object(vertimrf, "require_engine"):  # no field is fitted
        plan = _plan(task, session, made)
    results = RELEASED if task.method == "vertimrf" else MOMENTS
    with session.open(made, plan, run_dir=run_dir, results=results, insecure_seed=SEED) as run:
        if task.method != "vertimrf":
            return {"moments": noisy_moments(session, run, plan).matrix}
        columns = made.columns(session.schema)
        found = Releases(session=session, run=run, plan=plan, columns=columns, estimate=_no_estimate).all()
    return {**{" ".join(m.columns): m.values for m in found.measurements}, **found.fine}


def _plan(task: Task, session: Session, made: Any) -> Any:
    if task.method == "vertimrf":
        return made.plan(session, **task.plan)
    return made.plan(session.schema, LABELS[task.method], num_records=session.num_records, **task.plan)


def _no_estimate(*arguments: Any) -> Any:
    raise AssertionError("all tables are released at once, without a model in between")


def _equal(first: Arrays, second: Arrays) -> bool:
    return list(first) == list(second) and all(np.array_equal(first[name], second[name]) for name in first)


def _product_rounds(backend: Crypten | Spu, dataset: VerticalDataset) -> int | None:
    """Rounds of the products alone: what they take beyond a sum, and the opening. SPU counts messages."""
    if isinstance(backend, Spu):
        return None
    columns = VertiMRF().columns(dataset.schema)
    widths = tuple(sum(c.num_cells for c in columns if c.party == party) for party in dataset.parties)
    rounds: Callable[[Any], int] = lambda computation: backend.cost(computation).traffic.rounds  # noqa: E731
    product = CrossProducts(num_records=dataset.num_records, widths=widths)
    total = VectorSum(num_parties=len(widths), num_values=product.num_values)
    return rounds(product) - rounds(total) + 1
