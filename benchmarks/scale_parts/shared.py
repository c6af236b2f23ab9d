"""What several arms share: the budget, the reading of both files, a plan of full batches, a stopwatch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scale_parts.tables import paths_of, schema_of

from vertinumpyro.core.workers import HERE, Workers
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.privacy import GradientPlan

__all__ = ["DELTA", "EPSILON", "full_batch", "read", "seconds_of"]

EPSILON, DELTA = 1.0, 1e-9
NUM_STEPS = 9
CLIP_NORM = 0.1  # the default, 2.4, and the noise that goes with it leave the ring at a million records in a batch


def read(folder: Path, num_columns: int, workers: Workers = HERE) -> VerticalDataset:
    """Both files, checked, aligned and encoded."""
    return VerticalDataset.from_files(schema_of(num_columns), paths_of(folder), spool=folder, workers=workers)


def full_batch(dataset: VerticalDataset) -> tuple[DPVI, GradientPlan]:
    """The automatic mixture, and a plan whose few steps take all records."""
    method, size = DPVI(warm_start=False), dataset.num_records
    plan = method.plan(dataset, epsilon=EPSILON, delta=DELTA, batch_size=size, num_steps=NUM_STEPS, clip_norm=CLIP_NORM)
    return method, plan


def seconds_of(call: Callable[[], object]) -> float:
    """By the clock."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
