"""Markov random fields across parties: how close the twin's tables are to the real ones, on NLTCS and Adult.

    VERTINUMPYRO_DATA=... python benchmarks/vertimrf.py --quick
    python benchmarks/vertimrf.py --json results/vertimrf.json [--only nltcs adult parties cost] [--epsilons 0.2 0.8]

As in Table 3 of the VertiMRF paper: NLTCS with 8 items at each of two parties, Adult with 7 columns at each (the
paper's eighth, `education`, repeats `education_num`), replace, delta = 1/n; mean total variation distance (TVD) of 300
random k-way marginals, Adult's wide columns in 16 cells. Noise from the operating system, a new draw in every repeat.
Distances are evaluations on real records, not DP.

Arms: `secure_marginals`, the library's default; `adaptive`, the same with rounds that measure chosen pairs again;
`without_local`, cross-party tables only; `apart`, each party's tables only, joined independently (the floor); `pooled`,
all columns at one party (the ceiling).

Keys: tvd3, tvd4, tvd5     {data set: {arm: {epsilon: mean over repeats}}}
      tvd3_sd              standard deviation over repeats; null for a single one
      seconds              {data set: {arm: median time of plan, fit and sampling}}; context, compilation included
      over_pooled          {data set: {epsilon: tvd3 of secure_marginals over that of pooled}}
      epsilon_of_a_party   {data set: {epsilon: the largest epsilon of a party's row of the privacy table}}
      parties              {number of parties: tvd3 on NLTCS at epsilon 0.8}, Figure 6 of the paper
      cost                 {data set: bytes_per_party, rounds, seconds_wan}: what the cross-party tables cost, counted
                           and not measured, see `protocol_cost`
      vertimrf_tvd.png

`--quick` keeps every key with fewer columns, epsilons and steps.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from common import among_parties, at_one_party, environment, finish, parser, regrouped
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from tqdm.auto import tqdm

from vertinumpyro.data import VerticalDataset, load_adult, load_nltcs
from vertinumpyro.evaluation import k_way_tvd
from vertinumpyro.evaluation.palette import MARKERS, SERIES, grid, new_figure, styled
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.privacy import PrivacyWarning

EPSILONS = (0.2, 0.4, 0.8, 1.6, 3.2)
PARTIES_EPSILON = 0.8
LATENCY, BITS_PER_SECOND = 0.05, 100e6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to make the twin."""

    label: str
    system: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooled: bool = False


