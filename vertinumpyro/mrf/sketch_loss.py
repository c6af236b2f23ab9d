r"""The exact privacy loss of sketches that two columns share a key for, composed over keys and pairs by FFT.

**One key, one record.** Its hash h enters the sketches of its two values. Let X, X' be the levels that everything
else in two sketches reaches. With the record the server sees (max(X, h), max(X', h)), without it (X, X'). Whatever
other records do is a maximum with something independent of h, taken after phantoms have been drawn: post-processing.
So the pair with phantoms alone dominates every pair of tables:

    J(s, t) = Σ_j P(h = j) K_j(s) K_j(t)   against   B(s, t) = π(s) π(t),   K_j the law of max(phantoms, j).

- add/remove: J against B, and B against J.
- replace, both values change: J(s, t) B(u, v) against B(s, t) J(u, v), since the old and the new values have
  sketches of their own.
- replace, one value changes: Σ_j P(h = j) K_j(r) K_j(s) π(u) against Σ_j P(h = j) K_j(r) π(s) K_j(u).

A record that is replaced may change both values of some pairs and one value of others. So a key is charged with the
larger of the two privacy profiles at every ε, which is again the profile of some pair of distributions.

**All keys.** Hashes under different keys are independent, so losses add up. dp-accounting's connect-the-dots makes
the profile a distribution on a grid that dominates it, and its FFT composes that; both err upwards.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from vertinumpyro.mrf.loss_grid import on_grid
from vertinumpyro.mrf.sketch import SketchDesign
from vertinumpyro.privacy import NeighbouringRelation

__all__ = ["dominating_pairs", "grid_interval", "joint_law", "privacy_profile", "sketch_pld", "squared_loss"]

Pair = tuple[np.ndarray, np.ndarray]

_GRID_PER_STDDEV = 16


def joint_law(design: SketchDesign) -> Pair:
    """(J, B): the law `[L, L]` of two sketches with a record in both, and without."""
    phantoms, hashes, reached = _laws(design)
    return np.einsum("j,js,jt->st", hashes, reached, reached), np.multiply.outer(phantoms, phantoms)


def dominating_pairs(design: SketchDesign, relation: NeighbouringRelation) -> list[list[Pair]]:
    """For each direction of the relation the pairs of laws of which the worse counts, as flat arrays."""
    phantoms, hashes, reached = _laws(design)
    with_it, without = joint_law(design)
    if relation is NeighbouringRelation.ADD_REMOVE:
        present, absent = with_it.ravel(), without.ravel()
        return [[(present, absent)], [(absent, present)]]
    both = np.multiply.outer(with_it, without)
    one = np.einsum("j,jr,js,u->rsu", hashes, reached, reached, phantoms)
    swapped = [both.transpose(2, 3, 0, 1), one.transpose(0, 2, 1)]
    return [[(p.ravel(), q.ravel()) for p, q in zip([both, one], swapped, strict=True)]]


def _laws(design: SketchDesign) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a sketch without records `[L]`, of one hash `[L]`, and of their maximum, given the hash, `[L, L]`."""
    phantoms = design.phantom_law()
    hashes = np.diff(np.exp(design.log_cdf()), prepend=0.0)
    above = np.triu(np.broadcast_to(phantoms, (phantoms.size, phantoms.size)), 1)
    return phantoms, hashes, above + np.diag(np.cumsum(phantoms))


def privacy_profile(pair: Pair, epsilons: np.ndarray) -> np.ndarray:
    """sup_S P(S) − e^ε Q(S) of two laws on the same finite set, at each ε."""
    p, q = (law[pair[0] > 0] for law in pair)
    with np.errstate(divide="ignore"):
        losses = np.log(p) - np.log(q)
    order = np.argsort(-losses)
    sum_p, sum_q = (np.concatenate([[0.0], np.cumsum(law[order])]) for law in (p, q))
    above = np.searchsorted(-losses[order], -epsilons, side="left")
    return np.maximum(sum_p[above] - np.exp(epsilons) * sum_q[above], -np.expm1(np.minimum(epsilons, 0.0)))


def squared_loss(design: SketchDesign, relation: NeighbouringRelation) -> float:
    """μ² of the Gaussian that many keys together come close to, for each key: a guide for designs, no bound."""
    with_it, without = joint_law(design)
    chi_square = float((((with_it - without) ** 2) / without).sum())
    return chi_square * (2 if relation is NeighbouringRelation.REPLACE else 1)


@functools.lru_cache(maxsize=64)
def sketch_pld(
    design: SketchDesign, num_pairs: int, relation: NeighbouringRelation, interval: float | None = None
) -> pld_lib.PrivacyLossDistribution:
    """The privacy loss of all keys of `num_pairs` pairs of columns; an upper bound at every ε.

    Args:
        design: of every pair.
        num_pairs: pairs of columns whose keys the adversary does not know.
        relation: the neighbouring relation.
        interval: the grid of losses; None takes a sixteenth of one key's standard deviation.
    """
    interval = interval or grid_interval(design, relation)
    one_key = [_on_grid(pairs, interval) for pairs in dominating_pairs(design, relation)]
    return pld_lib.PrivacyLossDistribution(*one_key).self_compose(design.num_keys * num_pairs)


def grid_interval(design: SketchDesign, relation: NeighbouringRelation) -> float:
    """A grid on which one key's loss is well resolved; every grid gives an upper bound."""
    return min(1e-2, math.sqrt(squared_loss(design, relation)) / _GRID_PER_STDDEV)


def _on_grid(pairs: list[Pair], interval: float) -> pld_pmf.PLDPmf:
    """The least favourable of some pairs at every ε, on a grid that dominates it."""
    losses = np.concatenate([np.log(p) - np.log(q) for p, q in pairs])

    def worst(epsilons: np.ndarray) -> np.ndarray:
        return np.max([privacy_profile(pair, epsilons) for pair in pairs], axis=0)

    return on_grid(worst, losses.min(), losses.max(), interval)
