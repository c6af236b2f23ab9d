r"""Scores of a `party_sum` whitened by what was released of them, before steps clip them: `SecondMoments(whiten=True)`.

Noise is alike in all directions of the scores, and what records say is not: least where columns repeat each other, or
fill a small part of their public bounds. With M the second moments of a party's numeric scores x, the mean of xx', as
they are released first (`dpvi.second_moments`), all that follows is of

    z = w W'x,   W = a (M + l)^(-1/2),

in the place of x. At the party that has the intercept x are less their means, by these moments: the same map of what is
released. W'x is about as long in all directions. a is such that the mean of |W'x|^2 is its bound over 1.5 to 16, and
what is longer is scaled down to the bound, w <= 1. The bound is what all other scores leave, of what a party has, in
the public domains: an intercept and indicators of values, all of which are as long. They stay as they are, so that what
holds of all of them holds still (`dpvi.score_identities`). Mechanism and proof are the same whatever W is: it follows
from what was released before, and w from a record's own columns at a party. Noise of steps and of moments is alike in
the same directions, so all that knows it works on the coefficients of W'x, W^-1 beta, and maps back.

**Scaled records.** As w depends on columns and not on the outcome, the mean of what a step releases is 0 at the truth
as before. Its slope there is the mean of w W'x (W'x)', and the moments are that of w^2 W'x (W'x)': much less of a value
that few records have, and that makes them long. The first moments say what it is without w, W'MW. So of a party's own
block S the geometric mean of both is taken, which is right where all that are long in a direction are scaled alike
(`slope_by`); blocks with other scores are moved as each party's own is. It is moved only beyond what may be noise. What
a record says then has the variance w in the place of w^2, so no less than it has.

**Which**: of l from what the first moments' noise hides up to 64 times that, and of seven a, those by which noise adds
least to the variance, in the mean of its log over directions; W = 1 where that gains less than an eighth. Each a has
what scaling down loses added: as of columns of Student's t with five degrees of freedom, less where public domains end
before that, and what is surely of records beyond the bound, by the means and the public ends (`_surely_lost`). A model
is seldom quite the table's, and an estimate by other weights of records is then of something else, which no number of
records cures. So N / 10,000 times what is lost is added, too, as of a model that is off by a hundredth of a residual's
standard deviation along with how long a record is: large tables are scaled down less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertinumpyro.dpvi.clipping import Seen, usual_residuals
from vertinumpyro.dpvi.noise_aware import MOST_PARAMETERS
from vertinumpyro.dpvi.score_identities import consistent, consistent_whitened, identities_of, noise_left
from vertinumpyro.dpvi.second_moments import MomentsPlan, NoisyMoments, moments_of, numeric_bound, widths_of
from vertinumpyro.model import SplitModel
from vertinumpyro.model.split import Offset, stand_in_scores
from vertinumpyro.privacy import GradientPlan

_FLOORS = (1.0, 4.0, 16.0, 64.0)  # l, in units of what the moments' noise hides
_LENGTHS = (  # bound over mean square; what scaling down loses, as of Student's t with five degrees of freedom
    (1.5, 0.07), (2.0, 0.05), (3.0, 0.03), (4.5, 0.016), (7.0, 0.008), (10.0, 0.005), (16.0, 0.002),
)  # fmt: skip
_BENT = 0.01  # of a residual's standard deviation: by how much a model may be off along with how long a record is
_WORTH, _GAIN, _AGREED_BITS = 0.88, 0.01, 20
_NUM_TRIED = 512
_MOST_SCALED = 400.0  # times that M is S


class Whitening(NamedTuple):
    """Steps release sums of W'x in the place of scores x, and U = W^-T takes these back to sums of x; public.

    to: W `[theta, theta]`, of a block for each party, and 1 for what is not whitened.
    back: U `[theta, theta]`.
    bounds: each party's of |W'x| `[P]`.
    """

    to: Any
    back: Any
    bounds: Any

    @classmethod
    def of(cls, split: SplitModel, plan: GradientPlan, lengths: Sequence[np.ndarray]) -> Whitening:
        """:param lengths: each party's A: W over the bound, and -m'W over it."""
        to, bounds = np.eye(split.num_parameters), _bounds(split, plan)
        for place, read, own, matrix in _blocks(split, plan, lengths):
            party = split.parties[place]
            to[np.ix_(split.places_of(party, read), split.places_of(party, own))] = matrix
        return cls(to, np.linalg.inv(to).T, np.where(bounds > 0, bounds, np.inf))


def whitened_by(split: SplitModel, plan: GradientPlan, released: NoisyMoments) -> np.ndarray:
    """W `[D, D]` in the order of the moments, of an offset 1."""
    to, starts = np.eye(len(released.matrix)), _starts(plan)
    for place, read, own, matrix in _blocks(split, plan, released.whitening):
        to[np.ix_(starts[place] + read, starts[place] + own)] = matrix
    return to


def moments_by(split: SplitModel, plan: GradientPlan, released: NoisyMoments) -> NoisyMoments:
    """The moments of whitened scores as they are in the slope of what steps release."""
    moved, starts = np.eye(len(released.matrix)), _starts(plan)
    for place, read, numbers, to in _blocks(split, plan, released.whitening):
        own = np.ix_(starts[place] + numbers, starts[place] + numbers)
        noise = moments_of(plan).stddev_before * np.linalg.norm(to, axis=0).max() ** 2
        whole = to.T @ released.before[place][np.ix_(read, read)] @ to
        moved[own] = slope_by(whole, released.matrix[own], math.hypot(noise, released.stddev))
    return released._replace(matrix=moved @ released.matrix @ moved.T)


def consistent_moments(released: NoisyMoments, plan: GradientPlan, split: SplitModel) -> NoisyMoments:
    """With what holds of every record's scores, and so much less noise; whitened ones as they are in steps' slope."""
    known = identities_of(split, moments_of(plan))
    if released.whitening:
        to = whitened_by(split, plan, released)
        matrix = consistent_whitened(released.matrix, known, to)
        left = noise_left(known, lambda noise: consistent_whitened(noise, known, to))
        return moments_by(split, plan, released._replace(matrix=matrix, stddev=released.stddev * left))
    return released._replace(matrix=consistent(released.matrix, known), stddev=released.stddev * known.noise_left)


def may_whiten(split: SplitModel) -> bool:
    """Whether scores of the model can be whitened."""
    if not any(len(split.numeric(party)) for party in split.parties):
        return False
    return split.num_parameters <= MOST_PARAMETERS and int(readers_of(split).max()) < 2


def readers_of(split: SplitModel) -> np.ndarray:
    """By how many parties each latent is read [theta]."""
    return split.gather_matrix.sum(1)


def summed_moments(split: SplitModel, plan: MomentsPlan) -> np.ndarray:
    """The sum over parties as a matrix `[theta + k, D]` of all that moments are of, offsets behind."""
    offsets = plan.offsets or (Offset(),) * len(split.parties)
    starts = np.cumsum(widths_of(split))[:-1]
    found, rows = [], []
    for party, offset in zip(np.split(split.gather_matrix, starts, axis=1), offsets, strict=True):
        of_offset = np.zeros((split.num_parameters, int(offset.half > 0)))
        found.append(np.concatenate([party, of_offset], axis=1))
        rows += [False] * party.shape[1] + [True] * of_offset.shape[1]
    return np.concatenate([np.concatenate(found, axis=1), np.eye(len(rows))[rows]])


def coefficient_moments(released: NoisyMoments, plan: GradientPlan, split: SplitModel) -> np.ndarray:
    """Of what coefficients multiply, sums over all records `[theta, theta]`; of steps' scores."""
    sums = summed_moments(split, moments_of(plan))[: split.num_parameters]
    return sums @ consistent_moments(released, plan, split).matrix @ sums.T


