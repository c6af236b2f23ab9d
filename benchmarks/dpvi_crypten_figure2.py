"""Figure 2 of the DPVI paper with real processes: two parties with one feature each of UCI Adult, under CrypTen.

    VERTINUMPYRO_DATA=... python benchmarks/dpvi_crypten_figure2.py --quick
    python benchmarks/dpvi_crypten_figure2.py --json results/dpvi_crypten_figure2.json [--steps 3000] [--only crypten]

One party has `age`, the other `fnlwgt`, each in a file of its own that its process alone opens; a third process deals.
Batches of 100 (Poisson), clip 1, sigma 2.042, Adam(0.01), 20 components, `--steps` iterations (3,000). Every arm draws
batches and noise of its own from the operating system. The NLL is the mean over 15,060 test records of -log p(x |
theta) at the guide's location, in nats: an evaluation on held-out real records, not DP.

Keys: nll_crypten, nll_fixed_point    after the last iteration
      nll_no_renormalisation          the paper's fixed-point formulation without its Algorithm 4, in one process; two
                                      features rarely leave its grid, see `dpvi_adult.py`, part figure2
      nll_start                       before the first iteration
      seconds_a_step                  of the crypten arm: medians do not apply to one run, so the whole run's mean
      rounds_a_step, bytes_a_step     of one party
      curve_crypten, curve_fixed_point, curve_no_renormalisation      [iterations, NLL]
      settings, environment
      dpvi_crypten_figure2.png

Needs the extra `crypten`. `--quick` takes 20 iterations, three components and a tenth of the records.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    DELTA,
    SIGMA,
    Experiment,
    adult,
    compile_fast,
    environment,
    finish,
    paper_inference,
    parser,
    regrouped,
    with_stored,
)
from paper_protocol.backends import Paper
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.training_loop import chunks
from vertinumpyro.evaluation import plot_curves
from vertinumpyro.secure import Backend, Crypten, FixedPoint
from vertinumpyro.session import PartyTask, ProcessSession

ONE_FEATURE = {"demographic": ["age"], "financial": ["fnlwgt"]}
EVALUATIONS = 20
Curve = tuple[np.ndarray, np.ndarray]


def experiment_of(args: argparse.Namespace, backend: Backend) -> Experiment:
    """The paper's plan under one backend."""
    train, test = (regrouped(part, ONE_FEATURE) for part in adult(**args.sizes))
    dpvi = paper_inference(backend, args.components)
    settings = {"noise_multiplier": SIGMA, "delta": DELTA, "clip_norm": 1.0, "batch_size": 100}
    plan = dpvi.plan(train, num_steps=args.steps, allow_unproven=True, **settings)
    return Experiment(dpvi, plan, train, test)


def in_one_process(args: argparse.Namespace, backend: Backend, label: str) -> Curve:
    """A run of a simulated backend."""
    experiment = experiment_of(args, backend)
    fresh = chunks(experiment.plan, experiment.num_values, SystemRandomSource(), 0)
    with tqdm(total=args.steps, desc=label, unit="step") as bar:
        return experiment.curve(0, fresh, EVALUATIONS, bar)


def in_processes(args: argparse.Namespace, folder: Path) -> tuple[Curve, dict[str, float]]:
    """A run with a process for each party and one for the dealer."""
    experiment = experiment_of(args, Crypten())
    build = partial(paper_inference, Crypten(), args.components)
    with ProcessSession(written(experiment.train, folder, build)) as session:
        steps, values = [0], [experiment.held_out_nll(experiment.start(0).params)]

        def evaluate(done: int, params: Any) -> None:
            if done >= args.steps * len(steps) // EVALUATIONS or done == args.steps:
                steps.append(done)
                values.append(experiment.held_out_nll(params))

        key = compat.random_key(0)
        fit = experiment.dpvi.fit(
            session, experiment.plan, key, run_dir=folder / "run", after_chunk=evaluate, allow_long=True
        )
        traffic = session.traffic
    cost = {
        "seconds_a_step": fit.diagnostics.seconds / args.steps,
        "rounds_a_step": traffic.rounds / args.steps,
        "bytes_a_step": traffic.bytes_sent / args.steps,
    }
    return (np.array(steps), np.array(values)), cost


def written(dataset: VerticalDataset, folder: Path, build: Callable[[], DPVI]) -> list[PartyTask]:
    """Each party's file, and what its process is started with."""
    schema, frame = dataset.schema, dataset.to_frame()
    frame.insert(0, schema.id_column, np.arange(len(frame)).astype(str))
    tasks = []
    for party, part in schema.parties.items():
        table = folder / f"{party}.parquet"
        frame[[schema.id_column, *part.columns]].to_parquet(table, index=False)
        tasks.append(PartyTask(party=party, schema=schema.to_dict(), table=table, build=build))
    return tasks


def crypten(args: argparse.Namespace) -> dict[str, Any]:
    """The arm with processes, and what it cost."""
    with tempfile.TemporaryDirectory() as folder:
        curve, cost = in_processes(args, Path(folder))
    return {**arm("crypten", curve), **cost, "nll_start": curve[1][0]}


def arm(name: str, curve: Curve) -> dict[str, Any]:
    """An arm's keys."""
    return {f"nll_{name}": curve[1][-1], f"curve_{name}": curve}


ARMS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "crypten": crypten,
    "fixed_point": lambda args: arm("fixed_point", in_one_process(args, FixedPoint(), "fixed point")),
    "no_renormalisation": lambda args: arm(
        "no_renormalisation",
        in_one_process(args, Paper(renormalise=False), "no renormalisation"),
    ),
}
LABELS = {
    "curve_crypten": "CrypTen, a process for each party",
    "curve_fixed_point": "fixed point, one process",
    "curve_no_renormalisation": "no renormalisation",
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, help="iterations (3,000; quick: 20)")
    arguments.add_argument("--only", choices=list(ARMS), help="run one arm; FILE keeps the others' keys")
    args = arguments.parse_args()
    args.steps = args.steps or (20 if args.quick else 3_000)
    args.components = 3 if args.quick else 20
    args.sizes = {"num_train": 3_000, "num_test": 1_500} if args.quick else {}
    compile_fast(args.quick)
    results: dict[str, Any] = {}
    for name in [args.only] if args.only else list(ARMS):
        results |= ARMS[name](args)
    known = with_stored(results, args)
    curves = {
        label: (np.asarray(known[key][0]), np.asarray(known[key][1])) for key, label in LABELS.items() if key in known
    }
    figure = plot_curves(curves, xlabel="iteration", ylabel="test negative log-likelihood per record (nats)")
    settings = {"steps": args.steps, "num_components": args.components}
    finish({**results, "settings": settings, "environment": environment()}, args, {"dpvi_crypten_figure2": figure})


if __name__ == "__main__":
    main()
