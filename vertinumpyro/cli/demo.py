"""`vertinumpyro demo`: two parties, one model learned in two ways, and what they would have lost apart."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from vertinumpyro.cli.fit_run import cost_lines, costs_of, parties_of_public_table
from vertinumpyro.cli.job import refuse_started
from vertinumpyro.cli.plan_table import facts_grid, plain_table, plan_view, schema_table
from vertinumpyro.cli.terminal import console, heading, progress_in_log
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset, load_rand_hie
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.dpvi.settings import WARM_STEPS
from vertinumpyro.evaluation import (
    ReportFigure,
    ReportTable,
    ReportText,
    cross_party_tvd,
    one_way_tvd,
    pairwise_tvd,
    plot_tvd_comparison,
    r_score,
    within_party_tvd,
    write_report,
)
from vertinumpyro.marginals import MarginalInference, MarginalPosterior, release_marginals
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import count, duration, plan_facts, report_rows
from vertinumpyro.reports.posterior import posterior_facts
from vertinumpyro.reports.run_report import (
    POSTERIOR,
    POSTERIOR_FILES,
    SIMULATED,
    adversary_figure,
    can_draw,
    gradient_norms,
    marginals,
    report_content,
    synthetic_summary,
    training_trace,
    write_blocks,
)
from vertinumpyro.secure import BACKENDS, Backend, BetweenProcesses, FixedPoint
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import PRIVACY_RECORD, Session

_BETWEEN_PROCESSES = {name: kind for name, kind in BACKENDS.items() if issubclass(kind, BetweenProcesses)}
APART = "learned apart"
FROM_TABLES, BY_DPVI = "from tables", "by DPVI"
DPVI_FOLDER = "dpvi"
LINK = ("mdvis", "disea")  # visits to a doctor, at the insurer; chronic diseases, at the clinic


def demo_inference(backend: str) -> DPVI:
    """The demo's inference. Diagnostics need the joined table, which no process holds with `crypten` or `spu`.

    :raises ArgumentError: the backend is unknown.
    """
    if backend in _BETWEEN_PROCESSES:
        return DPVI(backend=_BETWEEN_PROCESSES[backend]())
    if backend != "fixed_point":
        raise ArgumentError(f"--backend {backend}: the demo knows fixed_point, {' and '.join(_BETWEEN_PROCESSES)}")
    return DPVI(diagnostics=True)


def demo_tables(backend: Backend) -> MarginalInference:
    """The same model from noisy tables: through their Markov field where its engine is there."""
    law = "auto" if has_engine() else "tables"
    return MarginalInference(law=law, settings=VertiMRF(backend=backend))


@dataclasses.dataclass
class Demo:
    """The demonstration, stage by stage; `seconds` holds each stage's wall time."""

    out: Path
    epsilon: float
    num_steps: int | None
    seed: int
    dpvi: DPVI
    tables: MarginalInference
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def run(self) -> Comparison:
        """Plan, fit, compare, write, and say how it went."""
        refuse_started(self.out)
        if not can_draw():
            raise ArgumentError("the demo draws figures: install matplotlib with `pip install 'vertinumpyro[report]'`")
        dataset = self._introduce()
        tables_key, joint_key, twin_key, *party_keys = jax.random.split(random_key(self.seed), 3 + len(dataset.parties))
        learned = self._from_tables(dataset, tables_key)
        posterior = self._by_dpvi(dataset, joint_key)
        with self._stage("synthetic twins"):
            twins = {FROM_TABLES: learned.sample_synthetic(rng_key=twin_key)}
            twins[BY_DPVI] = posterior.sample_synthetic(rng_key=twin_key)
        twins[APART] = self._apart(dataset, list(party_keys))
        with self._stage("comparison"):
            comparison = compare(dataset.to_frame(), twins, dataset.schema, LINK)
        self._write(learned, posterior, dataset, twins, comparison)
        self._conclude(comparison)
        return comparison

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        with console.status(f"[dim]{name} …"):
            yield
        self.seconds[name] = time.perf_counter() - started

    def _introduce(self) -> VerticalDataset:
        with self._stage("table"):
            dataset = load_rand_hie()
        people = f"{dataset.num_records:,} people"
        console.print(f"[bold]An insurer and a clinic hold different columns of the same {people}.[/]")
        console.print("They publish a private synthetic twin of the joined table; neither shows the other a row.")
        console.print(heading("Schema (public)"), schema_table(dataset.schema))
        return dataset

    def _from_tables(self, dataset: VerticalDataset, rng_key: jax.Array) -> MarginalPosterior:
        """One release of noisy tables, and the model learned from it."""
        system = self.tables.settings
        with self._stage("privacy plan"):
            plan = system.plan(dataset, epsilon=self.epsilon)
            self.tables.rehearse(dataset.schema, plan)
            facts = {
                "method": "noisy tables, and a NumPyro model learned from them",
                "records N (public)": f"{plan.num_records:,}",
                "releases": f"{plan.num_steps:,}",
                "backend": system.backend.info().name,
            }
            view = [*plan_view(plan, facts), *self._costs(system.computations(dataset, plan))]
        console.print(heading("First way: one release of noisy tables. Its privacy plan"), *view)
        with self._timed("from tables"), self._holders(dataset, partial(dataclasses.replace, system)) as data:
            released = release_marginals(data, plan, system, run_dir=self.out, allow_long=True)
            return self.tables.fit(released, rng_key, progress_bar=console.is_terminal, allow_long=True)

    def _by_dpvi(self, dataset: VerticalDataset, rng_key: jax.Array) -> Posterior:
        """A noisy gradient for every step, from noisy tables on where it can, under a plan of its own."""
        with self._stage("privacy plan"):
            plan = self.dpvi.plan(dataset, epsilon=self.epsilon, num_steps=self._num_steps)
            facts = plan_facts(plan, self.dpvi.backend.info().name)
            view = [*plan_view(plan, facts), *self._costs(self.dpvi.computations(dataset, plan))]
        console.print(heading("Second way: DPVI, a noisy gradient a step. Its privacy plan"), *view)
        console.print(heading(f"Learning on the joined table, {count(plan.num_gradients, 'step')}"))
        build = partial(DPVI, backend=self.dpvi.backend, num_components=self.dpvi.num_components)
        folder = self.out / DPVI_FOLDER
        log = progress_in_log(folder / PRIVACY_RECORD, plan.num_steps)
        with self._timed("by DPVI"), self._holders(dataset, build) as data, log:
            shown = console.is_terminal
            return self.dpvi.fit(data, plan, rng_key, run_dir=folder, progress_bar=shown, allow_long=True)

    def _costs(self, computations: Sequence[tuple[Computation, int]]) -> list[RenderableType]:
        return list(cost_lines(costs_of(self.dpvi.backend, computations))) if self._in_processes else []

    @property
    def _num_steps(self) -> int | None:
        """Steps are shown, also where a plan would take none."""
        return self.num_steps or (WARM_STEPS if has_engine() else None)

    @property
    def _in_processes(self) -> bool:
        return isinstance(self.dpvi.backend, BetweenProcesses)

    @contextmanager
    def _holders(self, dataset: VerticalDataset, build: Callable[..., Any]) -> Iterator[VerticalDataset | Session]:
        """Where a plan is spent: here, or with a process for each party, which reads that party's file alone."""
        if not self._in_processes:
            yield dataset
            return
        with parties_of_public_table(dataset, self.out / "parties", build) as session:
            yield session

    def _apart(self, dataset: VerticalDataset, keys: list[jax.Array]) -> pd.DataFrame:
        """The baseline: each party alone, the same inference and the whole ε for each."""
        backend = FixedPoint() if self._in_processes else self.dpvi.backend  # one party has nobody to hide from
        alone = dataclasses.replace(self.dpvi, diagnostics=False, backend=backend)
        twins = []
        for party, key in zip(dataset.parties, keys, strict=True):
            console.print(heading(f"For comparison: the {party} alone, with the whole ε for itself"))
            fit_key, twin_key = jax.random.split(key)
            with self._timed(f"{party} alone"):
                posterior = fit_alone(
                    alone,
                    dataset,
                    party,
                    fit_key,
                    progress_bar=console.is_terminal,
                    epsilon=self.epsilon,
                    num_steps=self._num_steps,
                )
                twins.append(posterior.sample_synthetic(rng_key=twin_key))
        return joined_at_random(twins, dataset.schema, self.seed)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        console.print(f"[green]✓[/] {duration(self.seconds[name])}, compilation included")

    def _write(
        self,
        learned: MarginalPosterior,
        posterior: Posterior,
        dataset: VerticalDataset,
        twins: Mapping[str, pd.DataFrame],
        comparison: Comparison,
    ) -> None:
        with self._stage("outputs"):
            for folder, name, result in (
                (self.out, FROM_TABLES, learned),
                (self.out / DPVI_FOLDER, BY_DPVI, posterior),
            ):
                write_blocks([twins[name]], folder)
                result.save(folder / POSTERIOR)
            items = [
                *comparison.items(),
                marginals(dataset.to_frame(), twins[FROM_TABLES], dataset.schema),
                synthetic_summary(twins[FROM_TABLES], dataset.schema),
                *adversary_figure(learned.plan),
                _other_plan(posterior.plan),
                *gradient_norms(posterior),
                *training_trace(posterior),
            ]
            content = report_content(
                learned.plan,
                items,
                title="A private twin of the RAND Health Insurance Experiment",
                summary=_summary(comparison),
                facts={"records N (public)": f"{learned.plan.num_records:,}", "releases": f"{learned.plan.num_steps}"},
                configuration={
                    "from tables": f"{learned.split.num_components} components, law of the {learned.law}",
                    **{f"by DPVI: {k}": v for k, v in posterior_facts(posterior).items()},
                },
                secure_noise=learned.secure_noise and posterior.secure_noise,
                warnings=[] if self._in_processes else [SIMULATED],
            )
            write_report(self.out / "report.html", content)

    def _conclude(self, comparison: Comparison) -> None:
        files = {**POSTERIOR_FILES, "released.npz": "the noisy tables: further models cost nothing"}
        files[f"{DPVI_FOLDER}/"] = "the other twin, its posterior and record"
        console.print(heading(f"Written to {self.out}/"), facts_grid(files))
        console.print(heading("Was it worth joining?  [not DP: computed on the real table]"))
        console.print(_results_table(comparison), f"time  {duration(sum(self.seconds.values()))}\n")
        style = "green" if comparison.joint_is_closer else "yellow"
        console.print(f"[bold {style}]{_verdict(comparison)}[/]")


