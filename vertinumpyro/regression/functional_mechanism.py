"""Linear and logistic regression on columns of several parties, from one noisy objective (Xu et al. 2021).

Quadratics in place of the logistic loss, so that moments suffice.

log(1 + e^{-m}) = g(m) - m/2 with g(m) = log(2 cosh(m/2)) even, so a quadratic surrogate needs one number: g(m) ~ c_0 +
c m². With y = ±1 and m = y xᵀw the objective is c wᵀA w - ½ bᵀw, A = Σ xxᵀ, b = Σ y x; its minimum solves A w = b/(4c).

The choice of c scales all coefficients and hence the predicted probabilities; it leaves the predicted classes as they
are. Taylor's 1/8 is right at m = 0 only. g grows linearly, so on wider scores c is smaller.

Where to cut a quadratic surrogate's scores: its own cut at 0 is the best one for symmetric classes only.

The distribution of a linear score s = w_0 + Σ_g w_g(x_g) in each class is not released, but what a naive Bayes
classifier needs is: each class's size, each category's share in it, the mean of s. Taking the features as independent
within a class gives the shape of s with its skewness; its pooled variance, which the release holds too, corrects the
width for their dependence. Then the threshold with the largest expected accuracy is one maximum over a grid.

Between classes far apart any cut is as good, and noise alone says where the maximum is: it may add a few records to a
category that a class does not have, and the best cut is then just short of the other class's. So of all cuts about the
maximum that are as good but for noise, the nearest to the surrogate's own is taken.

All of it is post-processing: it costs no privacy, and where features are far from independent it costs accuracy alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema
from vertinumpyro.regression.dataframe_input import (
    Records,
    class_codes,
    classes_of,
    in_table_units,
    r2,
    refuse_weights,
    values_of,
)
from vertinumpyro.regression.features import FeatureLayout
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.noisy_moments import Quadratic, Solution
from vertinumpyro.regression.sklearn_compat import ClassifierMixin, RegressorMixin
from vertinumpyro.regression.vertical_estimator import Table, VerticalEstimator
from vertinumpyro.secure import Backend

Surrogate = Literal["taylor", "range", "fitted"]
"""taylor: order 2 at 0, as in the paper. range: least squares on [-R, R], R public. fitted: least squares for normal
scores of the variance that the released moments give the model itself."""

TAYLOR = 1 / 8
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_LEGENDRE = np.polynomial.legendre.leggauss(200)


def curvature(surrogate: Surrogate, score_range: float) -> float:
    """c of "taylor", or of "range" for scores in [-score_range, score_range]."""
    if surrogate == "taylor":
        return TAYLOR
    if not 0 < score_range < np.inf:
        raise ArgumentError(f"score_range must be positive and finite, got {score_range}")
    return _least_squares(_LEGENDRE[0] * score_range, _LEGENDRE[1])


def fitted_curvature(direction_variance: float) -> float:
    """c for scores N(0, s²) where s² = v / (4c)² and v is the variance of the scores of A w = b: a fixed point.

    :param direction_variance: v, of xᵀA⁻¹b over the records, from released moments; 0 gives 1/8.
    """
    c = TAYLOR
    for _ in range(200):
        spread = np.sqrt(max(direction_variance, 0.0)) / (4 * c)
        c = (c + (_least_squares(_NODES * spread, _WEIGHTS) if spread > 1e-6 else TAYLOR)) / 2
    return c


def _least_squares(scores: np.ndarray, weights: np.ndarray) -> float:
    """The c of the weighted least-squares fit c_0 + c m² of log(2 cosh(m/2))."""
    half = np.abs(scores) / 2
    values = half + np.log1p(np.exp(-2 * half))
    squares = scores**2
    centred = squares - np.average(squares, weights=weights)
    return float(np.sum(weights * centred * values) / np.sum(weights * centred * squares))


_HALF = 1000  # points of the grid on either side
_WIDTHS = 8.0  # standard deviations on either side


def best_threshold(matrix: np.ndarray, layout: FeatureLayout, coefficients: np.ndarray, noise: float) -> float:
    """The threshold of the largest expected accuracy, or as near to 0 as noise lets it be as good.

    0 where noise leaves a class without records or s without width.

    :param matrix: the noisy moments `[D, D]`, the label in {-1, 1}.
    :param layout: their coordinates.
    :param coefficients: of intercept and features `[D - 1]`.
    :param noise: standard deviation of the noise in a typical moment with the label, in records; cuts whose expected
        numbers of right classes differ by less are as good.
    """
    label = layout.label_index
    weights = np.insert(coefficients, label, 0.0)
    sums = [(matrix[0] + sign * matrix[label]) / 2 for sign in (-1, 1)]  # of every coordinate over a class
    sizes = np.array([total[0] for total in sums])
    if sizes.min() < 1:
        return 0.0
    means = np.array([weights @ total for total in sums]) / sizes
    variance = weights @ matrix @ weights / sizes.sum() - sizes @ means**2 / sizes.sum()
    shapes = [_Shape.of(matrix, layout, weights, total) for total in sums]
    naive = sizes @ [shape.variance for shape in shapes] / sizes.sum()
    if not (variance > 0 and naive > 0 and means[1] > means[0]):
        return 0.0
    stretch = np.sqrt(variance / naive)
    cuts = np.linspace(means[0], means[1], _HALF)
    below = [shape.below((cuts - mean) / stretch) for shape, mean in zip(shapes, means, strict=True)]
    right = sizes[0] * below[0] - sizes[1] * below[1]  # and a constant: the records on their own side of each cut
    best = int(np.argmax(right))
    worse = np.flatnonzero(right < right[best] - noise - 1e-9 * sizes.sum())
    after = int(np.searchsorted(worse, best))
    first = worse[after - 1] + 1 if after else 0
    last = worse[after] - 1 if after < len(worse) else len(cuts) - 1
    return float(np.clip(0.0, cuts[first], cuts[last]))


class _Shape(NamedTuple):
    """The distribution of a class's score about its mean, were the features independent: `mass` at `points`."""

    points: np.ndarray
    mass: np.ndarray
    variance: float

    @classmethod
    def of(cls, matrix: np.ndarray, layout: FeatureLayout, weights: np.ndarray, total: np.ndarray) -> _Shape:
        terms, normal = _terms(matrix, layout, weights, total)
        variance = normal + sum(float(share @ value**2) for share, value in terms)
        points = np.linspace(-1.0, 1.0, 2 * _HALF + 1) * _WIDTHS * np.sqrt(variance)
        mass = np.zeros(len(points))
        mass[_HALF] = 1.0
        for shares, values in terms:
            shifted = [np.interp(points - value, points, mass, left=0.0, right=0.0) for value in values]
            mass = shares @ np.array(shifted)
        if normal > 0:
            kernel = norm.pdf(points, scale=np.sqrt(normal))
            mass = np.convolve(mass, kernel / max(kernel.sum(), 1e-300), "same")
        return cls(points, mass, variance)

    def below(self, cuts: np.ndarray) -> np.ndarray:
        """The share of the class at or below each cut."""
        return np.interp(cuts, self.points, np.cumsum(self.mass))


