r"""Quadratics in place of the logistic loss, so that moments suffice.

log(1 + e^{-m}) = g(m) - m/2 with g(m) = log(2 cosh(m/2)) even, so a quadratic surrogate needs one number: g(m) ~ c_0 +
c m². With y = ±1 and m = y xᵀw the objective is c wᵀA w - ½ bᵀw, A = Σ xxᵀ, b = Σ y x; its minimum solves A w = b/(4c).

The choice of c scales all coefficients and hence the predicted probabilities; it leaves the predicted classes as they
are. Taylor's 1/8 is right at m = 0 only. g grows linearly, so on wider scores c is smaller.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from vertinumpyro.core.errors import ArgumentError

__all__ = ["Surrogate", "curvature", "fitted_curvature"]

Surrogate = Literal["taylor", "range", "fitted"]
"""taylor: order 2 at 0, as in the paper. range: least squares on [-R, R], R public. fitted: least squares for normal
scores of the variance that the released moments give the model itself."""

TAYLOR = 1 / 8
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_LEGENDRE = np.polynomial.legendre.leggauss(200)


def curvature(surrogate: Surrogate, score_range: float) -> float:
    """c of "taylor", or of "range" for scores in [-score_range, score_range]."""
    if surrogate == "taylor":
        return TAYLOR
    if not 0 < score_range < np.inf:
        raise ArgumentError(f"score_range must be positive and finite, got {score_range}")
    return _least_squares(_LEGENDRE[0] * score_range, _LEGENDRE[1])


def fitted_curvature(direction_variance: float) -> float:
    """c for scores N(0, s²) where s² = v / (4c)² and v is the variance of the scores of A w = b: a fixed point.

    Args:
        direction_variance: v, of xᵀA⁻¹b over the records, from released moments; 0 gives 1/8.
    """
    c = TAYLOR
    for _ in range(200):
        spread = np.sqrt(max(direction_variance, 0.0)) / (4 * c)
        c = (c + (_least_squares(_NODES * spread, _WEIGHTS) if spread > 1e-6 else TAYLOR)) / 2
    return c


def _least_squares(scores: np.ndarray, weights: np.ndarray) -> float:
    """The c of the weighted least-squares fit c_0 + c m² of log(2 cosh(m/2))."""
    half = np.abs(scores) / 2
    values = half + np.log1p(np.exp(-2 * half))
    squares = scores**2
    centred = squares - np.average(squares, weights=weights)
    return float(np.sum(weights * centred * values) / np.sum(weights * centred * squares))
