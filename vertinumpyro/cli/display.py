"""Public facts as tables of the terminal: the schema, the privacy plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vertinumpyro.cli.adversary_table import AdversaryTable, privacy_legend
from vertinumpyro.cli.comparison import Comparison
from vertinumpyro.data import Schema
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import cautions, headline

__all__ = ["facts_grid", "plan_view", "results_table", "schema_table"]


def schema_table(schema: Schema) -> Table:
    """Party, column, type and public domain; the party's name stands once."""
    table = _table()
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


def results_table(comparison: Comparison) -> Table:
    """A row for each twin: how far it is from the real table across the parties, and what it keeps of the link."""
    table = _table()
    a, b = comparison.link
    table.add_column("the twin was learned", no_wrap=True)
    table.add_column("pairs across the parties: mean TVD", justify="right")
    table.add_column(escape(f"{a} × {b}: R-score"), justify="right")
    for name, tvd in comparison.cross_party.items():
        table.add_row(escape(name.removeprefix("learned ")), f"{tvd:.3f}", f"{comparison.dependence[name]:.3f}")
    table.add_row("(the real table)", "", f"{comparison.real_dependence:.3f}")
    return table


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names on the left, values on the right."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(escape(name), escape(value))
    return grid


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
