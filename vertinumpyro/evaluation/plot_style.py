"""Colours, type, and the lazy import of matplotlib that every figure shares.

The colours are Okabe and Ito's set, distinct for the common kinds of colour blindness; where colours tell
lines apart, line styles or markers do too.

Names of columns and categories may be in any script. A text whose font lacks some of its characters gets further fonts
that have them; where no installed font has, `lacks_glyphs` says so, and whoever draws leaves the text to a browser.
"""

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vertinumpyro.core.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

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
    "text.parse_math": False,  # a category may be called "$10 to $20"
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


def optional_module(module: str, package: str) -> Any:
    """A module of an optional package.

    :raises ArgumentError: it is not installed; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(package) from error


def styled(plot: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Run a plotting function under the library's style, and leave matplotlib's global settings alone.

    :raises ArgumentError: matplotlib is not installed; the message names the extra `report`.
    """

    @functools.wraps(plot)
    def wrapper(*args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        with optional_module("matplotlib", "matplotlib").rc_context(_RC):
            return _with_glyphs(plot(*args, **kwargs))

    return wrapper


def lacks_glyphs(figure: "Figure") -> bool:
    """Whether some character of a figure is in none of its text's fonts: it would be drawn as a box."""
    return any(_missing(text) for text in _texts(figure))


def _with_glyphs(result: _Result) -> _Result:
    """A figure whose texts have fonts for all of their characters, as far as some are installed."""
    from matplotlib.figure import Figure

    for text in _texts(result) if isinstance(result, Figure) else ():
        if missing := _missing(text):
            text.set_fontfamily([*text.get_fontfamily(), *_families_with(missing)])
    return result


def _texts(figure: "Figure") -> "list[Text]":
    from matplotlib.text import Text

    return [artist for artist in figure.findobj(Text) if isinstance(artist, Text)]


def _missing(text: "Text") -> frozenset[str]:
    """The characters of a text that none of its fonts has."""
    if text.get_text().isascii():
        return frozenset()
    from matplotlib.font_manager import findfont

    left = frozenset(character for character in text.get_text() if not character.isascii() and character.isprintable())
    properties = text.get_fontproperties().copy()
    for family in text.get_fontfamily() if left else ():
        properties.set_family([family])
        left -= _characters(findfont(properties), left)
    return left


@functools.lru_cache(maxsize=256)
def _families_with(characters: frozenset[str]) -> tuple[str, ...]:
    """Installed fonts that have as many of the characters as any has, those without serifs first."""
    from matplotlib.font_manager import fontManager

    found: list[str] = []
    fonts = {font.name: font.fname for font in fontManager.ttflist if not font.name.startswith("Last Resort")}
    for name in sorted(fonts, key=lambda name: ("sans" not in name.lower() and "gothic" not in name.lower(), name)):
        if have := _characters(fonts[name], characters):
            found.append(name)
            characters -= have
        if not characters:
            break
    return tuple(found)


def _characters(font: str, characters: frozenset[str]) -> frozenset[str]:
    """Those of the characters that the font in a file has."""
    from matplotlib.font_manager import get_font

    try:
        opened = get_font(font)
    except (OSError, RuntimeError):  # a file that is gone, or in a format that matplotlib does not read
        return frozenset()
    return frozenset(character for character in characters if opened.get_char_index(ord(character)))


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
