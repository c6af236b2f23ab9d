r"""What a posterior that knows the steps' noise will know of each coefficient, from public numbers alone.

The noise's covariance is public, and how much records say follows from what they are. So stand-ins take their place:
columns drawn from the schema's public domains, coefficients from the prior. With H, J and J_0 as `dpvi.noise_aware` has
them (the slope of the cut residuals' sum, its variance, and the variance without a cut), s^2 the variance of a step's
noise, T steps, P the prior's precision, the posterior's covariance is about V,

    V^-1 = H (J + s^2 / T + kappa^2 tr(V) + .7 rho^2 tr(HV) H)^-1 H + P,

as T sums near the optimum average their noise, and are V's spread away from the coefficients, by which the noise of the
moments (kappa) and what is not known of the predictors (rho) move them. Without privacy it is (J_0 + P)^-1. The median
over a few draws of the coefficients is taken.

Columns of people depend on each other, and are more often in the lower part of their public domain than in the upper,
which stand-ins are not. So they are drawn again, by a Gaussian copula of a correlation of .25 and with a density that
falls to 0 at the upper end (`usual_values`), of categories evenly, as any may be a rare one. An intercept, which is
where all columns are in the middle, is then as far from the records as it usually is. Where columns say nearly the
same, and of a category that few have, intervals are wider than forecast.

Of latents that are Gaussian given others, as the effects of groups given their spread, P is that at each draw's others.

A prior that is far wider than predictors are would have every residual cut, and every chance 0 or 1: its draws are
shrunk, so that the predictor's spread is no more than twice the outcome's usual one.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import norm

from vertinumpyro.data import OBSERVED_SUFFIX
from vertinumpyro.dpvi.outcome_tables import Law, Lifetimes
from vertinumpyro.dpvi.priors import drawn_precisions, drawn_prior
from vertinumpyro.model import SplitModel
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.split import offsets_at, scores_of

_NODES = 65
_ROUNDS = 12
_CORRELATION = 0.25
_UPPER = 0.65  # of two values the upper one has 1 in 3, of eight the last 1 in 25
_WIDEST = 2.0
_ON_ONE_SIDE = 0.7  # of rho^2: what points on several sides of the coefficients leave of it


class StandIns(NamedTuple):
    """What a fit is forecast from, in coefficients of standardised scores (`dpvi.clipping`); public.

    scores: of stand-in records, the derivatives of the predictor `[n, d]`.
    offsets: what is added to it without a coefficient `[n]`.
    coefficients: draws from the prior `[k, d]`.
    precisions: the prior's at each of them `[k, d, d]`.
    num_records: N.
    noise: of a step's sum, standard deviations `[d]`.
    num_steps: T.
    moments_noise: of the entries of the second moments.
    trust: rho.
    back: to the model's own coefficients `[d, d]`.
    """

    scores: np.ndarray
    offsets: np.ndarray
    coefficients: np.ndarray
    precisions: np.ndarray
    num_records: int
    noise: np.ndarray
    num_steps: int
    moments_noise: float
    trust: float
    back: np.ndarray

    @property
    def predictors(self) -> np.ndarray:
        """Of each draw and record `[k, n]`."""
        return self.coefficients @ self.scores.T + self.offsets

    def usual_predictors(self, outcome: Law) -> tuple[float, float]:
        """Mean and standard deviation of predictors, of most draws."""
        predictors = self.predictors
        spread = min(float(np.median(predictors.std(1))), _WIDEST * outcome.usual[1])
        return float(np.median(predictors.mean(1))), spread

    def whitened(self, to: np.ndarray, back: np.ndarray) -> StandIns:
        """In coefficients of whitened scores: W and U `[d, d]`."""
        return self._replace(
            scores=self.scores @ to,
            coefficients=self.coefficients @ back,
            precisions=to.T @ self.precisions @ to,
            back=self.back @ to,
        )


def forecast_stddevs(outcome: Law, cut: float, given: StandIns) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations `[d]` of the posterior, and of the same without the noise of privacy.

    :param cut: where residuals are cut, in their own units.
    """
    predictors = given.predictors
    middle, width = predictors.mean(), predictors.std()
    predictors = middle + (predictors - middle) * min(1.0, _WIDEST * outcome.usual[1] / max(width, 1e-12))
    said, spread, whole = (np.interp(predictors, *of_eta) for of_eta in _weights(outcome, cut, predictors))
    found = [_stddevs(given, *of_draw) for of_draw in zip(given.precisions, said, spread, whole, strict=True)]
    with_noise, without = (np.median(part, axis=0) for part in zip(*found, strict=True))
    return with_noise, np.minimum(without, with_noise)


_TRIED, _BLOCKS, _NUM_DRAWS = 32, 16, 32


