"""`--method logistic` and `linear`: one regression across parties, by the functional mechanism."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
from scipy.special import expit

from vertinumpyro.cli import outputs
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import CommandMethod, given
from vertinumpyro.cli.wording import at_most, count
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, TableFacts, VerticalDataset
from vertinumpyro.evaluation import Predicted, ReportContent, ReportFigure, ReportTable, prediction_items
from vertinumpyro.regression import FunctionalMechanismPlan, VerticalLinearRegression, VerticalLogisticRegression
from vertinumpyro.secure import BACKENDS
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Session

__all__ = ["OfLinear", "OfLogistic"]

COEFFICIENTS = "coefficients.csv"
FILES = {
    COEFFICIENTS: "coefficients with intervals that know the noise",
    "privacy.json": "the plan, and how much of it is spent",
    "moments.npz": "the noisy sums that they follow from; further fits cost nothing",
    "report.html": "guarantees, coefficients, configuration",
}

_PRIVACY = ("epsilon", "delta", "adversary", "relation", "collusion_threshold")
_OF_THE_PLAN = ("features", "expand", "feature_bits")
_OF_THE_ESTIMATORS = ("estimator", "ridge", "prior_variance", "surrogate", "score_range", "threshold")


class _OfRegression(CommandMethod):
    """What both regressions share."""

    plan_class = FunctionalMechanismPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": _PRIVACY,
        "fit": ("backend",),
        "model": (),
        "regression": ("label", *_OF_THE_PLAN, *_OF_THE_ESTIMATORS),
    }
    estimator: ClassVar[type]
    kind: ClassVar[Literal["event", "real"]]

    @staticmethod
    @abc.abstractmethod
    def predicted(fitted: Any, dataset: VerticalDataset) -> np.ndarray:
        """Means of the label `[N]` in model units, of two classes the second's probability."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.regression.label is None:
            raise ArgumentError(
                f'[regression] label: --method {self.name} needs the column to predict; add label = "…"'
            )
        if config.privacy.epsilon is None:
            raise ArgumentError(f"[privacy] epsilon: --method {self.name} needs one")
        settings = {k: v for k, v in given(config.regression).items() if k not in (*_OF_THE_PLAN, "label")}
        self.method = self.estimator(**settings, backend=BACKENDS[config.fit.backend]())

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"{self.name} regression of {self.config.regression.label}"

    def checked(self) -> Sequence[str]:
        """The label and the features."""
        return [f"label {self.config.regression.label}"]

    def plan(self, facts: Facts) -> FunctionalMechanismPlan:
        """See `CommandMethod`."""
        privacy = {k: v for k, v in given(self.config.privacy).items() if k in _PRIVACY}
        own = {k: v for k, v in given(self.config.regression).items() if k in _OF_THE_PLAN}
        label = self.config.regression.label
        return self.method.plan(facts.schema, label, num_records=facts.num_records, **privacy, **own)

    @classmethod
    def plan_facts(cls, plan: FunctionalMechanismPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        noise = "discrete Laplace, pure ε" if plan.pure else "discrete Gaussian"
        return {
            "method": f"functional mechanism, {plan.model} regression of {plan.layout.label}",
            "records N (public)": f"{plan.num_records:,}",
            "coordinates": f"{plan.layout.size:,}, at {', '.join(plan.parties)}",
            "releases": f"{plan.num_steps:,}",
            "noise": f"{noise}, {count(len(plan.parties), 'share')} on products across parties",
            "backend": backend,
            "plan": plan.plan_id[:16],
        }

    def facts(self, plan: FunctionalMechanismPlan) -> dict[str, str]:
        """With the memory that the features take."""
        memory = self.method.memory(TableFacts(self.config.schema, plan.num_records), plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def computations(self, facts: Facts, plan: FunctionalMechanismPlan) -> Sequence[tuple[Computation, int]]:
        """See `VerticalEstimator.computations`."""
        return self.method.computations(facts, plan)

    def fit(
        self, data: VerticalDataset | Session, plan: FunctionalMechanismPlan, *, run_dir: Path, resume: bool
    ) -> Any:
        """See `CommandMethod`."""
        return self.method.fit(data, plan=plan, run_dir=run_dir, resume=resume)

    def save(self, result: Any, run_dir: Path) -> None:
        """The coefficients; the release itself is in `moments.npz`."""
        outputs.write_table(self._table(result).reset_index(), run_dir / COEFFICIENTS)

    def outputs(self, result: Any, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """Nothing but what is saved."""
        return FILES

    def _table(self, fitted: Any) -> pd.DataFrame:
        """A row for the intercept and for every coefficient."""
        names = ["(intercept)", *fitted.feature_names()]
        table = pd.DataFrame({"estimate": [fitted.intercept_, *fitted.coef_]}, index=pd.Index(names, name="term"))
        if fitted.estimator == "noise_aware":
            table[["low 95%", "high 95%"]] = fitted.intervals()
        return table

    def items(self, result: Any) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        table = ReportTable(
            frame=self._table(result),
            caption=f"Coefficients per unit of a scaled feature; the fit is {result.status_}.",
            not_dp=False,
            section="Coefficients",
        )
        return [*outputs.adversary_figure(result.plan_), table]

    def internal_items(self, result: Any, dataset: VerticalDataset) -> Sequence[ReportFigure | ReportTable]:
        """Observed against predicted labels of the records that it was fitted to, of a logistic one the ROC too."""
        label = result.plan_.layout.label
        observed = np.asarray(dataset.pooled()[label], np.float64)
        if not outputs.can_draw() or (self.kind == "event" and len(np.unique(observed)) < 2):
            return ()
        found = Predicted(observed, self.predicted(result, dataset))
        tables, figures = prediction_items({label: found}, kind=self.kind, records="the records it was fitted to")
        return [*tables, *figures]

    def report(
        self, result: Any, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        plan = result.plan_
        text = (
            f"Released: noisy sums of products over {count(facts.num_records, 'record')} whose columns sit at "
            f"{', '.join(plan.parties)}, and all that follows from them: this {plan.model} regression."
        )
        return outputs.assembled(
            plan,
            items,
            title=f"A private regression of {plan.layout.label}",
            summary=self.released(text),
            facts=self.facts(plan),
            configuration={"estimator": result.estimator, "status": result.status_},
            secure_noise=result.secure_noise_,
            warnings=[simulated] if simulated else [],
        )


class OfLinear(_OfRegression):
    """Least squares."""

    name = "linear"
    estimator = VerticalLinearRegression
    kind = "real"

    @staticmethod
    def predicted(fitted: Any, dataset: VerticalDataset) -> np.ndarray:
        """See `_OfRegression.predicted`."""
        return fitted.linear_predictor(dataset)

    def __init__(self, config: Config) -> None:
        for key in ("surrogate", "score_range", "threshold"):
            if getattr(config.regression, key) is not None:
                raise ArgumentError(f"[regression] {key} belongs to --method logistic; leave it out with linear")
        super().__init__(config)


class OfLogistic(_OfRegression):
    """Logistic regression."""

    name = "logistic"
    estimator = VerticalLogisticRegression
    kind = "event"

    @staticmethod
    def predicted(fitted: Any, dataset: VerticalDataset) -> np.ndarray:
        """See `_OfRegression.predicted`."""
        return expit(fitted.linear_predictor(dataset))
