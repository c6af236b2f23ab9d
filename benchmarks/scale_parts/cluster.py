"""A party's local work by this process, and by one and by two workers of a Dask cluster on this machine; and what DPVI
and products on shares would have workers send.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax
import numpy as np
from scale_parts.shared import DELTA, EPSILON, full_batch, read, seconds_of
from scale_parts.tables import LABEL, PARTIES

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.core.row_blocks import factor_rows, products, ring_product
from vertinumpyro.core.workers import HERE, Workers, workers_of
from vertinumpyro.data import VerticalDataset
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.contingency import exact_tables, one_hot
from vertinumpyro.posterior.predictive import device_columns
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.noisy_moments import OWN, MomentsWork
from vertinumpyro.secure.computation import CrossProducts
from vertinumpyro.secure.input_encoding import encode_party
from vertinumpyro.secure.keystream import KeyStream, fresh_key
from vertinumpyro.session import Publish

__all__ = ["dask", "local_step", "shared_product"]

ROUNDS = 3


def dask(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """Seconds of encoding, of exact tables and of a regression's own moments; medians of rounds in turn."""
    with workers_of(1) as one, workers_of(2) as two:
        crews: dict[str, Workers] = {"here": HERE, "one": one, "two": two}
        works: dict[str, Callable[[Workers], object]] = {
            "encode": lambda crew: read(folder, num_columns, crew),
            **_on_columns(read(folder, num_columns, two), num_records),
        }
        found: dict[str, float] = {}
        for what, work in works.items():
            rounds = _in_turn({name: partial(work, crew) for name, crew in crews.items()})
            seconds = {name: statistics.median(each[name] for each in rounds) for name in crews}
            found |= {f"{what}_{name}": value for name, value in seconds.items()}
            found[f"{what}_speedup"] = seconds["one"] / seconds["two"]
    together = {name: sum(found[f"{what}_{name}"] for what in works) for name in crews}
    return {**found, "seconds": together["two"], "dask_speedup": together["one"] / together["two"]}


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
        return [work.publish(Publish(0, OWN)) for work in works]

    return {"tables": tables, "moments": moments}


def local_step(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """A party's own part of a block of a full-batch step, before anything secure, over its way from a worker."""
    dataset = read(folder, num_columns)
    (method, plan), party = full_batch(dataset), PARTIES[0]
    kernel, state = method.kernel(dataset, plan, compat.random_key(0))
    columns = device_columns(dataset)[party]
    rows = kernel.shape.blocks(np.arange(num_records))[0]
    local = jax.jit(partial(kernel.local_of, party))

    def here() -> list[np.ndarray]:
        return [np.asarray(part) for part in encode_party(kernel.shape, local(state, columns, rows), 0)]

    block = [np.zeros_like(part) for part in here()]
    of_a_record = {"bytes": sum(part.nbytes for part in block) / len(rows)}
    return {**_beside_travel(here, _Sent([(part.shape, part.dtype) for part in block])), **of_a_record}


def shared_product(folder: Path, num_records: int, num_columns: int) -> dict[str, float]:
    """A party's own part of a block of a product on shares, over the way to a worker and back of what two exchange."""
    dataset = read(folder, num_columns)
    columns = VertiMRF().columns(dataset.schema)
    own = one_hot([c for c in columns if c.party == PARTIES[0]], dataset.arrays(PARTIES[0]), num_records)
    width = sum(c.num_cells for c in columns if c.party == PARTIES[1])
    rows = CrossProducts(num_records=num_records, widths=(own.shape[1], width)).blocks[0]
    stream = KeyStream(fresh_key())
    theirs = stream.words((rows.stop, width))

    def here() -> np.ndarray:
        matrix = factor_rows(own, rows)
        _ = matrix - stream.words(matrix.shape)
        return ring_product(matrix, theirs)

    return _beside_travel(here, _Sent([((rows.stop, own.shape[1]), theirs.dtype)], theirs))


def _beside_travel(here: Callable[[], object], sent: _Sent) -> dict[str, float]:
    """Seconds of a work by this process, and of what a worker would be sent and send; medians of rounds in turn."""
    with workers_of(1) as one:
        works = {"seconds": here, "travel": lambda: list(one.map(_zeros, [sent]))}
        rounds = _in_turn(works)
    found = {name: statistics.median(each[name] for each in rounds) for name in works}
    return {**found, "travel_ratio": found["travel"] / found["seconds"]}


def _in_turn(works: Mapping[str, Callable[[], object]]) -> list[dict[str, float]]:
    """Seconds of each in every round but the first, which compiles and warms up."""
    return [{name: seconds_of(work) for name, work in works.items()} for _ in range(1 + ROUNDS)][1:]


@dataclasses.dataclass(frozen=True)
class _Sent:
    """What a worker is asked for: arrays like these; and what it is sent."""

    like: list[tuple[tuple[int, ...], np.dtype]]
    given: np.ndarray | None = None

    def moved(self) -> _Sent:
        """There is nothing else in it."""
        return self


def _zeros(sent: _Sent) -> list[np.ndarray]:
    return [np.zeros(shape, dtype) for shape, dtype in sent.like]


def _pairs(count: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(count), 2))