def stand_ins_of(
    split: SplitModel, law: Law, read: np.ndarray, usual: tuple[np.ndarray, np.ndarray], **known: Any
) -> StandIns:
    """Of a model whose parts are linear.

    :param law: of the outcome.
    :param read: places in flat theta of what steps learn.
    :param usual: of `usual_scores`.
    :param known: the other fields, `noise` of all of theta.
    """
    draws, (scores, offsets) = drawn_prior(split)[0][:_NUM_DRAWS], usual
    to, back = (of[np.ix_(read, read)] for of in (split.to_standardised, split.from_standardised))
    coefficients = draws[:, read] @ to.T
    if split.centre.any():
        # the predictor in the middle of the public domains, of which priors of what is far from 0 say nothing
        middle, (centre, width) = np.flatnonzero(read == split.intercept)[0], law.usual
        apart = coefficients[:, middle] - centre
        coefficients[:, middle] = centre + apart * min(1.0, 2 * width / np.sqrt(np.square(apart).mean()))
    return StandIns(
        scores=scores @ split.gather_matrix.T[:, read],
        offsets=np.zeros_like(offsets) if isinstance(law, Lifetimes) else offsets,  # a time at risk is in the law
        coefficients=coefficients,
        precisions=back.T @ drawn_precisions(split, draws)[:, read[:, None], read] @ back,
        back=back,
        **{**known, "noise": known["noise"][read]},
    )


def usual_scores(split: SplitModel) -> tuple[np.ndarray, np.ndarray]:
    """Of stand-in records as people's are usually `[n, D]`, every party's side by side, and their offsets `[n]`."""
    zeros = jnp.asarray(np.zeros(split.num_parameters), float)
    unordered = {name for name, column in split.schema.columns.items() if column.kind == "categorical"}
    unordered |= {name + OBSERVED_SUFFIX for name in split.schema.columns}

    def of_block(block: int) -> np.ndarray:
        found, added = [], np.zeros((_TRIED, 1))
        rng, evenly = (np.random.default_rng(seed + block) for seed in (50, 150))
        common, signs = rng.normal(size=_TRIED), itertools.cycle((1, -1))
        for place, party in enumerate(split.parties):
            seed = 100 + block * len(split.parties) + place  # or parties' columns would be each other's
            own = stand_in_columns(split.schema.restrict(party), _TRIED, seed=seed, observed_fraction=0.5)
            usual = {
                name: jnp.asarray(usual_values(column, next(signs) * common, rng, ordered=name not in unordered))
                for name, column in own.items()
            }
            found.append(scores_of(split, party)(zeros, usual))
            of_offset = {n: jnp.asarray(usual_values(c, common, evenly, ordered=False)) for n, c in own.items()}
            added = added + np.asarray(offsets_at(split, party)(of_offset))[:, None]
        return np.concatenate([*found, added], axis=1)

    every = np.concatenate([of_block(block) for block in range(_BLOCKS)]).astype(np.float64)
    return every[:, :-1], every[:, -1]


def usual_values(
    column: np.ndarray, common: np.ndarray, rng: np.random.Generator, *, ordered: bool = True
) -> np.ndarray:
    """Of stand-in values drawn evenly, others that depend on what all columns have in common; see the module.

    :param common: standard normal numbers, as many as values.
    :param ordered: whether the lower values are the usual ones.
    """
    normal = math.sqrt(_CORRELATION) * common + math.sqrt(1 - _CORRELATION) * rng.normal(size=len(common))
    place = 1 - norm.sf(normal) ** (_UPPER if ordered else 1.0)
    return np.sort(column)[(place * len(column)).astype(int)]


def _weights(outcome: Law, cut: float, predictors: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """At some predictors, E[psi d log p / d eta], Var(psi) and that of residuals that nothing cuts."""
    eta = np.linspace(predictors.min() - 1e-6, predictors.max() + 1e-6, _NODES)
    known = outcome.support(jnp.asarray(eta))
    assert known is not None  # `noise_aware.why_not` asked
    values, chances = known
    residual, chances = np.asarray(outcome.linked_residual(jnp.asarray(eta)[:, None], values)), np.asarray(chances)
    psi = np.clip(residual, -cut, cut)
    mean = (chances * psi).sum(1)
    sums = (chances * psi * residual).sum(1), (chances * psi**2).sum(1) - mean**2, (chances * residual**2).sum(1)
    return [(eta, of_eta) for of_eta in sums]


def _stddevs(
    given: StandIns, prior: np.ndarray, said: np.ndarray, spread: np.ndarray, whole: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of one draw of the coefficients, of the prior's precision there, and of weights `[n]`."""
    scale, x = given.num_records / len(given.scores), given.scores
    steep, spreads, exact = (scale * (x * weights[:, None]).T @ x for weights in (said, spread, whole))
    noise = np.diag(given.noise**2 / given.num_steps)
    kappa = given.moments_noise * said.mean()
    covariance = np.linalg.inv(prior)
    for _ in range(_ROUNDS):
        by_trust = _ON_ONE_SIDE * given.trust**2 * np.sum(steep * covariance) * steep
        apart = kappa**2 * np.trace(covariance) * np.eye(len(noise)) + by_trust
        information = steep @ np.linalg.solve(spreads + noise + apart, steep)
        covariance = np.linalg.inv(information + prior)
    without = np.linalg.inv(exact + prior)
    with_noise, alone = (given.back @ of @ given.back.T for of in (covariance, without))
    return np.sqrt(np.diag(with_noise)), np.sqrt(np.diag(alone))
