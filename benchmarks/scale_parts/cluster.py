"""A party's local work by this process, and by one and by two workers of a Dask cluster on this machine; and what DPVI
would have workers send.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scale_parts.tables import LABEL, PARTIES, paths_of, schema_of

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import products
from vertinumpyro.core.workers import HERE, Workers, workers_of
from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import model_units
from vertinumpyro.dpvi import DPVI
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.cross_tables import one_hot
from vertinumpyro.mrf.exact_tables import exact_tables
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.objective import OWN, MomentsWork
from vertinumpyro.secure.inputs import encode_party

__all__ = ["dask", "local_step"]

ROUNDS = 3
EPSILON, DELTA = 1.0, 1e-9
CLIP_NORM = 0.1  # as a full-batch step's


def dask(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Seconds of encoding, of exact tables and of a regression's own moments; medians of rounds in turn."""
    with workers_of(1) as one, workers_of(2) as two:
        crews: dict[str, Workers] = {"here": HERE, "one": one, "two": two}
        works: dict[str, Callable[[Workers], object]] = {
            "encode": lambda crew: _read(folder, num_columns, crew),
            **_on_columns(_read(folder, num_columns, two), num_records),
        }
        found: dict[str, float] = {}
        for what, work in works.items():
            rounds = [{name: _seconds(work, crew) for name, crew in crews.items()} for _ in range(1 + ROUNDS)][1:]
            seconds = {name: statistics.median(each[name] for each in rounds) for name in crews}
            found |= {f"{what}_{name}": value for name, value in seconds.items()}
            found[f"{what}_speedup"] = seconds["one"] / seconds["two"]
    together = {name: sum(found[f"{what}_{name}"] for what in works) for name in crews}
    return {**found, "seconds": together["two"], "dask_speedup": together["one"] / together["two"]}


def _read(folder: Path, num_columns: int, crew: Workers) -> VerticalDataset:
    return VerticalDataset.from_files(schema_of(num_columns), paths_of(folder), spool=folder, workers=crew)


def _on_columns(dataset: VerticalDataset, num_records: int) -> dict[str, Callable[[Workers], object]]:
    columns = VertiMRF().columns(dataset.schema)
    held = {party: [c for c in columns if c.party == party] for party in PARTIES}
    regression = VerticalLogisticRegression()
    plan = regression.plan(dataset.schema, LABEL, num_records=num_records, epsilon=EPSILON, delta=DELTA)

    def tables(crew: Workers) -> object:
        """All pairs at each party, and all across."""
        arrays = {party: dataset.computed_by(crew).arrays(party) for party in PARTIES}
        own = [exact_tables(held[p], arrays[p], _pairs(len(held[p]))) for p in PARTIES]
        return own, products([one_hot(held[p], arrays[p], num_records) for p in PARTIES])

    def moments(crew: Workers) -> object:
        source = SystemRandomSource()
        works = [MomentsWork(plan, dataset.schema, p, dataset.computed_by(crew).arrays(p), source) for p in PARTIES]
        return [work.publish(OWN, {}) for work in works]

    return {"tables": tables, "moments": moments}


def local_step(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """A party's own part of a block of a full-batch step, before anything secure, over its way from a worker."""
    dataset = _read(folder, num_columns, HERE)
    method, party = DPVI(warm_start=False), PARTIES[0]
    plan = method.plan(dataset, epsilon=EPSILON, delta=DELTA, batch_size=num_records, num_steps=4, clip_norm=CLIP_NORM)
    kernel, state = method.kernel(dataset, plan, compat.random_key(0))
    columns = {name: jnp.asarray(model_units(column)) for name, column in dataset.arrays(party).items()}
    rows = kernel.shape.blocks(np.arange(num_records))[0]
    local = jax.jit(partial(kernel.local_of, party))

    def here(crew: Workers) -> list[np.ndarray]:
        return [np.asarray(part) for part in encode_party(kernel.shape, local(state, columns, rows), 0)]

    block = [np.zeros_like(part) for part in here(HERE)]
    sent = _Sent([(part.shape, part.dtype) for part in block])
    works: dict[str, Callable[[Workers], object]] = {
        "seconds": here,
        "travel": lambda crew: list(crew.map(_zeros, [sent])),
    }
    with workers_of(1) as one:
        rounds = [{name: _seconds(work, one) for name, work in works.items()} for _ in range(1 + ROUNDS)][1:]
    found = {name: statistics.median(each[name] for each in rounds) for name in works}
    of_a_record = {"bytes": sum(part.nbytes for part in block) / len(rows)}
    return {**found, **of_a_record, "travel_ratio": found["travel"] / found["seconds"]}


@dataclasses.dataclass(frozen=True)
class _Sent:
    """What a worker is asked for: arrays like these."""

    like: list[tuple[tuple[int, ...], np.dtype]]

    def moved(self) -> _Sent:
        """There is nothing else in it."""
        return self


def _zeros(sent: _Sent) -> list[np.ndarray]:
    return [np.zeros(shape, dtype) for shape, dtype in sent.like]


def _pairs(count: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(count), 2))


def _seconds(work: Callable[[Workers], object], crew: Workers) -> float:
    started = time.perf_counter()
    work(crew)
    return time.perf_counter() - started
