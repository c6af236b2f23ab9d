"""A fitted regression's results as statisticians print them: what was fitted, a row for each coefficient, notes.

Short because it is a table and its columns: every estimator prints this one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy import Plan

INTERCEPT_ROW = "(intercept)"
_WIDTH = 78


@final
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class RegressionSummary:
    """A results table; it prints as statsmodels' does, and post-processes a release.

    There are no p-values: intervals are of a posterior, and know the noise of privacy.

    :ivar title: what was fitted.
    :ivar facts: label, records and budget by name, as they are printed.
    :ivar frame: a row for each coefficient, with `coef`, and `std err` and the interval's ends where there are some.
    :ivar notes: what to know before a number is read, in sentences without a full stop.
    """

    title: str
    facts: Mapping[str, str]
    frame: pd.DataFrame
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        """Within 78 columns, names aside."""
        rows = self.frame.to_string(float_format=lambda number: f"{number:.4f}", col_space=9).splitlines()
        width = max(_WIDTH, *map(len, rows))
        pairs = [f"{name + ':':<14}{value:>22}" for name, value in self.facts.items()]
        facts = [f"{left:<{width - 36}}{right}" for left, right in zip(pairs[::2], [*pairs[1::2], ""], strict=False)]
        heavy, light = "=" * width, "-" * width
        notes = [f"[{number}] {note}." for number, note in enumerate(self.notes, 1)]
        lines = [self.title.center(width).rstrip(), heavy, *facts, heavy, rows[0], light, *rows[1:], heavy, *notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        """The table, as a notebook and a prompt show it."""
        return str(self)


def facts_of_plan(plan: Plan, label: str | None) -> dict[str, str]:
    """What was spent on which records."""
    spent = {"records": f"{plan.num_records:,}", "epsilon": f"{plan.epsilon():.4g}", "delta": f"{plan.delta:.3g}"}
    return spent if label is None else {"label": label, **spent}


def interval_names(level: float) -> list[str]:
    """The columns of an interval's ends, as "[0.025" and "0.975]".

    :raises ArgumentError: level does not lie between 0 and 1.
    """
    if not 0 < level < 1:
        raise ArgumentError(f"level={level:g} must lie between 0 and 1")
    return [f"[{(1 - level) / 2:.4g}", f"{(1 + level) / 2:.4g}]"]


def normal_rows(names: Sequence[str], mean: Any, covariance: Any, level: float) -> pd.DataFrame:
    """A row for each coefficient of a normal posterior."""
    low, high = interval_names(level)
    mean, spread = np.asarray(mean, float), np.sqrt(np.maximum(np.diag(covariance), 0.0))
    half = norm.isf((1 - level) / 2) * spread
    return pd.DataFrame(
        {"coef": mean, "std err": spread, low: mean - half, high: mean + half}, index=pd.Index(list(names))
    )
