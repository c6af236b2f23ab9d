"""`twin`: a private synthetic table in one call, for whoever holds all of the tables.

Nobody is protected from the caller here: the tables lie side by side in this process. What is published is as private
as it would be between organisations, since plan, mechanism and noise are the same.
"""

from __future__ import annotations

import dataclasses
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

import jax

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, InferenceWarning, ModelContractError, UnprovenError
from vertinumpyro.core.types import Model
from vertinumpyro.core.validation import checked
from vertinumpyro.data import Schema, VerticalDataset, draft_schema
from vertinumpyro.data.table import Table, as_frame, in_kind_of
from vertinumpyro.dpvi import DPVI, Posterior
from vertinumpyro.marginals import MarginalInference, MarginalPosterior, release_marginals
from vertinumpyro.mrf import Marginals, MarkovTwin, MRFPlan, VertiMRF
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.forecast import STEPS_SAY_NOTHING, PairsForecast, held
from vertinumpyro.posterior.predictive import checked_key
from vertinumpyro.privacy import Plan, PrivacyWarning
from vertinumpyro.session.cost_estimate import require_allowed

Fitted = MarkovTwin | MarginalPosterior | Posterior

_UNDRAFTED = (
    "schema: epsilon covers records, and not the columns' bounds and categories, which must be public. Write them down "
    "(vertinumpyro.draft_schema(table, party).to_toml() proposes them, Schema.from_toml reads what you confirmed) and "
    "give schema=. allow_unproven=True takes what the tables hold, with no guarantee for it"
)
_DRAFTED = (
    "the schema was read from the tables, so epsilon does not cover it: a bound that only one record reaches tells of "
    "that record. Do not publish this twin; confirm made.schema by public knowledge and give it as schema="
)


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Twin:
    """A private synthetic table, and what it was drawn from.

    :ivar fitted: the field or posterior, which `save` keeps.
    :ivar plan: what was spent; it prints as a table of adversaries.
    :ivar schema: the columns' public domains.
    :ivar why: the method, and why it was taken.
    :ivar proved: False where the domains were read from the tables, which no ε covers.
    :ivar released: the noisy tables that it follows from; None where it was learned by steps alone.
    """

    fitted: Fitted
    plan: Plan
    schema: Schema
    why: str
    proved: bool
    released: Marginals | None
    _kind: type
    _key: jax.Array

    @property
    def verdict(self) -> str:
        """What it is good for: how many pairs of columns would show an association, and how many do."""
        if self.released is None:
            return STEPS_SAY_NOTHING
        what = "The twin" if isinstance(self.fitted, MarkovTwin) else "The release that it follows from"
        return f"{what} {held(self.released).verdict}."

    @cached_property
    def table(self) -> Any:
        """N synthetic records: pandas, polars or Arrow, as the first party's table, in the tables' storage types."""
        return self.sample(rng_key=self._key)

    def sample(self, num_records: int | None = None, *, rng_key: jax.Array) -> Any:
        """A further table; post-processing, as many as you like cost nothing.

        :raises ArgumentError: num_records is below 1, or rng_key is no key.
        """
        made = self.fitted.sample_synthetic(num_records, rng_key=checked_key(rng_key))
        return in_kind_of(self._kind, made)

    def __repr__(self) -> str:
        """The verdict, then public facts."""
        proved = "" if self.proved else ", bounds read from the tables: not DP"
        size = f"{self.plan.num_records} records, {len(self.schema.columns)} columns"
        return f"{self.verdict}\nTwin({size}, {self.why}{proved})"


@checked
def twin(
    tables: Mapping[str, Table],
    *,
    epsilon: float,
    delta: float = 1e-5,
    schema: Schema | None = None,
    model: Model | None = None,
    id_column: str = "id",
    rng_key: jax.Array | None = None,
    run_dir: str | Path | None = None,
    account: str | Path | None = None,
    total_epsilon: float | None = None,
    unmatched: Literal["refuse", "drop"] = "refuse",
    allow_unproven: bool = False,
    allow_long: bool = False,
    on_plan: Callable[[Plan], Any] | None = None,
) -> Twin:
    """A synthetic twin of all parties' tables, (epsilon, delta)-DP towards everyone who did not hold them.

    The method is the one that a configuration gets that names none: a Markov field of noisy tables (extra `mrf`), or
    with `model` that model learned from noisy tables; DPVI where a model has no tables or they would be too wide. Of
    columns too wide for a table of two, as thousands of categories, the field counts groups of neighbours in the
    schema's order, and draws values within a group as a noisy histogram of the column has them; `why` names them.

    :param tables: for each party a pandas or polars DataFrame, a `pyarrow.Table`, or a dict of arrays.
    :param epsilon: against the outside analyst and each party, one record replaced.
    :param delta: below 1/N.
    :param schema: the public domains of all columns, and the id column.
    :param model: `model(data, num_records)`, a NumPyro program with party plates.
    :param id_column: by which the tables know their records; used without a schema.
    :param rng_key: of the model's own randomness, never of the noise; by default a new one from the operating system.
    :param run_dir: a new folder for the privacy record, written before anything is seen.
    :param account: a folder for the account of these people, which adds up what all twins of them cost. Tables in
        memory have no place to be known by: None keeps none, and the report says so.
    :param total_epsilon: what those may cost together: a twin beyond it is refused before anything is spent.
    :param unmatched: what to do with records that not all parties have; "drop" makes the number of common ones public.
    :param allow_unproven: without a schema, take bounds and categories from the tables.
    :param allow_long: go on even where it will take more than ten minutes, as its parts took on stand-ins. From one
        minute on a `LongFitWarning` says how long, and where the time goes.
    :param on_plan: is given the plan before anything is spent. `print` shows what it costs, and in how many pairs
        of columns an association would be seen; whatever it raises stops the call. Where those are few, an
        `InferenceWarning` says so in any case.
    :raises UnprovenError: there is no schema, and `allow_unproven` is False.
    :raises ArgumentError: it would take more than ten minutes, and `allow_long` is False; nothing is spent.
    :raises ArgumentError, SchemaError, DataError, AlignmentError, ModelContractError: name the argument, party or
        column.
    """
    key = compat.random_key(secrets.randbits(31)) if rng_key is None else checked_key(rng_key)
    if not isinstance(tables, Mapping) or not tables:
        raise ArgumentError("tables is no mapping with a table in it; give {party: table, ...}")
    proved = schema is not None
    if schema is None:
        if not allow_unproven:
            raise UnprovenError(_UNDRAFTED)
        schema = _drafted(tables, id_column)
        warnings.warn(_DRAFTED, PrivacyWarning, stacklevel=3)
    dataset = VerticalDataset.from_frames(
        schema, tables, unmatched=unmatched, account=account, total_epsilon=total_epsilon
    )
    fit_key, draw_key = jax.random.split(key)
    why, plan, fit = _method(dataset, model, epsilon, delta, allow_long)
    _foresee(plan, on_plan)
    fitted, released = fit(dataset, plan, fit_key, run_dir)
    return Twin(fitted, plan, dataset.schema, why, proved, released, type(next(iter(tables.values()))), draw_key)


