"""Reproduces the evaluation of the functional mechanism's paper: Adult, Dutch census, linear regression, run time.

    VERTINUMPYRO_DATA=... python benchmarks/functional_mechanism.py --quick
    python benchmarks/functional_mechanism.py --json results/functional_mechanism.json [--only adult linear ...]

80/20 splits, ten repeats; one record may be replaced, N public. Accuracy and mean squared error (MSE, label in
[-1, 1]) are of test records: evaluations on real records, not DP. Noise comes from the system's CSPRNG.

Methods: non_private   scikit-learn's logistic, or least-squares, regression on the same features
         paper         the paper's sensitivity and coefficients, pure epsilon, ridge of 4 standard deviations
         pure          ours, discrete Laplace, the library's defaults: whole noise towards each of the parties, too
         pure_analyst  ours, discrete Laplace, calibrated towards an outside analyst alone, as the paper's
         gaussian      ours, (epsilon, 1e-5), towards everyone
         gaussian_analyst  ours, (epsilon, 1e-5), calibrated towards an outside analyst alone
         majority      the most frequent class; the mean label in linear regression
         peer          diffprivlib's logistic regression, pooled, pure epsilon, add/remove (the weaker relation), rows
                       bounded by the norm of their groups; null where it is not installed (see --peer)

Keys: adult, dutch   {method: {epsilon: mean accuracy}}; adult_std, dutch_std the standard deviations over repeats
      parties        {dataset: {K: mean accuracy}} of `gaussian_analyst` at epsilon = 1, K = 1, 2, 4, 8 (Claim 1)
      surrogates     {dataset: {surrogate: {curvature, log_loss, slope}}}: the logistic surrogates without noise to
                     speak of (epsilon = 1000) beside the exact logistic fit; slope: regression of exact scores on the
                     surrogate's, 1 without bias of scale
      linear         {dataset: {method: {epsilon: mean MSE}}}, abalone and both wines, ten repeats
      synthetic      {sparsity: {method: MSE, signal: ...}}: the paper's 80,000 x 800 sets at epsilon = 1, one split
      runtime        seconds: xtx (float64, one matrix product), fit and release by backend, their ratios to xtx;
                     the same of processor time (`_processor`), which other programs disturb less. All on one BLAS
                     thread: threads that wait for each other on a shared machine would be timed instead
      coverage       {mean, by_coefficient, runs}: share of 95% intervals that hold the true coefficient, 200 runs
      functional_mechanism.png

`--quick` keeps every key with fewer repeats, records and features.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from common import among_parties, environment, finish, median, parser
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits
from tqdm.auto import tqdm

from vertinumpyro.data import (
    BinaryColumn,
    CategoricalColumn,
    PartySchema,
    RealColumn,
    Schema,
    VerticalDataset,
    load_abalone,
    load_adult,
    load_dutch,
    load_wine,
)
from vertinumpyro.evaluation.plot_style import LINE_STYLES, MARKERS, MUTED, SERIES, grid, new_figure, styled
from vertinumpyro.privacy import OUTSIDE_ANALYST
from vertinumpyro.regression import NoisyFitWarning, VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression.features import FeatureLayout, scaled
from vertinumpyro.regression.noisy_moments import MOMENTS, noisy_moments
from vertinumpyro.secure.fixed_point import FixedPoint
from vertinumpyro.secure.plaintext import Plaintext
from vertinumpyro.session import InProcessSession

EPSILONS, DELTA = (0.1, 1.0, 10.0), 1e-5
PAPER_ADULT = {0.1: 0.6412, 1.0: 0.7315, 10.0: 0.8132}
PAPER_DUTCH = {0.1: 0.5783, 1.0: 0.7166, 10.0: 0.8105}
PRIVATE: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {  # the estimator's settings, the plan's
    "paper": ({"estimator": "minimiser", "ridge": 4.0}, {"sensitivity": "paper", "adversary": OUTSIDE_ANALYST}),
    "pure": ({}, {}),
    "pure_analyst": ({}, {"adversary": OUTSIDE_ANALYST}),
    "gaussian": ({}, {"delta": DELTA}),
    "gaussian_analyst": ({}, {"delta": DELTA, "adversary": OUTSIDE_ANALYST}),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of the run."""

    repeats: int = 10
    records: int | None = None
    synthetic: tuple[int, int] = (80_000, 800)
    sparsities: tuple[float, ...] = (0.1, 0.5, 1.0)
    rounds: int = 3
    coverage_runs: int = 200
    peer: str = sys.executable


