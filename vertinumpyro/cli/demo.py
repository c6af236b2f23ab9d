"""`vertinumpyro demo`: two parties, one private twin, and what they would have lost apart."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import jax
import pandas as pd

from vertinumpyro.cli import outputs
from vertinumpyro.cli.comparison import Comparison, compare, fit_alone, joined_at_random
from vertinumpyro.cli.display import facts_grid, plan_view, schema_table
from vertinumpyro.cli.job import refuse_started
from vertinumpyro.cli.progress import progress_in_log
from vertinumpyro.cli.sessions import cost_lines, parties_of_public_table
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.cli.wording import count, duration, plan_facts
from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset, load_rand_hie
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.evaluation import ReportText, write_report
from vertinumpyro.secure import BACKENDS, BetweenProcesses, FixedPoint
from vertinumpyro.session import PRIVACY_RECORD

__all__ = ["Demo", "demo_inference"]

_BETWEEN_PROCESSES = {name: kind for name, kind in BACKENDS.items() if issubclass(kind, BetweenProcesses)}
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


@dataclasses.dataclass
class Demo:
    """The demonstration, stage by stage; `seconds` holds each stage's wall time."""

    out: Path
    epsilon: float
    num_steps: int | None
    seed: int
    dpvi: DPVI
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def run(self) -> Comparison:
        """Plan, fit, compare, write, and say how it went."""
        refuse_started(self.out)
        if not outputs.can_draw():
            raise ArgumentError("the demo draws figures: install matplotlib with `pip install 'vertinumpyro[report]'`")
        dataset = self._introduce()
        joint_key, twin_key, *party_keys = jax.random.split(random_key(self.seed), 2 + len(dataset.parties))
        posterior = self._fit(dataset, joint_key)
        with self._stage("synthetic twin"):
            twin = posterior.sample_synthetic(rng_key=twin_key)
        apart = self._apart(dataset, list(party_keys))
        with self._stage("comparison"):
            comparison = compare(dataset.to_frame(), twin, apart, dataset.schema, LINK)
        self._write(posterior, dataset, twin, comparison)
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

    def _fit(self, dataset: VerticalDataset, rng_key: jax.Array) -> Posterior:
        with self._stage("privacy plan"):
            plan = self.dpvi.plan(dataset, epsilon=self.epsilon, num_steps=self.num_steps)
            table = list(plan_view(plan, plan_facts(plan, self.dpvi.backend.info().name)))
            table += (
                list(cost_lines(self.dpvi.backend, self.dpvi.computations(dataset, plan))) if self._in_processes else []
            )
        console.print(heading("Privacy plan (before anything is spent)"), *table)
        console.print(heading(f"Learning on the joined table, {count(plan.num_steps, 'step')}"))
        log = progress_in_log(self.out / PRIVACY_RECORD, plan.num_steps)
        with self._timed("joint fit"), self._fitter(dataset) as fit, log:
            return fit(plan, rng_key, run_dir=self.out, progress_bar=console.is_terminal)

    @property
    def _in_processes(self) -> bool:
        return isinstance(self.dpvi.backend, BetweenProcesses)

    @contextmanager
    def _fitter(self, dataset: VerticalDataset) -> Iterator[Callable[..., Posterior]]:
        """How a plan is spent: here, or with a process for each party, which reads that party's file alone."""
        if not self._in_processes:
            yield partial(self.dpvi.fit, dataset)
            return
        build = partial(DPVI, backend=self.dpvi.backend, num_components=self.dpvi.num_components)
        with parties_of_public_table(dataset, self.out / "parties", build) as session:
            yield partial(self.dpvi.fit, session)

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
                    num_steps=self.num_steps,
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
        self, posterior: Posterior, dataset: VerticalDataset, twin: pd.DataFrame, comparison: Comparison
    ) -> None:
        with self._stage("outputs"):
            outputs.write_tables(twin, self.out)
            posterior.save(self.out / "posterior.npz")
            items = [
                *comparison.items(),
                outputs.marginals(dataset.to_frame(), twin, dataset.schema),
                *outputs.public_items(posterior, twin),
                *outputs.training_trace(posterior),
            ]
            content = outputs.report_content(
                posterior,
                self.dpvi,
                title="A private twin of the RAND Health Insurance Experiment",
                summary=_summary(comparison),
                items=items,
                extra_configuration={name: duration(s) for name, s in self.seconds.items()},
            )
            write_report(self.out / "report.html", content)

    def _conclude(self, comparison: Comparison) -> None:
        console.print(heading(f"Written to {self.out}/"), facts_grid(outputs.FILES))
        console.print(heading("Was it worth joining?  [not DP: computed on the real table]"))
        joint, apart = comparison.cross_party
        (a, b), (real, kept, lost) = comparison.link, comparison.dependence
        results = {
            "pairs across the parties": f"mean TVD from the real table: {joint:.3f} joint, {apart:.3f} apart",
            f"{a} × {b}": f"dependence (R-score): {real:.3f} real, {kept:.3f} joint, {lost:.3f} apart",
            "time": duration(sum(self.seconds.values())),
        }
        console.print(facts_grid(results))
        style = "green" if comparison.joint_is_closer else "yellow"
        console.print(f"[bold {style}]{_verdict(comparison)}[/]")


def _verdict(comparison: Comparison) -> str:
    joint, apart = comparison.cross_party
    if not comparison.joint_is_closer:
        return "Here the joint twin is not closer across the parties than twins made apart: try more steps."
    a, b = comparison.link
    return (
        f"Across the parties the joint twin is {1 - joint / apart:.0%} closer to the real table than twins "
        f"made apart. It keeps {comparison.link_kept:.0%} of the dependence of {a} and {b} beyond chance, "
        "twins made apart none."
    )


def _summary(comparison: Comparison) -> list[ReportText]:
    released = (
        "An insurer holds plan and visits, a clinic holds health, of the same people. Released: the noisy "
        "gradients of a NumPyro mixture with a plate for each party, and all that follows from them, such "
        "as the synthetic table."
    )
    baseline = (
        "The baseline is two twins made apart and joined at random. Each had a plan of its own with the "
        "whole ε, which favours it."
    )
    return [
        ReportText(text=released, not_dp=False),
        ReportText(text=baseline, not_dp=False),
        ReportText(text=_verdict(comparison), not_dp=True),
    ]
