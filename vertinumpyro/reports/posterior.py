"""What DPVI learned: its posterior's report, and a twin beside tables drawn anew where no table was released."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import jax
import numpy as np
import pandas as pd

from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.dpvi.posterior import GUIDES_OWN
from vertinumpyro.evaluation import (
    ReleasedShares,
    ReportFigure,
    ReportTable,
    plot_beside_release,
    plot_pairwise_tvd,
    r_scores,
)
from vertinumpyro.evaluation.marginals import DEFAULT_MAX_BINS
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.model import SplitModel
from vertinumpyro.model.mixture import is_mixture_of
from vertinumpyro.mrf import Marginals, MRFPlan
from vertinumpyro.mrf.forecast import STEPS_SAY_NOTHING
from vertinumpyro.mrf.marginals import MARGINALS
from vertinumpyro.mrf.releases import RELEASED
from vertinumpyro.posterior import PredictivePosterior
from vertinumpyro.privacy import ClientPlan, GradientPlan
from vertinumpyro.reports.plain_language import count, holder_facts, report_facts
from vertinumpyro.reports.release import beside_the_release, table_facts, triples_taken, twin_items, verdict
from vertinumpyro.reports.run_report import (
    FEW_PANELS,
    MOST_DRAWN,
    POSTERIOR,
    POSTERIOR_FILES,
    DrawnTwin,
    ErrorMeaning,
    RunFacts,
    RunReport,
    adversary_figure,
    backend_statement,
    beside_the_real_table,
    can_draw,
    first_records,
    gradient_norms,
    synthetic_summary,
    training_trace,
    without_twin,
)

_NUM_TABLES = 40
_MOST_RECORDS = 10_000
_STRONGEST = 10
_TAIL = 2.5  # percent
_LABEL = "drawn anew, ± 2 standard deviations"
_LIKE = "What the posterior says of the twin"
_CLAIM = f"They vary as the guide and a sample's size have it: {GUIDES_OWN}, and what the model has wrong is not in it."
_SPREAD = ErrorMeaning(
    "spread of a share, ± 2 sd",
    "The last column is how far the share of one of its values lies apart in tables drawn anew from the posterior: "
    f"{GUIDES_OWN}.",
)


class _ModelReport(RunReport):
    """What both posteriors share: a twin, which some models cannot draw by themselves."""

    def draw_twin(self, folder: Path) -> DrawnTwin | None:
        """The twin, unless the model cannot draw one by itself, which the plan said."""
        return self._written_twin(folder) if self.result.twin_columns.needs_nothing else None

    def notes(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        return posterior_notes(self.result, twin)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorReport(_ModelReport):
    """Of a posterior learned by noisy gradients: of parties with columns, or holders with whole records."""

    result: Posterior
    run: RunFacts

    @staticmethod
    def plan_facts(plan: GradientPlan | ClientPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        if isinstance(plan, GradientPlan):
            return report_facts(plan, backend)
        expected = f"{plan.expected_batch_size:,.0f} records expected a step, drawn by each holder from its own"
        return {
            "method": "DPVI on whole records",
            "steps": f"{plan.num_gradients:,}",
            "batches": "all records in every step" if plan.expected_batch_size == plan.num_records else expected,
            "clip norm C": f"{plan.clip_norm:g}",
            "noise multiplier σ": f"{plan.noise_multiplier:g}",
            **holder_facts(plan, backend),
        }

    def save(self, folder: Path) -> None:
        """The posterior, and the tables that it started from."""
        self.result.save(folder / POSTERIOR)
        if self.result.marginals is not None:
            self.result.marginals.save(folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        how = "started" if self.plan.num_gradients else "was learned"
        tables = {MARGINALS: f"the noisy tables that it {how} from: further models cost nothing"}
        files = without_twin(POSTERIOR_FILES) if twin is None else dict(POSTERIOR_FILES)
        return files if self.result.marginals is None else {**files, **tables}

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """What follows from the plan and the releases alone."""
        return list(self._items(twin))

    def _items(self, twin: DrawnTwin | None) -> Iterator[ReportFigure | ReportTable]:
        if twin is not None:
            predictive, schema = Predictive(self.result, twin.table, self.run.rng_key), self.result.split.schema
            yield synthetic_summary(twin.table, schema, predictive.share_errors(), _SPREAD, twin.num_records)
            yield first_records(twin.table)
            yield from predictive.items()
        yield from adversary_figure(self.plan)
        yield from gradient_norms(self.result)
        if twin is not None and self.result.marginals is not None:
            yield from beside_the_release(self.result.marginals, twin.table)
        if self.run.backend is not None and isinstance(self.plan, GradientPlan):
            yield backend_statement(self.run.backend.info())

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """The objective where it was traced, and the twin beside the real table."""
        if not can_draw():
            return ()
        return [*training_trace(self.result), *(() if twin is None else beside_the_real_table(dataset, twin.table))]

    def verdict(self) -> Sequence[str]:
        """How many pairs of columns the tables hold from which it started; of a regression what noise hides."""
        if self.result.marginals is not None:
            how = "started" if self.plan.num_gradients else "was learned"
            return verdict(self.result.marginals, f"The release that it {how} from")
        return [] if self.result.split.structure.summed else [STEPS_SAY_NOTHING]

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return _title(twin)

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        plan, lacks = self.plan, self.result.twin_columns
        steps, tables = "noisy gradients of a model", "noisy tables of pairs of columns"
        if isinstance(plan, GradientPlan) and plan.start is not None:
            steps = f"{tables}, from which the steps started, and {steps}" if plan.num_gradients else tables
        where = "whose columns sit" if isinstance(plan, GradientPlan) else "that are"
        who = tuple(self.result.split.schema.parties) if isinstance(plan, GradientPlan) else plan.holders
        text = (
            f"Released: {steps} of {count(plan.num_records, 'record')} "
            f"{where} at {', '.join(who)}, and all that follows from them: the posterior"
            f"{'' if twin is None else ' and this synthetic table'}."
        )
        note = [] if lacks.is_whole else [f"Note: {lacks.describe()}."]
        spread = [] if self.result.is_interval else [f"Of the posterior, {self.result.spread_note}."]
        return [text, *(f"{first}." for first in self.result.reading_notes), *note, *spread]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        return posterior_facts(self.result)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MarginalPosteriorReport(_ModelReport):
    """Of a posterior learned from released tables.

    :ivar released: the tables; None where nobody has them any more.
    """

    result: MarginalPosterior
    run: RunFacts
    released: Marginals | None = None

    @staticmethod
    def plan_facts(plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        return table_facts(plan, backend, "noisy tables, and a NumPyro model learned from them")

    def save(self, folder: Path) -> None:
        """The posterior, and the tables, unless the run's folder has them as it released them."""
        self.result.save(folder / POSTERIOR)
        if self.released is not None and not (folder / RELEASED).exists():
            self.released.save(folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        tables = "the noisy tables that it was learned from; further models cost nothing"
        files = POSTERIOR_FILES if twin is not None else without_twin(POSTERIOR_FILES)
        return {**files, **dict.fromkeys((RELEASED, MARGINALS), tables)}

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        return [*adversary_figure(self.plan), *twin_items(self.released, twin, self.result.split.schema)]

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """The twin beside the real table."""
        return list(beside_the_real_table(dataset, twin.table)) if twin is not None and can_draw() else ()

    def verdict(self) -> Sequence[str]:
        """How many pairs of columns its tables hold."""
        return verdict(self.released, "The release")

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return _title(twin)

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        text = (
            f"Released: noisy tables of {count(self.plan.num_records, 'record')} whose columns sit at "
            f"{', '.join(self.result.split.schema.parties)}, and all that follows from them: the posterior of a "
            f"NumPyro model{'' if twin is None else ' and this synthetic table'}."
        )
        return [text if self.result.is_interval else f"{text} Of the posterior, {self.result.spread_note}."]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        found = self.result
        return {
            "model": model_name(found.split),
            "components K": str(found.split.num_components),
            "law": f"{found.law}: {found.why}",
            **({} if self.released is None else triples_taken(self.released)),
            "distance of its tables from the released ones, 1 where noise explains it": f"{found.misfit:.2f}",
        }


def _title(twin: DrawnTwin | None) -> str:
    return "A private posterior" if twin is None else "A private synthetic twin"


def posterior_facts(posterior: Posterior) -> dict[str, str]:
    """Model and guide, in words; no time, which follows from the records."""
    split = posterior.split
    sites = [found.site for found in split.structure.summed]
    return {
        "model": model_name(split),
        **({"outcomes": ", ".join(sites)} if sites else {"components K": str(split.num_components)}),
        "released values per step": f"{split.num_values:,}",
        "guide": type(posterior.guide.guide).__name__,
    }


def posterior_notes(posterior: PredictivePosterior, twin: DrawnTwin | None) -> list[str]:
    """Why there is no twin, and what the posterior's spread leaves out."""
    missing = [] if twin is not None else [f"no synthetic table: {posterior.twin_columns.describe()}"]
    return [*missing, *([] if posterior.is_interval else [f"{POSTERIOR}: {posterior.spread_note}"])]


def model_name(split: SplitModel) -> str:
    """What the model's function is called."""
    function = getattr(split.model, "func", split.model)
    return (
        "the library's mixture"
        if is_mixture_of(function, split.schema)
        else getattr(function, "__name__", "a function")
    )


class Predictive:
    """Tables drawn anew, each from one draw of the latents: post-processing of what was released, so DP.

    :ivar num_records: of each table.
    :ivar shares: for each column, [tables, cells] of its values' shares.
    :ivar dependence: [tables, d, d], `r_scores` of each.
    """

    def __init__(self, posterior: PredictivePosterior, twin: pd.DataFrame, rng_key: jax.Array) -> None:
        self._schema = posterior.split.schema.select(list(twin.columns)[:MOST_DRAWN])
        self._twin = twin
        self.num_records = min(len(twin), _MOST_RECORDS)
        tables = posterior.sample_synthetic(self.num_records, rng_key=rng_key, num_tables=_NUM_TABLES)
        drawn = [_shares(table, self._schema) for table in tables]
        self.shares = {name: np.stack([one[name] for one in drawn]) for name in self._schema.columns}
        self.dependence = np.stack([r_scores(table, self._schema).to_numpy() for table in tables])

    def share_errors(self) -> dict[str, float]:
        """For each column, the largest standard deviation of the share of one of its cells."""
        return {name: float(shares.std(axis=0, ddof=1).max()) for name, shares in self.shares.items()}

    def items(self) -> Iterator[ReportFigure | ReportTable]:
        """Columns and pairs of the twin beside the tables drawn anew."""
        of_tables = f"{count(_NUM_TABLES, 'table')} of {count(self.num_records, 'record')} drawn anew"
        if can_draw():
            twin = _shares(self._twin, self._schema)
            found = {
                name: ReleasedShares(shares.mean(axis=0), shares.std(axis=0, ddof=1), twin[name])
                for name, shares in self.shares.items()
            }
            yield ReportFigure(
                figure=plot_beside_release(found, self._schema, label=_LABEL),
                narrow=plot_beside_release(
                    found, self._schema, label=_LABEL, num_across=1 if len(found) <= FEW_PANELS else 2
                ),
                caption=f"Each column of the twin (bars) beside {of_tables} from the posterior. {_CLAIM}",
                not_dp=False,
                section=_LIKE,
            )
        if len(self._schema.columns) < 2:
            return
        matrix = r_scores(self._twin, self._schema)
        if can_draw():
            yield ReportFigure(
                figure=plot_pairwise_tvd(matrix, self._schema, title="Distance from independence", note=None),
                caption="How far every pair of the twin's columns is from independence, 0 to 1; pairs across parties "
                "are outlined.",
                not_dp=False,
                section=_LIKE,
            )
        yield self._strongest(matrix, of_tables)

    def _strongest(self, matrix: pd.DataFrame, of_tables: str) -> ReportTable:
        names = list(self._schema.columns)
        low, high = np.percentile(self.dependence, [_TAIL, 100 - _TAIL], axis=0)
        scores = matrix.to_numpy()
        pairs = sorted(zip(*np.triu_indices(len(names), 1), strict=True), key=lambda pair: -scores[pair])[:_STRONGEST]
        rows = {
            f"{names[i]} and {names[j]}": {
                "dependence in the twin": float(scores[i, j]),
                "in 95 % of tables drawn anew": f"{low[i, j]:.2g} to {high[i, j]:.2g}",
            }
            for i, j in pairs
        }
        return ReportTable(
            frame=pd.DataFrame.from_dict(rows, "index"),
            caption="The pairs that hang together most in the twin: total variation distance from independence, and "
            f"where it lies in {of_tables}. {_CLAIM}",
            not_dp=False,
            section=_LIKE,
        )


def _shares(table: pd.DataFrame, schema: Schema) -> Mapping[str, np.ndarray]:
    """For each column, the share of each of its cells."""
    found = {}
    for name, column in schema.columns.items():
        codes, size = column.discretise(pd.Series(table[name]), DEFAULT_MAX_BINS)
        found[name] = np.bincount(codes, minlength=size) / len(codes)
    return found
