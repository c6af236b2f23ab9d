"""What private steps may begin with: noisy tables, released before the first step, under the same plan."""

from __future__ import annotations

import abc
import dataclasses
import math
import secrets
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from vertinumpyro.core.rng import RandomSource
from vertinumpyro.data import Facts
from vertinumpyro.dpvi.kernel import DPVIState, Kernel
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.posterior.guide import GuideFactory
from vertinumpyro.privacy import PoissonSampling, PrivacyPlan, PrivacyWarning, Sampling
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Run, Session, Work

if TYPE_CHECKING:
    from vertinumpyro.dpvi.inference import DPVI

__all__ = ["TablesStart", "takes_all_records"]


class TablesStart(abc.ABC):
    """Noisy tables, and what is made of them for the steps. Where a plan has none, everything here is nothing.

    Tables and steps compose exactly because both are Gaussian, so every step has to take all records.
    """

    @property
    @abc.abstractmethod
    def tables(self) -> VertiMRF:
        """What releases them."""

    @abc.abstractmethod
    def plan_if_wanted(self, dpvi: DPVI, facts: Facts, *, all_records: bool, **settings: Any) -> MRFPlan | None:
        """The tables' plan; None where the steps are to start from random values.

        :param all_records: whether every step takes all records.
        :param settings: as `VertiMRF.plan` takes them.
        :raises ArgumentError: tables are wanted and cannot be had; says why.
        """

    @abc.abstractmethod
    def rehearse_on(self, facts: Facts, plan: MRFPlan) -> None:
        """Tries on uniform tables what follows their release.

        :raises ArgumentError: it would fail.
        """

    @abc.abstractmethod
    def state(
        self,
        released: Marginals,
        kernel: Kernel,
        guide: GuideFactory,
        cold: DPVIState,
        rng_key: jax.Array,
        *,
        progress_bar: bool,
    ) -> DPVIState:
        """The steps' first state, by the tables.

        :param guide: what `kernel.guide` was made by.
        :param cold: the state that the steps would start from otherwise.
        """

    def plan(self, facts: Facts, *, epsilon: float, share: float, **settings: Any) -> MRFPlan:
        """The tables' plan, with `share` of the μ² that would give those whom ε is for `epsilon`; tried on stand-ins.

        :param settings: as `VertiMRF.plan` takes them.
        :raises ArgumentError: the schema's columns are too wide for tables, or an extra is missing.
        :raises ModelContractError: the model's tables cannot be computed.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)  # the plan that this becomes a part of says it
            whole = self.tables.plan(facts, epsilon=epsilon, **settings)
        plan = dataclasses.replace(
            whole, noise_multiplier=whole.noise_multiplier / math.sqrt(share), plan_id=secrets.token_hex(16)
        )
        self.rehearse_on(facts, plan)
        return plan

    def check(self, facts: Facts, plan: PrivacyPlan) -> None:
        """Refuses tables that were planned for others; see `VertiMRF.check`."""
        if (start := _part(plan)) is not None:
            self.tables.check(facts, start)

    def rehearse(self, facts: Facts, plan: PrivacyPlan) -> None:
        """Tries on uniform tables what follows their release; errors as `plan`."""
        if (start := _part(plan)) is not None:
            self.rehearse_on(facts, start)

    def computations(self, facts: Facts, plan: PrivacyPlan) -> Sequence[tuple[Computation, int]]:
        """What the parties compute together for the tables, and how often."""
        return () if (start := _part(plan)) is None else self.tables.computations(facts, start)

    def work(self, facts: Facts, party: str, columns: Any, plan: PrivacyPlan, source: RandomSource) -> Work | None:
        """One party's part in the tables; see `session.Method`."""
        start = _part(plan)
        return None if start is None else self.tables.work(facts, party, columns, start, source)

    def released(self, session: Session, run: Run) -> Marginals | None:
        """Spend the tables' steps, or take what the run stored of them; None where its plan has none."""
        assert isinstance(run.plan, PrivacyPlan)
        start = _part(run.plan)
        return None if start is None else self.tables.released_in(session, run, start)


def _part(plan: PrivacyPlan) -> MRFPlan | None:
    """The tables' part of a plan; None where its steps start from random values."""
    return plan.start if isinstance(plan.start, MRFPlan) else None


def takes_all_records(sampling: Sampling | None, batch_size: int | None, num_records: int, *, amplified: bool) -> bool:
    """Whether every step takes all records, by the arguments of `DPVI.plan`: only then are its events Gaussian.

    :param amplified: whether the default would be small batches.
    """
    if sampling is None:
        return batch_size == num_records or (batch_size is None and not amplified)
    return isinstance(sampling, PoissonSampling) and sampling.full_batch
