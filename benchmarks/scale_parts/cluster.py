"""A party's local work by this process, and by one and by two workers of a Dask cluster on this machine."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from scale_parts.tables import LABEL, PARTIES, paths_of, schema_of

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import products
from vertinumpyro.core.workers import HERE, Workers, workers_of
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.cross_tables import one_hot
from vertinumpyro.mrf.exact_tables import exact_tables
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.objective import OWN, MomentsWork

__all__ = ["dask"]

ROUNDS = 3
EPSILON, DELTA = 1.0, 1e-9


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


def _pairs(count: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(count), 2))


def _seconds(work: Callable[[Workers], object], crew: Workers) -> float:
    started = time.perf_counter()
    work(crew)
    return time.perf_counter() - started
