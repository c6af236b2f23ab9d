"""`--method quality`: how near a twin is to the records, from noisy tables that are released for that alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from vertinumpyro.cli.config import Config
from vertinumpyro.cli.config_sections import FitSettings, ModelSettings, MRFSettings, QualitySettings
from vertinumpyro.cli.methods.base import OF_CELLS
from vertinumpyro.cli.methods.tables import TABLE_PRIVACY, TablesCommand
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import VerticalDataset
from vertinumpyro.marginals import release_marginals
from vertinumpyro.mrf import Marginals, MRFPlan
from vertinumpyro.mrf.preflight import tables_seconds
from vertinumpyro.privacy import FitTime
from vertinumpyro.reports.plain_language import count
from vertinumpyro.reports.release import ReleaseReport
from vertinumpyro.session import Session


class QualityCommand(TablesCommand):
    """Noisy tables, compared with a twin that was not learned from them."""

    name = "quality"
    what = "noisy tables, compared with a twin"
    own_sections = ("mrf", "quality")
    own_settings: Mapping[str, tuple[str, ...]] = {**TablesCommand.own_settings, "model": ()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._twin: pd.DataFrame | None = None
        if self.method.encoder != "secure_marginals":
            raise ArgumentError(f'[mrf] encoder = "{self.method.encoder}": --method quality needs "secure_marginals"')
        if config.mrf.triples:
            raise ArgumentError("[mrf] triples: --method quality compares pairs of columns; leave it out")

    def about(self) -> str:
        """See `CommandMethod`."""
        return "how near a twin is, from noisy tables"

    def checked(self) -> Sequence[str]:
        """The columns in cells, and the twin."""
        return [*super().checked(), count(len(self.twin()), "synthetic record")]

    def twin(self) -> pd.DataFrame:
        """The twin, which fits the schema.

        :raises ArgumentError: it cannot be read, or has none of the schema's columns.
        :raises DataError: a value is outside the schema.
        """
        if self._twin is None:
            self._twin = _read_twin(self.config)
        return self._twin

    def time(self, plan: MRFPlan) -> FitTime:
        """Of the tables alone, which no field is fitted to."""
        return FitTime(before={"the tables": tables_seconds(self._facts(plan), plan)})

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> Marginals:
        """See `CommandMethod`."""
        self.twin()
        return release_marginals(data, plan, self.method, run_dir=run_dir, resume=resume, allow_long=True)

    def report(self, result: Marginals) -> ReleaseReport:
        """See `CommandMethod`."""
        return ReleaseReport(result=result, run=self.run_facts(result.plan, {}), compared=self.twin())


def config_of_part(config: Config, run_dir: Path) -> Config:
    """The configuration of the score that `[quality] part` of a fit's budget buys."""
    assert config.quality.part is not None  # the caller asks
    part = config.part_of_budget(config.quality.part)
    unread = [f.name for f in dataclasses.fields(part) if f.name not in (*TABLE_PRIVACY, "allow_unproven")]
    tables = {name: getattr(config.mrf, name) for name in OF_CELLS}
    return dataclasses.replace(
        config,
        privacy=dataclasses.replace(part, **dict.fromkeys(unread)),
        model=ModelSettings(),
        fit=FitSettings(backend=config.fit.backend, security=config.fit.security),
        mrf=MRFSettings(**tables),
        quality=QualitySettings(twin=str((run_dir / "synthetic.parquet").resolve())),
    )


def _read_twin(config: Config) -> pd.DataFrame:
    if config.quality.twin is None:
        raise ArgumentError('[quality] twin: name the table to compare, twin = "run/synthetic.parquet"')
    path = config.folder / config.quality.twin
    if path.suffix not in (".csv", ".parquet"):
        raise ArgumentError(f"[quality] twin = {config.quality.twin!r} is neither .csv nor .parquet; give one of these")
    if not path.is_file():
        raise ArgumentError(f"[quality] twin: there is no {path}; a fit writes synthetic.parquet")
    try:
        found = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError):
        raise ArgumentError(f"[quality] twin: {path.name} cannot be read as {path.suffix}; write it again") from None
    names = [name for name in config.schema.columns if name in found.columns]
    if len(names) < 2:
        raise ArgumentError(f"[quality] twin: {path.name} has fewer than two of the schema's columns")
    VerticalDataset.from_pooled(config.schema.select(names), found[names])  # refuses what is outside the schema
    return pd.DataFrame(found[names])
