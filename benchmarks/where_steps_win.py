"""Models that steps learn better than tables do, and where tables learn better, at the same budget, on made records.

    python benchmarks/where_steps_win.py --quick
    python benchmarks/where_steps_win.py --json results/where_steps_win.json [--only interactions hierarchy]
                                         [--seeds 3] [--keep FILE]

Two parties, everybody's epsilon is 1 at delta = 1e-5, replace; a data set, its coefficients and all noise are new for
each seed. `steps` is `DPVI(model)` as it is, the posterior's mean. Tables get the same budget and the better of several
ways, which is taken for each seed with the truth in hand:

field       a Markov field of noisy tables of all pairs of columns (`VertiMRF`), and the same regression under the same
            priors on ten records of its twin for each real one, with the weight of one
joined      `MarginalGLM`, where the features' combinations are few: a party's features counted together

What is measured is how far what is predicted for 20,000 new records lies from the truth: the mean Kullback-Leibler
divergence of the outcome's distribution given all other columns, in thousandths of a nat a record. A held-out log
predictive density lacks that of the truth's, but for the chance of drawing outcomes. Not DP. All have
20,000 records, and coefficients that are drawn from the model's priors.

interactions  yes or no, by five independent numbers at each party and the products of each two of a party, 31
              coefficients: interactions of three columns across the parties, as the outcome is at one of them
hierarchy     yes or no at the insurer, by the clinic's 20 hospitals, of which each has a level and a slope of a dose of
              its own, with spreads that are learned, and by the age: 42 coefficients
numbers       yes or no by eight independent numbers at each party, 17 coefficients
counts        Poisson, by six numbers at each party that depend on each other, 13 coefficients
classes       no regression: four classes, six columns of four values at each party, all drawn. The library's mixture of
              eight components, by steps from tables on and by tables alone. What is measured is the held-out negative
              log likelihood less the truth's, in the same unit
network       no regression: six columns, each a random function of earlier ones, as `wide_table.py` has them, and the
              library's mixture of 50 components. There a step's noise hides what a component says, so that `DPVI()`
              takes none. What is measured is the held-out negative log likelihood itself

Keys: <model>.<way>         median over the seeds, <way> steps, tables (the best of each seed) or one of the above
      <model>.<way>_range   least and largest
      <model>.steps_win     whether the largest by steps is less than the least by tables
      <model>.tables_win    the other way round
      <model>.epsilon_worst the largest row of a privacy table
      <model>.seconds       {way: median}; context
      steps_win, tables_win the models' names

A data set of a regression takes about half a minute of a core, one of the others some minutes. `--quick`: 4,000
records, two seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from common import compile_fast, environment, finish, kept, parser, with_stored
from scipy.special import expit, xlogy
from scipy.stats import norm
from tqdm.auto import tqdm
from wide_table import CELLS, draw

import vertinumpyro as vnp
from vertinumpyro.core.compat import random_key
from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
)
from vertinumpyro.dpvi import DPVI
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.mrf import VertiMRF

EPSILON, DELTA, NUM_NEW = 1.0, 1e-5, 20_000
TWIN_RECORDS = 10  # for each real one

Rows = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression:
    """Of `y` at the insurer, by what both parties add up.

    parts: each party's rows of the design [n, d], from its columns in model units.
    sites: the latents of these, [d] of all parties together, by their names.
    columns: of so many records, but `y`, in the schema's units.
    truth: an intercept and the coefficients.
    spread: the deviations of their priors, where they are fixed; of the hierarchy those that made it.
    """

    schema: Schema
    num_records: int
    model: Callable[..., None]
    parts: Mapping[str, Callable[[Rows], Any]]
    sites: Callable[[Rows], np.ndarray]
    columns: Callable[[np.random.Generator, int], pd.DataFrame]
    truth: Callable[[np.random.Generator], np.ndarray]
    spread: np.ndarray
    is_count: bool = False

    @cached_property
    def steps(self) -> DPVI:
        """For all data sets, so that nothing is compiled twice."""
        return DPVI(self.model)

    def design(self, frame: pd.DataFrame) -> np.ndarray:
        """With an intercept first."""
        rows = VerticalDataset.from_pooled(self.schema, frame).pooled()
        parts = [np.asarray(part(rows), float) for part in self.parts.values()]
        return np.concatenate([np.ones((len(frame), 1)), *parts], axis=1)

    def drawn(self, rng: np.random.Generator, size: int, truth: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
        """Records, and their predictors [n]."""
        frame = self.columns(rng, size).assign(y=0)
        eta = self.design(frame) @ truth
        values = rng.poisson(self.mean(eta)).clip(0, MOST) if self.is_count else rng.random(size) < self.mean(eta)
        return frame.assign(y=np.asarray(values, int)), eta

    def mean(self, eta: np.ndarray) -> np.ndarray:
        return np.exp(np.clip(eta, -10, 4)) if self.is_count else expit(np.clip(eta, -15, 15))

    def far(self, eta: np.ndarray, found: np.ndarray) -> float:
        """Mean divergence of what is predicted from the truth, in thousandths of a nat."""
        p, q = self.mean(eta), self.mean(found)
        lacks = xlogy(p, p / q) + (q - p if self.is_count else xlogy(1 - p, (1 - p) / (1 - q)))
        return 1000 * float(lacks.mean())

    def mode(self, frame: pd.DataFrame, weight: float) -> np.ndarray:
        """Of the coefficients given records that count as `weight` each, by Newton's steps."""
        X, y, w = self.design(frame), frame["y"].to_numpy(float), np.zeros(len(self.spread))
        for _ in range(25):
            mean = self.mean(X @ w)
            curvature = weight * (mean if self.is_count else mean * (1 - mean))
            step = weight * X.T @ (y - mean) - w / self.spread**2
            w = w + np.clip(np.linalg.solve((X.T * curvature) @ X + np.diag(self.spread**-2.0), step), -1, 1)
        return w


