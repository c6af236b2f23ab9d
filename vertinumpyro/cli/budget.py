"""`budget`: what all plans on a party's data sets cost together, before and after one that is planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from vertinumpyro.cli.party_file import PartyFile
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.account import ACCOUNT, Account, AccountEntry, Total, accounts
from vertinumpyro.reports.plain_language import count, rounded_up
from vertinumpyro.study import Agreement

_RULE = (
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
            _print(account, None)
        return
    own = PartyFile.load(party)
    if study is not None:
        agreement = Agreement.load(study)
        agreement.member(own.name)
        _print(own.account, agreement.spent)
        own.account.check(agreement.spent)
        return
    for account in accounts(own.account.path, own.limits.total) or [own.account]:
        _print(account, None)


def account_view(account: Account, planned: Plan | None) -> RenderableType:
    """An account's plans and totals; with a planned one, what they would become."""
    return Group(*_parts(account, planned))


def _print(account: Account, planned: Plan | None) -> None:
    console.print(heading(f"Budget of {account.data_set} at {account.party}"))
    console.print(account_view(account, planned))


def _parts(account: Account, planned: Plan | None) -> Iterator[RenderableType]:
    entries = account.entries()
    if entries:
        yield _table("plan", "method", "begun", "steps", "worst ε", rows=[_of_plan(entry) for entry in entries])
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
            _epsilon(known.get(total.adversary, unseen)),
            *([_epsilon(total)] if planned is not None else []),
            f"{total.delta:g}",
        ]
        for total in after
    ]
    yield Text()
    yield _table("against", *columns, rows=rows)
    if any(total.unproven for total in after):
        yield Text("Not proved: " + ", ".join(dict.fromkeys(step for t in after for step in t.unproven)), style="red")
    limit = "" if account.limit is None else f" The policy allows {account.limit.epsilon:g} in all."
    yield Text(_RULE + limit, style="dim")


def _of_plan(entry: AccountEntry) -> list[str]:
    done = "a check failed" if entry.failed else "finished" if entry.finished else "may go on"
    steps = f"{entry.steps_spent} of {count(entry.plan.num_steps, 'step')}, {done}"
    epsilon = rounded_up(entry.plan.worst.epsilon) if entry.secure_noise else "∞, noise from a seed"
    return [entry.plan.plan_id[:8], entry.plan.kind, entry.begun[:10], steps, epsilon if entry.counts else "0, unused"]


def _epsilon(total: Total) -> str:
    return rounded_up(total.epsilon) + (", not proved" if total.unproven else "")


def _table(*headers: str, rows: list[list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, justify="right" if "ε" in header or header in ("with this plan", "δ") else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
