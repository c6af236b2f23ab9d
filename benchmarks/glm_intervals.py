"""Regressions with intervals that know the noise of privacy (`MarginalGLM`): beside NUTS on pooled records, coverage.

    VERTINUMPYRO_DATA=... python benchmarks/glm_intervals.py --quick
    python benchmarks/glm_intervals.py --json results/glm_intervals.json [--only visits coverage] [--data-sets 200]

Visits: the RAND Health Insurance Experiment, visits to a doctor at the insurer, health at the clinic (physical
limitation, index of chronic diseases, self-rated health); a noisy table of visits by these at epsilon = 1 for
everyone, delta = 1e-5, one record replaced. Rate ratios by two families from the same release, beside the same
regression by NUTS on pooled records, which is not DP. Visits vary far more than a Poisson's: its `misfit` says so.

Coverage: how often a 95% interval holds the truth, over 200 simulated data sets of as many records, features drawn
with the shares of the table that it names, visits from a Poisson or a negative binomial, a new release of each.

Keys: visits             {family: {coefficient: {tables: [ratio, low, high], pooled: [ratio, low, high]}}}
      misfit             {family: of the tables, well above 1 where the model cannot have made them}
      seconds            {family: of a fit to the release, compilation included}; context
      epsilon_worst      the largest of any adversary's row
      coverage           {family: share of intervals that hold the truth, over all coefficients}
      coverage_by        {family: {coefficient: the same of one}}
      width              {family: median length of an interval over that of maximum likelihood on the records}
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from common import environment, finish, parser
from numpyro.infer import MCMC, NUTS
from statsmodels.datasets import randhie
from tqdm.auto import tqdm

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.data import (
    BinaryColumn,
    BinnedColumn,
    CategoricalColumn,
    CountColumn,
    PartySchema,
    Schema,
    VerticalDataset,
)
from vertinumpyro.glm import MarginalGLM
from vertinumpyro.mrf import Marginals

HEALTH = ("excellent", "good", "fair", "poor")
SCHEMA = Schema(
    {
        "insurer": PartySchema({"visits": CountColumn(upper=80)}),
        "clinic": PartySchema(
            {
                "limited": BinaryColumn(),
                "diseases": BinnedColumn(edges=(0.0, 6.0, 12.0, 18.0, 60.0)),
                "health": CategoricalColumn(categories=HEALTH),
            }
        ),
    }
)
FAMILIES = ("poisson", "negative_binomial")
EPSILON, DELTA = 1.0, 1e-5
TRUTH = pd.Series({"intercept": 0.6, "limited=1": 0.3, "diseases": 0.15, "health=good": 0.05, "health=fair": 0.25,
                   "health=poor": 0.7})  # fmt: skip
CONCENTRATION = 0.8


def table(num_records: int | None) -> pd.DataFrame:
    """Of the experiment; its first records."""
    raw: Any = randhie.load_pandas().data
    rated = np.select([raw["hlthg"] == 1, raw["hlthf"] == 1, raw["hlthp"] == 1], HEALTH[1:], HEALTH[0])
    found = pd.DataFrame({"visits": raw["mdvis"].astype(int), "limited": (raw["physlm"] > 0.5).astype(int),
                          "diseases": raw["disea"], "health": rated})  # fmt: skip
    return found.head(num_records) if num_records else found


def of_family(family: str) -> MarginalGLM:
    """The regression of visits."""
    return MarginalGLM(schema=SCHEMA, family=family, label="visits", linear=["diseases"])


def released(frame: pd.DataFrame) -> tuple[Marginals, float]:
    """Noisy tables, and the worst epsilon; the same for both families."""
    dataset, regression = VerticalDataset.from_pooled(SCHEMA, frame), REGRESSIONS["poisson"]
    plan = regression.plan(dataset, epsilon=EPSILON, delta=DELTA)
    return regression.release(dataset, plan), plan.worst.epsilon


def design(frame: pd.DataFrame) -> np.ndarray:
    """`[N, 6]` in the order of `TRUTH`."""
    dataset = VerticalDataset.from_pooled(SCHEMA, frame)
    codes = dataset.pooled()
    parts = [np.ones(len(frame)), codes["limited"], codes["diseases"], *np.eye(4)[codes["health"]].T[1:]]
    return np.column_stack(parts).astype(float)


REGRESSIONS = {family: of_family(family) for family in FAMILIES}


def pooled(frame: pd.DataFrame, family: str, *, num_samples: int) -> pd.DataFrame:
    """Draws of the same regression by NUTS on the records. Not DP."""
    x, y = jnp.asarray(design(frame)), jnp.asarray(frame["visits"].to_numpy())

    def model() -> None:
        beta: Any = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([x.shape[1]]).to_event(1))
        rate = jnp.exp(x @ beta)
        if family == "poisson":
            numpyro.sample("visits", dist.Poisson(rate), obs=y)
        else:
            spread: Any = numpyro.sample("concentration", dist.LogNormal(0.0, 1.5))
            numpyro.sample("visits", dist.NegativeBinomial2(rate, spread), obs=y)

    chain = MCMC(NUTS(model), num_warmup=num_samples, num_samples=num_samples, progress_bar=False)
    chain.run(jax.random.key(0))
    return pd.DataFrame(np.asarray(chain.get_samples()["beta"]), columns=TRUTH.index)


def ratios(draws: pd.DataFrame) -> dict[str, list[float]]:
    """[ratio, low, high] of every coefficient but the intercept."""
    found = np.exp(draws.drop(columns="intercept").quantile([0.5, 0.025, 0.975]))
    return {name: [float(value) for value in found[name]] for name in found}


def visits(*, quick: bool) -> dict[str, Any]:
    """Both families from one release of the experiment's tables, beside NUTS on the records."""
    frame = table(3_000 if quick else None)
    release, worst = released(frame)
    found: dict[str, Any] = {"visits": {}, "misfit": {}, "seconds": {}, "epsilon_worst": worst}
    for family in FAMILIES:
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InferenceWarning)  # the misfit is a key
            posterior = REGRESSIONS[family].fit(release, jax.random.key(1))
        found["seconds"][family] = time.perf_counter() - started
        found["misfit"][family] = posterior.posterior.misfit
        by_tables = ratios(posterior.draws())
        by_records = ratios(pooled(frame, family, num_samples=100 if quick else 500))
        found["visits"][family] = {name: {"tables": by_tables[name], "pooled": by_records[name]} for name in by_tables}
    return found


