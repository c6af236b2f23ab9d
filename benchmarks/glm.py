"""Logistic regression across parties as a NumPyro model (`party_sum`), beside the vertical functional mechanism.

    VERTINUMPYRO_DATA=... python benchmarks/glm.py --quick
    python benchmarks/glm.py --json results/glm.json [--only adult dutch] [--repeats 10]

Adult and the Dutch census, 80/20 splits, medians over repeats. epsilon at delta = 1e-5 holds against everyone in every
private method: the outside analyst and both parties, one record replaced, N public. Accuracy and area under the ROC
curve are of test records: evaluations on real records, not DP. Noise comes from the system's CSPRNG.

Methods: party_sum    a NumPyro model by DPVI: a normal prior on a coefficient for each real column and for each value
                      of all others, all records in each of 30 steps, the same settings for both tables and all epsilon
         functional   `VerticalLogisticRegression`, discrete Gaussian noise
         non_private  scikit-learn's logistic regression on the functional mechanism's features

Keys: glm             {data: {epsilon: {method: {accuracy, auc}}}}, medians
      glm_repeats     the same, of every repeat
      glm_seconds     {data: {method: seconds of a fit}}, medians; other programs may run
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from common import environment, finish, median, parser
from functional_mechanism import DELTA, EPSILONS, LOGISTIC, first, private_fit
from numpyro import handlers
from numpyro.infer.autoguide import AutoDelta
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from tqdm.auto import tqdm

import vertinumpyro as vnp
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.posterior import TwinWarning
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.features import FeatureLayout

NUM_STEPS, CLIP_NORM, LEARNING_RATE = 30, 2.0, 0.2


def model(data: Mapping[str, Any], num_records: int, schema: Schema, label: str) -> None:
    """Every party adds up its own columns' coefficients, the label's party the intercept."""
    owner, parts = schema.party_of(label), {}
    for party in schema.parties:
        part: Any = numpyro.sample("intercept", dist.Normal(0.0, 2.0)) if party == owner else jnp.zeros(())
        for name in schema.column_names(party):
            size = schema.columns[name].num_values
            if name == label:
                continue
            if size is None:
                coef: Any = numpyro.sample(f"{name}_coef", dist.Normal(0.0, 1.0))
                part = part + coef * (data[name] - 0.5)
            else:
                coefs: Any = numpyro.sample(f"{name}_coef", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
                part = part + coefs[jnp.asarray(data[name], int)]
        parts[party] = part
    eta = vnp.party_sum("eta", parts)
    with vnp.party_plate(owner, num_records):
        numpyro.sample(label, dist.Bernoulli(logits=eta), obs=data[label])


def party_sum_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> np.ndarray:
    """Log odds of the test records."""
    settings: dict[str, Any] = {"schema": train.schema, "label": label}
    dpvi = vnp.DPVI(model, guide=AutoDelta, learning_rate=LEARNING_RATE, model_kwargs=settings, warm_start=False)
    plan = dpvi.plan(
        train, epsilon=epsilon, delta=DELTA, num_steps=NUM_STEPS, batch_size=train.num_records, clip_norm=CLIP_NORM
    )
    assert plan.worst.epsilon <= epsilon
    posterior = dpvi.fit(train, plan, jax.random.PRNGKey(0), progress_bar=False)
    point = {name: value[0] for name, value in posterior.sample(jax.random.PRNGKey(0), 1).items()}
    seeded = handlers.seed(handlers.substitute(functools.partial(model, **settings), data=point), 0)
    trace = handlers.trace(seeded).get_trace(test.pooled(), test.num_records)
    return np.asarray(trace[label]["fn"].logits)


def functional_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> tuple[Any, Any]:
    """Scores of the test records, and their predicted classes, which the estimator cuts off by itself."""
    fitted = private_fit(VerticalLogisticRegression(), train, label, epsilon, delta=DELTA)
    return fitted.decision_function(test), fitted.predict(test)


def of_split(train: VerticalDataset, test: VerticalDataset, label: str) -> tuple[dict, dict[str, list[float]]]:
    """{epsilon: {method: {accuracy, auc}}} of one split, and seconds."""
    y, truth = train.pooled()[label], test.pooled()[label]
    layout = FeatureLayout.of(train.schema, label)
    exact = LogisticRegression(max_iter=300).fit(layout.encode_features(train), y)
    scores = exact.decision_function(layout.encode_features(test))
    without = {"accuracy": float(np.mean((scores > 0) == truth)), "auc": float(roc_auc_score(truth, scores))}
    found: dict[float, dict[str, dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {"party_sum": [], "functional": []}
    for epsilon in EPSILONS:
        found[epsilon] = {"non_private": without}
        for method in seconds:
            started = time.perf_counter()
            if method == "party_sum":
                scores = party_sum_scores(train, test, label, epsilon)
                classes = scores > 0
            else:
                scores, classes = functional_scores(train, test, label, epsilon)
            seconds[method].append(time.perf_counter() - started)
            right = float(np.mean(np.asarray(classes) == truth))
            found[epsilon][method] = {"accuracy": right, "auc": float(roc_auc_score(truth, scores))}
    return found, seconds


def main() -> None:
    """Runs the parts that were asked for."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="+", choices=tuple(LOGISTIC), default=list(LOGISTIC), metavar="DATA")
    made.add_argument("--repeats", type=int, default=None, metavar="R", help="splits; 10, or 1 with --quick")
    args = made.parse_args()
    repeats = args.repeats or (1 if args.quick else 10)
    results: dict[str, Any] = {"glm": {}, "glm_repeats": {}, "glm_seconds": {}, "environment": environment()}
    for name in args.only:
        whole, label = LOGISTIC[name]()
        whole = first(whole, 4_000 if args.quick else None)
        splits, seconds = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwinWarning)
            for repeat in tqdm(range(repeats), desc=name, unit="split"):
                found, took = of_split(*whole.split(0.8, repeat), label)
                splits.append(found)
                seconds.append(took)
        results["glm_repeats"][name] = splits
        results["glm"][name] = {
            epsilon: {
                method: {score: median([split[epsilon][method][score] for split in splits]) for score in scores}
                for method, scores in by_method.items()
            }
            for epsilon, by_method in splits[0].items()
        }
        results["glm_seconds"][name] = {
            method: median([one for took in seconds for one in took[method]]) for method in seconds[0]
        }
    finish(results, args, {})


if __name__ == "__main__":
    main()