def _other_plan(plan: Plan) -> ReportTable:
    """The second plan's ε, and what both cost together."""
    rows = pd.DataFrame.from_records(
        report_rows(plan), index="adversary", exclude=["knows", "relation", "effective_noise"]
    )
    caption = "DPVI's own plan. Whoever sees both releases has seen both budgets spent; a real study would choose one."
    return ReportTable(frame=rows, caption=caption, not_dp=False, section="Privacy")


def _verdict(comparison: Comparison) -> str:
    if not comparison.joint_is_closer:
        return "Here no joint twin is closer across the parties than twins made apart: try a larger epsilon."
    best, (a, b) = comparison.best, comparison.link
    gain = 1 - comparison.cross_party[best] / comparison.cross_party[APART]
    why = (
        "One release pays for its tables once, where DPVI pays for every step: take the twin from tables where the "
        "model has tables, and DPVI for models that have none"
        if best == FROM_TABLES
        else "Here the noisy gradients told more than the noisy tables"
    )
    return (
        f"Take the twin learned {best}: across the parties it is {gain:.0%} closer to the real table than twins made "
        f"apart. It keeps {comparison.link_kept(best):.0%} of the dependence of {a} and {b} beyond chance, twins made "
        f"apart none. {why}."
    )


def _summary(comparison: Comparison) -> list[ReportText]:
    released = (
        "An insurer holds plan and visits, a clinic holds health, of the same people. Released, in two ways with the "
        "same ε for everybody in each: noisy tables of all pairs of columns; and DPVI, which spends most of it on such "
        "tables to start from, where their engine is installed, and the rest on noisy gradients. A NumPyro mixture "
        "with a plate for each party was learned from each, and a synthetic table drawn from it."
    )
    baseline = (
        "The baseline is two twins made apart by DPVI and joined at random. Each had a plan of its own with the "
        "whole ε, which favours it."
    )
    return [
        ReportText(text=released, not_dp=False),
        ReportText(text=baseline, not_dp=False),
        ReportText(text=_verdict(comparison), not_dp=True),
    ]


