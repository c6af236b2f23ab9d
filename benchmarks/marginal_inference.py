"""NumPyro models learned from one release of noisy tables: how near the twins are, and whether intervals cover.

    VERTINUMPYRO_DATA=... python benchmarks/marginal_inference.py --quick
    python benchmarks/marginal_inference.py --json results/marginal_inference.json [--only twins coverage] [--repeats 5]

Twins: NLTCS with 8 items at each of two parties, Adult, replace, delta = 1/n, every adversary at most epsilon; the
library's mixture by `MarginalInference()`, beside the Markov field of the same release (`VertiMRF`), whose tables are
therefore the same. Mean total variation distance (TVD) of 300 random 3-way marginals from the real ones, which is not
DP; of a twin of N records, and of one of 10 N, in which hardly any of the distance is that of drawing records.

Coverage: how often a 95% interval holds the truth, over 1,000 simulated data sets of 4,000 records, two predictors at
one party and a binary outcome at the other, epsilon = 1 for everyone, tables new every time. 200 data sets would leave
a standard error of 0.011, and one run in ten or so outside 93% to 97% whatever the intervals are worth. The model is a
logistic regression of the outcome, in which nothing can change places. `svi` and `nuts`: quantiles of the posterior.
`rubin`: maximum likelihood on each of 100 twins of the same posterior, put together by `combine_estimates`. `exact`:
maximum likelihood on the records themselves, without DP.

Keys: tvd3               {data set: {arm: {epsilon: median over repeats}}}; arms mixture, mixture_10n, secure_marginals
      over_field         {data set: {epsilon: tvd3 of mixture over that of secure_marginals, median of the pairs}}
      tvd3_range         {data set: {arm: {epsilon: [least, largest]}}}
      epsilon_worst      {data set: {epsilon: the largest of any adversary's row}}
      seconds            {data set: {arm: median of a fit, after the release}}; context, compilation included
      coverage           {svi, nuts, rubin, exact: share of intervals that hold the truth, over all coefficients}
      coverage_error     {svi, nuts, rubin, exact: its standard error; hits of one data set go together}
      width              {svi, nuts, rubin, exact: median length of an interval}
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from common import environment, finish, parser, with_stored
from matplotlib.figure import Figure
from scipy.stats import sem
from tqdm.auto import tqdm

from vertinumpyro.data import BinaryColumn, PartySchema, Schema, VerticalDataset, load_adult, load_nltcs
from vertinumpyro.evaluation import combine_estimates, k_way_tvd
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.model import party_plate
from vertinumpyro.mrf import MarkovTwin, VertiMRF
from vertinumpyro.privacy import PrivacyWarning

EPSILONS = {"nltcs": (0.2, 0.8, 1.6), "adult": (0.8,)}
LOADERS = {"nltcs": load_nltcs, "adult": partial(load_adult, layout="with_income")}

# -- twins ----------------------------------------------------------------------------------------


def twins(repeats: int, *, quick: bool) -> dict[str, Any]:
    """Distances of both arms on the same releases."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    ratios: dict[str, dict[float, list[float]]] = {}
    seconds: dict[str, dict[str, list[float]]] = {}
    worst: dict[str, dict[float, float]] = {}
    runs = [(name, epsilon, i) for name in LOADERS for epsilon in EPSILONS[name] for i in range(repeats)]
    runs = [run for run in runs if not quick or run[0] == "nltcs"]
    for name, epsilon, repeat in tqdm(runs, desc="twins", disable=None):
        dataset = LOADERS[name]()
        dataset = dataset.take(np.arange(2000)) if quick else dataset
        one, timed, largest = twin_distances(dataset, epsilon, repeat, quick=quick)
        for arm, value in one.items():
            found.setdefault(name, {}).setdefault(arm, {}).setdefault(epsilon, []).append(value)
        for arm, value in timed.items():
            seconds.setdefault(name, {}).setdefault(arm, []).append(value)
        ratio = one["mixture"] / one["secure_marginals"]
        ratios.setdefault(name, {}).setdefault(epsilon, []).append(ratio)
        worst.setdefault(name, {})[epsilon] = largest

    def over_repeats(of: Callable[[list[float]], Any]) -> dict[str, Any]:
        return {
            name: {arm: {epsilon: of(values) for epsilon, values in by.items()} for arm, by in arms.items()}
            for name, arms in found.items()
        }

    return {
        "tvd3": over_repeats(statistics.median),
        "tvd3_range": over_repeats(lambda values: [min(values), max(values)]),
        "over_field": {n: {e: statistics.median(v) for e, v in by.items()} for n, by in ratios.items()},
        "seconds": {n: {a: statistics.median(v) for a, v in arms.items()} for n, arms in seconds.items()},
        "epsilon_worst": worst,
    }


