"""What a release report shows of a twin and the noisy tables that it follows from. All of it is released, so DP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from vertinumpyro.cli.outputs import FEW_PANELS, can_draw
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.evaluation import ReleasedShares, ReportFigure, ReportTable, plot_beside_release, plot_pairwise_tvd
from vertinumpyro.mrf import Marginals
from vertinumpyro.mrf.adaptive import merged
from vertinumpyro.mrf.dependence import one_way, significance
from vertinumpyro.mrf.release import Measurement, count_table, noise_per_cell
from vertinumpyro.posterior.synthetic_columns import restricted

__all__ = ["beside_the_release", "share_errors"]

_MOST_DRAWN = 40  # columns; more are no longer readable
_MOST_NAMED, _STRONGEST = 8, 10
_LIKE = "Is the twin like what was released?"
_DISTANCE = "Distance from what was released, beyond noise"
_PALE = 0.05  # at least the dark end of the scale of distances
_LEARNED = 3.0  # standard deviations of its noise that a table's dependence must stand above it


def share_errors(released: Marginals) -> dict[str, float]:
    """For each column, the standard deviation of the noise in the share of one of its cells."""
    singles = _singles(released.measurements, released.num_records)
    return {name: m.stddev / released.num_records for name, m in singles.items()}


def beside_the_release(released: Marginals, twin: pd.DataFrame) -> Iterator[ReportFigure | ReportTable]:
    """Columns and pairs of the twin beside the released tables, and what these did not tell."""
    schema = restricted(released.schema, twin.columns)
    arrays = VerticalDataset.from_pooled(schema, twin).pooled()
    cells = {c.name: c.codes(arrays) for c in released.columns if c.name in schema.columns}
    sizes = {column.name: column.num_cells for column in released.columns}
    tables = [m for m in merged(released.measurements) if set(m.columns) <= set(cells)]
    pairs = [m for m in tables if len(m.columns) == 2]
    singles = _singles(tables, released.num_records)
    if can_draw():
        yield from _columns(singles, schema, cells, sizes, released.num_records)
        yield from _pairs(pairs, schema, cells, sizes, released.num_records)
    yield from _dependence(pairs, singles)


def _singles(tables: Sequence[Measurement], num_records: int) -> dict[str, Measurement]:
    names = dict.fromkeys(name for m in tables for name in m.columns)
    return {name: one_way(name, tables, num_records) for name in names}


def _columns(
    singles: Mapping[str, Measurement],
    schema: Schema,
    cells: Mapping[str, np.ndarray],
    sizes: Mapping[str, int],
    num_records: int,
) -> Iterator[ReportFigure]:
    found = {}
    for name in [name for name in schema.columns if name in singles][:_MOST_DRAWN]:
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
    if not pairs or len(names) > _MOST_DRAWN:
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


def _dependence(pairs: Sequence[Measurement], singles: Mapping[str, Measurement]) -> Iterator[ReportTable]:
    if not pairs:
        return
    counts = {name: m.values for name, m in singles.items()}
    above = {m.columns: significance(m, counts) for m in pairs}
    unknown = [" and ".join(columns) for columns, z in above.items() if z < _LEARNED]
    strongest = sorted((c for c, z in above.items() if z >= _LEARNED), key=lambda c: -above[c])[:_STRONGEST]
    rows = {" and ".join(columns): {"above its noise, in standard deviations": above[columns]} for columns in strongest}
    caption = f"The pairs that hang together most clearly: {len(above) - len(unknown)} of {len(above)} tables say more "
    caption += "than their noise."
    if unknown:
        named = ", ".join(unknown[:_MOST_NAMED]) + (", …" if len(unknown) > _MOST_NAMED else ".")
        caption += f" Noise only, so whether they hang together was not learned: {named}"
    yield ReportTable(
        frame=pd.DataFrame.from_dict(rows or {"none": {"above its noise, in standard deviations": math.nan}}, "index"),
        caption=caption,
        not_dp=False,
        section="What was learned",
    )
