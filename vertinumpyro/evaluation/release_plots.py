"""A twin beside what is known of it, the noisy tables or the posterior: all is released, so a figure costs nothing."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.evaluation import plot_style
from vertinumpyro.evaluation.table_plots import label_cells, percent, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vertinumpyro.data import Schema

_LEGEND = 3.4  # inches, as wide as the legend's longest line


class ReleasedShares(NamedTuple):
    """A column's released shares, and the twin's in the same cells, each `[cells]`.

    Attributes:
        shares: as released; noise may take them below 0.
        error: standard deviation of each, a number or [cells].
        twin: the twin's.
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

    Args:
        columns: in the schema's order.
        schema: the public schema.
        num_across: panels in a row.
        label: what the legend calls the released shares.

    Raises:
        ArgumentError: there is no column, `num_across` is below 1, or matplotlib is missing.
    """
    if not columns or num_across < 1:
        raise ArgumentError(f"columns has {len(columns)} and num_across={num_across}; give at least one of each")
    across = min(num_across, len(columns))
    down = math.ceil(len(columns) / across)
    width = max(_LEGEND, 2.6 * across + 0.2)
    figure = plot_style.new_figure(width, 2.15 * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    colours = plot_style.party_colours(schema.parties)
    for axes, (name, found) in zip(panels, columns.items(), strict=False):
        colour = colours[schema.party_of(name)]
        _draw(axes, found, colour)
        axes.set_title(name, color=colour, fontweight="bold")
        label_cells(axes, schema.columns[name], len(found.twin), len(found.twin))
    for axes in panels[len(columns) :]:
        axes.set_axis_off()
    _legend(figure, colours, label)
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
    axes.yaxis.set_major_locator(ticks(3))
    axes.yaxis.set_major_formatter(percent())
    plot_style.grid(axes, "y")


def _legend(figure: "Figure", colours: Mapping[str, str], label: str) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=c, alpha=0.45, label=f"twin, {p}") for p, c in colours.items()]
    handles.append(Line2D([], [], color=plot_style.INK, marker="o", markersize=3, label=label))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=1 if figure.get_figwidth() <= _LEGEND else min(4, len(handles))
    )
