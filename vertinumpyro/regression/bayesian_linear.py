"""Differentially private Bayesian linear regression as a scikit-learn estimator, and a holder's part of its sums."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from vertinumpyro.core.errors import ArgumentError, PlanSpentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields, shown
from vertinumpyro.data import Column, DatasetInfo, Schema, VerticalDataset
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.privacy import FitTime, Plan, draw_noise_share
from vertinumpyro.regression.bayesian_linear_plan import (
    GRID_BITS,
    LEAST_RECORDS,
    BayesianLinearPlan,
    Calibration,
    Mechanism,
    StatisticsRelease,
    encode,
    scaled,
    statistic_vectors,
    unpacked,
)
from vertinumpyro.regression.dataframe_input import facts_of, refuse_weights, told_apart, weights_within
from vertinumpyro.regression.posteriors import (
    POSTERIORS,
    NoisyStatistics,
    Posterior,
    marginal_stddevs,
    optimal_thresholds,
)
from vertinumpyro.regression.results import RegressionSummary, facts_of_plan, normal_rows
from vertinumpyro.regression.sklearn_compat import RegressorMixin, SpendsOwnBudgets, check_is_fitted, validate_data
from vertinumpyro.secure import Backend
from vertinumpyro.secure.dca.backend import CipherSource, check_nodes
from vertinumpyro.session import (
    HorizontalMethod,
    Multiply,
    PartyComputation,
    Payload,
    ReleaseRequest,
    Run,
    Session,
    Sum,
    party_sources,
    recorded_plan,
)
from vertinumpyro.session.cost_estimate import announce, slowness, timed
from vertinumpyro.session.party_computation import Columns

STATISTICS = "statistics.npz"

_OF_THE_PLAN = frozenset({"delta", "mechanism", "max_unreliable", "calibration", "std_share"})
_ROWS = 2**14  # at a time
_REPEATS = 20  # auxiliary tables of the thresholds
_TRIED_VALUES = 2**16
_VALUE_S = 2e-8  # a statistic of a record, in a holder's sum

_Release = Callable[[int, str, np.ndarray], np.ndarray]
_Step = Callable[[int, Callable[[], Payload]], Payload | None]


class BayesianLinearRegression(RegressorMixin, SpendsOwnBudgets, HorizontalMethod):
    r"""y | x ~ N(x'β, λ), β ~ N(0, λ_0 I), from perturbed sufficient statistics (Algorithm 2 of the DCA paper).

    Formal guarantee: `fit` releases what `plan` says, and everything that it stores is computed from that
    alone; one record may be replaced by any other, n is public. Columns are assumed to be centred at zero, which
    costs accuracy where it is wrong, never privacy; values past their bounds are clipped to them. Every fit without
    `plan=` is a budget of its own, each fold of `cross_val_score` too: see `own_budgets`.

    Organisations that hold whole records each fit it over a session (`PartyTask.holders`): `fit(session)`. Nobody sees
    another's records or sums; every organisation adds a share of the noise. N is public, so of two each knows how many
    records the other has.

    :param epsilon: the target ε towards every adversary of the plan's table.
    :param delta: δ.
    :param bounds: c, assumed bounds of the features' absolute values, public: one number or `[d]`; None takes 1, and of
        a session's columns the schema's.
    :param target_bound: c_y, the same for the target.
    :param target: of a session, the column to predict; all others are features.
    :param projection: clip at a multiple of every column's standard deviation, which is first estimated for a share of
        the budget (Algorithm 2). Pays unless the assumed bounds are close to the data.
    :param std_share: that share, 0.3 in the paper; see `BayesianLinearPlan`.
    :param mechanism: "distributed" over one client for each record, "trusted" aggregator, or "input" perturbation.
    :param max_unreliable: T, how many clients may drop out or collude; distributed only.
    :param num_nodes: M compute nodes; distributed only.
    :param calibration: "tight" or "classic" (Eq. 1, not proved for ε > 1: see the plan's table).
    :param posterior: "noise_aware", or "plug_in" as in the paper.
    :param noise_variance: λ of the model, in the target's squared units.
    :param prior_variance: λ_0, in squared units of target over feature.
    :param insecure_seed: draw the noise from a seeded generator, for tests and paired benchmarks: no privacy at all.
    :param backend: what adds up between the organisations of a session: `SecureAggregation()`, or another with a
        process for each.
    :ivar coef_: posterior mean of β `[d]`.
    :ivar covariance_: posterior covariance of β `[d, d]`.
    :ivar plan_: the `BayesianLinearPlan` that was spent.
    :ivar bounds_, target_bound_: the bounds that the statistics were clipped to `[d]`, and the target's.
    :ivar statistics_: the released `NoisyStatistics`, in units of those bounds.
    :ivar secure_noise_: whether the noise came from a CSPRNG.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, (2000, 2))
        >>> y = x @ [0.5, -0.3] + rng.normal(0, 0.1, 2000)
        >>> model = BayesianLinearRegression(epsilon=2.0, noise_variance=0.01, projection=False).fit(x, y)
        >>> bool(np.abs(model.coef_ - [0.5, -0.3]).max() < 0.1)
        True
        >>> mean, std = model.predict(x[:3], return_std=True)
        >>> mean.shape, std.shape
        ((3,), (3,))
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        bounds: Any = None,
        target_bound: float | None = None,
        target: str | None = None,
        projection: bool = True,
        std_share: float = 0.3,
        mechanism: Mechanism = "distributed",
        max_unreliable: int = 0,
        num_nodes: int = 3,
        calibration: Calibration = "tight",
        posterior: Literal["noise_aware", "plug_in"] = "noise_aware",
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
        insecure_seed: int | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.target_bound = target_bound
        self.target = target
        self.projection = projection
        self.std_share = std_share
        self.mechanism: Mechanism = mechanism
        self.max_unreliable = max_unreliable
        self.num_nodes = num_nodes
        self.calibration: Calibration = calibration
        self.posterior = posterior
        self.noise_variance = noise_variance
        self.prior_variance = prior_variance
        self.insecure_seed = insecure_seed
        self.backend = backend

    def plan(
        self, data: Any = None, label: str | None = None, *, num_records: int | None = None,
        num_features: int | None = None, epsilon: float | None = None, schema: Schema | None = None, **settings: Any,
    ) -> BayesianLinearPlan:  # fmt: skip
        """The privacy plan of a fit; reads no data.

        :param data: a session of holders, or its `TableFacts`; a schema of whole records; or the features, of which the
            shape is read.
        :param label: the constructor's target, or None.
        :param num_records: N, beside a schema.
        :param num_features: d, in the place of `data`, beside N.
        :param epsilon: None takes the constructor's.
        :param schema: a schema in the place of `data`.
        :param settings: fields of `BayesianLinearPlan` in the place of the constructor's, as `delta`.
        :raises ArgumentError: names what is missing or does not fit.
        """
        check_fields(self)
        if isinstance(data, int | np.integer):  # as it was called before
            warnings.warn(
                "plan(N, d): name them, plan(num_records=N, num_features=d), or give the features, plan(X); the first "
                "argument will be data alone, as in the other estimators",
                FutureWarning,
                stacklevel=2,
            )
            num_records, num_features = int(data), num_features if label is None else int(label)
            data = label = None
        if label not in (None, self.target):
            raise ArgumentError(f"label={shown(label)}: the regression is of {self.target!r}; leave label out")
        if unknown := settings.keys() - _OF_THE_PLAN:
            raise ArgumentError(f"{min(unknown)}: the plan of this regression has {', '.join(sorted(_OF_THE_PLAN))}")
        num_records, num_features, holders = self._sizes(data, schema, num_records, num_features)
        own: dict[str, Any] = {name: getattr(self, name) for name in _OF_THE_PLAN}
        plan = BayesianLinearPlan(
            num_records=num_records,
            num_features=num_features,
            target_epsilon=self.epsilon if epsilon is None else epsilon,
            **{**own, "std_share": self.std_share if self.projection else 0.0, **settings},
            holders=holders,
        )
        plan.keep_time(partial(self.time, None, plan))
        return plan

    def _sizes(
        self, data: Any, schema: Schema | None, num_records: int | None, num_features: int | None
    ) -> tuple[int, int, tuple[str, ...]]:
        """N, d and the holders."""
        if data is None and schema is None and num_records is not None and num_features is not None:
            return num_records, num_features, ()
        _require_whole_records(data)
        shape = getattr(data, "shape", ())
        if len(shape) == 2:
            return int(shape[0]), int(shape[1]), ()
        facts = facts_of(data, schema, num_records, None)
        _require_whole_records(facts)
        holders = facts.parties if isinstance(data, DatasetInfo) else ()
        return facts.num_records, len(self.features(facts.schema)), holders

    def time(self, facts: DatasetInfo | None, plan: BayesianLinearPlan) -> FitTime:
        """How long a fit takes here: its thresholds, and some clients' sums, are tried on stand-ins."""
        before = {}
        if plan.moments is not None:
            noise = float(np.sqrt(plan.statistics.noise_variance))
            one = (plan.num_records, plan.num_features, noise, self.posterior)
            before["the thresholds"] = _REPEATS * timed(lambda: optimal_thresholds(*one, repeats=1))[1]
        if plan.holders:
            sizes = sum(release.num_values for release in plan.releases)
            before["the sums"] = slowness() * _VALUE_S * plan.num_records * sizes
        else:
            before["the sums"] = sum(self._seconds_of(release) for release in plan.releases)
        return FitTime(
            before=before,
            unknown="what the holders add up together" if plan.holders else "",
            shorter="Give fewer features, or projection=False. ",
        )

    def _seconds_of(self, release: StatisticsRelease) -> float:
        """Of a release, by one of a few clients'."""
        few = max(_TRIED_VALUES // release.num_values, release.max_unreliable + LEAST_RECORDS)
        tried = dataclasses.replace(release, num_records=min(release.num_records, few))
        vectors = np.zeros((tried.num_records, release.num_values))
        _, seconds = timed(lambda: tried.run(vectors, CipherSource(), num_nodes=self.num_nodes))
        return seconds * release.num_records / tried.num_records

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        plan: BayesianLinearPlan | None = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        sample_weight: Any = None,
        allow_long: bool = False,
    ) -> BayesianLinearRegression:
        """Spend a plan on the records `X` `[n, d]`, `y` `[n]`.

        :param X: features; or a session of holders of whole records, with no `y`.
        :param y: target. A plan may stand here, too, where X is a session.
        :param plan: a plan made by `plan` that was looked at before; None makes one, and warns where this estimator or
            its clones did so before.
        :param run_dir: folder for `privacy.json`, written before anything is released, which keeps the plan from being
            spent twice, and `statistics.npz`, what is released.
        :param resume: go on with the run of `run_dir`, under its plan; what it released is not released again.
        :param sample_weight: `[n]` from 0 to 1: a record of weight w counts as w records. Weights are part of the
            records: x and y are multiplied by √w, which stays within the bounds, so the guarantee is the same.
        :param allow_long: fit even where it will take more than ten minutes, as its parts took on stand-ins.
        :raises ArgumentError: a setting is wrong, or the plan was made for other sizes, or it would take more than ten
            minutes, and `allow_long` is False; nothing is spent.
        :raises PlanSpentError: the plan was spent before.
        """
        y, plan = told_apart(y, plan, BayesianLinearPlan)
        if resume and plan is None:
            plan = recorded_plan(run_dir, BayesianLinearPlan)
        if isinstance(X, Session):
            refuse_weights(sample_weight)
            return self._fit_session(X, y, plan, run_dir, resume, allow_long)
        _require_whole_records(X)
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64, ensure_min_samples=LEAST_RECORDS)
        bounds = self._checked_settings(X.shape[1])
        spent = self.plan(X) if plan is None else self._checked_plan(plan, X.shape)
        self._announce(None, spent, run_dir, resume, allow_long)
        self._rehearse(bounds, spent)
        roots = np.sqrt(weights_within(sample_weight, len(X)))
        columns = np.column_stack([X, np.asarray(y, np.float64)]) * roots[:, None]
        if plan is None:
            self._warn_of_another(spent)
        secure = self.insecure_seed is None
        opened = Run.opened(spent, run_dir, results=STATISTICS, resume=resume, secure_noise=secure)
        with self._counting(opened, spent, plan is None) as run:
            source = CipherSource() if secure else party_sources(1, self.insecure_seed, run.first_step)[0]

            def released(index: int, what: str, bounds: np.ndarray) -> np.ndarray:
                units = scaled(columns, bounds)
                vectors = units**2 if what == "moments" else statistic_vectors(units)
                return spent.releases[index].run(vectors, source, num_nodes=self.num_nodes)

            self._learn(spent, bounds, released, run.step)
        self.plan_, self.secure_noise_ = spent, run.secure_noise
        return self

    # -- organisations that hold whole records -----------------------------------------------------

    def features(self, schema: Schema) -> list[str]:
        """The columns that `target` is predicted from: all others of a table of whole records.

        :raises ArgumentError: there is no such target, or no feature.
        :raises DataError: a column is no number, or may be missing.
        """
        return feature_columns(schema, self.target)

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for this regression among these holders.

        :raises ArgumentError: names what differs.
        """
        if not isinstance(plan, BayesianLinearPlan):
            raise ArgumentError("plan must be a BayesianLinearPlan: make it by `plan`")
        shape = (dataset.num_records, len(self.features(dataset.schema)))
        self._checked_plan(plan, shape)
        if plan.holders != dataset.parties:
            made_for = ", ".join(plan.holders) or "records that are clients each"
            raise ArgumentError(f"plan was made for {made_for}, and here are {', '.join(dataset.parties)}")

    def work(
        self, facts: DatasetInfo, party: str, columns: Columns, plan: BayesianLinearPlan, source: RandomSource
    ) -> PartyComputation:
        """One holder's part; see `session.Method`."""
        assert self.target is not None
        return StatisticsWork(plan, facts.schema, self.target, columns, source)

    def _fit_session(
        self, session: Session, y: Any, plan: BayesianLinearPlan | None, run_dir: str | Path | None, resume: bool,
        allow_long: bool,
    ) -> BayesianLinearRegression:  # fmt: skip
        if y is not None:
            raise ArgumentError("y: a session's target is the column that the constructor names; leave y out")
        names = self.features(session.schema)
        bounds = self._checked_settings(len(names), schema_bounds(session.schema, [*names, str(self.target)]))
        spent = self.plan(session) if plan is None else plan
        self.check(session, spent)
        self._announce(session, spent, run_dir, resume, allow_long)
        self._rehearse(bounds, spent)
        if plan is None:
            self._warn_of_another(spent)
        opened = session.open(
            self, spent, run_dir=run_dir, results=STATISTICS, resume=resume, insecure_seed=self.insecure_seed
        )
        with self._counting(opened, spent, plan is None) as run:

            def released(index: int, what: str, bounds: np.ndarray) -> np.ndarray:
                return session.sum(Sum(index, what, {"bounds": bounds.tolist()})) * 2.0**-GRID_BITS

            self._learn(spent, bounds, released, partial(session.step, run))
        self.plan_, self.secure_noise_ = spent, run.secure_noise
        self.n_features_in_, self.feature_names_in_ = len(names), np.array(names, dtype=object)
        return self

    # -- what is released, and what follows --------------------------------------------------------

    def _learn(self, plan: BayesianLinearPlan, bounds: np.ndarray, release: _Release, step: _Step) -> None:
        """All releases of a plan, each once, and the posterior."""

        def released(index: int, what: str, bounds: np.ndarray) -> np.ndarray:
            found = step(index, lambda: Payload({}, {"sum": release(index, what, bounds)}))
            if found is None:
                raise PlanSpentError(
                    f"{plan.step_names[index]} was spent by a run that stopped before it was stored: make a new plan, "
                    "whose cost adds to this one's"
                )
            return found.arrays["sum"]

        if plan.moments is not None:
            bounds = self._projected(bounds, released(0, "moments", bounds), plan)
        total = released(len(plan.releases) - 1, "statistics", bounds)
        self.statistics_ = unpacked(total, plan.statistics.noise_variance)
        self.bounds_, self.target_bound_ = bounds[:-1], float(bounds[-1])
        self.coef_, self.covariance_ = self._posterior(self.statistics_, bounds)

    def _announce(
        self, session: Session | None, plan: BayesianLinearPlan, run_dir: str | Path | None, resume: bool,
        allow_long: bool,
    ) -> None:  # fmt: skip
        estimate = partial(self.time, session, plan)
        announce(session, plan, estimate, run_dir=run_dir, resume=resume, allow_long=allow_long)

    def _rehearse(self, bounds: np.ndarray, plan: BayesianLinearPlan) -> None:
        """What follows the releases, on stand-ins: nothing may fail once the plan is spent."""
        if plan.moments is not None:
            bounds = self._projected(bounds, np.full(plan.num_features + 1, plan.num_records / 3), plan)
        release = plan.statistics
        self._posterior(unpacked(np.full(release.num_values, plan.num_records / 9), release.noise_variance), bounds)

    def _projected(self, bounds: np.ndarray, moments: np.ndarray, plan: BayesianLinearPlan) -> np.ndarray:
        """min(c_j, p_j σ_j): from released numbers and public ones only."""
        assert plan.moments is not None
        stddevs = bounds * marginal_stddevs(moments, plan.moments.noise_variance, plan.num_records)
        noise_stddev = float(np.sqrt(plan.statistics.noise_variance))
        feature, target = optimal_thresholds(plan.num_records, plan.num_features, noise_stddev, self.posterior)
        found = np.minimum(bounds, stddevs * np.r_[np.full(plan.num_features, feature), target])
        # organisations compute these by themselves and must agree: the last digits are their processors' own
        return np.array([float(f"{bound:.7g}") for bound in found]) if plan.holders else found

    def _posterior(self, statistics: NoisyStatistics, bounds: np.ndarray) -> Posterior:
        """The posterior in the data's units; it is computed in units of the bounds, where all noise is alike."""
        ratio = bounds[-1] / bounds[:-1]
        found = POSTERIORS[self.posterior](
            statistics, self.prior_variance / ratio**2, self.noise_variance / bounds[-1] ** 2
        )
        return Posterior(found.mean * ratio, found.covariance * np.outer(ratio, ratio))

    def summary(self, level: float = 0.95) -> RegressionSummary:
        """Coefficients with posterior standard deviations and intervals, as statsmodels prints them.

        :param level: of the intervals.
        :raises ArgumentError: level does not lie between 0 and 1.
        """
        check_is_fitted(self, "coef_")
        known = getattr(self, "feature_names_in_", None)
        names = [f"x{place + 1}" for place in range(len(self.coef_))] if known is None else list(known)
        forgets = 'intervals leave out the noise of privacy: posterior="plug_in"'
        return RegressionSummary(
            title=type(self).__name__,
            facts=facts_of_plan(self.plan_, self.target),
            frame=normal_rows(names, self.coef_, self.covariance_, level),
            notes=["there is no intercept: centre features and target, or give a column of ones"]
            + ([forgets] if self.posterior == "plug_in" else []),
        )

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior predictive mean `[n]`, and its standard deviation √(x'Vx + λ) `[n]` where asked for."""
        check_is_fitted(self, "coef_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        mean = X @ self.coef_
        if not return_std:
            return mean
        variance = np.einsum("nj,jk,nk->n", X, self.covariance_, X)
        return mean, np.sqrt(variance + self.noise_variance)

    def _checked_settings(self, num_features: int, known: np.ndarray | None = None) -> np.ndarray:
        """All bounds `[d + 1]`, once every setting that the plan does not know is in order; `known` in None's place."""
        known = np.ones(num_features + 1) if known is None else known
        features = known[:-1] if self.bounds is None else np.asarray(self.bounds, float)
        target = known[-1] if self.target_bound is None else self.target_bound
        bounds = np.append(np.broadcast_to(features, (num_features,)), target)
        if not (np.all(np.isfinite(bounds)) and np.all(bounds > 0)):
            raise ArgumentError("bounds and target_bound must be positive and finite")
        for name in ("noise_variance", "prior_variance"):
            if not 0 < getattr(self, name) < np.inf:
                raise ArgumentError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.posterior not in POSTERIORS:
            raise ArgumentError(f"posterior must be one of {sorted(POSTERIORS)}, got {self.posterior!r}")
        check_nodes(self.num_nodes)
        return bounds

    def _checked_plan(self, plan: BayesianLinearPlan, shape: tuple[int, int]) -> BayesianLinearPlan:
        if (plan.num_records, plan.num_features) != shape:
            raise ArgumentError(
                f"plan was made for {plan.num_records} records and {plan.num_features} features, got {shape}"
            )
        return plan


def _require_whole_records(data: Any) -> None:
    """Refuses a table whose columns are at several parties; arrays, frames and holders of whole records pass.

    :raises ArgumentError: says which estimator is for it.
    """
    if isinstance(data, DatasetInfo) and len(data.schema.parties) > 1:
        raise ArgumentError(
            f"data: its columns are at {', '.join(data.schema.parties)}, and BayesianLinearRegression is for whole "
            "records, of clients or of holders; take VerticalLinearRegression"
        )
    if isinstance(data, VerticalDataset):
        raise ArgumentError("X: give the records as an array or a DataFrame of numbers, X = dataset.to_frame()[...]")


# -- a holder of whole records ----------------------------------------------------------------------------


def feature_columns(schema: Schema, target: str | None) -> list[str]:
    """The features of a table of whole records, in the schema's order: all its columns but the target.

    :raises ArgumentError: there is no such target, or no feature.
    :raises DataError: a column is no number, or may be missing.
    """
    if target is None:
        raise ArgumentError("target: name the column that is to be predicted")
    if target not in schema.columns:
        raise ArgumentError(f"target: no column {target!r}; {suggest(target, schema.columns)}")
    for party, part in schema.parties.items():
        for name, column in part.columns.items():
            if column.missing != "forbid":
                Place(party, name).fail('may be missing; fill it, and set missing = "forbid"')
            if _largest(column) is None:
                Place(party, name).fail("has labels and no numbers; write a column of 0 and 1 for each of them")
    features = [name for name in schema.columns if name != target]
    if not features:
        raise ArgumentError(f"the schema has no column besides the target {target!r}: add one")
    return features


def schema_bounds(schema: Schema, names: list[str]) -> np.ndarray:
    """The largest absolute value that each column may have, public."""
    return np.array([_largest(schema.columns[name]) for name in names], np.float64)


def _largest(column: Column) -> float | None:
    if column.kind == "binary":
        return 1.0
    return None if column.limits is None else float(np.abs(column.limits).max())


@final
class StatisticsWork(PartyComputation):
    """A holder's part of `plan.releases`: sums over its records, and its share of the noise.

    :param target: the column that is predicted.
    :param columns: its encoded columns. Secret.
    """

    def __init__(
        self,
        plan: BayesianLinearPlan,
        schema: Schema,
        target: str,
        columns: Mapping[str, np.ndarray],
        source: RandomSource,
    ) -> None:
        self._plan, self._source = plan, source
        names = [*feature_columns(schema, target), target]
        self._table = np.column_stack([schema.columns[name].numbers(columns[name]) for name in names])

    def check(self, request: ReleaseRequest) -> None:
        """Refuses what is not the plan's release at that step, and bounds that are none."""
        names = ["statistics"] if self._plan.moments is None else ["moments", "statistics"]
        if request not in [Sum(step, name, request.fields) for step, name in enumerate(names)]:
            raise request.refused()
        bounds = np.asarray(request.fields["bounds"], np.float64)
        if bounds.shape != (self._table.shape[1],) or not (np.isfinite(bounds) & (bounds > 0)).all():
            raise ArgumentError(f"bounds must be {self._table.shape[1]} positive numbers; nothing was done")

    def summand(self, request: Sum) -> np.ndarray:
        """See `PartyComputation.summand`: a record's vector lies in [-1, 1]^D and depends on it alone."""
        bounds = np.asarray(request.fields["bounds"], np.float64)
        of_records = statistic_vectors if request.name == "statistics" else np.square
        total = np.zeros(self._release(request.name).num_values, np.int64)
        for start in range(0, len(self._table), _ROWS):
            total += encode(of_records(scaled(self._table[start : start + _ROWS], bounds))).sum(axis=0)
        return total

    def noise(self, request: Multiply | Sum, size: int) -> np.ndarray:
        """See `PartyComputation.noise`."""
        return draw_noise_share(self._release(request.name).share_variance, size, self._source)

    def _release(self, name: str) -> Any:
        return self._plan.statistics if name == "statistics" else self._plan.moments

    def __repr__(self) -> str:
        """Nothing secret."""
        return "StatisticsWork()"