ARMS = {
    "secure_marginals": Arm(label="secure marginals"),
    "adaptive": Arm(label="secure marginals, adaptive", system={"selection": "adaptive"}),
    "without_local": Arm(label="without local models", plan={"cross_share": 1.0}),
    "apart": Arm(label="local models apart", plan={"cross_share": 0.0}),
    "pooled": Arm(label="pooled (no parties)", pooled=True),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of the run."""

    epsilons: tuple[float, ...] = EPSILONS
    repeats: int = 3
    num_marginals: int = 300
    iterations: int = 1000
    columns_each: int | None = None  # of each party; None keeps all
    parties: tuple[int, ...] = (2, 4, 8, 16)
    arms: tuple[str, ...] = tuple(ARMS)

    def table(self, name: str) -> VerticalDataset:
        """A data set at two parties."""
        dataset = load_nltcs() if name == "nltcs" else load_adult(layout="with_income")
        if self.columns_each is None:
            return dataset
        names = {party: dataset.schema.column_names(party) for party in dataset.parties}
        return regrouped(dataset, {party: own[-self.columns_each :] for party, own in names.items()})


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One fit."""

    tvd: Mapping[int, float]
    seconds: float
    party_epsilon: float


def one_fit(dataset: VerticalDataset, arm: Arm, epsilon: float, settings: Settings, seed: int) -> Outcome:
    """Plan, fit, sample, compare."""
    held = at_one_party(dataset) if arm.pooled else dataset
    started = time.perf_counter()
    system = VertiMRF(iterations=settings.iterations, **arm.system)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the papers' delta is 1/n
        plan = system.plan(held, epsilon=epsilon, delta=1 / held.num_records, **arm.plan)
    twin = system.fit(held, plan).sample_synthetic(rng_key=jax.random.PRNGKey(seed))
    seconds = time.perf_counter() - started
    real = held.to_frame()
    most = len(held.schema.columns)
    tvd = {
        k: k_way_tvd(real, twin, held.schema, min(k, most), rng=0, num_marginals=settings.num_marginals).mean
        for k in (3, 4, 5)
    }
    return Outcome(tvd, seconds, max((row.epsilon for row in plan.adversaries[1:]), default=float("nan")))


def run_table(name: str, settings: Settings) -> dict[str, Any]:
    """Every arm at every epsilon on one data set."""
    dataset = settings.table(name)
    tasks = [(arm, e) for arm in settings.arms for e in settings.epsilons]
    found: dict[str, dict[float, list[Outcome]]] = {arm: {} for arm in settings.arms}
    for arm, epsilon in tqdm(tasks, desc=name, unit="setting"):
        found[arm][epsilon] = [one_fit(dataset, ARMS[arm], epsilon, settings, seed) for seed in range(settings.repeats)]

    def over(value: Callable[[Sequence[Outcome]], float]) -> dict[str, dict[float, float]]:
        return {arm: {e: value(outcomes) for e, outcomes in by.items()} for arm, by in found.items()}

    result = {f"tvd{k}": over(lambda o, k=k: float(np.mean([x.tvd[k] for x in o]))) for k in (3, 4, 5)}
    result["tvd3_sd"] = over(lambda o: float(np.std([x.tvd[3] for x in o], ddof=1)) if len(o) > 1 else float("nan"))
    result["seconds"] = {
        arm: statistics.median(x.seconds for outcomes in by.values() for x in outcomes) for arm, by in found.items()
    }
    if {"pooled", "secure_marginals"} <= set(settings.arms):
        tvd3 = result["tvd3"]
        result["over_pooled"] = {e: tvd3["secure_marginals"][e] / tvd3["pooled"][e] for e in settings.epsilons}
    if "secure_marginals" in found:
        result["epsilon_of_a_party"] = {e: o[0].party_epsilon for e, o in found["secure_marginals"].items()}
    return result


def run_parties(settings: Settings) -> dict[str, Any]:
    """NLTCS with its columns dealt out to more and more parties."""
    dataset, arm = settings.table("nltcs"), ARMS["secure_marginals"]
    most = len(dataset.schema.columns)
    found = {}
    for count in tqdm([p for p in settings.parties if p <= most], desc="parties", unit="split"):
        split = among_parties(dataset, count)
        fits = [one_fit(split, arm, PARTIES_EPSILON, settings, seed) for seed in range(settings.repeats)]
        found[count] = float(np.mean([fit.tvd[3] for fit in fits]))
    return {"parties": found}


def protocol_cost(dataset: VerticalDataset) -> dict[str, float]:
    """What one cross product of all one-hot columns costs the busiest party, counted from the protocol's messages.

    Two parties and a dealer that colludes with neither: it hands one party U, the other V, as seeds of 32 bytes, and
    both a share of UᵀV. Each sends its masked matrix, A − U or B − V (round 1), and then its share of the noisy product
    (round 2). Ring elements have 8 bytes. With more parties every pair of them does so side by side. The dealer sends
    one share of UᵀV to each. An adaptive selection adds a round for each of its rounds.
    """
    columns = VertiMRF().columns(dataset.schema)
    cells = {p: sum(c.num_cells for c in columns if c.party == p) for p in dataset.parties}
    sent = {
        p: sum(8 * (dataset.num_records * own + own * other) for q, other in cells.items() if q != p)
        for p, own in cells.items()
    }
    most = max(sent.values())
    return {"bytes_per_party": most, "rounds": 2, "seconds_wan": 2 * LATENCY + most * 8 / BITS_PER_SECOND}


@styled
def plot_tvd(results: Mapping[str, Any]) -> Figure:
    """Mean 3-way TVD over ε, a panel for each data set."""
    tables = list(results["tvd3"])
    figure = new_figure(max(6.4, 4.4 * len(tables)), 4.6)
    panels = np.atleast_1d(figure.subplots(1, len(tables)))
    for axes, table in zip(panels, tables, strict=True):
        for arm, values in results["tvd3"][table].items():
            i = list(ARMS).index(arm)  # the same colour and marker in every panel and run
            spread = np.nan_to_num([results["tvd3_sd"][table][arm][e] for e in values])
            style = "--" if arm in ("apart", "pooled") else "-"
            axes.errorbar(
                list(values),
                list(values.values()),
                spread,
                color=SERIES[i % len(SERIES)],
                marker=MARKERS[i % len(MARKERS)],
                ms=4,
                linestyle=style,
                label=ARMS[arm].label,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(list(next(iter(results["tvd3"][table].values()))))
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
    arguments.add_argument("--only", nargs="+", choices=["nltcs", "adult", "parties", "cost"], help="parts to run")
    arguments.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    arguments.add_argument("--repeats", type=int, default=3, help="fits for each setting (3)")
    arguments.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    args = arguments.parse_args()
    settings = Settings(epsilons=tuple(args.epsilons), repeats=args.repeats, arms=tuple(args.arms))
    if args.quick:
        settings = dataclasses.replace(
            settings, epsilons=(0.8,), repeats=1, num_marginals=100, iterations=500, columns_each=3, parties=(2, 3)
        )
    parts = args.only or ["nltcs", "adult", "parties", "cost"]
    results: dict[str, Any] = {"environment": environment()}
    for name in [part for part in parts if part in ("nltcs", "adult")]:
        for key, value in run_table(name, settings).items():
            results.setdefault(key, {})[name] = value
    if "parties" in parts:
        results |= run_parties(settings)
    if "cost" in parts:
        results["cost"] = {name: protocol_cost(settings.table(name)) for name in ("nltcs", "adult")}
    finish(results, args, {"vertimrf_tvd": plot_tvd(results)} if "tvd3" in results else {})


if __name__ == "__main__":
    main()
