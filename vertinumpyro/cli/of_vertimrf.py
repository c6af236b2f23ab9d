"""`--method vertimrf`: a Markov random field instead of a NumPyro model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from vertinumpyro.cli import outputs
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import CommandMethod, given
from vertinumpyro.cli.terminal import console
from vertinumpyro.cli.wording import count
from vertinumpyro.core.compat import random_key
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable, pairwise_tvd, plot_pairwise_tvd
from vertinumpyro.mrf import MarkovTwin, MRFPlan, VertiMRF
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.privacy import Plan
from vertinumpyro.secure import BACKENDS
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Session

__all__ = ["OfVertiMRF"]

FILES = {
    "synthetic.csv": "the synthetic twin",
    "synthetic.parquet": "the same, with its types",
    "privacy.json": "the plan, and how much of it is spent",
    "field.npz": "the released field; further tables cost nothing",
    "released.npz": "the noisy tables that it was made from",
    "report.html": "guarantees, configuration",
}

_OF_THE_PLAN = ("cross_share", "recovery_share", "refinement_share")
_PRIVACY = ("epsilon", "delta", "adversary", "relation", "noise", "collusion_threshold")


class OfVertiMRF(CommandMethod):
    """Noisy tables of columns, and the field that fits them."""

    name = "vertimrf"
    plan_class = MRFPlan
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": (*_PRIVACY, "allow_unproven"),
        "fit": ("backend",),
        "model": (),
    }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        settings = {k: v for k, v in given(config.mrf).items() if k not in _OF_THE_PLAN}
        allow = bool(config.privacy.allow_unproven)
        self.method = VertiMRF(**settings, allow_unproven=allow, backend=BACKENDS[config.fit.backend]())

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"encoder {self.method.encoder}"

    def checked(self) -> Sequence[str]:
        """The columns in cells."""
        columns = self.method.columns(self.config.schema)
        return [f"{count(sum(column.num_cells for column in columns), 'cell')} of {count(len(columns), 'column')}"]

    def plan(self, facts: Facts) -> MRFPlan:
        """See `CommandMethod`."""
        privacy = {k: v for k, v in given(self.config.privacy).items() if k in _PRIVACY}
        shares = {k: v for k, v in given(self.config.mrf).items() if k in _OF_THE_PLAN}
        return self.method.plan(facts, **privacy, **shares)

    def facts(self, plan: MRFPlan) -> dict[str, str]:
        """See `CommandMethod`."""
        return {
            "method": f"VertiMRF, encoder {self.method.encoder}",
            "records N (public)": f"{plan.num_records:,}",
            "releases": f"{plan.num_steps:,}",
            "tables across parties": f"{plan.num_cross_pairs:,}",
            "part of the budget for them": f"{plan.cross_share:g}",
            "noise": f"{plan.noise.kind}, {count(plan.noise.num_shares, 'share')}",
            "backend": self.method.backend.info().name,
            "plan": plan.plan_id[:16],
        }

    def computations(self, facts: Facts, plan: MRFPlan) -> Sequence[tuple[Computation, int]]:
        """See `VertiMRF.computations`."""
        return self.method.computations(facts, plan)

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> MarkovTwin:
        """See `CommandMethod`."""
        with console.status("[dim]tables, then the field …"):
            return self.method.fit(data, plan, run_dir=run_dir, resume=resume)

    def stored(self, run_dir: Path, plan: Plan) -> MarkovTwin | None:
        """The field; `MarkovTwin.load` compares its plan with the record."""
        return MarkovTwin.load(run_dir) if (run_dir / FIELD).exists() else None

    def save(self, result: MarkovTwin, run_dir: Path) -> None:
        """See `CommandMethod`."""
        result.save(run_dir)

    def outputs(self, result: MarkovTwin, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """The twin."""
        key = jax.random.split(random_key(self.config.run.seed))[1]
        self._twin = result.sample_synthetic(self.config.run.num_synthetic, rng_key=key)
        outputs.write_tables(self._twin, run_dir)
        return FILES

    def items(self, result: MarkovTwin) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        return [*outputs.adversary_figure(result.plan), outputs.synthetic_summary(self._twin, result.schema)]

    def internal_items(self, result: MarkovTwin, dataset: VerticalDataset) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        if not outputs.can_draw():
            return ()
        real, schema = dataset.to_frame(), dataset.schema
        distances = plot_pairwise_tvd(pairwise_tvd(real, self._twin, schema), schema)
        caption = "Distance of every pair of columns from the real table; pairs across parties are outlined."
        return [
            outputs.marginals(real, self._twin, schema),
            ReportFigure(figure=distances, caption=caption, not_dp=True, section="Pairs of columns"),
        ]

    def report(
        self, result: MarkovTwin, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        lost = [f"Spent, and lost in a crash: {name}." for name in result.missing]
        text = (
            f"Released: noisy tables of {count(facts.num_records, 'record')} whose columns sit at "
            f"{', '.join(facts.parties)}, and all that follows from them: a Markov random field and this table."
        )
        return outputs.assembled(
            result.plan,
            items,
            title="A private synthetic twin",
            summary=self.released(text),
            facts=self.facts(result.plan),
            configuration={"field": repr(result), "seed of the twin's randomness": str(self.config.run.seed)},
            secure_noise=result.secure_noise,
            warnings=[*lost, *([simulated] if simulated else [])],
        )
