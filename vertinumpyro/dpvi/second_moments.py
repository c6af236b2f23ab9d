"""Few steps for a regression across parties: part of the budget buys second moments of the scores, which say how far.

Gradient steps take as many rounds as the scores are far from orthogonal. One release of two rounds holds their second
moments (`dpvi.moments_plan`), which bound the curvature wherever the coefficients are, so that 20 steps come as far as
some hundreds of Adam's (`dpvi.newton`). All that follows the release is post-processing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.autoguide import AutoDelta

from vertinumpyro.core.errors import ArgumentError, ModelContractError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import Facts
from vertinumpyro.dpvi.clipping import Clip
from vertinumpyro.dpvi.defaults import default_guide
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.moments import MomentsWork, NoisyMoments, noisy_moments, scores_of, widths_of
from vertinumpyro.dpvi.moments_plan import MomentsPlan
from vertinumpyro.dpvi.newton import accelerated_newton, steep
from vertinumpyro.dpvi.start import Start, StepDefaults, shared
from vertinumpyro.model import SplitModel
from vertinumpyro.model.stand_ins import stand_in_columns
from vertinumpyro.posterior.autoguides import is_point
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.privacy import NoiseSource, PrivacyPlan, neighbouring
from vertinumpyro.privacy.clip import bounds_of_outcomes
from vertinumpyro.secure.computation import Computation, CrossProducts
from vertinumpyro.session import Run, Session

__all__ = ["MOST_COEFFICIENTS", "NUM_STEPS", "MomentsStart", "SecondMoments", "moments_of"]

MOST_COEFFICIENTS = 1500
"""Up to which H is inverted and kept in the steps' state."""

NUM_STEPS = 20

_TRIED, _TOLERANCE = 32, 1e-4


