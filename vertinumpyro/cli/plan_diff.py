"""`diff`: what two plans differ in, and what each adversary gets by either."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from vertinumpyro.cli.job import Job
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data.schema_text import read_settings
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.reports.plain_language import rounded_up
from vertinumpyro.session import PRIVACY_RECORD
from vertinumpyro.study import Agreement

__all__ = ["difference", "plan_at"]

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
    console.print(_table("setting", names, settings) if settings else "none, but for the plans' own ids")
    console.print(heading(f"ε against each adversary, at δ = {' and '.join(_deltas(plans))}"))
    shown = {
        row: tuple("–" if value is None else rounded_up(value) for value in pair) for row, pair in epsilons.items()
    }
    console.print(_table("adversary", names, shown))
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


def _table(what: str, names: list[str], rows: Mapping[str, Sequence[Any]]) -> Table:
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
