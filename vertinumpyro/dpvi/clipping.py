"""How a step clips its records, chosen from the model and the schema alone, and the step's public size.

A regression across parties (`party_sum`) has bounded residuals, one for each outcome. So each party clips its own part,
and nothing of a norm is computed together (`secure.number_formats`): outcome o's residual is cut to b_o of its largest
one, and what party p adds to a record, whatever the residuals are, to C sqrt(part_p).

**Parts of C^2** of one outcome are in proportion to the columns that a party's part of the sum reads, and one more at
the outcome's party, for the intercept. A column adds at most 1 to the squared norm of a record's scores, be it one
number in [-1, 1] or indicators of its values, however many coefficients it has: in proportion to coefficients a column
of 50 values would get 50 times the room of one that adds as much. So with C = b unit sqrt(columns) no such record's
scores are scaled at all, and what is cut is the residual: as much as a clip of the whole record cuts there.

**Scores are standardised first** (`Standardisation`), of one outcome whose parts are linear, by the public domains: so
a column adds at most 1 however a model reads it, from 0 to 1, in years or as a polynomial, and a record's bound is
spent on what differs between records. A score is moved to the middle of its range and divided by how far it reaches,
and all of one column, or that exclude each other, as a category's, by how long they are together then; those that
exclude each other are moved where that makes them shorter by a fifth or more, as of two values. Products of columns
are not divided so: where all are at their ends a record is scaled down. What was taken off is put back by the
intercept's own sum; without an intercept nothing is moved. This is a fixed linear map of what is released, so all that
knows the noise works on the coefficients of standardised scores, of which it is alike, and maps back.

Of several outcomes with coefficients of their own the columns add up, each outcome's in proportion to (b_o unit_o)^2,
so C^2 is the sum of theirs. Where k outcomes have derivatives by the same parameter at a party, as of coefficients that
they share, their scores may point the same way, and k times their columns is the most that these can come to.

| given | b_o | C |
|---|---|---|
| nothing, but epsilon | by forecast | max(b unit) sqrt(columns) |
| nothing, but noise_multiplier | 0.6 / unit_o | 0.6 sqrt(columns) |
| clip_norm | C / (unit_o sqrt(columns)) | as given |
| residual_bound | as given | b unit sqrt(columns) |

b is at least 1/1024 and at most 1.

**By forecast** (`forecast_bound`): a smaller b is less noise, and cuts off residuals that say something. With c
the mean product of the residual and what b leaves of it, v the mean square of what it leaves, of outcomes that follow
the model at a predictor, and s the noise of all steps' mean, a coefficient of a column with E x^2 = q has the variance

    (N q v + s^2) / (N q c)^2.

To which is added what the cut's correction may be off by, (N m / 20)^2 q with m how far the cut moves the residual's
mean: it does not fall with N, so large tables are cut less. (Of events the trace says how far to trust it.) A cut of
amounts moves no mean where their law is even, as a table's seldom is: wages have a longer tail than a normal
distribution, and on one side. There half of what the cut takes off on both sides together is added, of a gamma law a
seventh, and of counts, which vary more than most laws have it, a quarter (`Outcome.doubted_tails`).
How far above its least that is, is averaged over usual predictors: each for itself, as a table's may all be like one of
them, and those with the largest residuals would decide a mean of variances. Of all b within 1% of the least, the
largest is taken, so that at a large budget nothing is cut that the pooled estimate has, and what noise that costs is a
tenth of a standard error. And none that takes off more than 15% of c, as what is put back for it rests on the model
alone (`dpvi.noise_aware`).

**By a released table**: of counts that is chosen again once a table has said how large they are (`Seen`). C, b and the
noise stay as they were planned; what moves is the unit that residuals are in. A link whose largest count is `reach`
times as much has e = residual / (reach unit), cut to b as before: so the residual is cut to reach b unit, and what is
released is 1 / reach of the sum, with the noise as it was. That e is made so is the outcome's party's own matter, from
numbers that all know, and no proof asks what e is of (`Outcome.reaching`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import block_array, coo_array
from scipy.sparse.csgraph import connected_components

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import OBSERVED_SUFFIX
from vertinumpyro.dpvi.outcome_tables import Counted
from vertinumpyro.dpvi.settings import default_clip_norm, num_scores
from vertinumpyro.model.contract import stand_in_columns
from vertinumpyro.model.outcomes import Outcome, Poisson
from vertinumpyro.model.party_sums import Standardisation, SummedOutcome
from vertinumpyro.model.record_dependence import LATENT, UNCLEAR, depends_on, records_read
from vertinumpyro.model.split import SplitModel, scores_of
from vertinumpyro.posterior.predictive import score_link
from vertinumpyro.privacy import GradientPlan, NeighbouringRelation, NoiseSource, Sampling
from vertinumpyro.privacy.gradient_plan import LEAST_RESIDUAL_BOUND, bounds_of_outcomes
from vertinumpyro.secure import BatchShape
from vertinumpyro.secure.number_formats import most_records

COMPILER_BYTES = 2**30
"""What the compiler takes at most for one fit's programs."""