# -- data -----------------------------------------------------------------------------------------


def adult() -> tuple[VerticalDataset, str]:
    """All 45,222 complete records."""
    parts = [load_adult(layout="with_income", split=split) for split in ("train", "test")]
    arrays = {
        party: {name: np.concatenate([part.arrays(party)[name] for part in parts]) for name in parts[0].arrays(party)}
        for party in parts[0].parties
    }
    return VerticalDataset(parts[0].schema, arrays), "income"


LOGISTIC: Mapping[str, Callable[[], tuple[VerticalDataset, str]]] = {
    "adult": adult,
    "dutch": lambda: (load_dutch(), "occupation"),
}
LINEAR: Mapping[str, Callable[[], tuple[VerticalDataset, str]]] = {
    "abalone": lambda: (load_abalone(), "rings"),
    "wine_red": lambda: (load_wine("red"), "quality"),
    "wine_white": lambda: (load_wine("white"), "quality"),
}


def first(dataset: VerticalDataset, records: int | None) -> VerticalDataset:
    """A random part of the records, the same in every run."""
    if records is None or records >= dataset.num_records:
        return dataset
    return dataset.take(np.random.default_rng(0).permutation(dataset.num_records)[:records])


def synthetic(records: int, features: int, sparsity: float) -> tuple[VerticalDataset, np.ndarray]:
    """The paper's synthetic set at two parties, and its coefficients; x and w have a share `sparsity` of non-zeros.

    Non-zero x are uniform on [-1, 1], w normal; the label is divided by six standard deviations of x'w, clipped to
    [-1, 1], and carries normal residuals of standard deviation 0.05.
    """
    rng = np.random.default_rng(round(1000 * sparsity))
    w = rng.normal(size=features) * (rng.random(features) < sparsity)
    w /= 6 * np.sqrt(np.square(w).sum() * sparsity / 3)
    columns, y = {}, rng.normal(0, 0.05, records)
    for i in range(features):
        x = rng.uniform(-1, 1, records) * (rng.random(records) < sparsity)
        y += w[i] * x
        columns[f"x{i}"] = ((x + 1) / 2).astype(np.float32)
    columns["y"] = ((np.clip(y, -1, 1) + 1) / 2).astype(np.float32)
    names = list(columns)
    real, half = RealColumn(bounds=(-1.0, 1.0)), features // 2
    schema = Schema({p: PartySchema(dict.fromkeys(v, real)) for p, v in {"a": names[:half], "b": names[half:]}.items()})
    return VerticalDataset(schema, {p: {n: columns[n] for n in part.columns} for p, part in schema.parties.items()}), w


def label_values(dataset: VerticalDataset, label: str) -> np.ndarray:
    """The label in [-1, 1]."""
    return scaled(dataset.schema.columns[label], dataset.pooled()[label])


# -- logistic regression --------------------------------------------------------------------------


def private_fit(model: Any, dataset: VerticalDataset, label: str, epsilon: float, **plan: Any) -> Any:
    """One fit under a new plan; a fit that says it is noise only is a result, not an accident."""
    made = model.plan(dataset.schema, label, num_records=dataset.num_records, epsilon=epsilon, **plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoisyFitWarning)
        return model.fit(dataset, made)


