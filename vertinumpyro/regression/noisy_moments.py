"""The one release of the functional mechanism, the noisy matrix of all products of a record's coordinates, and from it
to coefficients: minimise uᵀA u - 2 bᵀu, with what is known about the noise.

A and b are moments of the features and of features times label. One-hot groups sum to one, so A is singular along
with the intercept; their coefficients are taken to sum to zero, w = B u with orthonormal contrasts B. All of this is
post-processing of the release.

`minimiser` is the paper's way: symmetric noisy A, plus λ I with λ a multiple of the noise's standard deviation,
eigenvalues at or below one standard deviation dropped, the minimum in the kept directions.

`noise_aware` uses that the noise's covariance is known. With A = Ã - E and b = b̃ - e and residual variance τ²,

    b̃ - Ã w | w  ~  N(0, τ² A + Cov[e] + Cov[E w]),

so, as in a regression with errors in its design, the likelihood of w is Gaussian up to its covariance Ω(w), which is
evaluated at the posterior's second moment of w, to which it is iterated. With the prior N(0, P):

    V = (Â Ω⁻¹ Â + P⁻¹)⁻¹,      m = V Â Ω⁻¹ b̃,

Â being A's estimate by eigenvalues shrunk at the noise: θ -> θ κ, κ = max(0, 1 - ν²/θ²), ν the standard deviation
of noise in a typical direction. What Â still misses enters as Cov[E w]. Taken to be Gaussian: the product of A's
posterior and w; so intervals hold approximately (`benchmarks/functional_mechanism.py` measures their coverage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, final

import numpy as np
from scipy.stats import chi2

from vertinumpyro.core import row_blocks
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import RowBlocks, threads_for
from vertinumpyro.data import Schema
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.posteriors import Posterior
from vertinumpyro.secure.input_form import Columns, InputForm
from vertinumpyro.session import Multiply, PartyComputation, Payload, Publish, ReleaseRequest, Run, Session, Sum
from vertinumpyro.session.run import published

MOMENTS = "moments.npz"
OWN, ACROSS = "own products", "products across parties"
_OWN, _ACROSS = 0, 1  # steps of the plan


class NoisyMoments(NamedTuple):
    """What is released, and the variance of its noise; public.

    matrix: Σ v v' + noise `[D, D]`, symmetric, in units where features and label lie in [-1, 1]; the coordinates are
        the plan's layout's. Entries that are public stand as they are.
    variance: of the noise of each entry `[D, D]`. A one-hot coordinate's square is a copy of its product with the
        intercept, with the same noise; its variance here is 0.
    """

    matrix: np.ndarray
    variance: np.ndarray


@final
class MomentsWork(PartyComputation):
    """One party's part: its own products with its noise, its columns in the products across, its noise on them.

    A party of the schema that holds no column of the regression takes part with nothing, and adds no noise.

    :param plan: the plan.
    :param schema: the public schema, of all parties.
    :param party: whose part this is.
    :param columns: its encoded columns. Secret.
    :param source: its own randomness.
    """

    def __init__(
        self,
        plan: FunctionalMechanismPlan,
        schema: Schema,
        party: str,
        columns: Mapping[str, np.ndarray],
        source: RandomSource,
    ) -> None:
        self._plan, self._parties, self._party, self._source = plan, tuple(schema.parties), party, source
        self._features = plan.layout.in_blocks(schema, columns, party)

    def check(self, request: ReleaseRequest) -> None:
        """See `PartyComputation.check`: own products, then products across parties where there are several."""
        if request not in (Publish(_OWN, OWN), Multiply(_ACROSS, ACROSS)):
            raise request.refused()

    def publish(self, request: Publish) -> Payload:
        """Noisy column sums and products, in grid units; float64 holds the exact ones, as the plan checked.

        A product without noise is public, or stands beside it with noise: 0 is sent in its place, never the exact one.
        """
        plan, party, features = self._plan, self._party, self._features
        if party not in plan.parties:
            return Payload({}, {})
        span = plan.layout.span(party)
        ones = RowBlocks((len(features), 1), 1, features.columns, _ones)
        products, summed = row_blocks.products([features, ones], [(0, 0), (1, 0)])
        sums = summed[0] * plan.layout.scale
        noised = plan.multipliers[span, span]
        noise = plan.draw_noise((party, party), np.triu(noised), self._source)
        products = np.where(noised > 0, products + noise + np.triu(noise, 1).T, 0)
        sums += plan.draw_noise((party, party), plan.multipliers[0, span], self._source)
        return Payload({}, {"sums": sums, "products": products})

    def factor(self, request: Multiply) -> RowBlocks:
        """The party's features."""
        return self._features

    def widths(self, request: Multiply) -> tuple[int, ...]:
        """Every party's features."""
        return widths(self._plan, self._parties)

    def input_form(self, request: Multiply) -> InputForm:
        """One-hot columns, signs and numbers, by the bounds that the sensitivity rests on."""
        return input_form(self._plan, self._parties)

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """The party's share for every pair of parties, flat."""
        plan, out = self._plan, [np.zeros(0, np.int64)]
        if self._party not in plan.parties:
            return np.zeros(size, np.int64)
        for a, b in plan.blocks:
            if a != b:
                times = plan.multipliers[plan.layout.span(a), plan.layout.span(b)]
                out.append(plan.draw_noise((a, b), times, self._source).ravel())
        return np.concatenate(out)

    def __repr__(self) -> str:
        """Nothing secret."""
        return f"MomentsWork({self._party!r})"


