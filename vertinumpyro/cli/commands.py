"""What `plan`, `check`, `fit` and `synthesize` do once their arguments are parsed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import jax
import pandas as pd

from vertinumpyro.cli import outputs, processes
from vertinumpyro.cli.config import CONFIG_COPY
from vertinumpyro.cli.display import facts_grid, plan_view, schema_table
from vertinumpyro.cli.job import Job, recorded_plan, refuse_changed, refuse_started
from vertinumpyro.cli.terminal import console, heading, ticked
from vertinumpyro.cli.wording import count, rounded_up
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import Posterior
from vertinumpyro.evaluation import write_report
from vertinumpyro.mrf import MarkovTwin
from vertinumpyro.mrf.release_log import RELEASED
from vertinumpyro.mrf.twin import FIELD
from vertinumpyro.privacy import PrivacyPlan

__all__ = ["check", "fit", "show_plan", "synthesize"]


def show_plan(path: Path, *, backend: str | None = None) -> None:
    """Print schema and plan. Of the tables only the id columns are read, and not even those if N is given."""
    job = Job.load(path, backend=backend)
    with console.status("[dim]privacy plan …"):
        stand_in = job.stand_in()
        plan = job.plan(stand_in)
        view = [*plan_view(plan, job.dpvi.backend.info().name), *processes.cost_view(job, plan, stand_in)]
    console.print(heading("Schema (public)"), schema_table(job.schema))
    console.print(heading("Privacy plan"), *view)
    console.print("\n[green]Nothing was spent.[/] `vertinumpyro fit` makes its own plan, under an id of its own.")


def check(path: Path, *, backend: str | None = None) -> None:
    """Go through everything that could stop a fit, and stop at the first that does."""
    with ticked("settings") as found:
        job = Job.load(path, backend=backend)
        found.append(f"{path.name}, model {job.config.model.function or 'the mixture'}")
    with ticked("schema") as found:
        found += [count(len(job.schema.parties), "party").replace("partys", "parties")]
        found += [count(len(job.schema.columns), "column"), f"id column {job.schema.id_column}"]
    dataset = processes.checked_records(job) if processes.needed(job) else _checked_records(job)
    plan = _check_model_and_plan(job, dataset)
    for line in processes.cost_view(job, plan, dataset):
        console.print(line)
    console.print("\n[green]Ready to fit.[/] Nothing was computed on the records beyond these checks, nothing spent.")


def _checked_records(job: Job) -> VerticalDataset:
    with ticked("files") as found:
        tables = job.tables()
        found += [f"{party}: {count(len(table), 'record')}" for party, table in tables.items()]
    with ticked("records") as found:
        dataset = job.dataset(tables)
        found += [
            f"{count(dataset.num_records, 'record')} matched by id",
            "all values in their public domains",
        ]
    return dataset


def _check_model_and_plan(job: Job, dataset: VerticalDataset) -> PrivacyPlan:
    with ticked("model") as found:
        split = job.split()
        found += [f"{count(split.num_components, 'component')}, {count(split.num_values, 'released value')} a step"]
        found += ["every observed site reads one party's columns"]
    with ticked("plan") as found:
        plan = job.plan(dataset)
        found += [f"{row.adversary} ε = {rounded_up(row.epsilon)}" for row in plan.adversaries]
    with ticked("range") as found:
        name = job.dpvi.backend.info().name
        found += [f"no value wraps around the {name} ring at {plan.grid_bits} fractional bits"]
    return plan


def fit(path: Path, *, resume: bool, out: Path | None, backend: str | None = None) -> None:
    """Plan, spend, write; or continue what was interrupted, under the plan that it began with."""
    job = Job.load(path, backend=backend)
    run_dir = job.config.run_dir(out)
    if resume:
        plan = recorded_plan(run_dir, PrivacyPlan)
        refuse_changed(job.config, run_dir)
        job = Job.load(path, num_steps=plan.num_steps, backend=backend)
    else:
        refuse_started(run_dir)
    job.split()
    with processes.opened(job) as (dataset, fit_plan):
        if not resume:
            plan = job.plan(dataset)
        _show_before_fit(job, plan, dataset)
        posterior = _spend(job, fit_plan, plan, run_dir, resume)
    _write(job, posterior, dataset, run_dir)


def _show_before_fit(job: Job, plan: PrivacyPlan, dataset: VerticalDataset) -> None:
    view = plan_view(plan, job.dpvi.backend.info().name)
    console.print(heading("Privacy plan"), *view, *processes.cost_view(job, plan, dataset))


def _spend(job: Job, fit_plan: Callable[..., Posterior], plan: PrivacyPlan, run_dir: Path, resume: bool) -> Posterior:
    """The posterior; of a run that is complete, the stored one, which costs nothing."""
    stored = run_dir / "posterior.npz"
    if resume and stored.exists():
        console.print("\nThis run is complete: its outputs are written again from the stored posterior.")
        return job.dpvi.load(stored)
    if not resume:
        job.prepare(run_dir)
    console.print(heading(f"{'Continuing' if resume else 'Fitting'}, {count(plan.num_steps, 'step')}"))
    key = jax.random.split(random_key(job.config.run.seed))[0]
    posterior = fit_plan(plan, key, run_dir=run_dir, resume=resume, progress_bar=console.is_terminal)
    posterior.save(stored)  # first of all outputs: it is what the budget bought
    return posterior


def _write(job: Job, posterior: Posterior, dataset: VerticalDataset, run_dir: Path) -> None:
    internal = job.config.run.diagnostics
    with console.status("[dim]outputs …"):
        twin = posterior.sample_synthetic(job.config.run.num_synthetic, rng_key=_twin_key(job.config.run.seed))
        outputs.write_tables(twin, run_dir)
        items = list(outputs.public_items(posterior, twin))
        if internal:
            items += outputs.internal_items(posterior, dataset, twin)
        content = outputs.report_content(
            posterior,
            job.dpvi,
            title="A private synthetic twin",
            summary=_summary(dataset),
            items=items,
            extra_configuration={"seed of the model's randomness": str(job.config.run.seed)},
        )
        write_report(run_dir / "report.html", content, release=not internal)
    console.print(heading(f"Written to {run_dir}/"), facts_grid(outputs.FILES))
    if internal:
        console.print(
            "[yellow]! report.html holds statistics that are not DP (diagnostics = true); keep it internal[/]"
        )
    if not outputs.can_draw():
        console.print("[dim]For figures in the report: pip install 'vertinumpyro\\[report]'[/]")


def synthesize(run_dir: Path, *, num_records: int, out: Path, seed: int | None) -> None:
    """Draw a further table from what a run released: a posterior, or a Markov random field."""
    if out.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"{out.name} is neither .csv nor .parquet; choose one")
    with console.status("[dim]synthetic table …"):
        released = _released(run_dir)
        key = random_key(secrets.randbits(32) if seed is None else seed)
        twin: pd.DataFrame = released.sample_synthetic(num_records, rng_key=key)
        outputs.write_table(twin, out)
    console.print(f"[green]✓[/] {count(len(twin), 'synthetic record')} in {out}; no further privacy is spent.")


def _released(run_dir: Path) -> Posterior | MarkovTwin:
    if (run_dir / FIELD).exists():
        return MarkovTwin.load(run_dir)
    stored = run_dir / CONFIG_COPY
    if not stored.exists():
        raise ArgumentError(f"{str(run_dir)!r} is not the folder of a fit: it has no {CONFIG_COPY}")
    if not (run_dir / "posterior.npz").exists():
        method = " --method vertimrf" if (run_dir / RELEASED).exists() else ""
        raise ArgumentError(
            f"the run in {str(run_dir)!r} is not complete; continue it with `vertinumpyro fit --resume{method}`"
        )
    return Job.load(stored).dpvi.load(run_dir / "posterior.npz")


def _twin_key(seed: int) -> jax.Array:
    return jax.random.split(random_key(seed))[1]


def _summary(dataset: VerticalDataset) -> list[str]:
    parties = ", ".join(dataset.parties)
    return [
        f"Released: noisy gradients of a model of {count(dataset.num_records, 'record')} whose columns "
        f"sit at {parties}, and all that follows from them: the posterior and this synthetic table."
    ]
