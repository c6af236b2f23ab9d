r"""Where to cut a quadratic surrogate's scores: its own cut at 0 is the best one for symmetric classes only.

The distribution of a linear score s = w_0 + Σ_g w_g(x_g) in each class is not released, but what a naive Bayes
classifier needs is: each class's size, each category's share in it, the mean of s. Taking the features as independent
within a class gives the shape of s with its skewness; its pooled variance, which the release holds too, corrects the
width for their dependence. Then the threshold with the largest expected accuracy is one maximum over a grid.

Between classes far apart any cut is as good, and noise alone says where the maximum is: it may add a few records to a
category that a class does not have, and the best cut is then just short of the other class's. So of all cuts about the
maximum that are as good but for noise, the nearest to the surrogate's own is taken.

All of it is post-processing: it costs no privacy, and where features are far from independent it costs accuracy alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from vertinumpyro.regression.features import FeatureLayout

__all__ = ["best_threshold"]

_HALF = 1000  # points of the grid on either side
_WIDTHS = 8.0  # standard deviations on either side


def best_threshold(matrix: np.ndarray, layout: FeatureLayout, coefficients: np.ndarray, noise: float) -> float:
    """The threshold of the largest expected accuracy, or as near to 0 as noise lets it be as good.

    0 where noise leaves a class without records or s without width.

    Args:
        matrix: the noisy moments `[D, D]`, the label in {-1, 1}.
        layout: their coordinates.
        coefficients: of intercept and features `[D - 1]`.
        noise: standard deviation of the noise in a typical moment with the label, in records; cuts whose expected
            numbers of right classes differ by less are as good.
    """
    label = layout.label_index
    weights = np.insert(coefficients, label, 0.0)
    sums = [(matrix[0] + sign * matrix[label]) / 2 for sign in (-1, 1)]  # of every coordinate over a class
    sizes = np.array([total[0] for total in sums])
    if sizes.min() < 1:
        return 0.0
    means = np.array([weights @ total for total in sums]) / sizes
    variance = weights @ matrix @ weights / sizes.sum() - sizes @ means**2 / sizes.sum()
    shapes = [_Shape.of(matrix, layout, weights, total) for total in sums]
    naive = sizes @ [shape.variance for shape in shapes] / sizes.sum()
    if not (variance > 0 and naive > 0 and means[1] > means[0]):
        return 0.0
    stretch = np.sqrt(variance / naive)
    cuts = np.linspace(means[0], means[1], _HALF)
    below = [shape.below((cuts - mean) / stretch) for shape, mean in zip(shapes, means, strict=True)]
    right = sizes[0] * below[0] - sizes[1] * below[1]  # and a constant: the records on their own side of each cut
    best = int(np.argmax(right))
    worse = np.flatnonzero(right < right[best] - noise - 1e-9 * sizes.sum())
    after = int(np.searchsorted(worse, best))
    first = worse[after - 1] + 1 if after else 0
    last = worse[after] - 1 if after < len(worse) else len(cuts) - 1
    return float(np.clip(0.0, cuts[first], cuts[last]))


class _Shape(NamedTuple):
    """The distribution of a class's score about its mean, were the features independent: `mass` at `points`."""

    points: np.ndarray
    mass: np.ndarray
    variance: float

    @classmethod
    def of(cls, matrix: np.ndarray, layout: FeatureLayout, weights: np.ndarray, total: np.ndarray) -> _Shape:
        terms, normal = _terms(matrix, layout, weights, total)
        variance = normal + sum(float(share @ value**2) for share, value in terms)
        points = np.linspace(-1.0, 1.0, 2 * _HALF + 1) * _WIDTHS * np.sqrt(variance)
        mass = np.zeros(len(points))
        mass[_HALF] = 1.0
        for shares, values in terms:
            shifted = [np.interp(points - value, points, mass, left=0.0, right=0.0) for value in values]
            mass = shares @ np.array(shifted)
        if normal > 0:
            kernel = norm.pdf(points, scale=np.sqrt(normal))
            mass = np.convolve(mass, kernel / max(kernel.sum(), 1e-300), "same")
        return cls(points, mass, variance)

    def below(self, cuts: np.ndarray) -> np.ndarray:
        """The share of the class at or below each cut."""
        return np.interp(cuts, self.points, np.cumsum(self.mass))


def _terms(
    matrix: np.ndarray, layout: FeatureLayout, weights: np.ndarray, total: np.ndarray
) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """What each feature adds to a class's score: shares and centred values of categories; numbers' variance as one."""
    terms, normal = [], 0.0
    for group in layout.feature_groups:
        start = layout.starts[group.column]
        own = slice(start, start + group.size)
        if group.shape == "scalar":
            spread = matrix[start, start] / matrix[0, 0] - (matrix[0, start] / matrix[0, 0]) ** 2
            normal += float(weights[start] ** 2 * max(0.0, spread))
            continue
        one_hot = group.shape == "one_hot"
        values = weights[own] if one_hot else weights[start] * np.array([-1.0, 1.0])
        sums = total[own] if one_hot else (total[0] + total[start] * np.array([-1.0, 1.0])) / 2
        shares = np.maximum(sums, 0.0)
        if shares.sum() > 0:
            shares = shares / shares.sum()
            terms.append((shares, values - shares @ values))
    return terms, normal
