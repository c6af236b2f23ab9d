"""What learning on the joined table buys: joint twins against twins that each party makes alone. Not DP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import jax
import numpy as np
import pandas as pd

from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.evaluation import (
    ReportFigure,
    ReportTable,
    cross_party_tvd,
    one_way_tvd,
    pairwise_tvd,
    plot_tvd_comparison,
    r_score,
    within_party_tvd,
)

__all__ = ["APART", "Comparison", "compare", "fit_alone", "joined_at_random"]


APART = "learned apart"


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
    return dpvi.fit(own, dpvi.plan(own, **plan), rng_key, progress_bar=progress_bar)  # type: ignore[arg-type]


def joined_at_random(twins: list[pd.DataFrame], schema: Schema, seed: int) -> pd.DataFrame:
    """The parties' twins side by side, each in a random order: nobody knows which rows belong together."""
    rng = np.random.default_rng(seed)
    shuffled = [twin.iloc[rng.permutation(len(twin))].reset_index(drop=True) for twin in twins]
    return pd.concat(shuffled, axis=1).reindex(columns=list(schema.columns))
