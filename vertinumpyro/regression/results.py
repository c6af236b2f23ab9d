"""A fitted regression's results as statisticians print them: what was fitted, a row for each coefficient, notes; and of
a survival regression hazard ratios, and curves of some profiles.

What a survival's tables and curves say follows from the posterior's draws, so it is post-processing. Where their spread
is no interval there are estimates alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.stats import norm

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column
from vertinumpyro.dpvi import Posterior
from vertinumpyro.model.hazards import PiecewiseHazard, table_numbers
from vertinumpyro.privacy import Plan
from vertinumpyro.regression.dataframe_input import values_of
from vertinumpyro.regression.glm_model import BASELINE, INTERCEPT, Term
from vertinumpyro.regression.glm_settings import Regression

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


NUM_DRAWS = 2000
FIRST_VALUES = "Values of a column are over its first one, and the intercept is where all columns have their first"
"""What to know of `treatment_rows` that are of values."""


def treatment_rows(
    regression: Regression, posterior: Posterior, intercept: float, coefficients: np.ndarray, level: float
) -> tuple[pd.DataFrame, list[str]]:
    """A row for the intercept, each number, and each value of a column over its first, and what to know of them.

    A coefficient for every value and an intercept beside them are known by their priors alone, wide as these are; what
    records say is how values differ, which a table that is read has to have.

    :param intercept, coefficients: `[d]`, in the terms' order.
    :param level: of the intervals, where the posterior has some.
    """
    names, rows, place, size = [INTERCEPT_ROW], [np.eye(1 + len(coefficients))[0]], 1, 1 + len(coefficients)
    terms = [term for term in regression.terms if isinstance(term, Term)]
    for term in terms:
        own = np.eye(size)[place : place + term.size]
        if term.ends is None:
            names += term.names[1:]
            rows[0], own = rows[0] + own[0], own[1:] - own[0]
        else:
            names += term.names
        rows += list(own)
        place += term.size
    contrasts = np.array(rows)
    low, high = interval_names(level)
    frame = pd.DataFrame({"coef": contrasts @ np.array([intercept, *coefficients])}, index=pd.Index(names))
    if posterior.is_interval:
        drawn = _draws(posterior)
        sites = [drawn[INTERCEPT], *(drawn[term.site] for term in terms)]
        drawn_rows = np.concatenate([site.reshape(NUM_DRAWS, -1) for site in sites], axis=1) @ contrasts.T
        frame["std err"] = drawn_rows.std(0)
        frame[low], frame[high] = np.quantile(drawn_rows, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return frame, [FIRST_VALUES] if any(term.ends is None for term in terms) else []


def hazard_ratios(regression: Regression, posterior: Posterior, prob: float) -> pd.DataFrame:
    """A row for each number, over the range of its public bounds, and for each value of a column over its first.

    :param prob: of the interval.
    """
    draws, found = _draws(posterior), {}
    for term in (term for term in regression.terms if isinstance(term, Term)):
        column, own = regression.schema.columns[term.column], draws[term.site]
        if term.ends is not None:
            low, high = (_shown(table_numbers(column, np.asarray(end))) for end in term.ends)
            found[f"{term.column}: {high} over {low}"] = 2 * own
            continue
        first, *others = values_of(column) if len(column.labels) == term.size else np.arange(term.size)
        for code, value in enumerate(others, 1):
            found[f"{term.column}: {_shown(value)} over {_shown(first)}"] = own[:, code] - own[:, 0]
    return _summary({name: np.exp(log_ratio) for name, log_ratio in found.items()}, posterior, prob)


def survival_curves(
    regression: Regression, posterior: Posterior, profiles: Mapping[str, Mapping[str, np.ndarray]], times: np.ndarray,
    prob: float,
) -> pd.DataFrame:  # fmt: skip
    """Rows by profile and time: probabilities of no event from time 0 until then.

    :param profiles: by name, columns `[1]` in model units.
    :param times: in the table's units.
    """
    draws, hazard = _draws(posterior), PiecewiseHazard(regression.cutpoints or ())
    later = draws.get(BASELINE, np.zeros((NUM_DRAWS, 0)))
    levels = np.exp(np.pad(later, ((0, 0), (1, 0))) + draws[INTERCEPT][:, None])
    cumulative = levels @ np.asarray(hazard.exposure(times), np.float64).T
    found = {}
    for name, columns in profiles.items():
        added = sum(_added(term, draws, columns) for term in regression.terms if isinstance(term, Term))
        surviving = np.exp(-np.exp(added)[:, None] * cumulative)
        for time, at_time in zip(times, surviving.T, strict=True):
            found[name, float(time)] = np.where(time <= 0, 1.0, at_time)
    table = _summary(found, posterior, prob)
    table.index = pd.MultiIndex.from_tuples(table.index, names=["profile", "time"])
    return table


def reference_profile(regression: Regression) -> dict[str, np.ndarray]:
    """The middle of each number's public bounds, and the first value of every other column, `[1]` in model units."""
    terms = [term for term in regression.terms if isinstance(term, Term)]
    return {t.column: np.array([0 if t.ends is None else sum(t.ends) / 2]) for t in terms}


def default_times(column: Column) -> np.ndarray:
    """From 0 to the largest time, in the table's units."""
    return np.linspace(0.0, float(table_numbers(column, np.asarray(column.encoded_range[1]))), 61)


def _draws(posterior: Posterior) -> dict[str, np.ndarray]:
    found = posterior.sample(compat.random_key(0), NUM_DRAWS)
    return {name: np.asarray(values, np.float64) for name, values in found.items()}


def _added(term: Term, draws: Mapping[str, np.ndarray], columns: Mapping[str, Any]) -> np.ndarray:
    """To the predictor of one record, `[S]`."""
    value, own = np.asarray(columns[term.column])[0], draws[term.site]
    return own[:, int(value)] if term.ends is None else own * term.scaled(float(value))


def _summary(draws: Mapping[Any, np.ndarray], posterior: Posterior, prob: float) -> pd.DataFrame:
    if not 0 < prob < 1:
        raise ArgumentError(f"prob={prob:g} must lie between 0 and 1")
    ends = (1 - prob) / 2, (1 + prob) / 2
    rows = {name: [np.median(values), *np.quantile(values, ends)] for name, values in draws.items()}
    table = pd.DataFrame(rows.values(), columns=["estimate", "lower", "upper"], index=list(rows))
    return table if posterior.is_interval else table.drop(columns=["lower", "upper"])


def _shown(value: Any) -> str:
    return f"{float(value):g}" if isinstance(value, float | np.floating | np.ndarray) else str(value)
