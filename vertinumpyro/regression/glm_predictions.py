"""What a fitted generalised linear model says of further records: in scikit-learn's words, and between parties, where
each holds its own columns and the label's party alone gets an answer.

The coefficients are public, so each party computes what its own columns add to the linear predictor. What the label's
party gets of all these is one of three things, and nobody else gets anything:

| `reveal` | the label's party learns of each record |
|---|---|
| "score" | the linear predictor, so the sum of what the other parties' columns add |
| "class" | the most probable class |
| bands | between which two public values the mean lies |

None of them is DP, as a prediction of a person is about that person. A sum of a few coefficients may have one column's
value or all of another party's columns in it.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, final

import numpy as np
import pandas as pd

from vertinumpyro.core.errors import ArgumentError, PrivacyError
from vertinumpyro.core.validation import check_fields, shown
from vertinumpyro.data import Schema, VerticalDataset
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.dpvi import Posterior
from vertinumpyro.evaluation import Predicted, PredictionItems, prediction_items
from vertinumpyro.model.hazards import PiecewiseHazard, table_numbers
from vertinumpyro.regression.dataframe_input import (
    Records,
    class_codes,
    concordance,
    d2_poisson,
    encoded,
    encoded_labels,
    in_table_units,
    part_of,
    r2,
    values_of,
)
from vertinumpyro.regression.families import CLASSIFIERS
from vertinumpyro.regression.glm_settings import Regression
from vertinumpyro.regression.results import (
    RegressionSummary,
    default_times,
    facts_of_plan,
    hazard_ratios,
    reference_profile,
    survival_curves,
    treatment_rows,
)
from vertinumpyro.regression.sklearn_compat import SpendsOwnBudgets, available_if, check_is_fitted
from vertinumpyro.secure import Backend, Crypten, FixedPoint
from vertinumpyro.secure.between_processes import BetweenProcesses
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.session import PrivateOutput, Session, session_of
from vertinumpyro.session.reveal_to_one import Bands


def _has_classes(model: Any) -> bool:
    return model.family in CLASSIFIERS


def _is_survival(model: Any) -> bool:
    return model.family == "survival"


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
    baseline_hazard_: np.ndarray
    schema_: Schema
    _regression_: Regression

    @property
    @abc.abstractmethod
    def posterior_(self) -> Posterior:
        """What DPVI returned."""

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
        """A name for each coefficient: the column, with the value where there is one for each."""
        check_is_fitted(self, "coef_")
        return [name for term in self._regression_.terms for name in term.names]

    def summary(self, level: float = 0.95) -> RegressionSummary:
        """Coefficients with standard errors and intervals that know the noise, as statsmodels prints them.

        Units are `coef_`'s; of a column with a coefficient for each value, as `coef_` has them, rows are of its values
        over the first, as of MarginalGLM, and the intercept is of the first values: how values differ is what records
        say. Where the posterior has no intervals there are coefficients alone, and a note says why.

        :param level: of the intervals.
        :raises ArgumentError: level does not lie between 0 and 1.
        """
        posterior = self.posterior_
        frame, notes = treatment_rows(self._regression_, posterior, self.intercept_, self.coef_, level)
        return RegressionSummary(
            title=f"{type(self).__name__}, family {self.family}",
            facts=facts_of_plan(posterior.plan, self._regression_.label),
            frame=frame,
            notes=[*notes, *posterior.reading_notes, *([posterior.spread_note] if posterior.spread_note else [])],
        )

    def linear_predictor(self, X: Records) -> np.ndarray:
        """Eta `[N]`; needs the feature columns alone, at any parties.

        :param X: a dataset, or a table in the schema's own types.
        :raises ArgumentError: a feature is missing, or has another public domain than in the fit.
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
        mean, regression = self._mean(X), self._regression_
        return values_of(regression.column)[mean.argmax(axis=1)] if mean.ndim == 2 else _mean_in_table(regression, mean)

    @available_if(_is_survival)
    def predict_survival_function(self, X: Records, times: Iterable[float]) -> np.ndarray:
        """Probabilities `[N, T]` of no event from time 0 until each of these, in the table's units.

        A ratio of hazards is exp(coef_), for a step of 1 of what the coefficient belongs to.
        """
        hazard = PiecewiseHazard(self._regression_.cutpoints or ())
        cumulative = np.asarray(hazard.exposure(np.asarray(list(times), np.float64))) @ self.baseline_hazard_
        return np.exp(-np.exp(self.linear_predictor(X) - self.intercept_)[:, None] * cumulative)

    @available_if(_is_survival)
    def hazard_ratios(self, *, prob: float = 0.95) -> pd.DataFrame:
        """Ratios with intervals that know the noise: of a number over its public bounds, of values over the first.

        Columns are estimate, the posterior's median, lower and upper; where there is no interval (`posterior_`), the
        first alone. Post-processing.

        :param prob: of the interval.
        """
        check_is_fitted(self, "coef_")
        return hazard_ratios(self._regression_, self.posterior_, prob)

    @available_if(_is_survival)
    def survival_curves(
        self, profiles: pd.DataFrame | None = None, times: Iterable[float] | None = None, *, prob: float = 0.95
    ) -> pd.DataFrame:
        """Probabilities of no event from time 0 until each time, by profile, with intervals as `hazard_ratios` has.

        :param profiles: public rows of the features in the schema's own types, named by the index; None takes one, the
            middle of each number's bounds and the first value of every other column.
        :param times: in the table's units; None takes 61 up to the largest.
        :param prob: of the interval at each time.
        """
        check_is_fitted(self, "coef_")
        regression, rows = self._regression_, {"reference": reference_profile(self._regression_)}
        if profiles is not None:
            columns = encoded(profiles.reset_index(drop=True), self.schema_, regression.columns).pooled()
            rows = {str(name): {n: c[i : i + 1] for n, c in columns.items()} for i, name in enumerate(profiles.index)}
        at = default_times(self.schema_.columns[regression.times[0]]) if times is None else list(times)
        return survival_curves(regression, self.posterior_, rows, np.asarray(at, np.float64), prob)

    def predictor(
        self, reveal: str | Iterable[float] = "score", *, allow_not_dp: bool = False, backend: Backend | None = None
    ) -> VerticalPredictor:
        """Predictions between parties, each of which holds its own columns of new records. NOT DP.

        The label's party alone is told something of each record, which is computed from all parties' columns of it,
        without noise, and which no ε covers; `VerticalPredictor` says exactly what.

        :param reveal: "score", the linear predictor; "class", the most probable class alone; or rising public values of
            the mean (of the second class's probability), for the band between two of them alone.
        :param allow_not_dp: True where all parties agreed to that.
        :param backend: of parties in processes; None takes one that can.
        :raises PrivacyError: nobody allowed it.
        :raises ArgumentError: `reveal` does not fit the family.
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
        """Accuracy of classes, R² of a real, D² (the share of the deviance) of counts, concordance of survival.

        Not DP: it reads real labels.

        :param X: records.
        :param y: labels in the schema's own types; None takes the column of X.
        """
        mean, truth = self._mean(X), self._labels(X, y)
        if mean.ndim == 2:
            return float(np.mean(mean.argmax(axis=1) == truth))
        if _is_survival(self):
            return concordance(mean, truth, *self._times(X))
        column = self._regression_.column
        if column.kind == "count":
            return d2_poisson(truth.astype(np.float64), mean)
        return r2(in_table_units(column, truth), in_table_units(column, mean))

    @available_if(lambda model: not _is_survival(model))
    def report_items(self, X: Records, y: Any = None, *, num_groups: int = 10) -> PredictionItems:
        """A table and figures for `write_report`: how well it predicts records whose labels are known. Not DP.

        Of two classes the ROC curve, the area under it, Brier score and calibration; of ordered ones the same of every
        event "at least this class"; of counts and reals observed against predicted means with the deviance or error.

        :param X, y: as in `score`.
        :param num_groups: of the calibration.
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

    def _times(self, X: Any) -> list[np.ndarray]:
        """Time and, where there is one, entry `[N]` of a survival's records, in the table's units."""
        regression = self._regression_
        dataset = encoded(X, self.schema_, list(regression.times), self.features)
        for name in regression.times:
            self._check_same(dataset, name)
        columns = dataset.pooled()
        return [np.asarray(table_numbers(self.schema_.columns[n], columns[n]), np.float64) for n in regression.times]

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


