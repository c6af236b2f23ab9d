"""Intervals of models of a `party_sum` that know the steps' noise: coverage, length, and bias.

    python benchmarks/noise_aware.py --quick
    VERTINUMPYRO_DATA=... python benchmarks/noise_aware.py --json results/noise_aware.json [--only bias] [--tables 200]

Simulated tables of 5,000 and 20,000 records: y and three columns at the bank, four at the telco, two of the seven are
0 or 1, all depend on two common factors, and on these a group that the hierarchical model has an effect for, too. The
coefficients of each table are drawn from the model's prior afresh. `DPVI(model, warm_start=SecondMoments())` with its
defaults, epsilon = 1 for everyone, delta = 1e-5, one record replaced.

A model whose posterior has no interval is in the printed `left_out`, with its reason, and nowhere else. What
`MarginalGLM` needs a minute a table for is apart, `--only peers`, and joins the keys of the JSON file. Survival has its
event and time at the bank, a baseline hazard of three intervals, and a table of when events were
(`SecondMoments(events=...)`). Counts with an offset are of a part of a year, from a tenth to all of it, which depends
on the same two factors.

Keys: coverage           {model: {n: share of 95% intervals that hold the truth, over all parameters}}
      coverage_by        {model: {n: {parameter: the same of one}}}
      coverage_range     {model: {n: [the least, the largest of them]}}
      standardised       {model: {n: standard deviation of (estimate - truth) / std_error, over all}}
      length             {model: {n: median length over that of `MarginalGLM` at the same epsilon, on tables whose
                         columns are all 0 or 1, as that takes few combinations; null where it has no such model}}
      length_no_privacy  {model: {n: median length over that of the same model on pooled records}}
      coverage_pooled    {model: {n: coverage of the same model on pooled records}}
      forecast           {model: {n: median over tables and coefficients of a fit's standard error over the one that
                         its plan forecast}}
      forecast_range     {model: {n: [the least, the largest of the coefficients' medians]}}
      bias               {model: at epsilon = 50, largest of |mean estimate - pooled| / pooled standard error, over the
                         coefficients of two simulated tables of 500,000 records and a public one
                         (`noise_aware_parts/public_tables.py`); means over three noises and their opposites (of a
                         hierarchy one), which take off what an estimate is linear in}
      bias_one_noise     {model: the same of one noise}
      bias_noise         {model: of that where no bound of the plan cuts and the noise is the same, number for number:
                         what noise alone gives; counts are cut by their released table still}
      bias_cut           {model: the largest difference of the two, so what the plan's cut alone gives}
      bias_by            {model: {table: {coefficient: [of one noise, the same where nothing is cut, bias, and the
                         standard deviation of what noise adds, in pooled standard errors]}}}
      holds_pooled       {model: {epsilon: share of 95% intervals of its public table that hold the estimate of pooled
                         columns, over eight noises, of a hierarchy two}}; such tables are of no model's law
      length_public      {model: {epsilon: their median length over that without privacy}}
      seconds            {model: {n: median of a fit}}; context
      public_survival    {epsilon: {hazard_ratios, of a unit of the scaled column, the first of some runs: [estimate,
                         lower, upper]; within: share of intervals that hold the pooled ratio; concordance, the median,
                         and concordance_less, how far below the pooled one at most, NOT DP; epsilon_worst}, pooled:
                         {hazard_ratios, std_errors, concordance}, num_records}, of `flchain` beside statsmodels
      epsilon_worst      the largest of any adversary's row
      left_out           what is not there, and why
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import pandas as pd
from common import environment, finish, parser
from noise_aware_parts import pooled, public_survival
from noise_aware_parts.models import FAMILIES, NAMES, NUM_SLOPES, Family, Table, flat
from noise_aware_parts.public_tables import public_table
from tqdm.auto import tqdm

from vertinumpyro.core.errors import DataError
from vertinumpyro.data import Schema
from vertinumpyro.dpvi import DPVI, Posterior, second_moments
from vertinumpyro.dpvi.clipping import planned_shape
from vertinumpyro.dpvi.second_moments import MomentsPlan
from vertinumpyro.glm import MarginalGLM
from vertinumpyro.privacy import GradientPlan, gradient_plan

EPSILON, DELTA, LARGE_EPSILON = 1.0, 1e-5, 50.0
SIZES, NUM_PAIRS = (5_000, 20_000), 3
BIAS_RECORDS = 500_000  # so many that what is off by more than the noise is seen
_TABLES_A_JOB = 50
WITHOUT_PUBLIC = ("survival",)  # whose public table has a part of its own, `public_survival`
PUBLIC_EPSILONS, NUM_PUBLIC = (1.0, 3.0), 8
PARTS = ["coverage", "bias", "public", "public_survival", "peers"]
PEERS = {"logistic": "bernoulli", "poisson": "poisson", "negative_binomial": "negative_binomial"}


class Job(NamedTuple):
    """What a process does at a time: some tables of one model and size, or all of a model's bias."""

    part: str
    family: str
    num_records: int
    seeds: range = range(0)


