"""The library's figures: of tables (`table_plots`), of releases (`release_plots`) and of runs (`run_plots`)."""

from vertinumpyro.evaluation.release_plots import ReleasedShares, plot_beside_release
from vertinumpyro.evaluation.run_plots import plot_adversaries, plot_curves, plot_nll_boxes, plot_objective
from vertinumpyro.evaluation.table_plots import plot_marginals, plot_pairwise_tvd, plot_tvd_comparison

__all__ = [
    "ReleasedShares",
    "plot_adversaries",
    "plot_beside_release",
    "plot_curves",
    "plot_marginals",
    "plot_nll_boxes",
    "plot_objective",
    "plot_pairwise_tvd",
    "plot_tvd_comparison",
]
