"""Tighter bounds for less noise: Algorithm 2 of the DCA paper.

Clipping every column at p standard deviations instead of its assumed bound lowers the noise of a product of two
columns by the product of both factors. Two things have to be found without looking at the data: the standard
deviations, from a first noisy sum, and the multiples p, on auxiliary data drawn from the model itself.
"""

from __future__ import annotations

import functools

import numpy as np

from vertinumpyro.regression.posteriors import NoisyStatistics, Posterior, noise_aware, plug_in

__all__ = ["POSTERIORS", "marginal_stddevs", "optimal_thresholds"]

POSTERIORS = {"noise_aware": noise_aware, "plug_in": plug_in}

_GRID = np.linspace(0.1, 2.1, 20)  # the paper's: 20 points between 0.1 and 2.1 standard deviations
_STDDEV_GRID = np.linspace(0, 1, 2001)[1:]
_MOST_RECORDS = 3000


def marginal_stddevs(moments: np.ndarray, noise_variance: float, num_records: int) -> np.ndarray:
    """Standard deviations of zero-centred columns `[p]` in units of their bounds, from noisy sums of squares.

    The posterior mean of s given s² N + noise, for a uniform prior of s on (0, 1]. So it lies in (0, 1) even where
    the noise made the sum negative, which the paper leaves to a floor. Post-processing.
    """
    misfit = moments[:, None] - num_records * _STDDEV_GRID**2
    log_weight = -(misfit**2) / (2 * noise_variance)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    return (weight * _STDDEV_GRID).sum(axis=1) / weight.sum(axis=1)


@functools.lru_cache(maxsize=256)
def optimal_thresholds(
    num_records: int, num_features: int, noise_stddev: float, posterior: str, repeats: int = 20
) -> tuple[float, float]:
    """The multiples (p of all features, p of the target) that predict best on auxiliary data (step 3).

    Auxiliary records: x ~ N(0, I), β ~ N(0, I), y | x ~ N(x'β, 1), Eqs. 4-6 of the DCA paper, with the statistics
    and their noise made as a fit makes them. Depends on public numbers alone; the same for the same arguments.

    Args:
        num_records: N; auxiliary tables have that many records, 3,000 at most, and noise scaled to match.
        num_features: d.
        noise_stddev: of one statistic in units of its bounds, over all N records.
        posterior: "noise_aware" or "plug_in".
        repeats: auxiliary tables.
    """
    rng = np.random.default_rng(0)  # public, so that every participant finds the same thresholds
    error = np.zeros((len(_GRID), len(_GRID)))
    for _ in range(repeats):
        error += _prediction_errors(
            min(num_records, _MOST_RECORDS), num_features, num_records, noise_stddev, posterior, rng
        )
    best = np.unravel_index(error.argmin(), error.shape)
    return float(_GRID[best[0]]), float(_GRID[best[1]])


def _prediction_errors(
    n: int, d: int, num_records: int, noise_stddev: float, posterior: str, rng: np.random.Generator
) -> np.ndarray:
    """Mean absolute error at every pair of multiples `[20, 20]` on one auxiliary table."""
    x, beta = rng.normal(size=(n, d)), rng.normal(size=d)
    y = x @ beta + rng.normal(size=n)
    p_x, p_y = _GRID * x.std(), _GRID * y.std()
    clipped_x = [np.clip(x, -p, p) / p for p in p_x]
    clipped_y = np.stack([np.clip(y, -p, p) / p for p in p_y], axis=1)
    scale = num_records / n
    A = scale * np.stack([u.T @ u for u in clipped_x])
    b = scale * np.stack([(u.T @ clipped_y).T for u in clipped_x])
    noise = np.triu(rng.normal(size=(d, d))) * noise_stddev
    statistics = NoisyStatistics(
        np.broadcast_to((A + noise + np.triu(noise, 1).T)[:, None], (*b.shape, d)),
        b + rng.normal(size=d) * noise_stddev,
        noise_stddev**2,
    )
    ratio = p_y[None, :] / p_x[:, None]
    prior_variance = np.broadcast_to(ratio[..., None] ** -2, b.shape)
    fitted: Posterior = POSTERIORS[posterior](statistics, prior_variance, np.broadcast_to(p_y**-2, ratio.shape))
    coefficients = fitted.mean * ratio[..., None]
    return np.abs(coefficients.reshape(-1, d) @ x.T - y).mean(axis=1).reshape(ratio.shape)
