"""One call that writes what `vertinumpyro fit` writes, of what `fit` returned."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from vertinumpyro.core.compat import random_key
from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.validation import checked
from vertinumpyro.data import VerticalDataset
from vertinumpyro.data.table import Table, as_frame
from vertinumpyro.dpvi import Posterior
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable, ReportText
from vertinumpyro.evaluation import write_report as write_page
from vertinumpyro.glm import GLMPosterior, MarginalGLM, VerticalGLM
from vertinumpyro.marginals import MarginalPosterior
from vertinumpyro.mrf import Marginals, MarkovTwin
from vertinumpyro.pooled import Twin
from vertinumpyro.posterior.predictive import checked_key
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.ledger import read_record, write_record
from vertinumpyro.regression import (
    BayesianLinearRegression,
    VerticalLinearRegression,
    VerticalLogisticRegression,
)
from vertinumpyro.reports.posterior import MarginalPosteriorReport, PosteriorReport
from vertinumpyro.reports.regression import (
    BayesianLinearReport,
    MarginalGLMReport,
    RegressionReport,
    VerticalGLMReport,
)
from vertinumpyro.reports.release import FieldReport, ReleaseReport
from vertinumpyro.reports.run_report import REPORT, DrawnTwin, RunFacts, RunReport
from vertinumpyro.secure import Backend, FixedPoint
from vertinumpyro.session import PRIVACY_RECORD, lock_folder

_RESULTS = (
    "what fit or release_marginals returned: a Posterior, MarginalPosterior, GLMPosterior, MarkovTwin, Marginals, Twin "
    "or a fitted regression"
)
_DRAFTED = "The columns' bounds and categories were read from the tables: no ε covers them."


@checked
def write_report(
    result: Any,
    folder: str | Path,
    *,
    backend: Backend | None = None,
    num_synthetic: int | None = None,
    rng_key: jax.Array | None = None,
    dataset: VerticalDataset | None = None,
    released: Marginals | None = None,
    compared: Table | None = None,
    profiles: Table | None = None,
) -> dict[str, str]:
    """Write what `vertinumpyro fit` writes, of what a fit returned: report, privacy record, released files and twin.

    The twin comes as CSV and, with its types, as Parquet. All of it is post-processing and costs nothing. Report and
    files may be published, unless `dataset` is given.

    :param result: a `Posterior`, `MarginalPosterior`, `MarkovTwin`, `Marginals`, the `Twin` of `vertinumpyro.twin`,
        `VerticalLinearRegression`, `VerticalLogisticRegression`, `BayesianLinearRegression` or `VerticalGLM`, fitted;
        or the `GLMPosterior` that `MarginalGLM.fit` returned.
    :param folder: a new or an empty one; or the `run_dir` of the fit, where record and releases are already.
    :param backend: what computed the sums across parties; the report then has its statement, and otherwise says that
        nobody told. A regression knows its own.
    :param num_synthetic: records of the twin; None takes N of the plan.
    :param rng_key: of the twin; None takes a new one from the operating system.
    :param dataset: the real table. The report then compares with it, which is not DP: it is marked so, and for the
        parties' eyes alone.
    :param released: the tables that a `MarginalPosterior` or `GLMPosterior` was learned from: to compare with, and to
        keep beside it.
    :param compared: a synthetic table that was not learned from these `Marginals`: how near it is to them.
    :param profiles: of a survival `VerticalGLM`, public rows of its features, one for each curve that is drawn.
    :returns: the names of the files, with what they are.
    :raises ArgumentError: the result is of no such kind or not fitted; the folder holds something else, another plan's
        record, or a report; names which.
    :raises PrivacyError: the record cannot be written.
    """
    if num_synthetic is not None and num_synthetic < 1:
        raise ArgumentError(f"num_synthetic={num_synthetic}; give 1 or more")
    key = random_key(secrets.randbits(31)) if rng_key is None else checked_key(rng_key)
    run = RunFacts(rng_key=key, backend=backend, num_synthetic=num_synthetic)
    report = _report_of(
        result, run, released=released, compared=None if compared is None else as_frame(compared, "compared")
    )
    if profiles is not None:
        if not isinstance(report, VerticalGLMReport) or report.result.family != "survival":
            raise ArgumentError('profiles are for curves of VerticalGLM(family="survival"); leave it out')
        report = dataclasses.replace(report, profiles=as_frame(profiles, "profiles"))
    folder = Path(folder)
    _refuse_folder_of_another(folder, report.plan)
    with lock_folder(folder):
        if not (folder / PRIVACY_RECORD).exists():
            write_record(report.plan, folder / PRIVACY_RECORD, secure_noise=report.secure_noise)
        report.save(folder)
        twin = report.draw_twin(folder)
        internal = () if dataset is None else report.internal_items(dataset, twin)
        return write_run(report, twin, folder, [*report.items(twin), *internal], release=dataset is None)


def write_run(
    report: RunReport,
    twin: DrawnTwin | None,
    folder: Path,
    items: list[ReportFigure | ReportTable],
    *,
    release: bool,
    amended: Callable[[ReportContent], ReportContent] | None = None,
) -> dict[str, str]:
    """The report, once everything else lies in the folder: all files that are there, with what they are.

    :param release: whether it is for publication, so that nothing in it may be without DP.
    :param amended: what is added to the report.
    """
    files = [name for name in report.files(twin) if name != REPORT and (folder / name).exists()]
    content = report.content(twin, items, files)
    if said := read_record(folder / PRIVACY_RECORD).account:
        content = dataclasses.replace(content, summary=[*content.summary, ReportText(text=said, not_dp=False)])
    write_page(folder / REPORT, content if amended is None else amended(content), release=release)
    return {name: what for name, what in report.files(twin).items() if (folder / name).exists()}


def _report_of(result: Any, run: RunFacts, *, released: Marginals | None, compared: pd.DataFrame | None) -> RunReport:
    if isinstance(result, Twin):
        run = run if result.proved else dataclasses.replace(run, warnings=(_DRAFTED,))
        if released is None and isinstance(result.fitted, MarginalPosterior):
            released = result.released
        result = result.fitted
    if isinstance(result, MarginalGLM):
        raise ArgumentError("result is a MarginalGLM, which keeps no fit; give the GLMPosterior that its fit returned")
    if released is not None and not isinstance(result, _FROM_TABLES):
        raise ArgumentError("released is what a MarginalPosterior was learned from; leave it out with other results")
    if compared is not None and not isinstance(result, Marginals):
        raise ArgumentError("compared is a twin to hold against Marginals; leave it out with other results")
    if isinstance(result, _FROM_TABLES):
        kind: Any = MarginalPosteriorReport if isinstance(result, MarginalPosterior) else MarginalGLMReport
        report = kind(result=result, run=run, released=released)
        if released is not None and released.plan.fingerprint() != report.plan.fingerprint():
            raise ArgumentError(
                "released is of another plan than the posterior; give the tables that it was learned from"
            )
        return report
    if isinstance(result, Marginals):
        return ReleaseReport(result=result, run=run, compared=compared)
    for kind, report in _PLAIN.items():
        if isinstance(result, kind):
            return report(result=_fitted(result), run=_with_own_backend(result, run))
    raise ArgumentError(f"result is of type {type(result).__name__}; give {_RESULTS}")


_FROM_TABLES = (MarginalPosterior, GLMPosterior)
_PLAIN: Mapping[type, Callable[..., RunReport]] = {
    Posterior: PosteriorReport,
    MarkovTwin: FieldReport,
    VerticalLinearRegression: RegressionReport,
    VerticalLogisticRegression: RegressionReport,
    BayesianLinearRegression: BayesianLinearReport,
    VerticalGLM: VerticalGLMReport,
}
"""What a report needs nothing else of."""


def _fitted(result: Any) -> Any:
    if hasattr(result, "fit") and not hasattr(result, "plan_"):
        raise ArgumentError(f"result is a {type(result).__name__} that is not fitted; call its fit first")
    return result


def _with_own_backend(result: Any, run: RunFacts) -> RunFacts:
    if run.backend is None and isinstance(result, VerticalLinearRegression | VerticalLogisticRegression | VerticalGLM):
        return dataclasses.replace(run, backend=result.backend or FixedPoint())
    return run


def _refuse_folder_of_another(folder: Path, plan: Plan) -> None:
    """Only a new folder, an empty one, or the run's own, which has no report yet."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ArgumentError(f"folder is {str(folder)!r}, which is a file; name a folder")
    if not any(folder.iterdir()):
        return
    record = folder / PRIVACY_RECORD
    if not record.exists():
        raise ArgumentError(f"{str(folder)!r} holds something else; name a new folder, or the run_dir of the fit")
    if read_record(record).plan.fingerprint() != plan.fingerprint():
        raise PlanSpentError(f"{record} is the record of another plan; name a new folder, or the run_dir of the fit")
    if (folder / REPORT).exists():
        raise ArgumentError(f"{str(folder)!r} has its {REPORT} already; name another folder, or move that away")