def _results_table(comparison: Comparison) -> Table:
    """A row for each twin: how far it is from the real table across the parties, and what it keeps of the link."""
    table = plain_table()
    a, b = comparison.link
    table.add_column("the twin was learned", no_wrap=True)
    table.add_column("pairs across the parties: mean TVD", justify="right")
    table.add_column(escape(f"{a} × {b}: R-score"), justify="right")
    for name, tvd in comparison.cross_party.items():
        table.add_row(escape(name.removeprefix("learned ")), f"{tvd:.3f}", f"{comparison.dependence[name]:.3f}")
    table.add_row("(the real table)", "", f"{comparison.real_dependence:.3f}")
    return table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison:
    """Distances of twins from the real table. Exact statistics of real records: not DP.

    :ivar matrices: the tables of `pairwise_tvd`, by how the twin was learned; `APART` is twins of the parties alone.
    :ivar link: two columns of different parties.
    :ivar dependence: R-score of the link in each twin.
    :ivar real_dependence: in the real table.
    """

    schema: Schema
    matrices: Mapping[str, pd.DataFrame]
    link: tuple[str, str]
    dependence: Mapping[str, float]
    real_dependence: float

    @cached_property
    def cross_party(self) -> dict[str, float]:
        """Mean cross-party TVD of each twin."""
        return {name: cross_party_tvd(matrix, self.schema) for name, matrix in self.matrices.items()}

    @property
    def best(self) -> str:
        """The twin of the joined table that is nearest across the parties."""
        return min((name for name in self.matrices if name != APART), key=lambda name: self.cross_party[name])

    @property
    def joint_is_closer(self) -> bool:
        """Whether the best twin's cross-party pairs are closer to the real ones than those apart."""
        return self.cross_party[self.best] < self.cross_party[APART]

    def link_kept(self, name: str) -> float:
        """How much of the link's dependence beyond chance a twin has, 0 to 1.

        Twins joined at random have the R-score that chance alone gives to a table of this size.
        """
        real, chance = self.real_dependence, self.dependence[APART]
        return min(1.0, max(0.0, (self.dependence[name] - chance) / (real - chance))) if real > chance else 0.0

    def to_frame(self) -> pd.DataFrame:
        """The figures as a table."""
        a, b = self.link
        measures = {
            "mean TVD, pairs across parties": cross_party_tvd,
            "mean TVD, pairs within a party": within_party_tvd,
            "mean TVD, single columns": one_way_tvd,
        }
        rows = {
            name: {"real table": None} | {twin: measure(m, self.schema) for twin, m in self.matrices.items()}
            for name, measure in measures.items()
        }
        rows[f"R-score {a} × {b}"] = {"real table": self.real_dependence, **self.dependence}
        return pd.DataFrame.from_dict(rows, orient="index").astype(object)

    def items(self) -> list[ReportFigure | ReportTable]:
        """For the report."""
        section = "Pairs of columns: joint against apart"
        return [
            ReportTable(
                frame=self.to_frame(),
                caption="Distance from the real table (TVD, 0 to 1), and dependence (R-score) of one link.",
                not_dp=True,
                section=section,
            ),
            ReportFigure(
                figure=plot_tvd_comparison(self.matrices, self.schema),
                caption="Every pair of columns. Outlined: pairs across the parties.",
                not_dp=True,
                section=section,
            ),
        ]