MOST = 30


def numbers(rng: np.random.Generator, size: int, names: Sequence[str], common: float) -> dict[str, np.ndarray]:
    """From 0 to 1, each as likely; `common` is the correlation of each two before they are made even."""
    normal = math.sqrt(1 - common) * rng.normal(size=(size, len(names)))
    normal += math.sqrt(common) * rng.normal(size=(size, 1))
    return dict(zip(names, norm.cdf(normal).T, strict=True))


def numbers_of(names: Sequence[str], rows: Rows, *, products: bool = False) -> Any:
    """A party's numbers from -1 to 1, and the products of each two."""
    own = [2 * rows[name] - 1 for name in names]
    own += [a * b for a, b in itertools.combinations(own, 2)] if products else []
    return (np if isinstance(own[0], np.ndarray) else jnp).stack(own, axis=-1)


def by_numbers(
    count: int, num_records: int, spread: float, *, common: float = 0.0, products: bool = False, is_count: bool = False
) -> Regression:
    """Of `count` numbers at each party."""
    names = {party: tuple(f"{party}_{i}" for i in range(count)) for party in ("clinic", "insurer")}
    outcome: Any = CountColumn(upper=MOST) if is_count else BinaryColumn()
    held: dict[str, dict[str, Any]] = {p: {n: RealColumn(bounds=(0, 1)) for n in own} for p, own in names.items()}
    held["insurer"]["y"] = outcome
    parts = {party: partial(numbers_of, own, products=products) for party, own in names.items()}
    width = count + (count * (count - 1) // 2 if products else 0)

    def model(data: Rows, num_records: int) -> None:
        intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, spread))
        w: Any = {p: numpyro.sample(f"{p}_w", dist.Normal(0.0, spread).expand([width]).to_event(1)) for p in names}
        clinic, insurer = (parts[party](data) @ w[party] for party in names)
        eta = vnp.party_sum("eta", {"clinic": clinic, "insurer": intercept + insurer})
        with vnp.party_plate("insurer", num_records):
            numpyro.sample("y", dist.Poisson(jnp.exp(eta)) if is_count else dist.Bernoulli(logits=eta), obs=data["y"])

    every = tuple(itertools.chain(*names.values()))
    return Regression(
        schema=Schema({party: PartySchema(columns) for party, columns in held.items()}),
        num_records=num_records,
        model=model,
        parts=parts,
        sites=lambda found: np.concatenate([found["intercept"][None], found["clinic_w"], found["insurer_w"]]),
        columns=lambda rng, size: pd.DataFrame(numbers(rng, size, every, common)),
        truth=lambda rng: rng.normal(0, spread, 1 + 2 * width),
        spread=np.full(1 + 2 * width, spread),
        is_count=is_count,
    )


