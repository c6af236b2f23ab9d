"""Schema and privacy plan in the terminal, a row for each adversary, laid out so that no word is cut; what two plans
differ in; and what all plans on a party's data sets cost together, before and after one that is planned.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vertinumpyro.cli.job import Job
from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema
from vertinumpyro.data.toml import read_settings
from vertinumpyro.evaluation.report import RELATIONS
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.account import ACCOUNT, Account, AccountEntry, Total, accounts
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.reports.plain_language import cautions, count, headline, rounded_up
from vertinumpyro.session import PRIVACY_RECORD
from vertinumpyro.study import Agreement

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


_AGREED = "members"  # a key of an agreement's file, and of no configuration's
_NAMES = ("plan_id",)  # of every plan its own: says nothing about it


def difference(first: Path, second: Path) -> dict[str, Any]:
    """Print the settings that differ, and every adversary's ε by both plans.

    :returns: both, for programs.
    :raises ArgumentError: a file holds no plan, and none can be made of it.
    """
    with console.status("[dim]privacy plans …"):
        plans = [plan_at(path) for path in (first, second)]
    names = [path.name for path in (first, second)]
    if names[0] == names[1]:
        names = [str(path) for path in (first, second)]
    settings = dict(_changed(*(_flat(plan) for plan in plans)))
    epsilons = {row: tuple(_epsilon(plan, row) for plan in plans) for row in _rows(plans)}
    console.print(heading("Settings that differ"))
    console.print(_rows_table("setting", names, settings) if settings else "none, but for the plans' own ids")
    console.print(heading(f"ε against each adversary, at δ = {' and '.join(_deltas(plans))}"))
    shown = {
        row: tuple("–" if value is None else rounded_up(value) for value in pair) for row, pair in epsilons.items()
    }
    console.print(_rows_table("adversary", names, shown))
    return {"settings": settings, "epsilon": epsilons, "plans": [plan.to_dict() for plan in plans]}


def plan_at(path: Path) -> Plan:
    """The plan of a run's folder or record, of an agreement, or the one that a configuration would make.

    :raises ArgumentError: there is none.
    """
    if path.is_dir():
        path = path / PRIVACY_RECORD
    if not path.exists():
        raise ArgumentError(f"{path} does not exist; give a run's folder, privacy.json, study.toml or config.toml")
    if path.suffix == ".json":
        return read_record(path).plan
    if _AGREED not in read_settings(path):
        job = Job.load(path, None)
        return job.method.plan(job.facts())
    plan = Agreement.load(path).plan
    if plan is None:
        raise ArgumentError(f"{path.name} is an agreement on a linkage, which has no plan")
    return plan


def _flat(plan: Plan) -> dict[str, Any]:
    """Every setting by its path, `noise.num_parties`."""

    def walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}" if path else str(key))
        else:
            yield path, value

    found = dict(walk(json.loads(json.dumps(plan.to_dict())), ""))
    return {key: value for key, value in found.items() if key.rpartition(".")[2] not in _NAMES}


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key in dict.fromkeys([*first, *second]):
        pair = (first.get(key), second.get(key))
        if pair[0] != pair[1]:
            yield key, pair


def _rows(plans: list[Plan]) -> list[str]:
    return list(dict.fromkeys(row.adversary for plan in plans for row in plan.adversaries))


def _epsilon(plan: Plan, adversary: str) -> float | None:
    """None where the plan says nothing of that adversary."""
    found = [row.epsilon for row in plan.adversaries if row.adversary == adversary]
    return max(found) if found else None


def _deltas(plans: list[Plan]) -> list[str]:
    return list(dict.fromkeys(f"{plan.delta:g}" for plan in plans))


def _rows_table(what: str, names: list[str], rows: Mapping[str, Sequence[Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in (what, *names):
        table.add_column(Text(header), overflow="fold")
    for name, pair in rows.items():
        table.add_row(Text(name), *(Text(_shown(value)) for value in pair))
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_TOTAL_RULE = (
    "ε of all plans together where one record is replaced, composed by dp-accounting and rounded up. A plan counts in "
    "full from its first step on, and while it may be continued."
)


def budget(study: Path | None, *, party: Path, ledger: Path | None) -> None:
    """Print every data set's account, or the one that a study would be charged to.

    :raises PrivacyError: with the study the total would pass the party's limit.
    """
    if ledger is not None:
        if study is not None:
            raise ArgumentError("--ledger: a study is charged to a party's account; give its party.toml instead")
        found = accounts(ledger / ACCOUNT)
        if not found:
            raise ArgumentError(f"--ledger: {str(ledger)!r} holds no {ACCOUNT}; name a party's folder of records")
        for account in found:
            _print_account(account, None)
        return
    own = PartyFile.load(party)
    if study is not None:
        agreement = Agreement.load(study)
        agreement.member(own.name)
        _print_account(own.account, agreement.spent)
        own.account.check(agreement.spent)
        return
    for account in accounts(own.account.path, own.limits.total) or [own.account]:
        _print_account(account, None)


def account_view(account: Account, planned: Plan | None) -> RenderableType:
    """An account's plans and totals; with a planned one, what they would become."""
    return Group(*_account_parts(account, planned))


def _print_account(account: Account, planned: Plan | None) -> None:
    console.print(heading(f"Budget of {account.data_set} at {account.party}"))
    console.print(account_view(account, planned))


def _account_parts(account: Account, planned: Plan | None) -> Iterator[RenderableType]:
    entries = account.entries()
    if entries:
        yield _account_table(
            "plan", "method", "begun", "steps", "worst ε", rows=[_entry_cells(entry) for entry in entries]
        )
    else:
        yield Text("No plan was ever begun on it.")
    for entry in entries:
        if entry.failed:
            yield Text(f"{entry.plan.plan_id[:8]} was closed when a check failed: {entry.failed}", style="red")
    before = account.totals()
    after = before if planned is None else account.totals(planned)
    if planned is not None and planned.plan_id in {entry.plan.plan_id for entry in entries}:
        yield Text("The study's plan is among them.")
        planned = None
    columns = ["ε of all", "with this plan", "δ"] if planned is not None else ["ε of all", "δ"]
    known = {total.adversary: total for total in before}
    unseen = known[before[0].adversary]  # who took part in nothing yet is an outside analyst
    rows = [
        [
            total.adversary,
            _total_epsilon(known.get(total.adversary, unseen)),
            *([_total_epsilon(total)] if planned is not None else []),
            f"{total.delta:g}",
        ]
        for total in after
    ]
    yield Text()
    yield _account_table("against", *columns, rows=rows)
    if any(total.unproven for total in after):
        yield Text("Not proved: " + ", ".join(dict.fromkeys(step for t in after for step in t.unproven)), style="red")
    limit = "" if account.limit is None else f" The policy allows {account.limit.epsilon:g} in all."
    yield Text(_TOTAL_RULE + limit, style="dim")


def _entry_cells(entry: AccountEntry) -> list[str]:
    done = "a check failed" if entry.failed else "finished" if entry.finished else "may go on"
    steps = f"{entry.steps_spent} of {count(entry.plan.num_steps, 'step')}, {done}"
    epsilon = rounded_up(entry.plan.worst.epsilon) if entry.secure_noise else "∞, noise from a seed"
    return [entry.plan.plan_id[:8], entry.plan.kind, entry.begun[:10], steps, epsilon if entry.counts else "0, unused"]


def _total_epsilon(total: Total) -> str:
    return rounded_up(total.epsilon) + (", not proved" if total.unproven else "")


def _account_table(*headers: str, rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, justify="right" if "ε" in header or header in ("with this plan", "δ") else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