def twin_distances(
    dataset: VerticalDataset, epsilon: float, seed: int, *, quick: bool
) -> tuple[dict[str, float], dict[str, float], float]:
    """Distances, seconds after the release, and the worst adversary's epsilon."""
    settings, key = VertiMRF(), jax.random.key(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n
        plan = settings.plan(dataset, epsilon=epsilon, delta=1 / dataset.num_records)
    release = release_marginals(dataset, plan)
    real, schema = dataset.to_frame(), dataset.schema

    def distance(twin: pd.DataFrame) -> float:
        return k_way_tvd(real, twin, schema, 3, rng=0, num_marginals=300).mean

    started = time.perf_counter()
    field = MarkovTwin.of(release, settings.field(release), {})
    by_field = time.perf_counter()
    inference = MarginalInference(num_steps=300) if quick else MarginalInference()
    posterior = inference.fit(release, key, progress_bar=False)
    by_mixture = time.perf_counter()
    distances = {
        "secure_marginals": distance(field.sample_synthetic(rng_key=key)),
        "mixture": distance(posterior.sample_synthetic(rng_key=key)),
        "mixture_10n": distance(posterior.sample_synthetic(10 * dataset.num_records, rng_key=key)),
    }
    seconds = {"secure_marginals": by_field - started, "mixture": by_mixture - by_field}
    return distances, seconds, max(row.epsilon for row in plan.adversaries)


# -- coverage -------------------------------------------------------------------------------------

SCHEMA = Schema(
    {
        "clinic": PartySchema({"smoker": BinaryColumn(), "older": BinaryColumn()}),
        "insurer": PartySchema({"claim": BinaryColumn()}),
    }
)
CELLS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
WEIGHTS, TRUTH, NUM_RECORDS = np.array([0.4, 0.2, 0.15, 0.25]), np.array([-1.0, 0.8, -0.5]), 4000
TABLES = 100


def logistic(data: Mapping[str, Any], num_records: int) -> None:
    """The outcome's regression on the predictors of the other party; z is the cell that both of these are in."""
    weights = jnp.asarray(numpyro.sample("weights", dist.Dirichlet(jnp.ones(4))))
    beta = jnp.asarray(numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([3]).to_event(1)))
    with numpyro.plate("records", num_records, dim=-1):
        z = numpyro.sample("z", cast(dist.Distribution, dist.Categorical(weights)), infer={"enumerate": "parallel"})
    x = jnp.asarray(CELLS)[z]
    with party_plate("clinic", num_records):  # known given z, but for one in 160,000
        numpyro.sample("smoker", dist.Bernoulli(logits=24.0 * x[..., 0] - 12.0), obs=data.get("smoker"))
        numpyro.sample("older", dist.Bernoulli(logits=24.0 * x[..., 1] - 12.0), obs=data.get("older"))
    with party_plate("insurer", num_records):
        numpyro.sample("claim", dist.Bernoulli(logits=beta[0] + x @ beta[1:]), obs=data.get("claim"))


def simulated(seed: int) -> pd.DataFrame:
    """One data set from the truth."""
    rng = np.random.default_rng(seed)
    x = CELLS[rng.choice(4, NUM_RECORDS, p=WEIGHTS)]
    claim = rng.random(NUM_RECORDS) < 1 / (1 + np.exp(-(TRUTH[0] + x @ TRUTH[1:])))
    return pd.DataFrame({"smoker": x[:, 0], "older": x[:, 1], "claim": claim.astype(int)})


