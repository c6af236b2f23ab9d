"""How long a run takes to its first step, everything compiled: this checkout against another one.

    python benchmarks/start_of_run.py --quick
    git worktree add ../before COMMIT
    python benchmarks/start_of_run.py --against ../before --json results/start_of_run.json [--runs 5]

A process of its own for every run: imports, RAND HIE, the library's mixture with 20 components split, a plan, one step
of DPVI. The two checkouts take turns under the same interpreter and the same packages, so what else the machine does
meets both. Only public names are used that both must have.

Keys:

seconds, processor_seconds                  medians over the runs of this checkout
seconds_before, processor_seconds_before    of the other one; null without `--against`
ratio, processor_ratio                      medians of the ratios run by run, at most 1 is wanted; null without
runs, settings, environment

`--quick` runs once, with two components.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import environment, finish, median, parser
from tqdm.auto import tqdm

_HERE = Path(__file__).resolve().parents[1]
_RUN = """
import sys
import jax
import vertinumpyro as vnp
dataset = vnp.load_rand_hie()
dpvi = vnp.DPVI(num_components=int(sys.argv[1]))
plan = dpvi.plan(dataset, noise_multiplier=2.0, batch_size=100, num_steps=1)
dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False)
"""


def one_run(checkout: Path, num_components: int) -> tuple[float, float]:
    """Seconds and processor seconds of one process."""
    before, started = _processor_seconds(), time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _RUN, str(num_components)],
        check=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    return time.perf_counter() - started, _processor_seconds() - before


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--against", type=Path, help="another checkout of this project")
    arguments.add_argument("--runs", type=int, help="runs of each checkout (5; quick: 1)")
    args: argparse.Namespace = arguments.parse_args()
    runs, num_components = args.runs or (1 if args.quick else 5), 2 if args.quick else 20
    checkouts = [_HERE, *([] if args.against is None else [args.against.resolve()])]
    times: list[list[tuple[float, float]]] = []
    with tqdm(total=(runs + 1) * len(checkouts), unit="run") as bar:
        for _ in range(runs + 1):  # the first turn fills the caches of the disk
            turn = []
            for checkout in checkouts:
                turn.append(one_run(checkout, num_components))
                bar.update()
            times.append(turn)
    found: dict[str, Any] = {}
    for index, name in enumerate(("seconds", "processor_seconds")):
        ours = [turn[0][index] for turn in times[1:]]
        theirs = [turn[1][index] for turn in times[1:]] if args.against else None
        ratios = None if theirs is None else [a / b for a, b in zip(ours, theirs, strict=True)]
        found[name] = median(ours)
        found[f"{name}_before"] = None if theirs is None else median(theirs)
        found[name.replace("seconds", "ratio")] = None if ratios is None else median(ratios)
    settings = {"num_components": num_components}
    finish({**found, "runs": runs, "settings": settings, "environment": environment()}, args, {})


if __name__ == "__main__":
    main()
