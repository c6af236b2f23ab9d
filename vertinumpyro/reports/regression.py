"""Reports of regressions learned from noisy sums: coefficients, and what they predict."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from scipy.special import expit

from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import write_in_blocks
from vertinumpyro.evaluation import Predicted, ReportFigure, ReportTable, plot_survival, prediction_items
from vertinumpyro.glm import GLMPosterior, VerticalGLM
from vertinumpyro.mrf import Marginals, MRFPlan
from vertinumpyro.mrf.marginals import MARGINALS
from vertinumpyro.mrf.releases import RELEASED
from vertinumpyro.privacy import GradientPlan
from vertinumpyro.regression import (
    BayesianLinearPlan,
    BayesianLinearRegression,
    FunctionalMechanismPlan,
    VerticalLinearRegression,
    VerticalLogisticRegression,
)
from vertinumpyro.regression.bayesian_linear import STATISTICS
from vertinumpyro.regression.noisy_moments import MOMENTS
from vertinumpyro.reports.plain_language import count, holder_facts, report_facts
from vertinumpyro.reports.release import table_facts
from vertinumpyro.reports.run_report import (
    COEFFICIENTS,
    NARROW,
    POSTERIOR,
    POSTERIOR_FILES,
    REPORT,
    DrawnTwin,
    RunFacts,
    RunReport,
    adversary_figure,
    can_draw,
)

_INTERVAL = 1.959963984540054
_SURVIVAL = "Survival"


class _CoefficientReport(RunReport):
    """Of a fitted estimator: its coefficients, in a table and a file."""

    @property
    def plan(self) -> Any:
        """See `RunReport`."""
        return self.result.plan_

    @property
    def secure_noise(self) -> bool:
        """See `RunReport`."""
        return self.result.secure_noise_

    @abc.abstractmethod
    def coefficients(self) -> pd.DataFrame:
        """A row for each term."""

    @property
    @abc.abstractmethod
    def _caption(self) -> str:
        """What the coefficients are."""

    def verdict(self) -> Sequence[str]:
        """Of how many features the association is clear of noise and chance, where there are intervals."""
        table = self.coefficients().drop(index=["(intercept)", "intercept"], errors="ignore")
        low, high = (table.get(a, table.get(b)) for a, b in (("low 95%", "low"), ("high 95%", "high")))
        if low is None or high is None:
            return ()
        clear, of = int(((low > 0) | (high < 0)).sum()), count(len(table), "coefficient")
        if not clear:
            return [f"Noise or chance hides every association: no 95% interval of {of} excludes 0."]
        return [
            f"Of {of} {clear} {'is' if clear == 1 else 'are'} clear of noise and chance: the 95% interval excludes 0."
        ]

    def save(self, folder: Path) -> None:
        """The coefficients; a release of sums is in the run's own file."""
        write_in_blocks(folder / COEFFICIENTS, [self.coefficients().reset_index()])

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        table = ReportTable(frame=self.coefficients(), caption=self._caption, not_dp=False, section="Coefficients")
        return [*adversary_figure(self.plan), table]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RegressionReport(_CoefficientReport):
    """Of a linear or logistic regression by the functional mechanism."""

    result: VerticalLinearRegression | VerticalLogisticRegression
    run: RunFacts

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

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return {
            COEFFICIENTS: "coefficients with intervals that know the noise",
            "privacy.json": POSTERIOR_FILES["privacy.json"],
            MOMENTS: "the noisy sums that they follow from; further fits cost nothing",
            REPORT: "guarantees, coefficients, configuration",
        }

    def coefficients(self) -> pd.DataFrame:
        """A row for the intercept and for every coefficient."""
        fitted, table = self.result, _estimates(self.result)
        if fitted.estimator == "noise_aware":
            table[["low 95%", "high 95%"]] = fitted.intervals()
        return table

    def verdict(self) -> Sequence[str]:
        """See `_CoefficientReport`; that noise hides everything is known without intervals, too."""
        if self.result.status_ == "noise only":
            return [f"Noise hides every association with {self.plan.layout.label}: the coefficients are noise only."]
        return super().verdict()

    @property
    def _caption(self) -> str:
        return f"Coefficients per unit of a scaled feature; the fit is {self.result.status_}."

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
class BayesianLinearReport(_CoefficientReport):
    """Of a Bayesian linear regression from the sum of everybody's statistics."""

    result: BayesianLinearRegression
    run: RunFacts

    @staticmethod
    def plan_facts(plan: BayesianLinearPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        pooled = {"records N (public)": f"{plan.num_records:,}", "noise": f"discrete Gaussian, {plan.mechanism}"}
        return {
            "method": "Bayesian linear regression",
            "releases": f"{plan.num_steps:,}",
            "features": f"{plan.num_features:,}",
            **holder_facts(plan, backend),
            **({} if plan.holders else pooled),
        }

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return {
            COEFFICIENTS: "posterior means with 95% intervals that know the noise",
            "privacy.json": POSTERIOR_FILES["privacy.json"],
            STATISTICS: "the noisy sums that they follow from",
            REPORT: "guarantees, coefficients, configuration",
        }

    def coefficients(self) -> pd.DataFrame:
        """A row for every coefficient."""
        fitted = self.result
        names = getattr(fitted, "feature_names_in_", range(1, len(fitted.coef_) + 1))
        half = _INTERVAL * np.sqrt(np.diag(fitted.covariance_))
        columns = {"estimate": fitted.coef_, "low 95%": fitted.coef_ - half, "high 95%": fitted.coef_ + half}
        return pd.DataFrame(columns, index=pd.Index(names, name="term"))

    @property
    def _caption(self) -> str:
        return f"Posterior means and 95% intervals: {self._label} per unit of each feature, both in the tables' units."

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


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VerticalGLMReport(_CoefficientReport):
    """Of a generalised linear model learned by noisy gradients."""

    result: VerticalGLM
    run: RunFacts
    profiles: pd.DataFrame | None = None

    @staticmethod
    def plan_facts(plan: GradientPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        return {**report_facts(plan, backend), "method": "generalised linear model, by DPVI"}

    def save(self, folder: Path) -> None:
        """The coefficients, and the posterior that they follow from."""
        super().save(folder)
        self.result.posterior_.save(folder / POSTERIOR)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return _glm_files(
            "coefficients with 95% intervals that know the noise"
            if self.result.posterior_.is_interval
            else "coefficients, which have no intervals"
        )

    def coefficients(self) -> pd.DataFrame:
        """A row for the intercept, for each number and for each value of a column over its first."""
        found = self.result.summary().frame.drop(columns="std err", errors="ignore")
        found.columns = pd.Index(["estimate", "low 95%", "high 95%"][: len(found.columns)])
        return found.rename_axis("term")

    @property
    def _caption(self) -> str:
        told = (
            "with 95% intervals that know the noise" if self.result.posterior_.is_interval else "they have no intervals"
        )
        return f"Coefficients per unit of a scaled feature, or of a column's value over its first; {told}."

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`; of a survival its hazard ratios and curves, too."""
        if self.result.family != "survival":
            return super().items(twin)
        ratios = ReportTable(
            frame=self.result.hazard_ratios().rename_axis("hazard ratio"), not_dp=False, section=_SURVIVAL,
            caption="Hazard ratios, medians, with 95% intervals that know the noise where there are any.",
        )  # fmt: skip
        return [*super().items(twin), ratios, *self._curves()]

    def _curves(self) -> list[ReportFigure]:
        if not can_draw():
            return []
        curves = self.result.survival_curves(self.profiles)
        whose = "the reference profile: middles and first values" if self.profiles is None else "the chosen profiles"
        return [
            ReportFigure(
                figure=plot_survival(curves), narrow=plot_survival(curves, width=NARROW), not_dp=False,
                caption=f"Survival of {whose}, by {self.result.time}; bands are 95% intervals at each time.",
                section=_SURVIVAL,
            )
        ]  # fmt: skip

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """Of a survival the concordance with the records that it was fitted to."""
        if self.result.family != "survival":
            return ()
        found = pd.DataFrame({"concordance": [self.result.score(dataset)]}, index=pd.Index(["Harrell's C"]))
        caption = "How often who has the larger hazard has the event first, of the records that it was fitted to."
        return [ReportTable(frame=found, caption=caption, not_dp=True, section=_SURVIVAL)]

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return f"A private regression of {self._label}"

    @property
    def _label(self) -> str:
        return self.result.model_kwargs_["label"]

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        plan = self.plan
        return [
            f"Released: noisy sums of clipped gradients over {count(plan.num_records, 'record')} whose columns sit at "
            f"{', '.join(plan.parties)}, and all that follows from them: this {self.result.family} regression of "
            f"{self._label}.",
            *(f"{note}." for note in self.result.posterior_.reading_notes),
        ]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        return {"family": self.result.family, "guide": self.result.guide}


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MarginalGLMReport(_CoefficientReport):
    """Of a regression learned from released tables."""

    result: GLMPosterior
    run: RunFacts
    released: Marginals | None = None

    @property
    def plan(self) -> MRFPlan:
        """See `RunReport`."""
        return self.result.posterior.plan

    @property
    def secure_noise(self) -> bool:
        """See `RunReport`."""
        return self.result.posterior.secure_noise

    @staticmethod
    def plan_facts(plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        return table_facts(plan, backend, "noisy tables, and a regression learned from them")

    def save(self, folder: Path) -> None:
        """Coefficients, posterior and tables, unless the run's folder has them as it released them."""
        super().save(folder)
        self.result.posterior.save(folder / POSTERIOR)
        if self.released is not None and not (folder / RELEASED).exists():
            self.released.save(folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        tables = "the noisy tables that it was learned from; further regressions cost nothing"
        return {
            **_glm_files("posterior means with 95% intervals that know the noise"),
            **dict.fromkeys((RELEASED, MARGINALS), tables),
        }

    def coefficients(self) -> pd.DataFrame:
        """A row for the intercept and for every coefficient."""
        return self.result.summary().rename_axis("term")

    @property
    def _caption(self) -> str:
        return "Posterior means and 95% intervals; ratios are of a coefficient's exponential."

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return "A private regression"

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        plan = self.plan
        return [
            f"Released: noisy tables of {count(plan.num_records, 'record')} whose columns sit at "
            f"{', '.join(plan.parties)}, and all that follows from them: this {self.result.family} regression."
        ]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        return {"family": self.result.family, "draws": f"{self.result.num_samples:,}"}


def _glm_files(coefficients: str) -> dict[str, str]:
    return {
        COEFFICIENTS: coefficients,
        **{name: POSTERIOR_FILES[name] for name in ("privacy.json", POSTERIOR)},
        REPORT: "guarantees, coefficients, configuration",
    }


def _estimates(fitted: VerticalGLM | VerticalLinearRegression | VerticalLogisticRegression) -> pd.DataFrame:
    names = ["(intercept)", *fitted.feature_names()]
    return pd.DataFrame({"estimate": [fitted.intercept_, *fitted.coef_]}, index=pd.Index(names, name="term"))
