"""Markov random fields across parties: how close the twin's tables are to the real ones, on NLTCS and Adult.

    VERTINUMPYRO_DATA=... python benchmarks/vertimrf.py --quick
    python benchmarks/vertimrf.py --json results/vertimrf.json [--only nltcs adult ...] [--arms ...] [--repeats 3]

As in section 7 of the VertiMRF paper: NLTCS with 8 items at each of two parties, Adult with 7 columns at each (the
paper's eighth, `education`, repeats `education_num`), replace, delta = 1/n; mean total variation distance (TVD) of 300
random k-way marginals, Adult's wide columns in 16 cells. Epsilon is the outside analyst's, as the papers count. Noise
from the operating system, a new draw in every repeat; AIM's and MST's from the repeat's number.
Distances are evaluations on real records, not DP.

Arms: `secure_marginals`, the library's default; `adaptive`, the same with rounds that measure chosen pairs again;
`sketch`, `randomized_response` and the paper's `sketch_shared_key`, which has no privacy; `dpvi`, the library's own
mixture; `apart`, each party's tables only, joined independently (the floor); `pooled`, all columns at one party with
PrivMRF-style tables (the ceiling); `everyone`, the default with epsilon for every adversary; with
`--private-pgm PYTHON CLONE` also `aim` and `mst` on pooled columns: their authors' code, triples as the workload,
accounted for replace in zCDP (see `vertimrf_parts/pooled_mechanisms.py`). CLONE is a clone of
github.com/ryan112358/private-pgm, PYTHON an environment of its own: `pip install CLONE matplotlib "jax==0.4.38"
"chex<0.1.90" "optax==0.2.4" "pandas<2.3"`. AIM takes four to fifteen minutes a fit: with `--keep FILE` a run of
`small_epsilon` that is cut off goes on where it was.

Keys: tvd3, tvd4, tvd5     {data set: {arm: {epsilon: mean over repeats}}}
      tvd3_sd              standard deviation over repeats; null for a single one
      seconds              {data set: {arm: median time of plan, fit and sampling}}; context, compilation included
      party_seconds        of that all parties' releases, one after the other; the rest is the server's
      over_pooled          {data set: {epsilon: tvd3 of secure_marginals over that of pooled}}
      epsilon_of_a_party   {data set: {arm: {epsilon: the largest epsilon of a party's row; null is infinite}}}
      ablations            {switch: tvd3 on NLTCS at epsilon 0.8}: parts left out, and the budget split
      ablations_adult      {switch: tvd3 on Adult at epsilon 0.8}: binning with and without recovery
      splits               {split of the columns: tvd3 on NLTCS at epsilon 0.8}
      parties              {number of parties: tvd3 on NLTCS at epsilon 0.8}, Figure 6 of the paper
      svm                  {data set: {arm: mean misclassification of linear SVMs at epsilon 0.8}}, five folds; the
                           test fold takes no part in the synthesis
      everyone             {data set: {arm: {epsilon: median tvd3}}} of small_epsilon, epsilon every adversary's
      ratio_to_aim         {data set: {epsilon: `everyone` over AIM on pooled columns}}; ratio_to_mst likewise
      monotone             {data set: {largest_rise: of the median from one epsilon to the next, spread: of the fits
                           there, holds: whether the rise is within it}}
      failed               {data set and arm: {epsilon: fits of a pooled mechanism that ended in an error}}; others
                           took their place
      cost                 {data set: {arm: bytes_per_party, bytes_to_server, rounds, seconds_wan}}: what cross-party
                           tables cost at epsilon 0.8, counted and not measured, see `vertimrf_parts/costs.py`
      time_and_bytes       {data set: {arm: party_seconds, server_seconds, bytes_per_party, bytes_to_server}}, Table 2
                           of the paper
      vertimrf_tvd.png

`--quick` keeps every key with fewer columns, arms, epsilons and steps.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import among_parties, compile_fast, environment, finish, parser, regrouped, with_stored
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from tqdm.auto import tqdm
from vertimrf_parts.arms import (
    ABLATIONS,
    ARMS,
    Arm,
    Twin,
    distances,
    make_twin,
    misclassification,
)
from vertimrf_parts.costs import counted_cost, time_and_bytes
from vertimrf_parts.small_epsilon import SmallEpsilon, ratios, small_epsilon

from vertinumpyro.data import VerticalDataset, load_adult, load_nltcs
from vertinumpyro.evaluation.plot_style import MARKERS, SERIES, grid, new_figure, styled
from vertinumpyro.mrf.field import DEFAULT_ITERATIONS

EPSILONS = (0.2, 0.4, 0.8, 1.6, 3.2)
EPSILON = 0.8  # of every part that has only one
PARTS = ("nltcs", "adult", "ablations", "splits", "parties", "svm", "cost", "small_epsilon")
DEFAULT_ARMS = tuple(name for name, arm in ARMS.items() if arm.kind in ("field", "dpvi") and arm.adversary)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of the run."""

    epsilons: tuple[float, ...] = EPSILONS
    repeats: int = 3
    num_marginals: int = 300
    iterations: int = DEFAULT_ITERATIONS
    columns_each: int | None = None  # of each party; None keeps all
    parties: tuple[int, ...] = (2, 4, 8, 16)
    arms: tuple[str, ...] = DEFAULT_ARMS
    tables: tuple[str, ...] = ("nltcs", "adult")
    folds: int = 5
    pooled_by: tuple[str, ...] | None = None  # an interpreter and a clone, for AIM and MST
    small: SmallEpsilon = dataclasses.field(default_factory=SmallEpsilon)

    def table(self, name: str) -> VerticalDataset:
        """A data set at two parties."""
        dataset = load_nltcs() if name == "nltcs" else load_adult(layout="with_income")
        if self.columns_each is None:
            return dataset
        names = {party: dataset.schema.column_names(party) for party in dataset.parties}
        return regrouped(dataset, {party: own[-self.columns_each :] for party, own in names.items()})

    def twin(self, dataset: VerticalDataset, arm: Arm, epsilon: float, seed: int) -> Twin:
        """One synthetic table."""
        return make_twin(dataset, arm, epsilon, seed, iterations=self.iterations, pooled_by=self.pooled_by)


