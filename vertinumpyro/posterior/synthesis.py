"""Drawing records from a model whose latents are known, covariates first, and rehearsing it.

Before that, which columns of the schema a synthetic table of a model holds, and in which order the model draws them.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ArgumentError, VertinumpyroError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Column, Schema, decode_table
from vertinumpyro.data.schema_checks import suggest
from vertinumpyro.data.table import as_frame
from vertinumpyro.model import ModelStructure, SplitModel
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.user_code import text_of, where

_REHEARSED_RECORDS = 2

Columns = Mapping[str, Any]


class TwinWarning(UserWarning):
    """A model gives less than a synthetic table of all columns by itself; its posterior is not affected."""


class Round(NamedTuple):
    """Observed sites to draw together, and the columns that are then known."""

    sites: tuple[str, ...]
    columns: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwinColumns:
    """What a synthetic table of a model holds. Every column of the schema is in one of the first three.

    given:    covariates: the model reads them and does not draw them, so they must be passed to it.
    drawn:    columns that the model draws.
    masks:    of these, those for which it draws where they are missing, and the site that does.
    complete: of these, those whose missing values the schema wants to see again, and whose mask it does not draw.
    left_out: columns that no synthetic table has, and why.
    rounds:   what to draw, round by round: a site comes after the columns that its distribution reads.
    """

    given: tuple[str, ...]
    drawn: tuple[str, ...]
    left_out: Mapping[str, str]
    rounds: tuple[Round, ...]
    masks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    complete: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether the model draws every column by itself, with its missing values where the schema wants them."""
        return not (self.given or self.left_out or self.complete)

    @property
    def needs_nothing(self) -> bool:
        """Whether the model draws a synthetic table by itself, of some columns at least."""
        return not self.given and bool(self.drawn)

    def describe(self) -> str:
        """What is missing from a whole table, and what to do; empty where nothing is."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        missing = "; ".join(f"{_listed(names)}: {reason}" for reason, names in by_reason.items())
        if not self.drawn:
            return f"this model can give no synthetic table ({missing}); fit it for the posterior alone"
        parts = []
        if self.given:
            parts.append(
                f"this model reads {_listed(self.given)} and does not draw {_it(self.given)}, so it gives no synthetic "
                "table by itself: fit it for the posterior, or pass covariates to sample_synthetic(covariates=...)"
            )
        if self.left_out:
            parts.append(f"synthetic tables of this model will lack {_listed(self.left_out)} ({missing})")
        if self.complete:
            mask = repr(self.complete[0] + OBSERVED_SUFFIX)
            parts.append(
                f"{_listed(self.complete)} will have no missing values in synthetic tables, as the model does not draw "
                f"where they are: observe the mask, too, numpyro.sample({mask}, dist.Bernoulli(p), obs=data[{mask}])"
            )
        return "; ".join(parts)

    def warn(self, stacklevel: int) -> None:
        """Emit a `TwinWarning` unless the table is whole, with its missing values."""
        if not self.is_whole:
            warnings.warn(self.describe(), TwinWarning, stacklevel=stacklevel + 1)


def twin_columns(structure: ModelStructure) -> TwinColumns:
    """What the provenance of a model's sites says about its synthetic tables.

    A site can be drawn once every column that its distribution reads is given or drawn.
    """
    reads, sources = _together(structure), _sources(structure)
    known: set[str] = set(structure.covariates)
    rounds: list[Round] = []
    waiting = [site for site, columns in _observes(structure).items() if columns]
    while ready := tuple(site for site in waiting if known.issuperset(reads[site])):
        waiting = [site for site in waiting if site not in ready]
        done = {*ready, *(site for earlier in rounds for site in earlier.sites)}
        new = (column for column, sites in sources.items() if sites and done.issuperset(sites))
        rounds.append(Round(ready, tuple(column for column in new if column not in known)))
        known |= set(rounds[-1].columns)
    drawn = tuple(column for column in structure.modelled_columns if column in known)
    reasons = _reasons(structure, known)
    if not drawn:
        return TwinColumns(given=(), drawn=(), left_out=reasons, rounds=())
    needed = {column for drawn_round in rounds for site in drawn_round.sites for column in reads[site]}
    given = tuple(column for column in structure.covariates if column in needed)
    left_out = {column: why for column, why in reasons.items() if column not in (*given, *drawn)}
    return TwinColumns(
        given=given,
        drawn=drawn,
        left_out=left_out,
        rounds=tuple(rounds),
        masks={column: site for column, site in structure.modelled_masks.items() if column in drawn},
        complete=tuple(column for column in structure.complete_columns if column in drawn),
    )


def _observes(structure: ModelStructure) -> dict[str, set[str]]:
    """The columns from which each site's observation is made; none for a factor, which is only a density."""
    return {
        site: {column.removesuffix(OBSERVED_SUFFIX) for column in structure.site_columns[site]} - set(covariates)
        for site, covariates in structure.site_covariates.items()
    }


