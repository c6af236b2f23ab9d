"""Intervals of models of a `party_sum` that know the steps' noise: coverage, length, and bias.

    python benchmarks/noise_aware.py --quick
    VERTINUMPYRO_DATA=... python benchmarks/noise_aware.py --json results/noise_aware.json [--only bias] [--tables 200]

Simulated tables of 5,000 and 20,000 records: y and three columns at the bank, four at the telco, two of the seven are
0 or 1, all depend on two common factors, and on these a group that the hierarchical model has an effect for, too. The
coefficients of each table are drawn from the model's prior afresh. `DPVI(model, warm_start=SecondMoments())` with its
defaults, epsilon = 1 for everyone, delta = 1e-5, one record replaced.

Survival has its event and time at the bank, a baseline hazard of three intervals, and a table of when events were
(`SecondMoments(events=...)`).

Keys: coverage           {model: {n: share of 95% intervals that hold the truth, over all parameters}}
      coverage_by        {model: {n: {parameter: the same of one}}}
      coverage_range     {model: {n: [the least, the largest of them]}}
      standardised       {model: {n: standard deviation of (estimate - truth) / std_error, over all}}
      length             {model: {n: median length over that of `MarginalGLM` at the same epsilon, on tables whose
                         columns are all 0 or 1, as that takes few combinations; null where it has no such model}}
      length_no_privacy  {model: {n: median length over that of the same model on pooled records}}
      coverage_pooled    {model: {n: coverage of the same model on pooled records}}
      bias               {model: at epsilon = 50, largest of |estimate - pooled| / pooled standard error, over the
                         coefficients of two simulated tables and a public one, Adult or Abalone, where there is one;
                         the steps' noise is in it, which counts up to 30 still have more of than of sampling}
      bias_by            {model: {table: {coefficient: the same, with its sign}}}
      seconds            {model: {n: median of a fit}}; context
      public_survival    {epsilon: {hazard_ratios, of a unit of the scaled column, the first of some runs: [estimate,
                         lower, upper]; within: share of intervals that hold the pooled ratio; concordance, the median,
                         and concordance_less, how far below the pooled one at most, NOT DP; epsilon_worst}, pooled:
                         {hazard_ratios, std_errors, concordance}, num_records}, of `flchain` beside statsmodels
      epsilon_worst      the largest of any adversary's row
      left_out           what is not there, and why
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from common import environment, finish, parser
from noise_aware_parts import pooled, public_survival
from noise_aware_parts.models import FAMILIES, NAMES, Family, Table, flat
from tqdm.auto import tqdm

from vertinumpyro.core.errors import DataError
from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.glm import MarginalGLM

EPSILON, DELTA, LARGE_EPSILON = 1.0, 1e-5, 50.0
SIZES = 5_000, 20_000
PARTS = ["coverage", "bias", "public_survival"]
PEERS = {"logistic": "bernoulli", "poisson": "poisson", "negative_binomial": "negative_binomial"}


class Job(NamedTuple):
    """What a process does: all tables of one model and size, or all of a model's bias."""

    part: str
    family: str
    num_records: int
    num_tables: int
    num_peers: int


class Fitted(NamedTuple):
    """Of one table."""

    rows: pd.DataFrame
    seconds: float
    epsilon: float


def fit(method: DPVI, table: Table, seed: int, epsilon: float) -> Fitted:
    """The posterior's table, parameters in its order."""
    dataset = table.dataset()
    plan = method.plan(dataset, epsilon=epsilon, delta=DELTA)
    started = time.perf_counter()
    posterior = method.fit(dataset, plan, jax.random.key(seed), progress_bar=False, insecure_seed=seed)
    return Fitted(posterior.summary(), time.perf_counter() - started, plan.worst.epsilon)