_NUM_TRIED = 64
_NUM_STANDARD = 1024  # stand-ins by which scores are standardised
_LEAST_SCALE, _NUM_BITS = 1e-9, 62
_BLOCK_VALUES = 2**24  # records times released values that a block of a batch holds: what memory it takes


class Clip(NamedTuple):
    """A plan's clip.

    norm:            C.
    parts:           the parties' parts of C^2, in proportion; None for the clip of a whole record.
    residual_bound:  b; of several outcomes each one's.
    standardisation: of the scores before; None for none.
    by_forecast:     whether b was.
    """

    norm: float
    parts: tuple[int, ...] | None = None
    residual_bound: float | tuple[float, ...] = 1.0
    standardisation: Standardisation | None = None
    by_forecast: bool = False

    @classmethod
    def of(cls, plan: GradientPlan) -> Clip:
        """A plan's."""
        known = None if plan.standardisation is None else Standardisation(*plan.standardisation)
        return cls(plan.clip_norm, plan.clip_parts, plan.residual_bound, known)

    @property
    def most_records(self) -> float:
        """Of a batch by default: a sum that is clipped on shares has no room for more."""
        return float(most_records(self.norm)) if self.parts is None else math.inf

    def standardised(self, split: SplitModel) -> SplitModel:
        """A model with its scores so standardised; what is linear before is so after."""
        made = dataclasses.replace(split, standardisation=self.standardisation)
        made.compiled.update({f"bent latents of {party}": bent_latents(split, party) for party in split.parties})
        return made


def chosen_clip(
    split: SplitModel,
    clip: Literal["joint", "local"] | None,
    clip_norm: float | None,
    residual_bound: float | None,
    budget: Budget | None = None,
) -> Clip:
    """What `DPVI.plan` was given, and the module's table for the rest.

    :param budget: what the bounds are forecast from; None where epsilon was not given.
    :raises ArgumentError: a clip by parts is asked of a model without a `party_sum`, b without such a clip, or a clip
        of the whole record for several outcomes.
    """
    summed = split.structure.summed
    if clip == "local" and not summed:
        raise ArgumentError(
            'clip="local" cuts the residual of a party_sum, and the model has none: a record is clipped as a whole; '
            "leave clip out"
        )
    if clip == "joint" or not summed:
        if residual_bound is not None:
            fix = 'choose clip="local"' if summed else "leave it out"
            raise ArgumentError(
                f"residual_bound={residual_bound:g}: a record that is clipped as a whole has none; {fix}"
            )
        check_one_outcome(split, 'choose clip="local"')
        return Clip(default_clip_norm(num_scores(split.schema)) if clip_norm is None else clip_norm)
    return _local(split, clip_norm, residual_bound, budget)._replace(standardisation=standardisation_of(split))