def accuracies(dataset: VerticalDataset, label: str, settings: Settings, name: str) -> dict[str, Any]:
    """Accuracy of every method, by repeat."""
    found: dict[str, dict[float, list[float]]] = {m: {e: [] for e in EPSILONS} for m in (*PRIVATE, "non_private")}
    found |= {"majority": {e: [] for e in EPSILONS}, "peer": {e: [] for e in EPSILONS}}
    layout = FeatureLayout.of(dataset.schema, label)
    for repeat in tqdm(range(settings.repeats), desc=name, unit="split"):
        train, test = dataset.split(0.8, repeat)
        y, y_test = (part.pooled()[label] for part in (train, test))
        x, x_test = (layout.encode_features(part) for part in (train, test))
        exact = LogisticRegression(max_iter=300).fit(x, y).score(x_test, y_test)
        majority = float(np.mean(y_test == (y.mean() > 0.5)))
        norm = float(np.sqrt(len(layout.feature_groups)))
        peers = peer_accuracies(settings.peer, x, y, x_test, y_test, norm)
        for epsilon in EPSILONS:
            found["non_private"][epsilon].append(exact)
            found["majority"][epsilon].append(majority)
            found["peer"][epsilon].append(peers[epsilon])
            for method, (model, plan) in PRIVATE.items():
                fitted = VerticalLogisticRegression(backend=Plaintext(), **model)
                score = private_fit(fitted, train, label, epsilon, **plan).score(test)
                found[method][epsilon].append(score)
    means, stds = (
        {m: {e: float(statistic(v)) for e, v in by.items()} for m, by in found.items()}
        for statistic in (np.mean, np.std)
    )
    return {name: means, f"{name}_std": stds}


_PEER = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import LogisticRegression
data = np.load(sys.argv[1])
def scores(epsilon, C):
    model = LogisticRegression(epsilon=epsilon, data_norm=float(data["norm"]), max_iter=300, C=C)
    return model.fit(data["x"], data["y"]).decision_function(data["x_test"])
