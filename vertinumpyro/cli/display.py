"""Public facts as tables of the terminal: the schema, the privacy plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vertinumpyro.cli.wording import domain, plan_facts, rounded_up
from vertinumpyro.data import Schema
from vertinumpyro.privacy import PrivacyPlan
from vertinumpyro.privacy.ledger import SpendablePlan

__all__ = ["facts_grid", "plan_view", "privacy_legend", "privacy_table", "schema_table"]


def schema_table(schema: Schema) -> Table:
    """Party, column, type and public domain; the party's name stands once."""
    table = _table()
    for name in ("party", "column", "type"):
        table.add_column(name, no_wrap=True)
    table.add_column("public domain")
    for party, part in schema.parties.items():
        last = len(part.columns) - 1
        for index, (name, column) in enumerate(part.columns.items()):
            shown = Text(party if index == 0 else "", style="bold")
            table.add_row(shown, escape(name), column.type_name, escape(domain(column)), end_section=index == last)
    return table


def plan_view(plan: PrivacyPlan, backend: str) -> Iterator[RenderableType]:
    """The plan's facts, then a row for each adversary, then how to read them."""
    yield facts_grid(plan_facts(plan, backend))
    yield Padding(privacy_table(plan), (1, 0, 0, 0))
    yield privacy_legend()


def privacy_legend() -> Text:
    """How to read the privacy table."""
    return Text(
        "DP: for any two tables that differ in one record. VPDP: the same, where both tables agree on the "
        "adversary's own columns.\nσ/C: noise that the adversary does not know, over the clip norm. "
        "ε is rounded up.",
        style="dim",
    )


def privacy_table(plan: SpendablePlan) -> Table:
    """A row for each adversary; the comparison row, which nothing claims, is dimmed."""
    table = _table()
    for name in ("adversary", "knows besides the releases", "guarantee", "relation"):
        table.add_column(name)
    for name in ("ε", "δ", "σ/C"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("proof", no_wrap=True)
    for row in plan.table_rows():
        claim = row["claim"]
        table.add_row(
            Text(row["adversary"], style="bold" if claim else ""),
            ", ".join(row["knows"]) or "nothing",
            row["guarantee"],
            row["relation"].replace("_", "/"),
            Text(rounded_up(row["epsilon"]), style="bold" if claim else ""),
            f"{row['delta']:g}",
            f"{row['noise_multiplier']:.3g}",
            Text(row["proof"], style=_PROOF_STYLES[row["proof"]]) if claim else "compare only",
            style=None if claim else "dim",
        )
    return table


def facts_grid(facts: Mapping[str, str]) -> Table:
    """Names on the left, values on the right."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, escape(value))
    return grid


_PROOF_STYLES = {"proved": "green", "unproven": "bold red"}


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
