"""`--method vertimrf` and `marginals`: one release of noisy tables, and a Markov field or a NumPyro model from it.

And `--method quality`: how near a twin is to the records, from noisy tables that are released for that alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import jax
import pandas as pd

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.config_sections import FitSettings, ModelSettings, MRFSettings, QualitySettings, backend_of
from vertinumpyro.cli.methods.base import OF_CELLS, CommandMethod, given
from vertinumpyro.cli.model_loading import model_settings
from vertinumpyro.cli.terminal import console
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, TableFacts, VerticalDataset
from vertinumpyro.marginals import MarginalInference, MarginalPosterior, release_marginals
from vertinumpyro.mrf import Marginals, MarkovTwin, MRFPlan, VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.preflight import tables_seconds
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.posterior.synthesis import rehearse_twin
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.reports.plain_language import at_most, count
from vertinumpyro.reports.posterior import MarginalPosteriorReport
from vertinumpyro.reports.release import FieldReport, ReleaseReport, table_facts
from vertinumpyro.reports.run_report import stored_posterior
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import Session

_OF_THE_PLAN = ("cross_share", "recovery_share")
TABLE_PRIVACY = ("epsilon", "delta", "adversary", "relation", "noise", "collusion_threshold")


class TablesCommand(CommandMethod):
    """Noisy tables of columns, from which a twin follows.

    :cvar what: is made of them, in words.
    :ivar method: their cells, budget and backend.
    """

    plan_class = MRFPlan
    what: ClassVar[str]
    own_sections = ("mrf",)
    own_settings: Mapping[str, tuple[str, ...]] = {
        "privacy": (*TABLE_PRIVACY, "allow_unproven"),
        "fit": ("backend", "security"),
    }

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        settings = {k: v for k, v in given(config.mrf).items() if k not in _OF_THE_PLAN}
        allow = bool(config.privacy.allow_unproven)
        self.method = VertiMRF(**settings, allow_unproven=allow, backend=backend_of(config.fit))

    def checked(self) -> Sequence[str]:
        """The columns in cells."""
        columns = self.method.columns(self.config.schema)
        return [f"{count(sum(column.num_cells for column in columns), 'cell')} of {count(len(columns), 'column')}"]

    def plan(self, facts: DatasetInfo) -> MRFPlan:
        """See `CommandMethod`."""
        privacy = {k: v for k, v in given(self.config.budget).items() if k in TABLE_PRIVACY}
        shares = {k: v for k, v in given(self.config.mrf).items() if k in _OF_THE_PLAN}
        return self.method.plan(facts, **privacy, **shares)

    @classmethod
    def plan_facts(cls, plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `CommandMethod`."""
        return table_facts(plan, backend, cls.what)

    @classmethod
    def is_verified(cls, plan: MRFPlan) -> bool:
        """Tables across parties that they add up; not reports of an encoder, nor noise of one party."""
        return plan.encoding is None and plan.noise.kind == "collaborative"

    def facts(self, plan: MRFPlan) -> dict[str, str]:
        """With the memory that the columns' cells take."""
        memory = self.method.memory(self.config.schema, plan)
        return {**super().facts(plan), "memory, records aside": at_most(memory)}

    def forecast(self, plan: MRFPlan, earlier: Path | None = None) -> Mapping[str, Any]:
        """How many pairs of columns it is going to hold, and by an earlier run how many will show an association."""
        found = self.method.forecast(self.config.schema, plan, None if earlier is None else _released_in(earlier))
        held, of, showing = found.expected
        if not of:
            return {}
        more: dict[str, Any] = {} if showing is None else {"showing_pairs": round(showing)}
        if found.kept:
            more["kept_of_correlations"] = {str(size): round(share, 3) for size, share in found.kept.items()}
        return {"held_pairs": round(held), "pairs": of, **more, "words": str(found)}

    def forecast_by_records(self, dataset: VerticalDataset, plan: MRFPlan) -> Mapping[str, Any]:
        """How many of all pairs of columns will show an association, and of each party's own."""
        found = self.method.forecast_by_records(dataset, plan)
        if not found:
            return {}
        at = [({dataset.schema.party_of(name) for name in pair}, chance) for pair, chance in found.items()]
        own = {party: [chance for parties, chance in at if parties == {party}] for party in dataset.parties}
        told = [f"{sum(chances):.0f} of {len(chances)} within {party}" for party, chances in own.items() if chances]
        showing = round(sum(found.values()))
        words = f"By these records about {showing} of {len(found)} pairs will show an association"
        return {
            "showing_pairs": showing,
            "pairs": len(found),
            "words": ", ".join([words, *told]),
        }

    def time(self, plan: MRFPlan) -> FitTime:
        """See `VertiMRF.time`."""
        return self.method.time(self._facts(plan), plan)

    def _facts(self, plan: MRFPlan) -> TableFacts:
        return TableFacts(self.config.schema, plan.num_records)

    def computations(self, facts: DatasetInfo, plan: MRFPlan) -> Sequence[tuple[Computation, int]]:
        """See `VertiMRF.computations`."""
        return self.method.computations(facts, plan)


