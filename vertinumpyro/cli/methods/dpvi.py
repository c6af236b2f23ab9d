"""`--method dpvi` and `horizontal`: variational inference of a NumPyro model, where parties hold columns of the same
records, and where they hold whole records, each other ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods.base import CommandMethod, given, max_unreliable
from vertinumpyro.cli.model_loading import build_dpvi
from vertinumpyro.cli.terminal import console
from vertinumpyro.core.compat import random_key
from vertinumpyro.data import DatasetInfo, TableFacts, VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.dpvi.horizontal import HorizontalDPVI
from vertinumpyro.mrf import MRFPlan, VertiMRF
from vertinumpyro.mrf.forecast import STEPS_SAY_NOTHING
from vertinumpyro.privacy import ClientPlan, FitTime, GradientPlan, Plan
from vertinumpyro.reports.plain_language import at_most, count, plan_facts
from vertinumpyro.reports.posterior import PosteriorReport
from vertinumpyro.reports.run_report import stored_posterior
from vertinumpyro.secure import VectorSum
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import Session


class DPVICommand(CommandMethod):
    """A NumPyro model, the library's mixture where the configuration names none."""

    name = "dpvi"
    plan_class = GradientPlan
    own_settings: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.method = build_dpvi(config)

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"model {self.config.model.function or 'the mixture'}"

    def checked(self) -> Sequence[str]:
        """The model's contract."""
        split = self.method.split(self.config.schema)
        chosen = self.method.model is None and self.method.num_components is None
        tables = "by noisy tables alone a component for 50 records, 10 to 400; where steps follow, for 400, 20 to 200"
        more = [tables] if chosen else []
        return [
            f"{count(split.num_components, 'component')}, {count(split.num_values, 'released value')} a step",
            *more,
            "every observed site reads one party's columns, record by record",
        ]

    def plan(self, facts: DatasetInfo) -> GradientPlan:
        """See `CommandMethod`."""
        privacy, fit = self.config.budget, self.config.fit
        settings: dict[str, Any] = dataclasses.asdict(privacy)
        names = ("num_steps", "batch_size", "clip_norm", "clip", "residual_bound")
        settings |= {name: getattr(fit, name) for name in names}
        return self.method.plan(facts, **{key: value for key, value in settings.items() if value is not None})

    def forecast(self, plan: GradientPlan, earlier: Path | None = None) -> Mapping[str, Any]:
        """Standard errors where they are known; of what a mixture will hold, what its tables will."""
        if plan.forecast is not None or earlier is not None:
            little = [] if plan.forecast is None else list(plan.forecast.little)
            return {**super().forecast(plan, earlier), "says_little_of": little}
        if isinstance(plan.start, MRFPlan):
            found = VertiMRF().forecast(self.config.schema, plan.start)
            return {"words": f"Of the noisy tables that it starts from. {found}"}
        return {"words": STEPS_SAY_NOTHING}

    @classmethod
    def plan_facts(cls, plan: GradientPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return plan_facts(plan, backend)

    def facts(self, plan: GradientPlan) -> dict[str, str]:
        """With the memory that the model takes."""
        memory = self.method.memory(TableFacts(self.config.schema, plan.num_records), plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def time(self, plan: GradientPlan) -> FitTime:
        """See `DPVI.time`."""
        return self.method.time(TableFacts(self.config.schema, plan.num_records), plan)

    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> Sequence[tuple[Computation, int]]:
        """One clipped sum a step."""
        return self.method.computations(facts, plan)

    def fit(self, data: VerticalDataset | Session, plan: GradientPlan, *, run_dir: Path, resume: bool) -> Posterior:
        """See `CommandMethod`."""
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.method.fit(
            data, plan, key, run_dir=run_dir, resume=resume, progress_bar=console.is_terminal, allow_long=True
        )

    def stored(self, run_dir: Path, plan: Plan) -> Posterior | None:
        """See `stored_posterior`."""
        return stored_posterior(run_dir, plan, self.method.load)

    def report(self, result: Posterior) -> PosteriorReport:
        """See `CommandMethod`; its facts are shorter than the plan's view."""
        return PosteriorReport(result=result, run=self.run_facts(None, self.model_seed))


class HorizontalCommand(CommandMethod):
    """A NumPyro model by DPVI, the library's mixture where the configuration names none."""

    name = "horizontal"
    plan_class = ClientPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": ("epsilon", "noise_multiplier", "delta", "adversary", "relation", "collusion_threshold"),
        "fit": ("backend", "num_steps", "batch_size", "clip_norm", "guide", "learning_rate"),
        "mrf": (),
        "regression": (),
    }
    for_holders = True
    _of_the_plan = ("num_steps", "batch_size", "clip_norm")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dpvi = build_dpvi(config)
        self.method = HorizontalDPVI(self.dpvi, backend=SecureAggregation())

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"model {self.config.model.function or 'the mixture'}"

    def checked(self) -> Sequence[str]:
        """The model's contract."""
        split = self.dpvi.split(self.config.schema)
        return [
            f"{count(split.num_components, 'component')}, {count(split.num_values, 'released value')} a step",
            "every observed site reads one record",
        ]

    def plan(self, facts: DatasetInfo) -> ClientPlan:
        """See `CommandMethod`."""
        settings = {key: value for key, value in given(self.config.privacy).items() if key != "collusion_threshold"}
        fit = {key: value for key, value in given(self.config.fit).items() if key in self._of_the_plan}
        return self.method.plan(facts, **settings, **fit, max_unreliable=max_unreliable(self.config))

    @classmethod
    def plan_facts(cls, plan: ClientPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return PosteriorReport.plan_facts(plan, backend)

    def time(self, plan: ClientPlan) -> FitTime:
        """See `HorizontalDPVI.time`."""
        return self.method.time(TableFacts(self.config.schema, plan.num_records, plan.holders), plan)

    def computations(self, facts: DatasetInfo, plan: ClientPlan) -> Sequence[tuple[Computation, int]]:
        """A sum a step."""
        size = self.dpvi.split(facts.schema).num_values
        return [(VectorSum(num_parties=len(plan.holders), num_values=size), plan.num_gradients)]

    def fit(self, data: VerticalDataset | Session, plan: ClientPlan, *, run_dir: Path, resume: bool) -> Posterior:
        """See `CommandMethod`."""
        assert isinstance(data, Session)
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.method.fit(
            data, plan, key, run_dir=run_dir, resume=resume, progress_bar=console.is_terminal, allow_long=True
        )

    def stored(self, run_dir: Path, plan: Plan) -> Posterior | None:
        """See `stored_posterior`."""
        return stored_posterior(run_dir, plan, self.dpvi.load)

    def report(self, result: Posterior) -> PosteriorReport:
        """See `CommandMethod`."""
        return PosteriorReport(result=result, run=self.run_facts(result.plan, self.model_seed))