def _ones(block: Mapping[str, np.ndarray]) -> np.ndarray:
    """A column of ones, whose products with others are their sums."""
    return np.ones((len(next(iter(block.values()))), 1), np.int8)


def noisy_moments(session: Session, run: Run, plan: FunctionalMechanismPlan) -> NoisyMoments:
    """Release the matrix: own products from their owners, cross products from the session, noise in all of them.

    What it returns satisfies the plan's privacy table; nothing else leaves the parties.

    :raises PlanSpentError: a part was counted as released by a run that stopped, and is not stored.
    """

    own = session.arrays_of(run, _OWN, lambda: own_products(session, plan))
    across = session.arrays_of(run, _ACROSS, lambda: cross_products(session, plan)) if len(plan.parties) > 1 else {}
    return in_units(assembled(plan, own, across), plan)


def own_products(session: Session, plan: FunctionalMechanismPlan) -> dict[str, np.ndarray]:
    """Every party's noisy sums and products, in grid units."""
    released = session.publish(Publish(_OWN, OWN))
    by_party = zip(session.parties, released, strict=True)
    return {f"{what}/{party}": array for party, one in by_party for what, array in one.arrays.items()}


def cross_products(session: Session, plan: FunctionalMechanismPlan) -> dict[str, np.ndarray]:
    """The noisy products of every two parties of the plan, in grid units."""
    numbers = {party: number for number, party in enumerate(session.parties)}
    products = session.cross_products(Multiply(_ACROSS, ACROSS))
    return {f"{a}/{b}": products[numbers[a], numbers[b]] for a, b in plan.blocks if a != b}


