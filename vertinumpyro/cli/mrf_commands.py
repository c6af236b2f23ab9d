"""`plan`, `check` and `fit` with `--method vertimrf`: a Markov random field instead of a NumPyro model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from vertinumpyro.cli import outputs
from vertinumpyro.cli.config import Config, load_config
from vertinumpyro.cli.display import facts_grid, privacy_legend, privacy_table, schema_table
from vertinumpyro.cli.job import Job, recorded_plan, refuse_changed, refuse_started
from vertinumpyro.cli.terminal import console, heading, ticked
from vertinumpyro.cli.wording import count, report_rows, rounded_up
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.evaluation import (
    ReportContent,
    ReportFigure,
    ReportTable,
    pairwise_tvd,
    plot_adversaries,
    plot_pairwise_tvd,
    write_report,
)
from vertinumpyro.mrf import MarkovTwin, MRFPlan, VertiMRF
from vertinumpyro.mrf.twin import FIELD

__all__ = ["check", "fit", "show_plan"]

FILES = {
    "synthetic.csv": "the synthetic twin",
    "synthetic.parquet": "the same, with its types",
    "privacy.json": "the plan, and how much of it is spent",
    "field.npz": "the released field; further tables cost nothing",
    "released.npz": "the noisy tables that it was made from",
    "report.html": "guarantees, configuration",
}

_SIMULATED = "One process held every party's columns: the secure part was simulated."
_PLAN_KEYS = ("cross_share", "recovery_share", "refinement_share")
_OF_DPVI = {
    "privacy": ("noise_multiplier", "batch_indices"),
    "fit": ("num_steps", "batch_size", "clip_norm", "guide", "learning_rate"),
    "model": ("function", "num_components"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MRFJob:
    """A configuration and the system that it describes. No table is opened before `dataset`."""

    job: Job
    system: VertiMRF

    @classmethod
    def load(cls, path: Path) -> MRFJob:
        """Read a configuration.

        :raises ArgumentError: a setting belongs to another method, or is out of range.
        """
        config = load_config(path)
        _refuse_other_settings(config)
        settings = {k: v for k, v in _given(config.mrf).items() if k not in _PLAN_KEYS}
        allow = bool(config.privacy.allow_unproven)
        return cls(job=Job(config=config, dpvi=DPVI()), system=VertiMRF(**settings, allow_unproven=allow))

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.job.config

    def plan(self, dataset: VerticalDataset) -> MRFPlan:
        """The privacy plan; reads the dataset's schema and N only."""
        names = ("epsilon", "delta", "adversary", "relation", "noise", "collusion_threshold")
        privacy = {n: getattr(self.config.privacy, n) for n in names if getattr(self.config.privacy, n) is not None}
        shares = {k: v for k, v in _given(self.config.mrf).items() if k in _PLAN_KEYS}
        return self.system.plan(dataset, **privacy, **shares)


def show_plan(path: Path) -> None:
    """Print schema and plan. Of the tables only the id columns are read, and not even those if N is given."""
    job = MRFJob.load(path)
    with console.status("[dim]privacy plan …"):
        plan = job.plan(job.job.stand_in())
    console.print(heading("Schema (public)"), schema_table(job.job.schema))
    _show(job, plan)
    console.print("\n[green]Nothing was spent.[/] `vertinumpyro fit` makes its own plan, under an id of its own.")


def check(path: Path) -> None:
    """Go through everything that could stop a fit, and stop at the first that does."""
    with ticked("settings") as found:
        job = MRFJob.load(path)
        found.append(f"{path.name}, encoder {job.system.encoder}")
    with ticked("records") as found:
        dataset = job.job.dataset()
        found += [f"{count(dataset.num_records, 'record')} matched by id", "all values in their public domains"]
    with ticked("plan") as found:
        found += [f"{row.adversary} ε = {rounded_up(row.epsilon)}" for row in job.plan(dataset).adversaries]
    console.print("\n[green]Ready to fit.[/] Nothing was computed on the records beyond these checks, nothing spent.")


def fit(path: Path, *, resume: bool, out: Path | None) -> None:
    """Plan, spend, write; or continue what was interrupted, under the plan that it began with."""
    job = MRFJob.load(path)
    run_dir = job.config.run_dir(out)
    if resume:
        plan = recorded_plan(run_dir, MRFPlan)
        refuse_changed(job.config, run_dir)
        dataset = job.job.dataset()
    else:
        refuse_started(run_dir)
        dataset = job.job.dataset()
        plan = job.plan(dataset)
    _show(job, plan)
    _write(job, _spend(job, dataset, plan, run_dir, resume), dataset, run_dir)


