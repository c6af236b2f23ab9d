"""Logistic regression across parties as a NumPyro model (`party_sum`), beside other private logistic regressions.

    VERTINUMPYRO_DATA=... python benchmarks/glm.py --quick
    python benchmarks/glm.py --json results/glm.json [--only adult dutch] [--methods vertical_glm] [--peer PYTHON]
    python benchmarks/glm.py --only visits processes

Adult and the Dutch census, 80/20 splits, medians over repeats. In `party_sum` and `functional` epsilon at delta = 1e-5
holds against everyone: the outside analyst and both parties, one record replaced, N public; their noise comes from the
system's CSPRNG. The other private methods pool the columns, so that somebody sees all of them, and epsilon is for the
outside analyst alone. Accuracy and area under the ROC curve are of test records: evaluations on real records, not DP.

Methods: party_sum    a NumPyro model by DPVI: a normal prior on a coefficient for each value of a discrete column, and
                      on a slope for each column with an order. One rule for both tables and every epsilon:
                      all records in each of T = 200 steps, as towards parties sub-sampling buys nothing, and noise of
                        T steps that is averaged costs what noise of one does
                      clip norm C = 0.4 sqrt(columns): a record is clipped where its label had a probability below about
                        0.6, as its gradient's norm is the residual times sqrt(columns)
                      Adam with one scale for all coefficients, as the noise is the same in all of them, and rate
                        1 / sqrt(T), cosine: gradients that are noise alone move a coefficient by some 0.6, less than
                        its prior's standard deviation of 1
         moments      the same model and clip norm with `warm_start=SecondMoments()`: 20 steps by noisy second moments
         vertical_glm `VerticalGLM` with its defaults: a coefficient for each number or for each value, 20 steps by
                      noisy second moments
         functional   `VerticalLogisticRegression`, discrete Gaussian noise
         dp_sgd       DP-SGD by `optax.contrib`, pooled, on the columns of `party_sum`: Poisson batches of N / 30,
                      1,000 steps, one record replaced, calibrated by dp-accounting's privacy loss distributions; clip
                      norm and optimiser as in `party_sum`, with its own T. Noise of `jax.random`
         diffprivlib  its logistic regression, pooled, pure epsilon, add/remove (the weaker relation), on the functional
                      mechanism's features, rows bounded by the norm of their groups; C = 0.001, 0.01 and 1, by epsilon.
                      Null where it is not installed: `pip install diffprivlib "scikit-learn<1.7"`, see --peer
         non_private  scikit-learn's logistic regression on the functional mechanism's features

The settings were tried on other splits of the two tables, which no epsilon covers.

Keys: glm             {data: {epsilon: {method: {accuracy, auc}}}}, medians
      glm_repeats     the same, of every repeat
      glm_seconds     {data: {method: seconds of a fit}}, medians; other programs may run
      glm.visits      {epsilon: {vertical_glm, adam: D2 of test records}}, medians: Poisson, visits to a doctor by
                      health (RAND HIE, the table of glm_intervals.py), `VerticalGLM` with its 20 steps and 200 of Adam
      glm.processes   {seconds, rounds, bytes, dealer_bytes, mib, num_steps, accuracy} of a fit of `VerticalGLM` on all
                      of Adult, each party in a process of its own under CrypTen, on this machine without a network:
                      from the first question to what is released; bytes that a party sends to the other and that it
                      gets from the dealer; the largest peak memory of a party; accuracy on the same records, not DP.
                      Null without the extra `crypten`
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import optax.contrib
from common import environment, finish, median, parser, peak_mib, written
from dp_accounting.pld import PLDAccountant
from functional_mechanism import DELTA, EPSILONS, LOGISTIC, first, peer_scores, private_fit
from glm_intervals import SCHEMA, table
from numpyro import handlers
from numpyro.infer.autoguide import AutoDelta
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from tqdm.auto import tqdm

import vertinumpyro as vnp
from vertinumpyro.data import Schema, TableFacts, VerticalDataset
from vertinumpyro.data.datasets import load_adult
from vertinumpyro.glm import VerticalGLM
from vertinumpyro.posterior import TwinWarning
from vertinumpyro.regression import VerticalLogisticRegression
from vertinumpyro.regression.features import FeatureLayout, scaled
from vertinumpyro.regression.glm_settings import one_scale_adam
from vertinumpyro.secure import Crypten
from vertinumpyro.session import PartyTask, ProcessSession

NUM_STEPS, CLIP_FACTOR = 200, 0.4
SGD_STEPS, SGD_BATCHES = 1000, 30  # N / 30 records a batch
PEER_STRENGTHS = (0.001, 0.01, 1.0)


def clip_norm(schema: Schema) -> float:
    """From the number of columns alone."""
    return CLIP_FACTOR * math.sqrt(len(schema.columns))


def model(data: Mapping[str, Any], num_records: int, schema: Schema, label: str) -> None:
    """Every party adds up its own columns' coefficients, the label's party the intercept."""
    owner, parts = schema.party_of(label), {}
    for party in schema.parties:
        part: Any = numpyro.sample("intercept", dist.Normal(0.0, 1.0)) if party == owner else jnp.zeros(())
        for name in schema.column_names(party):
            column = schema.columns[name]
            if name == label:
                continue
            if column.ordered:
                low, high = column.encoded_range
                slope: Any = numpyro.sample(f"{name}_slope", dist.Normal(0.0, 1.0))
                part = part + slope * (2 * data[name] - (low + high)) / (high - low)
            if column.num_values is not None:
                values = dist.Normal(0.0, 1.0).expand([column.num_values]).to_event(1)
                coefs: Any = numpyro.sample(f"{name}_coef", values)
                part = part + coefs[jnp.asarray(data[name], int)]
        parts[party] = part
    eta = vnp.party_sum("eta", parts)
    with vnp.party_plate(owner, num_records):
        numpyro.sample(label, dist.Bernoulli(logits=eta), obs=data[label])


def design(dataset: VerticalDataset, label: str) -> np.ndarray:
    """The model's columns of pooled records `[N, d]`, the intercept's first."""
    parts, data = [np.ones((dataset.num_records, 1))], dataset.pooled()
    for name, column in dataset.schema.columns.items():
        if name != label and column.ordered:
            parts.append(scaled(column, data[name])[:, None])
        if name != label and column.num_values is not None:
            parts.append(np.eye(column.num_values)[data[name]])
    return np.concatenate(parts, 1).astype(np.float32)


def party_sum_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> np.ndarray:
    """Log odds of the test records, by 200 steps of Adam."""
    adam = one_scale_adam(NUM_STEPS, 1 / math.sqrt(NUM_STEPS))
    settings = {"optimizer": adam, "guide": AutoDelta, "warm_start": False}
    return model_scores(settings, train, test, label, epsilon, num_steps=NUM_STEPS, batch_size=train.num_records)


def moments_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> np.ndarray:
    """Log odds of the test records, by few steps."""
    return model_scores({"warm_start": vnp.SecondMoments()}, train, test, label, epsilon)


def model_scores(
    inference: Mapping[str, Any],
    train: VerticalDataset,
    test: VerticalDataset,
    label: str,
    epsilon: float,
    **steps: Any,
) -> np.ndarray:
    """Log odds of the test records by the NumPyro model."""
    settings: dict[str, Any] = {"schema": train.schema, "label": label}
    dpvi = vnp.DPVI(model, model_kwargs=settings, **inference)
    plan = dpvi.plan(train, epsilon=epsilon, delta=DELTA, clip_norm=clip_norm(train.schema), **steps)
    assert plan.worst.epsilon <= epsilon
    posterior = dpvi.fit(train, plan, jax.random.key(0), progress_bar=False)
    point = {name: value[0] for name, value in posterior.sample(jax.random.key(0), 1).items()}
    seeded = handlers.seed(handlers.substitute(functools.partial(model, **settings), data=point), 0)
    trace = handlers.trace(seeded).get_trace(test.pooled(), test.num_records)
    return np.asarray(trace[label]["fn"].logits)


def vertical_glm_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> np.ndarray:
    """Log odds of the test records."""
    fitted = private_fit(VerticalGLM(label=label), train, label, epsilon, delta=DELTA)
    return fitted.linear_predictor(test)


@functools.cache
def sgd_noise(epsilon: float) -> float:
    """Noise multiplier of DP-SGD for one record replaced."""

    def event(sigma: float) -> dp_accounting.DpEvent:
        one = dp_accounting.PoissonSampledDpEvent(1 / SGD_BATCHES, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(one, SGD_STEPS)

    replace = functools.partial(PLDAccountant, dp_accounting.NeighboringRelation.REPLACE_ONE)
    return dp_accounting.calibrate_dp_mechanism(
        replace, event, epsilon, DELTA, dp_accounting.ExplicitBracketInterval(0.7, 100.0), tol=1e-3
    )


def dp_sgd_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> np.ndarray:
    """Log odds of the test records; the batches are padded with records that are all zero."""
    x, y, rng = design(train, label), np.asarray(train.pooled()[label], np.float32), np.random.default_rng()
    sizes = rng.binomial(len(x), 1 / SGD_BATCHES, SGD_STEPS)
    batches = np.full((SGD_STEPS, sizes.max()), len(x), np.int32)
    for batch, size in zip(batches, sizes, strict=True):
        batch[:size] = rng.choice(len(x), size, replace=False)
    x, y = jnp.asarray(np.vstack([x, np.zeros_like(x[:1])])), jnp.asarray(np.append(y, 0))
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(
            clip_norm(train.schema), sgd_noise(epsilon), jax.random.key(int(rng.integers(2**31)))
        ),
        optax.scale(batches.shape[1] * SGD_BATCHES / (len(x) - 1)),  # of a mean over the padded batch
        one_scale_adam(SGD_STEPS, 1 / math.sqrt(SGD_STEPS)),
    )
    loss = lambda w, row, outcome: optax.sigmoid_binary_cross_entropy(row @ w["w"], outcome)  # noqa: E731

    def step(carry: Any, batch: jax.Array) -> Any:
        w, state = carry
        updates, state = optimizer.update(jax.vmap(jax.grad(loss), (None, 0, 0))(w, x[batch], y[batch]), state, w)
        return (optax.apply_updates(w, updates), state), None

    start = {"w": jnp.zeros(x.shape[1])}
    (w, _), _ = jax.jit(lambda: jax.lax.scan(step, (start, optimizer.init(start)), jnp.asarray(batches)))()
    return design(test, label) @ np.asarray(w["w"])


def functional_scores(train: VerticalDataset, test: VerticalDataset, label: str, epsilon: float) -> tuple[Any, Any]:
    """Scores of the test records, and their predicted classes, which the estimator cuts off by itself."""
    fitted = private_fit(VerticalLogisticRegression(), train, label, epsilon, delta=DELTA)
    return fitted.decision_function(test), fitted.predict(test)


METHODS: Mapping[str, Callable[..., Any]] = {
    "party_sum": party_sum_scores,
    "moments": moments_scores,
    "vertical_glm": vertical_glm_scores,
    "functional": functional_scores,
    "dp_sgd": dp_sgd_scores,
}


def judged(truth: np.ndarray, scores: np.ndarray, classes: np.ndarray | None = None) -> dict[str, float]:
    """Accuracy and area under the curve."""
    right = np.mean(np.asarray(scores > 0 if classes is None else classes) == truth)
    return {"accuracy": float(right), "auc": float(roc_auc_score(truth, scores))}


def of_split(
    train: VerticalDataset, test: VerticalDataset, label: str, peer: str, methods: Sequence[str]
) -> tuple[dict, dict[str, list[float]]]:
    """{epsilon: {method: {accuracy, auc}}} of one split, and seconds."""
    y, truth = train.pooled()[label], test.pooled()[label]
    layout = FeatureLayout.of(train.schema, label)
    x, x_test = layout.encode_features(train), layout.encode_features(test)
    without = judged(truth, LogisticRegression(max_iter=300).fit(x, y).decision_function(x_test))
    peers = peer_scores(peer, x, y, x_test, math.sqrt(len(layout.feature_groups)), PEER_STRENGTHS)
    if peers is None:
        warnings.warn('no diffprivlib there: pip install diffprivlib "scikit-learn<1.7", see --peer', stacklevel=2)
    found: dict[float, dict[str, dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    for epsilon in EPSILONS:
        missing = dict.fromkeys(without, math.nan)
        found[epsilon] = {
            "non_private": without,
            "diffprivlib": missing if peers is None else judged(truth, peers[epsilon]),
        }
        for method in methods:
            started = time.perf_counter()
            scores = METHODS[method](train, test, label, epsilon)
            seconds[method].append(time.perf_counter() - started)
            found[epsilon][method] = judged(truth, *scores) if isinstance(scores, tuple) else judged(truth, scores)
    return found, seconds


def processes(quick: bool) -> dict[str, float | None]:
    """A fit on Adult at parties in processes of their own, at epsilon = 1 for everyone."""
    keys = ("seconds", "rounds", "bytes", "dealer_bytes", "mib", "num_steps", "accuracy")
    if Crypten().missing() is not None:
        return dict.fromkeys(keys)
    dataset = first(load_adult(layout="with_income"), 2_000 if quick else None)
    build = functools.partial(VerticalGLM, label="income", backend=Crypten())
    model = build()
    plan = model.plan(TableFacts(dataset.schema, dataset.num_records), epsilon=1.0, delta=DELTA)
    with tempfile.TemporaryDirectory(prefix="glm-") as folder:
        files = written(dataset, Path(folder))
        parties = [
            PartyTask(party=p, schema=dataset.schema.to_dict(), table=files.paths[p], build=build)
            for p in dataset.schema.parties
        ]
        with ProcessSession(parties, timeout_s=600.0) as session:
            started = time.perf_counter()
            model.fit(session, plan=plan, run_dir=Path(folder) / "run")
            seconds, peaks = time.perf_counter() - started, [peak_mib(pid) for pid in session.pids[: len(parties)]]
        traffic, dealt = session.traffic, session.dealer_traffic.bytes_received
    found = (seconds, traffic.rounds, traffic.bytes_sent, dealt, max(peaks), plan.num_steps, model.score(dataset))
    return dict(zip(keys, found, strict=True))


def visits(repeats: int, quick: bool) -> dict[float, dict[str, float]]:
    """Of a count, by few steps and by many."""
    whole = VerticalDataset.from_pooled(SCHEMA, table(4_000 if quick else None))
    found: dict[float, dict[str, list[float]]] = {epsilon: {"vertical_glm": [], "adam": []} for epsilon in EPSILONS}
    for repeat in tqdm(range(repeats), desc="visits", unit="split"):
        train, test = whole.split(0.8, repeat)
        for epsilon, (name, curvature) in itertools.product(EPSILONS, {"vertical_glm": True, "adam": False}.items()):
            model = VerticalGLM(family="poisson", label="visits", linear=["diseases"], curvature=curvature)
            model.fit(train, plan=model.plan(train, epsilon=epsilon, delta=DELTA))
            found[epsilon][name].append(model.score(test))
    return {epsilon: {name: median(scores) for name, scores in by.items()} for epsilon, by in found.items()}


def main() -> None:
    """Runs the parts that were asked for."""
    made = parser(__doc__)
    parts = (*LOGISTIC, "visits", "processes")
    made.add_argument("--only", nargs="+", choices=parts, default=list(parts), metavar="PART", help=", ".join(parts))
    made.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS), metavar="METHOD")
    made.add_argument("--repeats", type=int, default=None, metavar="R", help="splits; 10, or 1 with --quick")
    made.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="an interpreter with diffprivlib, which "
                      "needs scikit-learn below 1.7 (default: this one)")  # fmt: skip
    args = made.parse_args()
    repeats = args.repeats or (1 if args.quick else 10)
    results: dict[str, Any] = {"glm": {}, "glm_repeats": {}, "glm_seconds": {}, "environment": environment()}
    if "visits" in args.only:
        results["glm"]["visits"] = visits(repeats, args.quick)
    if "processes" in args.only:
        results["glm"]["processes"] = processes(args.quick)
    for name in [name for name in args.only if name in LOGISTIC]:
        whole, label = LOGISTIC[name]()
        whole = first(whole, 4_000 if args.quick else None)
        splits, seconds = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwinWarning)
            for repeat in tqdm(range(repeats), desc=name, unit="split"):
                found, took = of_split(*whole.split(0.8, repeat), label, args.peer, args.methods)
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
