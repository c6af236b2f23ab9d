"""One call that measures a twin as the field does: marginals, whether a classifier tells it from the real table, small
groups, a prediction across parties, SDMetrics.

Everything here is computed on the real table: exact, not differentially private, and marked so.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CodedColumn
from vertinumpyro.data.table import Table
from vertinumpyro.evaluation.downstream import train_on_synthetic_test_on_real
from vertinumpyro.evaluation.marginals import (
    DEFAULT_MAX_BINS,
    TableCells,
    checked_table,
    cross_party_tvd,
    draw_subsets,
    mean_tvd,
    num_occupied,
    one_way_tvd,
    pairwise_tvd_of_cells,
    within_party_tvd,
)
from vertinumpyro.evaluation.plot_style import optional_module
from vertinumpyro.evaluation.report import ReportTable
from vertinumpyro.evaluation.table_plots import cell_labels

if TYPE_CHECKING:
    from vertinumpyro.data import Schema

_K = 3
_NUM_SHUFFLED = 5
_MOST_ROWS = 20_000  # of each table, for a classifier


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TwinMeasures:
    """How near a twin is to its real table.

    :ivar measures: a row for each measure: `value`, and what a `perfect` twin would have: as many records drawn from
        the real table anew.
    :ivar groups: a row for each group of `groups=`: `records` of the real table, `synthetic` records for each of these,
        `tvd3` of the group's records, the same of a `perfect` twin, and `dispersal`.
    :ivar is_dp: always False; all of it is exact.
    """

    measures: pd.DataFrame
    groups: pd.DataFrame
    is_dp: bool = dataclasses.field(default=False, init=False)

    def __repr__(self) -> str:
        return f"TwinMeasures({len(self.measures)} measures, {len(self.groups)} groups, not DP)"

    def __str__(self) -> str:
        """The tables, in four digits."""
        tables = [self.measures, *([self.groups] if len(self.groups) else [])]
        shown = [table.to_string(float_format="{:.4g}".format, na_rep="-") for table in tables]
        return "\n\n".join(["NOT DP: exact figures of the real table", *shown])

    def report_items(self, section: str = "The twin beside the real table") -> list[ReportTable]:
        """For `ReportContent(tables=...)`, marked as not DP."""
        items = [ReportTable(frame=self.measures, caption=_CAPTION, not_dp=True, section=section)]
        if len(self.groups):
            items.append(ReportTable(frame=self.groups, caption=_GROUPS, not_dp=True, section=section))
        return items


_CAPTION = (
    "How near the twin is to the real table. TVD: total variation distance, 0 to 1. pMSE ratio: how well boosted trees "
    "tell real from synthetic records, over how well they tell shuffled ones; 1 is not at all."
)
_GROUPS = (
    "Records of a group alone: TVD of their 3-way marginals, and dispersal, over how many cells of these they are "
    "spread, in those of as many real records; below 1 the twin has fewer kinds of them."
)


def evaluate_twin(
    real: Table,
    synthetic: Table,
    schema: "Schema",
    *,
    rng: np.random.Generator | int,
    target: str | None = None,
    groups: Sequence[str] = (),
    num_marginals: int = 300,
    max_bins: int = DEFAULT_MAX_BINS,
    sdmetrics: bool = False,
) -> TwinMeasures:
    """Measure a twin beside its real table. Not DP.

    Of marginals: mean TVD of one column, of two of one party, of two of different parties, and of three. The pMSE is
    of Snoke, Raab, Nowok, Dibben and Slavkovic ("General and specific utility measures for synthetic data", 2018), its
    null by shuffling who is real. Groups are of NIST's kind: whether small ones keep their marginals and their variety.

    :param real: table with the schema's columns.
    :param synthetic: table with the schema's columns; its number of rows is free.
    :param schema: the public schema of the joined table.
    :param rng: generator or seed, of marginals, of the records that are drawn, and of shuffling.
    :param target: a column with categories that a classifier predicts from the *other* parties' columns: trained on the
        twin, tested on half of the real records, beside one trained on the other half.
    :param groups: columns with categories, whose records are looked at apart.
    :param num_marginals: 3-way marginals, drawn without repetition.
    :param max_bins: cells of a real or wide integer column.
    :param sdmetrics: whether to add the scores of SDMetrics' quality report (the extra `sdmetrics`).
    :raises ArgumentError: a table lacks a column or has no rows; `target` or a group has no categories; scikit-learn or
        SDMetrics is not installed.
    """
    generator = np.random.default_rng(rng)
    tables = checked_table(real, schema, "real"), checked_table(synthetic, schema, "synthetic")
    for name in groups:
        _check_group(name, schema)
    k = min(_K, len(schema.columns))
    subsets = draw_subsets(len(schema.columns), k, num_marginals, generator)
    perfect = tables[0].iloc[generator.integers(len(tables[0]), size=len(tables[1]))]
    names = "real", "synthetic", "real"
    cells = [TableCells.of(t, schema, name, max_bins) for t, name in zip((*tables, perfect), names, strict=True)]
    rows: dict[str, tuple[float, float]] = {}
    matrices = [pairwise_tvd_of_cells(cells[0], other, schema) for other in cells[1:]]
    for name, mean in _OF_PAIRS.items():
        rows[name] = mean(matrices[0], schema), mean(matrices[1], schema)
    rows[f"TVD of {k} columns"] = mean_tvd(cells[0], cells[1], subsets), mean_tvd(cells[0], cells[2], subsets)
    rows["pMSE ratio"] = pmse_ratio(cells[0], cells[1], generator), 1.0
    if target is not None:
        rows |= dict(_predicted(*tables, target, schema, generator))
    if sdmetrics:
        rows |= {f"SDMetrics: {name}": (score, 1.0) for name, score in _sdmetrics(*tables, schema)}
    measures = pd.DataFrame.from_dict(rows, orient="index", columns=["value", "perfect"])
    found = [row for name in groups for row in _groups(cells, name, schema, subsets, generator, max_bins)]
    columns = ["group", "records", "synthetic", "tvd3", "perfect", "dispersal"]
    return TwinMeasures(
        measures=measures.dropna(subset=["value"]), groups=pd.DataFrame(found, columns=columns).set_index("group")
    )


_OF_PAIRS = {
    "TVD of a column": one_way_tvd,
    "TVD of two columns of a party": within_party_tvd,
    "TVD of two columns across parties": cross_party_tvd,
}


def _check_group(name: str, schema: "Schema") -> None:
    if not isinstance(schema.columns.get(name), CodedColumn):
        coded = [other for other, column in schema.columns.items() if isinstance(column, CodedColumn)]
        raise ArgumentError(f"groups: {name!r} is no column with categories; choose of {coded}")


def pmse_ratio(real: TableCells, synthetic: TableCells, rng: np.random.Generator) -> float:
    """The propensity's mean squared error over its mean where who is real was shuffled; 1 where nothing tells them
    apart. Not DP.

    Of at most 20,000 records of each table, by boosted trees on cells.

    :param real: a table's cells.
    :param synthetic: another's.
    :param rng: of the records and of shuffling.
    """
    both = [_some(table.codes, rng) for table in (real, synthetic)]
    x = np.concatenate(both)
    label = np.repeat([0, 1], [len(both[0]), len(both[1])])
    null = [_pmse(x, rng.permutation(label)) for _ in range(_NUM_SHUFFLED)]
    return _pmse(x, label) / float(np.mean(null))


def _some(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return codes if len(codes) <= _MOST_ROWS else codes[rng.choice(len(codes), _MOST_ROWS, replace=False)]


def _pmse(x: np.ndarray, label: np.ndarray) -> float:
    trees = optional_module("sklearn.ensemble", "scikit-learn").HistGradientBoostingClassifier
    fitted = trees(max_iter=50, random_state=0).fit(x, label)
    return float(np.mean((fitted.predict_proba(x)[:, 1] - label.mean()) ** 2))


def _predicted(
    real: pd.DataFrame, synthetic: pd.DataFrame, target: str, schema: "Schema", rng: np.random.Generator
) -> Iterator[tuple[str, tuple[float, float]]]:
    own = schema.party_of(target) if target in schema.columns else ""
    across = schema.select(name for name in schema.columns if name == target or schema.party_of(name) != own)
    half = rng.permutation(len(real)) < len(real) // 2
    found = train_on_synthetic_test_on_real(synthetic, real[half], real[~half], target, across)
    assert found.real is not None
    said = f"of {target} by other parties' columns"
    yield f"balanced accuracy {said}", (found.synthetic.balanced_accuracy, found.real.balanced_accuracy)
    if found.synthetic.auc is not None and found.real.auc is not None:
        yield f"AUC {said}", (found.synthetic.auc, found.real.auc)


def _sdmetrics(real: pd.DataFrame, synthetic: pd.DataFrame, schema: "Schema") -> Iterator[tuple[str, float]]:
    report = optional_module("sdmetrics.reports.single_table", "sdmetrics").QualityReport()
    names = list(schema.columns)
    report.generate(real[names], synthetic[names], schema.to_sdmetrics(), verbose=False)
    yield "quality", float(report.get_score())
    for name, score in report.get_properties().itertuples(index=False):
        yield str(name).lower(), float(score)


def _groups(
    cells: Sequence[TableCells], name: str, schema: "Schema", subsets: Sequence[tuple[int, ...]],
    rng: np.random.Generator, max_bins: int,
) -> Iterator[tuple[str, int, float, float, float, float]]:  # fmt: skip
    """A row for each of a column's cells that has records."""
    place, column = list(schema.columns).index(name), schema.columns[name]
    assert isinstance(column, CodedColumn)
    labels = cell_labels(column, cells[0].sizes[place], max_bins)
    within = [subset for subset in subsets if place not in subset] or list(subsets)
    for code in np.unique(cells[0].codes[:, place]):
        real, synthetic, perfect = (table.where(table.codes[:, place] == code) for table in cells)
        share = len(synthetic.codes) / len(cells[1].codes) / (len(real.codes) / len(cells[0].codes))
        said = f"{name} = {labels[code]}"
        if not len(synthetic.codes):
            yield said, len(real.codes), 0.0, 1.0, np.nan, 0.0
            continue
        floor = mean_tvd(real, perfect, within) if len(perfect.codes) else np.nan
        size = min(len(real.codes), len(synthetic.codes))
        spread = [
            num_occupied(table.where(rng.choice(len(table.codes), size, replace=False)), within)
            for table in (synthetic, real)
        ]
        yield said, len(real.codes), share, mean_tvd(real, synthetic, within), floor, spread[0] / spread[1]
