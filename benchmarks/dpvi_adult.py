"""Reproduces the DPVI paper's results on UCI Adult: Figures 2 and 3, and what the library's defaults reach.

    python benchmarks/dpvi_adult.py --quick
    python benchmarks/dpvi_adult.py --json results/dpvi_adult.json [--repeats 10] [--only figure3]

Data: 30,162 training and 15,060 test records, 13 columns, demographics and finances at two parties; a
mixture of K = 20 components. Every NLL is the mean over the test records of -log p(x | theta) at the guide's
location, in nats. It is an evaluation on held-out real records: not DP, internal.

Parts (`--only`), their keys, and the figures beside the JSON:

figure3   The paper's setting: batches of 100 (Poisson), clip 1, sigma 2.042, Adam(0.01), T = 20,000.
          Partitioned in fixed point against the same model at one party in floating point, `--repeats` runs
          of each with independent noise; repeat r of both arms starts at the same values.
          nll_fixed_point, nll_float   medians over the repeats
          nll_spread                   between repeats: largest less smallest NLL, of the arm where it is less
          figure3_agrees               whether the medians differ by less than nll_spread
          nll_fixed_point_runs, nll_float_runs   every repeat
          figure3.png (NLL over epochs, but for the start), figure3_boxes.png (NLL at the end)
scale     What the NLL is worth. Both without clip and noise, NOT DP.
          nll_k1                       one component: columns independent of each other
          nll_nonprivate               the K = 20 mixture with figure3's batches, steps and optimiser
everyone  `DPVI()` and its plan at epsilon = 1, delta = 1e-5, replace, against everyone: outside analyst and both
          parties. Median of 5 runs.
          nll_everyone, nll_everyone_runs   noisy tables have all of the budget, no steps follow (extra `mrf`)
          epsilon_worst                the largest row of the plan's table
          components_everyone          K of its mixture
          nll_everyone_steps           with steps, `warm_start=True`: they start from tables, most of the budget
          record_steps                 records times steps of such a run
          components_steps             K of its mixture
          nll_everyone_cold            the same budget from random values, as without the extra
          nll_everyone_small_batches   the same budget by batches of N / 30 in 1,000 steps, the default once
          nll_everyone_tables          the mixture of the steps from tables alone, with all of the budget
everyone_secure   One run of the plan with steps between CrypTen processes on this machine, each with its own file.
          nll_everyone_secure
          secure_minutes               from the start of the processes to the posterior
          secure_gib                   the most memory that one of the processes took
          Null without the extra `crypten`.
default   `DPVI()` and its plan at epsilon = 1, delta = 1e-5 against the outside analyst alone; median of up to
          3 runs.
          nll_default                  add/remove, as the paper counts
          nll_default_replace          replace, the library's default relation
          sigma_default, sigma_default_replace   the calibrated noise multipliers
figure2   1,000 iterations, batches of 100, all arms on the same batches (an insecure seed) from the same
          start: floating point, the paper's fixed-point formulation with its renormalisation, and without it.
          nll_figure2_{plaintext,paper,no_renormalisation}               all 13 columns
          nll_figure2_one_feature_{plaintext,paper,no_renormalisation}   age and fnlwgt alone
          nll_figure2_start, nll_figure2_one_feature_start               before the first iteration
          figure2.png, figure2_one_feature.png
          The paper draws this figure for one feature at each party. Two Beta densities rarely fall below the
          grid of 2^-32, so there the arm without renormalisation learns; with six or seven columns at each
          party their product leaves the grid, gradients are zero, and the NLL stays where it started. Not for
          ever: in a run of 3,000 iterations the noise had moved the parameters enough after 1,400 for some
          products to reach the grid, and from there on that arm learned too.

Also `seconds_<part>`, `settings` and `environment`. `--quick` keeps every figure and key with fewer columns,
components, records and steps, so its values compare with nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from common import (
    DELTA,
    SIGMA,
    Experiment,
    adult,
    at_one_party,
    chunks_without_noise,
    compile_fast,
    environment,
    finish,
    insecure_source,
    median,
    parser,
    peak_mib,
    regrouped,
    written,
)
from matplotlib.figure import Figure
from paper_protocol.backends import Paper
from tqdm.auto import tqdm

from vertinumpyro.core import compat
from vertinumpyro.core.rng import RandomSource, SystemRandomSource
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.settings import default_batch
from vertinumpyro.dpvi.training_loop import chunks
from vertinumpyro.evaluation import plot_curves, plot_nll_boxes
from vertinumpyro.marginals import MarginalInference, release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.posterior import PredictivePosterior
from vertinumpyro.privacy import OUTSIDE_ANALYST, GradientPlan, NeighbouringRelation
from vertinumpyro.secure import Backend, Crypten, FixedPoint, Plaintext
from vertinumpyro.session import PartyTask, ProcessSession

Results = dict[str, Any]
Figures = dict[str, Figure]
Curve = tuple[np.ndarray, np.ndarray]

PARTITIONED = "partitioned, fixed point"
POOLED = "not partitioned, float"
LARGEST_CLIP = 1024.0  # as good as no clip: more than any score here, and what the ring's format allows

ONE_FEATURE = {"demographic": ["age"], "financial": ["fnlwgt"]}
QUICK_FEATURES = {"demographic": ["age"], "financial": ["workclass"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of every part."""

    repeats: int
    default_repeats: int
    everyone_repeats: int
    batch_size: int = 100
    num_steps: int = 20_000
    figure2_steps: int = 1_000
    default_steps: int | None = None
    num_components: int = 20
    evaluations: int = 20


