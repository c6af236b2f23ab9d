r"""Steps by a bound of the curvature: H^-1 g with Nesterov's momentum, and the H that noisy second moments give.

Gradient steps take as many rounds as the scores are far from orthogonal. One release of two rounds holds their second
moments (`dpvi.second_moments`), which bound the curvature wherever the coefficients are, so that 20 steps of a
regression across parties come as far as some hundreds of Adam's. All that follows the release is post-processing.

With x the derivatives of a record's predictor by the coefficients, c at least the curvature of the outcome's log
density by the predictor (`Outcome.curvature`), and M ~ sum xx' with noise of standard deviation ν,

    H = c M + diag(max(2 c ν √d, κ s √p / 0.5)) + diag(p),

p the prior's precisions, s the noise of a step's gradient, κ how far T steps add up noise where there is no curvature.
M + 2 ν √d bounds the exact moments, but for a noise matrix's norm beyond 2 ν √d, which is rare. So H is at least the
negative log posterior's Hessian everywhere (Böhning and Lindsay 1988), and steps H^-1 g cannot overshoot, whatever the
table. The second term of the maximum matters where the budget is small: noise alone then moves a coefficient by at most
half its prior's standard deviation, in directions of which the data say too little to hold it. M is first taken to the
nearest matrix of which all holds that holds of every record (`dpvi.score_identities`); ν in the bound stays the noise
of the release, as entries of what is left of it are not independent. All of this is of the coefficients of standardised
scores (`dpvi.clipping`), or of whitened ones (`dpvi.whitening`), φ = Wθ, of which noise is alike; steps are by θ, so
H⁻¹ is taken there as W⁻¹ H⁻¹ W⁻ᵀ. Of whitened scores H bounds the slope of what the steps release.

**Longer steps.** Of counts and events c is far above what most records have, and 20 such steps may end far from the
optimum. With m the last move and y by how much the released descent changed over it, y'm / m'Hm is how steep the
records are along the steps, of what H supposes (Barzilai and Borwein 1988). A step is longer by the inverse of that and
four deviations of its noise, so that where noise hides it nothing changes, by 16 at most, and never moves the
predictor's root mean square by more than half a unit: as far as a residual that is cut to +-a goes, whose c is 2a.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from numpyro.infer.autoguide import AutoDelta

from vertinumpyro.core.errors import ArgumentError, ModelContractError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import DatasetInfo
from vertinumpyro.dpvi import table_posterior
from vertinumpyro.dpvi.clipping import Clip, Seen, bent_latents, longest_residual
from vertinumpyro.dpvi.forecast import forecast_stddevs, stand_ins_of, usual_scores
from vertinumpyro.dpvi.initial_state import Start, StepDefaults, shared
from vertinumpyro.dpvi.noise_aware import (
    MOST_PARAMETERS,
    NoiseAwareDraws,
    Trace,
    expected_trust,
    noise_aware_draws,
    why_not,
)
from vertinumpyro.dpvi.outcome_tables import CountCells, Counted, EventTimes, FollowedBaseline
from vertinumpyro.dpvi.priors import middle_and_spread, prior_stddev
from vertinumpyro.dpvi.score_identities import identities_of
from vertinumpyro.dpvi.second_moments import (
    CELL,
    COUNT_CELL,
    MOST_COEFFICIENTS,
    NUM_STEPS,
    MomentsPlan,
    MomentsWork,
    NoisyMoments,
    SecondMoments,
    chosen_share,
    input_form,
    least_share,
    moments_of,
    noisy_moments,
    widths_of,
)
from vertinumpyro.dpvi.settings import default_guide, default_init
from vertinumpyro.dpvi.training_loop import DPVIState, Kernel
from vertinumpyro.dpvi.whitening import (
    Whitening,
    coefficient_moments,
    consistent_moments,
    lengths_of,
    may_whiten,
    readers_of,
    summed_moments,
    usual_whitening,
)
from vertinumpyro.model import SplitModel
from vertinumpyro.model.split import may_be_times, public_offsets
from vertinumpyro.posterior.guide import GuideFactory, ReparameterisedGuide, WorkingPrior, is_point
from vertinumpyro.privacy import FitTime, GradientPlan, NoiseSource, neighbouring
from vertinumpyro.privacy.forecast import Forecast
from vertinumpyro.secure.computation import Computation, CrossProducts
from vertinumpyro.session import Run, Session
from vertinumpyro.session.cost_estimate import slowness

_FARTHEST = 0.5  # of a prior's standard deviation
_SURE, _MOST_LONGER, _FURTHEST = 4.0, 16.0, 0.5  # of longer steps: deviations, times, units of the predictor
_MOST_MOMENTUM = 0.7


class NewtonState(NamedTuple):
    """Where the steps are and what they saw, public.

    count: their number.
    before: the point before the last extrapolation [d].
    inverse: N H⁻¹ [d, d].
    points: where each was taken [T, d].
    descents: what each was given, the gradient of the negative log posterior over N, with noise [T, d].
    noise: standard deviation of that noise, by standardised scores and over their scales [d].
    centre: what standardised scores were moved by, over the intercept's [d].
    intercept: 1 at its place, where they were, and 0 at all others [d].
    loose: c where steps may be longer than H has it; 0 where not.
    reach: how far the link reaches (`clipping.Seen`).
    whitening: a `Whitening` of the scores; None where they are released as they are.
    baseline: a `FollowedBaseline` of a survival, with which steps of the first half move it; None where there is none.
    """

    count: jax.Array
    before: jax.Array
    inverse: jax.Array
    points: jax.Array
    descents: jax.Array
    noise: jax.Array
    loose: jax.Array
    centre: jax.Array
    intercept: jax.Array
    reach: jax.Array
    whitening: Any = None
    baseline: Any = None


def accelerated_newton(num_steps: int, whitens: int = 0, *, follows: bool = False) -> optax.GradientTransformation:
    """Steps H⁻¹g with Nesterov's momentum, t / (t + 3) up to 0.7; in the second half their size falls to 1 / T.

    The last does not extrapolate. More momentum carries noise further than it saves steps (tried on Adult, the Dutch
    census and tables of counts, at epsilon from 0.1 to 10, on other splits than benchmarks have).

    The inverse is part of the state, where the moments' release puts it; until then it is the identity.

    :param num_steps: T.
    :param whitens: how many parties' scores are whitened, by the identity until the release has more; 0 for none.
    :param follows: whether a baseline hazard follows the coefficients, as the release has it.
    """

    def init(params: Any) -> NewtonState:
        flat, _ = ravel_pytree(params)
        inverse, nothing = jnp.eye(flat.size, dtype=flat.dtype), jnp.zeros((num_steps, flat.size), flat.dtype)
        off = jnp.zeros((), flat.dtype)
        zeros = jnp.zeros_like(flat)
        whitening = Whitening(inverse, inverse, jnp.full(whitens, jnp.inf, flat.dtype)) if whitens else None
        start = jnp.zeros((), jnp.int32)
        baseline = FollowedBaseline.of_none(flat) if follows else None
        of_steps = start, flat, inverse, nothing, nothing
        return NewtonState(*of_steps, zeros, off, zeros, zeros, off + 1, whitening, baseline)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, NewtonState]:
        (descent, unravel), (here, _) = ravel_pytree(updates), ravel_pytree(params)
        size, momentum = (jnp.asarray(of_step, here.dtype)[state.count] for of_step in _schedule(num_steps))
        step = state.inverse @ descent
        after = here - size * _longer(state, here, descent, step) * step
        extrapolated = after + momentum * (after - state.before)
        if follows:
            moved = jnp.where(state.count < num_steps // 2, state.baseline.moved(here, extrapolated), 0.0)
            after, extrapolated = after + moved, extrapolated + moved  # of both, as it has no momentum
        points, descents = state.points.at[state.count].set(here), state.descents.at[state.count].set(descent)
        count = state.count + 1
        return unravel(extrapolated - here), state._replace(count=count, before=after, points=points, descents=descents)

    return optax.GradientTransformation(init, update)


def _longer(state: NewtonState, here: jax.Array, descent: jax.Array, step: jax.Array) -> jax.Array:
    """How many times longer a step is than H has it: 1 at the first, and where c is no loose bound."""
    last = jnp.maximum(state.count - 1, 0)
    held = jnp.diag(state.inverse) == 0  # no gradient moves these, and solve() would be by a singular matrix
    moved, risen = jnp.where(held, 0.0, here - state.points[last]), descent - state.descents[last]
    supposed = moved @ jnp.linalg.solve(state.inverse + jnp.diag(held.astype(here.dtype)), moved)
    standardised = moved + state.intercept * jnp.sum(state.centre * moved)  # over the scales, as the noise is
    noisy = state.noise * standardised
    noisy = noisy if state.whitening is None else state.whitening.back.T @ noisy
    doubt = _SURE * math.sqrt(2) * jnp.linalg.norm(noisy)
    by_trace = 1 / jnp.clip((moved @ risen + doubt) / supposed, 1 / _MOST_LONGER, 1.0)
    # the step's move of the predictor, squared, is at most step'H step / c over N
    by_move = _FURTHEST * jnp.sqrt(state.loose / jnp.maximum(step @ descent, jnp.finfo(here.dtype).tiny))
    longer = jnp.maximum(1.0, jnp.minimum(by_trace, by_move))
    return jnp.where((state.count > 0) & (supposed > 0), longer, 1.0)


def noise_gain(num_steps: int) -> float:
    """κ: the standard deviation of a coordinate after these steps, where gradients are noise of standard deviation 1.

    With H = 1 and no curvature: each step's noise is carried on by the momentum of all later ones.
    """
    carried, gain = 0.0, 0.0
    for size, momentum in zip(*(of_step[::-1] for of_step in _schedule(num_steps)), strict=True):
        carried = 1 + momentum * carried  # how far a move at this step takes the last point
        gain += (size * carried) ** 2
    return math.sqrt(gain)


def _schedule(num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Size and momentum of each step `[T]`."""
    count = np.arange(num_steps)
    sizes = np.clip(2 * (1 - count / num_steps), 1 / num_steps, 1.0)
    return sizes, np.where(count < num_steps - 1, np.minimum(count / (count + 3), _MOST_MOMENTUM), 0.0)


