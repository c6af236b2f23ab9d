"""What the folder of one run shows, for the result of any method: its files, a report for publication, and the tables
and figures that reports of several methods share.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import jax
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.data.table import table_writer
from vertinumpyro.dpvi import Posterior
from vertinumpyro.evaluation import (
    ReportContent,
    ReportFigure,
    ReportTable,
    ReportText,
    evaluate_twin,
    pairwise_tvd,
    plot_adversaries,
    plot_marginals,
    plot_objective,
    plot_pairwise_tvd,
)
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import cautions, count, in_words, report_rows, rounded_up
from vertinumpyro.secure import Backend, BackendInfo, BetweenProcesses

P = TypeVar("P", Posterior, MarginalPosterior)

COEFFICIENTS = "coefficients.csv"
POSTERIOR = "posterior.npz"
REPORT = "report.html"
POSTERIOR_FILES: Mapping[str, str] = {
    "synthetic.csv": "the synthetic twin",
    "synthetic.parquet": "the same, with its types",
    "privacy.json": "the plan, and how much of it is spent",
    POSTERIOR: "the released posterior; further tables cost nothing",
    REPORT: "figures, guarantees, configuration",
}
"""Of a run that learned a model, with what they are."""

SIMULATED = "One process held every party's columns: the secure computation was simulated, bit for bit."
_UNKNOWN = "What computed the sums across parties, and who could see them there, is not stated here."
_LOADING = """import pandas as pd

twin = pd.read_parquet("synthetic.parquet")  # types as in the parties' tables
print(twin.describe(include="all"))
# Further tables cost no privacy:
#   vertinumpyro synthesize RUN_FOLDER -n 100000 --out more.parquet
"""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a report says of a run that the run's result does not know. All of it is public.

    :ivar backend: what computed the sums across parties; None where nobody says.
    :ivar num_synthetic: records of the twin; None takes as many as it was learned from.
    :ivar rng_key: of the twin.
    :ivar facts: what the plan fixes, in words; None takes what the plan alone tells.
    :ivar configuration: further settings, in words.
    :ivar warnings: what a reader must know first, beside what the result tells.
    """

    rng_key: jax.Array
    backend: Backend | None = None
    num_synthetic: int | None = None
    facts: Mapping[str, str] | None = None
    configuration: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def backend_name(self) -> str:
        """The backend's name."""
        return "not stated" if self.backend is None else self.backend.info().name

    @property
    def all_warnings(self) -> list[str]:
        """With what the backend makes a reader know first."""
        if self.backend is None:
            return [*self.warnings, _UNKNOWN]
        return [*self.warnings, *([] if isinstance(self.backend, BetweenProcesses) else [SIMULATED])]


class DrawnTwin(NamedTuple):
    """A synthetic table that was written.

    :ivar table: of a long one its first block.
    :ivar num_records: of the whole table.
    """

    table: pd.DataFrame
    num_records: int


