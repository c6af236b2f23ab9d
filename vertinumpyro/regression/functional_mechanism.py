"""Linear and logistic regression on columns of several parties, from one noisy objective (Xu et al. 2021)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import InsecureSeededSource, SystemRandomSource
from vertinumpyro.data import PartySchema, Schema, VerticalDataset
from vertinumpyro.privacy import start_spending
from vertinumpyro.regression.features import encoded_range
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.objective import noisy_moments
from vertinumpyro.regression.quadratic import Quadratic, Solution, minimiser, noise_aware, quadratic
from vertinumpyro.regression.scikit import BaseEstimator, RegressorMixin, check_is_fitted
from vertinumpyro.regression.surrogates import Surrogate, curvature, fitted_curvature
from vertinumpyro.regression.threshold import best_threshold
from vertinumpyro.secure.backend import SecureBackend
from vertinumpyro.secure.fixed_point import FixedPoint

if TYPE_CHECKING:
    from sklearn.base import ClassifierMixin, TransformerMixin
else:
    try:
        from sklearn.base import ClassifierMixin, TransformerMixin
    except ModuleNotFoundError:

        class ClassifierMixin:
            """Stand-in."""

        class TransformerMixin:
            """Stand-in."""


__all__ = ["NoisyFitWarning", "PooledTable", "VerticalLinearRegression", "VerticalLogisticRegression"]


class NoisyFitWarning(UserWarning):
    """A fit's noise hides what was to be learned; `status_` says how far."""