@dataclasses.dataclass(frozen=True)
class Task:
    """The data and the settings of one invocation."""

    settings: Settings
    train: VerticalDataset
    test: VerticalDataset

    @classmethod
    def create(cls, args: argparse.Namespace) -> Task:
        if not args.quick:
            return cls(
                Settings(repeats=args.repeats, default_repeats=min(3, args.repeats), everyone_repeats=5), *adult()
            )
        small = Settings(
            repeats=min(2, args.repeats),
            default_repeats=1,
            everyone_repeats=1,
            num_steps=60,
            figure2_steps=60,
            default_steps=40,
            num_components=3,
            evaluations=5,
        )
        train, test = (regrouped(part, QUICK_FEATURES) for part in adult(num_train=3_000, num_test=1_000))
        return cls(small, train, test)

    @property
    def has_one_feature_a_party(self) -> bool:
        """As the quick task has; then both layouts of figure 2 are the same."""
        return all(len(self.train.schema.column_names(party)) == 1 for party in self.train.schema.parties)

    def on(self, parties: Mapping[str, list[str]]) -> Task:
        """The same task on some of the columns."""
        quick_or_full = self.settings, *(regrouped(part, parties) for part in (self.train, self.test))
        return Task(*quick_or_full)

    def paper_experiment(
        self, backend: Backend, *, num_steps: int, num_components: int | None = None, **plan: Any
    ) -> Experiment:
        """The paper's batch size, clip, noise and optimiser."""
        K = num_components or self.settings.num_components
        dpvi = DPVI(backend=backend, optimizer=optax.adam(0.01), num_components=K)
        plan = {"noise_multiplier": SIGMA, "delta": DELTA, "allow_unproven": True, **plan}
        made = dpvi.plan(self.train, batch_size=self.settings.batch_size, num_steps=num_steps, **plan)
        return Experiment(dpvi, made, self.train, self.test)


# -- parts ----------------------------------------------------------------------------------------


def figure3(task: Task) -> tuple[Results, Figures]:
    """Fixed point on partitioned data against floating point on pooled data."""
    pooled = Task(task.settings, at_one_party(task.train), at_one_party(task.test))
    steps = task.settings.num_steps
    arms = {
        PARTITIONED: task.paper_experiment(FixedPoint(), num_steps=steps),
        POOLED: pooled.paper_experiment(Plaintext(), num_steps=steps),
    }
    curves = {name: _repeats(arm, task.settings.repeats, task.settings, name) for name, arm in arms.items()}
    ends = {name: values[:, -1] for name, (_, values) in curves.items()}
    spread = min(float(np.ptp(values)) for values in ends.values())
    medians = {name: median(list(values)) for name, values in ends.items()}
    results = {
        "nll_fixed_point": medians[PARTITIONED],
        "nll_float": medians[POOLED],
        "nll_spread": spread,
        "figure3_agrees": bool(abs(medians[PARTITIONED] - medians[POOLED]) < spread),
        "nll_fixed_point_runs": ends[PARTITIONED],
        "nll_float_runs": ends[POOLED],
    }
    after_start = {name: (epochs[1:], values[:, 1:]) for name, (epochs, values) in curves.items()}
    figures = {
        "figure3": plot_curves(after_start, xlabel="epoch", ylabel="test negative log-likelihood per record"),
        "figure3_boxes": plot_nll_boxes(ends),
    }
    return results, figures