def _terms(
    matrix: np.ndarray, layout: FeatureLayout, weights: np.ndarray, total: np.ndarray
) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """What each feature adds to a class's score: shares and centred values of categories; numbers' variance as one."""
    terms, normal = [], 0.0
    for group in layout.feature_groups:
        start = layout.starts[group.column]
        own = slice(start, start + group.size)
        if group.shape == "scalar":
            spread = matrix[start, start] / matrix[0, 0] - (matrix[0, start] / matrix[0, 0]) ** 2
            normal += float(weights[start] ** 2 * max(0.0, spread))
            continue
        one_hot = group.shape == "one_hot"
        values = weights[own] if one_hot else weights[start] * np.array([-1.0, 1.0])
        sums = total[own] if one_hot else (total[0] + total[start] * np.array([-1.0, 1.0])) / 2
        shares = np.maximum(sums, 0.0)
        if shares.sum() > 0:
            shares = shares / shares.sum()
            terms.append((shares, values - shares @ values))
    return terms, normal


class VerticalLinearRegression(RegressorMixin, VerticalEstimator):
    r"""Least squares on the columns of any number of parties, from one noisy release (Eq. 2 of the paper).

    Formal guarantee: `fit` releases what the plan's privacy table says, and everything stored is computed from that.
    The objective Σ (y - xᵀw)² is dissected into the products of each party's own columns, computed and noised by
    their owner, and cross products, computed by the secure backend with noise from every party inside: nobody ever
    sees an exact cross product, and there is one round of noise.

    Features are scaled to [-1, 1] by public bounds, categories become one-hot groups whose coefficients sum to zero.
    Labels and predictions are in the table's own units, coefficients in model units (reals in (0, 1), codes, counts).

    :param schema, label, features, epsilon, delta: what a fit without `plan=` makes its own plan from, as
        `FunctionalMechanismPlan.of` takes them; that, and `schema` for DataFrames, is what `cross_val_score` and
        `GridSearchCV` need, on pooled DataFrames. Every such fit is a budget of its own: see `own_budgets`.
    :param plan_settings: further settings of that plan by name.
    :param estimator: the mean of the "noise_aware" posterior, or the "minimiser" of the regularised, trimmed quadratic.
    :param ridge: λ of the minimiser in standard deviations of the noise.
    :param prior_variance: of each coefficient in the posterior, features and label scaled to [-1, 1].
    :param backend: computes cross products; None takes `FixedPoint`.
    :param insecure_seed: draw the noise from a seeded generator, for tests and paired benchmarks: no privacy at all.
    :ivar coef_: `[d]`, per unit of a scaled feature.
    :ivar intercept_: the prediction at scaled features of 0, both in the label's model units.
    :ivar posterior_mean_, posterior_covariance_: of (intercept, coefficients); with estimator="noise_aware" only.
    :ivar status_: "usable", "partly noise" (directions were dropped) or "noise only" (coefficients are 0).
    :ivar kept_directions_, directions_: how many eigenvalues stood out from the noise, of how many.
    :ivar plan_, moments_, secure_noise_: the plan that was spent, what it released, whether from a CSPRNG.
    :ivar schema_: the public schema of the columns that were used.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vertinumpyro.data import PartySchema, RealColumn, Schema, VerticalDataset
        >>> real = RealColumn(bounds=(0.0, 1.0))
        >>> schema = Schema({"clinic": PartySchema({"dose": real}), "bank": PartySchema({"debt": real})})
        >>> dose = np.random.default_rng(0).random(5000)
        >>> table = pd.DataFrame({"dose": dose, "debt": 0.3 + 0.4 * dose})
        >>> model = VerticalLinearRegression()
        >>> plan = model.plan(schema, "debt", num_records=5000, epsilon=1.0, delta=1e-6)
        >>> model = model.fit(VerticalDataset.from_pooled(schema, table), plan)
        >>> model.status_, bool(abs(model.coef_[0] - 0.2) < 0.05), bool(abs(model.intercept_ - 0.5) < 0.05)
        ('usable', True, True)
    """

    _model = "linear"

    def __init__(
        self, *, schema: Schema | None = None, label: str | None = None, features: Iterable[str] | None = None,
        epsilon: float | None = None, delta: float = 0.0, plan_settings: Mapping[str, Any] | None = None,
        estimator: Literal["minimiser", "noise_aware"] = "noise_aware", ridge: float = 4.0,
        prior_variance: float = 1.0, backend: Backend | None = None, insecure_seed: int | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.label = label
        self.features = features
        self.epsilon = epsilon
        self.delta = delta
        self.plan_settings = plan_settings
        self.estimator = estimator
        self.ridge = ridge
        self.prior_variance = prior_variance
        self.backend = backend
        self.insecure_seed = insecure_seed

    def fit(
        self, X: Table, y: Any = None, *, plan: FunctionalMechanismPlan | None = None,
        run_dir: str | Path | None = None, resume: bool = False,
        sample_weight: Any = None, allow_long: bool = False,
    ) -> VerticalLinearRegression:  # fmt: skip
        """Spend a plan on the parties' records.

        :param X: the parties' aligned columns, the label among them. A table of any library in the schema's own types
            is a pooled one, for research: nobody should hold one. So is an array, where `features=` lists its columns.
        :param y: the label's name, in the constructor's place; or, with a table, labels in the schema's own types. None
            takes the column of X. A plan may stand here, too.
        :param plan: made by `plan`; spent once. None makes one from the constructor's settings, and warns where this
            estimator or its clones did so before.
        :param run_dir: folder for `privacy.json`, written before anything is released, and `moments.npz`, the release.
        :param resume: go on with the run of `run_dir`; what it released is not released again.
        :param sample_weight: refused, as a record counts once.
        :param allow_long: fit even where it will take more than ten minutes.
        :raises ArgumentError: plan and records do not fit together, or a setting is wrong; nothing is spent.
        :raises PlanSpentError: the plan was spent before.
        """
        refuse_weights(sample_weight)
        found = self._solve(self._release(X, y, plan, run_dir, resume, allow_long))
        low, high = self.schema_.columns[self.plan_.layout.label].encoded_range
        self._store(found, (high - low) / 2, (high + low) / 2)
        return self

    def predict(self, X: Records) -> np.ndarray:
        """Predicted labels `[N]` in the table's own units, within the public bounds; needs the features alone.

        Of two values that are no numbers it is the share of the second.
        """
        scores = self._scores(X)
        return in_table_units(self._label, scores)

    def score(self, X: Records, y: Any = None) -> float:
        """R² of the predictions. Not DP: it reads real labels.

        :param X: records.
        :param y: labels in the schema's own types; None takes the column of X.
        """
        predicted = self.predict(X)
        return r2(in_table_units(self._label, self._labels(X, y)), predicted)


class VerticalLogisticRegression(ClassifierMixin, VerticalEstimator):
    r"""Logistic regression on the columns of any number of parties, from one noisy release (Eqs. 3-4 of the paper).

    Formal guarantee and settings as in `VerticalLinearRegression`; the label is a two-valued column. The logistic loss
    is replaced by a quadratic, so the coefficients are those of the surrogate: biased, and by how much depends on it.

    :param schema, label, features, epsilon, delta, plan_settings: as in `VerticalLinearRegression`.
    :param surrogate: see `surrogates.Surrogate`; predicted classes do not depend on it, probabilities do.
    :param score_range: R of surrogate="range".
    :param threshold: predicted classes are cut at "zero", or at the score of the largest "expected" accuracy by the
        released moments (`threshold.best_threshold`), at no privacy. Probabilities do not depend on it.
    :param estimator, ridge, prior_variance, backend, insecure_seed: as in `VerticalLinearRegression`.
    :ivar classes_: the label's two values in ascending order, as scikit-learn has them. The schema's order says which
        of them the coefficients' scores are for: the second.
    :ivar threshold_: the score above which the schema's second value is predicted.
    :ivar curvature_: c of the surrogate c_0 + c m²; 1/8 for Taylor.
    """

    _model = "logistic"

    def __init__(
        self, *, schema: Schema | None = None, label: str | None = None, features: Iterable[str] | None = None,
        epsilon: float | None = None, delta: float = 0.0, plan_settings: Mapping[str, Any] | None = None,
        surrogate: Surrogate = "range", score_range: float = 4.0,
        threshold: Literal["zero", "expected"] = "expected",
        estimator: Literal["minimiser", "noise_aware"] = "noise_aware", ridge: float = 4.0,
        prior_variance: float = 1.0, backend: Backend | None = None, insecure_seed: int | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.label = label
        self.features = features
        self.epsilon = epsilon
        self.delta = delta
        self.plan_settings = plan_settings
        self.surrogate = surrogate
        self.score_range = score_range
        self.threshold = threshold
        self.estimator = estimator
        self.ridge = ridge
        self.prior_variance = prior_variance
        self.backend = backend
        self.insecure_seed = insecure_seed

    def fit(
        self, X: Table, y: Any = None, *, plan: FunctionalMechanismPlan | None = None,
        run_dir: str | Path | None = None, resume: bool = False,
        sample_weight: Any = None, allow_long: bool = False,
    ) -> VerticalLogisticRegression:  # fmt: skip
        """Spend a plan on the parties' records; see `VerticalLinearRegression.fit`."""
        refuse_weights(sample_weight)
        if self.surrogate not in ("taylor", "range", "fitted"):
            raise ArgumentError(f'surrogate must be "taylor", "range" or "fitted", got {self.surrogate!r}')
        if self.threshold not in ("zero", "expected"):
            raise ArgumentError(f'threshold must be "zero" or "expected", got {self.threshold!r}')
        c = curvature("taylor" if self.surrogate == "taylor" else "range", self.score_range)
        objective = self._release(X, y, plan, run_dir, resume, allow_long)
        found = self._solve(objective)
        self.curvature_ = _score_curvature(objective, found) if self.surrogate == "fitted" else c
        self.classes_ = classes_of(self._label)
        scale = 1 / (4 * self.curvature_)
        self._store(found, scale, 0.0)
        informative = self.threshold == "expected" and found.status != "noise only"
        cut = 0.0
        if informative:
            matrix, layout = self.moments_.matrix, self.plan_.layout
            cut = best_threshold(matrix, layout, found.coefficients, objective.vector_noise)
        self.threshold_ = scale * cut
        return self

    def decision_function(self, X: Records) -> np.ndarray:
        """Scores `[N]` for the second of `classes_`: xᵀw, or -xᵀw where the schema lists that value first."""
        scores = self._scores(X)
        return scores if class_codes(self._label)[1] == 1 else -scores

    def predict_proba(self, X: Records) -> np.ndarray:
        """Probabilities of both `classes_` `[N, 2]`."""
        scores = self._scores(X)
        return expit(np.column_stack([-scores, scores]))[:, class_codes(self._label)]

    def predict(self, X: Records) -> np.ndarray:
        """Predicted labels `[N]`, in the label's own values."""
        codes = self._codes(X)
        return values_of(self._label)[codes]

    def score(self, X: Records, y: Any = None) -> float:
        """Accuracy. Not DP: it reads real labels. Arguments as in `VerticalLinearRegression.score`."""
        predicted = self._codes(X)
        return float(np.mean(predicted == self._labels(X, y)))

    def _codes(self, X: Records) -> np.ndarray:
        scores = self._scores(X)
        return (scores > self.threshold_).astype(int)


def _score_curvature(objective: Quadratic, found: Solution) -> float:
    """The fitted surrogate: the scores' mean square over the records from the released A, which cannot exceed 1.

    Labels are ±1, so scores of the least-squares fit have a mean square of at most 1; noise could say otherwise.
    """
    u = found.coefficients @ objective.basis
    return fitted_curvature(float(np.clip(u @ objective.matrix @ u / objective.num_records, 0.0, 1.0)))