HOSPITALS = 20
LEVELS, SLOPES = 0.7, 0.7  # deviations over hospitals


def of_hospitals(rows: Rows) -> np.ndarray:
    """A level and a slope of the dose for each."""
    own = np.eye(HOSPITALS)[np.asarray(rows["hospital"], int)]
    return np.concatenate([own, own * (2 * np.asarray(rows["dose"]) - 1)[:, None]], axis=1)


def hierarchical(data: Rows, num_records: int) -> None:
    """Hospitals differ in level and slope, by as much as is learned."""
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 1.0))
    age: Any = numpyro.sample("age_w", dist.Normal(0.0, 1.0))
    effects: Any = {}
    for name in ("levels", "slopes"):
        scale: Any = numpyro.sample(f"{name}_spread", dist.HalfNormal(1.0))
        effects[name] = numpyro.sample(name, dist.Normal(0.0, scale).expand([HOSPITALS]).to_event(1))
    at = data["hospital"].astype(int)
    clinic = effects["levels"][at] + effects["slopes"][at] * (2 * data["dose"] - 1)
    eta = vnp.party_sum("eta", {"clinic": clinic, "insurer": intercept + age * (2 * data["age"] - 1)})
    with vnp.party_plate("insurer", num_records):
        numpyro.sample("y", dist.Bernoulli(logits=eta), obs=data["y"])


def hierarchy() -> Regression:
    clinic: dict[str, Any] = {"hospital": CategoricalColumn(categories=tuple(range(HOSPITALS)))}
    spread = np.concatenate([[1.0], np.full(HOSPITALS, LEVELS), np.full(HOSPITALS, SLOPES), [1.0]])

    def columns(rng: np.random.Generator, size: int) -> pd.DataFrame:
        return pd.DataFrame(
            {"hospital": rng.integers(HOSPITALS, size=size), **numbers(rng, size, ["dose", "age"], 0.0)}
        )

    return Regression(
        schema=Schema(
            {
                "clinic": PartySchema({**clinic, "dose": RealColumn(bounds=(0, 1))}),
                "insurer": PartySchema({"age": RealColumn(bounds=(0, 1)), "y": BinaryColumn()}),
            }
        ),
        num_records=20_000,
        model=hierarchical,
        parts={"clinic": of_hospitals, "insurer": partial(numbers_of, ("age",))},
        sites=lambda f: np.concatenate([f["intercept"][None], f["levels"], f["slopes"], f["age_w"][None]]),
        columns=columns,
        truth=lambda rng: rng.normal(0, spread),
        spread=spread,
    )


MODELS: dict[str, Regression] = {
    "interactions": by_numbers(5, 20_000, 1.0, products=True),
    "hierarchy": hierarchy(),
    "numbers": by_numbers(8, 20_000, 0.7),
    "counts": by_numbers(6, 20_000, 0.25, common=0.3, is_count=True),
}


# -- the ways -------------------------------------------------------------------------------------


def by_steps(task: Regression, dataset: VerticalDataset, key: jax.Array) -> tuple[np.ndarray, float]:
    """The mean of the coefficients, and the largest epsilon."""
    dpvi = task.steps
    plan = dpvi.plan(dataset, epsilon=EPSILON, delta=DELTA)
    posterior = dpvi.fit(dataset, plan, key, progress_bar=False, allow_long=True)
    sites = posterior.sample(jax.random.key(1), 1000)
    return task.sites({name: np.asarray(draws).mean(0) for name, draws in sites.items()}), plan.worst.epsilon


def by_field(task: Regression, dataset: VerticalDataset, key: jax.Array) -> tuple[np.ndarray, float]:
    """The mode of the regression on a twin's records."""
    system = VertiMRF()
    plan = system.plan(dataset, epsilon=EPSILON, delta=DELTA)
    field = system.fit(dataset, plan, allow_long=True)
    twin = field.sample_synthetic(TWIN_RECORDS * dataset.num_records, rng_key=key)
    return task.mode(twin, 1 / TWIN_RECORDS), plan.worst.epsilon


