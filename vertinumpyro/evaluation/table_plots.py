"""Figures about tables: marginals of a real table and its twin, distances of pairs, and a twin beside the noisy tables
or the posterior, where all is released and a figure costs nothing.

Every function returns a `matplotlib.figure.Figure` that pyplot does not know: show it in a notebook, save it
with `figure.savefig`, or put it into a report. Figures that are computed on a real table carry the note
"not DP - internal" in a corner; `note=None` leaves it out, for data that is public anyway.
"""

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.table import Table
from vertinumpyro.evaluation import plot_style
from vertinumpyro.evaluation.marginals import DEFAULT_MAX_BINS, checked_table, cross_party_tvd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure

    from vertinumpyro.data import Column, Schema


CROSS_PARTY_GID = "cross-party"  # gid of the patches that outline a cross-party block
_PARTY_GAP = 0.18  # cells between two parties' blocks
_MOST_ANNOTATED = 24  # columns; beyond, the values would not be readable
_MOST_LABELLED = 12  # cells; beyond, a marginal's axis shows some of the labels only
_LONGEST_LABEL = 14  # characters


@plot_style.styled
def plot_marginals(
    real: Table,
    synthetic: Table,
    schema: "Schema",
    *,
    max_bins: int = DEFAULT_MAX_BINS,
    num_across: int = 4,
    note: str | None = plot_style.NOT_DP_NOTE,
) -> "Figure":
    """One small panel for each column: the real share of each cell in grey, the synthetic share as a line.

    Titles and lines have their party's colour. Cells are those of the public domain, in its order.

    :param real: table with at least the schema's columns. The figure is not DP.
    :param synthetic: table with at least the schema's columns.
    :param schema: the public schema of the joined table.
    :param max_bins: cells of a real or wide integer column.
    :param num_across: panels in a row.
    :param note: text for the corner, or None.
    :raises ArgumentError: a table lacks a column or has no rows, `num_across` is below 1, or matplotlib is missing.
    """
    tables = checked_table(real, schema, "real"), checked_table(synthetic, schema, "synthetic")
    if num_across < 1:
        raise ArgumentError(f"num_across must be at least 1, got {num_across}")
    figure, panels = _panels(schema, list(schema.columns), num_across)
    for name, (axes, colour) in panels.items():
        column = schema.columns[name]
        shares = [_shares(column, pd.Series(table[name]), max_bins) for table in tables]
        _draw_marginal(axes, *shares, colour=colour)
        label_cells(axes, column, len(shares[0]), max_bins)
    _marginals_legend(figure, plot_style.party_colours(schema.parties))
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_pairwise_tvd(
    matrix: pd.DataFrame,
    schema: "Schema",
    *,
    title: str = "Pairwise total variation distance",
    largest: float | None = None,
    note: str | None = plot_style.NOT_DP_NOTE,
) -> "Figure":
    """Heat map of `pairwise_tvd`'s table, by party, with the cross-party blocks outlined.

    Only the lower triangle is drawn, since the table is symmetric; 1-way distances are on the diagonal.
    Values are written into the cells up to 24 columns.

    :param matrix: [d, d] table with the schema's columns as rows and columns, in any order.
    :param schema: the public schema of the joined table; it gives order and parties.
    :param title: a line above the map; the cross-party mean is put under it.
    :param largest: the distance at the dark end of the scale; None takes the matrix's largest.
    :param note: text for the corner, or None.
    :raises ArgumentError: `matrix` lacks a column, `largest` is not positive, or matplotlib is missing.
    """
    cross_party_tvd(matrix, schema)  # checks the matrix
    side = _map_side(schema)
    figure = plot_style.new_figure(side + 0.9, side)
    axes = figure.subplots()
    cells = _draw_heat_map(axes, matrix, schema, _scale_end([matrix], largest))
    axes.set_title(f"{title}\n{_cross_party_line(matrix, schema)}")
    figure.colorbar(cells, ax=axes, label="total variation distance", shrink=0.7, pad=0.02)
    return plot_style.noted(figure, note)


@plot_style.styled
def plot_tvd_comparison(
    matrices: "Mapping[str, pd.DataFrame]", schema: "Schema", *, note: str | None = plot_style.NOT_DP_NOTE
) -> "Figure":
    """Heat maps on one scale: what the parties gain where they learn on the joined table.

    :param matrices: the line above each map, and its [d, d] table of `pairwise_tvd`; the cross-party mean is put under
        it.
    :param schema: the public schema of the joined table.
    :param note: text for the corner, or None.
    :raises ArgumentError: there is no matrix, one lacks a column of the schema, or matplotlib is missing.
    """
    if not matrices:
        raise ArgumentError("matrices is empty; give at least one table of pairwise_tvd")
    for matrix in matrices.values():
        cross_party_tvd(matrix, schema)  # checks the matrix
    side = _map_side(schema)
    figure = plot_style.new_figure(len(matrices) * side + 0.7, side + 0.45)
    row = figure.subplots(1, len(matrices), squeeze=False)[0]
    end = _scale_end(list(matrices.values()), None)
    maps = []
    for axes, (title, matrix) in zip(row, matrices.items(), strict=True):
        maps.append(_draw_heat_map(axes, matrix, schema, end))
        axes.set_title(f"{title}\n{_cross_party_line(matrix, schema)}")
    figure.colorbar(maps[0], ax=list(row), label="total variation distance", shrink=0.7, pad=0.02)
    return plot_style.noted(figure, note)