class RunReport(abc.ABC):
    """What a run shows. One subclass for each kind of result.

    :ivar result: what `fit` returned.
    :ivar run: what it does not know.
    """

    result: Any
    run: RunFacts

    @property
    def plan(self) -> Any:
        """What was spent: a plan of the method's own kind."""
        return self.result.plan

    @property
    def secure_noise(self) -> bool:
        """Whether the noise came from the operating system's CSPRNG."""
        return self.result.secure_noise

    @staticmethod
    @abc.abstractmethod
    def plan_facts(plan: Any, backend: str) -> dict[str, str]:
        """What a plan fixes, in words, from the plan alone: an approval shows it before any of the model's code runs.

        :param backend: its name, which no plan has.
        """

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Writes what the budget bought, first of all files."""

    def draw_twin(self, folder: Path) -> DrawnTwin | None:
        """Writes a synthetic table in both formats; None where the result draws none by itself."""
        return None

    @abc.abstractmethod
    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """All files by name, with what they are."""

    def notes(self, twin: DrawnTwin | None) -> Sequence[str]:
        """What a reader of the files should know is missing from them."""
        return ()

    @abc.abstractmethod
    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """Figures and tables of a report for publication."""

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """Figures and tables that compare with the real table: not DP."""
        return ()

    @abc.abstractmethod
    def title(self, twin: DrawnTwin | None) -> str:
        """The report's heading."""

    def verdict(self) -> Sequence[str]:
        """What it is good for, as the first line of the report and of the terminal's last; nothing if nobody knows."""
        return ()

    @abc.abstractmethod
    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """What was released, in paragraphs."""

    @abc.abstractmethod
    def configuration(self) -> Mapping[str, str]:
        """Settings in words; no time, which follows from the records."""

    def result_warnings(self) -> Sequence[str]:
        """What a reader must know of the result first."""
        return ()

    @final
    def content(
        self,
        twin: DrawnTwin | None,
        items: Iterable[ReportFigure | ReportTable] | None = None,
        files: Sequence[str] = (),
    ) -> ReportContent:
        """The report.

        :param items: in the place of `items`.
        :param files: that lie beside it, by name.
        """
        facts, items = self.run.facts, list(self.items(twin) if items is None else items)
        texts = [*self.verdict(), *self.summary(twin), *self._publishing(items, files)]
        return report_content(
            self.plan,
            items,
            title=self.title(twin),
            summary=[ReportText(text=text, not_dp=False) for text in texts],
            facts=self.plan_facts(self.plan, self.run.backend_name) if facts is None else facts,
            configuration={**self.configuration(), **self.run.configuration},
            secure_noise=self.secure_noise,
            warnings=[*self.result_warnings(), *self.run.all_warnings],
        )

    def _publishing(self, items: Sequence[ReportFigure | ReportTable], files: Sequence[str]) -> list[str]:
        """What may leave the house, what more would cost, and what is left; nothing of a run without privacy."""
        if not self.secure_noise:
            return []
        inside = any(item.not_dp for item in items)
        beside = ", ".join(files) or "the files beside it"
        own = f"{beside[:1].upper()}{beside[1:]}" if inside else f"This report and {beside}"
        kept = "This report holds what is not DP, and stays inside" if inside else "Times in a log stay inside"
        return [
            f"{own} follow from what was released, and may be published. {kept}, as does all else in the folder. "
            f"Whatever is drawn or computed from them further, a second twin too, costs nothing.{self._left()}"
        ]

    def _left(self) -> str:
        """Of the budget, and what a second fit would make of it, by basic composition."""
        epsilon, delta = self.plan.worst.epsilon, self.plan.delta
        own = "a second fit to these records costs its own ε on top of this one's"
        if not math.isfinite(epsilon):
            return f" Of this plan nothing is left; {own}."
        return (
            f" Of this plan's ε = {rounded_up(epsilon)} nothing is left; {own}: two like this are at most "
            f"ε = {rounded_up(2 * epsilon)}, δ = {2 * delta:g}."
        )

    @final
    def _written_twin(self, folder: Path) -> DrawnTwin:
        blocks = self.result.synthetic_blocks(self.run.num_synthetic, rng_key=self.run.rng_key)
        return DrawnTwin(*write_blocks(blocks, folder))


def report_content(
    plan: Plan,
    items: Sequence[ReportFigure | ReportTable],
    *,
    title: str,
    summary: Sequence[ReportText],
    facts: Mapping[str, str],
    configuration: Mapping[str, str],
    secure_noise: bool,
    warnings: Sequence[str],
) -> ReportContent:
    """A report of one plan's releases, with what a reader must know first."""
    told = [ReportText(text=sentence, not_dp=False) for sentence in in_words(plan)]
    return ReportContent(
        title=title,
        summary=[*summary, *told],
        facts={"ε against everyone": rounded_up(plan.worst.epsilon), **facts},
        adversary_rows=report_rows(plan),
        figures=[item for item in items if isinstance(item, ReportFigure)],
        tables=[item for item in items if isinstance(item, ReportTable)],
        configuration=configuration,
        code=_LOADING if any(item.section == _SYNTHETIC for item in items) else "",
        warnings=[*_plan_warnings(plan, secure_noise), *warnings],
    )


