"""`--method marginals`: one release of noisy tables, and a NumPyro model learned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from vertinumpyro.cli import outputs
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.methods import given
from vertinumpyro.cli.model_loading import model_settings
from vertinumpyro.cli.of_tables import OfTables
from vertinumpyro.cli.terminal import console
from vertinumpyro.cli.wording import count
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable
from vertinumpyro.marginals import MarginalInference, MarginalPosterior, release_marginals
from vertinumpyro.mrf import Marginals, MRFPlan
from vertinumpyro.mrf.graphical_model import has_engine
from vertinumpyro.posterior.synthesis import rehearse_twin
from vertinumpyro.privacy import Plan
from vertinumpyro.session import Session

__all__ = ["OfMarginals"]

_FILES = {**outputs.FILES, "released.npz": "the noisy tables that it was learned from; further models cost nothing"}


class OfMarginals(OfTables):
    """The tables; then the model, without privacy cost."""

    name = "marginals"
    what = "noisy tables, and a NumPyro model learned from them"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if self.method.encoder != "secure_marginals":
            raise ArgumentError(f'[mrf] encoder = "{self.method.encoder}": --method marginals needs "secure_marginals"')
        self._released: Marginals | None = None
        law = "auto" if has_engine() else "tables"
        self.inference = MarginalInference(settings=self.method, law=law, **model_settings(config))

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"model {self.config.model.function or 'the mixture'}, from tables"

    def plan(self, facts: Facts) -> MRFPlan:
        """A plan for a model whose tables can be computed.

        :raises ModelContractError: they cannot, or the model breaks the contract; names the site.
        """
        plan = super().plan(facts)
        rehearse_twin(self.inference.rehearse(facts.schema, plan)).warn(stacklevel=2)
        return plan

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> MarginalPosterior:
        """See `CommandMethod`."""
        self.inference.rehearse(data.schema, plan)
        self._released = release_marginals(data, plan, self.method, run_dir=run_dir, resume=resume)
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.inference.fit(self._released, key, progress_bar=console.is_terminal)

    def stored(self, run_dir: Path, plan: Plan) -> MarginalPosterior | None:
        """See `outputs.stored_posterior`."""
        return outputs.stored_posterior(run_dir, plan, self.inference.load)

    def save(self, result: MarginalPosterior, run_dir: Path) -> None:
        """See `CommandMethod`."""
        result.save(run_dir / outputs.POSTERIOR)

    def outputs(self, result: MarginalPosterior, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """The twin, unless the model cannot draw one by itself, which the plan said."""
        if not result.twin_columns.needs_nothing:
            return {name: text for name, text in _FILES.items() if not name.startswith("synthetic.")}
        key = jax.random.split(random_key(self.config.run.seed))[1]
        blocks = result.synthetic_blocks(self.config.run.num_synthetic, rng_key=key)
        self._twin, self._num_synthetic = outputs.write_blocks(blocks, run_dir)
        return _FILES

    def notes(self, result: MarginalPosterior) -> Sequence[str]:
        """See `CommandMethod`."""
        missing = [] if self._twin is not None else [f"no synthetic table: {result.twin_columns.describe()}"]
        return [*missing, *([] if result.is_interval else [f"posterior.npz: {result.spread_note}"])]

    def items(self, result: MarginalPosterior) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        return [*outputs.adversary_figure(result.plan), *self.twin_items(self._released, result.split.schema)]

    def report(
        self,
        result: MarginalPosterior,
        facts: Facts,
        items: Sequence[ReportFigure | ReportTable],
        *,
        simulated: str | None,
    ) -> ReportContent:
        """See `CommandMethod`."""
        text = (
            f"Released: noisy tables of {count(facts.num_records, 'record')} whose columns sit at "
            f"{', '.join(facts.parties)}, and all that follows from them: the posterior of a NumPyro model"
            f"{' and this synthetic table' if self._twin is not None else ''}."
        )
        return outputs.assembled(
            result.plan,
            items,
            title="A private synthetic twin" if self._twin is not None else "A private posterior",
            summary=self.released(text if result.is_interval else f"{text} Of the posterior, {result.spread_note}."),
            facts=self.facts(result.plan),
            configuration={
                "model": self.config.model.function or "the library's mixture",
                "components K": str(result.split.num_components),
                "law": f"{result.law}: {result.why}",
                "distance of its tables from the released ones, 1 where noise explains it": f"{result.misfit:.2f}",
                "settings given": ", ".join(sorted(given(self.config.mrf))) or "none",
                "seed of the model's randomness": str(self.config.run.seed),
            },
            secure_noise=result.secure_noise,
            warnings=[simulated] if simulated else [],
        )
