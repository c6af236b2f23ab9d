r"""The posterior given what steps and the outcome's table released, of survivals and, at the end, of counts.

Of counts the table says how far predictors go (`CountCells.ends`), and where the counts are not the model's. The rest
is of a survival's coefficients and baseline hazard.

The trace says of the coefficients and of the baseline's level what `dpvi.noise_aware` has it say, with the law of d and
time (`Lifetimes`) in the place of a count's. The table says of the baseline's shape what it says at the coefficients'
centre, so both are found in turns, from the last step's point on: a turn takes four fifths of what is missing. They
are taken to be independent: a step's gradient by the level is the number of events less that expected, and the shape is
what the events' places say given their number.

With a the intervals' log hazards over the first one's, a' where the trace's information was found, and w their shares
of the events, the trace cannot tell the intercept from the shape but in b = intercept + w'a: more hazard in an interval
is more events. So of the intercept it says what it says of b - w'a'.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import norm

from vertinumpyro.core import compat
from vertinumpyro.dpvi.forecast import StandIns
from vertinumpyro.dpvi.noise_aware import (
    NUM_DRAWS,
    TOO_FAR,
    UPPER_SHARES,
    Information,
    NoiseAwareDraws,
    Trace,
    drawn,
    information_of,
    noise_aware_draws,
)
from vertinumpyro.dpvi.outcome_tables import CountCells, Counted, EventTimes, FollowedBaseline, HazardTable, Shape
from vertinumpyro.dpvi.score_identities import constant_of
from vertinumpyro.dpvi.second_moments import MomentsPlan, NoisyMoments, moments_of
from vertinumpyro.dpvi.whitening import coefficient_moments
from vertinumpyro.model import SplitModel
from vertinumpyro.privacy import GradientPlan

_TURNS, _DRAWS = 4, 40
_NORMAL = np.random.default_rng(12).permutation(norm.ppf((np.arange(_DRAWS) + 0.5) / _DRAWS))


def baseline_places(split: SplitModel, events: EventTimes | None) -> np.ndarray:
    """Where the baseline stands in flat theta; nowhere where it has no latents."""
    return _places(split, events.baseline) if events and events.baseline else np.zeros(0, int)


def _places(split: SplitModel, site: str) -> np.ndarray:
    return np.ravel(split.unflatten(np.arange(split.num_parameters))[site])


def hazard_table(split: SplitModel, events: EventTimes, released: NoisyMoments, plan: GradientPlan) -> HazardTable:
    """When events were, as a start released it."""
    assert released.table is not None
    return HazardTable(released.table, moments_of(plan).cell_stddev, plan.num_records, events.bins(split.schema))


def followed_baseline(
    split: SplitModel, events: EventTimes | None, released: NoisyMoments, plan: GradientPlan
) -> FollowedBaseline | None:
    """The baseline that steps have, by the released table and moments; None where it has no latents."""
    if events is None or not events.baseline:
        return None
    back = split.to_standardised
    with compat.x64():
        moments = coefficient_moments(released, plan, split) / plan.num_records
        covariance = back.T @ predictor_covariance(split, moments) @ back
        table, level = hazard_table(split, events, released, plan), _places(split, events.intercept)
        return table.followed(covariance, baseline_places(split, events), level)


def hazard_aware_draws(
    split: SplitModel, events: EventTimes, table: HazardTable, trace: Trace, cut: float, rng_key: jax.Array
) -> NoiseAwareDraws | str:
    """Draws of all latents given the trace and the table, or why there are none.

    :param cut: where residuals were cut.
    :param rng_key: for the draws.
    """
    held, level = baseline_places(split, events), _places(split, events.intercept)
    working = np.asarray(trace.points, np.float64)[:, held]
    with compat.x64():

        def shape_at(some: np.ndarray, normal: np.ndarray) -> Shape:
            some[:, [*held, *level]] = 0.0  # levels do not change a shape
            return table.shape(*predictor_spreads(split, trace, some, normal))

        shape = shape_at(np.array(trace.points[-1:], np.float64), np.zeros(1)) if len(held) else table.shape()
        for turn in range(_TURNS if len(held) else 1):
            law = table.lifetimes(working, shape.log_ratios)
            found = information_of(split, law, trace, cut, held)
            if not found.is_finite:
                return TOO_FAR
            if len(held) and turn < _TURNS - 1:
                some = drawn(split, found, rng_key).draws[:: NUM_DRAWS // _DRAWS]
                shape = shape_at(some @ split.to_standardised.T, _NORMAL)
        return drawn(split, _with_shape(found, shape, held, level) if len(held) else found, rng_key)


def forecast_with_baseline(
    split: SplitModel, events: EventTimes, given: StandIns, read: np.ndarray, plan: MomentsPlan,
    stddevs: tuple[np.ndarray, np.ndarray],
) -> list[np.ndarray]:  # fmt: skip
    """Standard deviations of all latents `[theta]`, with and without noise, from those of what the steps learn.

    By the table to expect at the draw of the coefficients whose predictors are as far spread as most, joined as in
    `_with_shape`.

    :param read: places of what the steps learn.
    """
    predictors = given.coefficients @ given.scores.T
    middle = predictors[np.argsort(predictors.std(1))[len(predictors) // 2]]
    parts = np.linalg.eigvalsh(np.cov(given.scores.T)).clip(0)
    table = events.supposed_table(split.schema, middle, plan.cell_stddev, plan.num_records)
    with compat.x64():
        shape = table.shape((float(middle.std()),), parts.sum() ** 2 / np.square(parts).sum())
    held, level, found = baseline_places(split, events), _places(split, events.intercept), []
    for of_steps, covariance in zip(stddevs, (shape.covariance, shape.without_noise), strict=True):
        variances = np.zeros(split.num_parameters)
        variances[read] = of_steps**2
        variances[level] += shape.shares @ covariance @ shape.shares
        variances[held] = np.diag(covariance)
        found.append(np.sqrt(variances))
    return found


def _with_shape(found: Information, shape: Shape, held: np.ndarray, level: np.ndarray) -> Information:
    """What both say of all latents."""
    to_level = np.eye(len(found.centre))
    to_level[np.ix_(level, held)] = shape.shares
    to_level[held, held] = 0.0
    apart = np.zeros(len(found.centre))
    apart[level] = shape.shares @ shape.log_ratios
    linear = to_level.T @ (found.linear + found.precision @ apart)
    precision, without_noise = (to_level.T @ np.asarray(of) @ to_level for of in (found.precision, found.without_noise))
    square, of_shape = np.ix_(held, held), np.linalg.inv(shape.covariance)
    precision[square] += of_shape
    without_noise[square] += np.linalg.inv(shape.without_noise)
    linear[held] += of_shape @ shape.log_ratios
    centre = np.array(found.centre)
    centre[held] = shape.log_ratios
    return Information(precision, linear, centre, without_noise)


class Spreads(NamedTuple):
    """Of the records' predictors.

    stddevs: at each draw of the coefficients `[S]`.
    num_parts: of how many directions of the columns, alike in variance, a predictor is the sum.
    """

    stddevs: np.ndarray
    num_parts: float


def predictor_covariance(split: SplitModel, moments: np.ndarray) -> np.ndarray:
    """Of a record's derivatives of the predictor `[theta, theta]`, by their noisy second moments."""
    mean = moments @ constant_of(split)
    return moments - np.outer(mean, mean)