def _plan_warnings(plan: Plan, secure_noise: bool) -> list[str]:
    insecure = [] if secure_noise else ["The noise came from a seed: this run has no privacy."]
    unproven = sorted({step for row in plan.adversaries for step in row.unproven})
    return [*insecure, *(f"Not proved: {step}." for step in unproven), *cautions(plan)]


def without_twin(files: Mapping[str, str]) -> dict[str, str]:
    """The files of a run whose model draws no table by itself."""
    return {name: text for name, text in files.items() if not name.startswith("synthetic.")}


def write_blocks(frames: Iterable[pd.DataFrame], folder: Path) -> tuple[pd.DataFrame, int]:
    """The synthetic table in both formats, one block of records after the other: its first block, and its records."""
    first, num_records = None, 0
    with table_writer(folder / "synthetic.csv") as to_csv, table_writer(folder / "synthetic.parquet") as to_parquet:
        for frame in frames:
            to_csv(frame)
            to_parquet(frame)
            first, num_records = frame if first is None else first, num_records + len(frame)
    assert first is not None, "a table has records"
    return first, num_records


def stored_posterior(folder: Path, plan: Plan, load: Callable[[Path], P]) -> P | None:
    """The posterior that a complete run stored, if it is this plan's; None where there is none.

    :raises ArgumentError: it is another plan's.
    """
    path = folder / POSTERIOR
    if not path.exists():
        return None
    posterior = load(path)
    if posterior.plan.fingerprint() != plan.fingerprint():
        raise ArgumentError(f"{path} belongs to another plan than the record beside it; take it out of the folder")
    return posterior


_SYNTHETIC = "Synthetic data"
"""The section of the twin itself."""
FEW_PANELS = 12
"""So many small figures stand below each other on a narrow screen; more do two in a row."""
MOST_DRAWN = 40
"""Columns of a figure; more are no longer readable."""
NARROW = 3.4
"""Inches of a figure on a telephone's screen."""
_FIRST, _MOST_COLUMNS = 6, 40


class ErrorMeaning(NamedTuple):
    """What the standard deviation of a share is of: the heading of its column, and a sentence below."""

    heading: str
    sentence: str


NOISE = ErrorMeaning(
    "noise in a share, ± 2 sd",
    "The last column is what the noise alone may have moved the share of any of its values by.",
)


def can_draw() -> bool:
    """Whether matplotlib is there for the report's figures."""
    return importlib.util.find_spec("matplotlib") is not None


def adversary_figure(plan: Plan) -> Iterator[ReportFigure]:
    """ε against each adversary, where figures can be drawn."""
    if can_draw():
        yield ReportFigure(
            figure=plot_adversaries(report_rows(plan)),
            narrow=plot_adversaries(report_rows(plan), width=NARROW),
            caption="ε against each adversary. A smaller ε is a stronger guarantee.",
            not_dp=False,
            section="Privacy",
        )


def backend_statement(info: BackendInfo) -> ReportTable:
    """What a backend says of its security and precision."""
    rows = {
        "security model": info.security_model,
        "who learns what": info.who_learns_what,
        "dealer": info.dealer,
        "ring": info.ring,
        "precision": info.precision,
    }
    frame = pd.DataFrame({info.name: rows})
    return ReportTable(frame=frame, caption="What the backend states.", not_dp=False, section="Secure computation")


def gradient_norms(posterior: Posterior) -> Iterator[ReportFigure]:
    """The norm of what each step released, where figures can be drawn."""
    norms = posterior.diagnostics.released_norm
    if can_draw() and len(norms):
        first = posterior.plan.num_gradients - len(norms)
        drawn = partial(
            plot_objective,
            norms,
            label="norm of the released gradient",
            steps=range(first + 1, first + len(norms) + 1),
            note=None,
        )
        yield ReportFigure(
            figure=drawn(),
            narrow=drawn(width=NARROW),
            caption="Norm of each noisy gradient, in clip norms per expected record: released, so DP.",
            not_dp=False,
            section="Training",
        )


