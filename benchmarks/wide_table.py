"""Every method on a table with wide columns that hang together across the parties, made here, from a fixed seed.

    python benchmarks/wide_table.py --quick
    python benchmarks/wide_table.py --json results/wide_table.json [--methods vertimrf triples target marginals dpvi]
                                    [--repeats 3] [--keep FILE]

250,000 records, 15 columns of 2 to 50 values, eight at a clinic and seven at an insurer. It is no mixture: a network in
which every column after the first three is a fixed random function of two or three earlier ones, of either party, with
a share of noise. The insurer's `late`, the last, is the sign of a sum of effects of three of the clinic's columns, with
that noise too. `triples` and `target` release tables of three columns across the parties, too, `target` for whoever
says beforehand that the twin is to predict `late`. Everybody's epsilon is 1 at delta = 1e-5, replace. `apart` is the
floor that costs no privacy at all: the parties' exact records, joined at random. Distances and accuracies are
evaluations on real records, not DP.

Keys: wide.tvd3            {method: median of the mean TVD of 300 random 3-way tables}
      wide.accuracy        {method: median accuracy on new records of a gradient-boosted classifier of `late`, trained
                           on the twin}; `exact` is trained on the records themselves, `pairs` is a logistic regression
                           of them, so what exact tables of pairs can say, `majority` knows the shares alone
      wide.seconds         {method: median of plan, fit and sampling}; context
      wide.epsilon_worst   {method: the largest row of its privacy table}
      wide.all_beat_apart  whether every joint method is nearer than `apart`

A fit takes three to twenty minutes of a core: with `--keep FILE` a run that is cut off goes on where it was. `--quick`
takes 4,000 records and six columns.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from common import environment, finish, kept, parser, with_stored
from sklearn.ensemble import HistGradientBoostingClassifier
from tqdm.auto import tqdm

from vertinumpyro.cli.demo import joined_at_random
from vertinumpyro.data import BinaryColumn, CategoricalColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.evaluation import k_way_tvd, train_on_synthetic_test_on_real
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import Plan

CELLS = (4, 12, 50, 7, 2, 30, 5, 20, 9, 40, 3, 16, 25, 6, 2)
CLINIC = 8  # of these columns
NOISE = 0.25  # share of records in which a column does not follow its parents
TARGET = "late"
EPSILON, DELTA = 1.0, 1e-5

Twin = tuple[pd.DataFrame, Plan]


def names(num_columns: int) -> list[str]:
    """Of the columns, in the order in which they are drawn."""
    return [*(f"c{i:02d}" for i in range(num_columns - 1)), TARGET]


def schema_of(cells: tuple[int, ...], clinic: int) -> Schema:
    """The clinic's columns come first."""
    columns: dict[str, Any] = {
        name: CategoricalColumn(categories=tuple(f"v{k:02d}" for k in range(size)))
        for name, size in zip(names(len(cells)), cells, strict=True)
    }
    columns[TARGET] = BinaryColumn()
    held = list(columns.items())
    return Schema({"clinic": PartySchema(dict(held[:clinic])), "insurer": PartySchema(dict(held[clinic:]))})


def draw(cells: tuple[int, ...], clinic: int, num_records: int, seed: int) -> VerticalDataset:
    """Records of the network, which is the same for every seed."""
    network, rng = np.random.default_rng(7), np.random.default_rng(seed)
    codes: list[np.ndarray] = []
    for i, size in enumerate(cells):
        shares = network.dirichlet(np.full(size, 1.0))
        own = rng.choice(size, num_records, p=shares)
        if i == len(cells) - 1:
            effects = {p: network.normal(size=cells[p]) for p in network.choice(clinic, 3, replace=False)}
            follows = sum(effect[codes[p]] for p, effect in effects.items()) > 0
        elif i >= 3:
            parents = network.choice(i, network.integers(2, 4), replace=False)
            follows = network.choice(size, [cells[p] for p in parents], p=shares)[tuple(codes[p] for p in parents)]
        else:
            follows = own
        codes.append(np.where(rng.random(num_records) < NOISE, own, follows))
    schema = schema_of(cells, clinic)
    frame = pd.DataFrame({name: [f"v{c:02d}" for c in own] for name, own in zip(schema.columns, codes, strict=True)})
    frame[TARGET] = codes[-1]
    return VerticalDataset.from_pooled(schema, frame)


# -- the methods ----------------------------------------------------------------------------------


def by_vertimrf(dataset: VerticalDataset, key: jax.Array, system: VertiMRF | None = None) -> Twin:
    system = VertiMRF() if system is None else system
    plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)
    return system.fit(dataset, plan, allow_long=True).sample_synthetic(rng_key=key), plan