np.save(sys.argv[2], [scores(*pair) for pair in zip(data["epsilons"], data["strengths"])])
"""


def peer_scores(
    interpreter: str, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, norm: float, strengths: tuple[float, ...]
) -> dict[float, np.ndarray] | None:
    """diffprivlib's log odds of the test records, in an interpreter that has it; None where it does not.

    `strengths` are its settings C at each epsilon, the inverse of the ridge.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "split.npz", Path(folder) / "scores.npy"
        np.savez(path, x=x, y=y, x_test=x_test, norm=norm * (1 + 1e-9), epsilons=EPSILONS, strengths=strengths)
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [interpreter, "-c", _PEER, str(path), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        return None if done.returncode else dict(zip(EPSILONS, np.load(out), strict=True))


def peer_accuracies(
    interpreter: str, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, norm: float
) -> dict[float, float]:
    """diffprivlib's accuracies with its default C; not a number where it is not installed."""
    scores = peer_scores(interpreter, x, y, x_test, norm, (1.0,) * len(EPSILONS))
    if scores is None:
        return dict.fromkeys(EPSILONS, float("nan"))
    return {epsilon: float(np.mean((s > 0) == y_test)) for epsilon, s in scores.items()}


def over_parties(dataset: VerticalDataset, label: str, settings: Settings, name: str) -> dict[int, float]:
    """Mean accuracy at ε = 1 when the same columns lie at K parties."""
    found: dict[int, list[float]] = {K: [] for K in (1, 2, 4, 8)}
    for repeat in tqdm(range(settings.repeats), desc=f"{name}, parties", unit="split"):
        for K in found:
            train, test = among_parties(dataset, K).split(0.8, repeat)
            plan = PRIVATE["gaussian_analyst"][1]
            model = private_fit(VerticalLogisticRegression(backend=Plaintext()), train, label, 1.0, **plan)
            found[K].append(model.score(test))
    return {K: float(np.mean(values)) for K, values in found.items()}


def surrogate_bias(dataset: VerticalDataset, label: str) -> dict[str, dict[str, float]]:
    """Curvature, test log loss and slope of each surrogate beside the exact logistic fit, almost without noise."""
    train, test = dataset.split(0.8, 0)
    layout = FeatureLayout.of(dataset.schema, label)
    exact = LogisticRegression(max_iter=300).fit(layout.encode_features(train), train.pooled()[label])
    scores, y = exact.decision_function(layout.encode_features(test)), test.pooled()[label]
    loss = float(log_loss(y, exact.predict_proba(layout.encode_features(test))))
    out: dict[str, dict[str, float]] = {"exact": {"log_loss": loss, "slope": 1.0}}
    for surrogate in ("taylor", "range", "fitted"):
        made = VerticalLogisticRegression(surrogate=surrogate, backend=Plaintext())
        model = private_fit(made, train, label, 1000.0, delta=DELTA)
        own = model.decision_function(test)
        slope = float(np.cov(scores, own)[0, 1] / own.var())
        loss = float(log_loss(y, model.predict_proba(test)))
        out[surrogate] = {"curvature": model.curvature_, "log_loss": loss, "slope": slope}
    return out


# -- linear regression ----------------------------------------------------------------------------


def linear_errors(dataset: VerticalDataset, label: str, settings: Settings, name: str) -> dict[str, dict[float, float]]:
    """Mean test MSE of every method, label in [-1, 1]."""
    found: dict[str, dict[float, list[float]]] = {}
    layout = FeatureLayout.of(dataset.schema, label)
    for repeat in tqdm(range(settings.repeats), desc=name, unit="split"):
        train, test = dataset.split(0.8, repeat)
        y, y_test = label_values(train, label), label_values(test, label)
        exact = LinearRegression().fit(layout.encode_features(train), y)
        errors = {
            "non_private": np.mean((exact.predict(layout.encode_features(test)) - y_test) ** 2),
            "majority": np.mean((y.mean() - y_test) ** 2),
        }
        for epsilon in EPSILONS:
            for method, (model, plan) in PRIVATE.items():
                made = VerticalLinearRegression(backend=Plaintext(), **model)
                predicted = private_fit(made, train, label, epsilon, **plan).linear_predictor(test)
                errors[method] = np.mean((scaled(dataset.schema.columns[label], predicted) - y_test) ** 2)
            for method, error in errors.items():
                found.setdefault(method, {}).setdefault(epsilon, []).append(float(error))
    return {m: {e: float(np.mean(v)) for e, v in by.items()} for m, by in found.items()}


def synthetic_errors(settings: Settings, sparsity: float) -> dict[str, float]:
    """Test MSE at ε = 1 on one of the paper's synthetic sets."""
    dataset, _ = synthetic(*settings.synthetic, sparsity)
    train, test = dataset.split(0.8, 0)
    layout = FeatureLayout.of(dataset.schema, "y")
    y, y_test = label_values(train, "y"), label_values(test, "y")
    x, x_test = layout.encode_features(train), layout.encode_features(test)
    moments = np.column_stack([np.ones(len(x)), x])
    exact = np.linalg.solve(moments.T @ moments, moments.T @ y)
    del moments, x
    out = {
        "non_private": float(np.mean((x_test @ exact[1:] + exact[0] - y_test) ** 2)),
        "majority": float(np.mean((y.mean() - y_test) ** 2)),
    }
    del x_test
    for method, (model, plan) in PRIVATE.items():
        settings_of_model = {"estimator": "minimiser", **model}
        made = VerticalLinearRegression(backend=Plaintext(), **settings_of_model)
        fitted = private_fit(made, train, "y", 1.0, **plan)
        predicted = scaled(dataset.schema.columns["y"], fitted.linear_predictor(test))
        out[method] = float(np.mean((predicted - y_test) ** 2))
        out[f"{method}_status"] = fitted.status_
    return out


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time of all threads, which other programs disturb less."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def run_times(settings: Settings) -> dict[str, Any]:
    """Seconds of one float64 X'X, of the release and of the whole fit; medians of interleaved runs."""
    records, features = settings.synthetic
    dataset, _ = synthetic(records, features, 1.0)
    x = FeatureLayout.of(dataset.schema, "y").encode_features(dataset)

    def plan(model: VerticalLinearRegression) -> Any:
        return model.plan(dataset.schema, "y", num_records=records, epsilon=1.0, delta=DELTA)

    def release(backend: Any) -> Any:
        method = VerticalLinearRegression(backend=backend)
        session = InProcessSession(dataset, backend)
        of_one_fit = plan(method)
        with session.open(method, of_one_fit, run_dir=None, results=MOMENTS) as run:
            return noisy_moments(session, run, of_one_fit)

    def fit() -> Any:
        model = VerticalLinearRegression(estimator="minimiser", backend=Plaintext())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoisyFitWarning)
            return model.fit(dataset, plan(model))

    arms = {"xtx": lambda: x.T @ x, "release_plaintext": lambda: release(Plaintext()), "fit_plaintext": fit}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    with threadpool_limits(1):
        for index in range(-1, settings.rounds):  # once before the clock runs
            for name, run in arms.items():
                seconds = timed(run)
                if index >= 0:
                    times[name].append(seconds)
        times["release_fixed_point"] = [timed(lambda: release(FixedPoint()))]
    out: dict[str, Any] = {"records": records, "features": features}
    for i, kind in enumerate(("", "_processor")):
        seconds_of = {name: median([pair[i] for pair in pairs]) for name, pairs in times.items()}
        out |= {f"{name}{kind}": seconds for name, seconds in seconds_of.items()}
        out |= {f"{name}_over_xtx{kind}": s / seconds_of["xtx"] for name, s in seconds_of.items() if name != "xtx"}
    return out


