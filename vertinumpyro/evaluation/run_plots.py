"""Figures about runs: the objective, curves, repeated runs, and what each adversary's epsilon is.

Every function returns a `matplotlib.figure.Figure` that pyplot does not know.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.evaluation import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_SHORT_TRACE = 50  # steps; shorter traces are drawn as they are


@plot_style.styled
def plot_objective(
    trace: "ArrayLike",
    *,
    label: str = "objective",
    steps: "ArrayLike | None" = None,
    note: str | None = plot_style.NOT_DP_NOTE,
    width: float = 7.2,
) -> "Figure":
    """The trace of an objective over steps: single values pale, their running median as a dark line.

    :param trace: float array [T]; non-finite values leave a gap.
    :param label: what the objective is, for the y axis (say "negative ELBO per record").
    :param steps: float array [T], the step of each value; None means 1 to T.
    :param note: text for the corner (an objective evaluated on real data is not DP), or None.
    :param width: of the figure, in inches.
    :raises ArgumentError: `trace` is empty or not one-dimensional, `steps` has another shape, or matplotlib is missing.
    """
    values = _vector(trace, "trace")
    at = np.arange(1, len(values) + 1) if steps is None else _vector(steps, "steps")
    if at.shape != values.shape:
        raise ArgumentError(f"steps must have the shape of trace, {values.shape}, got {at.shape}")
    figure = plot_style.new_figure(width, min(3.4, 0.8 * width))
    axes = figure.subplots()
    shown = np.where(np.isfinite(values), values, np.nan)
    long = len(values) > _SHORT_TRACE
    axes.plot(at, shown, color=plot_style.SERIES[0], linewidth=0.8 if long else 2.0, alpha=0.3 if long else 1.0)
    if long:
        smooth, window = _running_median(shown)
        axes.plot(at, smooth, color=plot_style.SERIES[0], linewidth=2.0, label=f"median of {window} steps")
        axes.legend(loc="upper right")
        _set_robust_limits(axes, shown)
    axes.set(xlabel="step", ylabel=label)
    plot_style.grid(axes, "y")
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_nll_boxes(
    groups: Mapping[str, "ArrayLike"],
    reference_lines: Mapping[str, float] | None = None,
    *,
    ylabel: str = "test negative log-likelihood per record",
    note: str | None = plot_style.NOT_DP_NOTE,
) -> "Figure":
    """A box for each group of repeated runs with every run as a dot, after Figure 3 of the DPVI paper.

    Boxes span the quartiles, whiskers the whole range.

    :param groups: label -> float array [repeats], in the order to draw.
    :param reference_lines: label -> value of a dashed horizontal line (say a non-private run).
    :param ylabel: the y axis's label.
    :param note: text for the corner (a likelihood of real data is not DP), or None.
    :raises ArgumentError: `groups` is empty or one of its arrays is, or matplotlib is missing.
    """
    if not groups:
        raise ArgumentError("groups must have at least one label")
    values = [_vector(runs, f"groups[{label!r}]") for label, runs in groups.items()]
    figure = plot_style.new_figure(max(4.6, 1.4 + 1.15 * len(groups)), 3.8)
    axes = figure.subplots()
    _draw_boxes(axes, values)
    axes.set_xticks(np.arange(len(groups)), list(groups))
    axes.set_ylabel(ylabel)
    plot_style.grid(axes, "y")
    for index, (label, level) in enumerate((reference_lines or {}).items()):
        style = plot_style.LINE_STYLES[1 + index % 3]
        axes.axhline(level, color=plot_style.MUTED, linestyle=style, linewidth=1.4, label=label, zorder=1)
    if reference_lines:
        figure.legend(loc="outside upper left", ncols=min(3, len(reference_lines)))
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_curves(
    curves: Mapping[str, tuple["ArrayLike", "ArrayLike"]],
    *,
    xlabel: str = "step",
    ylabel: str = "negative log-likelihood per record",
    log_x: bool = False,
    note: str | None = plot_style.NOT_DP_NOTE,
) -> "Figure":
    """Labelled curves in one panel, after Figure 2 of the DPVI paper.

    :param curves: label -> (x, y), x a float array [points], y [points] or [repeats, points]. Repeats are drawn as
        their median within a band from their smallest to their largest value.
    :param xlabel: the x axis's label.
    :param ylabel: the y axis's label.
    :param log_x: whether the x axis is logarithmic.
    :param note: text for the corner (curves computed on real data are not DP), or None.
    :raises ArgumentError: `curves` is empty, an x and y do not fit, or matplotlib is missing.
    """
    if not curves:
        raise ArgumentError("curves must have at least one label")
    figure = plot_style.new_figure(7.2, 3.8)
    axes = figure.subplots()
    for index, (label, (x, y)) in enumerate(curves.items()):
        _draw_curve(axes, index, label, _vector(x, f"the x of curves[{label!r}]"), y)
    if log_x:
        axes.set_xscale("log")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    plot_style.grid(axes, "y")
    figure.legend(loc="outside upper left", ncols=min(4, len(curves)))
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_survival(curves: pd.DataFrame, *, width: float = 7.2) -> "Figure":
    """Survival curves of some profiles, with bands where there are intervals.

    :param curves: as `VerticalGLM.survival_curves` has them.
    :param width: in inches.
    """
    figure = plot_style.new_figure(width, min(4.2, 0.75 * width))
    axes = figure.subplots()
    for index, (name, rows) in enumerate(curves.groupby(level="profile", sort=False)):
        colour, times = plot_style.SERIES[index % len(plot_style.SERIES)], rows.index.get_level_values("time")
        style = plot_style.LINE_STYLES[index % len(plot_style.LINE_STYLES)]
        axes.plot(times, rows["estimate"], color=colour, linestyle=style, linewidth=2.0, label=str(name))
        if "lower" in rows:
            axes.fill_between(times, rows["lower"], rows["upper"], color=colour, alpha=0.18, linewidth=0)
    axes.set(xlabel="time", ylabel="no event until then", ylim=(-0.01, 1.02))
    axes.set_xlim(left=0.0)
    plot_style.grid(axes, "both")
    axes.legend(loc="best")
    return figure


@plot_style.styled
def plot_adversaries(rows: Sequence[Mapping[str, Any]], *, width: float = 7.2) -> "Figure":
    """Epsilon for each adversary, as dots on a logarithmic axis; a lower epsilon is a stronger guarantee.

    Rows with the same adversary share a line, with a marker for each neighbouring relation. A row without a
    finite epsilon is drawn as an arrow at the right end: nothing is guaranteed against that adversary. An epsilon of 0
    stands at the left end. An epsilon given as text is written as it is.

    :param rows: one mapping for each row, with "adversary", "epsilon" (a number, or text such as "1.82" or "inf") and
        optionally "relation".
    :param width: of the figure, in inches.
    :raises ArgumentError: `rows` is empty, a row lacks a key, an epsilon is negative, or matplotlib is missing.
    """
    points = [_adversary_point(row, index) for index, row in enumerate(rows)]
    if not points:
        raise ArgumentError("rows must have at least one row")
    names = list(dict.fromkeys(point.adversary for point in points))
    relations = list(dict.fromkeys(point.relation for point in points))
    figure = plot_style.new_figure(width, 1.35 + 0.42 * len(names))
    axes = figure.subplots()
    low, high = _epsilon_range([point.epsilon for point in points])
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    for index, relation in enumerate(relations):
        drawn = [point._replace(epsilon=max(point.epsilon, low)) for point in points if point.relation == relation]
        _draw_relation(axes, index, relation, [(names.index(point.adversary), point) for point in drawn], high)
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("epsilon (log scale)")
    axes.xaxis.set_major_formatter("{x:g}")
    plot_style.grid(axes, "x")
    axes.hlines(np.arange(len(names)), low, high, color=plot_style.RULE, linewidth=0.8, zorder=0)
    axes.tick_params(axis="y", length=0)
    if any(relations):
        figure.legend(loc="outside upper left", ncols=len(relations))
    return figure


def _vector(values: "ArrayLike", argument: str) -> np.ndarray:
    array = np.asarray(values, float)
    if array.ndim != 1 or not array.size:
        raise ArgumentError(f"{argument} must be one-dimensional and not empty, got {array.shape}")
    return array


def _running_median(values: np.ndarray) -> tuple[np.ndarray, int]:
    window = max(5, len(values) // 40) | 1
    rolling = pd.Series(values).rolling(window, center=True, min_periods=1)
    return rolling.median().to_numpy(), window


def _set_robust_limits(axes: "Axes", values: np.ndarray) -> None:
    """Leave the wildest two percent of the single values out of the y range, not out of the line."""
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high = np.quantile(finite, [0.01, 0.99])
        pad = 0.06 * (high - low) or 1.0
        axes.set_ylim(low - pad, high + pad)


def _draw_boxes(axes: "Axes", values: Sequence[np.ndarray]) -> None:
    line = {"color": plot_style.SERIES[0], "linewidth": 1.4}
    axes.boxplot(
        list(values),
        positions=list(range(len(values))),
        widths=0.5,
        whis=(0, 100),
        showcaps=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "#dbe9f4", "edgecolor": plot_style.SERIES[0], "linewidth": 1.2},
        whiskerprops=line,
        medianprops={"color": plot_style.INK, "linewidth": 2.0},
    )
    for place, runs in enumerate(values):
        spread = np.linspace(-0.14, 0.14, len(runs)) if len(runs) > 1 else np.zeros(1)
        axes.scatter(place + spread, runs, s=14, color=plot_style.SERIES[0], alpha=0.75, linewidth=0, zorder=3)
    axes.set_xlim(-0.6, len(values) - 0.4)


def _draw_curve(axes: "Axes", index: int, label: str, x: np.ndarray, y: "ArrayLike") -> None:
    runs = np.atleast_2d(np.asarray(y, float))
    if runs.ndim != 2 or not runs.shape[0] or runs.shape[1] != len(x):
        raise ArgumentError(f"the y of curves[{label!r}] must be [{len(x)}] or [repeats, {len(x)}], got {runs.shape}")
    colour = plot_style.SERIES[index % len(plot_style.SERIES)]
    style = plot_style.LINE_STYLES[index % len(plot_style.LINE_STYLES)]
    axes.plot(x, np.median(runs, axis=0), color=colour, linestyle=style, linewidth=2.0, label=label)
    if len(runs) > 1:
        axes.fill_between(x, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.18, linewidth=0)


class _Point(NamedTuple):
    adversary: str
    relation: str
    epsilon: float
    label: str


def _adversary_point(row: Mapping[str, Any], index: int) -> _Point:
    missing = {"adversary", "epsilon"} - set(row)
    if missing:
        raise ArgumentError(f"rows[{index}] lacks {sorted(missing)}")
    try:
        epsilon = float(row["epsilon"])
    except (TypeError, ValueError):
        epsilon = math.inf  # no number, no guarantee
    if not epsilon >= 0:
        raise ArgumentError(f"rows[{index}]['epsilon'] must not be negative, got {epsilon}")
    label = row["epsilon"] if isinstance(row["epsilon"], str) else f"{epsilon:.3g}"
    return _Point(str(row["adversary"]), str(row.get("relation", "")), epsilon, label)


def _epsilon_range(epsilons: Sequence[float]) -> tuple[float, float]:
    finite = [e for e in epsilons if e > 0 and math.isfinite(e)] or [1.0]
    return min(0.1, min(finite) / 2), max(10.0, max(finite) * 3)


def _draw_relation(axes: "Axes", index: int, relation: str, points: Sequence[tuple[int, _Point]], high: float) -> None:
    colour = plot_style.SERIES[index % len(plot_style.SERIES)]
    marker = plot_style.MARKERS[index % len(plot_style.MARKERS)]
    finite = [(point.epsilon, place) for place, point in points if math.isfinite(point.epsilon)]
    x, y = np.array(finite).reshape(-1, 2).T
    axes.scatter(x, y, s=52, color=colour, marker=marker, label=relation or None, zorder=3)
    for place, point in points:
        if math.isfinite(point.epsilon):
            _write_beside(axes, point.label, (point.epsilon, place), (7, 6), "left", colour)
        else:
            text = "no bound \N{RIGHTWARDS ARROW}"
            _write_beside(axes, text, (high, place), (-2, 5), "right", colour)


def _write_beside(
    axes: "Axes", text: str, at: tuple[float, float], offset: tuple[int, int], side: str, colour: str
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", ha=side, color=colour, size=9)