def by_marginals(dataset: VerticalDataset, key: jax.Array) -> Twin:
    plan = VertiMRF().plan(dataset, epsilon=EPSILON, delta=DELTA)
    release = release_marginals(dataset, plan, allow_long=True)
    posterior = MarginalInference().fit(release, key, allow_long=True)
    return posterior.sample_synthetic(rng_key=key), plan


def by_dpvi(dataset: VerticalDataset, key: jax.Array) -> Twin:
    dpvi = DPVI()
    plan = dpvi.plan(dataset, epsilon=EPSILON, delta=DELTA)
    return dpvi.fit(dataset, plan, key, allow_long=True).sample_synthetic(rng_key=key), plan


METHODS: dict[str, Callable[[VerticalDataset, jax.Array], Twin]] = {
    "vertimrf": by_vertimrf,
    "triples": partial(by_vertimrf, system=VertiMRF(triples="auto")),
    "target": partial(by_vertimrf, system=VertiMRF(triples="auto", target=TARGET)),
    "marginals": by_marginals,
    "dpvi": by_dpvi,
}


class Evaluation:
    """Distances and accuracies of tables against the real one. Not DP."""

    def __init__(self, dataset: VerticalDataset, test: VerticalDataset, num_marginals: int) -> None:
        self.real, self.test, self.schema = dataset.to_frame(), test.to_frame(), dataset.schema
        self._num_marginals = num_marginals

    def tvd3(self, table: pd.DataFrame) -> float:
        """Mean over random 3-way tables."""
        return k_way_tvd(self.real, table, self.schema, 3, rng=0, num_marginals=self._num_marginals).mean

    def accuracy(self, table: pd.DataFrame, *, by_pairs: bool = False) -> float:
        """On new records, of a classifier that is trained on the table; or of a logistic regression."""
        model = None if by_pairs else HistGradientBoostingClassifier(random_state=0)
        return train_on_synthetic_test_on_real(table, None, self.test, TARGET, self.schema, model).synthetic.accuracy


def fitted(name: str, dataset: VerticalDataset, judged: Evaluation, repeat: int) -> list[float]:
    """A method's distance, accuracy, seconds and largest epsilon."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        twin, plan = METHODS[name](dataset, jax.random.key(repeat))
    seconds = time.perf_counter() - started
    return [judged.tvd3(twin), judged.accuracy(twin), seconds, plan.worst.epsilon]


def run(args: Any) -> dict[str, Any]:
    """All methods on one table."""
    cells, clinic = ((*CELLS[:5], 2), 3) if args.quick else (CELLS, CLINIC)
    size, repeats = (4000, 1) if args.quick else (250_000, args.repeats)
    dataset, test = (draw(cells, clinic, n, seed) for seed, n in ((1, size), (2, size // 5)))
    judged = Evaluation(dataset, test, 50 if args.quick else 300)
    schema = judged.schema
    held = [pd.DataFrame(judged.real[list(schema.column_names(party))]) for party in schema.parties]
    apart = joined_at_random(held, schema, seed=0)
    share = float(np.mean(np.asarray(judged.test[TARGET], float)))
    tvd3 = {"apart": judged.tvd3(apart)}
    accuracy = {
        "apart": judged.accuracy(apart),
        "exact": judged.accuracy(judged.real),
        "pairs": judged.accuracy(judged.real, by_pairs=True),
        "majority": max(share, 1 - share),
    }
    seconds: dict[str, float] = {}
    worst: dict[str, float] = {}
    with tqdm(total=len(args.methods) * repeats, unit="fit") as bar:
        for name in args.methods:
            bar.set_description(name)
            found = []
            for repeat in range(repeats):
                fit = partial(fitted, name, dataset, judged, repeat)
                found.append(kept(args.keep, f"{name} {size} {repeat}", fit))
                bar.update()
            tvd3[name], accuracy[name], seconds[name], _ = map(statistics.median, zip(*found, strict=True))
            worst[name] = max(epsilon for *_, epsilon in found)
    joint = [name for name in tvd3 if name != "apart"]
    return {
        "wide": {
            "tvd3": tvd3,
            "accuracy": accuracy,
            "seconds": seconds,
            "epsilon_worst": worst,
            "all_beat_apart": all(tvd3[name] < tvd3["apart"] for name in joint),
        }
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--keep", type=Path, help="a file of fits, taken up again by the next run")
    args = arguments.parse_args()
    finish(with_stored({"environment": environment(), **run(args)}, args), args, {})


if __name__ == "__main__":
    main()
