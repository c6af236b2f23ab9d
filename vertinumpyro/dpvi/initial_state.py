"""What private steps may begin with: something noisy, released before the first step, under the same plan.

From random values the first steps find the components of a mixture while everybody's gradients are small against the
noise, and a small budget ends there. Tables of pairs of columns are one release instead of a hundred, so with most of
μ² they hold nearly all that a model can learn at that ε; the steps then add what tables of pairs cannot say.

Where that is nothing, the tables have all of μ² and there are no steps (`TableStart.holds_all`). That is decided when
the plan is made, from the model's structure, N and ε, which are public.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

import jax
import numpy as np
import optax

from vertinumpyro.core.errors import ArgumentError, InferenceWarning, ModelContractError, VertinumpyroError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.types import Model
from vertinumpyro.data import DatasetInfo
from vertinumpyro.dpvi.clipping import Budget, Clip
from vertinumpyro.dpvi.noise_aware import NoiseAwareDraws
from vertinumpyro.dpvi.settings import (
    START_SHARE,
    WARM_STEPS,
    Optimizer,
    as_optax,
    default_init,
    default_rate,
    warm_guide,
)
from vertinumpyro.dpvi.training_loop import DPVIState, Kernel
from vertinumpyro.marginals import MarginalInference
from vertinumpyro.marginals.expected_tables import tied_columns
from vertinumpyro.model.split import SplitModel
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.posterior.guide import GuideFactory, ReparameterisedGuide, WorkingPrior, chosen_init, has_location
from vertinumpyro.posterior.predictive import checked_key
from vertinumpyro.privacy import FitTime, GradientPlan, Plan, PoissonSampling, PrivacyWarning, Sampling
from vertinumpyro.privacy.forecast import Forecast
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import PartyComputation, Run, Session

_A_PAIR = 2
_HIDDEN, _USUAL_VARIANCE = 0.2, 0.19  # the standard error of a log odds; p (1 - p)


class StepDefaults(NamedTuple):
    """The steps after a start, where nobody says.

    guide: where the user chose none.
    num_steps: how many.
    optimizer: the start's own, by their number and that of parties whose scores are whitened; None for the user's, or
        the library's Adam.
    """

    guide: GuideFactory
    num_steps: int
    optimizer: Callable[..., optax.GradientTransformation] | None = None


class Start(abc.ABC):
    """A release, and what is made of it for the steps.

    Release and steps compose exactly because both are Gaussian, so every step has to take all records.

    :ivar steps: those that follow.
    """

    steps: ClassVar[StepDefaults]

    @property
    def follows(self) -> bool:
        """Whether some of the model follows the coefficients in the steps, as the release has it."""
        return False

    @abc.abstractmethod
    def plan(
        self, facts: DatasetInfo, split: SplitModel, clip: Clip, *, all_records: bool, alone: bool, **settings: Any
    ) -> Plan | None:
        """The release's plan; None where the steps are to start from random values.

        :param clip: of the steps.
        :param all_records: whether every step takes all records.
        :param alone: whether no steps follow, so that the release has all of the budget.
        :param settings: epsilon, delta, adversary, relation, noise, collusion_threshold, as in `DPVI.plan`.
        :raises ArgumentError: the release is wanted and cannot be had; says why.
        """

    @abc.abstractmethod
    def check(self, facts: DatasetInfo, split: SplitModel, plan: GradientPlan) -> None:
        """Refuses a release that was planned for others.

        :raises ArgumentError: names what differs.
        """

    @abc.abstractmethod
    def rehearse(self, facts: DatasetInfo, plan: GradientPlan, kernel: Kernel, state: DPVIState) -> None:
        """Tries on stand-ins what follows the release.

        :param state: what the steps would start from otherwise.
        :raises ArgumentError: it would fail.
        """

    @abc.abstractmethod
    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> Sequence[tuple[Computation, int]]:
        """What the parties compute together for the release, and how often."""

    def time(self, facts: DatasetInfo, plan: GradientPlan) -> FitTime:
        """How long the release and what is made of it take on this machine, and `after` the steps what follows them;
        nothing worth saying by default."""
        return FitTime()

    @abc.abstractmethod
    def memory(self, facts: DatasetInfo, plan: GradientPlan) -> int:
        """Bytes that the release, and what follows from it, take at most beside the encoded columns."""

    @abc.abstractmethod
    def work(
        self, facts: DatasetInfo, split: SplitModel, party: str, columns: Any, plan: GradientPlan, source: RandomSource
    ) -> PartyComputation:
        """One party's part in the release; see `session.Method`."""

    @abc.abstractmethod
    def release(self, session: Session, run: Run, split: SplitModel) -> Any:
        """Spend the release's steps, or take what the run stored of them."""

    @abc.abstractmethod
    def state(
        self,
        released: Any,
        plan: GradientPlan,
        kernel: Kernel,
        cold: DPVIState,
        rng_key: jax.Array,
        *,
        progress_bar: bool,
    ) -> DPVIState:
        """The steps' first state, by the release.

        :param cold: the state that the steps would start from otherwise.
        """

    def holds_all(self, split: SplitModel, clip: Clip, budget: Budget) -> bool:
        """Whether the release holds all that steps could learn of the model, so that they would add noise alone.

        :param budget: of the steps, if it were all theirs.
        """
        return False

    def working_prior(self, split: SplitModel) -> WorkingPrior | None:
        """What steps to a point take in the place of the model's prior; None where that is the prior."""
        return None

    def draws(
        self, released: Any, plan: GradientPlan, kernel: Kernel, state: DPVIState, rng_key: jax.Array
    ) -> NoiseAwareDraws | str:
        """Draws of the posterior given all that was released, which know the noise; or why there are none.

        :param state: after the last step.
        """
        return ""

    def forecast(self, split: SplitModel, plan: GradientPlan) -> Forecast | None:
        """What `draws` will know of each coefficient; None where there will be none."""
        return None