def predictor_spreads(split: SplitModel, trace: Trace, draws: np.ndarray, normal: np.ndarray) -> Spreads:
    """How far predictors are spread at some coefficients `[S, theta]`, the moments' noise drawn anew.

    Of the moments as they are, for what is taken off their eigenvalues is too much in the directions of most draws.

    :param normal: standard normal numbers `[S]`.
    """
    covariance = predictor_covariance(split, trace.moments / trace.num_records)
    noise = math.sqrt(2) * trace.moments_stddev / trace.num_records * np.square(draws).sum(1)
    variances = np.einsum("si,ij,sj->s", draws, covariance, draws) + noise * normal
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    parts = np.maximum(values, 0.0) * np.square(draws.mean(0) @ vectors)
    num_parts = parts.sum() ** 2 / max(np.square(parts).sum(), 1e-30)
    return Spreads(np.sqrt(np.maximum(variances, 0.0)), max(1.0, float(num_parts)))


# -- counts ------------------------------------------------------------------------------------------


def count_aware_draws(
    split: SplitModel, released: NoisyMoments, plan: MomentsPlan, law: Counted, trace: Trace, cut: float,
    rng_key: jax.Array,
) -> NoiseAwareDraws | str:  # fmt: skip
    """Draws of all latents given the trace and a table of how large counts are, or why there are none.

    :param cut: where residuals were cut.
    :param rng_key: for the draws.
    """
    cells, table = CountCells.of(split.structure.summed[0]), released.table
    assert cells is not None  # of which the table is
    assert table is not None
    ends = cells.ends(law.outcome, table, plan.cell_stddev, UPPER_SHARES)
    found = noise_aware_draws(split, dataclasses.replace(law, ends=ends), trace, cut, rng_key)
    if isinstance(found, str):
        return found
    at = predictors_of(split, trace, found.draws.mean(0))
    return found._replace(misfit=np.array(cells.misfit(law.outcome, table, plan.cell_stddev, at)))


def predictors_of(split: SplitModel, trace: Trace, beta: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the predictor at some latents, by the released moments.

    :param beta: in flat theta.
    """
    halves = np.array([offset.half for offset in trace.offsets if offset.half])
    both, nothing = np.concatenate([trace.to @ beta, halves]), np.zeros(len(halves))
    constant = np.concatenate([trace.to @ split.from_standardised @ constant_of(split), nothing])
    mean = trace.moments @ constant / max(constant @ trace.moments @ constant, 1.0)
    variance = both @ trace.moments @ both / trace.num_records - (both @ mean) ** 2
    middle = sum(offset.middle for offset in trace.offsets)
    return float(both @ mean) + middle, math.sqrt(max(variance, 0.0))