def _panels(
    schema: "Schema", names: "Sequence[str]", num_across: int, least_width: float = 0.0
) -> "tuple[Figure, dict[str, tuple[Axes, str]]]":
    """A small panel for each of these columns, with its name as the title in its party's colour."""
    across = min(num_across, len(names))
    down = math.ceil(len(names) / across)
    figure = plot_style.new_figure(max(least_width, 2.6 * across + 0.2), 2.15 * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    colours = plot_style.party_colours(schema.parties)
    found = {name: (axes, colours[schema.party_of(name)]) for name, axes in zip(names, panels, strict=False)}
    for name, (axes, colour) in found.items():
        axes.set_title(name, color=colour, fontweight="bold")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return figure, found


def _shares(column: "Column", values: pd.Series, max_bins: int) -> np.ndarray:
    codes, num_cells = column.discretise(values, max_bins=max_bins)
    return np.bincount(np.asarray(codes, np.int64), minlength=num_cells) / len(values)


def _draw_marginal(axes: "Axes", real: np.ndarray, synthetic: np.ndarray, *, colour: str) -> None:
    edges = np.arange(len(real) + 1) - 0.5
    axes.bar(np.arange(len(real)), real, width=0.92, color=plot_style.REAL)
    axes.stairs(synthetic, edges, color=colour, linewidth=1.8)
    axes.set_xlim(edges[0] - 0.1, edges[-1] + 0.1)
    axes.set_ylim(0, 1.1 * max(real.max(), synthetic.max()))
    _show_percentages(axes)


def _show_percentages(axes: "Axes") -> None:
    axes.yaxis.set_major_locator(ticks())
    axes.yaxis.set_major_formatter(percent())
    plot_style.grid(axes, "y")


def label_cells(axes: "Axes", column: "Column", num_cells: int, max_bins: int) -> None:
    """Write the cells' short texts below an axis, some of them where they are many."""
    labels = cell_labels(column, num_cells, max_bins)
    every = 1 if num_cells <= _MOST_LABELLED else math.ceil(num_cells / 5)
    shown = range(0, num_cells, every)
    texts = [_shorten(labels[i]) for i in shown]
    crowded = max(map(len, texts)) * len(texts) > 28
    turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axes.set_xticks(list(shown), texts, **turn)
    axes.tick_params(axis="x", labelsize=8, length=2)


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"


def cell_labels(column: "Column", num_cells: int, max_bins: int) -> list[str]:
    """A short text for each cell of `Column.discretise`: a category, or the lower end of a run of values."""
    texts = column.cell_texts(max_bins)
    present = num_cells - (column.missing != "forbid")
    firsts = [-(-cell * len(texts) // present) for cell in range(present)]  # first code of each group
    return [texts[first] for first in firsts] + ["missing"] * (num_cells - present)


def _marginals_legend(figure: "Figure", colours: dict[str, str]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=plot_style.REAL, label="real")]
    for party, colour in colours.items():
        handles.append(Line2D([], [], color=colour, linewidth=1.8, label=f"synthetic, {party}"))
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


def _positions(schema: "Schema") -> dict[str, float]:
    """Each column's place along an axis: its index, and a gap wherever the party changes."""
    ordered = [name for party in schema.parties for name in schema.columns if schema.party_of(name) == party]
    owners = [schema.party_of(name) for name in ordered]
    steps = [0.0] + [1.0 + _PARTY_GAP * (a != b) for a, b in itertools.pairwise(owners)]
    return dict(zip(ordered, itertools.accumulate(steps), strict=True))


def _draw_heat_map(axes: "Axes", matrix: pd.DataFrame, schema: "Schema", largest: float) -> "PatchCollection":
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    places = _positions(schema)
    pairs = [(a, b) for a, b in itertools.product(places, repeat=2) if places[a] <= places[b]]
    boxes = [Rectangle((places[a] - 0.5, places[b] - 0.5), 1, 1) for a, b in pairs]
    values = np.array([matrix.at[b, a] for a, b in pairs], float)
    cells = PatchCollection(boxes, cmap="Blues", edgecolor="white", linewidth=0.8)
    cells.set_array(values)
    cells.set_clim(0.0, largest)
    axes.add_collection(cells)
    if len(places) <= _MOST_ANNOTATED:
        for (a, b), value in zip(pairs, values, strict=True):
            if math.isnan(value):  # nothing is known of this pair
                continue
            ink = "white" if value > 0.6 * largest else plot_style.INK
            axes.text(places[a], places[b], _short(value), ha="center", va="center", color=ink, size=7.5)
    _outline_cross_party(axes, places, schema)
    _label_columns(axes, places, schema)
    return cells


def _outline_cross_party(axes: "Axes", places: dict[str, float], schema: "Schema") -> None:
    from matplotlib.patches import Rectangle

    spans = _party_spans(places, schema)
    for (left, right), (top, bottom) in itertools.combinations(spans.values(), 2):
        corner = (left - 0.5, top - 0.5)
        axes.add_patch(
            Rectangle(
                corner,
                right - left + 1,
                bottom - top + 1,
                fill=False,
                edgecolor=plot_style.INK,
                linewidth=2.2,
                joinstyle="round",
                gid=CROSS_PARTY_GID,
                zorder=3,
            )
        )


def _party_spans(places: dict[str, float], schema: "Schema") -> dict[str, tuple[float, float]]:
    spans: dict[str, tuple[float, float]] = {}
    for name, place in places.items():
        party = schema.party_of(name)
        spans[party] = (spans.get(party, (place, place))[0], place)
    return spans


def _label_columns(axes: "Axes", places: dict[str, float], schema: "Schema") -> None:
    colours = plot_style.party_colours(schema.parties)
    end = max(places.values()) + 0.5
    axes.set_xlim(-0.6, end + 0.1)
    axes.set_ylim(end + 0.1, -0.6)
    axes.set_aspect("equal")
    axes.set_xticks(list(places.values()), list(places), rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(list(places.values()), list(places))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_color(colours[schema.party_of(label.get_text())])
    for party, (first, _) in _party_spans(places, schema).items():  # in the empty upper triangle
        axes.text(first + 0.7, first, party, color=colours[party], weight="bold", va="center")


def _cross_party_line(matrix: pd.DataFrame, schema: "Schema") -> str:
    mean = cross_party_tvd(matrix, schema)
    return "no cross-party pair" if math.isnan(mean) else f"cross-party mean (outlined) {mean:.3f}"


def _scale_end(matrices: "Sequence[pd.DataFrame]", largest: float | None) -> float:
    if largest is not None and not largest > 0:
        raise ArgumentError(f"largest must be positive, got {largest}")
    return largest or max(1e-3, *(float(np.nanmax(m.to_numpy(float))) for m in matrices))


def _map_side(schema: "Schema") -> float:
    return 2.2 + 0.36 * len(schema.columns)


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def ticks():
    """At most three intervals between round ticks."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3, min_n_ticks=2)


def percent():
    """Shares as whole percentages."""
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0)


_LEGEND = 3.4  # inches, as wide as the legend's longest line


class ReleasedShares(NamedTuple):
    """A column's released shares, and the twin's in the same cells, each `[cells]`.

    :ivar shares: as released; noise may take them below 0.
    :ivar error: standard deviation of each, a number or [cells].
    :ivar twin: the twin's.
    """

    shares: np.ndarray
    error: float | np.ndarray
    twin: np.ndarray


@plot_style.styled
def plot_beside_release(
    columns: Mapping[str, ReleasedShares],
    schema: "Schema",
    *,
    num_across: int = 4,
    label: str = "released, ± 2 standard deviations",
) -> "Figure":
    """One small panel for each column: the twin's shares as bars, the released ones with two standard deviations.

    :param columns: in the schema's order.
    :param schema: the public schema.
    :param num_across: panels in a row.
    :param label: what the legend calls the released shares.
    :raises ArgumentError: there is no column, `num_across` is below 1, or matplotlib is missing.
    """
    if not columns or num_across < 1:
        raise ArgumentError(f"columns has {len(columns)} and num_across={num_across}; give at least one of each")
    figure, panels = _panels(schema, list(columns), num_across, least_width=_LEGEND)
    for name, (axes, colour) in panels.items():
        found = columns[name]
        _draw(axes, found, colour)
        label_cells(axes, schema.columns[name], len(found.twin), len(found.twin))
    _legend(figure, plot_style.party_colours(schema.parties), label)
    return figure


def _draw(axes: "Axes", found: ReleasedShares, colour: str) -> None:
    cells = np.arange(len(found.twin))
    axes.bar(cells, found.twin, width=0.92, color=colour, alpha=0.45)
    axes.errorbar(
        cells,
        found.shares,
        yerr=2 * found.error,
        fmt="o",
        markersize=2.5,
        color=plot_style.INK,
        elinewidth=0.9,
        capsize=0,
    )
    axes.set_xlim(-0.6, len(cells) - 0.4)
    axes.set_ylim(0, 1.1 * max(found.twin.max(), found.shares.max(), 1e-6))
    _show_percentages(axes)


def _legend(figure: "Figure", colours: Mapping[str, str], label: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=c, alpha=0.45, label=f"twin, {p}") for p, c in colours.items()]
    handles.append(Line2D([], [], color=plot_style.INK, marker="o", markersize=3, label=label))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=1 if figure.get_figwidth() <= _LEGEND else min(4, len(handles))
    )