def by_joined(task: Regression, dataset: VerticalDataset, key: jax.Array) -> tuple[Callable[..., np.ndarray], float]:
    """Of the hierarchy: a coefficient for each hospital and third of the dose, by a table of all of them."""
    frame = dataset.to_frame()
    held = dataset_of_thirds(frame)
    regression = vnp.MarginalGLM(schema=held.schema, family="bernoulli", label="y", prior_scale=1.0)
    plan = regression.plan(held, epsilon=EPSILON, delta=DELTA)
    means = regression.fit(held, key, plan=plan, allow_long=True).means()

    def predicted(new: pd.DataFrame) -> np.ndarray:
        codes = thirds(new)
        found = [codes[name].map(lambda code, name=name: means.get(f"{name}={code}", 0.0)) for name in codes]
        return means["intercept"] + np.sum([column.to_numpy(float) for column in found], axis=0)

    return predicted, plan.worst.epsilon


def thirds(frame: pd.DataFrame) -> pd.DataFrame:
    """Hospital and third of the dose in one column, and the third of the age."""
    dose, age = (np.minimum(2, (3 * frame[name].to_numpy(float)).astype(int)) for name in ("dose", "age"))
    return pd.DataFrame({"at": 3 * frame["hospital"].to_numpy(int) + dose, "third": age})


def dataset_of_thirds(frame: pd.DataFrame) -> VerticalDataset:
    at, third = (CategoricalColumn(categories=tuple(range(size))) for size in (3 * HOSPITALS, 3))
    parts = {"clinic": PartySchema({"at": at}), "insurer": PartySchema({"third": third, "y": BinaryColumn()})}
    return VerticalDataset.from_pooled(Schema(parts), thirds(frame).assign(y=frame["y"].to_numpy()))


WAYS: dict[str, Callable[..., tuple[Any, float]]] = {
    "steps": by_steps,
    "field": by_field,
    "joined": by_joined,
}


# -- no regression --------------------------------------------------------------------------------

CLASSES, VALUES, COLUMNS, COMPONENTS = 4, 4, 6, 8


def in_classes(seed: int, size: int) -> Any:
    """Four classes; see `by_mixture`."""
    rng = np.random.default_rng(seed)
    shares, tables = rng.dirichlet(np.full(CLASSES, 5.0)), rng.dirichlet(np.ones(VALUES), (CLASSES, 2 * COLUMNS))
    own: list[dict[str, Any]] = [
        {f"{p}{i}": CategoricalColumn(categories=tuple(range(VALUES))) for i in range(COLUMNS)} for p in "ab"
    ]
    schema = Schema({"clinic": PartySchema(own[0]), "insurer": PartySchema(own[1])})

    def drawn(size: int) -> VerticalDataset:
        z = rng.choice(CLASSES, size, p=shares)
        places = (tables[z].cumsum(2) < rng.random((size, 2 * COLUMNS, 1))).sum(2).clip(0, VALUES - 1)
        return VerticalDataset.from_pooled(schema, pd.DataFrame(places, columns=list(schema.columns)))

    train, new = drawn(size), drawn(NUM_NEW)
    each = np.prod(tables[:, np.arange(2 * COLUMNS), new.to_frame().to_numpy(int)], axis=2)  # [classes, records]
    return by_mixture(seed, train, new, COMPONENTS, -float(np.log(shares @ each).mean()))