class Tried(NamedTuple):
    """Of one table: rows beside those of pooled records, the truth, and the forecast where there is one."""

    rows: pd.DataFrame
    pooled: pd.DataFrame
    truth: np.ndarray
    forecast: pd.Series | None
    seconds: float
    epsilon: float


class Fitted(NamedTuple):
    """Of one table."""

    posterior: Posterior
    plan: GradientPlan
    seconds: float

    @property
    def rows(self) -> pd.DataFrame:
        """The posterior's table, parameters in its order."""
        return self.posterior.summary()


@cache
def method_of(family: Family) -> DPVI:
    """One for all tables of a model: its programs are compiled once."""
    return DPVI(family.model, warm_start=family.moments)


def fit(method: DPVI, table: Table, seed: int, epsilon: float, *, cuts: bool = True) -> Fitted:
    """The posterior and its plan.

    :param cuts: as the plan's default does; else nothing is cut, and the noise is the same.
    """
    dataset = table.dataset()
    plan = method.plan(dataset, epsilon=epsilon, delta=DELTA)
    plan = plan if cuts else without_cut(method, dataset.schema, plan)
    started = time.perf_counter()
    posterior = method.fit(dataset, plan, jax.random.key(seed), progress_bar=False, insecure_seed=seed)
    return Fitted(posterior, plan, time.perf_counter() - started)


def without_cut(method: DPVI, schema: Schema, plan: GradientPlan) -> GradientPlan:
    """The same noise for residuals that nothing cuts: no privacy as the plan has it."""
    bound, start = plan.residual_bound, plan.start
    assert isinstance(bound, float)
    assert isinstance(start, MomentsPlan)
    split, norm = method.split(schema), plan.clip_norm / bound
    (summed,) = split.structure.summed
    start = dataclasses.replace(start, radius=norm / summed.outcome.unit)  # but for a rounding as it was
    noise = plan.noise_multiplier * bound
    plan = dataclasses.replace(plan, residual_bound=1.0, clip_norm=norm, noise_multiplier=noise, start=start,
                               plan_id=secrets.token_hex(16))  # fmt: skip
    shape = planned_shape(split, plan, block_size=method.block_size, num_devices=method.num_devices)
    return dataclasses.replace(plan, grid_bits=method.backend.grid_bits(shape))


def lengths(rows: pd.DataFrame) -> pd.Series:
    return pd.Series(rows["upper"].to_numpy() - rows["lower"].to_numpy(), rows.index)


def held(rows: pd.DataFrame, truth: np.ndarray) -> np.ndarray:
    return ((rows["lower"] < truth) & (truth < rows["upper"])).to_numpy()


def simulated(job: Job) -> list[Tried] | str:
    """A fit of each table; why there is no interval, where there is none."""
    found = []
    for seed in job.seeds:
        table = Table.simulated(FAMILIES[job.family], job.num_records, seed)
        assert table.truth is not None
        fitted = fit(method_of(table.family), table, seed, EPSILON)
        if not fitted.posterior.is_interval:
            return fitted.posterior.spread_note
        rows, forecast = fitted.rows, fitted.plan.forecast
        stddevs = None if forecast is None else pd.Series(forecast.std_error, list(forecast.names))
        found.append(
            Tried(rows, pooled.summary(table).loc[rows.index], flat(table.truth, rows.index),
                  stddevs, fitted.seconds, fitted.plan.worst.epsilon)
        )  # fmt: skip
    return found


