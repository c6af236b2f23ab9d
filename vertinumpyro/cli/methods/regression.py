"""`--method logistic` and `linear`: one regression across parties, by the functional mechanism; and `bayesian_linear`,
of whole records at the parties, each other ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.config_sections import backend_of
from vertinumpyro.cli.methods.base import CommandMethod, given, max_unreliable
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, TableFacts, VerticalDataset
from vertinumpyro.privacy import FitTime
from vertinumpyro.regression import (
    BayesianLinearPlan,
    BayesianLinearRegression,
    FunctionalMechanismPlan,
    VerticalLinearRegression,
    VerticalLogisticRegression,
)
from vertinumpyro.reports.plain_language import at_most, count
from vertinumpyro.reports.regression import BayesianLinearReport, RegressionReport
from vertinumpyro.secure import VectorSum
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import Session

_PRIVACY = ("epsilon", "delta", "adversary", "relation", "collusion_threshold")
_OF_THE_PLAN = ("features", "expand", "feature_bits")
_OF_THE_ESTIMATORS = ("estimator", "ridge", "prior_variance", "surrogate", "score_range", "threshold")


class _RegressionCommand(CommandMethod):
    """What both regressions share."""

    plan_class = FunctionalMechanismPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": _PRIVACY,
        "fit": ("backend", "security"),
        "model": (),
        "regression": ("label", *_OF_THE_PLAN, *_OF_THE_ESTIMATORS),
    }
    own_sections = ("regression",)
    estimator: ClassVar[type]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.regression.label is None:
            raise ArgumentError(
                f'[regression] label: --method {self.name} needs the column to predict; add label = "…"'
            )
        if config.privacy.epsilon is None:
            raise ArgumentError(f"[privacy] epsilon: --method {self.name} needs one")
        settings = {k: v for k, v in given(config.regression).items() if k not in (*_OF_THE_PLAN, "label")}
        self.method = self.estimator(**settings, backend=backend_of(config.fit))

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"{self.name} regression of {self.config.regression.label}"

    def checked(self) -> Sequence[str]:
        """The label and the features."""
        return [f"label {self.config.regression.label}"]

    def plan(self, facts: DatasetInfo) -> FunctionalMechanismPlan:
        """See `CommandMethod`."""
        privacy = {k: v for k, v in given(self.config.privacy).items() if k in _PRIVACY}
        own = {k: v for k, v in given(self.config.regression).items() if k in _OF_THE_PLAN}
        label = self.config.regression.label
        return self.method.plan(facts.schema, label, num_records=facts.num_records, **privacy, **own)

    @classmethod
    def plan_facts(cls, plan: FunctionalMechanismPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return RegressionReport.plan_facts(plan, backend)

    @classmethod
    def is_verified(cls, plan: FunctionalMechanismPlan) -> bool:
        """Products of numbers within public bounds are."""
        return True

    def facts(self, plan: FunctionalMechanismPlan) -> dict[str, str]:
        """With the memory that the features take."""
        memory = self.method.memory(TableFacts(self.config.schema, plan.num_records), plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def time(self, plan: FunctionalMechanismPlan) -> FitTime:
        """See `VerticalEstimator.time`."""
        return self.method.time(TableFacts(self.config.schema, plan.num_records), plan)

    def forecast(self, plan: FunctionalMechanismPlan, earlier: Path | None = None) -> Mapping[str, Any]:
        """Which correlations with the label noise will hide."""
        return {**super().forecast(plan, earlier), "smallest_correlations": dict(plan.forecast.smallest)}

    def computations(self, facts: DatasetInfo, plan: FunctionalMechanismPlan) -> Sequence[tuple[Computation, int]]:
        """See `VerticalEstimator.computations`."""
        return self.method.computations(facts, plan)

    def fit(
        self, data: VerticalDataset | Session, plan: FunctionalMechanismPlan, *, run_dir: Path, resume: bool
    ) -> Any:
        """See `CommandMethod`."""
        return self.method.fit(data, plan=plan, run_dir=run_dir, resume=resume, allow_long=True)

    def report(self, result: Any) -> RegressionReport:
        """See `CommandMethod`."""
        return RegressionReport(result=result, run=self.run_facts(result.plan_, {}))


class LinearCommand(_RegressionCommand):
    """Least squares."""

    name = "linear"
    estimator = VerticalLinearRegression

    def __init__(self, config: Config) -> None:
        for key in ("surrogate", "score_range", "threshold"):
            if getattr(config.regression, key) is not None:
                raise ArgumentError(f"[regression] {key} belongs to --method logistic; leave it out with linear")
        super().__init__(config)


class LogisticCommand(_RegressionCommand):
    """Logistic regression."""

    name = "logistic"
    estimator = VerticalLogisticRegression


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
            max_unreliable=max_unreliable(config),
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