def in_network(seed: int, size: int) -> Any:
    """Each column a random function of two or three before it; `wide_table` has it."""
    train, new = (draw((*CELLS[:5], 2), 3, n, 2 * seed + i) for i, n in enumerate((size, NUM_NEW)))
    return by_mixture(seed, train, new, max(20, size // 400), 0.0)


def by_mixture(
    seed: int, train: VerticalDataset, new: VerticalDataset, num_components: int, truth: float
) -> Mapping[str, tuple[float, float, float]]:
    """For each way its held-out negative log likelihood less the truth's, the largest epsilon, seconds."""
    found, ways = {}, {"steps": mixture_by_steps, "tables": mixture_by_tables}
    for way, fitted in ways.items():
        started = time.perf_counter()
        posterior = fitted(train, num_components, random_key(seed))
        lacks = 1000 * (posterior.held_out_nll(new) - truth)
        found[way] = (lacks, posterior.plan.worst.epsilon, time.perf_counter() - started)
    return found


def mixture_by_steps(dataset: VerticalDataset, num_components: int, key: jax.Array) -> Any:
    """From tables on, with a fifth of the budget."""
    dpvi = DPVI(num_components=num_components, warm_start=True)
    plan = dpvi.plan(dataset, epsilon=EPSILON, delta=DELTA)
    return dpvi.fit(dataset, plan, key, progress_bar=False, allow_long=True)


def mixture_by_tables(dataset: VerticalDataset, num_components: int, key: jax.Array) -> Any:
    """With all of the budget."""
    plan = VertiMRF().plan(dataset, epsilon=EPSILON, delta=DELTA)
    release = vnp.release_marginals(dataset, plan, allow_long=True)
    return MarginalInference(num_components=num_components).fit(release, key, progress_bar=False, allow_long=True)


def in_regression(name: str, ways: Sequence[str], seed: int, size: int | None) -> dict[str, tuple[float, float, float]]:
    """The same of a regression."""
    task, rng, found = MODELS[name], np.random.default_rng(seed), {}
    fit: Any
    truth = task.truth(rng)
    frame, _ = task.drawn(rng, size or task.num_records, truth)
    new, eta = task.drawn(rng, NUM_NEW, truth)
    dataset = VerticalDataset.from_pooled(task.schema, frame)
    for way in ways:
        started = time.perf_counter()
        fit, epsilon = WAYS[way](task, dataset, random_key(seed))
        predicted: Any = fit(new) if callable(fit) else task.design(new) @ fit
        found[way] = (task.far(eta, predicted), epsilon, time.perf_counter() - started)
    return found


def summary(runs: Sequence[Mapping[str, tuple[float, float, float]]]) -> dict[str, Any]:
    """Of all seeds of a model."""
    lacks = {way: [run[way][0] for run in runs] for way in runs[0]}
    if "tables" not in lacks:
        lacks["tables"] = [min(run[way][0] for way in run if way != "steps") for run in runs]
    steps, tables = lacks["steps"], lacks["tables"]
    return {
        **{way: statistics.median(values) for way, values in lacks.items()},
        **{f"{way}_range": [min(values), max(values)] for way, values in lacks.items()},
        "steps_win": max(steps) < min(tables),
        "tables_win": max(tables) < min(steps),
        "epsilon_worst": max(epsilon for run in runs for _, epsilon, _ in run.values()),
        "seconds": {way: statistics.median(run[way][2] for run in runs) for way in runs[0]},
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The chosen models."""
    found: dict[str, Any] = {}
    names, seeds = args.only or NAMES, range(1 if args.quick else args.seeds)
    size = 4_000 if args.quick else None
    with tqdm(total=len(names) * len(seeds), unit="data set") as bar:
        for name in names:
            bar.set_description(name)
            runs = []
            for seed in seeds:
                if name in MIXTURES:
                    one = partial(MIXTURES[name], seed, size or 20_000)
                else:
                    one = partial(in_regression, name, TRIED[name], seed, size)
                runs.append(kept(args.keep, f"{name} {size} {seed}", one))
                bar.update()
            found[name] = summary(runs)
    wins = {key: [name for name in found if found[name][key]] for key in ("steps_win", "tables_win")}
    return {**found, **wins}


TRIED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(MODELS, ("steps", "field")),
    "hierarchy": ("steps", "field", "joined"),
}
MIXTURES: Mapping[str, Callable[[int, int], Any]] = {"classes": in_classes, "network": in_network}
NAMES = (*MODELS, *MIXTURES)


def main() -> None:
    """Run the chosen models."""
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=NAMES, help="some models; --json keeps the others")
    arguments.add_argument("--seeds", type=int, default=3, help="data sets of each model (3)")
    arguments.add_argument("--keep", type=Path, help="a file of fits, taken up again by the next run")
    args = arguments.parse_args()
    compile_fast(args.quick)
    warnings.simplefilter("ignore", UserWarning)
    finish(with_stored({"environment": environment(), **run(args)}, args), args, {})


if __name__ == "__main__":
    main()
