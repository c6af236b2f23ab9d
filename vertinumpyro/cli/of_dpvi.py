"""`--method dpvi`: variational inference of a NumPyro model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from vertinumpyro.cli import outputs
from vertinumpyro.cli.beside_posterior import public_items
from vertinumpyro.cli.beside_release import beside_the_release
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import CommandMethod
from vertinumpyro.cli.model_loading import build_dpvi
from vertinumpyro.cli.terminal import console
from vertinumpyro.cli.wording import at_most, count, plan_facts
from vertinumpyro.core import compat
from vertinumpyro.core.compat import random_key
from vertinumpyro.data import Facts, TableFacts, VerticalDataset
from vertinumpyro.dpvi import Posterior, TwinColumns
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable
from vertinumpyro.privacy import Plan, PrivacyPlan
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Session

__all__ = ["OfDPVI"]

_TABLES = {"marginals.npz": "the noisy tables that it started from: further models cost nothing"}


class OfDPVI(CommandMethod):
    """A NumPyro model, the library's mixture where the configuration names none."""

    name = "dpvi"
    plan_class = PrivacyPlan
    own_settings: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.method = build_dpvi(config)
        self._twin: pd.DataFrame | None = None  # or of a long one its first block
        self._num_synthetic: int | None = None

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"model {self.config.model.function or 'the mixture'}"

    def checked(self) -> Sequence[str]:
        """The model's contract."""
        split = self.method.split(self.config.schema)
        chosen = self.method.model is None and self.method.num_components is None
        more = ["where the steps start from noisy tables, a component for 400 records, 20 to 200"] if chosen else []
        return [
            f"{count(split.num_components, 'component')}, {count(split.num_values, 'released value')} a step",
            *more,
            "every observed site reads one party's columns, record by record",
        ]

    def plan(self, facts: Facts) -> PrivacyPlan:
        """See `CommandMethod`."""
        privacy, fit = self.config.budget, self.config.fit
        settings: dict[str, Any] = dataclasses.asdict(privacy)
        names = ("num_steps", "batch_size", "clip_norm", "clip", "residual_bound")
        settings |= {name: getattr(fit, name) for name in names}
        return self.method.plan(facts, **{key: value for key, value in settings.items() if value is not None})

    @classmethod
    def plan_facts(cls, plan: PrivacyPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return plan_facts(plan, backend)

    def facts(self, plan: PrivacyPlan) -> dict[str, str]:
        """With the memory that the model takes."""
        memory = self.method.memory(TableFacts(self.config.schema, plan.num_records), plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def computations(self, facts: Facts, plan: PrivacyPlan) -> Sequence[tuple[Computation, int]]:
        """One clipped sum a step."""
        return self.method.computations(facts, plan)

    def fit(self, data: VerticalDataset | Session, plan: PrivacyPlan, *, run_dir: Path, resume: bool) -> Posterior:
        """See `CommandMethod`."""
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.method.fit(data, plan, key, run_dir=run_dir, resume=resume, progress_bar=console.is_terminal)

    def stored(self, run_dir: Path, plan: Plan) -> Posterior | None:
        """See `outputs.stored_posterior`."""
        return outputs.stored_posterior(run_dir, plan, self.method.load)

    def save(self, result: Posterior, run_dir: Path) -> None:
        """See `CommandMethod`."""
        result.save(run_dir / outputs.POSTERIOR)
        if result.marginals is not None:
            result.marginals.save(run_dir)

    def outputs(self, result: Posterior, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """The twin, unless the model cannot draw one by itself, which the plan said."""
        tables = {} if result.marginals is None else _TABLES
        if not self._twin_columns(result).needs_nothing:
            return {**outputs.files(with_table=False), **tables}
        blocks = result.synthetic_blocks(self.config.run.num_synthetic, rng_key=self._twin_key)
        self._twin, self._num_synthetic = outputs.write_blocks(blocks, run_dir)
        return {**outputs.FILES, **tables}

    def notes(self, result: Posterior) -> Sequence[str]:
        """See `CommandMethod`."""
        missing = [] if self._twin is not None else [f"no synthetic table: {self._twin_columns(result).describe()}"]
        return [*missing, f"posterior.npz: {result.spread_note}"]

    def _twin_columns(self, result: Posterior) -> TwinColumns:
        return self.method.twin_columns(result.guide.split.schema)

    @property
    def _twin_key(self) -> jax.Array:
        return jax.random.split(compat.random_key(self.config.run.seed))[1]

    def items(self, result: Posterior) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        released = result.marginals
        beside = () if released is None or self._twin is None else beside_the_release(released, self._twin)
        return [*public_items(result, self._twin, self._twin_key, self._num_synthetic), *beside]

    def internal_items(self, result: Posterior, dataset: VerticalDataset) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        return list(outputs.internal_items(result, dataset, self._twin))

    def report(
        self, result: Posterior, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        twin = self._twin_columns(result)
        follows = "the posterior and this synthetic table" if twin.needs_nothing else "the posterior"
        warm = isinstance(result.plan, PrivacyPlan) and result.plan.start is not None
        tables = "noisy tables of pairs of columns, from which the steps started, and " if warm else ""
        text = (
            f"Released: {tables}noisy gradients of a model of {count(facts.num_records, 'record')} whose columns sit "
            f"at {', '.join(facts.parties)}, and all that follows from them: {follows}."
        )
        note = [] if twin.is_whole else self.released(f"Note: {twin.describe()}.")
        return outputs.report_content(
            result,
            self.method,
            title="A private synthetic twin" if twin.needs_nothing else "A private posterior",
            summary=[*self.released(text), *note, *self.released(f"Of the posterior, {result.spread_note}.")],
            items=list(items),
            extra_configuration={"seed of the model's randomness": str(self.config.run.seed)},
        )
