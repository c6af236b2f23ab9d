"""What methods learned from one release of noisy tables, and a twin beside these. All of it is released, so DP."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np
import pandas as pd

from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.evaluation import ReleasedShares, ReportFigure, ReportTable, plot_beside_release, plot_pairwise_tvd
from vertinumpyro.mrf import Marginals, MarkovTwin, MRFPlan, TwinQuality, twin_quality
from vertinumpyro.mrf.encoders import encoder_of
from vertinumpyro.mrf.forecast import LEARNED, held, significances, single_tables
from vertinumpyro.mrf.marginals import MARGINALS
from vertinumpyro.mrf.measurements import Measurement, count_table, noise_per_cell
from vertinumpyro.mrf.quality import Kept
from vertinumpyro.mrf.releases import RELEASED
from vertinumpyro.mrf.table_selection import merged
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.reports.plain_language import count
from vertinumpyro.reports.run_report import (
    FEW_PANELS,
    MOST_DRAWN,
    POSTERIOR_FILES,
    REPORT,
    DrawnTwin,
    RunFacts,
    RunReport,
    adversary_figure,
    beside_the_real_table,
    can_draw,
    first_records,
    synthetic_summary,
)

QUALITY = "quality.json"

_MOST_NAMED, _STRONGEST = 8, 10
_LIKE = "Is the twin like what was released?"
_DISTANCE = "Distance from what was released, beyond noise"
_ABOVE = "above noise and chance, in standard deviations"
_PALE = 0.05  # at least the dark end of the scale of distances
_TRIPLES = "tables of three columns across parties"
_FOLLOWS = ", and all that follows from them"
_FOR_MODELS = "the noisy tables; further models cost nothing"
_LIMITS = {
    "noise": "more budget would make a nearer twin",
    "capacity": "larger cliques would make a nearer twin",
    "steps": "more iterations would make a nearer twin",
}


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FieldReport(RunReport):
    """Of a Markov random field that fits the tables."""

    result: MarkovTwin
    run: RunFacts

    @staticmethod
    def plan_facts(plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        return table_facts(plan, backend, "VertiMRF")

    def save(self, folder: Path) -> None:
        """The field, and its tables, unless the run's folder has them as it released them."""
        self.result.save(folder)
        if not (folder / RELEASED).exists():
            self.result.marginals.save(folder)

    def draw_twin(self, folder: Path) -> DrawnTwin:
        """See `RunReport`."""
        return self._written_twin(folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        return {
            **{name: POSTERIOR_FILES[name] for name in ("synthetic.csv", "synthetic.parquet", "privacy.json")},
            FIELD: "the released field; further tables cost nothing",
            **dict.fromkeys((RELEASED, MARGINALS), "the noisy tables that it was made from"),
            REPORT: "guarantees, configuration",
        }

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        return [*adversary_figure(self.plan), *twin_items(self.result.marginals, twin, self.result.schema)]

    def internal_items(self, dataset: VerticalDataset, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """The twin beside the real table."""
        return list(beside_the_real_table(dataset, twin.table)) if twin is not None and can_draw() else ()

    def verdict(self) -> Sequence[str]:
        """How many pairs of columns it holds."""
        return verdict(self.result.marginals, "The twin")

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return "A private synthetic twin"

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        return [f"{_released(self.plan, self.result.schema)}: a Markov random field and this table."]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        missed = {"tables that the twin misses": _missed(self.result)}
        return {"field": repr(self.result), **triples_taken(self.result.marginals), **missed}

    def result_warnings(self) -> Sequence[str]:
        """What a crash lost."""
        return _lost(self.result.missing)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReleaseReport(RunReport):
    """Of the tables themselves, and where a twin is given that was not learned from them, how near it is to them.

    :ivar compared: the twin; None where there is none.
    """

    result: Marginals
    run: RunFacts
    compared: pd.DataFrame | None = None

    @staticmethod
    def plan_facts(plan: MRFPlan, backend: str) -> dict[str, str]:
        """See `RunReport`."""
        return table_facts(plan, backend, "noisy tables")

    @cached_property
    def score(self) -> TwinQuality | None:
        """How near the twin is."""
        return None if self.compared is None else twin_quality(self.result, self.compared)

    def save(self, folder: Path) -> None:
        """The score, and the tables, unless the run's folder has them as it released them."""
        if self.score is not None:
            (folder / QUALITY).write_text(json.dumps(_plain(self.score), indent=2) + "\n", encoding="utf-8")
        if not (folder / RELEASED).exists():
            self.result.save(folder)

    def files(self, twin: DrawnTwin | None) -> Mapping[str, str]:
        """See `RunReport`."""
        scored = {QUALITY: "what the twin keeps of the dependence, with intervals"}
        told = "the noisy tables that say so; further twins are compared at no further cost"
        return {
            **({} if self.score is None else scored),
            **dict.fromkeys((RELEASED, MARGINALS), _FOR_MODELS if self.score is None else told),
            "privacy.json": POSTERIOR_FILES["privacy.json"],
            REPORT: "guarantees, configuration" if self.score is None else "the score, guarantees, configuration",
        }

    def items(self, twin: DrawnTwin | None) -> Sequence[ReportFigure | ReportTable]:
        """See `RunReport`."""
        if self.score is None or self.compared is None:
            return [*adversary_figure(self.plan), *_learned(self.result)]
        beside = beside_the_release(self.result, self.compared)
        return [*adversary_figure(self.plan), *quality_items(self.score), *beside]

    def verdict(self) -> Sequence[str]:
        """How many pairs of columns it holds."""
        return verdict(self.result, "The release")

    def title(self, twin: DrawnTwin | None) -> str:
        """See `RunReport`."""
        return "A private release of tables" if self.score is None else "How near a synthetic twin is"

    def summary(self, twin: DrawnTwin | None) -> Sequence[str]:
        """See `RunReport`."""
        released = _released(self.plan, self.result.schema)
        if self.score is None:
            return [f"{released}."]
        near = (
            ", and how near a synthetic table is to them. The score holds where the table was not learned from these."
        )
        return [released.removesuffix(_FOLLOWS) + near]

    def configuration(self) -> Mapping[str, str]:
        """See `RunReport`."""
        of_twin = {} if self.compared is None else {"records of the twin": f"{len(self.compared):,}"}
        return {**triples_taken(self.result), **of_twin}

    def result_warnings(self) -> Sequence[str]:
        """What a crash lost."""
        return _lost(self.result.missing)


def verdict(released: Marginals | None, what: str) -> list[str]:
    """A report's first line: how many pairs of columns are held, and show something; none if none were released."""
    found = None if released is None else held(released)
    return [f"{what} {found.verdict}."] if found is not None and found.num_pairs else []


def _missed(twin: MarkovTwin) -> str:
    """The released tables that the twin is off by more than their noise, and what limits it."""
    missed, limit = twin.missed, _LIMITS[twin.limited_by]
    if not missed:
        return f"none, beyond noise; {limit}"
    worst, far = next(iter(missed.items()))
    return f"{len(missed)} of {len(twin.measurements)}, {' × '.join(worst)} the most, by {far:.3f}; {limit}"


def table_facts(plan: MRFPlan, backend: str, method: str) -> dict[str, str]:
    """What a plan of noisy tables fixes, in words."""
    return {
        "method": method,
        "encoder": encoder_of(plan.encoding),
        "records N (public)": f"{plan.num_records:,}",
        "releases": f"{plan.num_steps:,}",
        "tables across parties": f"{plan.num_cross_pairs:,}",
        **_triples_planned(plan),
        "part of the budget for them": f"{plan.cross_share:g}",
        "noise": f"{plan.noise.kind}, {count(plan.noise.num_shares, 'share')}",
        "backend": backend,
        "plan": plan.plan_id[:16],
    }


def _triples_planned(plan: MRFPlan) -> dict[str, str]:
    """How many tables of three columns across parties, and why; nothing of plans that never asked."""
    if not plan.triples_why:
        return {}
    first = f", after a first look at the pairs with {plan.first_share:.0%} of the budget across parties"
    of = f" of {plan.target}" if plan.target else ""
    number = f"{plan.num_triples:,}{of}{first}" if plan.num_triples else "none"
    return {_TRIPLES: f"{number}: {plan.triples_why}"}


def triples_taken(released: Marginals) -> dict[str, str]:
    """Which tables of three columns across parties a release chose; nothing where there are none."""
    words = [" × ".join(triple) for triple in released.triples]
    return {f"{_TRIPLES}, chosen": ", ".join(words)} if words else {}


def twin_items(
    released: Marginals | None, twin: DrawnTwin | None, schema: Schema
) -> Iterator[ReportFigure | ReportTable]:
    """The twin, and beside the tables that it follows from, where the run still has them."""
    if twin is None:
        return
    errors = None if released is None else share_errors(released)
    yield synthetic_summary(twin.table, schema, errors, num_records=twin.num_records)
    yield first_records(twin.table)
    if released is not None:
        yield from beside_the_release(released, twin.table)


def quality_items(score: TwinQuality) -> list[ReportTable]:
    """The score as a table of a report; released."""
    rows = {"all pairs of columns": score.all, "pairs across parties": score.across}
    frame = pd.DataFrame.from_dict({name: _in_words(kept) for name, kept in rows.items()}, orient="index")
    caption = (
        "How much of the dependence in the records the twin keeps: 100 % where every table of two columns is the "
        "records', 0 % where it is no nearer than with its columns shuffled, less where it is further. From noisy "
        "tables that it was not learned from; the interval knows their noise."
    )
    if score.differing:
        named = [" and ".join(columns) for columns in score.differing]
        more = ", …" if len(named) > _MOST_NAMED else ""
        caption += f" Pairs that differ by more than noise, the most first: {', '.join(named[:_MOST_NAMED])}{more}."
    return [ReportTable(frame=frame, caption=caption, not_dp=False, section="How near the twin is")]


def _in_words(kept: Kept) -> dict[str, object]:
    known = not math.isnan(kept.share)
    return {
        "tables": kept.num_tables,
        "kept of the dependence": f"{100 * kept.share:.0f} %" if known else "noise only",
        "95 % interval": f"{100 * kept.low:.0f} to {100 * kept.high:.0f} %" if known else None,
    }


def _plain(score: TwinQuality) -> dict[str, object]:
    def of(kept: Kept) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in kept._asdict().items()}

    differing = [{"columns": list(columns), "squared_distance": d} for columns, d in score.differing.items()]
    return {"all": of(score.all), "across": of(score.across), "differing": differing}


def _released(plan: MRFPlan, schema: Schema) -> str:
    records, parties = count(plan.num_records, "record"), ", ".join(schema.parties)
    return f"Released: noisy tables of {records} whose columns sit at {parties}{_FOLLOWS}"


def _lost(missing: Sequence[str]) -> list[str]:
    return [f"Spent, and lost in a crash: {name}." for name in missing]


def share_errors(released: Marginals) -> dict[str, float]:
    """For each column, the standard deviation of the noise in the share of one of its cells."""
    singles = single_tables(released.measurements, released.num_records)
    return {name: m.stddev / released.num_records for name, m in singles.items()}


def beside_the_release(released: Marginals, twin: pd.DataFrame) -> Iterator[ReportFigure | ReportTable]:
    """Columns and pairs of the twin beside the released tables, and what these did not tell."""
    schema = released.schema.select(twin.columns)
    arrays = VerticalDataset.from_pooled(schema, twin).pooled()
    cells = {c.name: c.codes(arrays) for c in released.columns if c.name in schema.columns}
    sizes = {column.name: column.num_cells for column in released.columns}
    tables = [m for m in merged(released.measurements) if set(m.columns) <= set(cells)]
    pairs = [m for m in tables if len(m.columns) == 2]
    singles = single_tables(tables, released.num_records)
    if can_draw():
        yield from _columns(singles, schema, cells, sizes, released.num_records)
        yield from _pairs(pairs, schema, cells, sizes, released.num_records)
    yield from _dependence(significances(tables, released.num_records))


def _learned(released: Marginals) -> Iterator[ReportTable]:
    return _dependence(significances(merged(released.measurements), released.num_records))


def _columns(
    singles: Mapping[str, Measurement],
    schema: Schema,
    cells: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    num_records: int,
) -> Iterator[ReportFigure]:
    found = {}
    for name in [name for name in schema.columns if name in singles][:MOST_DRAWN]:
        twin = np.bincount(cells[name], minlength=sizes[name]) / len(cells[name])
        found[name] = ReleasedShares(singles[name].values / num_records, singles[name].stddev / num_records, twin)
    if not found:
        return
    yield ReportFigure(
        figure=plot_beside_release(found, schema),
        narrow=plot_beside_release(found, schema, num_across=1 if len(found) <= FEW_PANELS else 2),
        caption="Each column of the twin (bars) beside what the released tables say of it, with two standard "
        "deviations of their noise: where a bar stands within, nothing better is known.",
        not_dp=False,
        section=_LIKE,
    )


def _pairs(
    pairs: Sequence[Measurement],
    schema: Schema,
    cells: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    num_records: int,
) -> Iterator[ReportFigure]:
    names = list(schema.columns)
    if not pairs or len(names) > MOST_DRAWN:
        return
    matrix = pd.DataFrame(np.nan, index=pd.Index(names), columns=pd.Index(names))
    for m in pairs:
        first, second = m.columns
        counts = count_table([cells[name] for name in m.columns], [sizes[name] for name in m.columns])
        twin = counts / len(cells[first])
        by_noise = m.values.size * noise_per_cell(m.stddev) / num_records
        distance = max(0.0, 0.5 * (float(np.abs(m.values / num_records - twin).sum()) - by_noise))
        matrix.loc[first, second] = matrix.loc[second, first] = distance
    largest = max(_PALE, float(np.nanmax(matrix.to_numpy())))
    yield ReportFigure(
        figure=plot_pairwise_tvd(matrix, schema, title=_DISTANCE, largest=largest, note=None),
        caption="Total variation distance of every pair of the twin's columns from its released table, less what "
        "the table's noise explains: 0 is as near as can be known. Empty where no table of a pair was released; "
        "pairs across parties are outlined.",
        not_dp=False,
        section=_LIKE,
    )


def _dependence(above: Mapping[tuple[str, ...], float]) -> Iterator[ReportTable]:
    if not above:
        return
    unknown = [" and ".join(columns) for columns, z in above.items() if z < LEARNED]
    strongest = sorted((c for c, z in above.items() if z >= LEARNED), key=lambda c: -above[c])[:_STRONGEST]
    rows = {" and ".join(columns): {_ABOVE: above[columns]} for columns in strongest}
    caption = f"The pairs that hang together most clearly: {len(above) - len(unknown)} of {len(above)} tables say more "
    caption += "than their noise and the chance of a sample."
    if unknown:
        named = ", ".join(unknown[:_MOST_NAMED]) + (", …" if len(unknown) > _MOST_NAMED else ".")
        caption += f" Not seen to hang together: {named}"
    yield ReportTable(
        frame=pd.DataFrame.from_dict(rows or {"none": {_ABOVE: math.nan}}, "index"),
        caption=caption,
        not_dp=False,
        section="What was learned",
    )