def _local(split: SplitModel, clip_norm: float | None, residual_bound: float | None, budget: Budget | None) -> Clip:
    """Where each party clips its own part."""
    summed = split.structure.summed
    units = [found.outcome.unit for found in summed]
    if residual_bound is not None:
        squares = _squares(split, [unit / max(units) for unit in units])
        clip_norm = residual_bound * max(units) * math.sqrt(sum(squares)) if clip_norm is None else clip_norm
        return Clip(clip_norm, _whole(squares), _of_each([residual_bound] * len(units)))
    known = all(found.outcome.support(jnp.zeros(1)) is not None for found in summed)
    if clip_norm is None and budget is not None and known:
        columns = sum(_squares(split, [1.0] * len(units)))
        bounds = [forecast_bound(found.outcome, budget, columns) for found in summed]
        lengths = [bound * unit for bound, unit in zip(bounds, units, strict=True)]
        squares = _squares(split, [length / max(lengths) for length in lengths])
        norm = float(f"{max(lengths) * math.sqrt(sum(squares)):.6g}")
        return Clip(norm, _whole(squares), _of_each(bounds), by_forecast=True)
    squares = _squares(split, [1.0] * len(units))
    clip_norm = default_clip_norm(sum(squares)) if clip_norm is None else clip_norm
    bounds = [clip_norm / (unit * math.sqrt(sum(squares))) for unit in units]
    bounds = [float(f"{min(1.0, max(LEAST_RESIDUAL_BOUND, bound)):.4g}") for bound in bounds]
    return Clip(clip_norm, _whole(squares), _of_each(bounds))


class Budget(NamedTuple):
    """What all steps together can say; public.

    num_records: N.
    noise: the standard deviation of the mean of all steps' noise, over C.
    """

    num_records: int
    noise: float

    @classmethod
    def of_one_release(
        cls, num_records: int, multiplier: float, noise: NoiseSource, relation: NeighbouringRelation
    ) -> Budget:
        """As if all were spent on one release: steps that take all records say as much together.

        :param multiplier: the noise that nobody who is covered knows, over the sensitivity.
        """
        unknown = noise.num_unknown(max(noise.collusion_threshold, int(noise.num_shares > 1)))
        return cls(num_records, multiplier * relation.sensitivity * math.sqrt(noise.num_shares / unknown))


