"""The tables and figures that reports of several methods share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.evaluation import (
    ReportFigure,
    ReportTable,
    evaluate_twin,
    pairwise_tvd,
    plot_adversaries,
    plot_marginals,
    plot_objective,
    plot_pairwise_tvd,
)
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import count, report_rows
from vertinumpyro.secure import BackendInfo

SYNTHETIC = "Synthetic data"
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
        section=SYNTHETIC,
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
        section=SYNTHETIC,
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