def compare(real: pd.DataFrame, twins: Mapping[str, pd.DataFrame], schema: Schema, link: tuple[str, str]) -> Comparison:
    """Measure all twins, of which one is `APART`. Not DP."""
    return Comparison(
        schema=schema,
        matrices={name: pairwise_tvd(real, twin, schema) for name, twin in twins.items()},
        link=link,
        dependence={name: r_score(twin, *link, schema) for name, twin in twins.items()},
        real_dependence=r_score(real, *link, schema),
    )


def fit_alone(
    dpvi: DPVI,
    dataset: VerticalDataset,
    party: str,
    rng_key: jax.Array,
    *,
    progress_bar: bool,
    **plan: object,
) -> Posterior:
    """One party's own posterior, from its own columns, under a plan of its own with the whole budget.

    That favours the parties apart: an analyst who sees all their twins has seen several releases.
    """
    own = dataset.restrict(party)
    return dpvi.fit(own, dpvi.plan(own, **plan), rng_key, progress_bar=progress_bar, allow_long=True)  # type: ignore[arg-type]


def joined_at_random(twins: list[pd.DataFrame], schema: Schema, seed: int) -> pd.DataFrame:
    """The parties' twins side by side, each in a random order: nobody knows which rows belong together."""
    rng = np.random.default_rng(seed)
    shuffled = [twin.iloc[rng.permutation(len(twin))].reset_index(drop=True) for twin in twins]
    return pd.concat(shuffled, axis=1).reindex(columns=list(schema.columns))