def shared(planned: Any, share: float, **settings: Any) -> Any:
    """A Gaussian plan with `share` of the mu^2 that would give those whom epsilon is for all of it.

    :param planned: makes the plan with all of it, from `settings`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # the plan that this becomes a part of says it
        whole = planned(**settings)
    noise = whole.noise_multiplier / math.sqrt(share)
    return dataclasses.replace(whole, noise_multiplier=noise, plan_id=secrets.token_hex(16))


def steps_optimizer(
    start: Start | None, num_steps: int, optimizer: Optimizer | None, learning_rate: float | None, *, whitens: int
) -> optax.GradientTransformation:
    """That of the steps after a start, or after none.

    :param optimizer: as the user gave it, and so the rate.
    :param whitens: how many parties' scores are whitened; 0 for none.
    """
    if start is not None and start.steps.optimizer is not None:
        return start.steps.optimizer(num_steps, whitens, follows=start.follows)
    num_steps = max(1, num_steps)  # where there are none, nobody asks for the rate
    return as_optax(optimizer, num_steps, learning_rate or default_rate(num_steps, warm=start is not None))


def takes_all_records(sampling: Sampling | None, batch_size: int | None, num_records: int, *, amplified: bool) -> bool:
    """Whether every step takes all records, by the arguments of `DPVI.plan`: only then are its events Gaussian.

    :param amplified: whether the default would be small batches.
    """
    if sampling is None:
        return batch_size == num_records or (batch_size is None and not amplified)
    return isinstance(sampling, PoissonSampling) and sampling.full_batch


@final
@dataclasses.dataclass(frozen=True)
class TableStart(Start):
    """Noisy tables and a model fitted to them.

    :ivar inference: the model, as DPVI has it.
    :ivar guide: of the steps, as the user gave it; so `init_loc_fn`.
    :ivar required: whether the user asked for tables, so that it is an error where they cannot be had.
    """

    steps: ClassVar = StepDefaults(guide=warm_guide, num_steps=WARM_STEPS)

    inference: MarginalInference
    guide: GuideFactory
    init_loc_fn: Callable[..., Any]
    required: bool

    @classmethod
    def of(
        cls, model: Model | None, num_components: int | None, model_kwargs: Mapping[str, Any], **settings: Any
    ) -> TableStart:
        """For a model; for the library's mixture where it is None.

        :param settings: guide, init_loc_fn, required.
        """
        inference = MarginalInference(model, num_components=num_components, model_kwargs=model_kwargs)
        return cls(inference, **settings)

    @property
    def tables(self) -> VertiMRF:
        """What releases them."""
        return self.inference.settings

    def holds_all(self, split: SplitModel, clip: Clip, budget: Budget) -> bool:
        """See `Start.holds_all`: no component ties more than two columns of a party together, and noise hides the rest.

        Then a component's density is a product of what pairs of columns show, and what is left to steps are the
        interactions that a mixture has by its components. Of a chance p in a component of N / K records the steps see
        the log odds with a standard error of s K / (N p (1 - p)), s the deviation of the mean of all their noise. On
        Adult steps lost at .9 what the tables gave up for them, and at .26, on 250,000 records, they gained nothing; at
        .1 they gained a hundredth of a nat on Adult, and four of eight components (one fit of each). Steps that have no
        room for all records are not taken.
        """
        if any(len(columns) > _A_PAIR for _, columns, _ in tied_columns(split)):
            return False
        noise = clip.norm * budget.noise / math.sqrt(1 - START_SHARE)
        error = noise * split.num_components / (budget.num_records * _USUAL_VARIANCE)
        return split.num_components == 1 or error > _HIDDEN or budget.num_records > clip.most_records

    def plan(
        self, facts: DatasetInfo, split: SplitModel, clip: Clip, *, all_records: bool, alone: bool, **settings: Any
    ) -> MRFPlan | None:
        """See `Start.plan`: the tables' plan where it can be had.

        :raises ArgumentError: `warm_start=True`, and it cannot; says why.
        """
        refused = self._refusal(all_records=all_records, epsilon=settings["epsilon"])
        if not alone and facts.num_records > clip.most_records:
            room = f"which have room for {clip.most_records:,.0f} at this clip_norm"
            refused = f"it needs steps that take all records, {room}; leave warm_start out"
        try:
            if refused is not None:
                raise ArgumentError(f"warm_start=True: {refused}")
            plan = shared(self.tables.plan, 1.0 if alone else START_SHARE, dataset=facts, **settings)
            self.inference.rehearse(facts.schema, plan)
            return plan
        except (ArgumentError, ModelContractError):
            if self.required:
                raise
            return None

    def _refusal(self, *, all_records: bool, epsilon: float | None) -> str | None:
        """Why steps cannot start from tables, from the settings alone; None where they can.

        :param all_records: whether every step takes all records: only then do steps and tables compose exactly.
        """
        if not has_engine():
            return "it needs the extra `mrf`: pip install 'vertinumpyro[mrf]'"
        if epsilon is None:
            return "tables and steps share epsilon; give epsilon instead of noise_multiplier"
        if not all_records:
            return "it needs steps that take all records; leave batch_size and sampling out"
        if self.init_loc_fn is not default_init or chosen_init(self.guide) is not None:
            return "init_loc_fn says where to start; leave it out"
        if not has_location(self.guide):
            return "the guide has no location that could be put there; give AutoNormal, AutoDiagonalNormal or the like"
        return None

    def check(self, facts: DatasetInfo, split: SplitModel, plan: GradientPlan) -> None:
        """See `Start.check`, and `VertiMRF.check`."""
        self.tables.check(facts, _part(plan))

    def rehearse(self, facts: DatasetInfo, plan: GradientPlan, kernel: Kernel, state: DPVIState) -> None:
        """See `Start.rehearse`: on uniform tables."""
        self.inference.rehearse(facts.schema, _part(plan))

    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> Sequence[tuple[Computation, int]]:
        """See `Start.computations`."""
        return self.tables.computations(facts, _part(plan))

    def time(self, facts: DatasetInfo, plan: GradientPlan) -> FitTime:
        """See `Start.time`: of the tables, and of the model that is fitted to them."""
        found = self.inference.time(facts, _part(plan))
        model = {name: seconds for name, seconds in found.after.items() if name != "the synthetic table"}
        return dataclasses.replace(found, before={**found.before, **model}, after={})

    def memory(self, facts: DatasetInfo, plan: GradientPlan) -> int:
        """See `Start.memory`."""
        return self.tables.memory(facts.schema, _part(plan))

    def work(
        self, facts: DatasetInfo, split: SplitModel, party: str, columns: Any, plan: GradientPlan, source: RandomSource
    ) -> PartyComputation:
        """See `Start.work`."""
        return self.tables.work(facts, party, columns, _part(plan), source)

    def release(self, session: Session, run: Run, split: SplitModel) -> Marginals:
        """See `Start.release`."""
        assert isinstance(run.plan, GradientPlan)
        return self.tables.released_in(session, run, _part(run.plan))

    def state(
        self,
        released: Marginals,
        plan: GradientPlan,
        kernel: Kernel,
        cold: DPVIState,
        rng_key: jax.Array,
        *,
        progress_bar: bool,
    ) -> DPVIState:
        """The state at the model that fits the tables; `cold`, and a warning, where the fit does not end well."""
        fit_key, guide_key = jax.random.split(jax.random.fold_in(checked_key(rng_key), 1))
        start = self._fitted(released, fit_key, progress_bar=progress_bar)
        if start is None:
            return cold
        guide, split = kernel.guide.guide, kernel.guide.split
        # flat theta as it is: from a share near zero there is no way back in single precision
        _, params = ReparameterisedGuide.create(guide, split, default_init, guide_key, start=start)
        return kernel.init(cold.rng_key, params)

    def _fitted(self, released: Marginals, rng_key: jax.Array, *, progress_bar: bool) -> jax.Array | None:
        """Flat unconstrained theta at the fit's centre; None, and a warning, where the fit does not end well."""
        why = "its parameters are not finite"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InferenceWarning)  # a start need not be good, the steps go on from it
                start = self.inference.fit(released, rng_key, progress_bar=progress_bar, allow_long=True).centre()
            if np.isfinite(start).all():
                return start
        except VertinumpyroError as error:  # the tables are paid for, and the steps can do without
            why = str(error)
        warnings.warn(
            f"the model could not be fitted to the noisy tables, so the steps start from init_loc_fn's values: {why}",
            InferenceWarning,
            stacklevel=5,
        )
        return None


def _part(plan: GradientPlan) -> MRFPlan:
    """The tables' part of a plan."""
    if not isinstance(plan.start, MRFPlan):
        raise ArgumentError("plan: its steps do not begin with tables; make a new plan")
    return plan.start
