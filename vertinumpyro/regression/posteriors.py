"""From noisy sufficient statistics to the posterior of a Bayesian linear regression.

y | x ~ N(x'β, λ), β ~ N(0, P). The statistics A = Σ x x' and b = Σ x y are known with Gaussian noise of known
variance: Ã = A + E (symmetric, every entry on or above the diagonal with variance τ²), b̃ = b + e (variance τ²).

`plug_in` is the paper's: Ã and b̃ stand where A and b would, with the noisy matrix made positive definite by
taking the absolute values of its eigenvalues. It ignores the noise, so its intervals are too narrow.

`noise_aware` uses that the noise is known. Given A and β, b is N(Aβ, λA); so

    b̃ - Âβ | β  ~  N(0, λÂ + τ² I + Cov[(A - Â)β]),     Cov[(A - Â)β] = v (|β|² I + ββ' - diag β²),

where Â is the estimate of A after shrinkage (below) and v the variance that remains in its entries. The covariance
is evaluated at the posterior's own second moment of β, to which it is iterated; the posterior is then Gaussian:

    V = (Â Ω^{-1} Â + P^{-1})^{-1},     m = V Â Ω^{-1} b̃.

Â: off-diagonal entries are shrunk towards 0 by κ/(κ + τ²), κ their excess variance over the noise (an empirical
Bayes estimate); then eigenvalues are raised to zero, since A is positive semidefinite. Approximations: A's
posterior is taken to be Gaussian around Â and independent of β, and b̃'s covariance constant in β. Both are
post-processing of the release and cost no privacy.

Tighter bounds for less noise: Algorithm 2 of the DCA paper.

Clipping every column at p standard deviations instead of its assumed bound lowers the noise of a product of two
columns by the product of both factors. Two things have to be found without looking at the data: the standard
deviations, from a first noisy sum, and the multiples p, on auxiliary data drawn from the model itself.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

_ITERATIONS = 30


class NoisyStatistics(NamedTuple):
    """A released pair, or a batch of them on leading axes; public.

    second_moments: Ã `[..., d, d]`, symmetric.
    cross_moments: b̃ `[..., d]`.
    noise_variance: τ², `[...]`.
    """

    second_moments: np.ndarray
    cross_moments: np.ndarray
    noise_variance: np.ndarray | float


class Posterior(NamedTuple):
    """mean `[..., d]` and covariance `[..., d, d]` of β."""

    mean: np.ndarray
    covariance: np.ndarray


def plug_in(statistics: NoisyStatistics, prior_variance: np.ndarray, noise_variance: float | np.ndarray) -> Posterior:
    """The posterior as if the noisy statistics were exact (Algorithm 2 of the DCA paper).

    :param statistics: Ã, b̃.
    :param prior_variance: diag P, `[..., d]`.
    :param noise_variance: λ, `[...]`.
    """
    values, vectors = np.linalg.eigh(statistics.second_moments)
    A = _assembled(np.abs(values), vectors)
    scale = np.asarray(noise_variance)[..., None]
    precision = A / scale[..., None] + _diagonal(1 / prior_variance)
    covariance = np.linalg.inv(precision)
    return Posterior(_times(covariance, statistics.cross_moments / scale), covariance)


def noise_aware(
    statistics: NoisyStatistics, prior_variance: np.ndarray, noise_variance: float | np.ndarray
) -> Posterior:
    """The posterior given that the statistics carry noise of known variance; arguments as in `plug_in`."""
    b = statistics.cross_moments
    tau2 = np.asarray(statistics.noise_variance)[..., None, None]
    A, remaining = denoised(statistics)
    prior_precision = _diagonal(1 / prior_variance)
    identity = np.eye(b.shape[-1])
    base = np.asarray(noise_variance)[..., None, None] * A + tau2 * identity
    second_moment = np.zeros_like(A)
    mean, covariance = np.zeros_like(b), np.zeros_like(A)
    for _ in range(_ITERATIONS):
        weight = np.linalg.inv(base + remaining * _spread(second_moment))
        covariance = np.linalg.inv(A @ weight @ A + prior_precision)
        mean = _times(covariance @ A @ weight, b)
        fresh = mean[..., :, None] * mean[..., None, :] + covariance
        second_moment = (second_moment + fresh) / 2  # damped: the plain iteration can alternate
    return Posterior(mean, covariance)


def denoised(statistics: NoisyStatistics) -> tuple[np.ndarray, np.ndarray]:
    """Â `[..., d, d]` and the variance `[..., 1, 1]` that is left in its entries."""
    noisy = statistics.second_moments
    d = noisy.shape[-1]
    tau2 = np.broadcast_to(np.asarray(statistics.noise_variance)[..., None, None], (*noisy.shape[:-2], 1, 1))
    off = ~np.eye(d, dtype=bool)
    signal = np.square(noisy[..., off]).mean(axis=-1) if d > 1 else np.zeros(noisy.shape[:-2])
    excess = np.maximum(signal[..., None, None] - tau2, 0.0)
    kept = excess / np.maximum(excess + tau2, np.finfo(float).tiny)
    shrunk = np.where(off, kept * noisy, noisy)
    values, vectors = np.linalg.eigh(shrunk)
    return _assembled(np.maximum(values, 0.0), vectors), np.where(tau2 > 0, tau2 * np.maximum(kept, 1 / (d + 1)), 0.0)


def _spread(second_moment: np.ndarray) -> np.ndarray:
    """Cov[E β] / v for symmetric E with independent entries of variance v, given E[ββ']."""
    diagonal = np.diagonal(second_moment, axis1=-2, axis2=-1)
    identity = np.eye(second_moment.shape[-1])
    return diagonal.sum(-1)[..., None, None] * identity + second_moment - _diagonal(diagonal)


def _assembled(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return (vectors * values[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def _diagonal(values: np.ndarray) -> np.ndarray:
    return values[..., None] * np.eye(values.shape[-1])


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return (matrix @ vector[..., None])[..., 0]


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

    :param num_records: N; auxiliary tables have that many records, 3,000 at most, and noise scaled to match.
    :param num_features: d.
    :param noise_stddev: of one statistic in units of its bounds, over all N records.
    :param posterior: "noise_aware" or "plug_in".
    :param repeats: auxiliary tables.
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
