"""The same models on pooled records, without privacy: Laplace's approximation, a hierarchy's scale on a grid."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from noise_aware_parts.models import CONCENTRATION, CUTPOINTS, HAZARD, NUM_GROUPS, NUM_SLOPES, Table
from scipy.special import expit
from scipy.stats import norm

_ROUNDS = 30
_SCALES = np.linspace(0.02, 2.0, 100)
_QUANTILES = 0.025, 0.975


class _Likelihood(NamedTuple):
    """A Gaussian in the coefficients: exp(linear'b - b' precision b / 2)."""

    precision: np.ndarray
    linear: np.ndarray


def summary(table: Table) -> pd.DataFrame:
    """Rows as of `Posterior.summary`: estimate, std_error, lower, upper."""
    design = [np.ones(len(table.y)), *table.x.T]
    names = ["intercept", *(f"slopes[{i}]" for i in range(NUM_SLOPES))]
    if table.family.grouped:
        design += list(np.eye(NUM_GROUPS)[table.groups].T)
        names += [f"groups[{i}]" for i in range(NUM_GROUPS)]
    prior = np.full(len(names), table.family.spread**-2)
    prior[1 + NUM_SLOPES :] = 4.0
    if table.time is not None:
        return _survival(table, np.column_stack(design), names)
    found = _likelihood(table, np.column_stack(design), prior)
    if not table.family.grouped:
        return _rows(names, *_moments(found, prior)[:2])
    return _hierarchy(names, found, prior)


def _survival(table: Table, x: np.ndarray, names: list[str]) -> pd.DataFrame:
    """A count for each person and interval, of which the likelihood is the same."""
    assert table.time is not None
    lived = np.asarray(HAZARD.exposure(table.time), float)
    last = np.searchsorted(CUTPOINTS, table.time)
    person, interval = np.nonzero(lived)
    design = np.column_stack([x[person], np.eye(lived.shape[1])[interval, 1:]])
    names = [*names, *(f"baseline[{i}]" for i in range(lived.shape[1] - 1))]
    prior, beta = np.full(len(names), table.family.spread**-2), np.zeros(len(names))
    events = table.y[person] * (interval == last[person])
    for _ in range(_ROUNDS):
        rate = lived[person, interval] * np.exp(np.clip(design @ beta, -30, 30))
        precision = (design * rate[:, None]).T @ design
        step = np.linalg.solve(precision + np.diag(prior), design.T @ (events - rate) - prior * beta)
        beta += step * min(1.0, 1.0 / np.abs(step).max())
    return _rows(names, *_moments(_Likelihood(precision, precision @ beta + design.T @ (events - rate)), prior)[:2])


def _likelihood(table: Table, x: np.ndarray, prior: np.ndarray) -> _Likelihood:
    """About the mode under a normal prior."""
    beta = np.zeros(x.shape[1])
    for _ in range(_ROUNDS):
        residual, weight = _derivatives(table, np.clip(x @ beta + np.log(table.exposed), -30, 30))
        precision = (x * weight[:, None]).T @ x
        step = np.linalg.solve(precision + np.diag(prior), x.T @ residual - prior * beta)
        beta += step * min(1.0, 1.0 / np.abs(step).max())
    return _Likelihood(precision, precision @ beta + x.T @ residual)


def _derivatives(table: Table, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """D log p / d eta and minus the second derivative's mean."""
    y, law = table.y, table.family.law
    if law == "linear":
        return y - eta, np.ones_like(eta)
    if law == "logistic":
        mean = expit(eta)
        return y - mean, mean * (1 - mean)
    rate = np.exp(eta)
    if law == "poisson":
        return y - rate, rate
    share = 1 / (1 + rate / CONCENTRATION)
    return (y - rate) * share, rate * share


def _moments(found: _Likelihood, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean, standard deviations and the log evidence."""
    whole = found.precision + np.diag(prior)
    covariance = np.linalg.inv(whole)
    mean = covariance @ found.linear
    evidence = (mean @ found.linear + np.log(prior).sum() - np.linalg.slogdet(whole)[1]) / 2
    return mean, np.sqrt(np.diag(covariance)), evidence


def _hierarchy(names: list[str], found: _Likelihood, prior: np.ndarray) -> pd.DataFrame:
    """A mixture over the scale, whose prior is half normal with 0.5."""
    each = []
    for scale in _SCALES:
        prior[1 + NUM_SLOPES :] = scale**-2
        each.append(_moments(found, prior))
    means, stddevs, evidences = (np.array(part) for part in zip(*each, strict=True))
    log_weights = evidences + norm.logpdf(_SCALES, scale=0.5)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ means
    rows = _rows(names, mean, np.sqrt(weights @ (stddevs**2 + (means - mean) ** 2)))
    lower, upper = np.interp(_QUANTILES, np.cumsum(weights), _SCALES)
    mean_scale = weights @ _SCALES
    rows.loc["scale"] = [mean_scale, np.sqrt(weights @ (_SCALES - mean_scale) ** 2), lower, upper]
    return rows


def _rows(names: list[str], mean: np.ndarray, stddev: np.ndarray) -> pd.DataFrame:
    ends = [mean + norm.ppf(q) * stddev for q in _QUANTILES]
    return pd.DataFrame(
        dict(zip(("estimate", "std_error", "lower", "upper"), (mean, stddev, *ends), strict=True)), names
    )
