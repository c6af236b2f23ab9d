"""`--method bayesian_linear` and `horizontal`: organisations that hold whole records, each other ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from vertinumpyro.cli import outputs
from vertinumpyro.cli.beside_posterior import public_items
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import CommandMethod, given
from vertinumpyro.cli.model_loading import build_dpvi
from vertinumpyro.cli.terminal import console
from vertinumpyro.cli.wording import count
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.dpvi.horizontal import HorizontalDPVI
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable
from vertinumpyro.privacy import ClientPlan, Plan
from vertinumpyro.regression import BayesianLinearRegression, RegressionPlan
from vertinumpyro.secure import VectorSum
from vertinumpyro.secure.computation import Computation
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import Session

__all__ = ["OfBayesianLinear", "OfHorizontal"]

COEFFICIENTS = "coefficients.csv"
_INTERVAL = 1.959963984540054
_COEFFICIENT_FILES = {
    COEFFICIENTS: "posterior means with 95% intervals that know the noise",
    "privacy.json": "the plan, and how much of it is spent",
    "statistics.npz": "the noisy sums that they follow from",
    "report.html": "guarantees, coefficients, configuration",
}


def _unreliable(config: Config) -> int:
    """T: a holder always knows its own noise, so coalitions of c are covered where c - 1 others may join it."""
    return max(0, (config.privacy.collusion_threshold or 0) - 1)


def _facts(plan: Any, backend: str) -> dict[str, str]:
    return {
        "records N (public)": f"{plan.num_records:,}, together at {', '.join(plan.holders)}",
        "noise": f"discrete Gaussian, {count(len(plan.holders), 'share')}, one from each holder",
        "backend": backend,
        "plan": plan.plan_id[:16],
    }


class OfBayesianLinear(CommandMethod):
    """Bayesian linear regression from the sum of all holders' statistics."""

    name = "bayesian_linear"
    plan_class = RegressionPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": ("epsilon", "delta", "collusion_threshold"),
        "fit": ("backend",),
        "model": (),
        "mrf": (),
        "regression": ("label", "noise_variance", "prior_variance", "projection"),
    }
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

    def plan(self, facts: Facts) -> RegressionPlan:
        """See `CommandMethod`."""
        return self.method.plan(facts)

    @classmethod
    def plan_facts(cls, plan: RegressionPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        shown = {"method": "Bayesian linear regression", "releases": f"{plan.num_steps:,}"}
        return {**shown, "features": f"{plan.num_features:,}", **_facts(plan, backend)}

    def computations(self, facts: Facts, plan: RegressionPlan) -> Sequence[tuple[Computation, int]]:
        """Each release is one sum."""
        holders = len(plan.holders)
        return [(VectorSum(num_parties=holders, num_values=one.num_values), 1) for one in plan.releases]

    def fit(self, data: VerticalDataset | Session, plan: RegressionPlan, *, run_dir: Path, resume: bool) -> Any:
        """See `CommandMethod`."""
        return self.method.fit(data, plan=plan, run_dir=run_dir, resume=resume)

    def save(self, result: Any, run_dir: Path) -> None:
        """The coefficients; the release itself is in `statistics.npz`."""
        outputs.write_table(self._table(result).reset_index(), run_dir / COEFFICIENTS)

    def outputs(self, result: Any, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """Nothing but what is saved."""
        return _COEFFICIENT_FILES

    def _table(self, fitted: Any) -> pd.DataFrame:
        half = _INTERVAL * np.sqrt(np.diag(fitted.covariance_))
        columns = {"estimate": fitted.coef_, "low 95%": fitted.coef_ - half, "high 95%": fitted.coef_ + half}
        return pd.DataFrame(columns, index=pd.Index(fitted.feature_names_in_, name="term"))

    def items(self, result: Any) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        label = self.config.regression.label
        caption = f"Posterior means and 95% intervals: {label} per unit of each feature, both in the tables' units."
        table = ReportTable(frame=self._table(result), caption=caption, not_dp=False, section="Coefficients")
        return [*outputs.adversary_figure(result.plan_), table]

    def report(
        self, result: Any, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        plan = result.plan_
        text = (
            f"Released: noisy sums over {count(facts.num_records, 'record')} that are at {', '.join(plan.holders)}, "
            f"and all that follows from them: this linear regression of {self.config.regression.label}."
        )
        return outputs.assembled(
            plan,
            items,
            title=f"A private regression of {self.config.regression.label}",
            summary=self.released(text),
            facts=self.facts(plan),
            configuration={"posterior": result.posterior, "noise variance λ": f"{result.noise_variance:g}"},
            secure_noise=result.secure_noise_,
            warnings=[simulated] if simulated else [],
        )


class OfHorizontal(CommandMethod):
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
        self._twin: pd.DataFrame | None = None  # or of a long one its first block
        self._num_synthetic: int | None = None

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

    def plan(self, facts: Facts) -> ClientPlan:
        """See `CommandMethod`."""
        settings = {key: value for key, value in given(self.config.privacy).items() if key != "collusion_threshold"}
        fit = {key: value for key, value in given(self.config.fit).items() if key in self._of_the_plan}
        return self.method.plan(facts, **settings, **fit, max_unreliable=_unreliable(self.config))

    @classmethod
    def plan_facts(cls, plan: ClientPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        expected = f"{plan.expected_batch_size:,.0f} records expected a step, drawn by each holder from its own"
        return {
            "method": "DPVI on whole records",
            "steps": f"{plan.num_gradients:,}",
            "batches": "all records in every step" if plan.expected_batch_size == plan.num_records else expected,
            "clip norm C": f"{plan.clip_norm:g}",
            "noise multiplier σ": f"{plan.noise_multiplier:g}",
            **_facts(plan, backend),
        }

    def computations(self, facts: Facts, plan: ClientPlan) -> Sequence[tuple[Computation, int]]:
        """A sum a step."""
        size = self.dpvi.split(facts.schema).num_values
        return [(VectorSum(num_parties=len(plan.holders), num_values=size), plan.num_gradients)]

    def fit(self, data: VerticalDataset | Session, plan: ClientPlan, *, run_dir: Path, resume: bool) -> Posterior:
        """See `CommandMethod`."""
        assert isinstance(data, Session)
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.method.fit(data, plan, key, run_dir=run_dir, resume=resume, progress_bar=console.is_terminal)

    def stored(self, run_dir: Path, plan: Plan) -> Posterior | None:
        """See `outputs.stored_posterior`."""
        return outputs.stored_posterior(run_dir, plan, self.dpvi.load)

    def save(self, result: Posterior, run_dir: Path) -> None:
        """See `CommandMethod`."""
        result.save(run_dir / outputs.POSTERIOR)

    def outputs(self, result: Posterior, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """The twin, unless the model cannot draw one by itself, which the plan said."""
        if not self.dpvi.twin_columns(result.guide.split.schema).needs_nothing:
            return outputs.files(with_table=False)
        blocks = result.synthetic_blocks(self.config.run.num_synthetic, rng_key=self._twin_key)
        self._twin, self._num_synthetic = outputs.write_blocks(blocks, run_dir)
        return outputs.FILES

    def notes(self, result: Posterior) -> Sequence[str]:
        """See `CommandMethod`."""
        lacks = self.dpvi.twin_columns(result.guide.split.schema)
        missing = [] if self._twin is not None else [f"no synthetic table: {lacks.describe()}"]
        return [*missing, f"posterior.npz: {result.spread_note}"]

    def items(self, result: Posterior) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        return list(public_items(result, self._twin, self._twin_key, self._num_synthetic))

    @property
    def _twin_key(self) -> jax.Array:
        return jax.random.split(random_key(self.config.run.seed))[1]

    def report(
        self, result: Posterior, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        plan = result.plan
        assert isinstance(plan, ClientPlan)
        what = "the posterior" if self._twin is None else "the posterior and this synthetic table"
        text = (
            f"Released: noisy gradients of a model of {count(facts.num_records, 'record')} that are at "
            f"{', '.join(plan.holders)}, and all that follows from them: {what}."
        )
        return outputs.assembled(
            plan,
            items,
            title="A private posterior" if self._twin is None else "A private synthetic twin",
            summary=[*self.released(text), *self.released(f"Of the posterior, {result.spread_note}.")],
            facts=self.facts(plan),
            configuration={
                **outputs.configuration(result, self.dpvi),
                "seed of the model's randomness": str(self.config.run.seed),
            },
            secure_noise=result.secure_noise,
            warnings=[simulated] if simulated else [],
        )
