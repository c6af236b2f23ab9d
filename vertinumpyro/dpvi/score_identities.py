r"""What holds of every record's scores, whatever the record, and so of the sum of xx', which noise hides.

Of the scores x of a model much is public: the columns of a category are never both 1, so the sum of their product is
0; their squares are themselves, as products with an intercept, so these sums are equal; and they add up to it, so a
combination of the sum's rows is 0. Released moments have noise that knows nothing of this. `consistent` takes them to
the nearest symmetric matrix of which all of it holds, and with them away goes the noise across: post-processing.

Found are, on stand-ins drawn from the public domains of all columns:

- z with z'x = 0: then M z = 0;
- pairs with x_i x_j = 0: then M_ij = 0;
- pairs with x_i x_j = c x_k x_l: then M_ij = c M_kl.

Each is of degree 1 or 2 in x, so it holds as well of a party's scores that are scaled down to their bound; between
parties only where none is. Of whitened scores W'x (`dpvi.whitening`), which are scaled apart from all others, noise is
alike, so the nearest matrix W'MW is found of all M of which it holds, by conjugate gradients. Where stand-ins cannot
tell, nothing is taken to hold: a score that is hardly ever other than 0, and pairs that would seldom be so together if
they had nothing to do with each other. For more than 400 scores nothing is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, cg

from vertinumpyro.dpvi.second_moments import MomentsPlan
from vertinumpyro.model import SplitModel
from vertinumpyro.model.split import stand_in_scores

_MOST_TRIED, _MOST_NUMBERS = 16_384, 4_000_000  # stand-ins, and of their scores
_LEAST_SEEN = 20  # stand-ins that must tell, or would if scores were independent
_MOST_SCORES = 400  # beyond which nothing is looked for: it takes their square in numbers, a hundred times
_NUM_PROBES, _STEP = 4, 1e-4  # scores are in single precision
_NULL = 1e-9  # of the largest eigenvalue
_ROUNDING = 1e-4  # of a score's length
_ROUNDS, _CLOSE = 100, 1e-7  # until both projections are so close, of the matrix
_operator: Any = LinearOperator  # whose stubs have another constructor
_MOST_WHITENED, _TURNS = 150, 8
_MOST_NOISES, _NOISE = 16, 10_000  # matrices of noise, or numbers in them, that say what is left of it


class Identities(NamedTuple):
    """What holds of every record's scores; public.

    null: orthonormal z `[D, k]`.
    kin: which products are multiples of each other `[D, D]`: those with one number, 0 of those that are 0.
    times: of what they are these multiples `[D, D]`.
    noise_left: of noise in a matrix, the part of its root mean square that `consistent` leaves.
    """

    null: np.ndarray
    kin: np.ndarray
    times: np.ndarray
    noise_left: float = 1.0


def identities_of(split: SplitModel, plan: MomentsPlan) -> Identities:
    """Those of all scores that a plan's moments are of, in its order; found once for a model."""
    key = f"identities {plan.widths} {plan.radius:.12g} {plan.clip_parts} {plan.whitened}"
    if key not in split.compiled:
        split.compiled[key] = _found(split, plan)
    return split.compiled[key]


