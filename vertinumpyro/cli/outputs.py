"""The files of a run: synthetic tables, posterior, report."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from vertinumpyro.cli.wording import cautions, count, in_words, report_facts, report_rows, rounded_up
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.data.writing import table_writer
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.evaluation import (
    ReportContent,
    ReportFigure,
    ReportTable,
    ReportText,
    pairwise_tvd,
    plot_adversaries,
    plot_marginals,
    plot_objective,
    plot_pairwise_tvd,
)
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.posterior.synthetic_columns import restricted
from vertinumpyro.privacy import Plan, PrivacyPlan

__all__ = [
    "FEW_PANELS",
    "FILES",
    "NARROW",
    "NOISE",
    "POSTERIOR",
    "SIMULATED",
    "ErrorMeaning",
    "adversary_figure",
    "assembled",
    "beside_the_real_table",
    "can_draw",
    "configuration",
    "files",
    "first_records",
    "gradient_norms",
    "internal_items",
    "report_content",
    "run_warnings",
    "stored_posterior",
    "synthetic_summary",
    "write_blocks",
    "write_table",
    "write_tables",
]

P = TypeVar("P", Posterior, MarginalPosterior)

FILES: Mapping[str, str] = {
    "synthetic.csv": "the synthetic twin",
    "synthetic.parquet": "the same, with its types",
    "privacy.json": "the plan, and how much of it is spent",
    "posterior.npz": "the released posterior; further tables cost nothing",
    "report.html": "figures, guarantees, configuration",
}


POSTERIOR = "posterior.npz"
_SYNTHETIC = "Synthetic data"
_FIRST, _MOST_COLUMNS = 6, 40
FEW_PANELS = 12
"""So many small figures stand below each other on a narrow screen; more do two in a row."""
NARROW = 3.4
"""Inches of a figure on a telephone's screen."""
_LOADING = """import pandas as pd

twin = pd.read_parquet("synthetic.parquet")  # types as in the parties' tables
print(twin.describe(include="all"))
# Further tables cost no privacy:
#   vertinumpyro synthesize RUN_FOLDER -n 100000 --out more.parquet
"""
SIMULATED = "One process held every party's columns: the secure computation was simulated, bit for bit."


class ErrorMeaning(NamedTuple):
    """What the standard deviation of a share is of: the heading of its column, and a sentence below."""

    heading: str
    sentence: str


NOISE = ErrorMeaning(
    "noise in a share, ± 2 sd",
    "The last column is what the noise alone may have moved the share of any of its values by.",
)


def files(with_table: bool) -> dict[str, str]:
    """The files of a run, without the tables where the model can draw none."""
    return {name: text for name, text in FILES.items() if with_table or not name.startswith("synthetic.")}