def simulated(frame: pd.DataFrame, family: str, rng: np.random.Generator) -> pd.DataFrame:
    """Features with the table's shares, visits from the truth."""
    drawn = frame.sample(len(frame), replace=True, random_state=rng).reset_index(drop=True)
    rate = np.exp(design(drawn) @ TRUTH.to_numpy())
    if family == "negative_binomial":
        rate = rate * rng.gamma(CONCENTRATION, 1 / CONCENTRATION, len(rate))
    return drawn.assign(visits=rng.poisson(rate).clip(0, 80))


def exact_widths(frame: pd.DataFrame, family: str) -> np.ndarray:
    """Of 95% intervals by maximum likelihood's information on the records."""
    x = design(frame)
    rate = np.exp(x @ TRUTH.to_numpy())
    weights = rate if family == "poisson" else rate / (1 + rate / CONCENTRATION)
    return 2 * 1.96 * np.sqrt(np.diag(np.linalg.inv((x * weights[:, None]).T @ x)))


def coverage(repeats: int, *, quick: bool) -> dict[str, Any]:
    """Over simulated data sets, a new release of each."""
    frame, rng = table(3_000 if quick else None), np.random.default_rng(0)
    found: dict[str, Any] = {"coverage": {}, "coverage_by": {}, "width": {}}
    for family in FAMILIES:
        model, hits, widths = REGRESSIONS[family], [], []
        for repeat in tqdm(range(repeats), desc=family, unit="data set", disable=None):
            drawn = simulated(frame, family, rng)
            summary = model.fit(released(drawn)[0], jax.random.key(repeat)).summary()
            hits.append((summary["low"] < TRUTH) & (summary["high"] > TRUTH))
            widths.append((summary["high"] - summary["low"]).to_numpy() / exact_widths(drawn, family))
        by = pd.concat(hits, axis=1).mean(axis=1)
        found["coverage"][family] = float(by.mean())
        found["coverage_by"][family] = {name: float(share) for name, share in by.items()}
        found["width"][family] = float(np.median(widths))
    return found


def main() -> None:
    """Run the chosen parts."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=("visits", "coverage"), default=["visits", "coverage"])
    made.add_argument("--data-sets", type=int, help="simulated data sets (200; quick: 2)")
    args = made.parse_args()
    results: dict[str, Any] = {"environment": environment()}
    if "visits" in args.only:
        results |= visits(quick=args.quick)
    if "coverage" in args.only:
        results |= coverage(args.data_sets or (2 if args.quick else 200), quick=args.quick)
    finish(results, args, {})


if __name__ == "__main__":
    main()
