r"""How far one record moves the moment matrix that the functional mechanism releases.

A record is v = (1, its feature groups, its label), every group a block of coordinates with one of three shapes:

- one-hot: one coordinate is 1, the others 0;
- sign: one coordinate in {-1, 1};
- scalar: one coordinate in [-1, 1].

Released are the sums over records of the products v_i v_j, i < j, and of v_i² for scalars, without those that are
public or repeated: 1² and sign² are 1, two coordinates of one one-hot group multiply to 0, and the square of a
one-hot coordinate is itself, so it stands beside the intercept already. Squares get noise of twice the variance
(Gaussian) or twice the scale (Laplace): then they count half, and all norms below are half-norms of vv'.

Some groups may be *fixed*, the same in both records: towards a party, its own; for a party's own ε^(k), those of all
others. G counts the groups and the intercept, m the signs and scalars and the intercept, c the one-hot groups; n'
and c' count those that may change.

**L2, replace**: Δ₂² = max over t <= c', f <= n' of G² - t - (G - t - 2f)². Proof: ½|vv' - ww'|_F² is
½|v|⁴ + ½|w|⁴ - (v·w)². As a function of one changing scalar v_j it is convex: its second derivative is
2(|v|² - v_j²) + 6 v_j² - 2 w_j² >= 0, as the intercept makes |v|² - v_j² >= 1. In the square of a fixed scalar it is
increasing. So scalars are ±1 at the maximum, fixed ones equal. With t one-hot groups and f signs or scalars changed,
|v|² = |w|² = G and v·w = G - t - 2f; each changed one-hot group has two squares that are not released, which are 1 of
the half-norm.

**L1, replace**: Δ₁ = max over t <= c', D <= 2n' of D(2m - D)/2 + 2tm + (c - t)D + 2[C(c,2) - C(c-t,2)]. Proof: write
s = v + w, d = v - w for the signs, scalars and intercept; |s_i| + |d_i| <= 2, so with D = |d|₁ it is |s|₁ <= 2m - D.
Their own products are ½(s d' + d s'), of half-norm at most ½ D (2m - D). A scalar times a one-hot group moves by
|d_i| if the group stays and by |v_i| + |w_i| <= 2 if it changes; two one-hot groups move by 2 if either changes.
It exceeds the maximum by ½ at most, since D may be rounded to an even number, and by nothing
where the best D is even: then all scalars are ±1.

**Add/remove** (a record's contribution is there or zeroed, N public): both Δ₁ and Δ₂² are C(G,2) - C(G_fixed,2) plus
½ for each scalar that may change, since every product of groups has L1 and L2 norm at most 1, attained at ±1.

The bounds hold for integers on the grid 1/S as they stand, since rounding keeps |v_i| <= 1.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import final

from vertinumpyro.privacy import NeighbouringRelation

__all__ = ["GroupCounts", "l1_sensitivity", "l2_sensitivity", "paper_sensitivity"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupCounts:
    """How many groups of each shape a record has, and how many of them may change.

    Attributes:
        one_hot: one-hot groups, c.
        sign: coordinates in {-1, 1}, the label among them.
        scalar: coordinates in [-1, 1], the label among them.
        changing: the same three counts of the groups that may change; None where all may.
    """

    one_hot: int
    sign: int
    scalar: int
    changing: GroupCounts | None = None

    @property
    def total(self) -> int:
        """G: all groups and the intercept."""
        return 1 + self.one_hot + self.sign + self.scalar

    @property
    def free(self) -> GroupCounts:
        """The groups that may change."""
        return self if self.changing is None else self.changing


def l2_sensitivity(counts: GroupCounts, relation: NeighbouringRelation) -> float:
    """Δ₂ of the moment matrix; see the module."""
    if relation is NeighbouringRelation.ADD_REMOVE:
        return math.sqrt(_zeroed(counts))
    G, free = counts.total, counts.free
    changed = ((t, f) for t in range(free.one_hot + 1) for f in range(free.sign + free.scalar + 1))
    return math.sqrt(max(G**2 - t - (G - t - 2 * f) ** 2 for t, f in changed))


def l1_sensitivity(counts: GroupCounts, relation: NeighbouringRelation) -> Fraction:
    """Δ₁ of the moment matrix, exactly; see the module."""
    if relation is NeighbouringRelation.ADD_REMOVE:
        return _zeroed(counts)
    return max(_l1_with_changed(counts, t) for t in range(counts.free.one_hot + 1))


def _l1_with_changed(counts: GroupCounts, t: int) -> Fraction:
    """The bound with t one-hot groups changed: concave in D, which is largest at m + c - t or at its end 2n'."""
    m, c = 1 + counts.sign + counts.scalar, counts.one_hot
    D = min(m + c - t, 2 * (counts.free.sign + counts.free.scalar))
    return Fraction(D * (2 * m - D), 2) + 2 * t * m + (c - t) * D + 2 * (math.comb(c, 2) - math.comb(c - t, 2))


def _zeroed(counts: GroupCounts) -> Fraction:
    free = counts.free
    fixed = counts.total - free.one_hot - free.sign - free.scalar
    return Fraction(math.comb(counts.total, 2) - math.comb(fixed, 2)) + Fraction(free.scalar, 2)


def paper_sensitivity(num_features: int, logistic: bool) -> Fraction:
    """Δ_f of Xu et al. for d features: d²/4 + d (logistic), 2(1 + 2d + d²) (linear). Valid, and loose."""
    d = num_features
    return Fraction(d * d, 4) + d if logistic else Fraction(2 * (1 + 2 * d + d * d))
