"""One analysis of several synthetic tables: Rubin's rules as they hold for fully synthetic data.

Short because it needs no table, and nothing else needs it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

import numpy as np
from scipy import stats

from vertinumpyro.core.errors import ArgumentError


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CombinedEstimate:
    """An estimate from several synthetic tables, of the population and not of a table.

    :ivar estimate: the mean over the tables.
    :ivar stddev: its standard deviation, with the privacy noise, the sample and the synthesis in it.
    :ivar degrees_of_freedom: of the t distribution that intervals are taken from.
    """

    estimate: np.ndarray
    stddev: np.ndarray
    degrees_of_freedom: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends."""
        if not 0 < level < 1:
            raise ArgumentError(f"level={level} must lie between 0 and 1")
        half = stats.t.ppf(0.5 + level / 2, self.degrees_of_freedom) * self.stddev
        return self.estimate - half, self.estimate + half


def combine_estimates(estimates: Any, variances: Any) -> CombinedEstimate:
    """Combines what an analysis gave on m synthetic tables, each made from a posterior draw of its own.

    With b the variance of the estimates between tables and u the mean of their own variances, the variance of the mean
    is T = (1 + 1/m) b - u (Raghunathan, Reiter and Rubin 2003, fully synthetic data; Räisä et al. 2023 for tables under
    DP), with (m - 1) (1 - u / ((1 + 1/m) b))^2 degrees of freedom. Where T comes out negative, which it does for few
    tables, u takes its place (Reiter 2002). The tables are those of `sample_synthetic(num_tables=m)`, with N records
    each; the intervals hold as far as the posterior does: under the law of the tables, not under the field's.

    :param estimates: point estimates, `[m, ...]`: say, coefficients.
    :param variances: their squared standard errors on each table, `[m, ...]`.
    :raises ArgumentError: fewer than two tables, different shapes, or values that are not finite.
    """
    estimates, variances = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if estimates.shape != variances.shape or estimates.ndim < 1 or len(estimates) < 2:
        raise ArgumentError(
            f"estimates and variances must have the same shape [m, ...] with m of at least 2 tables, got "
            f"{estimates.shape} and {variances.shape}"
        )
    if not (np.isfinite(estimates).all() and np.isfinite(variances).all() and (variances >= 0).all()):
        raise ArgumentError("estimates must be finite, and variances finite and not negative")
    tables = len(estimates)
    between, within = (1 + 1 / tables) * estimates.var(axis=0, ddof=1), variances.mean(axis=0)
    total = between - within
    ratio = np.divide(within, between, out=np.ones_like(within), where=between > 0)
    degrees = np.maximum((tables - 1) * (1 - ratio) ** 2, 1.0)
    return CombinedEstimate(
        estimate=estimates.mean(axis=0),
        stddev=np.sqrt(np.where(total > 0, total, within)),
        degrees_of_freedom=np.where(total > 0, degrees, tables - 1.0),
    )