# -- coverage -------------------------------------------------------------------------------------

_UNIT = RealColumn(bounds=(0.0, 1.0))
_SCHEMA = Schema(
    {
        "hospital": PartySchema({"age": _UNIT, "bmi": _UNIT, "ward": CategoricalColumn(categories=("a", "b", "c"))}),
        "bank": PartySchema({"income": _UNIT, "owner": BinaryColumn(), "debt": _UNIT}),
    }
)
_TRUTH = np.array([0.05, 0.3, -0.2, 0.1, -0.15, 0.05, 0.25, -0.1])


def drawn_table(records: int, rng: np.random.Generator) -> VerticalDataset:
    """Records of a linear model with the coefficients `_TRUTH` and residuals of standard deviation 0.1."""
    age, income = rng.beta(2, 2, records), rng.beta(2, 4, records)
    bmi, ward = 0.5 * age + 0.5 * rng.beta(2, 3, records), rng.choice(3, records, p=[0.5, 0.3, 0.2])
    owner = (rng.random(records) < 0.3 + 0.4 * income).astype(np.int32)
    x = [np.ones(records), 2 * age - 1, 2 * bmi - 1, np.eye(3)[ward], 2 * income - 1, 2 * owner - 1]
    debt = (np.clip(np.column_stack(x) @ _TRUTH + rng.normal(0, 0.1, records), -1, 1) + 1) / 2
    hospital = {"age": age.astype(np.float32), "bmi": bmi.astype(np.float32), "ward": ward.astype(np.int32)}
    bank = {"income": income.astype(np.float32), "owner": owner, "debt": debt.astype(np.float32)}
    return VerticalDataset(_SCHEMA, {"hospital": hospital, "bank": bank})


def coverage(settings: Settings) -> dict[str, Any]:
    """Share of noise-aware 95% intervals that hold the truth: 20,000 records, ε = 0.5, δ = 1e-5."""
    hits = []
    for seed in tqdm(range(settings.coverage_runs), desc="coverage", unit="run"):
        dataset = drawn_table(20_000, np.random.default_rng(seed))
        model = private_fit(VerticalLinearRegression(backend=Plaintext()), dataset, "debt", 0.5, delta=DELTA)
        low, high = model.intervals().T
        truth = _TRUTH / 2 + np.r_[0.5, np.zeros(len(_TRUTH) - 1)]  # predictions are in (0, 1), the truth in [-1, 1]
        hits.append((low <= truth) & (truth <= high))
    return {"mean": np.mean(hits), "by_coefficient": np.mean(hits, axis=0), "runs": settings.coverage_runs}


