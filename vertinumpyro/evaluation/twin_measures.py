"""How good a twin is, as the field measures it: marginals, whether a classifier tells it from the real table, small
groups, a prediction across parties, SDMetrics, and what analyses of it are worth.

Everything here but `combine_estimates` is computed on the real table: exact, not differentially private, and marked so.

A classifier is trained on synthetic rows and tested on real ones, beside one that was trained on real rows. Features
are encoded by the public schema alone, so that synthetic and real tables make the same columns: one-hot for categories,
the public bounds mapped to [0, 1] for quantities, and an indicator for each column that may be missing.

An analysis of several synthetic tables at once needs no real row: `combine_estimates` has Rubin's rules as they hold
for fully synthetic data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd
from scipy import stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CodedColumn
from vertinumpyro.data.table import Table
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
    from vertinumpyro.data import Column, Schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of one classifier on the real test rows, each in [0, 1].

    :ivar accuracy: share of correct predictions.
    :ivar balanced_accuracy: mean over the classes that occur of the share of their rows predicted correctly.
    :ivar auc: area under the ROC curve; None unless the target has two classes, both in the test rows.
    """

    accuracy: float
    balanced_accuracy: float
    auc: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DownstreamResult:
    """What a classifier trained on the synthetic twin is worth on real rows.

    :ivar target: the predicted column.
    :ivar synthetic: scores of the model trained on synthetic rows.
    :ivar real: scores of the same model trained on real rows, the reference; None where there were none.
    :ivar majority: accuracy on the test rows of always predicting the commonest class of the training rows (the real
        ones where there are any).
    :ivar num_test: number of test rows.
    :ivar is_dp: always False; the scores are exact statistics of real rows.
    """

    target: str
    synthetic: Scores
    real: Scores | None
    majority: float
    num_test: int
    is_dp: bool = dataclasses.field(default=False, init=False)

    def to_frame(self) -> pd.DataFrame:
        """The scores as a table with one row for each training set, for a report. Not DP."""
        rows = {"synthetic rows": dataclasses.asdict(self.synthetic)}
        if self.real is not None:
            rows["real rows (not DP)"] = dataclasses.asdict(self.real)
        rows["majority class"] = {"accuracy": self.majority}
        frame = pd.DataFrame.from_dict(rows, orient="index")
        return frame.rename(columns={"balanced_accuracy": "balanced accuracy", "auc": "AUC"})


def train_on_synthetic_test_on_real(
    train_synth: Table,
    train_real: Table | None,
    test_real: Table,
    target: str,
    schema: Schema,
    model: Any = None,
) -> DownstreamResult:
    """Score a classifier trained on synthetic rows against the same one trained on real rows. Not DP.

    :param train_synth: synthetic rows with the schema's columns.
    :param train_real: real rows for the reference, or None for no reference.
    :param test_real: real rows that neither the generator nor `train_real` has seen.
    :param target: the column to predict, one with categories. Rows where it is missing are left out.
    :param schema: the public schema of the joined table; all other columns are features.
    :param model: a scikit-learn classifier, cloned for each training set; None means logistic regression.
    :raises ArgumentError: `target` is unknown or has no categories, a table lacks a column or has no rows with a
        target, the schema has no other column, or scikit-learn is missing.
    :raises DataError: a table breaks the schema.
    """
    column = _target_column(target, schema)
    names = [name for name in schema.columns if name != target]
    if not names:
        raise ArgumentError(f"schema has no column besides target={target!r} to predict it from")
    tables = {"train_synth": train_synth, "test_real": test_real}
    if train_real is not None:
        tables["train_real"] = train_real
    sets = {argument: _encode(table, argument, column, target, schema) for argument, table in tables.items()}
    if model is None:
        model = optional_module("sklearn.linear_model", "scikit-learn").LogisticRegression(max_iter=1000)
    test = sets["test_real"]
    classes = np.bincount(sets.get("train_real", sets["train_synth"])[1], minlength=column.num_cells)
    scores = {
        argument: _fit_and_score(model, *training, *test, column.num_cells)
        for argument, training in sets.items()
        if argument != "test_real"
    }
    return DownstreamResult(
        target=target,
        synthetic=scores["train_synth"],
        real=scores.get("train_real"),
        majority=float(np.mean(test[1] == classes.argmax())),
        num_test=len(test[1]),
    )


def _target_column(target: str, schema: Schema) -> CodedColumn:
    column = schema.columns.get(target)
    if column is None:
        raise ArgumentError(f"target={target!r} is not a column of the schema: {list(schema.columns)}")
    if not isinstance(column, CodedColumn):
        raise ArgumentError(f"target={target!r} has no categories to predict; choose a categorical column")
    return column


def _encode(
    table: Table, argument: str, column: CodedColumn, target: str, schema: Schema
) -> tuple[np.ndarray, np.ndarray]:
    """Features float [n, f] and class codes int [n] of the rows with a target."""
    frame = checked_table(table, schema, argument)
    rows = pd.DataFrame(frame[column.observed(pd.Series(frame[target]))])
    if not len(rows):
        raise ArgumentError(f"{argument} has no row with a value of target={target!r}")
    others = {name: part for name, part in schema.columns.items() if name != target}
    parts = [_features(part, pd.Series(rows[name])) for name, part in others.items()]
    codes, _ = column.discretise(pd.Series(rows[target]), max_bins=column.num_cells)
    return np.column_stack(parts), np.asarray(codes, np.int64)