def scale(task: Task) -> tuple[Results, Figures]:
    """Runs without clip and noise, NOT DP: the worst and the best NLL to expect."""
    results: Results = {}
    for key, K in (("nll_k1", 1), ("nll_nonprivate", task.settings.num_components)):
        steps = task.settings.num_steps
        experiment = task.paper_experiment(Plaintext(), num_steps=steps, num_components=K, clip_norm=LARGEST_CLIP)
        without_noise = chunks_without_noise(experiment, SystemRandomSource(), length=min(200, steps))
        with tqdm(total=steps, desc=f"{key} (not DP)", unit="step") as bar:
            _, values = experiment.curve(0, without_noise, task.settings.evaluations, bar)
        results[key] = values[-1]
    return results, {}


def everyone(task: Task) -> tuple[Results, Figures]:
    """`DPVI()` as a user who sets nothing gets it, at epsilon = 1, and the same budget spent on small batches."""
    size, steps = default_batch(task.train.num_records, amplified=True)
    default, stepping = DPVI(), DPVI(warm_start=True if has_engine() else None)
    plan, with_steps = _plan_for_everyone(task, default, num_steps=None), _plan_for_everyone(task, stepping)
    num_components = stepping.split(task.train.schema, with_steps).num_components
    arms: dict[str, Callable[[jax.Array], PredictivePosterior]] = {
        "nll_everyone": partial(_fitted, task, default, {"num_steps": None}),
        "nll_everyone_steps": partial(_fitted, task, stepping, {}),
        "nll_everyone_cold": partial(_fitted, task, DPVI(warm_start=False), {}),
        "nll_everyone_small_batches": partial(_fitted, task, default, {"batch_size": size, "num_steps": steps}),
    }
    if has_engine():
        arms["nll_everyone_tables"] = partial(_from_tables, task, num_components)
    results: Results = {
        "epsilon_worst": plan.worst.epsilon,
        "components_everyone": default.split(task.train.schema, plan).num_components,
        "record_steps": round(with_steps.expected_batch_size * with_steps.num_gradients),
        "components_steps": num_components,
    }
    for key, fit in arms.items():
        seeds = tqdm(range(task.settings.everyone_repeats), desc=key)
        runs = [fit(compat.random_key(seed)).held_out_nll(task.test) for seed in seeds]
        results |= {key: median(runs), f"{key}_runs": runs}
    return results, {}


def _fitted(task: Task, dpvi: DPVI, settings: Mapping[str, Any], key: jax.Array) -> PredictivePosterior:
    plan = _plan_for_everyone(task, dpvi, **settings)
    return dpvi.fit(task.train, plan, key, progress_bar=False, allow_long=True)


def _from_tables(task: Task, num_components: int, key: jax.Array) -> PredictivePosterior:
    settings = VertiMRF()
    plan = settings.plan(task.train, epsilon=1.0, delta=DELTA)
    release = release_marginals(task.train, plan, settings, allow_long=True)
    return MarginalInference(num_components=num_components).fit(release, key, progress_bar=False, allow_long=True)


def _plan_for_everyone(task: Task, dpvi: DPVI, **settings: Any) -> GradientPlan:
    given = {} if task.settings.default_steps is None else {"num_steps": task.settings.default_steps}
    return dpvi.plan(task.train, epsilon=1.0, delta=DELTA, **{**settings, **given})


def everyone_secure(task: Task) -> tuple[Results, Figures]:
    """The same plan between processes; the posterior's NLL is computed here, of what was released."""
    if Crypten().missing() is not None:
        return dict.fromkeys(("nll_everyone_secure", "secure_minutes", "secure_gib")), {}
    build = partial(DPVI, backend=Crypten(), warm_start=True)
    plan = _plan_for_everyone(task, build())
    with tempfile.TemporaryDirectory(prefix="everyone-") as folder:
        files = written(task.train, Path(folder))
        parties = [
            PartyTask(party=p, schema=task.train.schema.to_dict(), table=files.paths[p], build=build)
            for p in task.train.schema.parties
        ]
        started = time.perf_counter()
        with ProcessSession(parties, timeout_s=600.0) as session:
            posterior = build().fit(session, plan, compat.random_key(0), run_dir=Path(folder) / "run")
            seconds = time.perf_counter() - started
            peak = max(peak_mib(pid) for pid in session.pids)
    results = {
        "nll_everyone_secure": posterior.held_out_nll(task.test),
        "secure_minutes": seconds / 60,
        "secure_gib": peak / 1024,
    }
    return results, {}


