"""What a fitted survival regression says in a table that a paper prints: hazard ratios, and curves of some profiles.

All of it follows from the posterior's draws, so it is post-processing. Where their spread is no interval there are
estimates alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Column
from vertinumpyro.dpvi import Posterior
from vertinumpyro.model.hazards import PiecewiseHazard, table_numbers
from vertinumpyro.regression.dataframe_input import values_of
from vertinumpyro.regression.glm_model import BASELINE, INTERCEPT, Term
from vertinumpyro.regression.glm_settings import Regression

NUM_DRAWS = 2000


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