_BITS = 32
_LARGEST_PREDICTOR = 2.0**28
_HALVINGS = 90


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class VerticalPredictor(PrivateOutput):
    """A fitted regression's public numbers, and what its predictions of new records tell the label's party.

    Made by `VerticalGLM.predictor`. **No guarantee of differential privacy**: what the label's party is told of a
    record is computed from that record, without noise. No plan, ledger or account counts it.

    What is told, and to whom, holds against parties that follow the protocol. The label's party, with or without
    others, learns what `reveal` says of all parties' contributions added up, and what follows from that and from their
    own columns; with "score" and two parties, that is the other's contribution to each record. A party whose columns
    take few values has then shown which of them a record has, up to those that add the same. Predictions of the same
    records by several models add up to more.

    The method of sessions with the new records' tables (`schema`), whose parties are given `build`. Every one of them
    must have the same one, so a party tells nothing but what it agreed to.

    :param regression: of the fit.
    :param coefficients, intercept: of the fit.
    :param reveal: "score", "class", or rising public values of the mean that bound bands: of the second class's
        probability, of a count's rate, of a real in the table's own units.
    :param allow_not_dp: True, in words: the parties agreed that the label's party learns this of every single record,
        and no ε covers it.
    :param backend: of parties in processes; None takes `SecureAggregation` for scores, `Crypten` for what has to be
        compared.
    :raises ArgumentError: a setting does not fit the family.
    :raises PrivacyError: nobody allowed it.
    """

    regression: Regression
    coefficients: tuple[float, ...]
    intercept: float
    reveal: str | tuple[float, ...]
    allow_not_dp: bool
    backend: Backend | None = None

    def __post_init__(self) -> None:
        """Every setting, before any record is looked at."""
        check_fields(self)
        object.__setattr__(self, "reveal", self._checked_reveal())
        if not self.allow_not_dp:
            raise PrivacyError(
                f"allow_not_dp: predictions tell {self.receiver!r} {self._what} of every single record, which is "
                "computed from the other parties' columns of it and which no epsilon covers; give allow_not_dp=True "
                "where all parties agreed to that"
            )
        if not isinstance(self.backend or self._default_backend, BetweenProcesses):
            raise ArgumentError(
                "backend: it is for parties in processes; take SecureAggregation(), Crypten() or Spu(), or leave it out"
            )
        if self.reveal != "score" and isinstance(self.backend, BetweenProcesses) and not _compares(self.backend):
            raise ArgumentError(
                f"reveal={shown(self.reveal)}: a {type(self.backend).__name__} adds up and does not compare; take "
                'Crypten(), or reveal="score"'
            )
        if not self._largest < _LARGEST_PREDICTOR:
            raise ArgumentError("coefficients: a linear predictor of 2^28 and more does not fit; were they fitted?")
        if self.backend is None:
            object.__setattr__(self, "backend", self._default_backend)

    # -- what is told ----------------------------------------------------------------------------

    @property
    def receiver(self) -> str:
        """The label's party."""
        return self.regression.place.party

    @property
    def _what(self) -> str:
        words = {"score": "the linear predictor", "class": "the most probable class"}
        return words[self.reveal] if isinstance(self.reveal, str) else "the band of the mean"

    @property
    def _default_backend(self) -> BetweenProcesses:
        return SecureAggregation() if self.reveal == "score" else Crypten()

    def _checked_reveal(self) -> str | tuple[float, ...]:
        family, reveal = self.regression.family, self.reveal
        if isinstance(reveal, str):
            if reveal not in ("score", "class"):
                raise ArgumentError(f'reveal={shown(reveal)} must be "score", "class" or rising values of the mean')
            if reveal == "class" and family not in CLASSIFIERS:
                raise ArgumentError(f'reveal="class": family={family!r} has none; give values that bound bands')
            return reveal
        low, high = self._ends
        if family == "ordinal":
            raise ArgumentError('reveal: family="ordinal" has no mean; take "class" or "score"')
        found = np.asarray(list(reveal), np.float64)
        if not len(found) or not np.all(np.diff(found) > 0) or not np.all((low < found) & (found < high)):
            raise ArgumentError(
                f"reveal: bands need one or more rising values between {low:g} and {high:g}, got {found.tolist()}"
            )
        return tuple(found.tolist())

    @property
    def _ends(self) -> tuple[float, float]:
        """Between which a mean can lie."""
        family, column = self.regression.family, self.regression.column
        if column.kind == "real":
            low, high = in_table_units(column, np.array([0.0, 1.0]))
            return float(low), float(high)
        return 0.0, math.inf if family in ("poisson", "negative_binomial", "survival") else 1.0

    @cached_property
    def bands(self) -> Bands | None:
        """See `PrivateOutput.bands`: where the mean, or the class, which never falls, reaches its next value."""
        if self.reveal == "score":
            return None
        rises, values = self._mean, self.reveal
        if self.reveal == "class":
            rises, values = self._class, range(1, self.regression.column.num_categories)
        reached = _first_reached(rises, np.asarray(values, np.float64), self._largest + 1.0)
        bits = math.ceil(math.log2(self._largest + 2.0)) + 2 + _BITS
        return Bands(np.ceil(reached * 2.0**_BITS).astype(np.int64).tolist(), bits)

    def _class(self, eta: np.ndarray) -> np.ndarray:
        return self.regression.of_label.mean(eta).argmax(axis=1)

    def _mean(self, eta: np.ndarray) -> np.ndarray:
        """In the table's units; of two classes the second's probability."""
        mean = self.regression.of_label.mean(eta)
        return mean[:, 1] if mean.ndim == 2 else _mean_in_table(self.regression, mean)

    @property
    def _largest(self) -> float:
        """A bound on the linear predictor, whatever the columns hold."""
        parts = self._parts
        return abs(self.intercept) + sum(term.largest(parts[term.column]) for term in self.regression.terms)

    @property
    def _parts(self) -> Mapping[str, np.ndarray]:
        """Each column's coefficients."""
        terms = self.regression.terms
        parts = np.split(np.asarray(self.coefficients), np.cumsum([term.size for term in terms])[:-1])
        return {term.column: part for term, part in zip(terms, parts, strict=True)}

    # -- a session's method ----------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """Of the new records' tables: the model's features, without the label.

        :raises ArgumentError: the label's party holds no feature, so no table in it.
        """
        found = part_of(self.regression.schema, self.regression.columns)
        if self.receiver not in found.parties:
            raise ArgumentError(
                f"schema: {self.receiver!r} is told the predictions and holds no feature; write a schema in which it "
                "has a column besides its ids, of any content"
            )
        return found

    def build(self) -> VerticalPredictor:
        """For `PartyTask(build=...)`."""
        return self

    def described(self) -> Mapping[str, Any]:
        """See `PrivateOutput.described`."""
        public = {**self.regression.model_kwargs, "schema": self.regression.schema.digest()}
        numbers = {"coefficients": list(self.coefficients), "intercept": self.intercept, "reveal": self.reveal}
        return {**public, **numbers, "backend": self.backend and self.backend.option}

    def check_records(self, schema: Schema) -> None:
        """See `PrivateOutput.check_records`."""
        if self.receiver not in schema.parties:
            raise ArgumentError(f"schema: {self.receiver!r} is told the predictions and is no party of it; add it")
        for term in self.regression.terms:
            place = Place(term.party, term.column)
            part = schema.parties.get(term.party)
            column = None if part is None else part.columns.get(term.column)
            if column is None:
                raise ArgumentError(f"schema: {place} is in the model and not in the new records' schema; add it")
            fitted = self.regression.schema.columns[term.column]
            if dataclasses.replace(column, dtype=None) != dataclasses.replace(fitted, dtype=None):
                raise ArgumentError(f"schema: {place} has another public domain than in the fit; take that one")

    def vector(self, party: str, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """See `PrivateOutput.vector`: what the party's columns add to the predictor, in units of 2^-32."""
        own = [term for term in self.regression.terms if term.party == party]
        parts = self._parts
        length = len(next(iter(columns.values())))
        added = np.sum([np.zeros(length), *(t.added(parts[t.column], columns[t.column]) for t in own)], axis=0)
        return np.rint((added + (self.intercept if party == self.receiver else 0.0)) * 2.0**_BITS).astype(np.int64)

    def answer(self, values: np.ndarray) -> pd.DataFrame:
        """See `PrivateOutput.answer`: the label's column, and what it was made from."""
        label, classes = self.regression.label, self.regression.family in CLASSIFIERS
        names = values_of(self.regression.column) if classes else np.zeros(0)
        if self.reveal == "class":
            return pd.DataFrame({label: names[values]})
        if self.reveal != "score":
            low, high = self._ends
            edges = np.array([low, *self.reveal, high])
            return pd.DataFrame({"band": values, "from": edges[values], "to": edges[values + 1]})
        eta = values * 2.0**-_BITS
        mean = self.regression.of_label.mean(eta)
        if not classes:
            return pd.DataFrame({label: _mean_in_table(self.regression, mean), "score": eta})
        probabilities = {f"probability of {name}": mean[:, index] for index, name in enumerate(names)}
        return pd.DataFrame({label: names[mean.argmax(axis=1)], **probabilities, "score": eta})

    def predict(self, records: VerticalDataset | Session) -> pd.DataFrame | None:
        """What the label's party is told of new records. NOT DP.

        :param records: a dataset of them, in research, where one process holds every column; or a session whose tasks
            have `build` and `schema` of this predictor.
        :return: A row for each record, behind its id where it has one, if this process is the label's party's or holds
            all columns; otherwise None. Of a `ProcessSession` the label's party writes them to `PartyTask.told`.
        :raises ArgumentError: the records have other columns, or a party agreed to something else; nothing was sent.
        :raises AlignmentError: from the session: the parties' ids differ.
        """
        return session_of(records, FixedPoint()).reveal_to(self)


def _mean_in_table(regression: Regression, mean: np.ndarray) -> np.ndarray:
    """A survival's hazard is no number of its label's."""
    return mean if regression.family == "survival" else in_table_units(regression.column, mean)


def _compares(backend: Backend) -> bool:
    return isinstance(backend, Crypten)


def _first_reached(rises: Callable[[np.ndarray], np.ndarray], values: np.ndarray, bound: float) -> np.ndarray:
    """The smallest number of [-bound, bound] at which a function that never falls is at least each value; the upper
    end where it is nowhere."""
    low, high = np.full(len(values), -bound), np.full(len(values), bound)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = rises(middle) >= values
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
