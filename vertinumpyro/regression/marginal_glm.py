"""Predictions between parties by coefficients that were learned from tables.

Coefficients that `MarginalGLM` learned from tables: draws, intervals, odds and rate ratios.

`MarginalGLM`: regressions across parties learned from released tables, with intervals that know the noise.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import RandomSource
from vertinumpyro.core.validation import check_fields, require_collection, shown
from vertinumpyro.data import CategoricalColumn, Column, DatasetInfo, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.data.schema import check_schema
from vertinumpyro.data.schema_checks import Place, suggest
from vertinumpyro.marginals import MarginalInference, MarginalPosterior, TableELPD, release_marginals
from vertinumpyro.marginals.table_likelihood import MOST_PARAMETERS
from vertinumpyro.mrf import Marginals, MRFPlan, VertiMRF
from vertinumpyro.mrf.table_selection import merged
from vertinumpyro.posterior import TwinWarning
from vertinumpyro.privacy import Plan
from vertinumpyro.privacy.forecast import SEEN, Associations
from vertinumpyro.regression.dataframe_input import facts_of
from vertinumpyro.regression.families import FAMILIES
from vertinumpyro.regression.glm_predictions import VerticalPredictor
from vertinumpyro.regression.glm_settings import Regression
from vertinumpyro.regression.results import INTERCEPT_ROW, RegressionSummary, facts_of_plan, interval_names
from vertinumpyro.regression.saturated_model import (
    COUNTS,
    LARGEST_COUNT,
    UNIT,
    CountedSession,
    Design,
    cell_model,
    count_groups,
    counted,
    design_of,
    free_name,
)
from vertinumpyro.secure import Backend, FixedPoint
from vertinumpyro.secure.computation import Computation
from vertinumpyro.session import PartyComputation, Session, session_of
from vertinumpyro.session.cost_estimate import announce

_SAME_MEAN = {"negative_binomial": "poisson"}
_LIKE = '"bernoulli", "normal" or "poisson" for that, which one release has as well'


def predictor_of_tables(
    schema: Schema, label: str, family: str, features: tuple[str, ...], linear: Iterable[str],
    found: Mapping[str, float], cutpoints: Iterable[float] | None, **settings: Any,
) -> VerticalPredictor:  # fmt: skip
    """The predictor with a coefficient for each value of each feature: of its first 0, of a linear one as many steps.

    :param schema, label, family, features, linear: as in `MarginalGLM`, checked.
    :param found: coefficients by name, in the features' order, the intercept among them where there is one.
    :param cutpoints: of ordered classes.
    :param settings: of `VerticalPredictor`.
    """
    left = iter([value for name, value in found.items() if name != "intercept"])
    parts = []
    for name in features:
        size = schema.columns[name].num_categories
        parts.append(next(left) * np.arange(size) if name in linear else [0.0, *(next(left) for _ in range(size - 1))])
    regression = Regression.of(
        schema, label, family=family, features=features, linear=(), prior_scale=1.0, scale=1.0,
        cutpoints=cutpoints,
    )  # fmt: skip
    return VerticalPredictor(
        regression=regression.of_its_columns,
        coefficients=tuple(float(value) for part in parts for value in part),
        intercept=float(found.get("intercept", 0.0)),
        **settings,
    )


TABLE_FAMILIES: Mapping[str, str] = {
    "bernoulli": "odds ratio",
    "probit": "",
    "ordinal": "odds ratio",
    "cloglog": "rate ratio",
    "normal": "",
    "gamma": "ratio of means",
    "poisson": "rate ratio",
    "negative_binomial": "rate ratio",
    "zero_inflated_poisson": "rate ratio",
    "zero_inflated_negative_binomial": "rate ratio",
}
"""Families, and what the exponential of a coefficient is."""


@final
@dataclasses.dataclass(frozen=True)
class GLMPosterior:
    """Coefficients learned from released tables; everything in it is post-processing of the release.

    :ivar family: one of `TABLE_FAMILIES`.
    :ivar names: of the coefficients, without the intercept.
    :ivar posterior: of the whole model: the features' joint distribution is among its latents.
    :ivar num_samples: draws.
    """

    family: str
    names: tuple[str, ...]
    posterior: MarginalPosterior = dataclasses.field(repr=False)
    num_samples: int

    @property
    def _sites(self) -> Mapping[str, Any]:
        """Draws by the names that `cell_model` gives its sites where no column has them."""
        draws = jax.vmap(self.posterior.model.constrain)(jnp.asarray(self.posterior.draws))
        columns = self.posterior.model.schema.columns
        names = {name: free_name(name, columns) for name in ("coefficients_in_units", "intercept", "cutpoints")}
        return {name: draws[own] for name, own in names.items() if own in draws}

    def means(self) -> dict[str, float]:
        """Posterior means of the columns of `draws`, by name."""
        return {str(name): float(value) for name, value in self.draws().mean().items()}

    def cutpoints(self) -> np.ndarray | None:
        """Posterior means of an ordinal label's cut points; None of other families."""
        return np.asarray(self._sites["cutpoints"]).mean(axis=0) if self.family == "ordinal" else None

    def draws(self) -> pd.DataFrame:
        """A column for each coefficient, the intercept's first where there is one, `[num_samples, ...]`."""
        sites = self._sites
        found = {"intercept": np.asarray(sites["intercept"])} if "intercept" in sites else {}
        found |= dict(zip(self.names, UNIT * np.asarray(sites["coefficients_in_units"]).T, strict=True))
        return pd.DataFrame(found)

    def elpd(self, release: Marginals) -> TableELPD:
        """Expected log predictive density of the released tables, for `vertinumpyro.marginals.compare`.

        :param release: what it was fitted to.
        """
        return self.posterior.elpd(release)

    def __str__(self) -> str:
        """The coefficients as statsmodels prints them, with 95% intervals."""
        rows, (low, high) = self.summary(), interval_names(0.95)
        columns = {"mean": "coef", "sd": "std err", "low": low, "high": high}
        frame = rows.rename(columns=columns, index={"intercept": INTERCEPT_ROW}).filter(items=list(columns.values()))
        title, notes = f"MarginalGLM, family {self.family}", self.posterior.reading_notes
        facts = facts_of_plan(self.posterior.plan, None)
        return str(RegressionSummary(title=title, facts=facts, frame=frame, notes=notes))

    def summary(self, level: float = 0.95) -> pd.DataFrame:
        """Mean, standard deviation and interval of every coefficient; odds or rate ratios with theirs beside it.

        :param level: of the intervals, which are between equal tails.
        :raises ArgumentError: `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ArgumentError(f"level={level} must be between 0 and 1")
        draws = self.draws()
        low, high = (draws.quantile(q) for q in ((1 - level) / 2, (1 + level) / 2))
        found = pd.DataFrame({"mean": draws.mean(), "sd": draws.std(), "low": low, "high": high})
        if words := TABLE_FAMILIES[self.family]:
            ratios = pd.DataFrame({words: draws.median(), "ratio low": low, "ratio high": high}).apply(np.exp)
            found = found.join(ratios.drop(index="intercept", errors="ignore"))
        return found


_KINDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "bernoulli": (("binary", "categorical"), "two values"),
    "probit": (("binary", "categorical"), "two values"),
    "ordinal": (("categorical",), "three or more values in an order"),
    "cloglog": (("binary", "categorical"), "two values"),
    **dict.fromkeys(("normal", "gamma"), (("real",), "real numbers")),
    **dict.fromkeys(COUNTS, (("count",), "counts")),
}
_REAL_CELLS = 32


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MarginalGLM:
    """A regression of one party's label on columns of all parties, from noisy tables that are released once.

    Formal guarantee: `release` spends its plan, as `release_marginals` does; `fit` is post-processing, and any number
    of fits of the same features and label, with other families, priors and codings, cost nothing further.

    Every party counts the combinations of its own features; released are the tables of these by the other party's and
    by the label, and of each feature by the label, whose cells hold more records. With features at one or two parties
    that is all that a regression needs: the features' joint distribution and, for each combination at a party, the
    label's. With features at three parties or more, tables of two parties leave their joint distribution open, and the
    prior decides what is left. Counts are released in groups (`count_groups`), under their exact probabilities.

    Intervals know both the sampling and the noise of privacy, under the tables' exact law
    (`MarginalInference(law="tables")`). They are a model's: where the label is not distributed as the family says they
    are wrong, and more so than those of records, as tables show the whole shape of it; `posterior.misfit` tells.

    :param schema: of the dataset; public.
    :param family: "bernoulli" (log odds), "probit", "cloglog" (log of an expected number of events), "ordinal"
        (proportional odds), "normal", "gamma" (positive reals, by the log of their mean), "poisson" or
        "negative_binomial", which has room for counts that vary more than a Poisson's; "zero_inflated_poisson" or
        "zero_inflated_negative_binomial", where a share of the records has 0 whatever its rate is.
    :param label: the column to predict.
    :param features: those to predict it from, of few values each; None takes all others. Reals need bins. Their
        combinations are latents: with the coefficients as many as the tables' law holds, 1,500, and no more than there
        are records.
    :param linear: ordered features with one coefficient for a step from a value to the next; all others have one for
        each value, against the first.
    :param prior_scale: standard deviation of a coefficient's normal prior; half of the intercept's.
    :param method: "svi", "nuts", or "augmentation" for up to 2,000 records; see `MarginalInference`.
    :param backend: computes the tables across parties; None takes `FixedPoint`.
    :raises ArgumentError: names the argument or the column that does not fit, and the fix.

    Example::

        regression = MarginalGLM(schema=dataset.schema, family="poisson", label="visits", linear=["age"])
        plan = regression.plan(dataset, epsilon=1.0)  # against everyone; reads no data
        release = regression.release(dataset, plan)  # spends it
        regression.fit(release, jax.random.key(0)).summary()
    """

    schema: Schema
    family: str
    label: str
    features: Iterable[str] | None = None
    linear: Iterable[str] = ()
    prior_scale: float = 2.0
    method: Literal["svi", "nuts", "augmentation"] = "svi"
    backend: Backend | None = None

    def __post_init__(self) -> None:
        """Every argument, before any table is known."""
        check_fields(self)
        check_schema(self.schema)
        if self.family not in TABLE_FAMILIES:
            raise ArgumentError(f"family={shown(self.family)} must be one of {', '.join(map(repr, TABLE_FAMILIES))}")
        if not 0 < self.prior_scale < math.inf:
            raise ArgumentError(f"prior_scale must be positive and finite, got {self.prior_scale}")
        _ = self._columns

    def plan(
        self, data: DatasetInfo | Schema | None = None, label: str | None = None, *, num_records: int | None = None,
        epsilon: float, schema: Schema | None = None, **settings: Any,
    ) -> MRFPlan:  # fmt: skip
        """A privacy plan of the tables; reads no data. ε holds against everyone.

        The whole computation is tried on uniform tables first.

        :param data: a dataset, a session or `TableFacts`, for the number of records; or a schema.
        :param label: the regression's own, or None.
        :param num_records: N, beside a schema.
        :param epsilon: what everyone gets at most.
        :param schema: a schema in the place of `data`.
        :param settings: as `VertiMRF.plan` takes them, `delta` among them.
        :raises ArgumentError: the data have another schema, or a setting is wrong.
        """
        if label not in (None, self.label):
            raise ArgumentError(f"label={shown(label)}: the regression is of {self.label!r}; leave label out")
        facts = facts_of(data, schema, num_records, self.schema)
        self._check_schema(facts)
        self._check_records(facts)
        plan = self._system.plan(self._counted(facts), epsilon=epsilon, **settings)
        plan.keep_forecast(self._associations)
        self._inference.rehearse(self._joined, plan)
        plan.keep_time(partial(self._inference.time, self._counted(facts), plan))
        return plan

    def _associations(self, plan: MRFPlan) -> Associations:
        """Of each feature with the label: a correlation is a sum over their table's cells of even shares."""
        found = {}
        for m in merged(self._system.stand_in(self._joined, plan).measurements):
            names = set(m.columns) - {self.label}
            if len(m.columns) == 2 and len(names) == 1 and names <= set(self._columns):
                noise = m.stddev * math.sqrt(m.values.size) / plan.num_records
                found[names.pop()] = min(1.0, SEEN * noise)
        return Associations(self.label, found)

    def release(
        self, data: VerticalDataset | Session, plan: MRFPlan, *, run_dir: str | Path | None = None,
        resume: bool = False, insecure_seed: int | None = None, allow_long: bool = False,
    ) -> Marginals:  # fmt: skip
        """Noisy tables; spends the plan.

        :param data: the parties' columns in this process; or a session, whose parties count at home, each in its own
            process or organisation. Their tasks are given this regression's arguments as their method,
            `functools.partial(MarginalGLM, schema=..., label=..., ..., backend=Crypten())`.
        :param plan: of `plan`.
        :param run_dir, resume, insecure_seed, allow_long: as in `release_marginals`.
        :raises ArgumentError: data and plan do not fit together; nothing is spent.
        :raises PlanSpentError: the plan was spent before.
        """
        if not isinstance(data, VerticalDataset | Session):
            raise ArgumentError(f"data={shown(data)} must be a VerticalDataset with all parties' columns, or a session")
        self._check_schema(data)
        if isinstance(data, VerticalDataset):
            data = _at(data, tuple(self._joined.parties))
        elif idle := [party for party in data.parties if party not in self._joined.parties]:
            raise ArgumentError(
                f"data: party {idle[0]!r} holds neither a feature nor the label; leave it out of the tasks and their "
                "schema"
            )
        session = CountedSession(session_of(data, self._backend), self._joined, self)
        return release_marginals(
            session,
            plan,
            settings=self._system,
            run_dir=run_dir,
            resume=resume,
            insecure_seed=insecure_seed,
            allow_long=allow_long,
        )

    # -- a session's method ----------------------------------------------------------------------

    @property
    def _backend(self) -> Backend:
        return self.backend or FixedPoint()

    def check(self, dataset: DatasetInfo, plan: Plan) -> None:
        """Refuses a plan that was not made for these tables; see `session.Method`.

        :raises ArgumentError: names what differs.
        """
        self._check_schema(dataset)
        self._system.check(self._counted(dataset), plan)

    def computations(self, facts: DatasetInfo, plan: MRFPlan) -> list[tuple[Computation, int]]:
        """What the parties compute together, and how often: one cross product."""
        return self._system.computations(self._counted(facts), plan)

    def work(
        self, facts: DatasetInfo, party: str, columns: Mapping[str, np.ndarray], plan: MRFPlan, source: RandomSource
    ) -> PartyComputation:
        """One party's part, which counts the combinations of its own features at home; see `session.Method`."""
        held = counted(self.schema, self._design, self.label, self._groups, party, columns)
        return self._system.work(self._counted(facts), party, held, plan, source)

    def _counted(self, facts: DatasetInfo) -> TableFacts:
        return TableFacts(self._joined, facts.num_records)

    # -- what is learned -------------------------------------------------------------------------

    def fit(
        self, release: Marginals | VerticalDataset | Session, rng_key: jax.Array | None = None, *,
        plan: MRFPlan | None = None, run_dir: str | Path | None = None, resume: bool = False, num_samples: int = 2000,
        allow_long: bool = False,
    ) -> GLMPosterior:  # fmt: skip
        """The coefficients' posterior, given the tables; costs nothing where these are released already.

        :param release: of `release`, by this regression or one with the same label and features, or `Marginals.load`;
            or records with `plan`, whose tables are released first, as the other estimators do.
        :param rng_key: of the fit; None takes one that is always the same.
        :param plan, run_dir, resume: of records, as in `release`; the plan is spent.
        :param num_samples: draws to keep.
        :param allow_long: of records: release and fit even where that will take more than ten minutes, as the model's
            derivatives took on stand-ins.
        :raises ArgumentError: `release` is none, or of other columns, or records without a plan.
        :raises PlanSpentError: the plan was spent before.
        """
        if isinstance(release, VerticalDataset | Session):
            if plan is None:
                raise ArgumentError("plan: records need one, of MarginalGLM.plan(dataset, epsilon=...)")
            session = session_of(release, self._backend)
            time = partial(self._inference.time, self._counted(session), plan)
            announce(session, plan, time, run_dir=run_dir, resume=resume, allow_long=allow_long)
            release = self.release(release, plan, run_dir=run_dir, resume=resume, allow_long=True)
        elif plan is not None or run_dir is not None or resume:
            raise ArgumentError("plan: these tables were released already; leave plan, run_dir and resume out")
        if not isinstance(release, Marginals):
            raise ArgumentError(
                "release must be tables: of MarginalGLM.release, or Marginals.load(folder); or records with plan="
            )
        if release.schema != self._joined:
            raise ArgumentError("release: it is of other columns; take one of a MarginalGLM of this label and features")
        rng_key = compat.random_key(0) if rng_key is None else rng_key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TwinWarning)  # nobody asks a regression for a table
            posterior = self._inference.fit(
                release, rng_key, num_samples=num_samples, progress_bar=False, allow_long=True
            )
        return GLMPosterior(self.family, self._design.names, posterior, num_samples)

    def predictor(
        self, found: GLMPosterior, reveal: str | Iterable[float] = "score", *, allow_not_dp: bool = False,
        backend: Backend | None = None,
    ) -> VerticalPredictor:  # fmt: skip
        """Predictions of new records at the posterior mean of the coefficients, for the label's party alone. NOT DP.

        :param found: of `fit`.
        :param reveal, allow_not_dp, backend: as in `VerticalGLM.predictor`.
        :raises PrivacyError: nobody allowed it.
        :raises ArgumentError: `reveal` does not fit the family, or `VerticalGLM` has no such one.
        """
        if (family := _SAME_MEAN.get(self.family, self.family)) not in FAMILIES:
            raise ArgumentError(f"family={self.family!r}: its means are not predicted between parties; take {_LIKE}")
        return predictor_of_tables(
            self.schema, self.label, family, self._columns, set(self.linear), found.means(), found.cutpoints(),
            reveal=reveal if isinstance(reveal, str) else tuple(reveal), allow_not_dp=allow_not_dp,
            backend=backend,
        )  # fmt: skip

    @cached_property
    def _design(self) -> Design:
        return design_of(self.schema, self.label, self._columns, set(self.linear))

    @cached_property
    def _groups(self) -> np.ndarray | None:
        """The first counts of the label's groups; None where it is no count."""
        column = self.schema.columns[self.label]
        return count_groups(int(column.encoded_range[1])) if column.kind == "count" else None

    @cached_property
    def _joined(self) -> Schema:
        """What is counted: the features, a column for all of a party's, and the label."""
        found: dict[str, dict[str, Column]] = {}
        for party in self.schema.parties:
            own: dict[str, Column] = {
                name: CategoricalColumn(categories=tuple(range(int(codes.max()) + 1)))
                for name, codes in self._design.parts.get(party, {}).items()
            }
            if self.schema.party_of(self.label) == party:
                column = self.schema.columns[self.label]
                if self._groups is not None:
                    column = CategoricalColumn(categories=tuple(self._groups.tolist()))
                own[self.label] = column
            if own:
                found[party] = own
        joined = Schema({party: PartySchema(own) for party, own in found.items()}, self.schema.id_column)
        return joined.with_dtypes(dict.fromkeys(joined.columns))  # parties in processes know others' as little

    @cached_property
    def _system(self) -> VertiMRF:
        """The tables to release."""
        joint = [next(iter(columns)) for columns in self._design.parts.values()]
        alone = [name for columns in self._design.parts.values() for name in columns if name not in joint]
        return VertiMRF(
            workload=[*itertools.combinations(joint, 2), *((name, self.label) for name in (*joint, *alone))],
            bins={self.label: _REAL_CELLS} if self.schema.columns[self.label].kind == "real" else {},
            backend=self._backend,
        )

    @cached_property
    def _inference(self) -> MarginalInference:
        settings = {
            "schema": self.schema, "label": self.label, "family": self.family, "features": self._columns,
            "linear": tuple(self.linear), "prior_scale": self.prior_scale,
        }  # fmt: skip
        return MarginalInference(
            cell_model, method=self.method, law="tables", model_kwargs=settings, num_steps=1000, num_starts=3,
            settings=self._system,
        )  # fmt: skip

    def _check_schema(self, data: DatasetInfo) -> None:
        if data.schema.digest() != self.schema.digest():
            raise ArgumentError("data: its schema is not the regression's; make a MarginalGLM with schema=data.schema")

    @cached_property
    def _columns(self) -> tuple[str, ...]:
        """The features, every name checked."""
        columns = self.schema.columns
        for argument, names in {"features": self.features or (), "linear": self.linear}.items():
            require_collection(argument, names, "columns")
        chosen = set(columns) - {self.label} if self.features is None else set(self.features)
        linear = set(self.linear)
        for argument, names in {"label": {self.label}, "features": chosen, "linear": linear}.items():
            for name in sorted(names):
                if name not in columns:
                    raise ArgumentError(f"{argument}: no party holds column {name!r}; {suggest(name, columns)}")
        if self.label in chosen or not chosen:
            raise ArgumentError(f"features: name one or more, and not the label {self.label!r}")
        if strangers := sorted(linear - chosen):
            raise ArgumentError(f"linear: {strangers[0]!r} is not among the features; {suggest(strangers[0], chosen)}")
        self._check_label(Place(self.schema.party_of(self.label), self.label), columns[self.label])
        found = tuple(name for name in columns if name in chosen)
        for name in found:
            self._check_feature(Place(self.schema.party_of(name), name), columns[name], name in linear)
        self._check_size(found, linear)
        return found

    def _check_size(self, features: tuple[str, ...], linear: set[str]) -> None:
        """The model has a latent share for each combination, and the tables' law matrices of all latents."""
        sizes = {name: self.schema.columns[name].num_categories for name in features}
        count, most = math.prod(sizes.values()), MOST_PARAMETERS
        coefficients = sum(1 if name in linear else size - 1 for name, size in sizes.items())
        of_label = self.schema.columns[self.label].num_categories if self.family == "ordinal" else 3
        if count + coefficients + of_label > most:
            of_each = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ArgumentError(
                f"features: they have {count:,} combinations of values ({of_each}), each with a latent share; beside "
                f"{coefficients + of_label} others at most {most:,} latents can be held. Name fewer in features=, or "
                "give them fewer bins or groups"
            )

    def _check_records(self, facts: DatasetInfo) -> None:
        """The prior of the combinations counts as one record in each."""
        if (count := len(self._design.matrix)) > facts.num_records:
            raise ArgumentError(
                f"features: they have {count:,} combinations of values, and there are {facts.num_records:,} records; "
                "the prior would decide. Name fewer in features=, or give them fewer bins or groups"
            )

    def _check_label(self, place: Place, column: Column) -> None:
        kinds, words = _KINDS[self.family]
        two = "two" in words
        fits = column.kind in kinds and (column.kind in ("real", "count") or two == (column.num_categories == 2))
        if not fits:
            raise ArgumentError(f'label: {place} has not {words}, which family="{self.family}" is for; take another')
        if column.kind == "count" and column.encoded_range[1] > LARGEST_COUNT:
            raise ArgumentError(
                f"label: {place} counts up to {column.encoded_range[1]:,.0f}, at most {LARGEST_COUNT:,} can be held; "
                'set a smaller upper, with out_of_bounds = "clip"'
            )
        if column.missing != "forbid":
            raise ArgumentError(f'label: {place} has missing = "{column.missing}"; leave records without a label out')

    def _check_feature(self, place: Place, column: Column, linear: bool) -> None:
        if column.kind in ("real", "count"):
            fix = "bins, as in bins = 6" if column.kind == "real" else 'type = "integer" with edges'
            raise ArgumentError(f"features: {place} is a {column.kind}, of too many values; give it {fix}")
        if column.missing == "mask":
            raise ArgumentError(f'features: {place} has missing = "mask"; fill it, or set "category"')
        if linear and (not column.ordered or column.missing == "category"):
            raise ArgumentError(f"linear: {place} has a value outside any order; leave it out")


def _at(dataset: VerticalDataset, parties: tuple[str, ...]) -> VerticalDataset:
    """The columns of some parties."""
    schema = Schema({party: dataset.schema.parties[party] for party in parties}, dataset.schema.id_column)
    source = None if dataset.source is None else dataset.source.of(parties)
    return VerticalDataset(schema, {party: dataset.arrays(party) for party in parties}, dataset.workers, source)