def summed_up(family: str, num_records: int, found: list[Tried]) -> dict[str, Any]:
    """Coverage, lengths and forecasts over all tables."""
    hits = np.array([held(one.rows, one.truth) for one in found])
    by = dict(zip(found[0].rows.index, hits.mean(0), strict=True))
    planned = [(one.rows["std_error"] / one.forecast).dropna() for one in found if one.forecast is not None]
    medians = pd.DataFrame(planned).median()
    result = {
        "coverage": hits.mean(),
        "coverage_by": by,
        "coverage_range": [min(by.values()), max(by.values())],
        "standardised": np.std([(one.rows["estimate"] - one.truth) / one.rows["std_error"] for one in found]),
        "length_no_privacy": np.median([lengths(one.rows) / lengths(one.pooled) for one in found]),
        "coverage_pooled": np.mean([held(one.pooled, one.truth) for one in found]),
        **({"forecast": np.median(planned), "forecast_range": [medians.min(), medians.max()]} if planned else {}),
        "seconds": np.median([one.seconds for one in found]),
    }
    keys = {key: {family: {str(num_records): value}} for key, value in result.items()}
    return keys | {"epsilon_worst": max(one.epsilon for one in found)}


# -- beside tables ----------------------------------------------------------------------------------


def beside_tables(job: Job) -> dict[str, Any]:
    """The median length over that of `MarginalGLM`, both of the same columns of two values."""
    family, ratios = dataclasses.replace(FAMILIES[job.family], indicators=tuple(range(NUM_SLOPES))), []
    peer = MarginalGLM(schema=family.schema, family=PEERS[job.family], label="y", prior_scale=family.spread)
    for seed in job.seeds:
        table = Table.simulated(family, job.num_records, seed)
        other = by_tables(peer, table, seed)
        own = lengths(fit(method_of(family), table, seed, EPSILON).rows)
        ratios += [own[f"slopes[{i}]"] / other[name] for i, name in enumerate(NAMES)]
    return {"length": {job.family: {str(job.num_records): float(np.median(ratios))}}}


def by_tables(peer: MarginalGLM, table: Table, seed: int) -> dict[str, float]:
    """Lengths by the column's name."""
    dataset = table.dataset()
    release = peer.release(dataset, peer.plan(dataset, epsilon=EPSILON, delta=DELTA), insecure_seed=seed)
    rows = peer.fit(release, jax.random.key(seed)).summary()
    found = rows["high"].to_numpy() - rows["low"].to_numpy()
    return {str(name).partition("=")[0]: float(length) for name, length in zip(rows.index, found, strict=True)}


# -- bias -------------------------------------------------------------------------------------------


@contextmanager
def opposite_noise() -> Iterator[None]:
    """All noise of steps, moments and tables times -1, which is as likely.

    What a fit and its opposite have in common is no noise but for what an estimate is not linear in it, so the mean of
    both is the estimate's bias up to a small part of one noise.
    """
    draw = gradient_plan.sample_discrete_gaussian
    with ExitStack() as patched:
        for module in (gradient_plan, second_moments):
            patched.enter_context(mock.patch.object(module, "sample_discrete_gaussian", lambda *of: -draw(*of)))
        yield


def bias(job: Job) -> dict[Any, Any]:
    """At an epsilon that hides nothing."""
    family, found, left_out = FAMILIES[job.family], {}, {}
    tables: dict[str, Table] = {
        f"simulated {seed}": Table.simulated(family, job.num_records, 1000 + seed) for seed in range(2)
    }
    try:
        tables["public"] = public_table(family)
    except DataError as error:
        left_out[f"public table of {family.name}"] = str(error)
    for name, table in tables.items():
        without = pooled.summary(table).drop(index="scale", errors="ignore")

        def apart(seed: int, *, cuts: bool = True, table: Table = table, without: pd.DataFrame = without) -> pd.Series:
            rows = fit(method_of(table.family), table, seed, LARGE_EPSILON, cuts=cuts).rows.loc[list(without.index)]
            return (rows["estimate"] - without["estimate"]) / without["std_error"]

        one = apart(0)
        num_pairs = 1 if family.grouped else NUM_PAIRS  # NUTS takes its time
        noises = pd.DataFrame([apart(seed) if seed else one for seed in range(num_pairs)])
        with opposite_noise():
            opposite = pd.DataFrame([apart(seed) for seed in range(num_pairs)])
        stddev = ((noises - opposite) ** 2 / 4).mean() ** 0.5
        columns = [one, apart(0, cuts=False), (noises + opposite).mean() / 2, stddev]
        found[name] = pd.concat(columns, axis=1, keys=["bias_one_noise", "bias_noise", "bias", "stddev"])
    joint = pd.concat(found.values())
    joint["bias_cut"] = joint["bias_one_noise"] - joint["bias_noise"]
    largest = joint.drop(columns="stddev").abs().max()
    by = {name: {row: list(values) for row, values in table.iterrows()} for name, table in found.items()}
    return {key: {family.name: value} for key, value in largest.items()} | {
        "bias_by": {family.name: by}, "left_out": left_out
    }  # fmt: skip