def _spend(job: MRFJob, dataset: VerticalDataset, plan: MRFPlan, run_dir: Path, resume: bool) -> MarkovTwin:
    """The field; of a run that is complete, the stored one, which costs nothing."""
    if resume and (run_dir / FIELD).exists():
        console.print("\nThis run is complete: its outputs are written again from the stored field.")
        return MarkovTwin.load(run_dir)
    if not resume:
        job.job.prepare(run_dir)
    console.print(heading(f"{'Continuing' if resume else 'Fitting'}, {count(plan.num_steps, 'release')}"))
    with console.status("[dim]tables, then the field …"):
        twin = job.system.fit(dataset, plan, run_dir=run_dir, resume=resume)
    twin.save(run_dir)  # first of all outputs: it is what the budget bought
    return twin


def _write(job: MRFJob, twin: MarkovTwin, dataset: VerticalDataset, run_dir: Path) -> None:
    run = job.config.run
    key = jax.random.split(random_key(run.seed))[1]
    synthetic = twin.sample_synthetic(run.num_synthetic, rng_key=key)
    outputs.write_tables(synthetic, run_dir)
    items = list(_items(twin.plan))
    items.append(outputs.synthetic_summary(synthetic, twin.schema))
    if run.diagnostics and outputs.can_draw():
        items += _internal(dataset, synthetic)
    write_report(run_dir / "report.html", _content(job, twin, dataset, items), release=not run.diagnostics)
    console.print(heading(f"Written to {run_dir}/"), facts_grid(FILES))
    if run.diagnostics:
        console.print(
            "[yellow]! report.html holds statistics that are not DP (diagnostics = true); keep it internal[/]"
        )


def _items(plan: MRFPlan) -> Iterator[ReportFigure | ReportTable]:
    if outputs.can_draw():
        yield ReportFigure(
            figure=plot_adversaries(report_rows(plan)),
            caption="ε against each adversary. A smaller ε is a stronger guarantee.",
            not_dp=False,
            section="Privacy",
        )


def _internal(dataset: VerticalDataset, synthetic: Any) -> list[ReportFigure | ReportTable]:
    """What compares with the real table: not DP."""
    real, schema = dataset.to_frame(), dataset.schema
    distances = plot_pairwise_tvd(pairwise_tvd(real, synthetic, schema), schema)
    caption = "Distance of every pair of columns from the real table; pairs across parties are outlined."
    return [
        outputs.marginals(real, synthetic, schema),
        ReportFigure(figure=distances, caption=caption, not_dp=True, section="Pairs of columns"),
    ]


def _content(
    job: MRFJob, twin: MarkovTwin, dataset: VerticalDataset, items: list[ReportFigure | ReportTable]
) -> ReportContent:
    plan = twin.plan
    lost = [f"Spent, and lost in a crash: {name}." for name in twin.missing]
    insecure = [] if twin.secure_noise else ["The noise came from a seed: this run has no privacy."]
    unproven = [f"Not proved: {step}." for step in sorted({s for row in plan.adversaries for s in row.unproven})]
    return ReportContent(
        title="A private synthetic twin",
        summary=[
            f"Released: noisy tables of {count(dataset.num_records, 'record')} whose columns sit at "
            f"{', '.join(dataset.parties)}, and all that follows from them: a Markov random field and this table."
        ],
        facts=_facts(job, plan),
        adversary_rows=report_rows(plan),
        figures=[item for item in items if isinstance(item, ReportFigure)],
        tables=[item for item in items if isinstance(item, ReportTable)],
        configuration={"field": repr(twin), "seed of the twin's randomness": str(job.config.run.seed)},
        warnings=[*insecure, *unproven, *lost, _SIMULATED],
    )


def _facts(job: MRFJob, plan: MRFPlan) -> dict[str, str]:
    return {
        "method": f"VertiMRF, encoder {job.system.encoder}",
        "records N (public)": f"{plan.num_records:,}",
        "releases": f"{plan.num_steps:,}",
        "tables across parties": f"{plan.num_cross_pairs:,}",
        "part of the budget for them": f"{plan.cross_share:g}",
        "noise": f"{plan.noise.kind}, {count(plan.noise.num_shares, 'share')}",
        "backend": job.system.backend.info().name,
        "plan": plan.plan_id[:16],
    }


def _show(job: MRFJob, plan: MRFPlan) -> None:
    console.print(heading("Privacy plan"), facts_grid(_facts(job, plan)), privacy_table(plan), privacy_legend())


def _refuse_other_settings(config: Config) -> None:
    """A setting that this method does not read would silently do nothing."""
    for section, names in _OF_DPVI.items():
        for name in names:
            if getattr(getattr(config, section), name) is not None:
                raise ArgumentError(f"[{section}] {name} belongs to --method dpvi; leave it out with vertimrf")


def _given(section: Any) -> dict[str, Any]:
    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return {name: value for name, value in values.items() if value is not None}
