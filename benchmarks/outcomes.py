"""Two outcomes at two parties: a model for each, or one model of both, whose coefficients know of each other.

    python benchmarks/outcomes.py --quick
    python benchmarks/outcomes.py --json results/outcomes.json

Simulated: 20,000 records, four uniform numbers from 0 to 1 at each of two parties, who was late at the bank and who
left at the telco, both logistic in all eight numbers. The outcomes' coefficients vary about common ones, which are
drawn from N(0, 1), with a standard deviation of 0.2. Ten such data sets, epsilon against everyone in total, delta =
1e-5, one record replaced, 150 steps of all records, no residual cut.

Methods: apart     two models with the privacy of one: sigma sqrt(2) each, as steps compose by their squares
         own       one model, each outcome with coefficients of its own
         mean      one model, each outcome's coefficients drawn about a common mean with a spread, both learned
         shared    one model, the same coefficients for both outcomes
         pooled    maximum likelihood of each outcome on pooled columns, not DP

Keys: error             {epsilon: {method: root of the mean square of estimate less truth, over coefficients; median
                        over the data sets}}
      sigma             {epsilon: the noise multiplier of one model}
      epsilon_worst     the largest of any adversary's row
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from common import environment, finish, parser
from tqdm.auto import tqdm

import vertinumpyro as vnp
from vertinumpyro.data import BinaryColumn, PartySchema, RealColumn, Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.posterior import TwinWarning

NUM_RECORDS, NUM_STEPS, SPREAD = 20_000, 150, 0.2
NUMBERS = {party: tuple(f"{party}_{i}" for i in range(4)) for party in ("bank", "telco")}
OUTCOMES = {"late": "bank", "left": "telco"}
SCHEMA = Schema(
    {
        party: PartySchema(
            {name: RealColumn(bounds=(0, 1)) for name in names}
            | {name: BinaryColumn() for name, owner in OUTCOMES.items() if owner == party}
        )
        for party, names in NUMBERS.items()
    }
)
Rows = Sequence[Any]


def own() -> Rows:
    return [numpyro.sample(f"{name}_w", dist.Normal(0.0, 1.0).expand([8]).to_event(1)) for name in OUTCOMES]


def about_a_mean() -> Rows:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    return [numpyro.sample(f"{name}_w", dist.Normal(mean, spread).to_event(1)) for name in OUTCOMES]


def shared() -> Rows:
    return [numpyro.sample("w", dist.Normal(0.0, 1.0).expand([8]).to_event(1))] * len(OUTCOMES)


def model_of(coefficients: Callable[[], Rows], observed: Sequence[str]) -> Callable[..., None]:
    def model(data: Any, num_records: int) -> None:
        for name, w in zip(OUTCOMES, coefficients(), strict=True):
            if name not in observed:
                continue
            parts = {
                party: sum(data[column] * w[4 * place + i] for i, column in enumerate(columns))
                for place, (party, columns) in enumerate(NUMBERS.items())
            }
            eta = vnp.party_sum(f"{name} eta", parts)
            with vnp.party_plate(OUTCOMES[name], num_records):
                numpyro.sample(name, dist.Bernoulli(logits=eta), obs=data[name])

    return model


def drawn(seed: int) -> tuple[VerticalDataset, np.ndarray]:
    """A data set and its true coefficients [2, 8]."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, 1, 8) + SPREAD * rng.normal(size=(2, 8))
    columns = VerticalDataset.example(SCHEMA, NUM_RECORDS, rng).pooled()
    eta = features(columns) @ truth.T
    late = rng.random(eta.shape) < 1 / (1 + np.exp(-eta))
    columns |= {name: late[:, i].astype(columns[name].dtype) for i, name in enumerate(OUTCOMES)}
    own_columns = {party: {n: columns[n] for n in SCHEMA.parties[party].columns} for party in SCHEMA.parties}
    return VerticalDataset(SCHEMA, own_columns), truth


def features(columns: Any) -> np.ndarray:
    return np.stack([columns[name] for names in NUMBERS.values() for name in names], axis=-1)


def fitted(coefficients: Callable[[], Rows], observed: Sequence[str], dataset: VerticalDataset, **privacy: Any) -> Any:
    """The posterior means of `observed`'s coefficients [outcomes, 8], and the plan."""
    dpvi = DPVI(model_of(coefficients, observed), learning_rate=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TwinWarning)
        plan = dpvi.plan(dataset, residual_bound=1.0, num_steps=NUM_STEPS, batch_size=NUM_RECORDS, **privacy)
        posterior = dpvi.fit(dataset, plan, jax.random.key(0), progress_bar=False)
    sites = {site: np.asarray(draws.mean(0)) for site, draws in posterior.sample(jax.random.key(1), 500).items()}
    return np.stack([sites["w" if "w" in sites else f"{name}_w"] for name in observed]), plan


def maximum_likelihood(dataset: VerticalDataset) -> np.ndarray:
    columns = dataset.pooled()
    X, found = features(columns), []
    for name in OUTCOMES:
        w = np.zeros(8)
        for _ in range(10):
            mean = 1 / (1 + np.exp(-X @ w))
            w += np.linalg.solve((X.T * (mean * (1 - mean))) @ X, X.T @ (columns[name] - mean))
        found.append(w)
    return np.stack(found)


def estimates(dataset: VerticalDataset, epsilon: float) -> tuple[dict[str, np.ndarray], Any]:
    found: dict[str, np.ndarray] = {"pooled": maximum_likelihood(dataset)}
    plan: Any = None
    for name, coefficients in (("shared", shared), ("mean", about_a_mean), ("own", own)):
        found[name], plan = fitted(coefficients, tuple(OUTCOMES), dataset, epsilon=epsilon)
    apart = [
        fitted(own, (name,), dataset, noise_multiplier=plan.noise_multiplier * np.sqrt(2).item())[0]
        for name in OUTCOMES
    ]
    return {**found, "apart": np.concatenate(apart)}, plan


def main() -> None:
    args = parser(__doc__).parse_args()
    budgets, seeds = ((1.0,), range(2)) if args.quick else ((0.5, 2.0), range(10))
    results: dict[str, Any] = {"error": {}, "sigma": {}, "epsilon_worst": 0.0, "environment": environment()}
    for epsilon in budgets:
        errors: dict[str, list[float]] = {}
        for seed in tqdm(seeds, desc=f"epsilon {epsilon:g}"):
            dataset, truth = drawn(seed)
            found, plan = estimates(dataset, epsilon)
            for method, rows in found.items():
                errors.setdefault(method, []).append(float(np.sqrt(((rows - truth) ** 2).mean())))
            results["sigma"][f"{epsilon:g}"] = plan.noise_multiplier
            results["epsilon_worst"] = max(results["epsilon_worst"], plan.epsilon())
        results["error"][f"{epsilon:g}"] = {method: float(np.median(values)) for method, values in errors.items()}
    finish(results, args, {})


if __name__ == "__main__":
    main()
