"""A job's plan spent, and what it bought kept; the part of the budget that a score of the twin is bought with."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

from vertinumpyro.cli import open_session
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.job import Job, plan_to_continue
from vertinumpyro.cli.methods.quality import QualityCommand, config_of_part
from vertinumpyro.cli.progress import progress_in_log
from vertinumpyro.cli.terminal import console, heading
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable, ReportText
from vertinumpyro.privacy import Plan
from vertinumpyro.reports.plain_language import count, rounded_up
from vertinumpyro.reports.release import ReleaseReport, quality_items
from vertinumpyro.session import PRIVACY_RECORD, Session, lock_folder, require_space

__all__ = ["SCORE", "BoughtScore", "spend"]

SCORE = "quality"
"""The folder of a score's record, in its run's."""

_BYTES_OF_A_VALUE = 64  # in both formats of the twin, generously
_BYTES_OF_THE_REST = 2**26


def spend(job: Job, data: VerticalDataset | Session, plan: Plan, run_dir: Path, resume: bool) -> Any:
    """What the plan bought; of a run that is complete, as it was stored, which costs nothing."""
    stored = job.method.stored(run_dir, plan) if resume else None
    if stored is not None:
        console.print("\nThis run is complete: its outputs are written again from what it stored.")
        return stored
    num_synthetic = job.config.run.num_synthetic or data.num_records
    require_space(run_dir, _BYTES_OF_THE_REST + _BYTES_OF_A_VALUE * num_synthetic * len(job.schema.columns))
    if not resume:
        job.prepare(run_dir)
    console.print(heading(f"{'Continuing' if resume else 'Fitting'}, {count(plan.num_steps, 'step')}"))
    with progress_in_log(run_dir / PRIVACY_RECORD, plan.num_steps):
        result = job.method.fit(data, plan, run_dir=run_dir, resume=resume)
    job.method.report(result).save(run_dir)  # first of all outputs: it is what the budget bought
    return result


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BoughtScore:
    """`[quality] part`: after the fit, noisy tables of a plan of their own, in a folder below the run's.

    :ivar job: their release.
    :ivar folder: of their record.
    :ivar plan: for them; in a run that goes on, the one that it began with.
    """

    job: Job
    folder: Path
    plan: Plan

    @classmethod
    def of(
        cls, config: Config, method: str, facts: Facts, run_dir: Path, *, resume: bool = False
    ) -> BoughtScore | None:
        """Planned and tried on stand-ins before the fit spends anything; None where none is asked for.

        :param resume: whether a run goes on, with the plan that it began with.

        :raises ArgumentError: the method makes no twin.
        """
        if config.quality.part is None:
            return None
        if method not in ("dpvi", "marginals", "vertimrf"):
            raise ArgumentError(f"[quality] part: --method {method} makes no twin to compare; leave it out")
        folder = run_dir / SCORE
        quality = config_of_part(config, run_dir)
        job = Job(config=quality, method=QualityCommand(quality))
        goes_on = resume and (folder / PRIVACY_RECORD).exists()
        plan = plan_to_continue(folder, QualityCommand.name) if goes_on else job.method.plan(facts)
        return cls(job=job, folder=folder, plan=plan)

    def together(self, plan: Plan) -> dict[str, float]:
        """What everyone gets at most from the fit and the score: ε add up, and δ, by basic composition."""
        return {
            "epsilon_together": plan.worst.epsilon + self.plan.worst.epsilon,
            "delta_together": plan.delta + self.plan.delta,
        }

    def _sentence(self, plan: Plan) -> str:
        together = self.together(plan)
        return (
            f"Of the budget, ε = {rounded_up(self.plan.worst.epsilon)} buys noisy tables that the twin is not learned "
            f"from, to say how near it is. With the fit's ε = {rounded_up(plan.worst.epsilon)} that is at most "
            f"ε = {rounded_up(together['epsilon_together'])}, δ = {together['delta_together']:.3g} against everyone."
        )

    def show(self, plan: Plan) -> None:
        """Print what both plans cost together."""
        console.print(heading("The twin's score"), self._sentence(plan))

    def told(self, content: ReportContent, plan: Plan) -> ReportContent:
        """A fit's report, with what both plans cost together."""
        if not (self.folder / PRIVACY_RECORD).exists():
            return content
        told = ReportText(text=self._sentence(plan), not_dp=False)
        largest = rounded_up(self.together(plan)["epsilon_together"])
        facts = {"ε with the score": largest, **content.facts}
        return dataclasses.replace(content, summary=[*content.summary, told], facts=facts)

    def items(self, data: VerticalDataset | Session) -> Sequence[ReportFigure | ReportTable]:
        """Spends it on the twin, and says what it found; nothing is spent where the model drew no twin."""
        job, folder = self.job, self.folder
        if not Path(job.config.quality.twin or "").is_file():
            console.print("[yellow]! no twin was drawn, so its score was not bought[/]")
            return ()
        goes_on = (folder / PRIVACY_RECORD).exists()
        with lock_folder(folder), _records(job, data) as records:
            result = spend(job, records, self.plan, folder, goes_on)
        report = job.method.report(result)
        assert isinstance(report, ReleaseReport)
        assert report.score is not None  # there is a twin
        return quality_items(report.score)


@contextlib.contextmanager
def _records(job: Job, data: VerticalDataset | Session) -> Iterator[VerticalDataset | Session]:
    """The same records: where parties are processes, in new ones, which run this method."""
    if open_session.needed(job):
        with open_session.opened(job) as session:
            yield session
    else:
        yield data