class _FunctionalMechanism(BaseEstimator):
    """What both regressions share: the release, the noisy quadratic, and the report of how noisy it was."""

    _model: Literal["linear", "logistic"]
    estimator: Literal["minimiser", "noise_aware"]
    ridge: float
    prior_variance: float
    backend: SecureBackend | None
    insecure_seed: int | None

    def plan(
        self, schema: Schema, label: str, *, num_records: int, epsilon: float, **settings: Any
    ) -> FunctionalMechanismPlan:
        """A privacy plan for this regression; reads no data. Settings as in `FunctionalMechanismPlan.of`."""
        return FunctionalMechanismPlan.of(
            schema, label, num_records=num_records, model=self._model, epsilon=epsilon, **settings
        )

    def _release(
        self, dataset: VerticalDataset, plan: FunctionalMechanismPlan, privacy_record: str | Path | None
    ) -> Quadratic:
        """Check everything, spend the plan, and keep what was released."""
        self._check(dataset, plan)
        seed = self.insecure_seed
        source = SystemRandomSource() if seed is None else InsecureSeededSource(seed)
        with start_spending(plan, privacy_record) as spending:
            spending.reserve(1)
            moments = noisy_moments(dataset, plan, self.backend or FixedPoint(), source)
        self.plan_, self.moments_, self.secure_noise_ = plan, moments, source.secure
        self.n_features_in_ = len(plan.layout.feature_indices)
        return quadratic(moments, plan.layout, plan.num_records)

    def _check(self, dataset: VerticalDataset, plan: FunctionalMechanismPlan) -> None:
        if not isinstance(dataset, VerticalDataset):
            raise ArgumentError("dataset must be a VerticalDataset: build it from the parties' tables, or put a "
                                "PooledTable in front of this estimator in a Pipeline")  # fmt: skip
        if not isinstance(plan, FunctionalMechanismPlan) or plan.model != self._model:
            raise ArgumentError(f"plan must be a FunctionalMechanismPlan for a {self._model} model: make it by `plan`")
        if plan.num_records != dataset.num_records:
            raise ArgumentError(f"plan was made for {plan.num_records} records, the dataset has {dataset.num_records}")
        expected = type(plan.layout).of(
            dataset.schema, plan.layout.label, features=[g.column for g in plan.layout.feature_groups],
            expand=[g.column for g in plan.layout.groups if g.shape == "one_hot"],
            feature_bits=plan.layout.feature_bits,
        )  # fmt: skip
        if expected != plan.layout:
            raise ArgumentError("plan was made for another schema: its parties or column types differ from the data's")
        if self.estimator not in ("minimiser", "noise_aware"):
            raise ArgumentError(f'estimator must be "minimiser" or "noise_aware", got {self.estimator!r}')
        for name in ("prior_variance", "ridge"):
            if not 0 <= getattr(self, name) < np.inf or (name == "prior_variance" and not self.prior_variance):
                raise ArgumentError(f"{name} must be positive and finite, got {getattr(self, name)}")

    def _solve(self, objective: Quadratic) -> Solution:
        if self.estimator == "minimiser":
            return minimiser(objective, self.ridge)
        return noise_aware(objective, self.prior_variance)

    def _store(self, found: Solution, scale: float, offset: float) -> None:
        """Keep w times `scale` and the intercept plus `offset`, the posterior alike, and the report."""
        self.coef_ = scale * found.coefficients[1:]
        self.intercept_ = float(scale * found.coefficients[0] + offset)
        if found.posterior is not None:
            mean, covariance = found.posterior
            self.posterior_mean_ = scale * mean + np.r_[offset, np.zeros(len(self.coef_))]
            self.posterior_covariance_ = scale**2 * covariance
        self.status_, self.kept_directions_, self.directions_ = found.status, found.kept, found.directions
        if found.status == "noise only":
            warnings.warn(
                "the noise hides every association of the features with the label: coef_ is 0, and only the intercept "
                "was learned. More records, a larger epsilon or fewer features would help",
                NoisyFitWarning,
                stacklevel=3,
            )

    def intervals(self, level: float = 0.95) -> np.ndarray:
        """Central posterior intervals of intercept and coefficients `[1 + d, 2]`, which account for the noise.

        For a one-hot group they are of the deviations from the group's mean. Approximate; see `quadratic`.
        """
        check_is_fitted(self, "coef_")
        if self.estimator != "noise_aware":
            raise ArgumentError('intervals need a fit with estimator="noise_aware"')
        if not 0 < level < 1:
            raise ArgumentError(f"level must lie in (0, 1), got {level}")
        half = norm.isf((1 - level) / 2) * np.sqrt(np.maximum(np.diag(self.posterior_covariance_), 0.0))
        return np.column_stack([self.posterior_mean_ - half, self.posterior_mean_ + half])

    def feature_names(self) -> list[str]:
        """A name for each coefficient: the column, with the category's number where it was expanded."""
        check_is_fitted(self, "coef_")
        return [
            group.column if group.shape != "one_hot" else f"{group.column}={code}"
            for group in self.plan_.layout.feature_groups
            for code in range(group.size)
        ]

    def _scores(self, dataset: VerticalDataset) -> np.ndarray:
        check_is_fitted(self, "coef_")
        return self.plan_.layout.encode_features(dataset) @ self.coef_ + self.intercept_

    def _labels(self, dataset: VerticalDataset, labels: Any) -> np.ndarray:
        return dataset.pooled()[self.plan_.layout.label] if labels is None else np.asarray(labels)


