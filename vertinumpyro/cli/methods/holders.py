"""`--method bayesian_linear` and `horizontal`: organisations that hold whole records, each other ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods.base import CommandMethod, given
from vertinumpyro.cli.model_loading import build_dpvi
from vertinumpyro.cli.terminal import console
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, TableFacts, VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.dpvi.horizontal import HorizontalDPVI
from vertinumpyro.privacy import ClientPlan, FitTime, Plan
from vertinumpyro.regression import BayesianLinearPlan, BayesianLinearRegression
from vertinumpyro.reports.plain_language import count
from vertinumpyro.reports.posterior import PosteriorReport
from vertinumpyro.reports.regression import BayesianLinearReport
from vertinumpyro.reports.run_report import stored_posterior
from vertinumpyro.secure import VectorSum
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import Session


def _unreliable(config: Config) -> int:
    """T: a holder always knows its own noise, so coalitions of c are covered where c - 1 others may join it."""
    return max(0, (config.privacy.collusion_threshold or 0) - 1)


class BayesianLinearCommand(CommandMethod):
    """Bayesian linear regression from the sum of all holders' statistics."""

    name = "bayesian_linear"
    plan_class = BayesianLinearPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": ("epsilon", "delta", "collusion_threshold"),
        "fit": ("backend",),
        "model": (),
        "mrf": (),
        "regression": ("label", "noise_variance", "prior_variance", "projection"),
    }
    own_sections = ("regression",)
    for_holders = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.regression.label is None:
            raise ArgumentError('[regression] label: name the column to predict, label = "…"')
        if config.privacy.epsilon is None:
            raise ArgumentError(f"[privacy] epsilon: --method {self.name} needs one")
        settings = {key: value for key, value in given(config.regression).items() if key != "label"}
        settings |= {key: value for key, value in given(config.privacy).items() if key in ("epsilon", "delta")}
        self.method = BayesianLinearRegression(
            **settings,
            target=config.regression.label,
            max_unreliable=_unreliable(config),
            backend=SecureAggregation(),
        )

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"Bayesian linear regression of {self.config.regression.label}"

    def checked(self) -> Sequence[str]:
        """The label, and that all columns are numbers."""
        features = self.method.features(self.config.schema)
        return [f"label {self.config.regression.label}", count(len(features), "feature")]

    def plan(self, facts: DatasetInfo) -> BayesianLinearPlan:
        """See `CommandMethod`."""
        return self.method.plan(facts)

    @classmethod
    def plan_facts(cls, plan: BayesianLinearPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return BayesianLinearReport.plan_facts(plan, backend)

    def time(self, plan: BayesianLinearPlan) -> FitTime:
        """See `BayesianLinearRegression.time`."""
        return self.method.time(None, plan)

    def computations(self, facts: DatasetInfo, plan: BayesianLinearPlan) -> Sequence[tuple[Computation, int]]:
        """Each release is one sum."""
        holders = len(plan.holders)
        return [(VectorSum(num_parties=holders, num_values=one.num_values), 1) for one in plan.releases]

    def fit(self, data: VerticalDataset | Session, plan: BayesianLinearPlan, *, run_dir: Path, resume: bool) -> Any:
        """See `CommandMethod`."""
        return self.method.fit(data, plan=plan, run_dir=run_dir, resume=resume, allow_long=True)

    def report(self, result: BayesianLinearRegression) -> BayesianLinearReport:
        """See `CommandMethod`."""
        return BayesianLinearReport(result=result, run=self.run_facts(result.plan_, {}))


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
        return self.method.plan(facts, **settings, **fit, max_unreliable=_unreliable(self.config))

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
