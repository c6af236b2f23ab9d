"""How close a synthetic twin is to the real table, in numbers, figures and one report.

Whatever takes a real table here is exact, not differentially private, and marked so.
"""

from vertinumpyro.evaluation.marginals import (
    KWayResult,
    cross_party_pairs,
    cross_party_tvd,
    k_way_tvd,
    one_way_tvd,
    pairwise_tvd,
    r_score,
    r_scores,
    tvd_floor,
    within_party_pairs,
    within_party_tvd,
)
from vertinumpyro.evaluation.predictions import (
    Calibration,
    Predicted,
    PredictionItems,
    calibration,
    plot_calibration,
    plot_roc,
    prediction_items,
)
from vertinumpyro.evaluation.report import (
    ADVERSARY_COLUMNS,
    ReportContent,
    ReportFigure,
    ReportTable,
    ReportText,
    render_report,
    write_report,
)
from vertinumpyro.evaluation.run_plots import (
    plot_adversaries,
    plot_curves,
    plot_nll_boxes,
    plot_objective,
    plot_survival,
)
from vertinumpyro.evaluation.table_plots import (
    ReleasedShares,
    plot_beside_release,
    plot_marginals,
    plot_pairwise_tvd,
    plot_tvd_comparison,
)
from vertinumpyro.evaluation.twin_measures import (
    CombinedEstimate,
    DownstreamResult,
    Scores,
    TwinMeasures,
    combine_estimates,
    evaluate_twin,
    train_on_synthetic_test_on_real,
)

__all__ = [
    "ADVERSARY_COLUMNS",
    "Calibration",
    "CombinedEstimate",
    "DownstreamResult",
    "KWayResult",
    "Predicted",
    "PredictionItems",
    "ReleasedShares",
    "ReportContent",
    "ReportFigure",
    "ReportTable",
    "ReportText",
    "Scores",
    "TwinMeasures",
    "calibration",
    "combine_estimates",
    "cross_party_pairs",
    "cross_party_tvd",
    "evaluate_twin",
    "k_way_tvd",
    "one_way_tvd",
    "pairwise_tvd",
    "plot_adversaries",
    "plot_beside_release",
    "plot_calibration",
    "plot_curves",
    "plot_marginals",
    "plot_nll_boxes",
    "plot_objective",
    "plot_pairwise_tvd",
    "plot_roc",
    "plot_survival",
    "plot_tvd_comparison",
    "prediction_items",
    "r_score",
    "r_scores",
    "render_report",
    "train_on_synthetic_test_on_real",
    "tvd_floor",
    "within_party_pairs",
    "within_party_tvd",
    "write_report",
]
