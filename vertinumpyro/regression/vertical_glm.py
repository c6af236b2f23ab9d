"""`VerticalGLM`: generalised linear models across parties with scikit-learn's interface, learned by DPVI."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields, shown
from vertinumpyro.data import DatasetInfo, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, Posterior, TwinWarning
from vertinumpyro.dpvi.second_moments import MOST_COEFFICIENTS
from vertinumpyro.privacy import GradientPlan, Plan
from vertinumpyro.regression.dataframe_input import (
    as_records,
    classes_of,
    facts_of,
    label_of,
    refuse_weights,
    schema_of,
    told_apart,
    with_labels,
)
from vertinumpyro.regression.glm_predictions import GLMPredictions
from vertinumpyro.regression.glm_settings import GuideName, Regression, inference_of
from vertinumpyro.regression.sklearn_compat import check_is_fitted, labels_as_given
from vertinumpyro.regression.vertical_estimator import Table
from vertinumpyro.secure import Backend, FixedPoint
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import PartyComputation, Session, recorded_plan, session_of


class VerticalGLM(GLMPredictions):
    """A generalised linear model of one party's label on columns of all parties, learned by DPVI.

    Formal guarantee: `fit` releases what the plan's privacy table says, as `DPVI.fit` does, and everything stored is
    computed from that. The model is `glm_model`: an ordinary NumPyro function with normal priors, whose linear
    predictor the parties add up without showing it to anybody.

    Coefficients are posterior means, and `posterior_.summary()` has intervals that know the noise of the steps, where
    the steps are those of second moments (`curvature`). After Adam's they are a point, the mode under the prior, or
    with `guide="normal"` have the guide's own widths, which are no intervals (`posterior_.is_interval`).

    :param family: "bernoulli" (log odds), "probit", "ordinal", "normal", "poisson", "negative_binomial", "gamma" or
        "survival" (proportional hazards); `families` has the labels they take.
    :param schema, label, features, epsilon, delta: what a fit without `plan=` makes its own plan from; that, and
        `schema` for DataFrames, is what `cross_val_score` and `GridSearchCV` need, on pooled DataFrames. Every such fit
        is a budget of its own: see `own_budgets`.
    :param linear: ordered columns of codes (integers, bins) with one coefficient for their scaled code, in the place of
        one for each value.
    :param plan_settings: further settings of that plan by name, as `DPVI.plan` takes them.
    :param prior_scale: standard deviation of a coefficient's prior; half of the intercept's.
    :param scale: of family="normal", public: the label's standard deviation around its mean, as a part of its range.
        Rather too large than too small: residuals are cut at some multiple of it.
    :param cutpoints: of family="ordinal", public and rising, one fewer than the label has values; of "survival" the
        public times, in the table's units, at which the baseline hazard may change, () for never.
    :param offset: a column, of any party, that is added to the linear predictor as it is, in the table's own units.
    :param concentration: public; the variance is mean + mean² / concentration of "negative_binomial", and mean² /
        concentration of "gamma".
    :param exposure: of counts, "gamma" and "survival", a column of which the logarithm is added, as statsmodels has it.
    :param time: of "survival", the column of the label's party with the time of the event, or until when none was seen.
    :param entry: of "survival", a column there with the time from which on an event would have been seen, where that is
        not 0 (left truncation).
    :param guide: "point" for the mode, or "normal" for a normal distribution of each coefficient.
    :param curvature: buy noisy second moments of the features with a part of the budget, so that 20 steps suffice for
        200 (`dpvi.second_moments`). None does where it can: a point, steps that nobody set, not too many coefficients.
    :param learning_rate: of Adam, where there are no second moments; None takes the one in `regression.glm_settings`.
    :param backend: computes the cross-party steps; None takes `FixedPoint`.
    :param insecure_seed: draw the noise from a seeded generator, for tests and paired benchmarks: no privacy at all.
    :ivar coef_: `[d]`, named by `feature_names()`: per unit of a number scaled to [-1, 1] by its public bounds, and one
        for each value of every other column.
    :ivar intercept_: the linear predictor where all of these are 0.
    :ivar baseline_hazard_: of "survival", in each interval, where the linear predictor less its intercept is 0.
    :ivar classes_: of a classifier, the label's values in ascending order, as scikit-learn has them; codes where one
        stands for several values. Coefficients are for the schema's order of them.
    :ivar posterior_: what DPVI returned, for draws, ArviZ and synthetic labels.
    :ivar plan_, secure_noise_: the plan that was spent, whether the noise was from a CSPRNG.
    :ivar schema_: the public schema of the columns that were used.
    :ivar model_kwargs_: with which `glm_model` is the model that was fitted.
    :ivar n_features_in_, feature_names_in_: the columns that the label is predicted from.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vertinumpyro.data import CountColumn, PartySchema, RealColumn, Schema, VerticalDataset
        >>> dose = RealColumn(bounds=(0.0, 1.0))
        >>> calls = CountColumn(upper=9)
        >>> schema = Schema({"clinic": PartySchema({"dose": dose}), "bank": PartySchema({"calls": calls})})
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"dose": rng.random(4000)})
        >>> table["calls"] = rng.poisson(np.exp(0.2 + table["dose"])).clip(0, 9)
        >>> model = VerticalGLM(family="poisson", label="calls")
        >>> plan = model.plan(schema, num_records=4000, epsilon=5.0)
        >>> model = model.fit(VerticalDataset.from_pooled(schema, table), plan=plan)
        >>> bool(abs(model.coef_[0] - 0.5) < 0.2), bool(abs(model.intercept_ - 0.7) < 0.2)
        (True, True)
    """

    def __init__(
        self, *, family: str = "bernoulli", schema: Schema | None = None, label: str | None = None,
        features: Iterable[str] | None = None, linear: Iterable[str] = (), epsilon: float | None = None,
        delta: float = 1e-5, plan_settings: Mapping[str, Any] | None = None, prior_scale: float = 1.0,
        scale: float = 0.1, cutpoints: Iterable[float] | None = None, guide: GuideName = "point",
        curvature: bool | None = None, learning_rate: float | None = None, backend: Backend | None = None,
        insecure_seed: int | None = None, offset: str | None = None, exposure: str | None = None,
        time: str | None = None, entry: str | None = None, concentration: float | None = None,
    ) -> None:  # fmt: skip
        self.family = family
        self.schema = schema
        self.label = label
        self.features = features
        self.linear = linear
        self.epsilon = epsilon
        self.delta = delta
        self.plan_settings = plan_settings
        self.prior_scale = prior_scale
        self.scale = scale
        self.cutpoints = cutpoints
        self.guide: GuideName = guide
        self.curvature = curvature
        self.learning_rate = learning_rate
        self.backend = backend
        self.insecure_seed = insecure_seed
        self.offset = offset
        self.exposure = exposure
        self.time = time
        self.entry = entry
        self.concentration = concentration

    # -- the plan --------------------------------------------------------------------------------

    def plan(
        self, data: DatasetInfo | Schema | None = None, label: str | None = None, *, num_records: int | None = None,
        epsilon: float | None = None, schema: Schema | None = None, **settings: Any,
    ) -> GradientPlan:  # fmt: skip
        """A privacy plan of one fit; reads no data. ε holds against everyone: the outside analyst and every party.

        All records take part in each of a few steps, as `regression.glm_settings` has them, unless settings say
        otherwise.

        :param data: a dataset, a session or `TableFacts`; or a schema. None takes the constructor's schema.
        :param label: the column to predict; this and what else is left out is taken from the constructor.
        :param num_records: N, beside a schema.
        :param epsilon: what everyone gets at most.
        :param schema: a schema in the place of `data`.
        :param settings: as in `DPVI.plan`.
        :raises ArgumentError: names what is missing or does not fit.
        """
        facts = facts_of(data, schema, num_records, self.schema)
        regression = self._regression(facts.schema, label)
        if not isinstance(facts, Session):
            regression = regression.of_its_columns
            facts = TableFacts(regression.schema, facts.num_records)
        epsilon = self.epsilon if epsilon is None else epsilon
        if epsilon is None:
            raise ArgumentError(
                "epsilon: there is none to make a plan with; pass plan=, a PrivacyPlan made by `plan`, or give the "
                "constructor epsilon="
            )
        chosen = {"delta": self.delta, **(self.plan_settings or {}), **settings}
        wanted = self.curvature is not False and self._wants_curvature(regression, chosen)
        return self._planned(facts, regression, epsilon, chosen, curvature=wanted)

    def _wants_curvature(self, regression: Regression, chosen: Mapping[str, Any]) -> bool:
        """Whether second moments come first, by the settings."""
        if self.curvature is None:
            plain = not {"num_steps", "batch_size", "sampling", "noise_multiplier", "clip"} & set(chosen)
            return plain and self.guide == "point" and self.learning_rate is None and regression.has_moments
        if self.guide != "point" or not regression.has_moments or self.learning_rate is not None:
            raise ArgumentError(
                f'curvature=True: it is for guide="point", no learning_rate, up to {MOST_COEFFICIENTS} coefficients, '
                "and a hazard without cutpoints, or without entry= and offset=; leave curvature out"
            )
        return True

    def _planned(
        self, facts: DatasetInfo, regression: Regression, epsilon: float, chosen: Mapping[str, Any], *, curvature: bool
    ) -> GradientPlan:
        asked = chosen.get("num_steps")  # the plan refuses what is no number of steps
        steps = regression.steps(asked if type(asked) is int and asked > 0 else None, curvature=curvature)
        if not curvature and chosen.get("residual_bound") is None:  # else C follows from it, or both from a forecast
            chosen = {"clip_norm": steps.clip_norm, **chosen}
        if "sampling" not in chosen:
            chosen = {"batch_size": facts.num_records, "num_steps": steps.num_steps, **chosen}
        dpvi = inference_of(
            regression, self.guide, self._backend, num_steps=steps.num_steps, learning_rate=self.learning_rate,
            curvature=curvature,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwinWarning)  # nobody asks a regression for a table
            return dpvi.plan(facts, epsilon=epsilon, **chosen)

    def _regression(self, schema: Schema, label: str | None = None) -> Regression:
        """The model on a schema, every setting checked."""
        check_fields(self)
        label = self.label if label is None else label
        if label is None:
            raise ArgumentError("label: there is none; name the column to predict, or give the constructor label=")
        if not isinstance(self.plan_settings, Mapping | None):
            raise ArgumentError(
                f"plan_settings={shown(self.plan_settings)} is no mapping; give names with values, as "
                '{"num_steps": 50}'
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < np.inf:
            raise ArgumentError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        return Regression.of(
            schema, label, family=self.family, features=self.features, linear=self.linear,
            prior_scale=self.prior_scale, scale=self.scale, cutpoints=self.cutpoints, offset=self.offset,
            exposure=self.exposure, time=self.time, entry=self.entry, concentration=self.concentration,
        )  # fmt: skip

    @property
    def _backend(self) -> Backend:
        return self.backend or FixedPoint()

    def _dpvi(self, regression: Regression, plan: Plan) -> DPVI:
        """The inference that spends a plan."""
        if not isinstance(plan, GradientPlan):
            raise ArgumentError("plan must be a PrivacyPlan: make it by `plan`")
        return inference_of(
            regression, self.guide, self._backend, num_steps=plan.num_gradients, learning_rate=self.learning_rate,
            curvature=plan.start is not None,
        )  # fmt: skip

    # -- a session's method ----------------------------------------------------------------------

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for such a model on such a table; see `session.Method`.

        :raises ArgumentError: names what differs.
        """
        self._dpvi(self._regression(dataset.schema), plan).check(dataset, plan)

    def computations(self, facts: DatasetInfo, plan: GradientPlan) -> list[tuple[Computation, int]]:
        """What the parties compute together, and how often: a clipped sum in every step."""
        return self._dpvi(self._regression(facts.schema), plan).computations(facts, plan)

    def work(
        self,
        facts: DatasetInfo,
        party: str,
        columns: Mapping[str, np.ndarray],
        plan: GradientPlan,
        source: RandomSource,
    ) -> PartyComputation:
        """One party's part; see `session.Method`."""
        return self._dpvi(self._regression(facts.schema), plan).work(facts, party, columns, plan, source)

    # -- the fit ---------------------------------------------------------------------------------

    def fit(
        self, X: Table, y: Any = None, *, plan: GradientPlan | None = None, run_dir: str | Path | None = None,
        resume: bool = False,
        sample_weight: Any = None, allow_long: bool = False,
    ) -> VerticalGLM:  # fmt: skip
        """Spend a plan on the parties' records.

        :param X: the parties' aligned columns, the label among them. A table of any library in the schema's own types
            is a pooled one, for research: nobody should hold one. So is an array, where `features=` lists its columns.
        :param y: the label's name, in the constructor's place; or, with a table, labels in the schema's own types. None
            takes the column of X. A plan may stand here, too.
        :param plan: made by `plan`; spent once. None makes one from the constructor's settings, and warns where this
            estimator or its clones did so before.
        :param run_dir: folder for `privacy.json`, which counts every step before anybody sees it, and a checkpoint.
        :param resume: go on with the run of `run_dir` at its recorded step; a run that is complete costs nothing.
        :param sample_weight: refused, as a record counts once.
        :param allow_long: fit even where it will take more than ten minutes; see `DPVI.fit`.
        :raises ArgumentError: plan and records do not fit together, or a setting is wrong; nothing is spent.
        :raises PlanSpentError: the plan was spent before.
        """
        refuse_weights(sample_weight)
        y, plan = told_apart(y, plan, GradientPlan)
        if resume and plan is None:
            plan = recorded_plan(run_dir, GradientPlan)
        data, regression = self._prepared(X, y)
        spent = self.plan(data, regression.label) if plan is None else plan
        dpvi = self._dpvi(regression, spent)
        dpvi.check(data, spent)
        if plan is None:
            self._warn_of_another(spent)
        session = session_of(data, self._backend)
        with self._counting_if_begun(spent, plan is None):
            posterior = dpvi.fit(
                session, spent, compat.random_key(0), run_dir=run_dir, resume=resume, progress_bar=False,
                insecure_seed=self.insecure_seed, allow_long=allow_long,
            )  # fmt: skip
        self._keep(regression, spent, posterior)
        return self

    def _prepared(self, X: Any, y: Any) -> tuple[VerticalDataset | Session, Regression]:
        """The records under the model's columns, and the model."""
        X = as_records(X, self.features)
        schema = schema_of(X, self.schema)
        named, y = label_of(labels_as_given(y), self.label)
        regression = self._regression(schema, named)
        if isinstance(X, VerticalDataset | Session):
            if y is not None:
                raise ArgumentError(
                    f"y: a {type(X).__name__} holds its labels, in column {regression.label!r}; leave y out"
                )
            return (X, regression) if isinstance(X, Session) else _restricted(X, regression)
        table = X if y is None else with_labels(X, regression.label, y)
        for name in regression.all_columns:
            if name not in table:
                raise ArgumentError(f"X lacks column {name!r}; add it, or name the others in features=")
        data = VerticalDataset.from_pooled(regression.of_its_columns.schema, table)
        return data, dataclasses.replace(regression, schema=data.schema)

    def _keep(self, regression: Regression, spent: GradientPlan, posterior: Posterior) -> None:
        self._regression_, self._posterior = regression, posterior
        self._params, self._diagnostics = jax.tree_util.tree_map(np.asarray, posterior.params), posterior.diagnostics
        self._noise_aware, self._no_interval = posterior.noise_aware, posterior.no_interval
        self.coef_, self.intercept_ = regression.found(posterior)
        self.plan_, self.secure_noise_ = spent, posterior.secure_noise
        self.schema_ = regression.of_its_columns.schema
        self.model_kwargs_ = regression.model_kwargs
        self.n_features_in_, self.feature_names_in_ = len(regression.terms), np.array(regression.columns, dtype=object)
        for name in ("classes_", "baseline_hazard_"):  # of an earlier fit of another family
            self.__dict__.pop(name, None)
        if regression.family == "survival":
            self.baseline_hazard_ = regression.baseline(posterior)
        if regression.of_label.classes:
            self.classes_ = classes_of(regression.column)

    _posterior: Posterior | None = None

    @property
    def posterior_(self) -> Posterior:
        """What DPVI returned."""
        check_is_fitted(self, "coef_")
        if self._posterior is None:  # of a copy
            facts = TableFacts(self._regression_.schema, self.plan_.num_records)
            kernel, _ = self._dpvi(self._regression_, self.plan_).kernel(facts, self.plan_, compat.random_key(0))
            self._posterior = Posterior(
                guide=kernel.guide, params=self._params, plan=self.plan_, diagnostics=self._diagnostics,
                secure_noise=self.secure_noise_, noise_aware=self._noise_aware, no_interval=self._no_interval,
            )  # fmt: skip
        return self._posterior

    def __getstate__(self) -> dict[str, Any]:
        """Without compiled programs, which cannot be copied; `posterior_` makes them again."""
        return {name: value for name, value in self.__dict__.items() if name != "_posterior"}


def _restricted(dataset: VerticalDataset, regression: Regression) -> tuple[VerticalDataset, Regression]:
    """The columns that a model reads, at the parties that hold one, and the model on these."""
    own = regression.of_its_columns
    columns = {party: dataset.arrays(party) for party in own.schema.parties}
    kept = {party: {name: columns[party][name] for name in own.schema.column_names(party)} for party in columns}
    source = None if dataset.source is None else dataset.source.of(kept)
    return VerticalDataset(own.schema, kept, source=source), own
