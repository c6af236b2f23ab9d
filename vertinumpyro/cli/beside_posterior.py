"""What a release report shows of a twin beside tables drawn anew from its posterior, where no table was released."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax
import numpy as np
import pandas as pd

from vertinumpyro.cli.outputs import (
    FEW_PANELS,
    ErrorMeaning,
    adversary_figure,
    can_draw,
    first_records,
    gradient_norms,
    synthetic_summary,
)
from vertinumpyro.cli.wording import count
from vertinumpyro.data import Schema
from vertinumpyro.dpvi import Posterior
from vertinumpyro.dpvi.posterior import GUIDES_OWN
from vertinumpyro.evaluation import (
    ReleasedShares,
    ReportFigure,
    ReportTable,
    plot_beside_release,
    plot_pairwise_tvd,
    r_scores,
)
from vertinumpyro.evaluation.marginals import DEFAULT_MAX_BINS
from vertinumpyro.posterior import PredictivePosterior
from vertinumpyro.posterior.synthetic_columns import restricted

__all__ = ["Predictive", "public_items"]

_NUM_TABLES = 40
_MOST_RECORDS = 10_000
_MOST_DRAWN = 40  # columns; more are no longer readable
_STRONGEST = 10
_TAIL = 2.5  # percent
_LABEL = "drawn anew, ± 2 standard deviations"
_LIKE = "What the posterior says of the twin"
_CLAIM = f"They vary as the guide and a sample's size have it: {GUIDES_OWN}, and what the model has wrong is not in it."
_SPREAD = ErrorMeaning(
    "spread of a share, ± 2 sd",
    "The last column is how far the share of one of its values lies apart in tables drawn anew from the posterior: "
    f"{GUIDES_OWN}.",
)


def public_items(
    posterior: Posterior, twin: pd.DataFrame | None, rng_key: jax.Array, num_records: int | None = None
) -> Iterator[ReportFigure | ReportTable]:
    """What may be published of a run by DPVI: it is computed from the plan and the releases alone.

    :param num_records: of the whole twin, where this is its beginning.
    """
    if twin is not None:
        predictive = Predictive(posterior, twin, rng_key)
        schema = posterior.guide.split.schema
        yield synthetic_summary(twin, schema, predictive.share_errors(), _SPREAD, num_records)
        yield first_records(twin)
        yield from predictive.items()
    yield from adversary_figure(posterior.plan)
    yield from gradient_norms(posterior)


class Predictive:
    """Tables drawn anew, each from one draw of the latents: post-processing of what was released, so DP.

    Attributes:
        num_records: of each table.
        shares: for each column, [tables, cells] of its values' shares.
        dependence: [tables, d, d], `r_scores` of each.
    """

    def __init__(self, posterior: PredictivePosterior, twin: pd.DataFrame, rng_key: jax.Array) -> None:
        self._schema = restricted(posterior.split.schema, list(twin.columns)[:_MOST_DRAWN])
        self._twin = twin
        self.num_records = min(len(twin), _MOST_RECORDS)
        tables = posterior.sample_synthetic(self.num_records, rng_key=rng_key, num_tables=_NUM_TABLES)
        drawn = [_shares(table, self._schema) for table in tables]
        self.shares = {name: np.stack([one[name] for one in drawn]) for name in self._schema.columns}
        self.dependence = np.stack([r_scores(table, self._schema).to_numpy() for table in tables])

    def share_errors(self) -> dict[str, float]:
        """For each column, the largest standard deviation of the share of one of its cells."""
        return {name: float(shares.std(axis=0, ddof=1).max()) for name, shares in self.shares.items()}

    def items(self) -> Iterator[ReportFigure | ReportTable]:
        """Columns and pairs of the twin beside the tables drawn anew."""
        of_tables = f"{count(_NUM_TABLES, 'table')} of {count(self.num_records, 'record')} drawn anew"
        if can_draw():
            twin = _shares(self._twin, self._schema)
            found = {
                name: ReleasedShares(shares.mean(axis=0), shares.std(axis=0, ddof=1), twin[name])
                for name, shares in self.shares.items()
            }
            yield ReportFigure(
                figure=plot_beside_release(found, self._schema, label=_LABEL),
                narrow=plot_beside_release(
                    found, self._schema, label=_LABEL, num_across=1 if len(found) <= FEW_PANELS else 2
                ),
                caption=f"Each column of the twin (bars) beside {of_tables} from the posterior. {_CLAIM}",
                not_dp=False,
                section=_LIKE,
            )
        if len(self._schema.columns) < 2:
            return
        matrix = r_scores(self._twin, self._schema)
        if can_draw():
            yield ReportFigure(
                figure=plot_pairwise_tvd(matrix, self._schema, title="Distance from independence", note=None),
                caption="How far every pair of the twin's columns is from independence, 0 to 1; pairs across parties "
                "are outlined.",
                not_dp=False,
                section=_LIKE,
            )
        yield self._strongest(matrix, of_tables)

    def _strongest(self, matrix: pd.DataFrame, of_tables: str) -> ReportTable:
        names = list(self._schema.columns)
        low, high = np.percentile(self.dependence, [_TAIL, 100 - _TAIL], axis=0)
        scores = matrix.to_numpy()
        pairs = sorted(zip(*np.triu_indices(len(names), 1), strict=True), key=lambda pair: -scores[pair])[:_STRONGEST]
        rows = {
            f"{names[i]} and {names[j]}": {
                "dependence in the twin": float(scores[i, j]),
                "in 95 % of tables drawn anew": f"{low[i, j]:.2g} to {high[i, j]:.2g}",
            }
            for i, j in pairs
        }
        return ReportTable(
            frame=pd.DataFrame.from_dict(rows, "index"),
            caption="The pairs that hang together most in the twin: total variation distance from independence, and "
            f"where it lies in {of_tables}. {_CLAIM}",
            not_dp=False,
            section=_LIKE,
        )


def _shares(table: pd.DataFrame, schema: Schema) -> Mapping[str, np.ndarray]:
    """For each column, the share of each of its cells."""
    found = {}
    for name, column in schema.columns.items():
        codes, size = column.discretise(pd.Series(table[name]), DEFAULT_MAX_BINS)
        found[name] = np.bincount(codes, minlength=size) / len(codes)
    return found