def _together(structure: ModelStructure) -> dict[str, tuple[str, ...]]:
    """The columns that must be known before each site; a column's site and its mask's are drawn in one round."""
    reads = dict(structure.site_covariates)
    for column, mask in structure.modelled_masks.items():
        site = structure.modelled_columns[column].site
        if site in reads:  # a deterministic one is drawn with those that it is made of
            reads[site] = reads[mask] = tuple(sorted({*reads[site], *reads[mask]}))
    return reads


def _sources(structure: ModelStructure) -> dict[str, set[str]]:
    """The observed sites to draw for each modelled column: its own, or those that a deterministic one is made of."""
    observes = _observes(structure)
    found = {
        column: {at.site} if at.site in observes else {site for site, columns in observes.items() if column in columns}
        for column, at in structure.modelled_columns.items()
    }
    masks = structure.modelled_masks
    return {column: sites | {masks[column]} if column in masks else sites for column, sites in found.items()}


def _reasons(structure: ModelStructure, known: set[str]) -> dict[str, str]:
    """Why each column is left out, if it is."""
    reasons = dict.fromkeys(structure.unused_columns, "no site reads it")
    reasons |= dict.fromkeys(structure.covariates, "it is only read")
    for column, site in structure.undrawable_columns.items():
        reasons[column] = (
            f"site {site!r} draws something else; observe the column as it is, or turn the draw back into it with "
            f"numpyro.deterministic({column!r}, ...)"
        )
    for column, sites in _sources(structure).items():
        unknown = {read for site in sites for read in structure.site_covariates[site] if read not in known}
        reasons[column] = f"its site reads {_listed(sorted(unknown))}, which cannot be drawn before it"
    return reasons


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _it(names: tuple[str, ...]) -> str:
    return "it" if len(names) == 1 else "them"


def rehearse_twin(split: SplitModel) -> TwinColumns:
    """What a synthetic table of a model holds, tried out: drawing is traced, which computes nothing.

    Where that fails, no synthetic table can be had, and `left_out` says why. It has not seen a record.
    """
    if "twin columns" not in split.compiled:
        split.compiled["twin columns"] = _rehearsed(split)
    return split.compiled["twin columns"]


def _rehearsed(split: SplitModel) -> TwinColumns:
    try:
        twin = twin_columns(split.structure)
        columns = stand_in_columns(split.schema, _REHEARSED_RECORDS)
        for stratified in (False, True) if twin.drawn else ():
            jax.eval_shape(partial(_draw_at_zeros, split, twin, stratified=stratified), columns)
    except Exception as error:  # whatever the model's distributions raise when they are drawn from
        raised = f"drawing{where(error)} raises {type(error).__name__}: {text_of(error)}"
        reason = str(error) if isinstance(error, VertinumpyroError) else raised
        return TwinColumns(given=(), drawn=(), left_out=dict.fromkeys(split.schema.columns, reason), rounds=())
    return twin