def beside_pooled(job: Job) -> dict[str, Any]:
    """A public table at the epsilons that people take."""
    family = FAMILIES[job.family]
    try:
        table = public_table(family)
    except DataError as error:
        return {"left_out": {f"public table of {family.name}": str(error)}}
    without, found = pooled.summary(table), {}
    for epsilon in PUBLIC_EPSILONS:
        fits = [fit(method_of(table.family), table, seed, epsilon).rows for seed in job.seeds]
        held_pooled = np.mean([held(rows, without["estimate"].loc[rows.index].to_numpy()) for rows in fits])
        length = np.median([lengths(rows) / lengths(without.loc[rows.index]) for rows in fits])
        for key, value in (("holds_pooled", held_pooled), ("length_public", length)):
            found.setdefault(key, {}).setdefault(family.name, {})[f"{epsilon:g}"] = float(value)
    return found


def survival_beside_pooled(job: Job) -> dict[str, Any]:
    """The public survival table."""
    try:
        return {"public_survival": public_survival.results(PUBLIC_EPSILONS, len(job.seeds))}
    except DataError as error:
        return {"left_out": {"public_survival": str(error)}}


# -- all --------------------------------------------------------------------------------------------


def done(job: Job) -> tuple[Job, Any]:
    """In a process of its own."""
    warnings.simplefilter("ignore")  # a repeatable source, and posteriors of models that draw no predictor
    parts = {
        "simulated": simulated, "peers": beside_tables, "bias": bias, "public": beside_pooled,
        "public_survival": survival_beside_pooled,
    }  # fmt: skip
    return job, parts[job.part](job)


def jobs(args: Any) -> Iterator[Job]:
    """Those that take longest first."""
    sizes = sorted(args.sizes or ((2_000,) if args.quick else SIZES), reverse=True)
    num_tables = args.tables or (2 if args.quick else 200)
    cases = [(name, num_records) for name in reversed(args.models) for num_records in sizes]
    if "coverage" in args.only:
        for name, num_records in cases:
            for first in range(0, num_tables, _TABLES_A_JOB):
                yield Job("simulated", name, num_records, range(first, min(num_tables, first + _TABLES_A_JOB)))
    if "peers" in args.only:
        yield from (Job("peers", name, number, range(args.peer_tables)) for name, number in cases if name in PEERS)
    if "public_survival" in args.only:
        yield Job("public_survival", "survival", 0, range(2 if args.quick else NUM_PUBLIC))
    if "public" in args.only:
        for name in args.models:
            if name in WITHOUT_PUBLIC:
                continue
            yield Job("public", name, 0, range(2 if args.quick or FAMILIES[name].grouped else NUM_PUBLIC))
    if "bias" in args.only:
        yield from (Job("bias", name, 4_000 if args.quick else BIAS_RECORDS) for name in args.models)


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
    made.add_argument("--only", nargs="+", choices=PARTS, default=PARTS[:4])
    made.add_argument("--models", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    made.add_argument("--sizes", nargs="+", type=int, help="records of a table (5000 20000)")
    made.add_argument("--tables", type=int, help="simulated tables of each model and size (200; quick: 2)")
    made.add_argument("--peer-tables", type=int, default=3, help="of these beside MarginalGLM, a minute each (3)")
    args = made.parse_args()
    todo, results, tried = list(jobs(args)), {}, {}
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for job, found in tqdm(pool.imap_unordered(done, todo), total=len(todo), unit="job"):
            if isinstance(found, str):
                results = joined(results, {"left_out": {job.family: found}})
            elif isinstance(found, list):
                tried.setdefault((job.family, job.num_records), []).extend(found)
            else:
                results = joined(results, found)
    for case, of_tables in tried.items():
        results = joined(results, summed_up(case[0], case[1], of_tables))
    finish(results | {"environment": environment()}, args, {})


if __name__ == "__main__":
    main()
