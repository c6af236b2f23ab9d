"""What private steps may begin with: something noisy, released before the first step, under the same plan."""

from __future__ import annotations

import abc
import dataclasses
import math
import secrets
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import optax

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import Facts
from vertinumpyro.dpvi.clipping import Clip
from vertinumpyro.dpvi.defaults import default_rate
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.dpvi.optimizers import Optimizer, as_optax
from vertinumpyro.model.split import SplitModel
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.privacy import Plan, PoissonSampling, PrivacyPlan, PrivacyWarning, Sampling
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Run, Session, Work

__all__ = ["Start", "StepDefaults", "shared", "steps_optimizer", "takes_all_records"]


class StepDefaults(NamedTuple):
    """The steps after a start, where nobody says.

    guide: where the user chose none.
    num_steps: how many.
    optimizer: the start's own, by their number; None for the user's, or the library's Adam.
    """

    guide: GuideFactory
    num_steps: int
    optimizer: Callable[[int], optax.GradientTransformation] | None = None


class Start(abc.ABC):
    """A release, and what is made of it for the steps.

    Release and steps compose exactly because both are Gaussian, so every step has to take all records.

    :ivar steps: those that follow.
    """

    steps: ClassVar[StepDefaults]

    @abc.abstractmethod
    def plan(self, facts: Facts, split: SplitModel, clip: Clip, *, all_records: bool, **settings: Any) -> Plan | None:
        """The release's plan; None where the steps are to start from random values.

        :param clip: of the steps.
        :param all_records: whether every step takes all records.
        :param settings: epsilon, delta, adversary, relation, noise, collusion_threshold, as in `DPVI.plan`.
        :raises ArgumentError: the release is wanted and cannot be had; says why.
        """

    @abc.abstractmethod
    def check(self, facts: Facts, split: SplitModel, plan: PrivacyPlan) -> None:
        """Refuses a release that was planned for others.

        :raises ArgumentError: names what differs.
        """

    @abc.abstractmethod
    def rehearse(self, facts: Facts, plan: PrivacyPlan, kernel: Kernel, state: DPVIState) -> None:
        """Tries on stand-ins what follows the release.

        :param state: what the steps would start from otherwise.
        :raises ArgumentError: it would fail.
        """

    @abc.abstractmethod
    def computations(self, facts: Facts, plan: PrivacyPlan) -> Sequence[tuple[Computation, int]]:
        """What the parties compute together for the release, and how often."""

    @abc.abstractmethod
    def memory(self, facts: Facts, plan: PrivacyPlan) -> int:
        """Bytes that the release, and what follows from it, take at most beside the encoded columns."""

    @abc.abstractmethod
    def work(
        self, facts: Facts, split: SplitModel, party: str, columns: Any, plan: PrivacyPlan, source: RandomSource
    ) -> Work:
        """One party's part in the release; see `session.Method`."""

    @abc.abstractmethod
    def release(self, session: Session, run: Run) -> Any:
        """Spend the release's steps, or take what the run stored of them."""

    @abc.abstractmethod
    def state(
        self,
        released: Any,
        plan: PrivacyPlan,
        kernel: Kernel,
        cold: DPVIState,
        rng_key: jax.Array,
        *,
        progress_bar: bool,
    ) -> DPVIState:
        """The steps' first state, by the release.

        :param cold: the state that the steps would start from otherwise.
        """


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
    start: Start | None, num_steps: int, optimizer: Optimizer | None, learning_rate: float | None
) -> optax.GradientTransformation:
    """That of the steps after a start, or after none.

    :param optimizer: as the user gave it, and so the rate.
    """
    if start is not None and start.steps.optimizer is not None:
        return start.steps.optimizer(num_steps)
    return as_optax(optimizer, num_steps, learning_rate or default_rate(num_steps, warm=start is not None))


def takes_all_records(sampling: Sampling | None, batch_size: int | None, num_records: int, *, amplified: bool) -> bool:
    """Whether every step takes all records, by the arguments of `DPVI.plan`: only then are its events Gaussian.

    :param amplified: whether the default would be small batches.
    """
    if sampling is None:
        return batch_size == num_records or (batch_size is None and not amplified)
    return isinstance(sampling, PoissonSampling) and sampling.full_batch