@final
class Records:
    """Draws of records from draws of the latents, compiled once for each size."""

    def __init__(self, split: SplitModel, twin: TwinColumns) -> None:
        self._split, self._twin = split, twin
        self._draw = jax.jit(self._of_all, static_argnames="stratified")

    def draw(
        self, latents: Columns, rng_key: jax.Array, num_records: int, given: Columns, *, stratified: bool = False
    ) -> dict[str, np.ndarray]:
        """The drawn columns [num_records] in model units, spread evenly over the draws of the latents, in random order.

        :param latents: draws [draws, ...] of the global latents.
        :param given: the given columns [num_records] and their masks; record n is drawn at row n.
        :param stratified: draw the records of one draw of the latents together, as `Stratified` does.
        """
        draws = len(next(iter(latents.values())))
        each = -(-num_records // draws)
        rng = compat.numpy_generator(rng_key)
        order = rng.permutation(draws * each)[:num_records]
        rows = np.zeros(draws * each, int)
        rows[order] = np.arange(num_records)
        placed = {name: array[rows].reshape(draws, each) for name, array in given.items()}
        stand_ins = stand_in_columns(self._split.schema, each)
        try:
            drawn = self._draw(latents, jax.random.split(rng_key, draws), placed, stand_ins, stratified=stratified)
        except VertinumpyroError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"the model cannot be drawn from: it raises {type(error).__name__} (the cause)"
            ) from error
        return {name: np.asarray(values).reshape(-1)[order] for name, values in drawn.items()}

    def replicated(self, latents: Columns, rng_key: jax.Array, columns: Mapping[str, Columns]) -> dict[str, jax.Array]:
        """Every drawn column [draws, n] in model units, of each draw of the latents, at the parties' columns [n].

        :param columns: columns[party][name], of which the model's covariates are read.
        """
        draws, of_all = len(next(iter(latents.values()))), {k: v for own in columns.values() for k, v in own.items()}
        given = {
            name: jnp.broadcast_to(column, (draws, *column.shape))
            for name, column in of_all.items()
            if name.removesuffix(OBSERVED_SUFFIX) in self._twin.given
        }
        stand_ins = stand_in_columns(self._split.schema, len(next(iter(of_all.values()))))
        return self._draw(latents, jax.random.split(rng_key, draws), given, stand_ins, stratified=False)

    def _of_all(
        self, latents: Columns, keys: jax.Array, given: Columns, stand_ins: Columns, *, stratified: bool
    ) -> dict[str, jax.Array]:
        def of_one(draw: tuple[Columns, jax.Array, Columns]) -> dict[str, jax.Array]:
            latents, key, columns = draw
            columns = {**stand_ins, **columns}
            return draw_records(self._split, self._twin, latents, key, columns, stratified=stratified)

        return jax.lax.map(of_one, (latents, keys, given))

    def __repr__(self) -> str:
        """Public facts alone."""
        return f"Records({', '.join(self._twin.drawn)})"


def draw_records(
    split: SplitModel,
    twin: TwinColumns,
    latents: Columns,
    rng_key: jax.Array,
    columns: Columns,
    *,
    stratified: bool = False,
) -> dict[str, jax.Array]:
    """The drawn columns [n] of one draw of the latents, in model units, and the masks that the model draws.

    Every site draws from its distribution at the columns that it reads, which were given or drawn in an earlier
    round. So a model may index its columns, observe them at sites of other names, or read them where it pleases.

    :param columns: the given columns and stand-ins for all others, masks too, each [n].
    :param stratified: see `Stratified`.
    """
    data, fixed, component = dict(columns), dict(latents), split.structure.component_site
    num_records = len(next(iter(data.values())))
    drawn: dict[str, jax.Array] = {}
    for number, (sites, names) in enumerate(twin.rounds):
        round_key = rng_key if number == 0 else jax.random.fold_in(rng_key, number)
        unobserved: Model = _Unobserved(handlers.substitute(split.model, data=fixed), sites)
        if stratified:
            unobserved = Stratified(unobserved, round_key, num_records, component, drawn.values())
        trace = handlers.trace(handlers.seed(unobserved, round_key)).get_trace(data, num_records)
        values = {name: site["value"] for name, site in trace.items()}
        if component is not None:
            fixed[component] = values[component]
        for name in names:
            at = split.structure.modelled_columns[name]
            drawn[name] = _as_column(name, split.schema.columns[name], at.of(values), trace[at.site])
            if name in twin.masks:
                drawn[name + OBSERVED_SUFFIX] = values[twin.masks[name]].astype(bool)
        data |= drawn
    return drawn


class _Unobserved(Messenger):
    """Makes observed sites draw their value instead."""

    def __init__(self, fn: Model, sites: tuple[str, ...]) -> None:
        super().__init__(fn)
        self._sites = sites

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self._sites:
            msg["value"], msg["is_observed"] = None, False