@final
@dataclasses.dataclass(frozen=True)
class SecondMoments:
    """`DPVI(model, warm_start=SecondMoments())`: a `party_sum` learned in 20 steps, where each takes all records.

    For models whose parts of the sum are linear in the latents: splines, products of a party's own columns and terms of
    its own are, `scale * coefficients` of two latents is not. What is learned is a point (`AutoDelta`), the mode under
    the model's priors; where a prior's density has no Hessian that holds everywhere, that of the start is taken.

    :param share: part of mu^2 for the moments: directions that their noise hides are stepped along with care, and
        matter little.
    :raises ArgumentError: it is not between 0 and 1.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not (isinstance(self.share, float) and 0 < self.share < 1):
            raise ArgumentError(f"share must lie between 0 and 1, got {self.share!r}")


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

    def plan(self, facts: Facts, split: SplitModel, clip: Clip, *, all_records: bool, **settings: Any) -> MomentsPlan:
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
        fixed = {"num_records": facts.num_records, "parties": split.parties, **_facts_of(split, clip)}
        return shared(whole, self.settings.share, noise=noise, **fixed, **settings)

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
        if split.num_parameters > MOST_COEFFICIENTS:
            return f"it takes up to {MOST_COEFFICIENTS} coefficients, and the model has {split.num_parameters}"
        return None

    def check(self, facts: Facts, split: SplitModel, plan: PrivacyPlan) -> None:
        """See `Start.check`."""
        start = moments_of(plan)
        fixed = _facts_of(split, Clip.of(plan))
        if other := [name for name, value in fixed.items() if getattr(start, name) != value]:
            raise ArgumentError(
                f"plan: its second moments were planned for another {', '.join(other)}; make a new plan"
            )

    def rehearse(self, facts: Facts, plan: PrivacyPlan, kernel: Kernel, state: DPVIState) -> None:
        """See `Start.rehearse`: on moments of scores that are alike in all directions."""
        start = moments_of(plan)
        num = sum(start.widths)
        alike = NoisyMoments(np.eye(num) * (start.num_records * start.radius**2 / num), start.stddev)
        if not np.isfinite(self._inverse(alike, plan, kernel, state)).all():
            raise ArgumentError(
                "warm_start=SecondMoments(): the moments' inverse is not finite; start where the prior's density bends "
                "(init_loc_fn), or leave warm_start out"
            )

    def computations(self, facts: Facts, plan: PrivacyPlan) -> Sequence[tuple[Computation, int]]:
        """See `Start.computations`."""
        start = moments_of(plan)
        return [(CrossProducts(num_records=start.num_records, widths=start.widths), 1)] if start.crosses else []

    def memory(self, facts: Facts, plan: PrivacyPlan) -> int:
        """See `Start.memory`."""
        return sum(computation.memory for computation, _ in self.computations(facts, plan))

    def work(
        self, facts: Facts, split: SplitModel, party: str, columns: Any, plan: PrivacyPlan, source: RandomSource
    ) -> MomentsWork:
        """See `Start.work`."""
        return MomentsWork(split, moments_of(plan), party, columns, source)

    def release(self, session: Session, run: Run) -> NoisyMoments:
        """See `Start.release`."""
        assert isinstance(run.plan, PrivacyPlan)
        return noisy_moments(session, run, moments_of(run.plan))

    def state(
        self, released: NoisyMoments, plan: PrivacyPlan, kernel: Kernel, cold: DPVIState, rng_key: jax.Array, *,
        progress_bar: bool,
    ) -> DPVIState:  # fmt: skip
        """See `Start.state`: the first state, with the inverse."""
        inverse = self._inverse(released, plan, kernel, cold)
        steps = cold.optimizer_state
        steps = steps._replace(inverse=jnp.asarray(kernel.num_records * inverse, steps.inverse.dtype))
        return cold._replace(optimizer_state=steps)

    def _inverse(self, released: NoisyMoments, plan: PrivacyPlan, kernel: Kernel, state: DPVIState) -> np.ndarray:
        """H⁻¹ `[theta, theta]`. Post-processing."""
        split, place = kernel.guide.split, kernel.guide.split.gather_index
        (summed,) = split.structure.summed
        times = np.bincount(place, minlength=split.num_parameters)  # by how many parties a latent is read
        sums = np.zeros((split.num_parameters, len(place)))
        sums[place, np.arange(len(place))] = 1
        if "prior_hessian" not in split.compiled:
            split.compiled["prior_hessian"] = jax.jit(jax.hessian(split.log_prior))
        precision = -np.asarray(split.compiled["prior_hessian"](kernel.guide.location(state.params)), np.float64)
        found = steep(
            sums @ released.matrix @ sums.T,
            summed.outcome.curvature(_longest_residual(split, plan.residual_bound)),
            precision,
            noise=released.stddev * times.max(),
            gradient_noise=kernel.shape.noise_stddev * np.sqrt(times),
            num_steps=plan.num_gradients,
        )
        return np.linalg.inv(found) if np.isfinite(found).all() else found


def check_linear(split: SplitModel) -> None:
    """Refuses a sum with a part that is not linear in its latents, found on stand-in records and random latents.

    :raises ModelContractError: names the sum, the party, the latents and the fix.
    """
    (summed,) = split.structure.summed
    if unread := sorted(set(split.structure.latents) - {name for own in summed.latents.values() for name in own}):
        raise ModelContractError(
            f"warm_start=SecondMoments(): no part of party_sum '{summed.sum_name}' reads latents {unread}, so moments "
            "of its derivatives say nothing of them; make them public numbers, or leave warm_start out"
        )
    for party in split.parties:
        if bent := _bent(split, party):
            raise ModelContractError(
                f"warm_start=SecondMoments(): party_sum '{summed.sum_name}': the part of party '{party}' is not linear "
                f"in latents {bent}, as where they are multiplied by each other or have a positive support; write it "
                "linear in them, with the scale in the prior, or leave warm_start out"
            )


def _bent(split: SplitModel, party: str) -> list[str]:
    """The party's latents by which the derivative of its part depends on latents."""
    own = {n: jnp.asarray(c) for n, c in stand_in_columns(split.schema.restrict(party), _TRIED, seed=5).items()}
    drawn = np.random.default_rng(6).normal(size=(2, split.num_parameters))
    one, other = (np.asarray(scores_of(split, party)(jnp.asarray(flat, float), own)) for flat in drawn)
    moved = (np.abs(one - other) > _TOLERANCE * (1 + np.abs(one))).any(axis=0)
    sizes = [math.prod(split.structure.latents[name]) for name in split.shared[party]]
    pieces = np.split(moved, np.cumsum(sizes)[:-1]) if sizes else []
    return [name for name, piece in zip(split.shared[party], pieces, strict=True) if piece.any()]


def _facts_of(split: SplitModel, clip: Clip) -> dict[str, Any]:
    """What a plan of moments has from the model and the steps' clip: the scores are bounded as there."""
    radius = clip.norm / _longest_residual(split, clip.residual_bound)
    return {"widths": widths_of(split), "clip_parts": clip.parts, "radius": radius}


def _longest_residual(split: SplitModel, bound: float | tuple[float, ...]) -> float:
    """Of the one outcome."""
    (summed,) = split.structure.summed
    (cut,) = bounds_of_outcomes(bound)
    return cut * summed.outcome.unit


def moments_of(plan: PrivacyPlan) -> MomentsPlan:
    """The moments' part of a plan.

    :raises ArgumentError: it has none.
    """
    if not isinstance(plan.start, MomentsPlan):
        raise ArgumentError("plan: its steps do not begin with second moments; make a new plan")
    return plan.start