# -- figure and command line ----------------------------------------------------------------------

LINES = {
    "non_private": ("not private", MUTED, ":"),
    "majority": ("majority class", MUTED, "-."),
    "gaussian_analyst": (f"ours, (ε, {DELTA:g}), outside analyst", SERIES[0], "-"),
    "gaussian": (f"ours, (ε, {DELTA:g}), parties too", SERIES[0], LINE_STYLES[1]),
    "pure_analyst": ("ours, pure ε, outside analyst", SERIES[2], "-"),
    "pure": ("ours, pure ε, parties too", SERIES[2], LINE_STYLES[1]),
    "paper": ("paper's sensitivity, pure ε", SERIES[1], "-"),
    "peer": ("diffprivlib, pooled, pure ε", SERIES[3], "-"),
}


@styled
def plot_accuracy(results: Mapping[str, Any]) -> Figure:
    """Accuracy over ε, a panel for each table."""
    names = [name for name in LOGISTIC if name in results]
    figure = new_figure(4.6 * len(names), 4.2)
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(names), sharey=True)), names, strict=True):
        for i, (method, (text, colour, style)) in enumerate(LINES.items()):
            values = np.array(list(results[name][method].values()), float)
            spread = np.array(list(results[f"{name}_std"][method].values()), float)
            marker = None if colour == MUTED else MARKERS[i % len(MARKERS)]
            x = np.array(EPSILONS) * 1.03 ** (i - 3)
            axes.errorbar(x, values, spread, color=colour, ls=style, marker=marker, ms=5, lw=1.5, label=text)
        axes.set_xscale("log")
        axes.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axes.set_title({"adult": "Adult income", "dutch": "Dutch census, occupation"}[name])
        axes.set_xlabel("ε")
        grid(axes, "y")
    figure.axes[0].set_ylabel("test accuracy (mean, standard deviation)")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@functools.cache
def census(name: str, records: int | None) -> tuple[VerticalDataset, str]:
    """Adult or Dutch, its first records, and its label."""
    dataset, label = LOGISTIC[name]()
    return first(dataset, records), label


PARTS: Mapping[str, Callable[[Settings], dict[str, Any]]] = {
    "adult": lambda s: accuracies(*census("adult", s.records), s, "adult"),
    "dutch": lambda s: accuracies(*census("dutch", s.records), s, "dutch"),
    "parties": lambda s: {"parties": {name: over_parties(*census(name, s.records), s, name) for name in LOGISTIC}},
    "surrogates": lambda s: {"surrogates": {name: surrogate_bias(*census(name, s.records)) for name in LOGISTIC}},
    "linear": lambda s: {"linear": {name: linear_errors(*load(), s, name) for name, load in LINEAR.items()}},
    "synthetic": lambda s: {"synthetic": {sparsity: synthetic_errors(s, sparsity) for sparsity in s.sparsities}},
    "runtime": lambda s: {"runtime": run_times(s)},
    "coverage": lambda s: {"coverage": coverage(s)},
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="run these parts alone")
    arguments.add_argument("--peer", default=sys.executable, metavar="PYTHON", help="an interpreter with diffprivlib, "
                           "which needs scikit-learn below 1.7 (default: this one)")  # fmt: skip
    args = arguments.parse_args()
    settings = Settings(peer=args.peer)
    if args.quick:
        settings = Settings(repeats=2, records=10_000, synthetic=(8_000, 100), sparsities=(0.1, 1.0), rounds=1,
                            coverage_runs=20, peer=args.peer)  # fmt: skip
    results: dict[str, Any] = {}
    for part in args.only:
        results |= PARTS[part](settings)
    figures = {"functional_mechanism": plot_accuracy(results)} if {"adult", "dutch"} & set(results) else {}
    finish({**results, "environment": environment()}, args, figures)


if __name__ == "__main__":
    main()