def synthetic_summary(
    synthetic: pd.DataFrame,
    schema: Schema,
    errors: Mapping[str, float] | None = None,
    meaning: ErrorMeaning = NOISE,
    num_records: int | None = None,
) -> ReportTable:
    """A row for each column of the synthetic table.

    :param errors: for each column, the standard deviation of the share of one of its values.
    :param meaning: of what.
    :param num_records: of the whole table, where this is its beginning.
    """
    frame, told = _summary(synthetic, schema), ""
    if num_records not in (None, len(synthetic)):
        told = f" All here is of its first {len(synthetic):,}."
    if errors:
        frame[meaning.heading] = [f"± {200 * errors[n]:.2g} %" if n in errors else None for n in frame.index]
        told += f" {meaning.sentence}"
    return ReportTable(
        frame=frame,
        caption=f"The synthetic table, {count(num_records or len(synthetic), 'record')}.{told}",
        not_dp=False,
        section=_SYNTHETIC,
    )


def first_records(synthetic: pd.DataFrame) -> ReportTable:
    """The table's beginning, a row for each column: there may be many of these."""
    shown = synthetic.head(_FIRST).iloc[:, :_MOST_COLUMNS].astype(object)
    shown.index = pd.Index([f"record {number}" for number in range(1, len(shown) + 1)])
    more = f"; {synthetic.shape[1] - _MOST_COLUMNS} columns more" if synthetic.shape[1] > _MOST_COLUMNS else ""
    return ReportTable(
        frame=shown.T.rename_axis("column"),
        caption=f"Its first records{more}. They are of nobody.",
        not_dp=False,
        section=_SYNTHETIC,
    )


def beside_the_real_table(dataset: VerticalDataset, synthetic: pd.DataFrame) -> Iterator[ReportFigure | ReportTable]:
    """What measures say of it, marginals, and every pair's distance: not DP. Needs matplotlib."""
    schema, real = dataset.schema.select(synthetic.columns), dataset.to_frame()
    yield from evaluate_twin(real, synthetic, schema, rng=0).report_items()
    yield marginals(real, synthetic, schema)
    yield ReportFigure(
        figure=plot_pairwise_tvd(pairwise_tvd(real, synthetic, schema), schema),
        caption="Distance of every pair of columns from the real table; pairs across parties are outlined.",
        not_dp=True,
        section="Pairs of columns",
    )


def training_trace(posterior: Posterior) -> Iterator[ReportFigure]:
    """The objective on the records of each batch, where it was traced."""
    objective = posterior.diagnostics.objective
    if objective is not None and len(objective):
        first = posterior.plan.num_gradients - len(objective) + 1
        yield ReportFigure(
            figure=plot_objective(
                objective, label="negative ELBO per record", steps=range(first, first + len(objective))
            ),
            caption="Objective of the inference, computed on each batch of real records.",
            not_dp=True,
            section="Training",
        )


def marginals(real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema) -> ReportFigure:
    """Every column's marginal, real against synthetic."""
    return ReportFigure(
        figure=plot_marginals(real, synthetic, schema),
        caption="Each column on the cells of its public domain: real (grey) against synthetic (line).",
        not_dp=True,
        section="Marginals",
    )


def _summary(synthetic: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    rows: dict[str, dict[str, Any]] = {}
    for name, column in schema.select(synthetic.columns).columns.items():
        series = pd.Series(synthetic[name])
        values = series if column.written is None else pd.Series(column.quantities(series))
        number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        rows[name] = {
            "party": schema.party_of(name),
            "type": column.type_name,
            "public domain": column.describe(),
            "synthetic mean": float(values.mean()) if number and column.type_name != "categorical" else None,
            "most frequent": None if column.type_name == "real" else _text(series.mode()),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("column")


def _text(mode: pd.Series) -> str | None:
    return None if mode.empty else str(mode.iloc[0])
