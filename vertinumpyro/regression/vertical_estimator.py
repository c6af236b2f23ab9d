"""What the regressions across parties share: plans and tables in, one release, and what it says about itself."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.row_blocks import block_bytes, slices
from vertinumpyro.core.validation import checked
from vertinumpyro.data import Column, DatasetInfo, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.schema_checks import Place
from vertinumpyro.privacy import FitTime, Plan
from vertinumpyro.regression.dataframe_input import (
    Records,
    as_records,
    encoded,
    encoded_labels,
    facts_of,
    label_of,
    part_of,
    schema_of,
    told_apart,
    value_texts,
    with_labels,
)
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.regression.noisy_moments import (
    MOMENTS,
    MomentsWork,
    NoisyMoments,
    Quadratic,
    Solution,
    input_form,
    minimiser,
    noise_aware,
    noisy_moments,
    quadratic,
)
from vertinumpyro.regression.results import (
    INTERCEPT_ROW,
    RegressionSummary,
    facts_of_plan,
    interval_names,
    normal_rows,
)
from vertinumpyro.regression.sklearn_compat import SpendsOwnBudgets, check_is_fitted, labels_as_given
from vertinumpyro.secure import Backend, BetweenProcesses, FixedPoint
from vertinumpyro.secure.computation import Computation, CrossProducts
from vertinumpyro.session import Session, recorded_plan, session_of
from vertinumpyro.session.cost_estimate import announce, slowness

Table = Records | Session

_BEGIN_S, _RECORD_S, _VALUE_S, _PRODUCT_S = 0.2, 3e-7, 1e-8, 1e-10  # seconds of a fit, and for each of these
_SOLVE_S = 1e-9  # for the cube of the number of features
_MATRICES = 8  # of all products at a time: exact, with noise, and what solves for their coefficients


class NoisyFitWarning(UserWarning):
    """A fit's noise hides what was to be learned; `status_` says how far."""