def _as_column(name: str, column: Column, values: jax.Array, site: Mapping[str, Any]) -> jax.Array:
    """Draws in the column's encoding: numbers of an unbounded distribution go to the nearest of the domain.

    :raises ArgumentError: the site can draw what is no category of the column.
    """
    if column.num_values is None:
        return values
    if not column.ordered:
        _check_codes(name, column, values, site)
        return values.astype(jnp.int32)
    rounded, last = jnp.rint(values), column.num_values - 1
    is_missing = (rounded == column.num_values) & (column.missing == "category")
    return jnp.where(is_missing, column.num_values, jnp.clip(rounded, 0, last)).astype(jnp.int32)


def _check_codes(name: str, column: Column, values: jax.Array, site: Mapping[str, Any]) -> None:
    problem = "numbers that are not integers" if jnp.issubdtype(values.dtype, jnp.floating) else None
    if site["type"] == "sample" and problem is None:
        largest = _largest_code(site["fn"])
        problem = None if largest < column.num_categories else f"codes up to {largest:g}"
    if problem is not None:
        raise ArgumentError(
            f"site {site['name']!r} draws {problem}, and column {name!r} has {column.num_categories} categories; give "
            "it a distribution over these, as Categorical or Bernoulli"
        )


def _largest_code(fn: Any) -> float:
    """The largest integer that a distribution can draw; 0 where that is not known before it does."""
    support = getattr(fn.support, "base_constraint", fn.support)
    if type(support) in (type(constraints.nonnegative_integer), type(constraints.positive_integer)):
        return math.inf
    try:
        return 1.0 if support is constraints.boolean else float(np.max(getattr(support, "upper_bound", 0)))
    except (TypeError, jax.errors.ConcretizationTypeError):
        return 0.0


def encoded_covariates(
    schema: Schema, twin: TwinColumns, covariates: Any
) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """The covariates as a table and in model units, masks too; both without columns where the model reads none.

    :raises ArgumentError: columns are missing or too many, or there is no record; the message names them.
    :raises DataError: a value breaks the schema.
    """
    if covariates is None:
        if twin.given:
            names = ", ".join(repr(name) for name in twin.given)
            raise ArgumentError(
                f"the model reads {names} and does not draw what it reads; give covariates=, a table with these "
                "columns in the schema's units and a row for each synthetic record"
            )
        return pd.DataFrame(), {}
    frame = as_frame(covariates, "covariates").reset_index(drop=True)
    frame = frame.drop(columns=schema.id_column, errors="ignore")  # records of a table are known by it, draws are not
    _check_names([str(name) for name in frame.columns], schema, twin)
    if not len(frame):
        raise ArgumentError("covariates has no row; give one for each synthetic record")
    arrays: dict[str, np.ndarray] = {}
    for name in twin.given:
        column, series = schema.columns[name], pd.Series(frame[name])
        arrays[name] = column.encode(series, party=schema.party_of(name), name=name)
        if column.masked:
            arrays[name + OBSERVED_SUFFIX] = column.observed(series)
    return pd.DataFrame(frame[list(twin.given)]), arrays


def _check_names(found: list[str], schema: Schema, twin: TwinColumns) -> None:
    if len(set(found)) < len(found):
        raise ArgumentError("covariates has a column twice; keep one")
    for name in twin.given:
        if name not in found:
            raise ArgumentError(f"covariates has no column {name!r}, which the model reads; {suggest(name, found)}")
    kept = f"leave it out, as in covariates=table[{list(twin.given)}]" if twin.given else "leave it out"
    for name in found:
        if name in twin.given:
            continue
        if name in twin.drawn:
            raise ArgumentError(f"covariates has {name!r}, which the model draws itself; {kept}")
        if name in schema.columns:
            raise ArgumentError(f"covariates has {name!r}, which the model does not read; {kept}")
        raise ArgumentError(f"covariates has {name!r}, which the schema does not list; {suggest(name, twin.given)}")


