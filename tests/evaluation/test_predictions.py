"""ROC, calibration and their numbers, beside scikit-learn's own; bad input; what is marked as not DP."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="metrics are scikit-learn's: extra `report`")

from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, mean_poisson_deviance, roc_auc_score

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.evaluation import (
    Predicted,
    ReportContent,
    calibration,
    plot_calibration,
    plot_roc,
    prediction_items,
    write_report,
)
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE


@pytest.fixture(scope="module")
def event():
    rng = np.random.default_rng(0)
    probability = rng.beta(1, 2, 3000)
    return Predicted((rng.random(3000) < probability).astype(int), probability)


@pytest.fixture(scope="module")
def count():
    rng = np.random.default_rng(1)
    rate = rng.gamma(2.0, 1.0, 3000)
    return Predicted(rng.poisson(rate), rate)


def test_groups_are_scikit_learns_and_their_intervals_hold_the_truth(event, count):
    found = calibration(event)
    observed, predicted = calibration_curve(*event, n_bins=10, strategy="quantile")
    np.testing.assert_allclose(found.observed, observed)
    np.testing.assert_allclose(found.predicted, predicted)
    assert list(found.size) == [300] * 10
    for kind, groups in (("event", found), ("count", calibration(count, kind="count"))):
        inside = (groups.low <= groups.predicted) & (groups.predicted <= groups.high)
        assert np.sum(inside) >= 8, kind  # predictions are right here, and intervals are of 95%
        assert np.all((groups.low < groups.observed) & (groups.observed < groups.high))
    wrong = calibration(Predicted(event.observed, event.predicted**2))
    assert np.sum((wrong.low <= wrong.predicted) & (wrong.predicted <= wrong.high)) <= 3


def test_equal_predictions_stay_in_one_group():
    found = calibration(Predicted(np.array([0, 1, 0, 1, 1]), np.array([0.5, 0.5, 0.5, 0.5, 0.9])))
    np.testing.assert_allclose(found.observed, [0.5, 1.0])
    assert list(found.size) == [4, 1]
    alone = calibration(Predicted(np.array([1.0]), np.array([2.0])), kind="real")
    assert np.isnan(alone.low[0])


def test_numbers_are_scikit_learns(event, count):
    row = prediction_items({"late": event}).tables[0].frame.loc["late"]
    assert row["area under ROC"] == pytest.approx(roc_auc_score(*event))
    assert row["Brier score"] == pytest.approx(brier_score_loss(*event))
    row = prediction_items({"visits": count}, kind="count").tables[0].frame.loc["visits"]
    assert row["deviance"] == pytest.approx(mean_poisson_deviance(*count))
    row = prediction_items({"debt": Predicted(np.array([1.0, 2.0]), np.array([1.0, 4.0]))}, kind="real").tables[0].frame
    assert row["root mean squared error"].iloc[0] == pytest.approx(np.sqrt(2))


def test_figures_carry_the_note_and_the_area(event, count):
    roc = plot_roc({"late": event})
    assert f"area {roc_auc_score(*event):.3f}" in roc.axes[0].get_legend().get_texts()[0].get_text()
    for figure in (roc, plot_calibration({"late": event}), plot_calibration({"visits": count}, kind="count")):
        figure.canvas.draw()
        assert figure.get_supxlabel() == NOT_DP_NOTE
    drawn = plot_calibration({"late": event}).axes[0].get_lines()[0].get_xydata()
    np.testing.assert_allclose(drawn, np.column_stack(calibration(event)[:2]))


def test_a_release_refuses_all_of_it(event, tmp_path):
    items = prediction_items({"late": event})
    content = ReportContent(title="A regression", tables=items.tables, figures=items.figures)
    assert len(content.not_dp_captions()) == 3
    write_report(tmp_path / "internal.html", content)
    with pytest.raises(PrivacyError, match="not DP"):
        write_report(tmp_path / "public.html", content, release=True)


@pytest.mark.parametrize(
    ("found", "kind", "message"),
    [
        (Predicted(np.ones(3), np.ones(2)), "event", "has shape"),
        (Predicted(np.zeros(0), np.zeros(0)), "event", "at least 1"),
        (Predicted(np.array([np.nan]), np.ones(1)), "real", "finite"),
        (Predicted(np.array([2.0]), np.ones(1)), "event", "0 or 1"),
        (Predicted(np.array([1.0]), np.array([1.5])), "event", "0 or 1"),
        (Predicted(np.array([1.0]), np.array([0.0])), "count", "must be positive"),
        (Predicted(np.ones(1), np.ones(1)), "classes", "must be one of 'event'"),
        (Predicted(np.ones(2), np.ones(2)), "event", "has not both labels"),
    ],
)
def test_what_does_not_fit_is_refused(found, kind, message):
    with pytest.raises(ArgumentError, match=message):
        prediction_items({"y": found}, kind=kind)
    with pytest.raises(ArgumentError, match="at least one"):
        plot_roc({})
