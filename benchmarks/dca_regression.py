"""Reproduces Figure 2 of the DCA paper: Bayesian linear regression on red wine, white wine and abalone.

    VERTINUMPYRO_DATA=... python benchmarks/dca_regression.py --quick
    python benchmarks/dca_regression.py --json results/dca_regression.json [--repeats 25]

As in the paper: columns centred and scaled to a range of length 10, which needs the data and is not part of the
private method; assumed bounds ±7.5, 1,000 training and 500 test records of red wine, 3,000 and 1,000 of the others,
delta = 1e-4, epsilon = 10^{0, .25, .5, .75, 1, 1.5}, 25 splits, prior and noise variance 1, 30% of the budget for
the standard deviations. Unlike the authors' code, no row of zeros is added to the wines, unprojected columns are
clipped to the assumed bounds, and the noise is discrete and calibrated to proved sensitivities, so errors compare in
shape only. Every split meets four draws of the noise, where the paper has one: medians of 25 runs differ by more than
the arms do. Every figure is a mean absolute error (MAE) on test records in the scaled units: an evaluation on real
records, not DP.

Arms, each with and without projection (`_proj`): `ddp` distributed (T = 0), `ta` trusted aggregator, `input`
perturbation (without projection), all with the library's defaults (tight calibration, noise-aware posterior);
`paper` distributed with classic calibration and the plug-in posterior; `tight` distributed with tight calibration
and the plug-in posterior; `np` without privacy.

Keys: medians, lower, upper   {dataset: {arm: [one for each epsilon]}}; quartiles over splits and draws
      epsilons
      classic_true_epsilon      the true epsilon of `paper_proj` on red wine: Eq. 1 is not proved above 1, but with
                                the entrywise sensitivity, which is too large by 1.4, it stays below its target here
      projected_at_most_unprojected   for ddp, ta, paper and tight: the medians at every epsilon <= 10, all datasets
      distributed_within_trusted      whether ddp's median lies within ta's quartiles, with and without projection
      worst_excess_noise_aware        largest of (ddp - paper) / paper over datasets, epsilons and both variants;
                                      at most 0 where noise-aware and tight is at least as good at every epsilon
      worst_excess_tight        the same for (tight - paper) / paper: calibration alone. Positive where less noise
                                gives a worse error: the plug-in posterior inverts a matrix whose eigenvalues are
                                noise, and its error is no monotone function of the noise
      dca_regression.png

`--quick` keeps every key with fewer repeats, epsilons and datasets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from common import environment, finish, parser
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from tqdm.auto import tqdm

from vertinumpyro.data.datasets import load_abalone, load_wine
from vertinumpyro.evaluation.plot_style import LINE_STYLES, MARKERS, MUTED, SERIES, grid, new_figure, styled
from vertinumpyro.regression.bayesian_linear import BayesianLinearRegression

DELTA, RANGE, BOUND = 1e-4, 10.0, 7.5
EPSILONS = tuple(10.0**k for k in (0, 0.25, 0.5, 0.75, 1, 1.5))

ARMS: Mapping[str, Mapping[str, Any]] = {
    "ddp": {"projection": False},
    "ddp_proj": {},
    "ta": {"projection": False, "mechanism": "trusted"},
    "ta_proj": {"mechanism": "trusted"},
    "input": {"projection": False, "mechanism": "input"},
    "paper": {"projection": False, "calibration": "classic", "posterior": "plug_in"},
    "paper_proj": {"calibration": "classic", "posterior": "plug_in"},
    "tight": {"projection": False, "posterior": "plug_in"},
    "tight_proj": {"posterior": "plug_in"},
}


@dataclasses.dataclass(frozen=True)
class Table:
    """One data set: how many records train and test, and the target's column (the last)."""

    name: str
    num_train: int
    num_test: int

    def columns(self) -> np.ndarray:
        """All records `[n, d + 1]`, centred and scaled to a range of 10, the target last."""
        wine = "red" if self.name.startswith("red") else "white"
        frame = load_abalone().to_frame() if self.name == "abalone" else load_wine(wine).to_frame()
        if "sex" in frame:
            frame["sex"] = (frame["sex"].astype(str) != "M").astype(float)  # the authors' coding
        target = "rings" if self.name == "abalone" else "quality"
        values = frame[[name for name in frame if name != target] + [target]].to_numpy(float)
        values = values - values.mean(axis=0)
        return values / np.ptp(values, axis=0) * RANGE