def can_draw() -> bool:
    """Whether matplotlib is there for the report's figures."""
    return importlib.util.find_spec("matplotlib") is not None


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV or Parquet, as the name says.

    :raises ArgumentError: the name ends in neither, or its folder does not exist.
    """
    with table_writer(path) as write:
        write(frame)


def write_tables(frame: pd.DataFrame, run_dir: Path) -> None:
    """The synthetic table in both formats."""
    write_blocks([frame], run_dir)


def write_blocks(frames: Iterable[pd.DataFrame], run_dir: Path) -> tuple[pd.DataFrame, int]:
    """The synthetic table in both formats, one block of records after the other: its first block, and its records."""
    first, num_records = None, 0
    with table_writer(run_dir / "synthetic.csv") as to_csv, table_writer(run_dir / "synthetic.parquet") as to_parquet:
        for frame in frames:
            to_csv(frame)
            to_parquet(frame)
            first, num_records = frame if first is None else first, num_records + len(frame)
    assert first is not None, "a table has records"
    return first, num_records


def stored_posterior(run_dir: Path, plan: Plan, load: Callable[[Path], P]) -> P | None:
    """The posterior that a complete run stored, if it is this plan's; None where there is none.

    :raises ArgumentError: it is another plan's.
    """
    path = run_dir / POSTERIOR
    if not path.exists():
        return None
    posterior = load(path)
    if posterior.plan.fingerprint() != plan.fingerprint():
        raise ArgumentError(f"{path} belongs to another plan than the record beside it; take it out of the folder")
    return posterior


def assembled(
    plan: Plan,
    items: Sequence[ReportFigure | ReportTable],
    *,
    title: str,
    summary: list[ReportText],
    facts: dict[str, str],
    configuration: dict[str, str],
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
        warnings=run_warnings(plan, secure_noise, warnings),
    )


def report_content(
    posterior: Posterior,
    dpvi: DPVI,
    *,
    title: str,
    summary: list[ReportText],
    items: list[ReportFigure | ReportTable],
    extra_configuration: Mapping[str, str],
) -> ReportContent:
    """A report of one fit: its plan, the items, the configuration."""
    plan = _plan(posterior)
    simulated = [SIMULATED] if dpvi.backend.info().security_model.startswith("none") else []
    return assembled(
        plan,
        [*items, _backend_statement(dpvi)],
        title=title,
        summary=summary,
        facts=report_facts(plan, dpvi.backend.info().name),
        configuration={**configuration(posterior, dpvi), **extra_configuration},
        secure_noise=posterior.secure_noise,
        warnings=simulated,
    )


def configuration(posterior: Posterior, dpvi: DPVI) -> dict[str, str]:
    """Model and guide, in words; no time, which follows from the records."""
    split = posterior.guide.split
    sites = [found.site for found in split.structure.summed]
    model = "the library's mixture" if dpvi.model is None else getattr(dpvi.model, "__name__", "a function")
    return {
        "model": model,
        **({"outcomes": ", ".join(sites)} if sites else {"components K": str(split.num_components)}),
        "released values per step": f"{split.num_values:,}",
        "guide": type(posterior.guide.guide).__name__,
    }


def run_warnings(plan: Plan, secure_noise: bool, others: Sequence[str] = ()) -> list[str]:
    """What a reader of a report must know first."""
    insecure = [] if secure_noise else ["The noise came from a seed: this run has no privacy."]
    unproven = sorted({step for row in plan.adversaries for step in row.unproven})
    return [*insecure, *(f"Not proved: {step}." for step in unproven), *cautions(plan), *others]


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


def _backend_statement(dpvi: DPVI) -> ReportTable:
    info = dpvi.backend.info()
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


def _plan(posterior: Posterior) -> PrivacyPlan:
    """The plan of a fit on a vertical table, the only kind that the commands run."""
    assert isinstance(posterior.plan, PrivacyPlan)
    return posterior.plan


def internal_items(
    posterior: Posterior, dataset: VerticalDataset, synthetic: pd.DataFrame | None
) -> Iterator[ReportFigure | ReportTable]:
    """What compares with the real table, outside the mechanism: not DP, for the parties' eyes only."""
    if not can_draw():
        return
    yield from training_trace(posterior)
    if synthetic is None:
        return
    yield from beside_the_real_table(dataset, synthetic)


def beside_the_real_table(dataset: VerticalDataset, synthetic: pd.DataFrame) -> Iterator[ReportFigure]:
    """Marginals, and every pair's distance: not DP. Needs matplotlib."""
    schema, real = restricted(dataset.schema, synthetic.columns), dataset.to_frame()
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
    for name, column in restricted(schema, synthetic.columns).columns.items():
        series = pd.Series(synthetic[name])
        number = pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series)
        rows[name] = {
            "party": schema.party_of(name),
            "type": column.type_name,
            "public domain": column.describe(),
            "synthetic mean": float(series.mean()) if number and column.type_name != "categorical" else None,
            "most frequent": None if column.type_name == "real" else _text(series.mode()),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("column")


def _text(mode: pd.Series) -> str | None:
    return None if mode.empty else str(mode.iloc[0])
