"""What `plan`, `check`, `fit` and `synthesize` do once their arguments are parsed, for every method alike."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.markup import escape

from vertinumpyro.cli import fit_run
from vertinumpyro.cli.config import CONFIG_COPY, load_config
from vertinumpyro.cli.fit_run import SCORE, BoughtScore, spend
from vertinumpyro.cli.job import Job, method_to_continue, plan_to_continue, refuse_changed, refuse_started
from vertinumpyro.cli.plan_table import facts_grid, plan_view, schema_table
from vertinumpyro.cli.terminal import (
    checklist_item,
    console,
    heading,
)
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import DatasetInfo, Schema, VerticalDataset
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.mrf import MarkovTwin, MRFPlan
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.privacy.files_account import FilesAccount
from vertinumpyro.privacy.ledger import read_record
from vertinumpyro.reports.files import write_run
from vertinumpyro.reports.plain_language import count, headline, rounded_up
from vertinumpyro.reports.run_report import POSTERIOR, can_draw
from vertinumpyro.session import PRIVACY_RECORD, Session, lock_folder
from vertinumpyro.session.cost_estimate import require_allowed


def show_plan(
    path: Path, *, method: str | None, backend: str | None = None, earlier: Path | None = None
) -> dict[str, Any]:
    """Print schema and plan. Of the tables only the id columns are read, and not even those if N is given.

    :param earlier: the folder of an earlier run on such records, to forecast by.

    :returns: both for programs.
    """
    job = Job.load(path, method, backend=backend)
    job.refuse_unread()
    with console.status("[dim]privacy plan …"):
        facts = job.facts()
        plan = job.method.plan(facts)
        score = BoughtScore.of(job.config, job.method.name, facts, job.config.run_dir())
    console.print(heading("Schema (public)"), schema_table(job.schema))
    time = _show(job, plan, facts)
    if score is not None:
        score.show(plan)
    said = _account(job, plan)
    forecast = _forecast(job, plan, earlier)
    console.print("\n[green]Nothing was spent.[/] `vertinumpyro fit` makes its own plan, under an id of its own.")
    return {
        **_chosen(job),
        "schema": job.schema.to_dict(),
        **_planned(plan, score),
        **forecast,
        **said,
        **_timed(time),
    }


def _account(job: Job, plan: Plan) -> dict[str, str]:
    """Which release on the files it would be, printed, and for programs; between processes each party knows its own."""
    if fit_run.needed(job):
        return {}
    source = job.config.source
    said = FilesAccount.of(source.files, source.account, source.total_epsilon).statement(plan)
    console.print(f"\n{escape(said)}")
    return {"account": said}


def _forecast(job: Job, plan: Plan, earlier: Path | None = None) -> dict[str, Any]:
    """What the method expects to tell, printed, and for programs."""
    if found := dict(job.method.forecast(plan, earlier)):
        console.print(f"\n{escape(found.pop('words'))}")
    return {"forecast": found} if found else {}


def _forecast_by_records(job: Job, facts: DatasetInfo, plan: Plan) -> dict[str, Any]:
    """The same by the records, where this process holds all of them."""
    if not isinstance(facts, VerticalDataset) or not (found := dict(job.method.forecast_by_records(facts, plan))):
        return {}
    console.print(
        f"[yellow]{escape(found.pop('words'))}.[/] NOT DP: for who holds all of these records alone, and no ε covers a "
        "choice that is made by it."
    )
    return {"not_dp": {"forecast": found}}


def _chosen(job: Job) -> dict[str, Any]:
    return {"method": job.method.name, "why": job.why}


def _planned(plan: Plan, score: BoughtScore | None = None) -> dict[str, Any]:
    found = {"epsilon": plan.epsilon(), "delta": plan.delta, "adversaries": plan.table_rows(), "plan": plan.to_dict()}
    return found if score is None else {**found, "score": {**_planned(score.plan), **score.together(plan)}}


def check(path: Path, *, method: str | None, backend: str | None = None, earlier: Path | None = None) -> dict[str, Any]:
    """Go through everything that could stop a fit, and stop at the first that does.

    :param earlier: the folder of an earlier run on such records, to forecast by.

    :returns: what was found, for programs.
    """
    with checklist_item("settings") as found:
        job = Job.load(path, method, backend=backend)
        job.refuse_unread()
        found += [path.name, job.method.name, job.method.about(), *([] if job.why is None else [job.why])]
    with checklist_item("schema") as found:
        found += [count(len(job.schema.parties), "party").replace("partys", "parties")]
        found += [count(len(job.schema.columns), "column"), f"id column {job.schema.id_column}"]
    facts = fit_run.checked_records(job) if fit_run.needed(job) else _checked_records(job)
    with checklist_item("method") as found:
        found += job.method.checked()
    with checklist_item("plan") as found:
        plan = job.method.plan(facts)
        score = BoughtScore.of(job.config, job.method.name, facts, job.config.run_dir())
        found += [headline(plan), *(f"{row.adversary} ε = {rounded_up(row.epsilon)}" for row in plan.adversaries)]
    with checklist_item("range") as found:
        found += [f"no value wraps around the {job.method.method.backend.info().name} ring"]
    time = _show_time(job, plan, facts)
    if score is not None:
        score.show(plan)
    forecast = {**_forecast(job, plan, earlier), **_forecast_by_records(job, facts, plan)}
    console.print("\n[green]Ready to fit.[/] Nothing was computed on the records beyond these checks, nothing spent.")
    return {**_chosen(job), "num_records": facts.num_records, **_planned(plan, score), **forecast, **_timed(time)}


def _checked_records(job: Job) -> VerticalDataset:
    tables = None
    if job.config.spool is None:
        with checklist_item("files") as found:
            tables = job.tables()
            found += [f"{party}: {_size(job.schema, party, table)}" for party, table in tables.items()]
    with checklist_item("records") as found:
        dataset = job.dataset(tables)
        found += [
            f"{count(dataset.num_records, 'record')} matched by id",
            "all values in their public domains",
        ]
    for party, columns in dataset.moved.items():
        for name, (outside, of) in columns.items():
            if outside:
                text = f"! {Place(party, name)}: {outside:,} of {of:,} values lie outside its bounds and count as the "
                console.print(f"[yellow]{escape(text)}nearest end. [/]NOT DP: for {escape(party)} alone.")
    return dataset


def _size(schema: Schema, party: str, table: pd.DataFrame) -> str:
    """A table's records; of one with several rows of a person its rows, and of how many persons they are."""
    if schema.parties[party].rows is None:
        return count(len(table), "record")
    return f"{count(len(table), 'row')} of {count(len(set(table[schema.id_column])), 'person')}"


