"""One self-contained HTML file about a run: what was released, who learns how much, and how good it is.

The file has no scripts and loads nothing: its style is inline and its figures are PNGs in data URIs, or SVGs where
they hold characters of which no font is installed here: whoever reads the file has fonts for them. What was computed
on real data outside the mechanism carries the badge "not DP - internal", and is listed in a box of its own.
"""

import base64
import dataclasses
import html
import importlib.resources
import io
import string
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from vertinumpyro.core.errors import ArgumentError, PrivacyError, visible
from vertinumpyro.evaluation.plot_style import NOT_DP_NOTE, lacks_glyphs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADVERSARY_COLUMNS = {
    "adversary": "Adversary",
    "knows": "Knows",
    "relation": "Neighbouring relation",
    "epsilon": "ε",
    "delta": "δ",
    "effective_noise": "Effective noise",
    "status": "Status",
}
RELATIONS = {
    "replace": "one record becomes any other, N is public",
    "add/remove": "one record's contribution is there or zeroed, N is public",
}
"""What the two tables of a neighbouring relation differ in, by the names that rows have."""
PRIVACY_SECTION = "Privacy"  # items under this heading stand below the adversaries
_PNG_DPI = 150
_NARROW = "(max-width: 40rem)"  # as in report.html


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportText:
    """A paragraph of the report.

    :ivar text: what it says; it may hold figures of real data, so it stands in no error and no `repr`.
    :ivar not_dp: whether it says anything that was computed on real data outside the mechanism; it is then badged.
    """

    text: str = dataclasses.field(repr=False)
    not_dp: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReportFigure:
    """A figure of the report.

    :ivar figure: a matplotlib figure; it is only read.
    :ivar caption: what it shows, one or two sentences.
    :ivar not_dp: whether it was computed on real data outside the mechanism; it is then badged.
    :ivar section: the heading under which it stands; figures with one heading stand together, and those under "Privacy"
        below the table of adversaries.
    :ivar alt: text for readers who cannot see it; empty means the caption.
    :ivar narrow: the same, drawn for a screen as narrow as a telephone's; None shows `figure` there, smaller.
    """

    figure: "Figure"
    caption: str
    not_dp: bool
    section: str = "Marginals"
    alt: str = ""
    narrow: "Figure | None" = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReportTable:
    """A table of the report; its index becomes the row headers.

    :ivar frame: the cells; floats are shown with four significant digits, missing cells as a dash.
    :ivar caption: what it shows.
    :ivar not_dp: whether it was computed on real data outside the mechanism; it is then badged.
    :ivar section: the heading under which it stands, before the section's figures.
    """

    frame: pd.DataFrame
    caption: str
    not_dp: bool
    section: str = "Marginals"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ReportContent:
    """Everything that stands in a report; plain text throughout, escaped when it is written.

    :ivar title: the report's heading.
    :ivar summary: paragraphs about what was released, and to whom.
    :ivar facts: name -> value of the privacy plan (say epsilon, delta, relation, noise multiplier, steps).
    :ivar adversary_rows: one mapping for each adversary, with the keys of `ADVERSARY_COLUMNS`; keys that are left out
        show as a dash.
    :ivar figures: the figures, in order.
    :ivar tables: the tables, in order.
    :ivar configuration: name -> value of timing and configuration.
    :ivar code: lines of code that load what was released.
    :ivar notes: further sentences for the box "What is not DP", say about quantities that a party keeps.
    :ivar warnings: sentences that the reader must see first, say an insecure simulation.
    """

    title: str
    summary: Sequence[ReportText] = ()
    facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adversary_rows: Sequence[Mapping[str, str]] = ()
    figures: Sequence[ReportFigure] = ()
    tables: Sequence[ReportTable] = ()
    configuration: Mapping[str, str] = dataclasses.field(default_factory=dict)
    code: str = ""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def not_dp_captions(self) -> tuple[str, ...]:
        """What is not differentially private: paragraphs by their place, tables and figures by their captions."""
        places = [f"paragraph {place} of the summary" for place, item in enumerate(self.summary, 1) if item.not_dp]
        return (*places, *(item.caption for item in (*self.tables, *self.figures) if item.not_dp))


