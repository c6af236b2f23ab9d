"""How well a regression predicts, for whoever holds labels and predictions of the same records: none of it is DP.

Numbers are scikit-learn's. An event (a label of two values; of ordered ones, that it is at least some value) has a
receiver operating characteristic; every label has a calibration: what was observed, on average, where so much was
predicted.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.validation import shown
from vertinumpyro.evaluation import plot_style
from vertinumpyro.evaluation.report import ReportFigure, ReportTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Kind = Literal["event", "count", "real"]
_NORMAL_95 = 1.959963984540054
_BARS = 40
_SECTION = "Predictions"
_AXES = {
    "event": ("predicted probability", "observed share"),
    "count": ("predicted mean", "observed mean"),
    "real": ("predicted mean", "observed mean"),
}


class Predicted(NamedTuple):
    """Labels and predictions of the same records. Secret.

    :ivar observed: `[N]`; of an event 0 or 1.
    :ivar predicted: `[N]`: of an event its probability, otherwise the mean.
    """

    observed: np.ndarray
    predicted: np.ndarray


class Calibration(NamedTuple):
    """Groups of records whose predictions are alike, `[groups]`, lowest first.

    :ivar predicted: mean prediction.
    :ivar observed: mean label.
    :ivar low, high: 95% interval of that mean: Wilson's of an event, otherwise by the standard error.
    :ivar size: records.
    """

    predicted: np.ndarray
    observed: np.ndarray
    low: np.ndarray
    high: np.ndarray
    size: np.ndarray


class PredictionItems(NamedTuple):
    """What `ReportContent` takes as its `tables` and `figures`, all of it marked as not DP."""

    tables: list[ReportTable]
    figures: list[ReportFigure]


def calibration(found: Predicted, *, kind: Kind = "event", num_groups: int = 10) -> Calibration:
    """Observed against predicted means, in groups of as many records each by quantiles of the prediction. Not DP.

    :param found: labels and predictions.
    :param kind: "event" for a label of 0 and 1, "count" or "real".
    :param num_groups: fewer where many predictions are equal, as equal ones stay together.
    :raises ArgumentError: lengths differ, a number is not finite, or an event's are not in [0, 1].
    """
    observed, predicted = _checked(found, kind)
    if num_groups < 1:
        raise ArgumentError(f"num_groups={num_groups} must be at least 1")
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, num_groups + 1)[1:-1]))
    _, group = np.unique(np.searchsorted(edges, predicted, side="left"), return_inverse=True)
    size = np.bincount(group)
    mean, centre = (np.bincount(group, values) / size for values in (predicted, observed))
    if kind == "event":
        low, high = _wilson(centre, size)
    else:
        squares = np.bincount(group, (observed - centre[group]) ** 2)
        alone = size < 2  # nothing says how far it may be off
        half = _NORMAL_95 * np.sqrt(squares / np.where(alone, np.nan, size - 1) / size)
        low, high = centre - half, centre + half
    return Calibration(mean, centre, low, high, size)


@plot_style.styled
def plot_roc(events: Mapping[str, Predicted], *, note: str | None = plot_style.NOT_DP_NOTE) -> "Figure":
    """Receiver operating characteristics: true against false positives at every threshold, and their areas. Not DP.

    :param events: name -> labels 0 or 1 and scores, the higher the likelier.
    :param note: text for the corner, or None.
    :raises ArgumentError: there is no event, labels and scores do not fit, or an extra is missing.
    """
    metrics = _metrics()
    figure = plot_style.new_figure(4.6, 4.6)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=plot_style.MUTED, linestyle=":", linewidth=1.2, zorder=0)
    for index, (name, found) in enumerate(_some(events).items()):
        observed, predicted = _checked(found, "real")
        _check_both(name, observed)
        false, true, _ = metrics.roc_curve(observed, predicted)
        area = metrics.roc_auc_score(observed, predicted)
        colour = plot_style.SERIES[index % len(plot_style.SERIES)]
        style = plot_style.LINE_STYLES[index % len(plot_style.LINE_STYLES)]
        axes.plot(false, true, color=colour, linestyle=style, linewidth=2.0, label=f"{name}: area {area:.3f}")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_aspect("equal")
    plot_style.grid(axes, "both")
    axes.legend(loc="lower right")
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_calibration(
    labels: Mapping[str, Predicted],
    *,
    kind: Kind = "event",
    num_groups: int = 10,
    note: str | None = plot_style.NOT_DP_NOTE,
) -> "Figure":
    """Observed against predicted means with 95% intervals, and how the predictions are spread. Not DP.

    On the diagonal a prediction is right on average.

    :param labels: name -> labels and predictions.
    :param kind, num_groups: see `calibration`.
    :param note: text for the corner, or None.
    :raises ArgumentError: there is no label, labels and predictions do not fit, or an extra is missing.
    """
    found = {name: calibration(one, kind=kind, num_groups=num_groups) for name, one in _some(labels).items()}
    figure = plot_style.new_figure(4.8, 5.6)
    above, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    for index, (name, groups) in enumerate(found.items()):
        colour = plot_style.SERIES[index % len(plot_style.SERIES)]
        marker = plot_style.MARKERS[index % len(plot_style.MARKERS)]
        lengths = np.nan_to_num(np.abs(np.stack([groups.observed - groups.low, groups.high - groups.observed])))
        above.errorbar(
            groups.predicted, groups.observed, yerr=lengths, color=colour, marker=marker, markersize=5, linewidth=1.6,
            elinewidth=1.0, label=name,
        )  # fmt: skip
    low, high = _ends(above, found, kind)
    for index, one in enumerate(labels.values()):
        colour = plot_style.SERIES[index % len(plot_style.SERIES)]
        bins = np.linspace(low, high, _BARS + 1)
        below.hist(np.asarray(one.predicted), bins=bins.tolist(), histtype="step", color=colour, linewidth=1.6)
    predicted, observed = _AXES[kind]
    above.set_ylabel(observed)
    below.set(xlabel=predicted, ylabel="records")
    for axes in (above, below):
        plot_style.grid(axes, "y")
    if len(found) > 1:
        above.legend(loc="upper left")
    return plot_style.noted(figure, note)


def prediction_items(labels: Mapping[str, Predicted], *, kind: Kind = "event", num_groups: int = 10,
    records: str = "records whose labels are known",
) -> PredictionItems:  # fmt: skip
    """The table and the figures of a report on predictions, every one of them marked as not DP.

    Of an event the area under the ROC curve, Brier score and log loss, a ROC curve and a calibration; of counts the
    mean Poisson deviance and the share of it explained, of reals the root mean squared error and R², and a calibration.

    :param labels: name -> labels and predictions.
    :param kind, num_groups: see `calibration`.
    :param records: which they are, for the caption.
    :raises ArgumentError: as for the figures.
    """
    checked = {name: Predicted(*_checked(found, kind)) for name, found in _some(labels).items()}
    if kind == "event":
        for name, found in checked.items():
            _check_both(name, found.observed)
    rows = {name: _numbers(found, kind) for name, found in checked.items()}
    caption = f"How well the model predicts {records}; by scikit-learn's metrics."
    table = ReportTable(frame=pd.DataFrame(rows).T, caption=caption, not_dp=True, section=_SECTION)
    groups = f"records in up to {num_groups} groups of alike predictions, with 95% intervals of what was observed"
    figures = [
        ReportFigure(
            figure=plot_calibration(labels, kind=kind, num_groups=num_groups),
            caption=f"Calibration: {groups}. On the diagonal a prediction is right on average.",
            not_dp=True,
            section=_SECTION,
        )
    ]
    if kind == "event":
        caption = "Receiver operating characteristic: true against false positives at every threshold."
        figures.insert(0, ReportFigure(figure=plot_roc(labels), caption=caption, not_dp=True, section=_SECTION))
    return PredictionItems([table], figures)


def _numbers(found: Predicted, kind: Kind) -> dict[str, float]:
    metrics, (observed, predicted) = _metrics(), found
    means = {"records": float(len(observed)), "observed": observed.mean(), "predicted": predicted.mean()}
    if kind == "event":
        return {
            **means,
            "area under ROC": metrics.roc_auc_score(observed, predicted),
            "Brier score": metrics.brier_score_loss(observed, predicted),
            "log loss": metrics.log_loss(observed, predicted),
        }
    if kind == "count":
        deviance = metrics.mean_poisson_deviance(observed, predicted)
        return {**means, "deviance": deviance, "D²": metrics.d2_tweedie_score(observed, predicted, power=1)}
    error = float(np.sqrt(metrics.mean_squared_error(observed, predicted)))
    return {**means, "root mean squared error": error, "R²": metrics.r2_score(observed, predicted)}


def _wilson(share: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z2 = _NORMAL_95**2
    centre = (share + z2 / (2 * size)) / (1 + z2 / size)
    half = _NORMAL_95 * np.sqrt(share * (1 - share) / size + z2 / (4 * size**2)) / (1 + z2 / size)
    return centre - half, centre + half


def _ends(axes: "Axes", found: Mapping[str, Calibration], kind: Kind) -> tuple[float, float]:
    """Draws the diagonal, with room for all groups; its ends."""
    if kind == "event":
        low, high = 0.0, 1.0
    else:
        values = np.concatenate([v for groups in found.values() for v in groups[:4]])
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = 0.03 * (high - low) or 1.0
    axes.plot([low, high], [low, high], color=plot_style.MUTED, linestyle=":", linewidth=1.2, zorder=0)
    axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
    return low, high


def _checked(found: Predicted, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    if kind not in get_args(Kind):
        raise ArgumentError(f"kind={shown(kind)} must be one of {', '.join(map(repr, get_args(Kind)))}")
    observed, predicted = (np.asarray(values, np.float64) for values in found)
    if observed.shape != predicted.shape or observed.ndim != 1 or not observed.size:
        raise ArgumentError(
            f"observed has shape {observed.shape} and predicted {predicted.shape}; give [N] of each, N at least 1"
        )
    if not (np.all(np.isfinite(observed)) and np.all(np.isfinite(predicted))):
        raise ArgumentError("observed and predicted must be finite; leave records without a label out")
    if kind == "event" and (not np.all(np.isin(observed, (0, 1))) or np.any((predicted < 0) | (predicted > 1))):
        raise ArgumentError(
            'observed must be 0 or 1 and predicted in [0, 1]; of other labels say kind="count" or "real"'
        )
    if kind == "count" and (np.any(observed < 0) or np.any(predicted <= 0)):
        raise ArgumentError('observed must not be negative and predicted must be positive; of a real say kind="real"')
    return observed, predicted


def _check_both(name: str, observed: np.ndarray) -> None:
    if not np.array_equal(np.unique(observed), [0, 1]):
        raise ArgumentError(f"{name!r} has not both labels, 0 and 1, so it has no ROC curve; give records of both")


def _some(labels: Mapping[str, Predicted]) -> Mapping[str, Predicted]:
    if not isinstance(labels, Mapping) or not labels:
        raise ArgumentError("labels: give {name: Predicted(observed, predicted)}, at least one")
    return labels


def _metrics() -> Any:
    return plot_style.optional_module("sklearn.metrics", "scikit-learn")