class VerticalEstimator(SpendsOwnBudgets):
    """The release, the noisy quadratic, and the report of how noisy it was. Abstract.

    Records are `VerticalDataset`s, sessions, or tables of any library in the schema's own types, which are pooled
    tables for research: nobody should hold one. An array is one where `features=` lists its columns in order.
    """

    _model: Literal["linear", "logistic"]
    schema: Schema | None
    label: str | None
    features: Iterable[str] | None
    epsilon: float | None
    delta: float
    plan_settings: Mapping[str, Any] | None
    estimator: Literal["minimiser", "noise_aware"]
    ridge: float
    prior_variance: float
    backend: Backend | None
    insecure_seed: int | None

    def __sklearn_tags__(self) -> Any:
        """Of tables with named columns, not of arrays, which have no public bounds; labels may be a column of X."""
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.target_tags.required = False
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_class = False
        return tags

    @checked
    def plan(
        self, data: DatasetInfo | Schema | None = None, label: str | None = None, *, num_records: int | None = None,
        epsilon: float | None = None, schema: Schema | None = None, **settings: Any,
    ) -> FunctionalMechanismPlan:  # fmt: skip
        """A privacy plan for this regression; reads no data.

        :param data: a dataset, a session or `TableFacts`; or a schema. None takes the constructor's schema.
        :param label: the column to predict; this and what else is left out is taken from the constructor.
        :param num_records: N, beside a schema.
        :param epsilon: what everyone gets at most.
        :param schema: a schema in the place of `data`.
        :param settings: as in `FunctionalMechanismPlan.of`.
        :raises ArgumentError: names what is missing or does not fit.
        """
        facts = facts_of(data, schema, num_records, self.schema)
        own = {"label": self.label, "epsilon": self.epsilon}
        given = {"label": label, "epsilon": epsilon}
        chosen = {name: own[name] if value is None else value for name, value in given.items()}
        for name, value in chosen.items():
            if value is None:
                raise ArgumentError(
                    f"{name}: there is none to make a plan with; pass plan=, a FunctionalMechanismPlan made by `plan`, "
                    f"or give the constructor {name}="
                )
        defaults = {"delta": self.delta, "features": self.features, **(self.plan_settings or {})}
        plan = FunctionalMechanismPlan.of(
            facts.schema, chosen["label"], num_records=facts.num_records, model=self._model,
            epsilon=chosen["epsilon"], **{**defaults, **settings},
        )  # fmt: skip
        plan.warn_if_narrowed()
        plan.keep_time(partial(self.time, TableFacts(facts.schema, facts.num_records), plan))
        return plan

    # -- tables in -------------------------------------------------------------------------------

    def computations(self, facts: DatasetInfo, plan: FunctionalMechanismPlan) -> list[tuple[Computation, int]]:
        """What the parties compute together, and how often: one cross product."""
        if len(plan.parties) < 2:
            return []
        form = input_form(plan, facts.parties)
        return [(CrossProducts(num_records=plan.num_records, widths=form.widths, form=form), 1)]

    def memory(self, facts: DatasetInfo, plan: FunctionalMechanismPlan) -> int:
        """Bytes that a release in one process takes at most beside the parties' encoded columns, whatever N is."""
        across = sum(dataclasses.replace(one, form=None).memory for one, _ in self.computations(facts, plan))
        return across + block_bytes(1 + plan.layout.size) + _MATRICES * 8 * plan.layout.size**2

    def time(self, facts: DatasetInfo, plan: FunctionalMechanismPlan) -> FitTime:
        """How long a fit takes here: products of all features, of which the records' number says how long they take."""
        size = plan.layout.size
        seconds = _BEGIN_S + plan.num_records * (_RECORD_S + _VALUE_S * size + _PRODUCT_S * size**2)
        wanted = isinstance(self.backend, BetweenProcesses)
        return FitTime(
            before={"the products": slowness() * seconds},
            after={"the coefficients": slowness() * _SOLVE_S * size**3},
            unknown="what the parties compute together, of which `vertinumpyro check` has the cost" if wanted else "",
            shorter="Give fewer features, or fewer categories of the widest ones. ",
        )

    def work(
        self,
        facts: DatasetInfo,
        party: str,
        columns: Mapping[str, np.ndarray],
        plan: FunctionalMechanismPlan,
        source: RandomSource,
    ) -> MomentsWork:
        """One party's part; see `session.Method`."""
        return MomentsWork(plan, facts.schema, party, columns, source)

    def _release(
        self, X: Any, y: Any, plan: Any, run_dir: str | Path | None, resume: bool, allow_long: bool
    ) -> Quadratic:
        """Check everything, try what follows on a stand-in, spend the plan, and keep what was released."""
        y, plan = told_apart(y, plan, FunctionalMechanismPlan)
        if resume and plan is None:
            plan = recorded_plan(run_dir, FunctionalMechanismPlan)
        data, spent = self._prepared(X, y, plan)
        self.check(data, spent)
        self._rehearse(spent)
        if plan is None:
            self._warn_of_another(spent)
        session = session_of(data, self.backend or FixedPoint())
        time = partial(self.time, session, spent)
        announce(session, spent, time, run_dir=run_dir, resume=resume, allow_long=allow_long)
        run = session.open(
            self, spent, run_dir=run_dir, results=MOMENTS, resume=resume, insecure_seed=self.insecure_seed
        )
        with self._counting(run, spent, plan is None):
            moments = noisy_moments(session, run, spent)
        self.plan_, self.moments_, self.secure_noise_ = spent, moments, run.secure_noise
        self.schema_ = part_of(data.schema, [group.column for group in spent.layout.groups])
        columns = [group.column for group in spent.layout.feature_groups]
        self.n_features_in_, self.feature_names_in_ = len(columns), np.array(columns, dtype=object)
        return quadratic(moments, spent.layout, spent.num_records)

    def _rehearse(self, plan: FunctionalMechanismPlan) -> None:
        """What follows the release, on a stand-in release: nothing may fail once the plan is spent."""
        stand_in = NoisyMoments(np.eye(plan.layout.size) * plan.num_records, plan.noise_variance)
        self._solve(quadratic(stand_in, plan.layout, plan.num_records))

    def _prepared(self, X: Any, y: Any, plan: Any) -> tuple[VerticalDataset | Session, FunctionalMechanismPlan]:
        """The records under the plan's columns, and the plan, made here if there is none."""
        X = as_records(X, self.features)
        schema = schema_of(X, self.schema)
        label, y = label_of(labels_as_given(y), self.label if plan is None else self._own_kind(plan).layout.label)
        if plan is None:
            plan = self.plan(schema, label, num_records=len(X) if isinstance(X, pd.DataFrame) else X.num_records)
        if isinstance(X, VerticalDataset | Session):
            if y is not None:
                raise ArgumentError(
                    f"y: a {type(X).__name__} holds its labels, in column {plan.layout.label!r}; leave y out"
                )
            return X, plan
        table = X if y is None else with_labels(X, plan.layout.label, y)
        part = part_of(schema, [group.column for group in plan.layout.groups])
        return VerticalDataset.from_pooled(part, table), plan

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this regression on such a table, and settings out of range.

        :raises ArgumentError: names what differs.
        """
        plan = self._own_kind(plan)
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

    def _own_kind(self, plan: Any) -> FunctionalMechanismPlan:
        if not isinstance(plan, FunctionalMechanismPlan) or plan.model != self._model:
            raise ArgumentError(f"plan must be a FunctionalMechanismPlan for a {self._model} model: make it by `plan`")
        return plan

    # -- the solution ----------------------------------------------------------------------------

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

    def summary(self, level: float = 0.95) -> RegressionSummary:
        """Coefficients as statsmodels prints them, with intervals that know the noise where the fit has some.

        Units are `coef_`'s; of a one-hot group the rows are deviations from the group's mean.

        :param level: of the intervals.
        :raises ArgumentError: level does not lie between 0 and 1.
        """
        interval_names(level)
        names = [INTERCEPT_ROW, *self.feature_names()]
        notes = [f"{self.kept_directions_} of {self.directions_} directions stand out from the noise: {self.status_}"]
        if self.estimator == "noise_aware":
            frame = normal_rows(names, self.posterior_mean_, self.posterior_covariance_, level)
            frame["coef"] = [self.intercept_, *self.coef_]
        else:
            frame = pd.DataFrame({"coef": [self.intercept_, *self.coef_]}, index=pd.Index(names))
            notes.append('estimator="minimiser" has no intervals; "noise_aware" has')
        title, facts = type(self).__name__, facts_of_plan(self.plan_, self.plan_.layout.label)
        return RegressionSummary(title=title, facts=facts, frame=frame, notes=notes)

    def feature_names(self) -> list[str]:
        """A name for each coefficient: the column, with the value where it was expanded."""
        check_is_fitted(self, "coef_")
        groups = self.plan_.layout.feature_groups
        values = {g.column: value_texts(self.schema_.columns[g.column]) for g in groups if g.shape == "one_hot"}
        named = [[f"{g.column}={v}" for v in values[g.column]] if g.column in values else [g.column] for g in groups]
        return [name for names in named for name in names]

    # -- predictions -----------------------------------------------------------------------------

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "coef_")
        layout = self.plan_.layout
        dataset = encoded(X, self.schema_, [group.column for group in layout.feature_groups], self.features)
        blocks = (layout.encode_features(dataset, rows) @ self.coef_ for rows in slices(dataset.num_records))
        return np.concatenate(list(blocks)) + self.intercept_

    @property
    def _label(self) -> Column:
        return self.schema_.columns[self.plan_.layout.label]

    def linear_predictor(self, X: Records) -> np.ndarray:
        """Scores xᵀw `[N]`, of a linear regression the label in model units; needs the feature columns alone."""
        return self._scores(X)

    def _labels(self, X: Any, y: Any) -> np.ndarray:
        """True labels `[N]` in model units: the records' own, or given in the table's own types."""
        label = self.plan_.layout.label
        if y is not None:
            num_records = X.num_records if isinstance(X, VerticalDataset) else len(X)
            return encoded_labels(self._label, Place(self.schema_.party_of(label), label), y, num_records)
        dataset = encoded(X, self.schema_, [label], self.features)
        if label not in dataset.schema.columns:
            raise ArgumentError(f"y: X has no column {label!r} to compare with; pass y")
        return dataset.pooled()[label]