def _found(split: SplitModel, plan: MomentsPlan) -> Identities:
    size = sum(plan.widths)
    if size > _MOST_SCORES:
        return Identities(np.zeros((size, 0)), 1 + _pairs(np.arange(size)), np.ones((size, size)))
    number, rng, blocks = min(_MOST_TRIED, _MOST_NUMBERS // size), np.random.default_rng(11), []
    for scores, width in zip(stand_in_scores(split, number, seed=300), plan.widths, strict=True):
        offset = plan.radius * 1e-3 * rng.normal(size=(number, width - scores.shape[1]))  # like no other score
        blocks.append(np.concatenate([scores, offset], axis=1))
    bounds = plan.radius * np.sqrt(np.array(plan.clip_parts) / sum(plan.clip_parts))
    is_cut = any((np.linalg.norm(b, axis=1) > bound + _ROUNDING).any() for b, bound in zip(blocks, bounds, strict=True))
    party_of = np.repeat(np.arange(len(blocks)), plan.widths) if is_cut else np.zeros(size, int)
    if plan.whitened:  # numeric scores are moved, and scaled down at each party otherwise
        for start, party in zip(np.cumsum([0, *plan.widths]), split.parties, strict=False):
            numeric = start + split.numeric(party)
            party_of[numeric] = len(blocks) + numeric
    return identities_among(np.concatenate(blocks, axis=1), party_of)


def identities_among(scores: np.ndarray, apart: Sequence[int] | np.ndarray) -> Identities:
    """What holds of all of some scores `[n, D]`.

    :param apart: a number of each score `[D]`; nothing is found between those of different numbers.
    """
    apart, number = np.asarray(apart), len(scores)
    scores = np.where(np.isfinite(scores), scores, 0.0)  # as a party sends them
    seldom = np.count_nonzero(scores, axis=0) < _LEAST_SEEN  # of which they say too little
    scores = np.where(seldom, np.random.default_rng(14).normal(size=scores.shape), scores)
    null = [np.zeros((len(apart), 0))]
    for which in np.unique(apart):
        own = np.flatnonzero(apart == which)
        size = np.sqrt(np.square(scores[:, own]).mean(0))
        values, vectors = np.linalg.eigh((scores[:, own] / size).T @ (scores[:, own] / size) / number)
        found = np.zeros((len(apart), np.count_nonzero(values < _NULL * values[-1])))
        found[own] = vectors[:, : found.shape[1]] / size[:, None]
        null.append(np.linalg.qr(found)[0])
    kin, times = _kin(scores, apart)
    found = Identities(np.concatenate(null, axis=1), kin, times)
    return found._replace(noise_left=noise_left(found, lambda noise: consistent(noise, found)))


def noise_left(known: Identities, made: Callable[[np.ndarray], np.ndarray]) -> float:
    """Of noise in a matrix, the part of its root mean square in what is made of it."""
    rng, before, after = np.random.default_rng(12), 0.0, 0.0
    for _ in range(max(1, min(_MOST_NOISES, _NOISE // known.kin.size))):
        noise = rng.normal(size=known.kin.shape)
        noise = noise + noise.T
        before, after = before + np.square(noise).sum(), after + np.square(made(noise)).sum()
    return float(np.sqrt(after / before))


def _kin(scores: np.ndarray, apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`Identities.kin` and `times`: products are compared by their sums with random signs, so in matrix products."""
    number, other = len(scores), (scores != 0).astype(float)
    together, each = other.T @ other, other.sum(0)
    sizes = np.sqrt(np.square(scores).T @ np.square(scores))
    probes = np.random.default_rng(13).choice([-1.0, 1.0], size=(_NUM_PROBES, number))
    sums = np.stack([(scores * probe[:, None]).T @ scores for probe in probes])  # [probes, D, D]
    sums = sums / np.where(sizes > 0, sizes, 1.0)
    signs = np.where(sums[0] < 0, -1.0, 1.0)
    kin = 1 + _alike((sums * signs / _STEP).reshape(_NUM_PROBES, -1), _pairs(apart).reshape(1, -1)).reshape(sizes.shape)
    kin = np.where(together >= _LEAST_SEEN, kin, kin.max() + 1 + _pairs(np.arange(len(apart))))
    kin[(together == 0) & (np.outer(each, each) >= _LEAST_SEEN * number)] = 0
    return kin, np.where(together > 0, sizes * signs, 1.0)


def _alike(near: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """One number for columns of which all of `equal` is equal and all of `near` the same but for rounding.

    These are in one cell of one of two grids, each with its lines in the middle of the other's cells.
    """
    one, other = (
        np.unique(np.concatenate([np.floor(near + shift), equal]), axis=1, return_inverse=True)[1].ravel()
        for shift in (0.0, 0.5)
    )
    size = one.max() + 1 + other.max() + 1
    graph = coo_array((np.ones(len(one)), (one, one.max() + 1 + other)), shape=(size, size))
    return connected_components(graph, directed=False)[1][one]


def _pairs(numbers: np.ndarray) -> np.ndarray:
    """One number for each unordered pair of some `[D]` that are not below 0 `[D, D]`."""
    return np.minimum.outer(numbers, numbers) * (numbers.max() + 1) + np.maximum.outer(numbers, numbers)


def consistent(matrix: np.ndarray, known: Identities) -> np.ndarray:
    """The nearest symmetric matrix of which all holds, by projections in turn (von Neumann)."""
    found = (matrix + matrix.T) / 2
    squares = np.bincount(known.kin.ravel(), np.square(known.times).ravel())
    for _ in range(_ROUNDS):
        across = found - known.null @ (known.null.T @ found)
        across = across - (across @ known.null) @ known.null.T
        common = np.bincount(known.kin.ravel(), (known.times * across).ravel()) / np.maximum(squares, 1e-300)
        common[0] = 0.0
        alike = known.times * common[known.kin]
        moved, found = np.linalg.norm(alike - across), alike
        if not known.null.shape[1] or moved <= _CLOSE * np.linalg.norm(found):
            break
    return found


def consistent_whitened(matrix: np.ndarray, known: Identities, to: np.ndarray) -> np.ndarray:
    """The nearest W'MW, M symmetric, of which all holds that holds of M, by turns; W may have up to 150 rows.

    :param matrix: moments of W'x.
    :param to: W `[D, D]`.
    """
    found = (matrix + matrix.T) / 2
    if len(to) > _MOST_WHITENED:
        return found
    null = np.linalg.qr(np.linalg.solve(to, known.null))[0]  # x'n = 0 is (W'x)' W^-1 n = 0
    for _ in range(_TURNS if null.shape[1] else 1):
        found = _nearest(found, known, to)
        across = found - null @ (null.T @ found)
        found = across - (across @ null) @ null.T
    return found


def _nearest(matrix: np.ndarray, known: Identities, to: np.ndarray) -> np.ndarray:
    """Of all W'MW with products that are multiples of each other: their common numbers by conjugate gradients."""
    number = known.kin.max() + 1

    def made(common: np.ndarray) -> np.ndarray:
        return to.T @ (known.times * common[known.kin]) @ to

    def summed(of: np.ndarray) -> np.ndarray:
        found = np.bincount(known.kin.ravel(), (known.times * (to @ of @ to.T)).ravel(), number)
        found[0] = 0.0  # of those that are 0
        return found

    operator = _operator((number, number), matvec=lambda common: summed(made(common.ravel())))
    scales = np.square(to).sum(1)
    weights = np.bincount(known.kin.ravel(), (np.square(known.times) * np.outer(scales, scales)).ravel(), number)
    inverse = np.where(weights > 0, 1 / np.maximum(weights, 1e-300), 1.0)
    before = _operator((number, number), matvec=lambda common: inverse * common.ravel())
    common, _ = cg(operator, summed(matrix), rtol=_CLOSE, maxiter=_ROUNDS, M=before)
    return made(common)


# -- of coefficients ---------------------------------------------------------------------------------


def constant_of(split: SplitModel) -> np.ndarray:
    """Coefficients that make eta 1 for every record, as an intercept's, found on stand-ins; zeros where none do."""
    number = 4 * split.num_parameters + 16
    tried = split.gather_matrix @ np.concatenate(stand_in_scores(split, number, seed=8), axis=1).T
    found, *_ = np.linalg.lstsq(tried.T, np.ones(number), rcond=1e-9)
    return found if np.allclose(tried.T @ found, 1.0, atol=1e-4) else np.zeros_like(found)


def unseen(split: SplitModel, held: Any = ()) -> np.ndarray:
    """Directions `[theta, k]` of which no record says anything, as an intercept beside all values of a column.

    :param held: places of latents that such a direction must not move.
    """
    if "unseen" not in split.compiled:
        number = 64 * split.num_parameters + 1024  # so many that every value of a column is among them
        tried = np.concatenate(stand_in_scores(split, number, seed=9), axis=1) @ split.gather_matrix.T
        values, vectors = np.linalg.eigh((tried.T @ tried)[np.ix_(split.read, split.read)] / number)
        found = vectors[:, values < _NULL * values.max(initial=1e-30)]
        split.compiled["unseen"] = split.from_standardised[:, split.read] @ found
    found = split.compiled["unseen"]
    return found @ across(found[held].T) if len(held) else found


def across(directions: np.ndarray) -> np.ndarray:
    """An orthonormal basis `[d, d - rank]` of all that is orthogonal to some directions `[d, k]`."""
    basis, lengths, _ = np.linalg.svd(directions)
    return basis[:, np.count_nonzero(lengths > _NULL * lengths.max(initial=1e-30)) :]
