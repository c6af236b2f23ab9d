"""`--method vertimrf`: a Markov random field instead of a NumPyro model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from vertinumpyro.cli import outputs
from vertinumpyro.cli.of_tables import OfTables
from vertinumpyro.cli.terminal import console
from vertinumpyro.cli.wording import count
from vertinumpyro.core.compat import random_key
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable
from vertinumpyro.mrf import MarkovTwin, MRFPlan
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.privacy import Plan
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


class OfVertiMRF(OfTables):
    """Noisy tables of columns, and the field that fits them."""

    name = "vertimrf"
    what = "VertiMRF"
    own_settings: Mapping[str, tuple[str, ...]] = {**OfTables.own_settings, "model": ()}

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"encoder {self.method.encoder}"

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
        blocks = result.synthetic_blocks(self.config.run.num_synthetic, rng_key=key)
        self._twin, self._num_synthetic = outputs.write_blocks(blocks, run_dir)
        return FILES

    def items(self, result: MarkovTwin) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        return [*outputs.adversary_figure(result.plan), *self.twin_items(result.marginals, result.schema)]

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