def _foresee(plan: Plan, on_plan: Callable[[Plan], Any] | None) -> None:
    if on_plan is not None:
        on_plan(plan)
    found = plan.forecast if isinstance(plan, MRFPlan) else None
    if isinstance(found, PairsForecast) and found.is_little:
        warnings.warn(str(found), InferenceWarning, stacklevel=4)


def _drafted(tables: Mapping[str, Table], id_column: str) -> Schema:
    """The domains that the tables hold; a column of which no domain can be drafted is left out, with a warning."""
    frames = {party: as_frame(table, f"party {party!r}") for party, table in tables.items()}
    num_columns = max(1, sum(len(frame.columns) - 1 for frame in frames.values()))
    drafts = {p: draft_schema(f, p, id_column=id_column, num_columns=num_columns) for p, f in frames.items()}
    for party, draft in drafts.items():
        for name, column in draft.columns.items():
            if not column.fields:
                warnings.warn(f"party {party!r}, column {name!r}: {column.note}", PrivacyWarning, stacklevel=4)
    parties = {
        party: {"columns": {name: dict(column.fields) for name, column in draft.columns.items() if column.fields}}
        for party, draft in drafts.items()
    }
    return Schema.from_dict({"id_column": id_column, "parties": parties})


# -- methods, the best first --------------------------------------------------------------------------

_Fit = Callable[[VerticalDataset, Any, jax.Array, "str | Path | None"], tuple[Fitted, "Marginals | None"]]
_Plan = Callable[[VerticalDataset, float, float], Plan]
_Candidate = tuple[str, _Plan, _Fit]


def _method(
    dataset: VerticalDataset, model: Model | None, epsilon: float, delta: float, allow_long: bool
) -> tuple[str, Plan, _Fit]:
    """The first method whose plan can be made, and the reason for it."""
    refused = ""
    for name, make_plan, fit in (candidates := list(_candidates(model, dataset.schema, allow_long))):
        try:
            return f"{name}{refused}", make_plan(dataset, epsilon, delta), fit
        except (ArgumentError, ModelContractError) as error:
            if name == candidates[-1][0]:
                raise
            refused = f", as no {name} can be had: {error}"
    raise AssertionError("there is no candidate")


def _candidates(model: Model | None, schema: Schema, allow_long: bool) -> Iterator[_Candidate]:
    field = VertiMRF()
    if model is None and has_engine():
        grouped = field.grouped(schema)
        bins = grouped.bins
        groups = f", with {', '.join(map(repr, bins))} in {min(bins.values())} groups of neighbours" if bins else ""
        yield (
            f"Markov field of noisy tables{groups}",
            lambda data, epsilon, delta: grouped.plan(data, epsilon=epsilon, delta=delta),
            lambda data, plan, key, run_dir: _with_tables(
                grouped.fit(data, plan, run_dir=run_dir, allow_long=allow_long)
            ),
        )
    inference = MarginalInference(model, law="auto" if has_engine() else "tables")

    def plan_tables(dataset: VerticalDataset, epsilon: float, delta: float) -> Plan:
        plan = field.plan(dataset, epsilon=epsilon, delta=delta)
        inference.rehearse(dataset.schema, plan)
        return plan

    def from_tables(
        data: VerticalDataset, plan: Any, key: jax.Array, run_dir: str | Path | None
    ) -> tuple[Fitted, Marginals]:
        require_allowed(inference.time(data, plan), allow_long=allow_long)
        released = release_marginals(data, plan, field, run_dir=run_dir, allow_long=True)
        return inference.fit(released, key, progress_bar=False, allow_long=True), released

    yield "model learned from noisy tables", plan_tables, from_tables
    dpvi = DPVI(model)
    yield (
        "model learned by noisy steps",
        lambda data, epsilon, delta: dpvi.plan(data, epsilon=epsilon, delta=delta),
        lambda data, plan, key, run_dir: _with_tables(
            dpvi.fit(data, plan, key, run_dir=run_dir, allow_long=allow_long)
        ),
    )


def _with_tables(fitted: MarkovTwin | Posterior) -> tuple[Fitted, Marginals | None]:
    return fitted, fitted.marginals