def twin_frame(
    schema: Schema, twin: TwinColumns, arrays: Columns, rng: np.random.Generator, given: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Drawn arrays as a table, with the given columns as they were given, in the schema's order."""
    names = (*twin.drawn, *(name + OBSERVED_SUFFIX for name in twin.masks))
    decoded = decode_table(schema.select(twin.drawn), {name: arrays[name] for name in names}, rng)
    if given is None or not twin.given:
        return decoded
    whole = pd.concat([decoded, given], axis=1)
    return pd.DataFrame(whole[[name for name in schema.columns if name in whole.columns]])


def _draw_at_zeros(split: SplitModel, twin: TwinColumns, columns: Columns, *, stratified: bool) -> dict[str, jax.Array]:
    latents = split.constrain(jnp.zeros(split.num_parameters))
    return draw_records(split, twin, latents, compat.random_key(0), columns, stratified=stratified)


_OVER_CODES = (dist.BernoulliProbs, dist.BernoulliLogits, dist.CategoricalProbs, dist.CategoricalLogits)
_GOLDEN = np.uint32(2654435769)  # of 2^32: sums and products wrap, so that no digit is lost


@final
class Stratified(Messenger):
    """Records of a twin that are nearer to their distribution than independent ones, at no cost.

    Draws sites of finitely many values together for all records; others as ever. Goes inside `handlers.seed`.

    A site's draws are its quantiles at u_i = frac(U_c + r_i φ), φ the golden ratio: a Kronecker sequence, whose every
    run is spread almost evenly over (0, 1). c is the record's cell, its component and its code in one of the columns
    drawn before, another at each site; r_i is its place in the cell, by lot; U_c is uniform, one for each cell and
    site. So the records of one component, and among them those that agree in that column, get a site's values in about
    their shares, where independent draws miss them by a square root. Every u_i is uniform and independent of what came
    before, so each record by itself is an exact draw of the model; and as lots and U_c are new at every site, two sites
    have nothing in common within a cell, however small it is.

    :param rng_key: of shifts and lots.
    :param num_records: how many; a site of another shape is none of the records'.
    :param component: the component site, by which records are ordered first.
    :param drawn: what was drawn in earlier rounds, each [n]; codes are used, numbers are not.
    """

    def __init__(self, fn: Model, rng_key: jax.Array, num_records: int, component: str | None, drawn: Any) -> None:
        super().__init__(fn)
        self._key, self._num_records, self._component = rng_key, num_records, component
        self._sites = 0
        self._codes: list[jax.Array] = []
        self._first: jax.Array | None = None
        for value in drawn:
            self._remember(value)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Gives a site its value, where it has finitely many."""
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if msg["value"] is None and (shares := _cumulative(msg["fn"], self._num_records)) is not None:
            self._sites += 1
            places = self._places(jax.random.fold_in(self._key, self._sites))
            at = places / jnp.asarray(2.0**32, shares.dtype)
            msg["value"] = (at[:, None] >= shares).sum(1).astype(jnp.result_type(int))

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Remembers what the record has drawn."""
        value = msg["value"]
        if msg["type"] != "sample" or jnp.shape(value) != (self._num_records,):
            return
        if msg["name"] == self._component:
            self._first = value
        else:
            self._remember(value)

    def _remember(self, value: Any) -> None:
        if jnp.issubdtype(jnp.result_type(value), jnp.integer) or jnp.issubdtype(jnp.result_type(value), jnp.bool_):
            self._codes.append(jnp.asarray(value))

    def _places(self, rng_key: jax.Array) -> jax.Array:
        """2^32 u_i, uint32 [n]."""
        lot_key, shift_key = jax.random.split(rng_key)
        keys = [] if self._first is None else [self._first]
        if self._codes:
            keys.insert(0, self._codes[np.random.default_rng(self._sites).integers(len(self._codes))])
        order = jnp.lexsort([jax.random.bits(lot_key, (self._num_records,)), *keys])
        rank = jnp.arange(self._num_records)
        new = rank == 0
        for key in keys:
            new |= jnp.concatenate([jnp.ones(1, bool), jnp.diff(key[order].astype(jnp.int32)) != 0])
        start = jax.lax.cummax(jnp.where(new, rank, 0))
        shift = jax.random.bits(shift_key, (self._num_records,), jnp.uint32)[start]
        found = shift + (rank - start).astype(jnp.uint32) * _GOLDEN
        return jnp.zeros(self._num_records, jnp.uint32).at[order].set(found)


def _cumulative(fn: Any, num_records: int) -> jax.Array | None:
    """P(value <= c), [n or 1, values - 1], of a distribution over codes from 0; None for others."""
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    if not isinstance(fn, _OVER_CODES):
        return None
    probs: Any = fn.probs
    if isinstance(fn, dist.BernoulliProbs | dist.BernoulliLogits):
        probs = jnp.stack([1 - probs, probs], -1)
    if probs.ndim > 2 or (probs.ndim == 2 and len(probs) not in (1, num_records)):
        return None
    return jnp.cumsum(jnp.atleast_2d(probs), -1)[:, :-1]
