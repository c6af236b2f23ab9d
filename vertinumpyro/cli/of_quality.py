"""`--method quality`: how near a twin is to the records, from noisy tables that are released for that alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from vertinumpyro.cli import outputs
from vertinumpyro.cli.beside_release import beside_the_release
from vertinumpyro.cli.config import Config
from vertinumpyro.cli.of_tables import TABLE_PRIVACY, OfTables
from vertinumpyro.cli.sections import FitSettings, ModelSettings, MRFSettings, QualitySettings
from vertinumpyro.cli.wording import count
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Facts, VerticalDataset
from vertinumpyro.evaluation import ReportContent, ReportFigure, ReportTable
from vertinumpyro.marginals import release_marginals
from vertinumpyro.mrf import Marginals, MRFPlan, TwinQuality, twin_quality
from vertinumpyro.mrf.quality import Kept
from vertinumpyro.posterior.synthetic_columns import restricted
from vertinumpyro.session import Session

__all__ = ["OfQuality", "config_of_part", "quality_items"]

QUALITY = "quality.json"
_OF_CELLS = ("bins", "max_cells", "memory_limit", "workload")
_MOST_NAMED = 8
_SECTION = "How near the twin is"
_FILES = {
    QUALITY: "what the twin keeps of the dependence, with intervals",
    "released.npz": "the noisy tables that say so; further twins are compared at no further cost",
    "privacy.json": "the plan, and how much of it is spent",
    "report.html": "the score, guarantees, configuration",
}


class OfQuality(OfTables):
    """Noisy tables, compared with a twin that was not learned from them."""

    name = "quality"
    what = "noisy tables, compared with a twin"
    own_settings: Mapping[str, tuple[str, ...]] = {**OfTables.own_settings, "model": ()}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if self.method.encoder != "secure_marginals":
            raise ArgumentError(f'[mrf] encoder = "{self.method.encoder}": --method quality needs "secure_marginals"')

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

    def fit(self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: Path, resume: bool) -> Marginals:
        """See `CommandMethod`."""
        self.twin()
        return release_marginals(data, plan, self.method, run_dir=run_dir, resume=resume)

    def save(self, result: Marginals, run_dir: Path) -> None:
        """The score; the release itself is in `released.npz`."""
        (run_dir / QUALITY).write_text(json.dumps(_plain(self.score(result)), indent=2) + "\n", encoding="utf-8")

    def score(self, released: Marginals) -> TwinQuality:
        """The twin's."""
        return twin_quality(released, self.twin())

    def outputs(self, result: Marginals, facts: Facts, run_dir: Path) -> Mapping[str, str]:
        """Nothing but what is saved."""
        return _FILES

    def items(self, result: Marginals) -> Sequence[ReportFigure | ReportTable]:
        """See `CommandMethod`."""
        beside = beside_the_release(result, self.twin())
        return [*outputs.adversary_figure(result.plan), *quality_items(self.score(result)), *beside]

    def report(
        self, result: Marginals, facts: Facts, items: Sequence[ReportFigure | ReportTable], *, simulated: str | None
    ) -> ReportContent:
        """See `CommandMethod`."""
        text = (
            f"Released: noisy tables of {count(facts.num_records, 'record')} whose columns sit at "
            f"{', '.join(facts.parties)}, and how near a synthetic table is to them. The score holds where the table "
            "was not learned from these."
        )
        return outputs.assembled(
            result.plan,
            items,
            title="How near a synthetic twin is",
            summary=self.released(text),
            facts=self.facts(result.plan),
            configuration={"records of the twin": f"{len(self.twin()):,}"},
            secure_noise=result.secure_noise,
            warnings=[simulated] if simulated else [],
        )


def quality_items(score: TwinQuality) -> list[ReportTable]:
    """The score as a table of a report; released."""
    rows = {"all pairs of columns": score.all, "pairs across parties": score.across}
    frame = pd.DataFrame.from_dict({name: _in_words(kept) for name, kept in rows.items()}, orient="index")
    caption = (
        "How much of the dependence in the records the twin keeps: 100 % where every table of two columns is the "
        "records', 0 % where it is no nearer than with its columns shuffled, less where it is further. From noisy "
        "tables that it was not learned from; the interval knows their noise."
    )
    if score.differing:
        named = [" and ".join(columns) for columns in score.differing]
        more = ", …" if len(named) > _MOST_NAMED else ""
        caption += f" Pairs that differ by more than noise, the most first: {', '.join(named[:_MOST_NAMED])}{more}."
    return [ReportTable(frame=frame, caption=caption, not_dp=False, section=_SECTION)]


def config_of_part(config: Config, run_dir: Path) -> Config:
    """The configuration of the score that `[quality] part` of a fit's budget buys."""
    assert config.quality.part is not None  # the caller asks
    part = config.part_of_budget(config.quality.part)
    unread = [f.name for f in dataclasses.fields(part) if f.name not in (*TABLE_PRIVACY, "allow_unproven")]
    tables = {name: getattr(config.mrf, name) for name in _OF_CELLS}
    return dataclasses.replace(
        config,
        privacy=dataclasses.replace(part, **dict.fromkeys(unread)),
        model=ModelSettings(),
        fit=FitSettings(backend=config.fit.backend),
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
    VerticalDataset.from_pooled(restricted(config.schema, names), found[names])  # refuses what is outside the schema
    return pd.DataFrame(found[names])


def _in_words(kept: Kept) -> dict[str, object]:
    known = not math.isnan(kept.share)
    return {
        "tables": kept.num_tables,
        "kept of the dependence": f"{100 * kept.share:.0f} %" if known else "noise only",
        "95 % interval": f"{100 * kept.low:.0f} to {100 * kept.high:.0f} %" if known else None,
    }


def _plain(score: TwinQuality) -> dict[str, object]:
    def of(kept: Kept) -> dict[str, float | None]:
        return {name: value if math.isfinite(value) else None for name, value in kept._asdict().items()}

    differing = [{"columns": list(columns), "squared_distance": d} for columns, d in score.differing.items()]
    return {"all": of(score.all), "across": of(score.across), "differing": differing}
