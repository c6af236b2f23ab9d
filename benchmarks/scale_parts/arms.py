"""What is timed: each arm alone in a process, which reports its seconds and its peak of memory."""

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from scale_parts.apart import processes
from scale_parts.cluster import dask, local_step, shared_product
from scale_parts.device import device
from scale_parts.shared import DELTA, EPSILON, full_batch, read, seconds_of
from scale_parts.tables import LABEL, PARTIES, ROWS_SCHEMA, write_rows

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import MarkovTwin, VertiMRF
from vertinumpyro.mrf.releases import ACROSS, TablesWork
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.session import Multiply

__all__ = ["ARMS", "run_arm"]

TWIN = "twin.parquet"


def encode(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Files to encoded columns, alone."""
    started = time.perf_counter()
    dataset = read(folder, num_columns)
    assert dataset.num_records == num_records
    return {"seconds": time.perf_counter() - started}


def rows(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Rows of a tenth as many persons, in any order, to their records."""
    path = folder / "rows.parquet"
    persons = write_rows(path, num_records)
    started = time.perf_counter()
    dataset = VerticalDataset.from_files(ROWS_SCHEMA, {"clinic": path}, spool=folder)
    assert dataset.num_records == persons
    return {"seconds": time.perf_counter() - started}


def marginals(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """From the parties' files to a twin of as many records in Parquet."""
    started = time.perf_counter()
    dataset = read(folder, num_columns)
    encoded = time.perf_counter()
    system = VertiMRF()
    fitted = system.fit(dataset, system.plan(dataset, epsilon=EPSILON, delta=DELTA), allow_long=True)
    done = time.perf_counter()
    fitted.write_synthetic(folder / TWIN, rng_key=jax.random.key(0))
    ended = time.perf_counter()
    fitted.save(folder)
    return {
        "seconds": ended - started,
        "encoding": encoded - started,
        "tables": fitted.seconds["parties"],
        "field": fitted.seconds["server"],
        "rehearsal": done - encoded - fitted.seconds["parties"] - fitted.seconds["server"],
        "twin": ended - done,
    }


def columns(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """From files to a twin, by the tables of a structure; by default a label by all others, and parties' neighbours."""
    jax.config.update("jax_enable_compilation_cache", False)
    compiling: list[float] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: (
            compiling.append(duration_secs) if event.endswith("backend_compile_duration") else None
        )
    )
    started = time.perf_counter()
    dataset = read(folder, num_columns)
    encoded = time.perf_counter()
    system = VertiMRF(workload=sys.argv[6:] or [f"star:{LABEL}", "chains"])
    plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)
    planned = time.perf_counter()
    fitted = system.fit(dataset, plan, allow_long=True)
    done = time.perf_counter()
    fitted.write_synthetic(folder / TWIN, rng_key=jax.random.key(0))
    ended = time.perf_counter()
    return {
        "seconds": ended - started,
        "encoding": encoded - started,
        "plan": planned - encoded,
        "tables": fitted.seconds["parties"],
        "field": fitted.seconds["server"],
        "rehearsal": done - planned - fitted.seconds["parties"] - fitted.seconds["server"],
        "twin": ended - done,
        "compile": sum(compiling),
        "num_tables": len(fitted.measurements),
        "num_cells": sum(table.size for table in fitted.model.tables),
    }


def functional(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Logistic regression by the functional mechanism, from the parties' files to coefficients."""
    started = time.perf_counter()
    dataset = read(folder, num_columns)
    encoded = time.perf_counter()
    model = VerticalLogisticRegression()
    plan = model.plan(dataset.schema, LABEL, num_records=num_records, epsilon=EPSILON, delta=DELTA)
    model.fit(dataset, plan, allow_long=True)
    return {"seconds": time.perf_counter() - started, "encoding": encoded - started}


def dpvi_step(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """One full-batch step of the automatic mixture, the median of those after the first, which compiles."""
    dataset = read(folder, num_columns)
    started = time.perf_counter()
    method, plan = full_batch(dataset)
    reached: list[tuple[int, float]] = []

    def after_chunk(step: int, _: object) -> None:
        reached.append((step, time.perf_counter()))

    method.fit(dataset, plan, jax.random.key(0), progress_bar=False, after_chunk=after_chunk, allow_long=True)
    steps = [(ended - began) / (last - first) for (first, began), (last, ended) in itertools.pairwise(reached)]
    return {"seconds": statistics.median(steps), "steps": len(steps), "before": reached[0][1] - started}


def sampling(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """A stored field to a twin in Parquet; after `marginals`."""
    fitted = MarkovTwin.load(folder)
    started = time.perf_counter()
    fitted.write_synthetic(folder / TWIN, num_records, rng_key=jax.random.key(1))
    return {"seconds": time.perf_counter() - started}


def ratio(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Exact tables of all pairs across the parties, by the library and by what a user would write."""
    dataset = read(folder, num_columns)
    system = VertiMRF()
    columns = system.columns(dataset.schema)
    codes = {c.name: c.codes(dataset.arrays(c.party)) for c in columns}
    held = [[c for c in columns if c.party == party] for party in PARTIES]
    plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)

    def by_the_library() -> np.ndarray:
        works = [TablesWork(columns, party, dataset.arrays(party), plan, SystemRandomSource()) for party in PARTIES]
        across = Multiply(1, ACROSS, {"release": 0})
        factors, (rows, cols) = [work.factor(across) for work in works], works[0].widths(across)
        with compat.x64():
            return np.asarray(system.backend.noisy_cross_products(factors, np.zeros((1, rows * cols), np.int64)))  # type: ignore[attr-defined]

    def by_groupby() -> list[Any]:
        frame = pd.DataFrame(codes)
        return [frame.groupby([a.name, b.name], sort=False).size() for a in held[0] for b in held[1]]

    def by_one_hot() -> np.ndarray:
        left, right = (
            np.concatenate([np.eye(c.num_cells, dtype=np.float32)[codes[c.name]] for c in own], axis=1) for own in held
        )
        return left.T @ right

    assert np.array_equal(by_the_library() / 4**6, by_one_hot().ravel())
    arms = (by_the_library, by_groupby, by_one_hot)
    rounds = [[seconds_of(arm) for arm in arms] for _ in range(5)]  # in turn, so that a busy machine slows all of them
    ours, groupby, one_hot = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    return {
        "seconds": ours,
        "groupby": ours / groupby,
        "one_hot": ours / one_hot,
        "worst": ours / min(groupby, one_hot),
    }


ARMS: dict[str, Callable[[Path, int, int], Mapping[str, float | str]]] = {
    "encode": encode,
    "rows": rows,
    "marginals": marginals,
    "columns": columns,
    "functional": functional,
    "dpvi_step": dpvi_step,
    "sampling": sampling,
    "ratio": ratio,
    "dask": dask,
    "local_step": local_step,
    "shared_product": shared_product,
    "device": device,
    "processes": processes,
}


def run_arm(name: str, folder: Path, num_records: int, num_columns: int) -> None:
    """Run one arm in this process, and print what it took as one line of JSON, last."""
    before, began = peak_gib(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found: dict[str, Any] = dict(ARMS[name](folder, num_records, num_columns))
    of_all = {"cpu_seconds": time.process_time() - began, "peak_gib": peak_gib(), "imports_gib": before}
    print(json.dumps({**found, **of_all}), flush=True)


def peak_gib() -> float:
    """This program's own peak; `ru_maxrss` begins with that of the program that started it, where that was larger."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 2**20
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**30 if sys.platform == "darwin" else 2**20)
