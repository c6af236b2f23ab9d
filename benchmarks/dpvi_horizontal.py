"""Horizontal DPVI on UCI Adult: the same model on the same records, pooled, at a few holders, at a client each.

    VERTINUMPYRO_DATA=... python benchmarks/dpvi_horizontal.py --quick
    python benchmarks/dpvi_horizontal.py --json results/dpvi_horizontal.json [--repeats 8]

30,162 training and 15,060 test records of Adult, 13 columns, a mixture, the library's defaults at epsilon = 1, delta =
1e-5, replace, against the outside analyst alone. `pooled` is `DPVI` in fixed point; `holders` five clients with a fifth
of the records each, who all add noise; `clients` one client for each record, of whom 100 add noise to each sum. Both
of the latter go through the Distributed Compute Algorithm with three nodes. Every NLL is the mean over the test records
of -log p(x | theta) at the guide's location, in nats: not DP, internal.

Keys: nll_{pooled,holders,clients}        medians over `--repeats` runs with independent batches, noise and starts
      nll_{pooled,holders,clients}_runs   every run
      nll_spread                          largest less smallest of the pooled runs
      horizontal_agrees                   whether both medians are within nll_spread of the pooled median
      seconds_{pooled,holders,clients}    median wall time of a run, context
      dpvi_horizontal.png

Also `settings` and `environment`. `--quick` keeps every key with fewer records, columns, components and steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import DELTA, adult, at_one_party, environment, finish, median, parser, regrouped
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import HorizontalDataset, HorizontalDPVI
from vertinumpyro.dpvi.posterior import Posterior
from vertinumpyro.evaluation import plot_nll_boxes
from vertinumpyro.privacy import OUTSIDE_ANALYST

HOLDERS = 5
FEW_COLUMNS = {"everyone": ["age", "fnlwgt", "workclass"]}


def arms(dpvi: DPVI, train: Any, plan: dict[str, Any]) -> dict[str, Callable[[int], Posterior]]:
    """Each arm as a function of the run's number; a plan is spent once, so every run makes its own."""
    horizontal = HorizontalDPVI(dpvi)
    holders = HorizontalDataset(train, np.arange(train.num_records) % HOLDERS)
    clients = HorizontalDataset(train)

    def pooled(run: int) -> Posterior:
        return dpvi.fit(train, dpvi.plan(train, **plan), compat.random_key(run), progress_bar=False)

    def split(dataset: HorizontalDataset) -> Callable[[int], Posterior]:
        def fit(run: int) -> Posterior:
            made = horizontal.plan(dataset, **plan)
            return horizontal.fit(dataset, made, compat.random_key(run), progress_bar=False)

        return fit

    return {"pooled": pooled, "holders": split(holders), "clients": split(clients)}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=8, help="runs of each arm (8)")
    arguments.add_argument("--components", type=int, default=20, help="components of the mixture (20)")
    args = arguments.parse_args()
    train, test = adult(num_train=3_000, num_test=1_000) if args.quick else adult()
    train, test = (regrouped(t, FEW_COLUMNS) if args.quick else at_one_party(t) for t in (train, test))
    components, repeats = (3, min(2, args.repeats)) if args.quick else (args.components, args.repeats)
    plan: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, "adversary": OUTSIDE_ANALYST}
    plan |= {"num_steps": 60} if args.quick else {}
    found: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    made = arms(DPVI(num_components=components), train, plan)
    with tqdm(total=repeats * len(made), unit="run") as bar:
        for run in range(repeats):
            for name, fit in made.items():
                bar.set_description(name)
                started = time.perf_counter()
                posterior = fit(run)
                seconds.setdefault(name, []).append(time.perf_counter() - started)
                found.setdefault(name, []).append(posterior.held_out_nll(test))
                bar.set_postfix(nll=f"{found[name][-1]:.3f}")
                bar.update()
    spread = float(np.ptp(found["pooled"]))
    middle = {name: median(values) for name, values in found.items()}
    results = {
        **{f"nll_{name}": value for name, value in middle.items()},
        **{f"nll_{name}_runs": values for name, values in found.items()},
        "nll_spread": spread,
        "horizontal_agrees": all(abs(middle[name] - middle["pooled"]) <= spread for name in ("holders", "clients")),
        **{f"seconds_{name}": median(values) for name, values in seconds.items()},
        "settings": {"repeats": repeats, "num_components": components, **plan},
        "environment": environment(),
    }
    boxes = {f"{name} ({len(values)} runs)": np.array(values) for name, values in found.items()}
    finish(results, args, {"dpvi_horizontal": plot_nll_boxes(boxes)})


if __name__ == "__main__":
    main()