def lengths(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(rows["upper"].to_numpy() - rows["lower"].to_numpy(), rows.index)


def held(rows: pd.DataFrame, truth: np.ndarray) -> np.ndarray:
    return ((rows["lower"] < truth) & (truth < rows["upper"])).to_numpy()


def simulated(job: Job) -> dict[str, Any]:
    """Coverage and lengths."""
    family = FAMILIES[job.family]
    method, found, records = DPVI(family.model, warm_start=family.moments), [], []
    hits, hits_pooled, apart, ratios = [], [], [], []
    for seed in range(job.num_tables):
        table = Table.simulated(family, job.num_records, seed)
        assert table.truth is not None
        found.append(fit(method, table, seed, EPSILON))
        rows = found[-1].rows
        truth, without = flat(table.truth, rows.index), pooled.summary(table).loc[rows.index]
        hits.append(held(rows, truth))
        hits_pooled.append(held(without, truth))
        apart.append((rows["estimate"] - truth) / rows["std_error"])
        ratios.append(lengths(rows) / lengths(without))
        records.append(rows)
    by = dict(zip(records[0].index, np.mean(hits, axis=0), strict=True))
    result = {
        "coverage": np.mean(hits),
        "coverage_by": by,
        "coverage_range": [min(by.values()), max(by.values())],
        "standardised": np.std(apart),
        "length": beside_tables(method, job),
        "length_no_privacy": np.median(ratios),
        "coverage_pooled": np.mean(hits_pooled),
        "seconds": np.median([one.seconds for one in found]),
    }
    size = str(job.num_records)
    return {key: {family.name: {size: value}} for key, value in result.items()} | {"epsilon_worst": found[0].epsilon}


# -- beside tables ----------------------------------------------------------------------------------


def beside_tables(method: DPVI, job: Job) -> float | None:
    """The median length over that of `MarginalGLM`, both on columns of two values; None where there is none."""
    if job.family not in PEERS or not job.num_peers:
        return None
    family, ratios = FAMILIES[job.family], []
    peer = MarginalGLM(schema=of_two_values(family), family=PEERS[job.family], label="y", prior_scale=family.spread)
    for seed in range(job.num_peers):
        table = Table.simulated(family, job.num_records, seed, two_values=True)
        other = by_tables(peer, table, seed)
        own = lengths(fit(method, table, seed, EPSILON).rows)
        ratios += [own[f"slopes[{i}]"] / other[name] for i, name in enumerate(NAMES)]
    return float(np.median(ratios))


def of_two_values(family: Family) -> Schema:
    """The table's schema."""
    columns: dict[str, Any] = {"y": family.column, **{name: BinaryColumn() for name in NAMES}}
    return Schema(
        {p: PartySchema({n: columns[n] for n in family.schema.column_names(p)}) for p in family.schema.parties}
    )


def by_tables(peer: MarginalGLM, table: Table, seed: int) -> dict[str, float]:
    """Lengths by the column's name."""
    frame = pd.DataFrame(table.x.astype(int), columns=NAMES).assign(y=table.y.astype(int))
    dataset = VerticalDataset.from_pooled(peer.schema, frame)
    release = peer.release(dataset, peer.plan(dataset, epsilon=EPSILON, delta=DELTA), insecure_seed=seed)
    rows = peer.fit(release, jax.random.key(seed)).summary()
    found = rows["high"].to_numpy() - rows["low"].to_numpy()
    return {str(name).partition("=")[0]: float(length) for name, length in zip(rows.index, found, strict=True)}


# -- bias -------------------------------------------------------------------------------------------


def bias(job: Job) -> dict[str, Any]:
    """At an epsilon that hides nothing."""
    family, found, left_out = FAMILIES[job.family], {}, {}
    method = DPVI(family.model, warm_start=family.moments)
    tables: dict[str, Table] = {
        f"simulated {seed}": Table.simulated(family, job.num_records, 1000 + seed) for seed in range(2)
    }
    try:
        public = Table.public(family)
        tables |= {} if public is None else {"public": public}
        if public is None:
            left_out[f"public table of {family.name}"] = "none was chosen for it"
    except DataError:
        left_out[f"public table of {family.name}"] = "set VERTINUMPYRO_DATA to a folder that has it"
    for name, table in tables.items():
        rows = fit(method, table, 0, LARGE_EPSILON).rows.drop(index="scale", errors="ignore")
        without = pooled.summary(table).loc[rows.index]
        found[name] = ((rows["estimate"] - without["estimate"]) / without["std_error"]).to_dict()
    largest = max(abs(value) for of_table in found.values() for value in of_table.values())
    return {"bias": {family.name: largest}, "bias_by": {family.name: found}, "left_out": left_out}


def public(job: Job) -> dict[str, Any]:
    """The public survival table."""
    try:
        return {"public_survival": public_survival.results((1.0, 3.0), job.num_tables)}
    except DataError as error:
        return {"left_out": {"public_survival": str(error)}}


# -- all --------------------------------------------------------------------------------------------


def done(job: Job) -> dict[str, Any]:
    """In a process of its own."""
    warnings.simplefilter("ignore")  # a repeatable source, and posteriors of models that draw no predictor
    return {"simulated": simulated, "bias": bias, "public": public}[job.part](job)


def jobs(args: Any) -> Iterator[Job]:
    """Those that take longest first."""
    sizes = args.sizes or ((2_000,) if args.quick else SIZES)
    num_tables = args.tables or (2 if args.quick else 200)
    num_peers = (0 if args.quick else 3) if args.peer_tables is None else args.peer_tables
    if "coverage" in args.only:
        for num_records in sorted(sizes, reverse=True):
            yield from (Job("simulated", name, num_records, num_tables, num_peers) for name in reversed(args.models))
    if "public_survival" in args.only:
        yield Job("public", "survival", 0, 2 if args.quick else 8, 0)
    if "bias" in args.only:
        yield from (Job("bias", name, 4_000 if args.quick else max(SIZES), 3, 0) for name in args.models)


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """At every depth; of two numbers the larger."""
    for key, value in new.items():
        if isinstance(value, dict):
            old[key] = joined(old.get(key, {}), value)
        else:
            old[key] = max(old[key], value) if key in old else value
    return old


def main() -> None:
    """Run the chosen parts, two jobs at a time."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    made.add_argument("--models", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    made.add_argument("--sizes", nargs="+", type=int, help="records of a table (5000 20000)")
    made.add_argument("--tables", type=int, help="simulated tables of each model and size (200; quick: 2)")
    made.add_argument("--peer-tables", type=int, help="of these beside MarginalGLM, a minute each (3; quick: 0)")
    args = made.parse_args()
    todo, results = list(jobs(args)), {}
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        for found in tqdm(pool.imap_unordered(done, todo), total=len(todo), unit="job"):
            tqdm.write(f"{found}", file=sys.stderr)
            results = joined(results, found)
    finish(results | {"environment": environment()}, args, {})


if __name__ == "__main__":
    main()