class VerticalLinearRegression(RegressorMixin, _FunctionalMechanism):
    r"""Least squares on the columns of any number of parties, from one noisy release (Eq. 2 of the paper).

    Formal guarantee: `fit` releases what the plan's privacy table says, and everything stored is computed from that.
    The objective Σ (y - xᵀw)² is dissected into the products of each party's own columns, computed and noised by
    their owner, and cross products, computed by the secure backend with noise from every party inside: nobody ever
    sees an exact cross product, and there is one round of noise.

    Features are scaled to [-1, 1] by public bounds, categories become one-hot groups whose coefficients sum to zero.
    Labels and predictions are in the dataset's model units: reals in (0, 1), codes, counts.

    Args:
        estimator: the mean of the "noise_aware" posterior, or the "minimiser" of the regularised, trimmed quadratic.
        ridge: λ of the minimiser in standard deviations of the noise.
        prior_variance: of each coefficient in the posterior, features and label scaled to [-1, 1].
        backend: computes cross products; None takes `FixedPoint`.
        insecure_seed: draw the noise from a seeded generator, for tests and paired benchmarks: no privacy at all.

    Attributes:
        coef_: `[d]`, per unit of a scaled feature.
        intercept_: the prediction at scaled features of 0.
        posterior_mean_, posterior_covariance_: of (intercept, coefficients); with estimator="noise_aware" only.
        status_: "usable", "partly noise" (directions were dropped) or "noise only" (coefficients are 0).
        kept_directions_, directions_: how many eigenvalues stood out from the noise, of how many.
        plan_, moments_, secure_noise_: the plan that was spent, what it released, whether from a CSPRNG.

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
        self, *, estimator: Literal["minimiser", "noise_aware"] = "noise_aware", ridge: float = 4.0,
        prior_variance: float = 1.0, backend: SecureBackend | None = None, insecure_seed: int | None = None,
    ) -> None:  # fmt: skip
        self.estimator = estimator
        self.ridge = ridge
        self.prior_variance = prior_variance
        self.backend = backend
        self.insecure_seed = insecure_seed

    def fit(
        self, dataset: VerticalDataset, plan: FunctionalMechanismPlan, *, privacy_record: str | Path | None = None
    ) -> VerticalLinearRegression:
        """Spend a plan on the parties' records.

        Args:
            dataset: the parties' aligned columns, the label among them.
            plan: made by `plan`; spent once.
            privacy_record: a JSON file to create, written before anything is released.

        Raises:
            ArgumentError: plan and dataset do not fit together, or a setting is wrong; nothing is spent.
            PlanSpentError: the plan was spent before.
        """
        found = self._solve(self._release(dataset, plan, privacy_record))
        low, high = encoded_range(dataset.schema.columns[plan.layout.label])
        self._store(found, (high - low) / 2, (high + low) / 2)
        return self

    def predict(self, dataset: VerticalDataset) -> np.ndarray:
        """Predicted labels `[N]` in model units; needs the feature columns alone, at any parties."""
        return self._scores(dataset)

    def score(self, dataset: VerticalDataset, labels: Any = None) -> float:
        """R² of the predictions; `labels` None takes the dataset's. Not DP: it reads real labels."""
        y = self._labels(dataset, labels).astype(np.float64)
        return float(1 - np.sum((y - self.predict(dataset)) ** 2) / np.sum((y - y.mean()) ** 2))


