r"""Sufficient statistics of a linear regression, as one vector for each record, and how far a record moves them.

With every column divided by its bound c_j, u_j = clip(x_j, ±c_j) / c_j and w = clip(y, ±c_y) / c_y, record n sends

    t(u, w) = (u_j u_k for j <= k,  u_j w for all j),      D = d (d + 1) / 2 + d values in [-1, 1].

**Sensitivity.** Replacing a record moves the sum of t by at most d + 1 in L2 norm. Proof: let v = (u, w) and v' be
two records in [-1, 1]^p, p = d + 1, a = v², a' = v'² entrywise. The squared distance of all p (p + 1) / 2 products
v_j v_k is ½ |vv' - v'v''|_F² + ½ Σ_j (a_j - a'_j)², and |.|_F² <= |v|⁴ + |v'|⁴ = (Σ a)² + (Σ a')²; leaving w² out
only takes a term away. So it is at most ½ (Σ a)² + ½ (Σ a')² + ½ Σ_j (a_j - a'_j)², which is convex in (a, a') and
so largest at a vertex of [0, 1]^2p. With s ones in a, s' in a' and m places where they differ that is ½ (s² + s'² +
m), m <= (p - s) + (p - s'); for integers s <= p, s² + (p - s) <= p². So it is at most p². Equality where v and v'
are orthogonal corners. The entrywise bound (1 for squares, 2 for the others) gives √(2d² + 3d) instead, 1.4 times
as much; `calibration="classic"` uses that one, as the DCA paper does.

All values get the same noise, so in the original units the noise of x_j x_k is proportional to c_j c_k.
"""

from __future__ import annotations

import math

import numpy as np

from vertinumpyro.regression.posteriors import NoisyStatistics

__all__ = [
    "entrywise_sensitivity",
    "moment_sensitivity",
    "num_statistics",
    "scaled",
    "statistic_sensitivity",
    "statistic_vectors",
    "unpacked",
]


def num_statistics(num_features: int) -> int:
    """D = d (d + 1) / 2 + d."""
    return num_features * (num_features + 1) // 2 + num_features


def statistic_sensitivity(num_features: int) -> float:
    """Largest L2 distance of two records' t: d + 1."""
    return num_features + 1.0


def entrywise_sensitivity(num_features: int) -> float:
    """The same from a bound on each entry: 1 for the d squares, 2 for the d (d + 1) / 2 other products."""
    return math.sqrt(2 * num_features**2 + 3 * num_features)


def moment_sensitivity(num_features: int) -> float:
    """Largest L2 distance of two records' (u², w²), which lie in [0, 1]^(d + 1)."""
    return math.sqrt(num_features + 1)


def scaled(columns: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Columns `[n, p]` clipped to ±bounds `[p]` and divided by them."""
    return np.clip(columns, -bounds, bounds) / bounds


def statistic_vectors(units: np.ndarray) -> np.ndarray:
    """t `[n, D]` of scaled columns `[n, d + 1]`, the target last. Secret."""
    first, second = _products(units.shape[1] - 1)
    return units[:, first] * units[:, second]


def unpacked(released: np.ndarray, noise_variance: float) -> NoisyStatistics:
    """A noisy sum of t `[D]` as a symmetric matrix and a vector, still in units of the bounds."""
    # d (d + 3) / 2 = D
    num_features = (math.isqrt(9 + 8 * released.size) - 3) // 2
    first, second = _products(num_features)
    full = np.zeros((num_features + 1, num_features + 1))
    full[first, second] = released
    full[second, first] = released
    return NoisyStatistics(full[:-1, :-1], full[:-1, -1], noise_variance)


def _products(num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Which two columns each entry of t multiplies; the target is column d, and its square is left out."""
    first, second = np.triu_indices(num_features + 1)
    return first[:-1], second[:-1]