def one_fit(dataset: VerticalDataset, arm: Arm, epsilon: float, settings: Settings, seed: int) -> Outcome:
    """Plan, fit, sample, compare."""
    twin = settings.twin(dataset, arm, epsilon, seed)
    return Outcome(distances(dataset, twin, settings.num_marginals), twin)


class Outcome(NamedTuple):
    """One fit."""

    tvd: Mapping[int, float]
    twin: Twin


def run_table(name: str, settings: Settings) -> dict[str, Any]:
    """Every arm at every epsilon on one data set."""
    dataset = settings.table(name)
    tasks = [(arm, e) for arm in settings.arms for e in settings.epsilons]
    found: dict[str, dict[float, list[Outcome]]] = {arm: {} for arm in settings.arms}
    for arm, epsilon in tqdm(tasks, desc=name, unit="setting"):
        found[arm][epsilon] = [one_fit(dataset, ARMS[arm], epsilon, settings, seed) for seed in range(settings.repeats)]

    def over(value: Callable[[Sequence[Outcome]], float]) -> dict[str, dict[float, float]]:
        return {arm: {e: value(outcomes) for e, outcomes in by.items()} for arm, by in found.items()}

    def median(value: Callable[[Twin], float]) -> dict[str, float]:
        return {arm: statistics.median(value(x.twin) for o in by.values() for x in o) for arm, by in found.items()}

    result: dict[str, Any] = {f"tvd{k}": over(lambda o, k=k: float(np.mean([x.tvd[k] for x in o]))) for k in (3, 4, 5)}
    result["tvd3_sd"] = over(lambda o: float(np.std([x.tvd[3] for x in o], ddof=1)) if len(o) > 1 else float("nan"))
    result["seconds"] = median(lambda twin: twin.seconds)
    result["party_seconds"] = median(lambda twin: twin.party_seconds)
    result["epsilon_of_a_party"] = over(lambda o: o[0].twin.party_epsilon)
    return result