def write_report(path: str | Path, content: ReportContent, *, release: bool = False) -> Path:
    """Write one self-contained HTML file and return its path; an existing file is replaced.

    :param path: where to write; its folder must exist.
    :param content: what stands in the report.
    :param release: whether the file is to be published; it then must not hold anything that is not DP.
    :raises ArgumentError: the folder of `path` does not exist, a paragraph is no `ReportText`, or an adversary row has
        an unknown key.
    :raises PrivacyError: `release` is set and a paragraph, table or figure is not DP; the message says which.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise ArgumentError("path points into a folder that does not exist; create it first")
    text = render_report(content, release=release)
    target.write_text(text, encoding="utf-8")
    return target


def render_report(content: ReportContent, *, release: bool = False) -> str:
    """The text of the HTML file that `write_report` writes.

    :param content: what stands in the report.
    :param release: whether it is to be published; it then must not hold anything that is not DP.
    :raises ArgumentError: a paragraph is no `ReportText`, or an adversary row has an unknown key.
    :raises PrivacyError: `release` is set and a paragraph, table or figure is not DP.
    """
    _check_paragraphs(content.summary)
    captions = content.not_dp_captions()
    if release and captions:
        raise PrivacyError(f"release=True, but these are not DP, take them out: {list(captions)}")
    template = importlib.resources.files("vertinumpyro.evaluation").joinpath("report.html")
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        title=_text(content.title),
        audience=_audience(bool(captions)),
        warnings=_warnings(content.warnings),
        summary="".join(f"<p>{_badge(item.not_dp)}{_text(item.text)}</p>" for item in content.summary),
        facts=_facts(content.facts, "No plan facts were given."),
        adversaries=_adversary_table(content.adversary_rows),
        privacy_items=_items(PRIVACY_SECTION, content),
        not_dp=_not_dp_box(captions, content.notes),
        evaluation=_evaluation(content),
        code=_code(content.code),
        configuration=_facts(content.configuration, "No configuration was given."),
    )


def _check_paragraphs(summary: Sequence[object]) -> None:
    for index, item in enumerate(summary):
        if not isinstance(item, ReportText):
            raise ArgumentError(f"summary[{index}] is no ReportText: give text= and whether it is not_dp=")


def _text(value: object) -> str:
    return html.escape(visible(str(value), keep="\n\t"), quote=True)


def _badge(not_dp: bool) -> str:
    return f'<span class="badge">{NOT_DP_NOTE}</span> ' if not_dp else ""


def _audience(internal: bool) -> str:
    if internal:
        text = "This file holds statistics of real data. Do not publish it."
        return f'<p class="audience">{_badge(True)}{text}</p>'
    return ""


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{_text(warning)}</li>" for warning in warnings)
    return f'<aside class="box warning" aria-label="Warnings"><h2>Warnings</h2><ul>{items}</ul></aside>'


def _facts(facts: Mapping[str, str], nothing: str) -> str:
    if not facts:
        return f'<p class="muted">{nothing}</p>'
    pairs = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="facts">{pairs}</dl>'


def _code(code: str) -> str:
    return f"<section><h2>How to load it</h2><pre><code>{_text(code)}</code></pre></section>" if code else ""


def _adversary_table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return '<p class="muted">No adversary was accounted for.</p>'
    for index, row in enumerate(rows):
        unknown = sorted(set(row) - set(ADVERSARY_COLUMNS))
        if unknown:
            raise ArgumentError(f"adversary_rows[{index}] has unknown keys {unknown}; known: {list(ADVERSARY_COLUMNS)}")
    frame = pd.DataFrame([[row.get(key, "–") for key in ADVERSARY_COLUMNS] for row in rows])
    frame.columns = list(ADVERSARY_COLUMNS.values())
    shown = dict.fromkeys(row.get("relation", "") for row in rows)
    meanings = [f" {relation}: {RELATIONS[relation]}." for relation in shown if relation in RELATIONS]
    caption = "One row for each adversary and neighbouring relation. A smaller ε is a stronger guarantee."
    return _table(frame.set_index("Adversary"), caption + "".join(meanings), not_dp=False)


def _not_dp_box(captions: Sequence[str], notes: Sequence[str]) -> str:
    items = [*captions, *notes]
    lead = (
        "These were computed on real data outside the mechanism. No ε covers them; keep them internal."
        if items
        else "Nothing in this report was computed on real data outside the mechanism."
    )
    listed = "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>" if items else ""
    return f'<div class="box not-dp"><h3>What is not DP</h3><p>{lead}</p>{listed}</div>'


def _evaluation(content: ReportContent) -> str:
    """The sections of figures and tables, in the order in which their headings first appear."""
    headings = dict.fromkeys(item.section for item in (*content.figures, *content.tables))
    return "".join(
        f"<section><h2>{_text(heading)}</h2>{_items(heading, content)}</section>"
        for heading in headings
        if heading != PRIVACY_SECTION
    )


def _items(heading: str, content: ReportContent) -> str:
    tables = (_table(t.frame, t.caption, t.not_dp) for t in content.tables if t.section == heading)
    figures = (_figure(f) for f in content.figures if f.section == heading)
    return "".join((*tables, *figures))


def _table(frame: pd.DataFrame, caption: str, not_dp: bool) -> str:
    corner = _text(frame.index.name or "")
    head = "".join(f'<th scope="col" role="columnheader">{_text(name)}</th>' for name in frame.columns)
    corner_cell = f'<th scope="col" role="columnheader">{corner}</th>' if corner else '<td role="cell"></td>'
    rows = zip(frame.index, frame.to_numpy(object), strict=True)
    body = "".join(_row(label, row, frame.columns) for label, row in rows)
    # Roles, as a table that a narrow screen shows as a list is one to screen readers all the same.
    return (
        f'<div class="scroll"><table role="table"><caption>{_badge(not_dp)}{_text(caption)}</caption>'
        f'<thead role="rowgroup"><tr role="row">{corner_cell}{head}</tr></thead>'
        f'<tbody role="rowgroup">{body}</tbody></table></div>'
    )


def _row(label: object, cells: Iterable[object], names: Iterable[object]) -> str:
    inner = "".join(
        f'<td role="cell" data-label="{_text(name)}"{_number_class(cell)}>{_cell(cell)}</td>'
        for name, cell in zip(names, cells, strict=True)
    )
    return f'<tr role="row"><th scope="row" role="rowheader">{_text(label)}</th>{inner}</tr>'


def _number_class(cell: object) -> str:
    try:
        float(str(cell))
    except ValueError:
        return ""
    return ' class="number"'


def _cell(cell: object) -> str:
    if cell is None or cell is pd.NA or (isinstance(cell, float) and cell != cell):
        return "–"
    return _text(f"{cell:.4g}" if isinstance(cell, float) else cell)


def _figure(item: ReportFigure) -> str:
    image = f'<img src="{_image(item.figure)}" alt="{_text(item.alt or item.caption)}" {_size(item.figure)}>'
    if item.narrow is not None:
        source = f'<source media="{_NARROW}" srcset="{_image(item.narrow)}" {_size(item.narrow)}>'
        image = f"<picture>{source}{image}</picture>"
    return f"<figure>{image}<figcaption>{_badge(item.not_dp)}{_text(item.caption)}</figcaption></figure>"


def _image(figure: "Figure") -> str:
    import matplotlib

    of_texts, buffer = lacks_glyphs(figure), io.BytesIO()
    # without the software's name, a date and random names, equal figures make equal files
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vertinumpyro"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a reader's browser has it
        if of_texts:
            figure.savefig(buffer, format="svg", metadata={"Creator": None, "Date": None})
        else:
            figure.savefig(buffer, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    kind = "svg+xml" if of_texts else "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _size(figure: "Figure") -> str:
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return f'width="{width}" height="{height}"'