def maximum_likelihood(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of the logistic regression, and their squared standard errors."""
    X = np.column_stack([np.ones(len(frame)), frame[["smoker", "older"]].to_numpy(float)])
    y, beta = frame["claim"].to_numpy(float), np.zeros(3)
    for _ in range(25):
        p = 1 / (1 + np.exp(-X @ beta))
        information = (X * (p * (1 - p))[:, None]).T @ X
        beta = beta + np.linalg.solve(information, X.T @ (y - p))
    return beta, np.diag(np.linalg.inv(information))


def coverage(repeats: int) -> dict[str, Any]:
    """Over simulated data sets, a new release of each."""
    arms = {
        method: MarginalInference(logistic, method=method, law="tables", num_steps=600, num_starts=1)
        for method in ("svi", "nuts")
    }
    hits: dict[str, list[np.ndarray]] = {}
    widths: dict[str, list[np.ndarray]] = {}
    for seed in tqdm(range(repeats), desc="coverage", disable=None):
        frame, key = simulated(seed), jax.random.key(seed)
        ids = np.arange(NUM_RECORDS)
        held = {party: frame[list(part.columns)].assign(id=ids) for party, part in SCHEMA.parties.items()}
        dataset = VerticalDataset.from_frames(SCHEMA, held)
        release = release_marginals(dataset, VertiMRF().plan(dataset, epsilon=1.0))
        posteriors = {name: arm.fit(release, key, progress_bar=False) for name, arm in arms.items()}
        intervals = {
            name: np.quantile(np.asarray(p.sample(key, 1000)["beta"]), [0.025, 0.975], axis=0)
            for name, p in posteriors.items()
        }
        twins = posteriors["svi"].sample_synthetic(rng_key=key, num_tables=TABLES)
        fits = [maximum_likelihood(twin) for twin in twins]
        combined = combine_estimates([beta for beta, _ in fits], [variance for _, variance in fits])
        intervals["rubin"] = np.stack(combined.interval())
        exact, variances = maximum_likelihood(frame)
        intervals["exact"] = np.stack([exact - 1.96 * np.sqrt(variances), exact + 1.96 * np.sqrt(variances)])
        for name, (low, high) in intervals.items():
            hits.setdefault(name, []).append((low < TRUTH) & (high > TRUTH))
            widths.setdefault(name, []).append(high - low)
    return {
        "coverage": {name: float(np.mean(found)) for name, found in hits.items()},
        "coverage_error": {name: float(sem(np.mean(found, axis=1))) for name, found in hits.items()},
        "width": {name: float(np.median(found)) for name, found in widths.items()},
    }


def figure(results: Mapping[str, Any]) -> dict[str, Figure]:
    """Distance by epsilon, both arms."""
    if "tvd3" not in results:
        return {}
    drawn = Figure(figsize=(6, 4), layout="constrained")
    axes = drawn.subplots()
    for name, arms in results["tvd3"].items():
        for arm in ("secure_marginals", "mixture"):
            points = sorted((float(epsilon), value) for epsilon, value in arms[arm].items())
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{name}, {arm.replace('_', ' ')}")
    axes.set(xscale="log", yscale="log", xlabel="ε against everyone", ylabel="mean TVD of 3-way tables (not DP)")
    axes.legend()
    return {"marginal_inference_tvd": drawn}


def main() -> None:
    """Run the chosen parts."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--only", nargs="+", choices=("twins", "coverage"), help="some parts; --json keeps the other"
    )
    arguments.add_argument("--repeats", type=int, help="releases of every epsilon (5; quick: 1)")
    arguments.add_argument("--data-sets", type=int, help="simulated data sets (1,000; quick: 4)")
    args = arguments.parse_args()
    chosen = args.only or ("twins", "coverage")
    results = environment()
    if "coverage" in chosen:
        results |= coverage(args.data_sets or (4 if args.quick else 1000))
    if "twins" in chosen:
        results |= twins(args.repeats or (1 if args.quick else 5), quick=args.quick)
    finish(results, args, figure(with_stored(results, args)))


if __name__ == "__main__":
    main()