def over_pooled(tvd3: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """How much is lost to the parties' being apart."""
    found = {}
    for name, arms in tvd3.items():
        if {"pooled", "secure_marginals"} <= set(arms):
            ours, theirs = arms["secure_marginals"], arms["pooled"]
            found[name] = {e: ours[e] / theirs[e] for e in ours if e in theirs}
    return found


def run_variants(
    variants: Mapping[str, tuple[VerticalDataset, Arm]], settings: Settings, label: str
) -> dict[str, float]:
    """Mean 3-way TVD of each variant."""
    found = {}
    for name, (held, arm) in tqdm(variants.items(), desc=label, unit="variant"):
        fits = [one_fit(held, arm, EPSILON, settings, seed) for seed in range(settings.repeats)]
        found[name] = float(np.mean([fit.tvd[3] for fit in fits]))
    return found


def run_ablations(settings: Settings) -> dict[str, Any]:
    """Parts left out and budgets split otherwise; recovery on Adult, as NLTCS has nothing to bin."""
    nltcs, adult = settings.table("nltcs"), settings.table("adult")
    on_nltcs = {name: (nltcs, arm) for name, arm in ABLATIONS.items() if name != "without_recovery"}
    on_adult = {name: (adult, ABLATIONS[name]) for name in ("full", "without_recovery")}
    return {
        "ablations": run_variants(on_nltcs, settings, "ablations"),
        "ablations_adult": run_variants(on_adult, settings, "ablations on Adult"),
    }


def run_splits(settings: Settings) -> dict[str, Any]:
    """NLTCS with correlated columns together, apart, and with few columns at one party."""
    dataset, arm = settings.table("nltcs"), ARMS["secure_marginals"]
    return {"splits": run_variants({n: (d, arm) for n, d in splits(dataset).items()}, settings, "splits")}


def splits(dataset: VerticalDataset) -> dict[str, VerticalDataset]:
    """Two parties' shares of the columns, chosen by the real correlations. Not DP."""
    names = list(dataset.schema.columns)
    strength = np.abs(np.nan_to_num(np.corrcoef(np.stack([dataset.pooled()[n].astype(float) for n in names]))))
    order = [names[i] for i in np.argsort(np.linalg.eigh(np.diag(strength.sum(1)) - strength)[1][:, 1])]
    half, few = len(names) // 2, max(1, len(names) // 8)
    return {
        "correlated together": regrouped(dataset, {"a": order[:half], "b": order[half:]}),
        "correlated apart": regrouped(dataset, {"a": order[::2], "b": order[1::2]}),
        f"{few} and {len(names) - few} columns": regrouped(dataset, {"a": names[:few], "b": names[few:]}),
    }


def run_parties(settings: Settings) -> dict[str, Any]:
    """NLTCS with its columns dealt out to more and more parties."""
    dataset, arm = settings.table("nltcs"), ARMS["secure_marginals"]
    counts = [p for p in settings.parties if p <= len(dataset.schema.columns)]
    variants = {str(count): (among_parties(dataset, count), arm) for count in counts}
    return {"parties": run_variants(variants, settings, "parties")}


def run_small_epsilon(settings: Settings) -> dict[str, Any]:
    """Everyone's ε against AIM and MST, and over a wide range of budgets."""

    def fit(dataset: VerticalDataset, arm: str, epsilon: float, seed: int) -> float | None:
        try:
            return one_fit(dataset, ARMS[arm], epsilon, settings, seed).tvd[3]
        except subprocess.CalledProcessError:  # a pooled mechanism's; its authors' code has said why
            return None

    return small_epsilon({name: settings.table(name) for name in settings.tables}, fit, settings.small)


def run_svm(settings: Settings) -> dict[str, Any]:
    """Linear SVMs on five folds: every item of NLTCS in turn, Adult's income."""
    found: dict[str, dict[str, float]] = {}
    for name in settings.tables:
        dataset = settings.table(name)
        targets = list(dataset.schema.columns) if name == "nltcs" else ["income"]
        folds = np.random.default_rng(0).permutation(dataset.num_records) % settings.folds
        tasks = [(arm, fold) for arm in settings.arms for fold in range(settings.folds)]
        rates: dict[str, list[float]] = {arm: [] for arm in settings.arms}
        for arm, fold in tqdm(tasks, desc=f"svm on {name}", unit="fold"):
            train, test = (dataset.take(np.flatnonzero(chosen)) for chosen in (folds != fold, folds == fold))
            twin = make_twin(
                train, ARMS[arm], EPSILON, fold, iterations=settings.iterations, pooled_by=settings.pooled_by
            )
            rates[arm].append(misclassification(dataset, test, twin, targets))
        found[name] = {arm: float(np.mean(values)) for arm, values in rates.items()}
    return {"svm": found}


QUICK: dict[str, Any] = {
    "epsilons": (EPSILON,),
    "repeats": 1,
    "num_marginals": 100,
    "iterations": 500,
    "columns_each": 2,
    "parties": (2, 4),
    "folds": 2,
    "arms": ("secure_marginals", "sketch", "apart", "pooled"),
    "tables": ("adult",),
    "small": SmallEpsilon(fits={"everyone": 1}, grid=(0.1, 0.2, 0.4, 0.8)),
}


@styled
def plot_tvd(results: Mapping[str, Any]) -> Figure:
    """Mean 3-way TVD over ε, a panel for each data set."""
    tables = list(results["tvd3"])
    figure = new_figure(max(6.4, 4.4 * len(tables)), 4.6)
    panels = np.atleast_1d(figure.subplots(1, len(tables)))
    for axes, table in zip(panels, tables, strict=True):
        for arm, values in results["tvd3"][table].items():
            i = list(ARMS).index(arm)  # the same colour and marker in every panel and run; no two arms share both
            epsilons = sorted(values, key=float)
            spread = [results["tvd3_sd"][table][arm][e] or 0.0 for e in epsilons]
            style = "--" if arm == "apart" or ARMS[arm].pooled else "-"
            axes.errorbar(
                [float(e) for e in epsilons],
                [values[e] for e in epsilons],
                spread,
                color=SERIES[i % len(SERIES)],
                marker=MARKERS[(i + i // len(SERIES)) % len(MARKERS)],
                ms=4,
                linestyle=style,
                label=ARMS[arm].label,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(sorted({float(e) for values in results["tvd3"][table].values() for e in values}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_title({"nltcs": "NLTCS", "adult": "Adult"}[table])
        axes.set_xlabel("ε (replace, δ = 1/n)")
        grid(axes, "y")
    panels[0].set_ylabel("mean 3-way TVD (not DP)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--only", nargs="+", choices=PARTS, help="parts to run")
    arguments.add_argument("--tables", nargs="+", choices=("nltcs", "adult"), help="of svm and small_epsilon (both)")
    arguments.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    arguments.add_argument("--repeats", type=int, default=3, help="fits for each setting (3)")
    arguments.add_argument("--arms", nargs="+", choices=list(ARMS), help="arms to run (all that need nothing else)")
    arguments.add_argument(
        "--private-pgm", nargs=2, metavar=("PYTHON", "CLONE"), help="AIM and MST, see above; without: left out"
    )
    arguments.add_argument("--keep", type=Path, help="a file of small_epsilon's fits, taken up again by the next run")
    arguments.add_argument("--pooled-repeats", type=int, default=1, help="fits of AIM and MST for each setting (1)")
    args = arguments.parse_args()
    compile_fast(args.quick)
    pooled_by = tuple(args.private_pgm) if args.private_pgm else None
    fits = {"everyone": args.repeats, **dict.fromkeys(("aim", "mst") if pooled_by else (), args.pooled_repeats)}
    small = SmallEpsilon(fits={arm: fits[arm] for arm in args.arms or fits if arm in fits}, kept=args.keep)
    settings = Settings(epsilons=tuple(args.epsilons), repeats=args.repeats, pooled_by=pooled_by, small=small)
    if args.quick:
        settings = dataclasses.replace(settings, **QUICK)
    if args.tables:
        settings = dataclasses.replace(settings, tables=tuple(args.tables))
    if args.arms:
        settings = dataclasses.replace(settings, arms=tuple(args.arms))
    results = with_stored({"environment": environment(), **run_parts(args.only or PARTS, settings)}, args)
    if "tvd3" in results:
        results |= {"over_pooled": over_pooled(results["tvd3"]), "time_and_bytes": time_and_bytes(results)}
    if "everyone" in results:
        results |= {f"ratio_to_{arm}": ratios(results["everyone"], arm) for arm in ("aim", "mst")}
    finish(results, args, {"vertimrf_tvd": plot_tvd(results)} if "tvd3" in results else {})


def run_parts(parts: Sequence[str], settings: Settings) -> dict[str, Any]:
    """The parts' keys."""
    results: dict[str, Any] = {}
    if "cost" in parts:
        results["cost"] = {table: counted_cost(settings.table(table), EPSILON) for table in ("nltcs", "adult")}
    for name in [part for part in parts if part in ("nltcs", "adult")]:
        for key, value in run_table(name, settings).items():
            results.setdefault(key, {}).setdefault(name, {}).update(value)
    for part, run in {
        "ablations": run_ablations,
        "splits": run_splits,
        "parties": run_parties,
        "svm": run_svm,
        "small_epsilon": run_small_epsilon,
    }.items():
        if part in parts:
            results |= run(settings)
    return results


if __name__ == "__main__":
    main()
