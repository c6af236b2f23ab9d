"""What a fitted generalised linear model says of further records, in scikit-learn's words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.evaluation import Predicted, PredictionItems, prediction_items
from vertinumpyro.regression.dataframe_input import Records, encoded
from vertinumpyro.regression.families import CLASSIFIERS
from vertinumpyro.regression.glm_settings import Regression
from vertinumpyro.regression.labels import class_codes, d2_poisson, encoded_labels, in_table_units, r2, values_of
from vertinumpyro.regression.secure_prediction import VerticalPredictor
from vertinumpyro.regression.sklearn_compat import SpendsOwnBudgets, available_if, check_is_fitted
from vertinumpyro.secure import Backend

__all__ = ["GLMPredictions"]


def _has_classes(model: Any) -> bool:
    return model.family in CLASSIFIERS


def _has_two_classes(model: Any) -> bool:
    return model.family in ("bernoulli", "probit")


class GLMPredictions(SpendsOwnBudgets):
    """Predictions and scores, from coefficients and public facts. Abstract.

    Labels are in the table's own types and units, whether the records are a dataset or a DataFrame.
    """

    family: str
    features: Iterable[str] | None
    coef_: np.ndarray
    intercept_: float
    classes_: np.ndarray
    schema_: Schema
    _regression_: Regression

    def __sklearn_tags__(self) -> Any:
        """A classifier or a regressor, by the family; of tables with named columns, not of arrays."""
        from sklearn.utils import ClassifierTags, RegressorTags

        tags: Any = super().__sklearn_tags__()
        if self.family in CLASSIFIERS:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.input_tags.two_d_array = False
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def feature_names(self) -> list[str]:
        """A name for each coefficient: the column, with the value's number where there is one for each."""
        check_is_fitted(self, "coef_")
        return [name for term in self._regression_.terms for name in term.names]

    def linear_predictor(self, X: Records) -> np.ndarray:
        """Eta `[N]`; needs the feature columns alone, at any parties.

        Args:
            X: a dataset, or a table in the schema's own types.

        Raises:
            ArgumentError: a feature is missing, or has another public domain than in the fit.
        """
        check_is_fitted(self, "coef_")
        dataset = encoded(X, self.schema_, self._regression_.columns, self.features)
        for name in self._regression_.columns:
            self._check_same(dataset, name)
        return self._regression_.predictor(dataset.pooled(), self.coef_, self.intercept_)

    def _check_same(self, dataset: VerticalDataset, name: str) -> None:
        if name not in dataset.schema.columns:
            raise ArgumentError(f"X lacks column {name!r}, which the model was fitted with: add it")
        fitted, given = (dataclasses.replace(s.columns[name], dtype=None) for s in (self.schema_, dataset.schema))
        if fitted != given:
            raise ArgumentError(f"X: column {name!r} has another public domain than in the fit; encode it by schema_")

    @available_if(_has_two_classes)
    def decision_function(self, X: Records) -> np.ndarray:
        """`[N]`, above 0 for the second of `classes_`: eta, or -eta where the schema lists that value first."""
        eta = self.linear_predictor(X)
        return eta if class_codes(self._regression_.column)[1] == 1 else -eta

    @available_if(_has_classes)
    def predict_proba(self, X: Records) -> np.ndarray:
        """Probabilities `[N, K]` of `classes_` at the posterior's centre."""
        mean = self._mean(X)
        return mean[:, class_codes(self._regression_.column)]

    def predict(self, X: Records) -> np.ndarray:
        """The most probable class, or the mean at the posterior's centre, `[N]`, in the table's own units."""
        mean, column = self._mean(X), self._regression_.column
        return values_of(column)[mean.argmax(axis=1)] if mean.ndim == 2 else in_table_units(column, mean)

    def predictor(
        self, reveal: str | Iterable[float] = "score", *, allow_not_dp: bool = False, backend: Backend | None = None
    ) -> VerticalPredictor:
        """Predictions between parties, each of which holds its own columns of new records. NOT DP.

        The label's party alone is told something of each record, which is computed from all parties' columns of it,
        without noise, and which no ε covers; `VerticalPredictor` says exactly what.

        Args:
            reveal: "score", the linear predictor; "class", the most probable class alone; or rising public values of
                the mean (of the second class's probability), for the band between two of them alone.
            allow_not_dp: True where all parties agreed to that.
            backend: of parties in processes; None takes one that can.

        Raises:
            PrivacyError: nobody allowed it.
            ArgumentError: `reveal` does not fit the family.
        """
        check_is_fitted(self, "coef_")
        return VerticalPredictor(
            regression=self._regression_.of_its_columns,
            coefficients=tuple(float(value) for value in self.coef_),
            intercept=float(self.intercept_),
            reveal=reveal if isinstance(reveal, str) else tuple(reveal),
            allow_not_dp=allow_not_dp,
            backend=backend,
        )

    def _mean(self, X: Any) -> np.ndarray:
        eta = self.linear_predictor(X)
        return self._regression_.of_label.mean(eta)

    def score(self, X: Records, y: Any = None) -> float:
        """Accuracy of classes, R² of a real, D² (the share of the deviance) of counts. Not DP: it reads real labels.

        Args:
            X: records.
            y: labels in the schema's own types; None takes the column of X.
        """
        mean, truth = self._mean(X), self._labels(X, y)
        if mean.ndim == 2:
            return float(np.mean(mean.argmax(axis=1) == truth))
        column = self._regression_.column
        if column.kind == "count":
            return d2_poisson(truth.astype(np.float64), mean)
        return r2(in_table_units(column, truth), in_table_units(column, mean))

    def report_items(self, X: Records, y: Any = None, *, num_groups: int = 10) -> PredictionItems:
        """A table and figures for `write_report`: how well it predicts records whose labels are known. Not DP.

        Of two classes the ROC curve, the area under it, Brier score and calibration; of ordered ones the same of every
        event "at least this class"; of counts and reals observed against predicted means with the deviance or error.

        Args:
            X, y: as in `score`.
            num_groups: of the calibration.
        """
        mean, truth = self._mean(X), self._labels(X, y)
        label, column = self._regression_.label, self._regression_.column
        if mean.ndim == 1:
            kind = "count" if column.kind == "count" else "real"
            found = Predicted(in_table_units(column, truth), in_table_units(column, mean))
            return prediction_items({label: found}, kind=kind, num_groups=num_groups)
        above = np.cumsum(mean[:, ::-1], axis=1)[:, ::-1].clip(0.0, 1.0)
        words = "{} is {}" if mean.shape[1] == 2 else "{} is at least {}"
        events = {
            words.format(label, name): Predicted((truth >= code).astype(float), above[:, code])
            for code, name in enumerate(values_of(column))
            if code
        }
        return prediction_items(events, num_groups=num_groups)

    def _labels(self, X: Any, y: Any) -> np.ndarray:
        """True labels `[N]` in model units."""
        regression = self._regression_
        if y is not None:
            num_records = X.num_records if isinstance(X, VerticalDataset) else len(X)
            return encoded_labels(regression.column, regression.place, y, num_records)
        dataset = encoded(X, self.schema_, [regression.label], self.features)
        if regression.label not in dataset.schema.columns:
            raise ArgumentError(f"y: X has no column {regression.label!r} to compare with; pass y")
        self._check_same(dataset, regression.label)
        return dataset.pooled()[regression.label]