def default(task: Task) -> tuple[Results, Figures]:
    """`DPVI()` with its budget narrowed to the outside analyst, at epsilon = 1 under both relations."""
    results: Results = {}
    relations = {"": NeighbouringRelation.ADD_REMOVE, "_replace": NeighbouringRelation.REPLACE}
    for suffix, relation in relations.items():
        dpvi = DPVI(num_components=task.settings.num_components)
        plan = dpvi.plan(
            task.train,
            epsilon=1.0,
            delta=DELTA,
            adversary=OUTSIDE_ANALYST,
            relation=relation,
            num_steps=task.settings.default_steps,
        )
        experiment = Experiment(dpvi, plan, task.train, task.test)
        label = f"defaults, {relation.value}"
        _, values = _repeats(experiment, task.settings.default_repeats, task.settings, label)
        results[f"nll_default{suffix}"] = median(list(values[:, -1]))
        results[f"sigma_default{suffix}"] = plan.noise_multiplier
    return results, {}


def figure2(task: Task) -> tuple[Results, Figures]:
    """The paper's formulation with and without renormalisation, against floating point."""
    results: Results = {}
    figures: Figures = {}
    all_features = _figure2_curves(task)
    one_feature = all_features if task.has_one_feature_a_party else _figure2_curves(task.on(ONE_FEATURE))
    for prefix, curves in (("figure2", all_features), ("figure2_one_feature", one_feature)):
        for name, (_, values) in curves.items():
            results[f"nll_{prefix}_{name}"] = values[-1]
            results[f"nll_{prefix}_start"] = values[0]
        labels = {name.replace("_", " "): curve for name, curve in curves.items()}
        ylabel = "test negative log-likelihood per record"
        figures[prefix] = plot_curves(labels, xlabel="iteration", ylabel=ylabel)
    return results, figures


_FIGURE2_ARMS: Mapping[str, Callable[[], Backend]] = {
    "plaintext": Plaintext,
    "paper": lambda: Paper(),
    "no_renormalisation": lambda: Paper(renormalise=False),
}


def _figure2_curves(task: Task) -> dict[str, Curve]:
    return {name: _figure2_curve(task, name, make()) for name, make in _FIGURE2_ARMS.items()}


def _figure2_curve(task: Task, name: str, backend: Backend) -> Curve:
    steps = task.settings.figure2_steps
    experiment = task.paper_experiment(backend, num_steps=steps)
    paired = chunks(experiment.plan, experiment.num_values, insecure_source(insecure_seed=2), 0)
    with tqdm(total=steps, desc=f"figure 2, {name}", unit="step") as bar:
        return experiment.curve(0, paired, task.settings.evaluations, bar)


def _repeats(experiment: Experiment, repeats: int, settings: Settings, label: str) -> Curve:
    """Epochs [points] and NLL [repeats, points] of runs with independent batches and noise."""
    source: RandomSource = SystemRandomSource()
    runs = []
    with tqdm(total=repeats * experiment.plan.num_steps, desc=label, unit="step") as bar:
        for seed in range(repeats):
            secure = chunks(experiment.plan, experiment.num_values, source, 0)
            steps, values = experiment.curve(seed, secure, settings.evaluations, bar)
            runs.append(values)
    return np.asarray(steps * experiment.epochs_a_step), np.stack(runs)


PARTS: Mapping[str, Callable[[Task], tuple[Results, Figures]]] = {
    "figure3": figure3,
    "scale": scale,
    "everyone": everyone,
    "everyone_secure": everyone_secure,
    "default": default,
    "figure2": figure2,
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=list(PARTS), help="run one part; FILE keeps the others' keys")
    arguments.add_argument("--repeats", type=int, default=10, help="runs of each arm of figure3 (10)")
    args = arguments.parse_args()
    compile_fast(args.quick)
    task = Task.create(args)
    results: Results = {"settings": dataclasses.asdict(task.settings), "environment": environment()}
    figures: Figures = {}
    for name in [args.only] if args.only else list(PARTS):
        started = time.perf_counter()
        part_results, part_figures = PARTS[name](task)
        results |= {**part_results, f"seconds_{name}": time.perf_counter() - started}
        figures |= part_figures
    finish(results, args, figures)


if __name__ == "__main__":
    main()