def steep(
    moments: np.ndarray, curvature: float, precision: np.ndarray, *, noise: float, gradient_noise: np.ndarray,
    num_steps: int,
) -> np.ndarray:  # fmt: skip
    """H `[d, d]`, as the module has it.

    :param moments: M with its noise.
    :param curvature: c.
    :param precision: the prior's Hessian `[d, d]`.
    :param noise: ν.
    :param gradient_noise: s of each coordinate `[d]`.
    :param num_steps: T.
    """
    values, vectors = np.linalg.eigh((moments + moments.T) / 2)
    seen = (vectors * np.maximum(values, 0.0)) @ vectors.T
    deviations = np.sqrt(np.maximum(np.diag(precision), 0.0))
    floor = np.maximum(
        2 * curvature * noise * math.sqrt(len(moments)),
        noise_gain(num_steps) * gradient_noise * deviations / _FARTHEST,
    )
    return curvature * seen + np.diag(floor) + _positive(precision)


def _positive(precision: np.ndarray) -> np.ndarray:
    """Without directions in which a prior bends the other way."""
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


_COMPILED_S, _WIDTH = 6.0, 25  # of the draws: seconds of compiling, and scores for each of whose cubes they take one


@final
@dataclasses.dataclass(frozen=True)
class MomentsStart(Start):
    """The moments' release, and the steps' H by it.

    :ivar settings: as the user gave them; so `guide`.
    :ivar own_steps: whether the user gave the steps an optimiser or a learning rate.
    """

    steps: ClassVar = StepDefaults(guide=AutoDelta, num_steps=NUM_STEPS, optimizer=accelerated_newton)

    settings: SecondMoments
    guide: GuideFactory
    own_steps: bool

    def plan(
        self, facts: DatasetInfo, split: SplitModel, clip: Clip, *, all_records: bool, alone: bool, **settings: Any
    ) -> MomentsPlan:
        """See `Start.plan`: always."""
        refused = self._refusal(split, clip, all_records=all_records, epsilon=settings["epsilon"])
        if refused is not None:
            raise ArgumentError(f"warm_start=SecondMoments(): {refused}")
        check_linear(split)
        noise = NoiseSource(
            kind=settings.pop("noise"),
            num_parties=len(split.parties),
            collusion_threshold=settings.pop("collusion_threshold"),
        )
        settings["relation"] = neighbouring(settings["relation"])
        whole: Any = MomentsPlan.calibrated
        table = self._table(split, counts=self._counts(split, clip))
        fixed = {"num_records": facts.num_records, "parties": split.parties, **self._facts_of(split, clip, table)}
        share = self.settings.share
        if share is None:
            least = least_share(fixed["cells"], fixed["cell"])
            share = chosen_share(shared(whole, least, noise=noise, **fixed, **settings))
        return shared(whole, share, noise=noise, **fixed, **settings)

    def is_possible(self, split: SplitModel, clip: Clip, *, all_records: bool, epsilon: float | None) -> bool:
        """Whether there are steps by second moments."""
        if self._refusal(split, clip, all_records=all_records, epsilon=epsilon) is not None:
            return False
        try:
            check_linear(split)
        except ModelContractError:
            return False
        return True

    def _refusal(self, split: SplitModel, clip: Clip, *, all_records: bool, epsilon: float | None) -> str | None:
        """Why there are no steps by second moments, from the settings alone; None where there are."""
        if len(split.structure.summed) != 1:
            sums = [found.sum_name for found in split.structure.summed] or "none"
            return f"it is for a model with one party_sum, and this one has {sums}; leave warm_start out"
        if clip.parts is None:
            return 'its scores are clipped as the steps\' are; give clip="local"'
        if epsilon is None or not all_records:
            return (
                "it needs epsilon, and steps that take all records; leave noise_multiplier, batch_size and sampling "
                "out, or give batch_size=num_records"
            )
        if self.own_steps:
            return "moments say how far steps go; leave optimizer and learning_rate out"
        if self.guide is not default_guide and not is_point(self.guide):
            return "its steps are for a point; give guide=AutoDelta, or leave guide out"
        if self.settings.counts and not self._counts(split, clip):
            return (
                "counts=True is for an outcome that is a count, whose residuals are cut by a forecast; leave it, or "
                "events, clip_norm and residual_bound, out"
            )
        if self.settings.whiten and not may_whiten(split):
            return (
                f"whiten=True is for numbers, and up to {MOST_PARAMETERS} parameters, each read by one party; leave it "
                "out, or give each party latents of its own"
            )
        if split.num_parameters > MOST_COEFFICIENTS:
            return f"it takes up to {MOST_COEFFICIENTS} coefficients, and the model has {split.num_parameters}"
        return None

    def check(self, facts: DatasetInfo, split: SplitModel, plan: GradientPlan) -> None:
        """See `Start.check`."""
        start = moments_of(plan)
        table = self._table(split, counts=any(start.cells))  # of counts either way
        fixed = self._facts_of(split, Clip.of(plan), table, of_earlier=not start.offsets)
        if self.settings.whiten is None:  # either way
            del fixed["whitened"]
        if other := [name for name, value in fixed.items() if getattr(start, name) != value]:
            raise ArgumentError(
                f"plan: its second moments were planned for another {', '.join(other)}; make a new plan"
            )

    def rehearse(self, facts: DatasetInfo, plan: GradientPlan, kernel: Kernel, state: DPVIState) -> None:
        """See `Start.rehearse`: on moments of scores that are alike in all directions."""
        start = moments_of(plan)
        num = sum(start.widths)
        table = np.full(max(start.cells), start.num_records / max(start.cells)) if any(start.cells) else None
        alike = NoisyMoments(np.eye(num) * (start.num_records * start.radius**2 / num), start.stddev, table)
        seen = self._seen(table, plan, kernel.guide.split)
        if not np.isfinite(self._inverse(alike, plan, kernel, state, seen)).all():
            raise ArgumentError(
                "warm_start=SecondMoments(): the moments' inverse is not finite; start where the prior's density bends "
                "(init_loc_fn), or leave warm_start out"
            )

    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> Sequence[tuple[Computation, int]]:
        """See `Start.computations`."""
        start = moments_of(plan)
        if not start.crosses:
            return []
        return [(CrossProducts(num_records=start.num_records, widths=start.widths, form=input_form(start)), 1)]

    def memory(self, facts: DatasetInfo, plan: GradientPlan) -> int:
        """See `Start.memory`; in one process, where nobody proves anything."""
        return sum(dataclasses.replace(one, form=None).memory for one, _ in self.computations(facts, plan))

    def work(
        self, facts: DatasetInfo, split: SplitModel, party: str, columns: Any, plan: GradientPlan, source: RandomSource
    ) -> MomentsWork:
        """See `Start.work`."""
        table = self._table(split, counts=any(moments_of(plan).cells))
        return MomentsWork(split, moments_of(plan), party, columns, source, table)

    def release(self, session: Session, run: Run, split: SplitModel) -> NoisyMoments:
        """See `Start.release`."""
        plan = run.plan
        assert isinstance(plan, GradientPlan)

        def whitening(blocks: Sequence[np.ndarray], table: np.ndarray | None) -> Sequence[np.ndarray]:
            return lengths_of(split, plan, blocks, self._seen(table, plan, split))

        return noisy_moments(session, run, moments_of(plan), whitening)

    def state(
        self, released: NoisyMoments, plan: GradientPlan, kernel: Kernel, cold: DPVIState, rng_key: jax.Array, *,
        progress_bar: bool,
    ) -> DPVIState:  # fmt: skip
        """See `Start.state`: the first state, with the inverse, and the baseline hazard of a table."""
        split = kernel.guide.split
        if (baseline := table_posterior.followed_baseline(split, self.settings.events, released, plan)) is not None:
            start, held = np.array(kernel.guide.location(cold.params)), self._held(split)
            start[held] = baseline.by_spread[0, held]
            own = kernel.guide.guide, split, default_init, rng_key
            cold = kernel.init(cold.rng_key, ReparameterisedGuide.create(*own, start=jnp.asarray(start))[1])
        seen = self._seen(released.table, plan, split)
        inverse, times = self._inverse(released, plan, kernel, cold, seen), readers_of(split)
        (summed,), steps = split.structure.summed, cold.optimizer_state
        cut = seen.cut(split, plan)
        scales = np.abs(np.diag(split.to_standardised))
        known = {
            "inverse": kernel.num_records * inverse,
            "noise": seen.noise_stddev(plan) * np.sqrt(times) * scales / kernel.num_records,
            "reach": seen.reach,
            "centre": split.centre / split.to_standardised[split.intercept, split.intercept],
            "intercept": np.eye(split.num_parameters)[split.intercept] * split.centre.any(),
            "loose": summed.outcome.curvature(cut) if summed.outcome.is_loose else 0.0,
            "baseline": baseline,
        }
        if released.whitening:
            known["whitening"] = self._whitening(released, plan, split)
        known = jax.tree_util.tree_map(lambda value: jnp.asarray(value, steps.inverse.dtype), known)
        return cold._replace(optimizer_state=steps._replace(**known))

    def working_prior(self, split: SplitModel) -> WorkingPrior | None:
        """See `Start.working_prior`: where a latent is in no party's part, as the scale of others."""
        if len(split.read) == split.num_parameters:
            return None
        if "working prior" not in split.compiled:
            split.compiled["working prior"] = WorkingPrior(*map(jnp.asarray, middle_and_spread(split)))
        return split.compiled["working prior"]

    def draws(
        self, released: NoisyMoments, plan: GradientPlan, kernel: Kernel, state: DPVIState, rng_key: jax.Array
    ) -> NoiseAwareDraws | str:
        """See `Start.draws`."""
        split = kernel.guide.split
        (summed,), of_moments = split.structure.summed, moments_of(plan)
        events = self.settings.events
        if reason := why_not(split, of_moments.offsets, knows_times=events is not None):
            return reason
        steps, times = state.optimizer_state, readers_of(split)
        sums, released = summed_moments(split, moments_of(plan)), consistent_moments(released, plan, split)
        points = np.asarray(steps.points, np.float64)[: int(steps.count)]
        if not np.isfinite(points).all():
            return "a version that did not keep where steps were taken stored some of them"
        prior = np.asarray(_of_prior(kernel, "gradients")(jnp.asarray(points, steps.points.dtype)))
        descents, seen = np.asarray(steps.descents, np.float64)[: len(points)], Seen(reach=float(steps.reach))
        to = self._whitening(released, plan, split).back.T @ split.to_standardised
        trace = Trace(
            points=points @ to.T,
            gradients=(-kernel.num_records * descents - prior) @ np.linalg.inv(to),
            stddev=seen.noise_stddev(plan) * np.sqrt(times),
            moments=sums @ released.matrix @ sums.T,
            moments_stddev=released.stddev * times.max(),
            num_records=plan.num_records,
            to=to,
            offsets=of_moments.offsets,
        )
        cut, rng_key = seen.cut(split, plan), jax.random.fold_in(rng_key, 2)
        if events is not None:
            table = table_posterior.hazard_table(split, events, released, plan)
            return table_posterior.hazard_aware_draws(split, events, table, trace, cut, rng_key)
        law = seen.law(summed.outcome)
        if of_moments.is_of_counts and isinstance(law, Counted) and released.table is not None:
            return table_posterior.count_aware_draws(split, released, of_moments, law, trace, cut, rng_key)
        return noise_aware_draws(split, law, trace, cut, rng_key)

    def time(self, facts: DatasetInfo, plan: GradientPlan) -> FitTime:
        """See `Start.time`: the draws that know the noise, most of which is compiling, as it was measured."""
        assert isinstance(plan.start, MomentsPlan)
        seconds = _COMPILED_S + (sum(plan.start.widths) / _WIDTH) ** 3
        return FitTime(after={"the draws": slowness() * seconds})

    def forecast(self, split: SplitModel, plan: GradientPlan) -> Forecast | None:
        """See `Start.forecast`."""
        events, (summed,), start = self.settings.events, split.structure.summed, moments_of(plan)
        if why_not(split, start.offsets, knows_times=events is not None):
            return None
        law, seen, supposed = summed.outcome, Seen(), ""
        if events is not None:
            law = events.supposed_lifetimes(split.schema)
        held = self._held(split)  # of which steps say nothing
        read, times = np.setdiff1d(split.read, held), readers_of(split)
        usual = usual_scores(split)
        given = stand_ins_of(
            split,
            law,
            read,
            usual,
            num_records=plan.num_records,
            noise=seen.noise_stddev(plan) * np.sqrt(times),
            num_steps=plan.num_gradients,
            moments_noise=start.stddev * identities_of(split, start).noise_left * times.max(),
            trust=expected_trust(law),
        )
        if start.is_of_counts:
            middle, spread = given.usual_predictors(law)
            seen = Seen.at((middle, spread), split, plan)
            law, given = seen.law(summed.outcome), given._replace(noise=seen.reach * given.noise)
            rate = math.exp(middle + spread**2 / 2)
            supposed = f"counts are taken to be about {rate:.2g}, and a tenth of that has 3 to 10 times as much"
        if start.whitened:
            given = given.whitened(*(of[np.ix_(read, read)] for of in usual_whitening(split, plan, usual[0], seen)[:2]))
        stddev, sampling = forecast_stddevs(law, seen.cut(split, plan), given)
        if events is not None and len(held):
            parts = table_posterior.forecast_with_baseline(split, events, given, read, start, (stddev, sampling))
            read = np.union1d(read, held)
            stddev, sampling = (of_all[read] for of_all in parts)
        names = np.array(split.names, object)[read]
        return Forecast(tuple(names), stddev, sampling, prior_stddev(split)[read], supposed)

    @staticmethod
    def _whitening(released: NoisyMoments, plan: GradientPlan, split: SplitModel) -> Whitening:
        if released.whitening:
            return Whitening.of(split, plan, released.whitening)
        return Whitening(np.eye(split.num_parameters), np.eye(split.num_parameters), np.zeros(0))

    def _inverse(
        self, released: NoisyMoments, plan: GradientPlan, kernel: Kernel, state: DPVIState, seen: Seen
    ) -> np.ndarray:
        """H⁻¹ `[theta, theta]`. Post-processing."""
        split, times = kernel.guide.split, readers_of(kernel.guide.split)
        (summed,) = split.structure.summed
        precision = -np.asarray(_of_prior(kernel, "hessian")(kernel.guide.location(state.params)), np.float64)
        back = split.from_standardised @ self._whitening(released, plan, split).to
        found = steep(
            coefficient_moments(released, plan, split),
            summed.outcome.curvature(seen.cut(split, plan)),
            back.T @ precision @ back,
            noise=released.stddev * times.max(),
            gradient_noise=seen.noise_stddev(plan) * np.sqrt(times),
            num_steps=plan.num_gradients,
        )
        if not np.isfinite(found).all():
            return found
        inverse = np.linalg.inv(found)
        held = self._held(split)  # by no gradient
        inverse[held], inverse[:, held] = 0.0, 0.0
        return back @ inverse @ back.T

    def _counts(self, split: SplitModel, clip: Clip) -> bool:
        """Whether a table of counts is released."""
        if self.settings.counts is False or self.settings.events is not None or not clip.by_forecast:
            return False
        return CountCells.of(split.structure.summed[0]) is not None

    def _table(self, split: SplitModel, *, counts: bool) -> EventTimes | CountCells | None:
        """What the outcome's party releases a table of."""
        return CountCells.of(split.structure.summed[0]) if counts and not self.settings.events else self.settings.events

    def _seen(self, table: np.ndarray | None, plan: GradientPlan, split: SplitModel) -> Seen:
        """What a released table says for the steps. Post-processing."""
        cells, outcome = self._table(split, counts=True), split.structure.summed[0].outcome
        if table is None or not isinstance(cells, CountCells):
            return Seen()
        return Seen.at(cells.usual(outcome, table, moments_of(plan).cell_stddev), split, plan)

    @property
    def follows(self) -> bool:
        """See `Start.follows`: a baseline hazard does."""
        return bool(self.settings.events and self.settings.events.baseline)

    def _held(self, split: SplitModel) -> np.ndarray:
        return table_posterior.baseline_places(split, self.settings.events)

    def _facts_of(
        self, split: SplitModel, clip: Clip, table: EventTimes | CountCells | None, *, of_earlier: bool = False
    ) -> dict[str, Any]:
        """What a plan of moments has from the model and the steps' clip: the scores are bounded as there.

        A party that learns nothing has no part of that bound, and gets a column's for an offset.

        :param of_earlier: as plans had it that knew of no offsets.
        """
        events = self.settings.events
        assert clip.parts is not None  # `_refusal` asked
        offsets = () if of_earlier or may_be_times(split) else public_offsets(split)
        more = [int(offset.half > 0) for offset in offsets] or [0] * len(clip.parts)
        parts = tuple(max(part, one) for part, one in zip(clip.parts, more, strict=True))
        radius = clip.norm / longest_residual(split, clip.residual_bound)
        return {
            "widths": widths_of(split, offsets),
            "clip_parts": parts,
            "radius": radius * math.sqrt(sum(parts) / sum(clip.parts)),
            "cells": () if table is None else table.cells(split.schema),
            "cell": COUNT_CELL if isinstance(table, CountCells) else CELL,
            "offsets": offsets,
            "whitened": events is None and may_whiten(split) if self.settings.whiten is None else self.settings.whiten,
        }


def _of_prior(kernel: Kernel, what: str) -> Callable[[Any], jax.Array]:
    """The gradients at points [T, theta] of what a point adds to the log likelihood, or its Hessian at one."""
    compiled, density = kernel.guide.split.compiled, kernel.guide.point_prior
    if f"prior's {what}" not in compiled:
        derivative = jax.hessian(density) if what == "hessian" else jax.vmap(jax.grad(density))
        compiled[f"prior's {what}"] = jax.jit(derivative)
    return compiled[f"prior's {what}"]


def check_linear(split: SplitModel) -> None:
    """Refuses a sum with a part that is not linear in its latents, found on stand-in records and random latents.

    Latents that no part reads, as scales of others, have no derivative, and follow from the prior.

    :raises ModelContractError: names the sum, the party, the latents and the fix.
    """
    (summed,) = split.structure.summed
    for party in split.parties:
        if bent := bent_latents(split, party):
            raise ModelContractError(
                f"warm_start=SecondMoments(): party_sum '{summed.sum_name}': the part of party '{party}' is not linear "
                f"in latents {bent}, as where they are multiplied by each other or have a positive support; write it "
                "linear in them, with the scale in the prior, or leave warm_start out"
            )