def _released_in(folder: Path) -> Marginals:
    """The tables of an earlier run."""
    return MarkovTwin.load(folder).marginals if (folder / FIELD).exists() else Marginals.load(folder)


class VertiMRFCommand(TablesCommand):
    """Noisy tables of columns, and the field that fits them."""

    name = "vertimrf"
    what = "VertiMRF"
    own_settings: Mapping[str, tuple[str, ...]] = {**TablesCommand.own_settings, "model": ()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not {"bins", "max_cells", "clique_limit", "encoder"} & given(config.mrf).keys():
            self.method = self.method.grouped(config.schema)

    def about(self) -> str:
        """See `CommandMethod`."""
        return f"encoder {self.method.encoder}"

    def facts(self, plan: MRFPlan) -> dict[str, str]:
        """With the columns that nobody binned, and that are too wide as they are."""
        grouped = {} if self.config.mrf.bins else self.method.bins
        words = {"counted in groups": f"{min(grouped.values())} of neighbours: {', '.join(grouped)}"} if grouped else {}
        return {**super().facts(plan), **words}

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> MarkovTwin:
        """See `CommandMethod`."""
        with console.status("[dim]tables, then the field …"):
            return self.method.fit(data, plan, run_dir=run_dir, resume=resume, allow_long=True)

    def stored(self, run_dir: Path, plan: Plan) -> MarkovTwin | None:
        """The field; `MarkovTwin.load` compares its plan with the record."""
        return MarkovTwin.load(run_dir) if (run_dir / FIELD).exists() else None

    def report(self, result: MarkovTwin) -> FieldReport:
        """See `CommandMethod`."""
        seed = {"seed of the twin's randomness": str(self.config.run.seed)}
        return FieldReport(result=result, run=self.run_facts(result.plan, seed))


class MarginalsCommand(TablesCommand):
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

    def plan(self, facts: DatasetInfo) -> MRFPlan:
        """A plan for a model whose tables can be computed.

        :raises ModelContractError: they cannot, or the model breaks the contract; names the site.
        """
        plan = super().plan(facts)
        rehearse_twin(self.inference.rehearse(facts.schema, plan)).warn(stacklevel=2)
        return plan

    def time(self, plan: MRFPlan) -> FitTime:
        """See `MarginalInference.time`."""
        return self.inference.time(self._facts(plan), plan)

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> MarginalPosterior:
        """See `CommandMethod`."""
        self.inference.rehearse(data.schema, plan)
        self._released = release_marginals(data, plan, self.method, run_dir=run_dir, resume=resume, allow_long=True)
        key = jax.random.split(random_key(self.config.run.seed))[0]
        return self.inference.fit(self._released, key, progress_bar=console.is_terminal, allow_long=True)

    def stored(self, run_dir: Path, plan: Plan) -> MarginalPosterior | None:
        """See `stored_posterior`."""
        return stored_posterior(run_dir, plan, self.inference.load)

    def report(self, result: MarginalPosterior) -> MarginalPosteriorReport:
        """See `CommandMethod`."""
        named = self.config.model.function
        configuration = {
            **({} if named is None else {"model": named}),
            "settings given": ", ".join(sorted(given(self.config.mrf))) or "none",
            **self.model_seed,
        }
        facts = self.run_facts(result.plan, configuration)
        return MarginalPosteriorReport(result=result, run=facts, released=self._released)


class QualityCommand(TablesCommand):
    """Noisy tables, compared with a twin that was not learned from them."""

    name = "quality"
    what = "noisy tables, compared with a twin"
    own_sections = ("mrf", "quality")
    own_settings: Mapping[str, tuple[str, ...]] = {**TablesCommand.own_settings, "model": ()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._twin: pd.DataFrame | None = None
        if self.method.encoder != "secure_marginals":
            raise ArgumentError(f'[mrf] encoder = "{self.method.encoder}": --method quality needs "secure_marginals"')
        if config.mrf.triples:
            raise ArgumentError("[mrf] triples: --method quality compares pairs of columns; leave it out")

    def about(self) -> str:
        """See `CommandMethod`."""
        return "how near a twin is, from noisy tables"

    def checked(self) -> Sequence[str]:
        """The columns in cells, and the twin."""
        return [*super().checked(), count(len(self.twin()), "synthetic record")]

    def twin(self) -> pd.DataFrame:
        """The twin, which fits the schema.

        :raises ArgumentError: it cannot be read, or has none of the schema's columns.
        :raises DataError: a value is outside the schema.
        """
        if self._twin is None:
            self._twin = _read_twin(self.config)
        return self._twin

    def time(self, plan: MRFPlan) -> FitTime:
        """Of the tables alone, which no field is fitted to."""
        return FitTime(before={"the tables": tables_seconds(self._facts(plan), plan)})

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> Marginals:
        """See `CommandMethod`."""
        self.twin()
        return release_marginals(data, plan, self.method, run_dir=run_dir, resume=resume, allow_long=True)

    def report(self, result: Marginals) -> ReleaseReport:
        """See `CommandMethod`."""
        return ReleaseReport(result=result, run=self.run_facts(result.plan, {}), compared=self.twin())


def config_of_part(config: Config, run_dir: Path) -> Config:
    """The configuration of the score that `[quality] part` of a fit's budget buys."""
    assert config.quality.part is not None  # the caller asks
    part = config.part_of_budget(config.quality.part)
    unread = [f.name for f in dataclasses.fields(part) if f.name not in (*TABLE_PRIVACY, "allow_unproven")]
    tables = {name: getattr(config.mrf, name) for name in OF_CELLS}
    return dataclasses.replace(
        config,
        privacy=dataclasses.replace(part, **dict.fromkeys(unread)),
        model=ModelSettings(),
        fit=FitSettings(backend=config.fit.backend, security=config.fit.security),
        mrf=MRFSettings(**tables),
        quality=QualitySettings(twin=str((run_dir / "synthetic.parquet").resolve())),
    )


def _read_twin(config: Config) -> pd.DataFrame:
    if config.quality.twin is None:
        raise ArgumentError('[quality] twin: name the table to compare, twin = "run/synthetic.parquet"')
    path = config.folder / config.quality.twin
    if path.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"[quality] twin = {config.quality.twin!r} is neither .csv nor .parquet; give one of these")
    if not path.is_file():
        raise ArgumentError(f"[quality] twin: there is no {path}; a fit writes synthetic.parquet")
    try:
        found = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError):
        raise ArgumentError(f"[quality] twin: {path.name} cannot be read as {path.suffix}; write it again") from None
    names = [name for name in config.schema.columns if name in found.columns]
    if len(names) < 2:
        raise ArgumentError(f"[quality] twin: {path.name} has fewer than two of the schema's columns")
    VerticalDataset.from_pooled(config.schema.select(names), found[names])  # refuses what is outside the schema
    return pd.DataFrame(found[names])