def _computations(job: Job, facts: DatasetInfo, plan: Plan) -> Any:
    return job.method.computations(facts, plan) if fit_run.needed(job) else ()


def _show(job: Job, plan: Plan, facts: DatasetInfo, *, goes_on: bool = False) -> FitTime | None:
    if job.why is not None:
        console.print(f"\nMethod: [bold]{job.method.name}[/]. {escape(_sentence(job.why))} `--method` takes another.")
    console.print(heading("Privacy plan"), *plan_view(plan, job.method.facts(plan)))
    return _show_time(job, plan, facts, goes_on=goes_on)


def _show_time(job: Job, plan: Plan, facts: DatasetInfo, *, goes_on: bool = False) -> FitTime | None:
    """What the parties compute together costs, and how long all of it takes; of a run that goes on the first alone."""
    costs = fit_run.costs_of(job.method.method.backend, _computations(job, facts, plan))
    for line in fit_run.cost_lines(costs):
        console.print(line)
    if goes_on:
        return None
    with console.status("[dim]how long it takes …"):
        found = fit_run.time_of(job, plan, costs)
    for line in fit_run.time_lines(found):
        console.print(line)
    return found


def _timed(time: FitTime | None) -> dict[str, Any]:
    return {} if time is None else {"time": time.to_dict()}


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def fit(
    path: Path,
    *,
    method: str | None,
    resume: bool,
    out: Path | None,
    backend: str | None = None,
    allow_long: bool = False,
) -> dict[str, Any]:
    """Plan, spend, write; or continue what was interrupted, under the plan that it began with.

    :param allow_long: go on where it takes more than ten minutes, as `[run] allow_long` says, too.
    :returns: method, plan and files, for programs.
    """
    config = load_config(path, backend)
    run_dir = config.run_dir(out)
    if resume and method is None:
        method = method_to_continue(run_dir)
    job = Job.of(config, method)
    plan = None
    if resume:
        plan = plan_to_continue(run_dir, job.method.name)
        refuse_changed(job.config, run_dir)
    else:
        job.refuse_unread()
        refuse_started(run_dir)
        if config.quality.part is not None:
            refuse_started(run_dir / SCORE)
    job.method.checked()
    with lock_folder(run_dir):  # before anything of another run's could be written over
        if not resume:
            refuse_started(run_dir)
        with fit_run.opened(job) as data:
            plan = job.method.plan(data) if plan is None else plan
            score = BoughtScore.of(config, job.method.name, data, run_dir, resume=resume)
            time = _show(job, plan, data, goes_on=resume)
            if score is not None:
                score.show(plan)
            if not resume:
                _forecast(job, plan)
            if time is not None:
                require_allowed(time, allow_long=allow_long or config.run.allow_long)
            result = spend(job, data, plan, run_dir, resume)
            files = write(job, result, data, run_dir, score)
    return {**_chosen(job), **_planned(plan, score), "folder": str(run_dir), "files": files}


