r"""From noisy sufficient statistics to the posterior of a Bayesian linear regression.

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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["NoisyStatistics", "Posterior", "noise_aware", "plug_in"]

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

    Args:
        statistics: Ã, b̃.
        prior_variance: diag P, `[..., d]`.
        noise_variance: λ, `[...]`.
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
