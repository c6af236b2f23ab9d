"""What analyses of synthetic rows are worth: a classifier trained on them, tested on real rows; estimates combined.

The test rows, and the reference trained on real rows, are real: none of the scores is differentially
private. Features are encoded by the public schema alone, so that synthetic and real tables make the same
columns: one-hot for categories, the public bounds mapped to [0, 1] for quantities, and an indicator for
each column that may be missing.

An analysis of several synthetic tables at once needs no real row: `combine_estimates` has Rubin's rules as they hold
for fully synthetic data.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pandas as pd
from scipy import stats

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import CodedColumn
from vertinumpyro.data.table import Table
from vertinumpyro.evaluation.marginals import checked_table
from vertinumpyro.evaluation.plot_style import optional_module

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