def assembled(
    plan: FunctionalMechanismPlan, own: Mapping[str, np.ndarray], across: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The revealed matrix in grid units, int64 `[D, D]`.

    :raises BackendError: a party published no such numbers.
    """
    layout = plan.layout
    out = np.zeros((layout.size, layout.size), np.int64)
    out[0, 0] = plan.num_records * layout.scale**2
    for party in plan.parties:
        span = layout.span(party)
        width = span.stop - span.start
        out[0, span] = out[span, 0] = published(own, f"sums/{party}", (width,), party)
        out[span, span] = published(own, f"products/{party}", (width, width), party)
    for a, b in plan.blocks:
        if a != b:
            rows, columns = layout.span(a), layout.span(b)
            out[rows, columns], out[columns, rows] = across[f"{a}/{b}"], across[f"{a}/{b}"].T
    return out


def in_units(matrix: np.ndarray, plan: FunctionalMechanismPlan) -> NoisyMoments:
    """A revealed matrix in grid units as moments."""
    complete = _with_public_entries(matrix.copy(), plan)
    return NoisyMoments(complete / float(plan.layout.scale) ** 2, plan.noise_variance)


def widths(plan: FunctionalMechanismPlan, parties: Sequence[str]) -> tuple[int, ...]:
    """How many features each party of the schema puts in."""
    held = {party: plan.layout.span(party) for party in plan.parties}
    return tuple(held[party].stop - held[party].start if party in held else 0 for party in parties)


def input_form(plan: FunctionalMechanismPlan, parties: Sequence[str]) -> InputForm:
    """What each party's features are, in public."""
    groups = plan.layout.groups
    return InputForm(
        tuple(
            tuple(Columns(group.shape, group.size, plan.layout.scale) for group in groups if group.party == party)
            for party in parties
        )
    )


def _with_public_entries(matrix: np.ndarray, plan: FunctionalMechanismPlan) -> np.ndarray:
    """Entries that were not released, from what is public or released beside them; they came as zeros."""
    layout = plan.layout
    if plan.sensitivity == "paper":
        return matrix
    for group in layout.groups:
        own = slice(layout.starts[group.column], layout.starts[group.column] + group.size)
        if group.shape == "sign":
            matrix[own, own] = plan.num_records * layout.scale**2
        elif group.shape == "one_hot":
            matrix[own, own] = np.diag(matrix[0, own])
    return matrix


_ITERATIONS = 50
_FALSE_ALARM = 0.01
_TOLERANCE = 1e-3  # of the second moment; the posterior's own width is far above it

Status = Literal["usable", "partly noise", "noise only"]
Spectrum = tuple[np.ndarray, np.ndarray]
"""Eigenvalues, ascending, and eigenvectors of Ã."""


class Quadratic(NamedTuple):
    """The objective in the contrasts' coordinates; public.

    matrix: Ã `[q, q]`.
    vector: b̃ `[q]`.
    label_square: Σ y² with noise, at least 0.
    num_records: N.
    noise: standard deviation of the noise in a typical entry of the matrix.
    vector_noise: the same for the vector.
    basis: B `[D - 1, q]`, from contrasts to intercept and features.
    variance: of the noise in A's entries before the contrasts `[D - 1, D - 1]`.
    vector_variance: of that in b's `[D - 1]`.
    copies: which coordinates are one-hot: their squares copy their products with the intercept.
    """

    matrix: np.ndarray
    vector: np.ndarray
    label_square: float
    num_records: int
    noise: float
    vector_noise: float
    basis: np.ndarray
    variance: np.ndarray
    vector_variance: np.ndarray
    copies: np.ndarray


class Solution(NamedTuple):
    """Coefficients of intercept and features, and how far the noise let them be known; public.

    coefficients: w `[D - 1]`.
    posterior: mean and covariance of w `[D - 1, D - 1]`; None where the method has none.
    kept: directions in which the quadratic stood out from its noise.
    directions: all of them.
    status: "usable"; "partly noise" where directions were dropped; "noise only" where no direction besides the
        intercept, or no association with the label, stood out: then all coefficients but the intercept are 0.
    """

    coefficients: np.ndarray
    posterior: Posterior | None
    kept: int
    directions: int
    status: Status


def quadratic(moments: NoisyMoments, layout: FeatureLayout, num_records: int) -> Quadratic:
    """The objective's parts, from a release."""
    index = np.r_[0, layout.feature_indices]
    label = layout.label_index
    matrix, variance = moments.matrix[np.ix_(index, index)], moments.variance[np.ix_(index, index)]
    basis, copies = _contrasts(layout)
    off = variance[~np.eye(len(index), dtype=bool)]
    return Quadratic(
        matrix=basis.T @ matrix @ basis,
        vector=basis.T @ moments.matrix[index, label],
        label_square=max(0.0, float(moments.matrix[label, label])),
        num_records=num_records,
        noise=float(np.sqrt(off[off > 0].mean())),
        vector_noise=float(np.sqrt(moments.variance[index, label].mean())),
        basis=basis,
        variance=variance,
        vector_variance=moments.variance[index, label],
        copies=copies if variance[copies, copies].max(initial=0.0) == 0 else np.zeros_like(copies),
    )


def _contrasts(layout: FeatureLayout) -> tuple[np.ndarray, np.ndarray]:
    """B, block by block: 1 for a number, orthonormal contrasts for a one-hot group; and which rows are one-hot."""
    blocks = [np.ones((1, 1))]
    for group in layout.feature_groups:
        blocks.append(_helmert(group.size) if group.shape == "one_hot" else np.ones((1, 1)))
    basis = np.zeros((sum(len(block) for block in blocks), sum(block.shape[1] for block in blocks)))
    row = column = 0
    for block in blocks:
        basis[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    shapes = [np.full(group.size, group.shape == "one_hot") for group in layout.feature_groups]
    return basis, np.concatenate([[False], *shapes])


def _helmert(size: int) -> np.ndarray:
    """An orthonormal basis of the vectors that sum to zero `[size, size - 1]`."""
    full = np.column_stack([np.ones(size), np.eye(size)[:, : size - 1]])
    return np.linalg.qr(full)[0][:, 1:]


def minimiser(objective: Quadratic, ridge: float) -> Solution:
    """The minimum of the regularised and trimmed quadratic.

    :param objective: its parts.
    :param ridge: λ in standard deviations of the noise; the paper's followers take 4.
    """
    noise = objective.noise
    values, vectors = np.linalg.eigh(objective.matrix + ridge * noise * np.eye(len(objective.vector)))
    floor = max(noise, 1e-9 * float(values[-1]))
    keep = values > floor
    u = vectors[:, keep] @ ((vectors[:, keep].T @ objective.vector) / values[keep])
    return _solution(objective, u, None, (values - ridge * noise, vectors))


def _solution(objective: Quadratic, u: np.ndarray, covariance: np.ndarray | None, spectrum: Spectrum) -> Solution:
    basis, directions = objective.basis, len(objective.vector)
    kept = int((spectrum[0] > max(objective.noise, 1e-9 * float(spectrum[0][-1]))).sum())
    status: Status = "usable" if kept == directions else "partly noise"
    posterior = None if covariance is None else Posterior(basis @ u, basis @ covariance @ basis.T)
    if kept <= 1 or not _associated(objective, spectrum):
        status = "noise only"
        u = np.r_[_label_mean(objective), np.zeros(directions - 1)]
    return Solution(basis @ u, posterior, kept, directions, status)


def _label_mean(objective: Quadratic) -> float:
    """The label's mean, shrunk by its noise: the posterior mean for a prior with the variance of [-1, 1]."""
    n = objective.num_records
    return float(objective.vector[0] * n / (n**2 + 3 * objective.vector_variance[0]))


def _associated(objective: Quadratic, spectrum: Spectrum) -> bool:
    """Whether b shows more than an intercept: a chi-square test that noise alone passes in one fit of a hundred.

    With features unrelated to the label b is A's first column times the label's mean, but for the noise in both and
    for sampling, whose covariance is at most A. Approximate, and it decides what is reported, not what is private.
    """
    mean = np.clip(_label_mean(objective), -1.0, 1.0)
    rest = objective.vector - mean * objective.matrix[:, 0]
    rest[0] = 0.0
    values, vectors = spectrum
    variance = objective.vector_noise**2 + mean**2 * objective.noise**2 + np.maximum(values, 0.0)
    statistic = np.sum((vectors.T @ rest) ** 2 / variance)
    return bool(statistic > chi2.isf(_FALSE_ALARM, len(rest) - 1))


def noise_aware(objective: Quadratic, prior_variance: float, residual_variance: float | None = None) -> Solution:
    """The Gaussian posterior of the coefficients given the noise's covariance; see the module.

    :param objective: its parts.
    :param prior_variance: of each coefficient in the contrasts' coordinates, features and label in [-1, 1].
    :param residual_variance: τ²; None estimates it from the release, from residual moments and at least 0.
    """
    with threads_for(len(objective.vector) ** 3):
        return _noise_aware(objective, prior_variance, residual_variance)


def _noise_aware(objective: Quadratic, prior_variance: float, residual_variance: float | None) -> Solution:
    A, b, q = objective.matrix, objective.vector, len(objective.vector)
    design, spectrum = _denoised(objective)
    prior = np.eye(q) / prior_variance
    mean, covariance = minimiser(objective, 4.0).coefficients @ objective.basis, np.zeros((q, q))
    second = np.outer(mean, mean)
    for _ in range(_ITERATIONS):
        tau2 = _residual_variance(objective, mean, design) if residual_variance is None else residual_variance
        omega = tau2 * design + _noise_covariance(objective, second) + 1e-12 * A[0, 0] * np.eye(q)
        weight = np.linalg.inv(omega)
        covariance = np.linalg.inv(design @ weight @ design + prior)
        mean = covariance @ design @ weight @ b
        fresh = np.outer(mean, mean) + covariance
        step = np.abs(np.diag(fresh - second)).max()
        second = (second + fresh) / 2  # damped: the plain iteration can alternate
        if step <= _TOLERANCE * np.diag(fresh).max():
            break
    return _solution(objective, mean, (covariance + covariance.T) / 2, spectrum)


def _denoised(objective: Quadratic) -> tuple[np.ndarray, Spectrum]:
    """Â, positive semidefinite, and the spectrum of Ã."""
    values, vectors = np.linalg.eigh(objective.matrix)
    kept = np.maximum(0.0, 1 - (objective.noise / np.maximum(values, objective.noise)) ** 2)
    shrunk = np.where(values > 0, values * kept, 0.0)
    return (vectors * shrunk) @ vectors.T, (values, vectors)


def _residual_variance(objective: Quadratic, mean: np.ndarray, design: np.ndarray) -> float:
    """Mean squared residual at w, from released moments; between 0 and the label's mean square."""
    total = objective.label_square / objective.num_records
    explained = (2 * objective.vector @ mean - mean @ design @ mean) / objective.num_records
    return float(np.clip(total - explained, 1e-3 * total, total))


def _noise_covariance(objective: Quadratic, second: np.ndarray) -> np.ndarray:
    """Bᵀ(Cov[e] + Cov[E w])B for w = B u and E[uu'] = second.

    E is symmetric with independent entries of variance V: Cov[E w]_ii = Σ_k V_ik w_k², Cov[E w]_ij = V_ij w_i w_j. A
    one-hot coordinate j copies its intercept entry E_0j to E_jj, so that E_0j has weight w_j in row 0 and w_0 + w_j
    in row j.
    """
    basis, V = objective.basis, objective.variance
    w2 = basis @ second @ basis.T
    out = V * w2
    np.fill_diagonal(out, V @ np.diag(w2) + objective.vector_variance)
    j = np.flatnonzero(objective.copies)
    out[j, j] += V[0, j] * (2 * w2[0, j] + w2[j, j])
    out[0, j] += V[0, j] * w2[j, j]
    out[j, 0] = out[0, j]
    return basis.T @ out @ basis
