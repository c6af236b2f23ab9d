"""Reports of regressions learned from noisy sums: coefficients, and what they predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd
from scipy.special import expit

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import write_in_blocks
from vertinumpyro.evaluation import Predicted, ReportFigure, ReportTable, prediction_items
from vertinumpyro.regression import (
    BayesianLinearRegression,
    FunctionalMechanismPlan,
    RegressionPlan,
    VerticalLinearRegression,
    VerticalLogisticRegression,
)
from vertinumpyro.regression.bayesian_linear import STATISTICS
from vertinumpyro.regression.noisy_moments import MOMENTS
from vertinumpyro.reports.plain_language import count, holder_facts
from vertinumpyro.reports.run_report import COEFFICIENTS, POSTERIOR_FILES, REPORT, DrawnTwin, RunFacts, RunReport
from vertinumpyro.reports.tables import adversary_figure, can_draw

_INTERVAL = 1.959963984540054


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RegressionReport(RunReport):
    """Of a linear or logistic regression by the functional mechanism."""

    result: VerticalLinearRegression | VerticalLogisticRegression
    run: RunFacts

    @property
    def plan(self) -> FunctionalMechanismPlan:
        """See `RunReport`."""
        return self.result.plan_

    @property
    def secure_noise(self) -> bool:
        """See `RunReport`."""
        return self.result.secure_noise_

    @staticmethod
    def plan_facts(plan: FunctionalMechanismPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
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

    def save(self, folder: Path) -> None:
        """The coefficients; the release itself is in the run's `moments.npz`."""
        _write_coefficients(self._coefficients(), folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return {
            COEFFICIENTS: "coefficients with intervals that know the noise",
            "privacy.json": POSTERIOR_FILES["privacy.json"],
            MOMENTS: "the noisy sums that they follow from; further fits cost nothing",
            REPORT: "guarantees, coefficients, configuration",
        }

    def _coefficients(self) -> pd.DataFrame:
        """A row for the intercept and for every coefficient."""
        fitted = self.result
        names = ["(intercept)", *fitted.feature_names()]
        table = pd.DataFrame({"estimate": [fitted.intercept_, *fitted.coef_]}, index=pd.Index(names, name="term"))
        if fitted.estimator == "noise_aware":
            table[["low 95%", "high 95%"]] = fitted.intervals()
        return table

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        caption = f"Coefficients per unit of a scaled feature; the fit is {self.result.status_}."
        return [*adversary_figure(self.plan), _coefficient_table(self._coefficients(), caption)]

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """Observed against predicted labels of the records that it was fitted to, of a logistic one the ROC too."""
        label, is_event = self.plan.layout.label, isinstance(self.result, VerticalLogisticRegression)
        observed = np.asarray(dataset.pooled()[label], np.float64)
        if not can_draw() or (is_event and len(np.unique(observed)) < 2):
            return ()
        means = self.result.linear_predictor(dataset)  # in model units, of two classes the second's log odds
        found = Predicted(observed, expit(means) if is_event else means)
        kind = "event" if is_event else "real"
        tables, figures = prediction_items({label: found}, kind=kind, records="the records it was fitted to")
        return [*tables, *figures]

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return f"A private regression of {self.plan.layout.label}"

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        plan = self.plan
        return [
            f"Released: noisy sums of products over {count(plan.num_records, 'record')} whose columns sit at "
            f"{', '.join(plan.parties)}, and all that follows from them: this {plan.model} regression."
        ]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        return {"estimator": self.result.estimator, "status": self.result.status_}


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BayesianLinearReport(RunReport):
    """Of a Bayesian linear regression from the sum of everybody's statistics."""

    result: BayesianLinearRegression
    run: RunFacts

    @property
    def plan(self) -> RegressionPlan:
        """See `RunReport`."""
        return self.result.plan_

    @property
    def secure_noise(self) -> bool:
        """See `RunReport`."""
        return self.result.secure_noise_

    @staticmethod
    def plan_facts(plan: RegressionPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        pooled = {"records N (public)": f"{plan.num_records:,}", "noise": f"discrete Gaussian, {plan.mechanism}"}
        return {
            "method": "Bayesian linear regression",
            "releases": f"{plan.num_steps:,}",
            "features": f"{plan.num_features:,}",
            **holder_facts(plan, backend),
            **({} if plan.holders else pooled),
        }

    def save(self, folder: Path) -> None:
        """The coefficients; the release itself is in the run's `statistics.npz`."""
        _write_coefficients(self._coefficients(), folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return {
            COEFFICIENTS: "posterior means with 95% intervals that know the noise",
            "privacy.json": POSTERIOR_FILES["privacy.json"],
            STATISTICS: "the noisy sums that they follow from",
            REPORT: "guarantees, coefficients, configuration",
        }

    def _coefficients(self) -> pd.DataFrame:
        fitted = self.result
        names = getattr(fitted, "feature_names_in_", range(1, len(fitted.coef_) + 1))
        half = _INTERVAL * np.sqrt(np.diag(fitted.covariance_))
        columns = {"estimate": fitted.coef_, "low 95%": fitted.coef_ - half, "high 95%": fitted.coef_ + half}
        return pd.DataFrame(columns, index=pd.Index(names, name="term"))

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        caption = (
            f"Posterior means and 95% intervals: {self._label} per unit of each feature, both in the tables' units."
        )
        return [*adversary_figure(self.plan), _coefficient_table(self._coefficients(), caption)]

    @property
    def _label(self) -> str:
        return self.result.target or "the target"

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return f"A private regression of {self._label}"

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        plan = self.plan
        where = f" that are at {', '.join(plan.holders)}" if plan.holders else ""
        return [
            f"Released: noisy sums over {count(plan.num_records, 'record')}{where}, "
            f"and all that follows from them: this linear regression of {self._label}."
        ]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        return {"posterior": self.result.posterior, "noise variance λ": f"{self.result.noise_variance:g}"}


def _write_coefficients(table: pd.DataFrame, folder: Path) -> None:
    write_in_blocks(folder / COEFFICIENTS, [table.reset_index()])


def _coefficient_table(table: pd.DataFrame, caption: str) -> ReportTable:
    return ReportTable(frame=table, caption=caption, not_dp=False, section="Coefficients")