def write(
    job: Job, result: Any, data: VerticalDataset | Session, run_dir: Path, score: BoughtScore | None = None
) -> list[str]:
    """All outputs but what the budget bought, which `spend` saved, and where they are.

    :param score: of the twin, bought once it is written.
    :returns: the files' names.
    """
    report, internal = job.method.report(result), job.config.run.diagnostics
    with console.status("[dim]outputs …"):
        twin = report.draw_twin(run_dir)
    scored = () if score is None else score.items(data)
    with console.status("[dim]report …"):
        items = [*scored, *report.items(twin)]
        if internal:
            assert isinstance(data, VerticalDataset)
            items += report.internal_items(data, twin)
        amended = partial(score.told, plan=report.plan) if score is not None else None
        files = write_run(report, twin, run_dir, items, release=not internal, amended=amended)
    console.print(heading(f"Written to {run_dir}/"), facts_grid(files))
    if said := read_record(run_dir / PRIVACY_RECORD).account:
        console.print(f"[dim]{escape(said)}[/]")
    for line in report.verdict():
        console.print(f"\n[bold]{escape(line)}[/]")
    for line in report.notes(twin):
        console.print(f"[yellow]! {escape(line)}[/]")
    if internal:
        console.print(
            "[yellow]! report.html holds statistics that are not DP (diagnostics = true); keep it internal[/]"
        )
    if not can_draw():
        console.print("[dim]For figures in the report: pip install 'vertinumpyro\\[report]'[/]")
    return list(files)


def synthesize(
    run_dir: Path, *, num_records: int, out: Path, seed: int | None, config: Path | None, trust_model: bool
) -> dict[str, Any]:
    """Draw a further table from what a run released: a posterior, or a Markov random field.

    :returns: the file and its records, for programs.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"{out.name} is neither .csv nor .parquet; choose one")
    with console.status("[dim]synthetic table …"):
        released = _released(run_dir, config, trust_model)
        key = random_key(secrets.randbits(32) if seed is None else seed)
        released.write_synthetic(out, num_records, rng_key=key)
    console.print(
        f"[green]✓[/] {count(num_records, 'synthetic record')} in {escape(str(out))}; no further privacy is spent."
    )
    return {"file": str(out), "num_records": num_records}


def _released(run_dir: Path, config: Path | None, trust_model: bool) -> Any:
    """A run's field or posterior. A model's code runs only if the caller names it or trusts the folder."""
    if (run_dir / FIELD).exists():
        return MarkovTwin.load(run_dir)
    stored = run_dir / CONFIG_COPY
    if not stored.exists():
        raise ArgumentError(f"{str(run_dir)!r} is not the folder of a fit: it has no {CONFIG_COPY}")
    if not (run_dir / POSTERIOR).exists():
        raise ArgumentError(_no_result(run_dir))
    function = load_config(stored).model.function
    if config is None and function is not None and not trust_model:
        raise ArgumentError(
            f"the run's {CONFIG_COPY} names {function!r}, Python code that drawing a table runs. Name the model "
            "yourself, with --config YOUR.toml, or, if you trust the folder, allow it with --trust-model"
        )
    plan = _plan_of(run_dir)
    method = "marginals" if isinstance(plan, MRFPlan) else plan.kind
    return Job.load(stored if config is None else config, method).method.stored(run_dir, plan)


def _plan_of(run_dir: Path) -> Plan:
    return read_record(run_dir / PRIVACY_RECORD).plan


def _no_result(run_dir: Path) -> str:
    """Why a run has no table to give, by the kind of its plan."""
    kind = _plan_of(run_dir).kind
    if kind in ("functional_mechanism", "bayesian_linear"):
        return f"the run in {str(run_dir)!r} is a regression; it gives coefficients and no table"
    return f"the run in {str(run_dir)!r} is not complete; continue it with `vertinumpyro fit --resume`"
