"""What a release report shows of a twin and the noisy tables that it follows from. All of it is released, so DP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from vertinumpyro.cli.outputs import can_draw
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.evaluation import ReleasedShares, ReportFigure, ReportTable, plot_beside_release, plot_pairwise_tvd
from vertinumpyro.mrf import Marginals
from vertinumpyro.mrf.dependence import one_way, significance
from vertinumpyro.mrf.release import Measurement, count_table, noise_per_cell
from vertinumpyro.posterior.twin_columns import restricted

__all__ = ["beside_the_release", "share_errors"]

_MOST_DRAWN = 40  # columns; more are no longer readable
_MOST_NAMED, _STRONGEST = 8, 10
_DISTANCE = "Distance from what was released, beyond noise"
_PALE = 0.05  # at least the dark end of the scale of distances
_LEARNED = 3.0  # standard deviations of its noise that a table's dependence must stand above it


def share_errors(released: Marginals) -> dict[str, float]:
    """For each column, the standard deviation of the noise in the share of one of its cells."""
    return {
        name: one_way(name, released.measurements, released.num_records).stddev / released.num_records
        for name in dict.fromkeys(name for m in released.measurements for name in m.columns)
    }


def beside_the_release(released: Marginals, twin: pd.DataFrame) -> Iterator[ReportFigure | ReportTable]:
    """Columns and pairs of the twin beside the released tables, and what these did not tell."""
    schema = restricted(released.schema, twin.columns)
    arrays = VerticalDataset.from_pooled(schema, twin).pooled()
    cells = {c.name: c.codes(arrays) for c in released.columns if c.name in schema.columns}
    sizes = {column.name: column.num_cells for column in released.columns}
    tables = [m for m in released.measurements if set(m.columns) <= set(cells)]
    counted = [_counted(m, cells, sizes) * (released.num_records / len(twin)) for m in tables]
    if can_draw():
        yield from _columns(released, tables, schema, cells, sizes)
        yield from _pairs(released.num_records, tables, counted, schema)
    yield from _dependence(released.num_records, tables)


def _counted(m: Measurement, cells: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
    return count_table([cells[name] for name in m.columns], [sizes[name] for name in m.columns]).astype(float)


def _columns(
    released: Marginals,
    tables: Sequence[Measurement],
    schema: Schema,
    cells: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
) -> Iterator[ReportFigure]:
    measured = {name for m in tables for name in m.columns}
    names = [name for name in schema.columns if name in measured][:_MOST_DRAWN]
    if not names:
        return
    N, found = released.num_records, {}
    for name in names:
        column = one_way(name, tables, N)
        twin = np.bincount(cells[name], minlength=sizes[name]) / len(cells[name])
        found[name] = ReleasedShares(column.values / N, column.stddev / N, twin)
    yield ReportFigure(
        figure=plot_beside_release(found, schema),
        caption="Each column of the twin (bars) beside what the released tables say of it, with two standard "
        "deviations of their noise: where a bar stands within, nothing better is known.",
        not_dp=False,
        section="Is the twin like what was released?",
    )


def _pairs(
    num_records: int, tables: Sequence[Measurement], counted: Sequence[np.ndarray], schema: Schema
) -> Iterator[ReportFigure]:
    names = list(schema.columns)
    matrix = pd.DataFrame(np.nan, index=pd.Index(names), columns=pd.Index(names))
    for m, twin in zip(tables, counted, strict=True):
        if len(m.columns) == 2:
            distance = 0.5 * np.abs(m.values - twin).sum() / num_records
            by_noise = 0.5 * m.values.size * noise_per_cell(m.stddev) / num_records
            matrix.loc[m.columns[0], m.columns[1]] = matrix.loc[m.columns[1], m.columns[0]] = max(
                0.0, distance - by_noise
            )
    largest = float(np.nanmax([0.0, *matrix.to_numpy().ravel()]))
    if len(names) <= _MOST_DRAWN and not matrix.isna().to_numpy().all():
        yield ReportFigure(
            figure=plot_pairwise_tvd(matrix, schema, title=_DISTANCE, largest=max(_PALE, largest), note=None),
            caption="Total variation distance of every pair of the twin's columns from its released table, less what "
            "the table's noise explains: 0 is as near as can be known. Empty where no table of a pair was released; "
            "pairs across parties are outlined.",
            not_dp=False,
            section="Is the twin like what was released?",
        )


def _dependence(num_records: int, tables: Sequence[Measurement]) -> Iterator[ReportTable]:
    pairs = [m for m in tables if len(m.columns) == 2]
    if not pairs:
        return
    singles = {name: one_way(name, tables, num_records).values for m in pairs for name in m.columns}
    above: dict[tuple[str, ...], float] = {}
    for m in pairs:  # some are measured again
        above[m.columns] = max(significance(m, singles), above.get(m.columns, -math.inf))
    unknown = [" and ".join(columns) for columns, z in above.items() if z < _LEARNED]
    strongest = sorted((c for c, z in above.items() if z >= _LEARNED), key=lambda c: -above[c])[:_STRONGEST]
    rows = {" and ".join(columns): {"above its noise, in standard deviations": above[columns]} for columns in strongest}
    caption = f"The pairs that hang together most clearly: {len(above) - len(unknown)} of {len(above)} tables say more "
    caption += "than their noise."
    if unknown:
        named = ", ".join(unknown[:_MOST_NAMED]) + (", …" if len(unknown) > _MOST_NAMED else "")
        caption += f" Noise only, so whether they hang together was not learned: {named}."
    yield ReportTable(
        frame=pd.DataFrame.from_dict(rows or {"none": {"above its noise, in standard deviations": math.nan}}, "index"),
        caption=caption,
        not_dp=False,
        section="What was learned",
    )
