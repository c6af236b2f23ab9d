"""Schema and privacy plan in the terminal; the plan has a row for each adversary, so laid out that no word is cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vertinumpyro.data import Schema
from vertinumpyro.evaluation.report import RELATIONS
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import cautions, headline, rounded_up

__all__ = ["AdversaryTable", "facts_grid", "plain_table", "plan_view", "privacy_legend", "schema_table"]

_KNOWS = "knows besides the releases"
_WHO = f"adversary, and what it {_KNOWS}"
_NUMBERS = ("ε", "δ", "σ/C")
_SMALLEST_WHO = 16
_GAP = 2  # between columns
_PROOF_STYLES = {"proved": "green", "unproven": "bold red"}

Columns = dict[str, list[Text]]


@dataclasses.dataclass(frozen=True)
class AdversaryTable:
    """A row for each adversary of a plan; the comparison row, which nothing claims, is dimmed.

    A word is broken only where it is wider than the terminal. With room every field but knowledge stands in one line;
    with less the adversary's knowledge stands under its name; with little each adversary is a paragraph.
    """

    plan: Plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The first layout that fits."""
        rows = self.plan.table_rows()
        columns, styles = _columns(rows), [None if row["claim"] else "dim" for row in rows]
        for layout, widths in (
            _knowledge_beside(columns, options.max_width),
            _knowledge_below(columns, options.max_width),
        ):
            if widths:
                yield _table(layout, widths, styles)
                return
        yield _paragraphs(columns, styles)


def privacy_legend(plan: Plan) -> Text:
    """How to read a plan's privacy table: the relations that occur, and what else stands there."""
    relations = dict.fromkeys(_relation(row) for row in plan.table_rows())
    lines = [f"{relation}: {RELATIONS[relation]}." for relation in relations]
    lines.append("DP: for any two such tables. VPDP: the same, where both agree on the adversary's own columns.")
    lines.append("σ/C: noise that the adversary does not know, over what a record adds at most. ε is rounded up.")
    return Text("\n".join(lines), style="dim")


def _columns(rows: Iterable[Mapping]) -> Columns:
    """Every field in words, by its header."""
    cells = [
        {
            "adversary": Text(row["adversary"], style="bold" if row["claim"] else ""),
            _KNOWS: Text(", ".join(row["knows"]) or "nothing"),
            "guarantee": Text(row["guarantee"]),
            "relation": Text(_relation(row)),
            "ε": Text(rounded_up(row["epsilon"]), style="bold" if row["claim"] else ""),
            "δ": Text(f"{row['delta']:g}"),
            "σ/C": Text(f"{row['noise_multiplier']:.3g}"),
            "proof": Text(row["proof"], style=_PROOF_STYLES[row["proof"]]) if row["claim"] else Text("compare only"),
        }
        for row in rows
    ]
    return {header: [row[header] for row in cells] for header in cells[0]}


def _relation(row: Mapping) -> str:
    return row["relation"].replace("_", "/")


def _knowledge_beside(columns: Columns, width: int) -> tuple[Columns, dict[str, int]]:
    """Eight columns, and their widths; none if they do not fit. Only knowledge takes several lines."""
    widths = {header: _widest(header, cells) for header, cells in columns.items()}
    room = _room(width, widths, _KNOWS)
    if room < min(widths[_KNOWS], cell_len(_KNOWS)):
        return columns, {}
    return columns, widths | {_KNOWS: min(widths[_KNOWS], room)}


def _knowledge_below(columns: Columns, width: int) -> tuple[Columns, dict[str, int]]:
    """Five columns, of which the first and the last hold several fields below each other."""
    layout = {
        _WHO: _below(columns["adversary"], [Text(str(text), style="dim") for text in columns[_KNOWS]]),
        **{header: columns[header] for header in _NUMBERS},
        "guarantee": _below(_listed(columns["guarantee"], columns["relation"]), columns["proof"]),
    }
    widths = {header: _widest(header, cells) for header, cells in layout.items()}
    room = _room(width, widths, _WHO)
    fits = room >= max(_SMALLEST_WHO, *(cell_len(word) for text in layout[_WHO] for word in str(text).split()))
    return layout, widths | {_WHO: min(widths[_WHO], room)} if fits else {}


def _below(first: Iterable[Text], second: Iterable[Text]) -> list[Text]:
    return [Text("\n").join(pair) for pair in zip(first, second, strict=True)]


def _listed(*cells: Iterable[Text]) -> list[Text]:
    return [Text(", ").join(row) for row in zip(*cells, strict=True)]


def _paragraphs(columns: Columns, styles: list[str | None]) -> Table:
    """The name, and below it the numbers and the words."""
    numbers = _listed(*([Text(f"{header} ") + text for text in columns[header]] for header in _NUMBERS))
    claims = _listed(columns["guarantee"], columns["relation"], columns["proof"])
    knowledge = [Text(f"{_KNOWS}: ") + text for text in columns[_KNOWS]]
    grid = Table.grid()
    grid.add_column(overflow="fold")
    for style, name, *lines in zip(styles, columns["adversary"], numbers, claims, knowledge, strict=True):
        grid.add_row(name, style=style)
        for line in lines:
            grid.add_row(Padding(line, (0, 0, 0, 2)), style=style)
    return grid


def _table(columns: Columns, widths: Mapping[str, int], styles: list[str | None]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="dim")
    for header in columns:
        table.add_column(header, width=widths[header], justify="right" if header in _NUMBERS else "left")
    for style, cells in zip(styles, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*cells, style=style)
    return table


def _room(width: int, widths: Mapping[str, int], header: str) -> int:
    """What the other columns leave."""
    return width - _GAP * (len(widths) - 1) - sum(value for name, value in widths.items() if name != header)


def _widest(header: str, cells: Iterable[Text]) -> int:
    return max(cell_len(line) for text in (header, *map(str, cells)) for line in text.splitlines())


def schema_table(schema: Schema) -> Table:
    """Party, column, type and public domain; the party's name stands once."""
    table = plain_table()
    for name in ("party", "column", "type", "public domain"):
        table.add_column(name, overflow="fold")
    for party, part in schema.parties.items():
        last = len(part.columns) - 1
        for index, (name, column) in enumerate(part.columns.items()):
            shown = Text(party if index == 0 else "", style="bold")
            table.add_row(shown, escape(name), column.type_name, escape(column.describe()), end_section=index == last)
    return table


def plan_view(plan: Plan, facts: Mapping[str, str]) -> Iterator[RenderableType]:
    """The largest ε, the plan's facts, then a row for each adversary, who gets more, and how to read them."""
    yield Padding(Text(headline(plan), style="bold"), (0, 0, 1, 0))
    yield facts_grid(facts)
    yield Padding(AdversaryTable(plan), (1, 0, 1, 0))
    for line in cautions(plan):
        yield Padding(Text(f"! {line}", style="yellow"), (0, 0, 1, 0))
    yield privacy_legend(plan)


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names on the left, values on the right."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(escape(name), escape(value))
    return grid


def plain_table() -> Table:
    """A table with a dim heading and no frame."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