class VerticalLogisticRegression(ClassifierMixin, _FunctionalMechanism):
    r"""Logistic regression on the columns of any number of parties, from one noisy release (Eqs. 3-4 of the paper).

    Formal guarantee and settings as in `VerticalLinearRegression`; the label is a two-valued column. The logistic loss
    is replaced by a quadratic, so the coefficients are those of the surrogate: biased, and by how much depends on it.

    Args:
        surrogate: see `surrogates.Surrogate`; predicted classes do not depend on it, probabilities do.
        score_range: R of surrogate="range".
        threshold: predicted classes are cut at "zero", or at the score of the largest "expected" accuracy by the
            released moments (`threshold.best_threshold`), at no privacy. Probabilities do not depend on it.
        estimator, ridge, prior_variance, backend, insecure_seed: as in `VerticalLinearRegression`.

    Attributes:
        classes_: the label's codes, (0, 1).
        threshold_: the score above which class 1 is predicted.
        curvature_: c of the surrogate c_0 + c m²; 1/8 for Taylor.
    """

    _model = "logistic"

    def __init__(
        self, *, surrogate: Surrogate = "range", score_range: float = 4.0,
        threshold: Literal["zero", "expected"] = "expected",
        estimator: Literal["minimiser", "noise_aware"] = "noise_aware", ridge: float = 4.0,
        prior_variance: float = 1.0, backend: SecureBackend | None = None, insecure_seed: int | None = None,
    ) -> None:  # fmt: skip
        self.surrogate = surrogate
        self.score_range = score_range
        self.threshold = threshold
        self.estimator = estimator
        self.ridge = ridge
        self.prior_variance = prior_variance
        self.backend = backend
        self.insecure_seed = insecure_seed

    def fit(
        self, dataset: VerticalDataset, plan: FunctionalMechanismPlan, *, privacy_record: str | Path | None = None
    ) -> VerticalLogisticRegression:
        """Spend a plan on the parties' records; see `VerticalLinearRegression.fit`."""
        if self.surrogate not in ("taylor", "range", "fitted"):
            raise ArgumentError(f'surrogate must be "taylor", "range" or "fitted", got {self.surrogate!r}')
        if self.threshold not in ("zero", "expected"):
            raise ArgumentError(f'threshold must be "zero" or "expected", got {self.threshold!r}')
        c = curvature("taylor" if self.surrogate == "taylor" else "range", self.score_range)
        objective = self._release(dataset, plan, privacy_record)
        found = self._solve(objective)
        self.curvature_ = _score_curvature(objective, found) if self.surrogate == "fitted" else c
        self.classes_ = np.array([0, 1])
        scale = 1 / (4 * self.curvature_)
        self._store(found, scale, 0.0)
        informative = self.threshold == "expected" and found.status != "noise only"
        cut = best_threshold(self.moments_.matrix, plan.layout, found.coefficients) if informative else 0.0
        self.threshold_ = scale * cut
        return self

    def decision_function(self, dataset: VerticalDataset) -> np.ndarray:
        """Scores xᵀw `[N]`."""
        return self._scores(dataset)

    def predict_proba(self, dataset: VerticalDataset) -> np.ndarray:
        """Probabilities of both classes `[N, 2]`."""
        positive = expit(self._scores(dataset))
        return np.column_stack([1 - positive, positive])

    def predict(self, dataset: VerticalDataset) -> np.ndarray:
        """Predicted codes `[N]`."""
        return self.classes_[(self._scores(dataset) > self.threshold_).astype(int)]

    def score(self, dataset: VerticalDataset, labels: Any = None) -> float:
        """Accuracy; `labels` None takes the dataset's. Not DP: it reads real labels."""
        return float(np.mean(self.predict(dataset) == self._labels(dataset, labels)))


def _score_curvature(objective: Quadratic, found: Solution) -> float:
    """The fitted surrogate: the scores' mean square over the records from the released A, which cannot exceed 1.

    Labels are ±1, so scores of the least-squares fit have a mean square of at most 1; noise could say otherwise.
    """
    u = found.coefficients @ objective.basis
    return fitted_curvature(float(np.clip(u @ objective.matrix @ u / objective.num_records, 0.0, 1.0)))


class PooledTable(TransformerMixin, BaseEstimator):
    """A Pipeline's first step on the pooled side: a DataFrame becomes a `VerticalDataset`. Research only.

    Example: ``Pipeline([("table", PooledTable(schema=schema)), ("model", VerticalLogisticRegression())])``, fitted by
    ``fit(frame, plan)``. For `predict` the frame may lack columns that the model does not use.

    Args:
        schema: the public schema.
    """

    def __init__(self, *, schema: Schema) -> None:
        self.schema = schema

    def fit(self, frame: Any, plan: Any = None) -> PooledTable:
        """Nothing is learned."""
        return self

    def transform(self, frame: Any) -> VerticalDataset:
        """Encode the columns that are there."""
        present = {p: self._present(part.columns, frame) for p, part in self.schema.parties.items()}
        kept = {party: columns for party, columns in present.items() if columns}
        schema = Schema({p: PartySchema(columns) for p, columns in kept.items()}, self.schema.id_column)
        return VerticalDataset.from_pooled(schema, frame)

    @staticmethod
    def _present(columns: Any, frame: Iterable[str]) -> dict:
        return {name: column for name, column in columns.items() if name in frame}

    def __sklearn_is_fitted__(self) -> bool:
        """There is nothing to fit."""
        return True
