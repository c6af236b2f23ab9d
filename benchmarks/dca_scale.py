"""Reproduces Table 1 of the DCA paper: seconds of one noisy sum for N clients, d values and M = 10 compute nodes.

    python benchmarks/dca_scale.py --quick
    python benchmarks/dca_scale.py --json results/dca_scale.json [--only grid]

What is timed, in one process on one core: every client draws its own discrete Gaussian noise share (standard
deviation 32 grid units) and M - 1 masks from AES-256 in counter mode, and forms its M messages; every node adds its
messages up; the aggregator adds up the nodes' sums. All in 64-bit integers, streamed over blocks of clients, whose
vectors are integers on the grid, as every backend's `noisy_sum` takes them; `ratio_with_encoding` has them as reals
that the clients encode in fixed point. As in the paper's table, encryption between clients and nodes is left out, and
so is the transport; `aes_gcm_gb_per_s` says what encryption would add. The vectors come from one block of 8 MiB that
is read again and again, as their values do not matter to the time. One cipher serves a block of clients instead of
one key for each.

The floor is the time of the masks alone, N d (M - 1) words from the same cipher in the same buffers, interleaved
with the runs. Both are medians of processor time of this one thread, which is the wall time where the core is free,
and does not count the time that other programs take.

Parts (`--only`), their keys, and the figure beside the JSON:

grid    the paper's grid, N from 1e2 to 1e5 and d from 10 to 1e4
        cells                one record for each: N, d, M, seconds, floor_seconds, ratio, peak_mib (of the whole
                             process, libraries and input block included), paper_seconds (Spark, its hardware; the
                             cell N = 1e5, d = 1e4 of the paper's table is in truth d = 1e3)
        ratio_to_mask_floor  the largest ratio of a cell with N d >= 1e7 (target: at most 2)
        ratio_with_encoding  the ratio at N = 1e4, d = 1e3 when the clients hold reals
        ratio_fine_grid      the same with integers, and noise of 1,000 grid units a share
        peak_gib             largest peak memory of a cell (target: at most 4)
        aes_gcm_gb_per_s     speed of the channels' cipher on one core
        dca_scale.png
growth  growth_exponent_{clients,values,nodes}: slope of log seconds over log N, d and M (1 is linear), and
        growth_cells
dask    the same sums on a local Dask cluster of two worker processes: dask_cells with seconds,
        in_process_seconds, overhead_seconds (less the in-process time over two) and speedup; wall time, so that
        it needs both cores to be free

Also `seconds_<part>`, `settings` and `environment`. `--quick` keeps every key with smaller N and d.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from common import environment, finish, interleaved, median, parser
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from matplotlib.figure import Figure

from vertinumpyro.evaluation.plot_style import INK, MARKERS, MUTED, SERIES, grid, new_figure, styled
from vertinumpyro.secure.dca import CipherSource, DistributedCompute, distributed_sum_on_dask
from vertinumpyro.secure.dca.backend import NodeSums

Results = dict[str, Any]
Figures = dict[str, Figure]

NODES = 10
FRACTIONAL_BITS = 8
SHARE_VARIANCE = 32**2
FINE_SHARE_VARIANCE = 1000**2
BLOCK_VALUES = 2**20
LARGE = 10**7  # N d from here on counts for `ratio_to_mask_floor`

PAPER_SECONDS = {
    (10, 100): 1.72, (10, 1_000): 1.89, (10, 10_000): 2.99, (10, 100_000): 8.58,
    (100, 100): 2.03, (100, 1_000): 2.86, (100, 10_000): 12.36, (100, 100_000): 65.64,
    (1_000, 100): 3.43, (1_000, 1_000): 10.56, (1_000, 10_000): 101.2, (1_000, 100_000): 610.55,
    (10_000, 100): 15.30, (10_000, 1_000): 84.95, (10_000, 10_000): 994.96, (10_000, 100_000): 1592.29,
}  # fmt: skip
"""Table 1 by (d, N)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of every part."""

    clients: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    values: tuple[int, ...] = (10, 100, 1_000, 10_000)
    rounds: int = 9
    large_rounds: int = 3
    growth_size: tuple[int, int] = (10_000, 1_000)
    dask_sizes: tuple[tuple[int, int], ...] = ((10_000, 1_000), (100_000, 1_000))


QUICK = Settings(
    clients=(100, 1_000, 10_000),
    values=(10, 100, 1_000),
    rounds=3,
    large_rounds=3,
    growth_size=(2_000, 1_000),
    dask_sizes=((4_000, 1_000),),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One noisy sum and its floor."""

    clients: int
    values: int
    nodes: int = NODES
    share_variance: int = SHARE_VARIANCE
    reals: bool = False

    def blocks(self) -> Iterator[np.ndarray]:
        """All clients' vectors, of norm near one, a block at a time."""
        left = self.clients
        while left:
            rows = min(left, max(1, BLOCK_VALUES // self.values))
            yield _reals(rows, self.values) if self.reals else _on_grid(rows, self.values)
            left -= rows

    def run(self) -> float:
        """Milliseconds of the noisy sum."""
        return self.of_blocks(self.blocks(), self._check)

    @property
    def fractional_bits(self) -> int | None:
        """f, where the clients encode."""
        return FRACTIONAL_BITS if self.reals else None

    def of_blocks(self, blocks: Iterable[np.ndarray], check: Callable[[np.ndarray], None] | None = None) -> float:
        """Milliseconds of the noisy sum over these blocks; the result is checked after the clock stopped."""
        backend = DistributedCompute(num_nodes=self.nodes)
        started = time.process_time()
        total = backend.noisy_sum_of_blocks(
            blocks,
            num_values=self.values,
            share_variance=self.share_variance,
            fractional_bits=self.fractional_bits,
        )
        milliseconds = 1e3 * (time.process_time() - started)
        if check is not None:
            check(total)
        return milliseconds

    def _check(self, total: np.ndarray) -> None:
        """The sum is the clients' fixed-point sum but for noise of the right size: not 8 standard deviations off."""
        if self.clients * self.values > LARGE:
            return  # every code path of the large cells is in a smaller one; the check would take as long again
        scale = 2.0**FRACTIONAL_BITS if self.reals else 1.0
        exact = sum(np.rint(block * scale).sum(axis=0) for block in self.blocks())
        stddev = math.sqrt(self.clients * self.share_variance)
        noise = (total - exact) / stddev
        if np.abs(noise).max() > 8 or abs((noise**2).mean() - 1) > 8 * math.sqrt(2 / noise.size):
            raise AssertionError("the decoded sum is not the fixed-point sum plus the clients' noise")

    def floor(self) -> float:
        """Milliseconds of the masks alone: the same cipher, in the buffers that `NodeSums` uses."""
        source, masks = CipherSource(), NodeSums(self.nodes, self.values).mask_buffer()
        words = self.clients * self.values * (self.nodes - 1)
        started = time.process_time()
        for start in range(0, words, masks.size - 2):
            source.refresh(masks[: min(masks.size, words - start + 2)])
        return 1e3 * (time.process_time() - started)

    def timed(self, rounds: int) -> dict[str, float]:
        """Median seconds of run and floor, interleaved, and the ratio of the medians."""
        label = f"N={self.clients:g} d={self.values:g} M={self.nodes}"
        times = interleaved({"run": self.run, "floor": self.floor}, rounds, label)
        seconds, floor = median(times["run"]) / 1e3, median(times["floor"]) / 1e3
        return {"seconds": seconds, "floor_seconds": floor, "ratio": seconds / floor}


@functools.lru_cache(maxsize=2)
def _reals(rows: int, values: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, values**-0.5, (rows, values))


@functools.lru_cache(maxsize=2)
def _on_grid(rows: int, values: int) -> np.ndarray:
    return np.rint(_reals(rows, values) * 2.0**FRACTIONAL_BITS).astype(np.int64)


# -- parts ----------------------------------------------------------------------------------------


def scale_grid(settings: Settings) -> tuple[Results, Figures]:
    """Table 1."""
    cells = []
    for values in settings.values:
        for clients in settings.clients:
            cell = Cell(clients=clients, values=values)
            _reals.cache_clear()
            _on_grid.cache_clear()
            reset_peak_memory()
            timed = cell.timed(settings.rounds if clients * values <= LARGE else settings.large_rounds)
            sizes = {"N": clients, "d": values, "M": cell.nodes}
            paper = {"paper_seconds": PAPER_SECONDS.get((values, clients))}
            cells.append({**sizes, **timed, "peak_mib": peak_memory_mib(), **paper})
    large = [cell for cell in cells if cell["N"] * cell["d"] >= LARGE]
    middle = Cell(clients=settings.clients[-1] // 10, values=1_000)
    encoding = dataclasses.replace(middle, reals=True)
    fine = dataclasses.replace(middle, share_variance=FINE_SHARE_VARIANCE)
    results = {
        "cells": cells,
        "ratio_to_mask_floor": max(cell["ratio"] for cell in large),
        "ratio_with_encoding": encoding.timed(settings.rounds)["ratio"],
        "ratio_fine_grid": fine.timed(settings.rounds)["ratio"],
        "peak_gib": max(cell["peak_mib"] for cell in cells) / 1024,
        "aes_gcm_gb_per_s": _channel_speed(),
    }
    return results, {"dca_scale": plot_scale(cells)}


def _channel_speed() -> float:
    message, cipher = bytes(2**24), AESGCM(os.urandom(32))
    started = time.perf_counter()
    for _ in range(16):
        cipher.encrypt(os.urandom(12), message, None)
    return 16 * len(message) / 1e9 / (time.perf_counter() - started)


def growth(settings: Settings) -> tuple[Results, Figures]:
    """Seconds while one of N, d and M grows eightfold and the others stay."""
    clients, values = settings.growth_size
    middle = Cell(clients=clients, values=values)
    series = {
        "clients": [dataclasses.replace(middle, clients=clients * k // 4) for k in (1, 2, 4, 8)],
        "values": [dataclasses.replace(middle, values=values * k // 4) for k in (1, 2, 4, 8)],
        "nodes": [dataclasses.replace(middle, nodes=nodes) for nodes in (5, 10, 20, 40)],
    }
    results: Results = {"growth_cells": []}
    for name, cells in series.items():
        seconds = [cell.timed(settings.rounds)["seconds"] for cell in cells]
        sizes = [getattr(cell, name) for cell in cells]
        results[f"growth_exponent_{name}"] = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
        for cell, second in zip(cells, seconds, strict=True):
            results["growth_cells"].append(
                {"N": cell.clients, "d": cell.values, "M": cell.nodes, "seconds": second, "varied": name}
            )
    return results, {}


def on_dask(settings: Settings) -> tuple[Results, Figures]:
    """The same sums from the same block loaders, in process and on two worker processes."""
    from distributed import Client, LocalCluster

    cells = []
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        for clients, values in settings.dask_sizes:
            cell = Cell(clients=clients, values=values)
            rows = max(1, clients // 40)
            loaders = [functools.partial(np.full, (rows, values), 7)] * (clients // rows)
            arms = {
                "dask": lambda c=cell, b=loaders: _dask_run(c, b, client),
                "in_process": lambda c=cell, b=loaders: _wall(lambda: c.of_blocks(load() for load in b)),
            }
            times = interleaved(arms, settings.large_rounds, f"dask N={clients:g} d={values:g}")
            dask, alone = (median(times[name]) / 1e3 for name in ("dask", "in_process"))
            sizes = {"N": clients, "d": values, "M": cell.nodes}
            timed = {"seconds": dask, "in_process_seconds": alone}
            cells.append({**sizes, **timed, "overhead_seconds": dask - alone / 2, "speedup": alone / dask})
    return {"dask_cells": cells}, {}


def _dask_run(cell: Cell, loaders: list[Callable[[], np.ndarray]], client: Any) -> float:
    return _wall(
        lambda: distributed_sum_on_dask(
            loaders,
            cluster=client,
            num_values=cell.values,
            share_variance=cell.share_variance,
            num_nodes=cell.nodes,
        )
    )


def _wall(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - started)


# -- memory and figure ----------------------------------------------------------------------------


def reset_peak_memory() -> None:
    """Start a new peak, where Linux allows it; elsewhere peaks are those since the start."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def peak_memory_mib() -> float:
    """Largest resident memory since the last reset, in MiB."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@styled
def plot_scale(cells: list[dict[str, Any]]) -> Figure:
    """Seconds over N, a line for each d; dashed the floor, open marks the paper's."""
    figure = new_figure(7.2, 4.8)
    axes = figure.add_subplot()
    for i, d in enumerate(sorted({cell["d"] for cell in cells})):
        line = [cell for cell in cells if cell["d"] == d]
        n = [cell["N"] for cell in line]
        colour, marker = SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)]
        axes.loglog(n, [cell["seconds"] for cell in line], color=colour, marker=marker, label=f"d = {d:,}")
        axes.loglog(n, [cell["floor_seconds"] for cell in line], color=colour, linestyle="--", linewidth=1)
        paper = [(cell["N"], cell["paper_seconds"]) for cell in line if cell["paper_seconds"]]
        if paper:
            axes.loglog(*zip(*paper, strict=True), color=colour, marker=marker, mfc="none", linestyle="none")
    axes.plot([], [], color=MUTED, linestyle="--", linewidth=1, label="masks alone")
    axes.plot([], [], color=INK, marker="o", mfc="none", linestyle="none", label="paper (Spark)")
    axes.set_xlabel("number of clients N")
    axes.set_ylabel(f"time of one noisy sum, M = {cells[0]['M']} (s)")
    grid(axes, "y")
    figure.legend(loc="outside right center")
    return figure


PARTS: Mapping[str, Callable[[Settings], tuple[Results, Figures]]] = {
    "grid": scale_grid,
    "growth": growth,
    "dask": on_dask,
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=list(PARTS), help="run one part; FILE keeps the others' keys")
    args: argparse.Namespace = arguments.parse_args()
    settings = QUICK if args.quick else Settings()
    results: Results = {"settings": dataclasses.asdict(settings), "environment": environment()}
    figures: Figures = {}
    for name in [args.only] if args.only else list(PARTS):
        started = time.perf_counter()
        part_results, part_figures = PARTS[name](settings)
        results |= {**part_results, f"seconds_{name}": time.perf_counter() - started}
        figures |= part_figures
    finish(results, args, figures)


if __name__ == "__main__":
    main()
