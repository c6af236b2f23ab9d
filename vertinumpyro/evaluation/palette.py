"""Colours, type sizes and the lazy import of matplotlib that every figure shares.

The colours are Okabe and Ito's set, distinct for the common kinds of colour blindness; where colours tell
lines apart, line styles or markers do too.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vertinumpyro.core.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1f2933"  # text and the darkest lines
MUTED = "#616e7c"  # secondary text, axes
RULE = "#d9dee4"  # grid lines
REAL = "#b4bcc6"  # the real table, always filled grey
ALARM = "#a83f00"  # the not-DP note
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P")
NOT_DP_NOTE = "not DP - internal"

_RC: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


def missing_extra(package: str) -> ArgumentError:
    """The error for an optional package that is not installed; it names the extra that brings it."""
    return ArgumentError(f"this needs {package}: install it with `pip install 'vertinumpyro[report]'`")


def styled(plot: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Run a plotting function under the library's style, and leave matplotlib's global settings alone.

    Raises:
        ArgumentError: matplotlib is not installed; the message names the extra `report`.
    """

    @functools.wraps(plot)
    def wrapper(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            import matplotlib
        except ImportError as error:
            raise missing_extra("matplotlib") from error
        with matplotlib.rc_context(_RC):
            return plot(*args, **kwargs)

    return wrapper


def new_figure(width: float, height: float) -> "Figure":
    """An empty Figure of `width` x `height` inches that pyplot does not know, so nobody must close it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def party_colours(parties: Iterable[str]) -> dict[str, str]:
    """A colour for each party, in the schema's order; they repeat after six parties."""
    return {name: SERIES[i % len(SERIES)] for i, name in enumerate(parties)}


def grid(axes: "Axes", axis: str) -> None:
    """Pale grid lines along one axis ("x" or "y") and no tick marks on it."""
    axes.grid(True, axis=axis)  # type: ignore[arg-type]
    axes.tick_params(axis=axis, length=0)  # type: ignore[arg-type]


def noted(figure: "Figure", note: str | None) -> "Figure":
    """The same figure with a small note in its lower right corner, if there is one."""
    if note:
        figure.supxlabel(note, x=0.995, ha="right", fontsize=8, color=ALARM)
    return figure