def _blocks(
    split: SplitModel, plan: GradientPlan, lengths: Sequence[np.ndarray]
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Of each party that whitens scores: its number, the numbers of what W reads and of these scores, and W."""
    for place, (party, bound, length) in enumerate(zip(split.parties, _bounds(split, plan), lengths, strict=True)):
        if bound:
            own = split.numeric(party)
            yield place, np.concatenate([own, split.constant(party)]), own, bound * length


def slope_by(whole: np.ndarray, scaled: np.ndarray, noise: float) -> np.ndarray:
    """T `[d, d]`: T S T' is the geometric mean of S and M, which has no direction in which S has more.

    :param whole: M, of records as they are.
    :param scaled: S, of records that are scaled down.
    :param noise: standard deviation of the difference of their entries.
    """
    edge = noise * math.sqrt(len(whole))
    values, vectors = np.linalg.eigh((scaled + scaled.T) / 2)
    values = np.maximum(values, edge)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    values, vectors = np.linalg.eigh(inverse @ whole @ inverse)
    beyond = np.maximum(values - edge * np.square(inverse @ vectors).sum(0), 1.0)
    return root @ (vectors * np.minimum(beyond, _MOST_SCALED) ** 0.25) @ vectors.T @ inverse


def lengths_of(split: SplitModel, plan: GradientPlan, blocks: Sequence[np.ndarray], seen: Seen) -> list[np.ndarray]:
    """Each party's A by all parties' own moments, with their noise."""
    return _lengths(split, plan, [block / plan.num_records for block in blocks], seen)


def usual_whitening(split: SplitModel, plan: GradientPlan, scores: np.ndarray, seen: Seen) -> Whitening:
    """Of records with such scores `[n, D]`, every party's side by side."""
    parts = np.split(scores, np.cumsum(widths_of(split))[:-1], axis=1)
    return Whitening.of(split, plan, _lengths(split, plan, [of.T @ of / len(of) for of in parts], seen))


def _lengths(split: SplitModel, plan: GradientPlan, blocks: Sequence[np.ndarray], seen: Seen) -> list[np.ndarray]:
    """:param blocks: each party's moments, a record's mean, with noise."""
    (summed,), cut = split.structure.summed, seen.cut(split, plan)
    variance: float = cut**2
    if (known := usual_residuals(seen.law(summed.outcome), seen.usual)) is not None:
        residual, chances, weights = known
        variance = float(weights @ (chances * np.clip(residual, -cut, cut) ** 2).sum(1))
    ratio = seen.noise_stddev(plan) ** 2 / (plan.num_gradients * plan.num_records * variance)
    noise, found = moments_of(plan).stddev_before / plan.num_records, []
    tried = dict(zip(split.parties, stand_in_scores(split, _NUM_TRIED, seed=17), strict=True))
    for party, moments, bound in zip(split.parties, blocks, _bounds(split, plan), strict=True):
        numbers, constant = split.numeric(party), split.constant(party)
        own, beside = moments[np.ix_(numbers, numbers)], moments[np.ix_(numbers, constant)]
        if not bound:
            found.append(np.zeros((len(numbers) + len(constant), len(numbers))))
            continue
        means = beside.T / np.maximum(moments[np.ix_(constant, constant)].sum(1, keepdims=True), noise)
        far = np.nan_to_num(tried[party], posinf=0.0, neginf=0.0)
        far = far[:, numbers] - far[:, constant] @ means
        length = length_of(own - beside @ means, noise, bound**2, ratio, plan.num_records, far, bool(len(constant)))
        is_moved = len(constant) and not np.allclose(length, np.eye(len(length)) / bound)
        found.append(np.concatenate([length, -_agreed(means @ length if is_moved else np.zeros_like(means))]))
    return found


def _agreed(numbers: np.ndarray) -> np.ndarray:
    """To what machines agree on."""
    largest = np.abs(numbers).max(initial=0.0)
    unit = 2.0 ** (math.floor(math.log2(largest)) - _AGREED_BITS) if largest else 1.0
    return np.round(numbers / unit) * unit


def length_of(
    moments: np.ndarray, noise: float, room: float, ratio: float, num_records: int, far: np.ndarray,
    is_centred: bool = False,
) -> np.ndarray:  # fmt: skip
    """A `[d, d]`, symmetric, to what machines agree on.

    :param moments: a party's, a record's mean, with noise `[d, d]`.
    :param noise: its standard deviation.
    :param room: the bound of |W'x|^2.
    :param ratio: variance of the noise of all steps' mean over N and the variance of a residual.
    :param num_records: N.
    :param far: scores of stand-ins, which are spread over all that columns may hold `[n, d]`.
    :param is_centred: whether all of these are less the columns' means.
    """
    values, vectors = np.linalg.eigh((moments + moments.T) / 2)
    edge = noise * math.sqrt(len(moments))
    seen = np.maximum(values, 0.0) + edge
    reach, off = np.square(far @ vectors), 1 + num_records * _BENT**2
    near = np.maximum(np.minimum(far.max(0, initial=0.0), -far.min(0, initial=0.0)), edge) if is_centred else None
    least, squares = _WORTH * np.log1p(ratio / seen).mean() - _GAIN, np.ones(len(seen))
    for floor in _FLOORS:
        tried = 1 / (seen + floor * edge)
        farthest = (reach @ tried).max(initial=1e-30) / (tried @ seen)
        for times, lost in _LENGTHS:
            sized = tried * room / (times * (tried @ seen))
            loss = lost * max(0.0, 1 - times / farthest) ** 2
            loss += 0.0 if near is None else _surely_lost(moments, near, vectors**2 @ sized / room)
            if (cost := np.log1p(ratio / (sized * seen)).mean() + loss * off) < least:
                least, squares = cost, sized
    if np.all(squares == 1):
        return np.eye(len(squares)) / math.sqrt(room)
    return _agreed((vectors * np.sqrt(squares / room)) @ vectors.T)


def _surely_lost(moments: np.ndarray, near: np.ndarray, squares: np.ndarray) -> float:
    """At least so much of the columns' squares is of records that are scaled down, in their mean.

    Of X >= 0 with mean m, as a column less its nearer public end, E[X^2; X <= t] <= t m: what is left of E X^2 is of
    values above t. So a column whose mean is near an end has few values, and far ones, wherever its variance is large.

    :param near: how far the means are from the nearer ends `[d]`.
    :param squares: 1 / t^2, t from the means, beyond which a column alone is scaled down `[d]`.
    """
    within = (1 / np.sqrt(squares) + near) * near
    return float(np.maximum(0.0, 1 - within / (np.maximum(np.diag(moments), 0.0) + near**2)).mean())


def _starts(plan: GradientPlan) -> np.ndarray:
    """Where each party's scores begin in the moments."""
    return np.cumsum([0, *moments_of(plan).widths])[:-1]


def _bounds(split: SplitModel, plan: GradientPlan) -> np.ndarray:
    """Of each party's |W'x|, as its moments have them; 0 where nothing is whitened."""
    return np.array([numeric_bound(split, moments_of(plan), party) for party in split.parties])
