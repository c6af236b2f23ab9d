r"""Maximum-likelihood estimates of counts from sketches. Post-processing of what the server sees.

A sketch of c records and k_p phantoms stays at or below level s with probability F(s)^(c + k_p). Two sketches of
values with counts n_a and n_b, of which x records have both, stay below (s, t) with probability

    F(s)^(n_a − x + k_p) · F(t)^(n_b − x + k_p) · F(min(s, t))^x,

and m keys give m independent pairs of levels. x maximises the likelihood of all of them. n_a and n_b come from the
parties' own tables, which are far more precise than sketches, or, where there are none, from the sketches themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from vertinumpyro.mrf.sketch import SketchDesign

__all__ = ["count_pair", "count_single", "estimator_bytes", "joint_information"]

_POINTS = 33
_ZOOMS = 5
_BLOCK = 2**21  # numbers that the likelihoods of a few rows of a table take


def estimator_bytes(num_keys: int, num_levels: int, num_cells: int) -> int:
    """At most so much memory takes the estimate of one pair of columns with so many cells each."""
    return num_keys * 2 * num_cells * (8 * num_levels + 1) + 8 * 8 * (_BLOCK + _POINTS * num_levels**2 * num_cells)


def count_single(sketch: np.ndarray, num_records: int, design: SketchDesign) -> np.ndarray:
    """Maximum-likelihood counts of one column's cells, float64 `[cells]`.

    Args:
        sketch: its levels `[num_keys, cells]`.
        num_records: N.
        design: of the sketch.
    """
    levels = np.arange(design.lower, design.upper + 1)
    seen = (sketch[:, :, None] == levels).sum(axis=0)  # [cells, L]
    log_cdf = design.log_cdf()

    def likelihood(counts: np.ndarray) -> np.ndarray:
        law = np.diff(np.exp((counts[..., None] + design.phantoms) * log_cdf), prepend=0.0, axis=-1)
        return (seen[:, None, :] * np.log(np.maximum(law, 1e-300))).sum(axis=-1)

    low = np.zeros(sketch.shape[1])
    return _maximise(likelihood, low, low + num_records)


def count_pair(
    sketches: tuple[np.ndarray, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
    num_records: int,
    design: SketchDesign,
) -> tuple[np.ndarray, float]:
    """Maximum-likelihood contingency table of two columns, and the standard deviation of a cell.

    Args:
        sketches: of the two columns, `[num_keys, cells]` each, under the same keys.
        counts: of the two columns' cells.
        num_records: N.
        design: of the sketches.
    """
    n_a, n_b = (np.clip(c, 0, num_records).astype(np.float64) for c in counts)
    rows = max(1, _BLOCK // (_POINTS * (design.upper - design.lower + 1) ** 2 * n_b.size))
    starts = range(0, n_a.size, rows)
    blocks = [
        _count_block((sketches[0][:, i : i + rows], sketches[1]), (n_a[i : i + rows], n_b), num_records, design)
        for i in starts
    ]
    variances = np.concatenate([variance for _, variance in blocks])
    return np.concatenate([table for table, _ in blocks]), math.sqrt(float(variances.mean()))


def _count_block(
    sketches: tuple[np.ndarray, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
    num_records: int,
    design: SketchDesign,
) -> tuple[np.ndarray, np.ndarray]:
    """Some rows of the table, and the variances of their cells, flat."""
    levels = np.arange(design.lower, design.upper + 1)
    first, second = ((s[:, :, None] == levels).astype(np.float64) for s in sketches)
    seen = np.einsum("kas,kbt->abst", first, second).reshape(-1, levels.size, levels.size)
    n_a, n_b = (np.ravel(c) for c in np.meshgrid(*counts, indexing="ij"))

    def likelihood(both: np.ndarray) -> np.ndarray:
        law = _pair_law(n_a[:, None], n_b[:, None], both, design)
        return (seen[:, None] * np.log(np.maximum(law, 1e-300))).sum(axis=(-2, -1))

    low, high = np.maximum(0.0, n_a + n_b - num_records), np.minimum(n_a, n_b)
    table = _maximise(likelihood, np.minimum(low, high), high).reshape(len(counts[0]), len(counts[1]))
    expected = np.clip(n_a * n_b / num_records, low, high)
    information = [joint_information(a, b, x, design) for a, b, x in zip(n_a, n_b, expected, strict=True)]
    return table, 1 / np.maximum(information, 1e-300)


def joint_information(n_a: float, n_b: float, both: float, design: SketchDesign) -> float:
    """Fisher information of x, records², from all keys."""
    law = _pair_law(np.array(n_a), np.array(n_b), np.array(both), design)
    log_cdf = design.log_cdf()
    least = np.minimum.outer(log_cdf, log_cdf)
    cdf = _pair_cdf(np.array(n_a), np.array(n_b), np.array(both), design)
    slope = _second_difference(cdf * (least - log_cdf[:, None] - log_cdf[None, :]))
    return float(design.num_keys * (slope**2 / np.maximum(law, 1e-300)).sum())


def _pair_law(n_a: np.ndarray, n_b: np.ndarray, both: np.ndarray, design: SketchDesign) -> np.ndarray:
    return np.maximum(_second_difference(_pair_cdf(n_a, n_b, both, design)), 0.0)


def _pair_cdf(n_a: np.ndarray, n_b: np.ndarray, both: np.ndarray, design: SketchDesign) -> np.ndarray:
    """P(first ≤ s, second ≤ t), `[..., L, L]`."""
    log_cdf = design.log_cdf()
    a, b, x = (v[..., None, None] for v in np.broadcast_arrays(n_a, n_b, both))
    least = np.minimum.outer(log_cdf, log_cdf)
    alone = (a - x + design.phantoms) * log_cdf[:, None] + (b - x + design.phantoms) * log_cdf[None, :]
    return np.exp(alone + x * least)


def _second_difference(cdf: np.ndarray) -> np.ndarray:
    return np.diff(np.diff(cdf, prepend=0.0, axis=-1), prepend=0.0, axis=-2)


def _maximise(likelihood: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The best of `_POINTS` between low and high, then of as many between its neighbours, and so on."""
    low, high = low.astype(np.float64), high.astype(np.float64)
    for _ in range(_ZOOMS):
        points = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _POINTS)
        best = likelihood(points).argmax(axis=1)
        rows = np.arange(len(best))
        low, high = points[rows, np.maximum(best - 1, 0)], points[rows, np.minimum(best + 1, _POINTS - 1)]
    return (low + high) / 2