def _features(column: Column, series: pd.Series) -> np.ndarray:
    if column.limits is None:
        codes, num_cells = column.discretise(series)
        return np.eye(num_cells)[codes]
    column.discretise(series)  # checks the values against the public domain
    low, high = column.limits
    unit = (np.clip(column.quantities(series), low, high) - low) / (high - low)
    absent = np.isnan(unit)
    parts = [np.where(absent, 0.5, unit)] + [absent] * (column.missing != "forbid")
    return np.column_stack(parts).astype(float)


def _fit_and_score(
    model: Any, x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, num_classes: int
) -> Scores:
    """Fit a clone; where the training rows have one class only, that class is always predicted."""
    if len(np.unique(y)) == 1:
        predicted, score = np.full(len(test_y), y[0]), np.zeros(len(test_y))
    else:
        fitted = optional_module("sklearn.base", "scikit-learn").clone(model).fit(x, y)
        predicted = fitted.predict(test_x)
        score = _second_class_score(fitted, test_x) if num_classes == 2 else None
    both = num_classes == 2 and len(np.unique(test_y)) == 2
    recalls = [float(np.mean(predicted[test_y == c] == c)) for c in np.unique(test_y)]
    return Scores(
        accuracy=float(np.mean(predicted == test_y)),
        balanced_accuracy=float(np.mean(recalls)),
        auc=_auc(score, test_y) if both and score is not None else None,
    )


def _second_class_score(fitted: Any, x: np.ndarray) -> np.ndarray:
    if callable(getattr(fitted, "predict_proba", None)):
        return fitted.predict_proba(x)[:, 1]
    return fitted.decision_function(x)


def _auc(score: np.ndarray, positive: np.ndarray) -> float:
    """Mann-Whitney: the chance that a positive row scores higher than a negative one; ties count half."""
    ranks = pd.Series(score).rank().to_numpy()
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    excess = ranks[positive == 1].sum() - num_positive * (num_positive + 1) / 2
    return float(excess / (num_positive * num_negative))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CombinedEstimate:
    """An estimate from several synthetic tables, of the population and not of a table.

    :ivar estimate: the mean over the tables.
    :ivar stddev: its standard deviation, with the privacy noise, the sample and the synthesis in it.
    :ivar degrees_of_freedom: of the t distribution that intervals are taken from.
    """

    estimate: np.ndarray
    stddev: np.ndarray
    degrees_of_freedom: np.ndarray

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends."""
        if not 0 < level < 1:
            raise ArgumentError(f"level={level} must lie between 0 and 1")
        half = stats.t.ppf(0.5 + level / 2, self.degrees_of_freedom) * self.stddev
        return self.estimate - half, self.estimate + half


def combine_estimates(estimates: Any, variances: Any) -> CombinedEstimate:
    """Combines what an analysis gave on m synthetic tables, each made from a posterior draw of its own.

    With b the variance of the estimates between tables and u the mean of their own variances, the variance of the mean
    is T = (1 + 1/m) b - u (Raghunathan, Reiter and Rubin 2003, fully synthetic data; Räisä et al. 2023 for tables under
    DP), with (m - 1) (1 - u / ((1 + 1/m) b))^2 degrees of freedom. Where T comes out negative, which it does for few
    tables, u takes its place (Reiter 2002). The tables are those of `sample_synthetic(num_tables=m)`, with N records
    each; the intervals hold as far as the posterior does: under the law of the tables, not under the field's.

    :param estimates: point estimates, `[m, ...]`: say, coefficients.
    :param variances: their squared standard errors on each table, `[m, ...]`.
    :raises ArgumentError: fewer than two tables, different shapes, or values that are not finite.
    """
    estimates, variances = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if estimates.shape != variances.shape or estimates.ndim < 1 or len(estimates) < 2:
        raise ArgumentError(
            f"estimates and variances must have the same shape [m, ...] with m of at least 2 tables, got "
            f"{estimates.shape} and {variances.shape}"
        )
    if not (np.isfinite(estimates).all() and np.isfinite(variances).all() and (variances >= 0).all()):
        raise ArgumentError("estimates must be finite, and variances finite and not negative")
    tables = len(estimates)
    between, within = (1 + 1 / tables) * estimates.var(axis=0, ddof=1), variances.mean(axis=0)
    total = between - within
    ratio = np.divide(within, between, out=np.ones_like(within), where=between > 0)
    degrees = np.maximum((tables - 1) * (1 - ratio) ** 2, 1.0)
    return CombinedEstimate(
        estimate=estimates.mean(axis=0),
        stddev=np.sqrt(np.where(total > 0, total, within)),
        degrees_of_freedom=np.where(total > 0, degrees, tables - 1.0),
    )


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
    schema: Schema,
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


def _check_group(name: str, schema: Schema) -> None:
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
    real: pd.DataFrame, synthetic: pd.DataFrame, target: str, schema: Schema, rng: np.random.Generator
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


def _sdmetrics(real: pd.DataFrame, synthetic: pd.DataFrame, schema: Schema) -> Iterator[tuple[str, float]]:
    report = optional_module("sdmetrics.reports.single_table", "sdmetrics").QualityReport()
    names = list(schema.columns)
    report.generate(real[names], synthetic[names], schema.to_sdmetrics(), verbose=False)
    yield "quality", float(report.get_score())
    for name, score in report.get_properties().itertuples(index=False):
        yield str(name).lower(), float(score)


def _groups(
    cells: Sequence[TableCells], name: str, schema: Schema, subsets: Sequence[tuple[int, ...]],
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