def usual_residuals(
    outcome: Outcome | Counted, usual: tuple[float, float] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Residuals and their chances `[k, values]` at usual predictors, and these' weights `[k]`.

    :param usual: their mean and standard deviation; None for the outcome's.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    middle, width = usual or outcome.usual
    eta = middle + width * nodes
    if usual is not None:  # of counts: where chances are numbers
        eta = np.clip(eta, _LEAST_LOG_RATE, math.log(outcome.unit))
    known = outcome.support(jnp.asarray(eta))
    if known is None:
        return None
    residual = np.asarray(outcome.linked_residual(jnp.asarray(eta)[:, None], known[0]), np.float64)
    return residual, np.asarray(known[1], np.float64), weights / weights.sum()


_USUAL_SQUARE = 0.3  # of a column from -1 to 1, the most even one's a third
_BOUNDS = np.unique(np.concatenate([np.geomspace(LEAST_RESIDUAL_BOUND, 1.0, 48), np.linspace(0.5, 1.0, 26)]))
_NEARLY_BEST = 1.01
_LEAST_SAID = 0.85
_OFF = 0.05  # of what a cut moves the mean by; a posterior allows for twice that
_LEAST_LOG_RATE = -12.0


def forecast_bound(outcome: Outcome, budget: Budget, columns: float, usual: tuple[float, float] | None = None) -> float:
    """B as the module says.

    :param columns: of all parties, C^2 in units of (b unit)^2.
    :param usual: mean and standard deviation of predictors; None for the outcome's.
    """
    known = usual_residuals(outcome, usual)
    assert known is not None  # `chosen_clip` asked
    residual, chance, weights = known
    cuts = _BOUNDS[:, None, None] * outcome.unit
    cut = np.clip(residual, -cuts, cuts)
    said, spreads = (chance * cut * residual).sum(2), (chance * cut**2).sum(2)
    moved = chance * (cut - residual)
    tails = 0.0 if isinstance(outcome, Poisson) and outcome.events else outcome.doubted_tails
    doubted = _OFF * np.abs(moved.sum(2)) + tails * np.abs(moved).sum(2)
    is_doubted = tails > 0 or not outcome.is_loose  # of events the trace says how far to trust a cut
    off = is_doubted * budget.num_records**2 * _USUAL_SQUARE * (doubted**2 @ weights)[:, None]
    information = budget.num_records * _USUAL_SQUARE
    noise = columns * (budget.noise * _BOUNDS[:, None] * outcome.unit) ** 2
    variance = (information * spreads + noise + off) / (information * said) ** 2
    above = (variance / variance.min(0)) @ weights
    above = np.where((said / said.max(0)) @ weights >= _LEAST_SAID, above, np.inf)
    return float(f"{_BOUNDS[above <= _NEARLY_BEST * above.min()].max():.4g}")


class Seen(NamedTuple):
    """What a released table says of the one outcome, for what follows; public. Nothing, where there is none.

    usual: mean and standard deviation of predictors; None for the outcome's own.
    reach: what residuals are cut to, over what they are in the plan.
    """

    usual: tuple[float, float] | None = None
    reach: float = 1.0

    @classmethod
    def at(cls, usual: tuple[float, float], split: SplitModel, plan: GradientPlan) -> Seen:
        """Predictors that are known: b by forecast at these."""
        outcome, bound = split.structure.summed[0].outcome, bounds_of_outcomes(plan.residual_bound)[0]
        noise = plan.noise_multiplier * _all_over_covering(plan) / math.sqrt(plan.num_gradients)
        columns = (plan.clip_norm / (bound * outcome.unit)) ** 2
        found = forecast_bound(outcome, Budget(plan.num_records, noise), columns, usual) / bound
        return cls(usual, float(f"{max(outcome.least_reach or 1.0, found):.4g}"))

    def law(self, outcome: Outcome) -> Outcome | Counted:
        """As the link has it."""
        return outcome if outcome.least_reach is None else Counted(outcome, self.reach)

    def cut(self, split: SplitModel, plan: GradientPlan) -> float:
        """To which residuals are cut, in their own units."""
        return self.reach * longest_residual(split, plan.residual_bound)

    def noise_stddev(self, plan: GradientPlan) -> float:
        """Of all noise of a step's sum of residuals in their own units."""
        return self.reach * plan.noise_multiplier * plan.clip_norm * _all_over_covering(plan)


def _all_over_covering(plan: GradientPlan) -> float:
    """The standard deviation of all noise over that which the plan counts."""
    return math.sqrt(plan.noise.num_shares / plan.noise.num_covering)


def longest_residual(split: SplitModel, bound: float | tuple[float, ...]) -> float:
    """Of the one outcome, as a plan cuts it."""
    (summed,) = split.structure.summed
    (cut,) = bounds_of_outcomes(bound)
    return cut * summed.outcome.unit


def check_one_outcome(split: SplitModel, fix: str) -> None:
    """Refuses several outcomes where a record is clipped as a whole: that is proved for one residual.

    :param fix: what else can be done, for the error.
    :raises ArgumentError: names the sums.
    """
    sums = [found.sum_name for found in split.structure.summed]
    if len(sums) > 1:
        raise ArgumentError(
            f"the model has the party_sums {sums}, and a record that is clipped as a whole may have one: the clip is "
            f"not proved for residuals of several signs; {fix}, or fit a model for each outcome"
        )


def _of_each(bounds: Sequence[float]) -> float | tuple[float, ...]:
    """Bounds as a plan holds them: of one outcome it is a number."""
    return bounds[0] if len(bounds) == 1 else tuple(bounds)


def _squares(split: SplitModel, lengths: Sequence[float]) -> list[float]:
    """For each party the columns that its parts read, and intercepts, as the module says; 0 where nothing is learned.

    :param lengths: each outcome's b_o unit_o, of the largest one.
    """
    found = []
    for party in split.parties:
        of_outcomes = zip(split.structure.summed, lengths, strict=True)
        columns = [length**2 * _columns(outcome, party) for outcome, length in of_outcomes]
        found.append(sum(len(group) * sum(columns[outcome] for outcome in group) for group in _tied(split, party)))
    return found


def _whole(squares: Sequence[float]) -> tuple[int, ...]:
    """Parts of C^2: whole numbers in proportion, thousandths where they have to be rounded."""
    scale = 1 if all(square == int(square) for square in squares) else 1000
    return tuple(max(1, round(scale * square)) if square else 0 for square in squares)


def _read(found: SummedOutcome, party: str) -> list[str]:
    """The columns that a part reads, in their order."""
    return sorted({name.removesuffix(OBSERVED_SUFFIX) for name in found.columns.get(party, ())})


def _columns(found: SummedOutcome, party: str) -> int:
    """Columns that a part reads, and the intercept; 0 where nothing is learned."""
    columns = _read(found, party)
    return max(1, len(columns) + (party == found.party)) if found.latents.get(party) else 0


def _tied(split: SplitModel, party: str) -> list[set[int]]:
    """The outcomes in groups that have no derivative by the same parameter at a party, looked up on stand-ins.

    By parameters and not by sites, as one site may hold the coefficients of all outcomes. It decides what a default C
    and its parts are, and nothing of the proof rests on it.
    """
    groups = [{outcome} for outcome in range(len(split.structure.summed))]
    if len(groups) == 1:
        return groups
    theta = jnp.asarray(np.random.default_rng(0).normal(size=split.num_parameters))
    own = {
        name: jnp.asarray(column) for name, column in stand_in_columns(split.schema.restrict(party), _NUM_TRIED).items()
    }
    scores = np.asarray(jax.jit(partial(split.contribution, party))(theta, own).shared_scores)
    for read_by in np.count_nonzero(scores, axis=0).T:
        together = {int(outcome) for outcome in np.flatnonzero(read_by)}
        met = [group for group in groups if group & together]
        groups = [group for group in groups if group not in met] + ([set().union(*met)] if met else [])
    return groups


# -- scores before they are clipped ------------------------------------------------------------------

_WORTH_MOVING = 0.6  # of the squared length: so many values of a category but two are left as they are
_NEARLY = 0.01


def standardisation_of(split: SplitModel) -> Standardisation | None:
    """By the module's rule, from stand-ins of the public domains; None where all are as they should be."""
    if "standardisation" not in split.compiled:
        linear = len(split.structure.summed) == 1 and not any(bent_latents(split, party) for party in split.parties)
        split.compiled["standardisation"] = _found_standardisation(split) if linear else None
    return split.compiled["standardisation"]


def _found_standardisation(split: SplitModel) -> Standardisation | None:
    tried = [_Tried.of(split, party, place) for place, party in enumerate(split.parties)]
    starts = np.cumsum([0, *(of.scores.shape[1] for of in tried)])
    scores = np.concatenate([of.scores for of in tried], axis=1)
    is_constant = np.concatenate([~of.columns.any(0) for of in tried])
    intercept = _intercept(split, np.where(is_constant, scores[0], 0.0), starts)
    centres, scales = np.zeros(len(split.gather_index)), np.ones(len(split.gather_index))
    for of, start in zip(tried, starts, strict=False):
        for columns, own in of.groups():
            found = _standardised(of.scores[:, own], len(columns), is_moved=intercept >= 0)
            centres[start + own], scales[start + own] = found
    largest = np.zeros(split.num_parameters + 1)  # a latent that several parties read has one scale
    np.maximum.at(largest, split.gather_index, scales)
    scales = largest[split.gather_index]
    if intercept >= 0:
        scales[intercept] = scores[0, intercept]
    if not centres.any() and np.all(scales == 1):
        return None
    return Standardisation(tuple(centres.tolist()), tuple(scales.tolist()), intercept)


class _Tried(NamedTuple):
    """A party's scores of stand-ins.

    scores:  `[n, d]`.
    columns: which of the columns that its part reads each may depend on `[columns, d]`.
    """

    scores: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, split: SplitModel, party: str, place: int) -> _Tried:
        """With two records behind that are at all columns' lower and upper ends."""
        own = split.schema.restrict(party)
        values = stand_in_columns(own, _NUM_STANDARD, seed=400 + place, observed_fraction=0.5)
        for name, column in own.columns.items():
            values[name][-2:] = column.encoded_range
            values.get(name + OBSERVED_SUFFIX, np.zeros(2, bool))[-2:] = True
        flat, scores = jnp.zeros(split.num_parameters), scores_of(split, party)
        tried = np.asarray(scores(flat, {name: jnp.asarray(of) for name, of in values.items()}), np.float64)
        one = {name: jnp.asarray(of[:1]) for name, of in values.items()}
        read = _read(split.structure.summed[0], party)
        return cls(tried, _dependence(jax.make_jaxpr(scores)(flat, one), flat.shape, sorted(one), read))

    def groups(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Columns and the scores that they move, in groups that have none in common."""
        edges = coo_array(self.columns)
        label = connected_components(block_array([[None, edges], [edges.T, None]]), directed=False)[1]
        own, of_scores = np.split(label, [len(self.columns)])
        return [(np.flatnonzero(own == k), np.flatnonzero(of_scores == k)) for k in np.intersect1d(own, of_scores)]


def _dependence(scores: Any, shape: tuple[int, ...], names: Sequence[str], read: Sequence[str]) -> np.ndarray:
    """Which columns each score may depend on `[columns, d]`, by the program itself.

    :param scores: of flat theta of such a shape and one record's columns, traced.
    :param names: of its columns and masks, in their order.
    :param read: the columns that are asked for.
    """
    found = [np.zeros((0, scores.out_avals[0].shape[1]), bool)]
    for first in range(0, len(read), _NUM_BITS):
        bits = {name: np.uint64(1 << k) for k, name in enumerate(read[first : first + _NUM_BITS])}
        of_names = [bits.get(name.removesuffix(OBSERVED_SUFFIX), np.uint64(0)) for name in names]
        (of,) = records_read(scores, [depends_on(LATENT, shape), *(depends_on(bit, (1,)) for bit in of_names)])
        found.append((of.bits[0] & (np.array([*bits.values()], np.uint64)[:, None] | UNCLEAR)) != 0)
    return np.concatenate(found)


def _standardised(scores: np.ndarray, num_columns: int, *, is_moved: bool) -> tuple[np.ndarray, np.ndarray]:
    """Centres and scales of a group's scores `[n, d]`; of one that may be infinite 0 and 1."""
    is_finite = np.isfinite(scores).all(0)
    scores = np.where(is_finite, scores, 0.0)
    low, high, other = scores.min(0), scores.max(0), (scores != 0).astype(float)
    middle, half, reach = (low + high) / 2, (high - low) / 2, np.abs(scores).max(0)
    scores, middle, half = (of / np.where(reach > 0, reach, 1.0) for of in (scores, middle, half))
    exclude_each_other = bool((other.T @ other == 0)[np.ix_(reach > 0, reach > 0)].any())
    if exclude_each_other:
        is_worth = np.full(len(reach), _longest(scores - middle) <= _WORTH_MOVING * _longest(scores))
    else:
        is_worth = half**2 <= _WORTH_MOVING
    centres = np.array([float(f"{one:.4g}") for one in np.where(is_worth & is_moved & (half > 0), middle * reach, 0.0)])
    reach = np.where(reach > 0, reach, 1.0)
    moved = scores - centres / reach
    scales = np.abs(moved).max(0)
    scales = np.where(scales > 0, scales, 1.0)
    if num_columns == 1 or exclude_each_other:
        scales = scales * math.sqrt(max(_longest(moved / scales), _NEARLY) / num_columns)
    scales = scales * reach
    is_one = is_finite & (scales > _LEAST_SCALE) & (scales < 1 / _LEAST_SCALE)
    scales = np.array([1.0 if abs(one - 1) <= _NEARLY else float(f"{one:.4g}") for one in scales])
    return np.where(is_one, centres, 0.0), np.where(is_one, scales, 1.0)


def _longest(scores: np.ndarray) -> float:
    """Squared."""
    return float(np.square(scores).sum(1).max())


def _intercept(split: SplitModel, constant: np.ndarray, starts: np.ndarray) -> int:
    """The place of a score that no column moves, of a latent that no other party reads; -1 for none.

    The outcome's party's before others'.

    :param constant: what such scores are, 0 for all others.
    """
    places, readers = split.gather_index, np.append(split.gather_matrix.sum(1), 0)
    is_one = (np.abs(constant) > _LEAST_SCALE) & (np.abs(constant) < 1 / _LEAST_SCALE) & (readers[places] == 1)
    found, place = np.flatnonzero(is_one), split.parties.index(split.structure.summed[0].party)
    first = found[(found >= starts[place]) & (found < starts[place + 1])]
    return int([*first, *found, -1][0])


_NUM_BENT, _TOLERANCE = 32, 1e-4


def bent_latents(split: SplitModel, party: str) -> list[str]:
    """The party's latents by which the derivative of its part depends on latents, on stand-ins: it is not linear."""
    if (key := f"bent latents of {party}") not in split.compiled:
        split.compiled[key] = _bent(split, party)
    return split.compiled[key]


def _bent(split: SplitModel, party: str) -> list[str]:
    own = {n: jnp.asarray(c) for n, c in stand_in_columns(split.schema.restrict(party), _NUM_BENT, seed=5).items()}
    drawn = np.random.default_rng(6).normal(size=(2, split.num_parameters))
    one, other = (np.asarray(scores_of(split, party)(jnp.asarray(flat, float), own)) for flat in drawn)
    moved = (np.abs(one - other) > _TOLERANCE * (1 + np.abs(one))).any(axis=0)
    sizes = [math.prod(split.structure.latents[name]) for name in split.shared[party]]
    pieces = np.split(moved, np.cumsum(sizes)[:-1]) if sizes else []
    return [name for name, piece in zip(split.shared[party], pieces, strict=True) if piece.any()]


# -- a plan's clip -----------------------------------------------------------------------------------


def check_clip(split: SplitModel, plan: GradientPlan) -> None:
    """Refuses a plan whose clip has no part for what a party of this model learns.

    :raises ArgumentError: says so.
    """
    if plan.clip_parts is None:
        return
    summed = split.structure.summed
    learning = [p for p in split.parties if any(found.latents.get(p) for found in summed)]
    given = [party for party, part in zip(plan.parties, plan.clip_parts, strict=True) if part]
    if given != learning:
        raise ArgumentError(
            f"plan: its clip has parts for {given}, and the model learns from {learning or 'no party_sum'}; make a new "
            "plan"
        )
    known = plan.standardisation
    if known is not None and (len(summed) != 1 or len(known[0]) != split.num_values):
        raise ArgumentError("plan: it standardises the scores of another model; make a new plan")
    bounds = bounds_of_outcomes(plan.residual_bound)
    if len(bounds) != len(summed):
        raise ArgumentError(
            f"plan: it cuts the residuals of {len(bounds)} outcomes, and the model has the party_sums "
            f"{[found.sum_name for found in summed]}; make a new plan"
        )


def batch_shape(
    split: SplitModel,
    sampling: Sampling,
    noise: NoiseSource,
    clip: Clip,
    noise_multiplier: float,
    *,
    block_size: int | None,
    num_devices: int,
) -> BatchShape:
    """The public size of a step.

    :param block_size: how many records of a batch are computed at a time, at most; None for as many as memory allows.
    :param num_devices: on which, each as many.
    """
    largest = block_size or max(1, _BLOCK_VALUES // split.num_values)
    num_blocks = -(-sampling.max_batch_size // largest)
    return BatchShape(
        batch_size=num_devices * -(-sampling.max_batch_size // (num_blocks * num_devices)),
        num_blocks=num_blocks,
        num_components=split.num_components,
        num_parties=len(split.parties),
        num_values=split.num_values,
        clip_norm=clip.norm,
        noise_stddev=noise_multiplier * clip.norm * (noise.num_shares / noise.num_covering) ** 0.5,
        link=score_link(split),
        clip_parts=clip.parts,
        residual_bound=clip.residual_bound,
    )


def planned_shape(split: SplitModel, plan: GradientPlan, *, block_size: int | None, num_devices: int) -> BatchShape:
    """The sizes of a plan's step."""
    return batch_shape(
        split,
        plan.sampling,
        plan.noise,
        Clip.of(plan),
        plan.noise_multiplier,
        block_size=block_size,
        num_devices=num_devices,
    )
