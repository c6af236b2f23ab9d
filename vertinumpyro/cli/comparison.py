"""What learning on the joined table buys: a joint twin against twins that each party makes alone. Not DP."""

from __future__ import annotations

import dataclasses

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

__all__ = ["Comparison", "compare", "fit_alone", "joined_at_random"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison:
    """Distances of two twins from the real table. Exact statistics of real records: not DP.

    :ivar joint, apart: the tables of `pairwise_tvd` for the joint twin, and for the twins made apart.
    :ivar link: two columns of different parties.
    :ivar dependence: R-score of the link in the real table, the joint twin, the twins made apart.
    """

    schema: Schema
    joint: pd.DataFrame
    apart: pd.DataFrame
    link: tuple[str, str]
    dependence: tuple[float, float, float]

    @property
    def cross_party(self) -> tuple[float, float]:
        """Mean cross-party TVD: joint, apart."""
        return cross_party_tvd(self.joint, self.schema), cross_party_tvd(self.apart, self.schema)

    @property
    def joint_is_closer(self) -> bool:
        """Whether the joint twin's cross-party pairs are closer to the real ones."""
        joint, apart = self.cross_party
        return joint < apart

    @property
    def link_kept(self) -> float:
        """How much of the link's dependence beyond chance the joint twin has, 0 to 1.

        Twins joined at random have the R-score that chance alone gives to a table of this size.
        """
        real, joint, chance = self.dependence
        return min(1.0, max(0.0, (joint - chance) / (real - chance))) if real > chance else 0.0

    def to_frame(self) -> pd.DataFrame:
        """The figures as a table."""
        a, b = self.link
        measures = {
            "mean TVD, pairs across parties": cross_party_tvd,
            "mean TVD, pairs within a party": within_party_tvd,
            "mean TVD, single columns": one_way_tvd,
        }
        twins = {"learned jointly": self.joint, "learned apart": self.apart}
        rows = {
            name: {"real table": None} | {twin: measure(matrix, self.schema) for twin, matrix in twins.items()}
            for name, measure in measures.items()
        }
        rows[f"R-score {a} × {b}"] = dict(zip(["real table", *twins], self.dependence, strict=True))
        return pd.DataFrame.from_dict(rows, orient="index").astype(object)

    def items(self) -> list[ReportFigure | ReportTable]:
        """For the report."""
        section = "Pairs of columns: joint against apart"
        figure = plot_tvd_comparison(self.joint, self.apart, self.schema)
        return [
            ReportTable(
                frame=self.to_frame(),
                caption="Distance from the real table (TVD, 0 to 1), and dependence (R-score) of one link.",
                not_dp=True,
                section=section,
            ),
            ReportFigure(
                figure=figure,
                caption="Every pair of columns. Outlined: pairs across the parties.",
                not_dp=True,
                section=section,
            ),
        ]


def compare(
    real: pd.DataFrame, joint: pd.DataFrame, apart: pd.DataFrame, schema: Schema, link: tuple[str, str]
) -> Comparison:
    """Measure both twins. Not DP."""
    return Comparison(
        schema=schema,
        joint=pairwise_tvd(real, joint, schema),
        apart=pairwise_tvd(real, apart, schema),
        link=link,
        dependence=tuple(r_score(frame, *link, schema) for frame in (real, joint, apart)),  # type: ignore[arg-type]
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