TABLES = (Table("red wine", 1_000, 500), Table("white wine", 3_000, 1_000), Table("abalone", 3_000, 1_000))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The size of the run."""

    repeats: int
    draws: int = 4
    epsilons: tuple[float, ...] = EPSILONS
    tables: tuple[Table, ...] = TABLES


def errors(
    columns: np.ndarray, table: Table, epsilon: float, repeats: int, draws: int
) -> tuple[dict[str, list[float]], float]:
    """Test MAE of every arm, `repeats` times `draws` of them, and the true ε of the classic calibration."""
    found: dict[str, list[float]] = {arm: [] for arm in (*ARMS, "np")}
    true_epsilon = float("nan")
    for repeat in range(repeats):
        order = np.random.default_rng(repeat).permutation(len(columns))
        train, test = columns[order[: table.num_train]], columns[order[-table.num_test :]]
        for arm, settings in ARMS.items():
            model = BayesianLinearRegression(epsilon=epsilon, delta=DELTA, bounds=BOUND, target_bound=BOUND, **settings)
            plans = [model.plan(train[:, 1:]) for _ in range(draws)]
            fits = [model.fit(train[:, :-1], train[:, -1], plan=plan).coef_ for plan in plans]
            found[arm] += [_mae(coefficients, test) for coefficients in fits]
            if arm == "paper_proj":
                true_epsilon = max(row.epsilon for row in model.plan_.adversaries)
        x, y = train[:, :-1], train[:, -1]
        found["np"].append(_mae(np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y), test))
    return found, true_epsilon


def _mae(coefficients: np.ndarray, test: np.ndarray) -> float:
    return float(np.abs(test[:, -1] - test[:, :-1] @ coefficients).mean())


def run(settings: Settings) -> dict[str, Any]:
    """Quartiles of every arm."""
    tasks = {
        (table, epsilon): (table.columns(), table, epsilon, settings.repeats, settings.draws)
        for table in settings.tables
        for epsilon in settings.epsilons
    }
    done = {}
    with tqdm(total=len(tasks), unit="setting") as bar:
        for key, arguments in tasks.items():
            bar.set_description(f"{key[0].name}, epsilon {key[1]:.2f}")
            done[key] = errors(*arguments)
            bar.update()
    results: dict[str, Any] = {"epsilons": settings.epsilons, "repeats": settings.repeats, "draws": settings.draws}
    for name, quantile in (("medians", 0.5), ("lower", 0.25), ("upper", 0.75)):
        results[name] = {
            table.name: {
                arm: [float(np.quantile(done[table, e][0][arm], quantile)) for e in settings.epsilons]
                for arm in (*ARMS, "np")
            }
            for table in settings.tables
        }
    results["classic_true_epsilon"] = [done[settings.tables[0], e][1] for e in settings.epsilons]
    return results | verdicts(results)


def verdicts(results: Mapping[str, Any]) -> dict[str, Any]:
    """The comparisons that the figure should show."""
    epsilons = np.array(results["epsilons"])
    medians = {t: {a: np.array(v) for a, v in arms.items()} for t, arms in results["medians"].items()}
    projected = all(
        np.all(arms[f"{arm}_proj"][epsilons <= 10.001] <= arms[arm][epsilons <= 10.001])
        for arms in medians.values()
        for arm in ("ddp", "ta", "paper", "tight")
    )
    within = all(
        np.all(arms[f"ddp{kind}"] >= np.array(results["lower"][t][f"ta{kind}"]))
        and np.all(arms[f"ddp{kind}"] <= np.array(results["upper"][t][f"ta{kind}"]))
        for t, arms in medians.items()
        for kind in ("", "_proj")
    )

    def excess(arm: str) -> float:
        return max(
            float((arms[f"{arm}{kind}"] / arms[f"paper{kind}"] - 1).max())
            for arms in medians.values()
            for kind in ("", "_proj")
        )

    return {
        "projected_at_most_unprojected": projected,
        "distributed_within_trusted": within,
        "worst_excess_noise_aware": excess("ddp"),
        "worst_excess_tight": excess("tight"),
    }


LINES = {
    "np": ("not private", MUTED, ":"),
    "ddp": ("distributed", SERIES[0], "-"),
    "ddp_proj": ("distributed, projected", SERIES[2], "-"),
    "ta": ("trusted", SERIES[0], "--"),
    "ta_proj": ("trusted, projected", SERIES[2], "--"),
    "paper": ("distributed, paper's", SERIES[4], "-"),
    "paper_proj": ("distributed, paper's, projected", SERIES[1], "-"),
    "input": ("input perturbation", SERIES[3], LINE_STYLES[2]),
}


@styled
def plot_errors(results: Mapping[str, Any]) -> Figure:
    """MAE over ε, a panel for each table; medians and quartiles."""
    tables = list(results["medians"])
    figure = new_figure(4.0 * len(tables), 4.6)
    panels = np.atleast_1d(figure.subplots(1, len(tables)))
    for axes, table in zip(panels, tables, strict=True):
        for i, (arm, (label, colour, style)) in enumerate(LINES.items()):
            middle, low, high = (np.array(results[k][table][arm]) for k in ("medians", "lower", "upper"))
            marker = MARKERS[i % len(MARKERS)]
            x = np.array(results["epsilons"]) * 1.02 ** (i - 3.5)  # beside each other, or the bars hide each other
            bars = np.stack([middle - low, high - middle])
            axes.errorbar(
                x, middle, bars, color=colour, linestyle=style, marker=marker, ms=4, lw=1.3, elinewidth=0.8, label=label
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
        axes.set_title(table)
        axes.set_xlabel(f"ε (replace, δ = {DELTA:g})")
        grid(axes, "y")
    panels[0].set_ylabel("test MAE, scaled units (median, quartiles)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repeats", type=int, default=25, help="splits for each setting (25)")
    args = arguments.parse_args()
    settings = Settings(repeats=args.repeats)
    if args.quick:
        settings = Settings(repeats=min(3, args.repeats), draws=1, epsilons=(1.0, 10.0), tables=TABLES[:1])
    results = run(settings)
    figure = plot_errors(results)
    finish({**results, "environment": environment()}, args, {"dca_regression": figure})


if __name__ == "__main__":
    main()
