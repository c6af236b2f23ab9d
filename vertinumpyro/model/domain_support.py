"""Refuses a model that cannot speak of every value in its columns' public domains: no density there, or a read beyond
the end of an array, where jax takes the last entry in silence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from vertinumpyro.core.compat import bound, called, compiled_fast
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model, Theta
from vertinumpyro.data import OBSERVED_SUFFIX, Column, Schema
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.enumeration import Site, log_densities, trace_at
from vertinumpyro.model.party_plate import PartySums
from vertinumpyro.model.user_code import UserLine, traced_at

_CLIP, _FILL = jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.FILL_OR_DROP


class ArrayRead(NamedTuple):
    """A place where an array is read beyond its end: the sizes of the indexed axes, and the line of the user's."""

    sizes: tuple[int, ...]
    line: UserLine | None


@dataclasses.dataclass(frozen=True)
class TracedProgram:
    """A function as jax traced it.

    :ivar closed: its jaxpr.
    :ivar outputs: the number of each of its outputs, in the form of the function's result.
    """

    closed: Any
    outputs: Any

    @classmethod
    def of(cls, fn: Callable[..., Any], *args: Any) -> TracedProgram:
        """Of arrays such as these."""
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        structure = jax.tree_util.tree_structure(shape)
        return cls(closed, jax.tree_util.tree_unflatten(structure, range(structure.num_leaves)))

    def screened(self, wanted: Sequence[int], *args: Any) -> tuple[list[Any], list[ArrayRead]]:
        """Some outputs, and the reads beyond an array's end; computes no more than these need, and compiles nothing."""
        leaves = jax.tree_util.tree_leaves(args)
        frame = _Frame(self.closed.jaxpr, self.closed.consts, [lambda leaf=leaf: leaf for leaf in leaves], None)
        return [frame.of(self.closed.jaxpr.outvars[number]) for number in wanted], list(frame.beyond())

    def moved_by(self, offset: jax.Array, *args: Any) -> Any:
        """The function's result where `offset` is added to whatever is read beyond an array's end."""
        outs = _evaluate_jaxpr(self.closed.jaxpr, self.closed.consts, jax.tree_util.tree_leaves(args), offset)
        return jax.tree_util.tree_map(lambda number: outs[number], self.outputs)


class _Frame:
    """The variables of a jaxpr, each computed when it is asked for.

    :param given: functions that return its arguments.
    :param line: of the equation around it: what lies inside may have been traced for another line before.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], given: Sequence[Callable[[], Any]], line: Any) -> None:
        self._equations, self._outvars, self._line = jaxpr.eqns, jaxpr.outvars, line
        self._values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        self._given = dict(zip(jaxpr.invars, given, strict=True))
        self._sources = {variable: place for place, one in enumerate(jaxpr.eqns) for variable in one.outvars}
        self._inner: dict[int, _Frame] = {}

    def of(self, variable: Any) -> Any:
        """Its value."""
        if hasattr(variable, "val"):
            return variable.val
        if variable not in self._values:
            if variable in self._given:
                self._values[variable] = self._given[variable]()
            else:
                self._compute(self._sources[variable], variable)
        return self._values[variable]

    def _compute(self, place: int, variable: Any) -> None:
        equation = self._equations[place]
        if (inner := self._inside(place)) is not None:
            self._values[variable] = inner.of(inner._outvars[equation.outvars.index(variable)])
            return
        outs = bound(equation, [self.of(one) for one in equation.invars])
        outs = outs if equation.primitive.multiple_results else [outs]
        self._values.update(zip(equation.outvars, outs, strict=True))

    def _inside(self, place: int) -> _Frame | None:
        equation = self._equations[place]
        inner = called(equation)
        if inner is None or not _reads_arrays(inner[0]):
            return None
        if place not in self._inner:
            given = [lambda one=one: self.of(one) for one in equation.invars]
            self._inner[place] = _Frame(*inner, given, self._line or traced_at(equation))
        return self._inner[place]

    def beyond(self) -> Iterator[ArrayRead]:
        """Reads beyond an array's end, whatever comes of them."""
        for place, equation in enumerate(self._equations):
            if (inner := self._inside(place)) is not None:
                yield from inner.beyond()
            elif _is_unsaid(equation):
                operand, indices = equation.invars
                if not _inside_array(equation, operand.aval.shape, self.of(indices)).all():
                    axes = equation.params["dimension_numbers"].start_index_map
                    yield ArrayRead(tuple(operand.aval.shape[axis] for axis in axes), self._line or traced_at(equation))


def _evaluate_jaxpr(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], offset: jax.Array) -> list[Any]:
    """jax's own evaluation of a jaxpr, but for reads."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def of(variable: Any) -> Any:
        return variable.val if hasattr(variable, "val") else values[variable]

    for equation in jaxpr.eqns:
        given = [of(variable) for variable in equation.invars]
        if (inner := called(equation)) is not None and _reads_arrays(inner[0]):
            outs = _evaluate_jaxpr(inner[0], inner[1], given, offset)
        elif _is_unsaid(equation):
            operand, indices = given
            outs = [_read(equation, operand, indices, offset)]
        else:
            outs = bound(equation, given)
            outs = outs if equation.primitive.multiple_results else [outs]
        values.update(zip(equation.outvars, outs, strict=True))
    return [of(variable) for variable in jaxpr.outvars]


def _read(equation: Any, operand: Any, indices: Any, offset: jax.Array) -> jax.Array:
    """The last entry where the indices are beyond the end, as jax reads it, plus the offset."""
    inside = _inside_array(equation, jnp.shape(operand), indices)
    found = equation.primitive.bind(operand, indices, **{**equation.params, "mode": _CLIP, "fill_value": None})
    is_bool = found.dtype == jnp.bool_
    return jnp.where(inside, found, found ^ (offset != 0) if is_bool else found + offset.astype(found.dtype))


def _inside_array(equation: Any, shape: tuple[int, ...], indices: Any) -> jax.Array:
    """Which entries of a read's result come from within the array."""
    params = {**equation.params, "mode": _FILL, "fill_value": 0}
    return equation.primitive.bind(jnp.ones(shape, jnp.int8), indices, **params) == 1


def _is_unsaid(equation: Any) -> bool:
    """Whether it is a read, and left to jax what is beyond the end: NaN, the least integer, or the last entry."""
    if equation.primitive.name != "gather":
        return False
    dtype, mode, fill = (equation.invars[0].aval.dtype, *(equation.params[name] for name in ("mode", "fill_value")))
    if jnp.issubdtype(dtype, jax.dtypes.extended) or mode == _CLIP:
        return False
    if mode != _FILL or fill is None:
        return True
    return bool(np.isnan(fill)) or (jnp.issubdtype(dtype, jnp.integer) and int(fill) == jnp.iinfo(dtype).min)


def _reads_arrays(jaxpr: Any) -> bool:
    """Whether a read is somewhere in it: any other is left whole, which is sooner run."""
    inner = (called(equation) for equation in jaxpr.eqns)
    return any(map(_is_unsaid, jaxpr.eqns)) or any(one is not None and _reads_arrays(one[0]) for one in inner)


_MOST_VALUES = 64  # of a column; of more, evenly spaced ones, both ends among them
_REAL_VALUES = 9
_BLOCKS = 3
_SCALES = (0.5, 0.0, 0.1, 1.0, 2.0, 4.0, 0.5, 0.0)  # standard deviations of random unconstrained latents
_MOST_CONFIRMED = 3

Columns = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteRoles:
    """What of a model's structure is asked for here.

    :ivar latents: unconstrained shape of each global latent.
    :ivar parties: the party of each observed site.
    :ivar observes: columns of which each of these sites observes the value.
    :ivar reads: all columns that each of them reads.
    """

    latents: Mapping[str, tuple[int, ...]]
    component_site: str | None
    num_components: int
    parties: Mapping[str, str]
    observes: Mapping[str, tuple[str, ...]]
    reads: Mapping[str, tuple[str, ...]]


class _Found(NamedTuple):
    """Of each site [K, n], and of each part of a `party_sum` [n], on the same records.

    outside:  whether no mask takes the record out, and its value is outside the support.
    doubtful: or at an end of it, or the support is not known: only the log density says whether it is possible.
    """

    log_density: Mapping[str, Any]
    outside: Mapping[str, Any]
    doubtful: Mapping[str, Any]
    parts: Mapping[str, Any]


def check_domains(model: Model, schema: Schema, roles: SiteRoles) -> None:
    """Evaluate the sites on all values of the public domains.

    :raises ModelContractError: names the site, the column, both domains or the array and its line, and the fix.
    """
    runs = _Runs.of(model, schema, roles)
    doubtful, beyond = runs.screened()
    if doubtful or beyond:
        found = runs.at(0, runs.columns)
        _check_supports(runs, found)
        _check_reads(runs, found, beyond)


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The model as a program, the records [n] of whole domains, and its distributions in words."""

    schema: Schema
    roles: SiteRoles
    columns: Columns
    program: TracedProgram
    distributions: Mapping[str, str]

    @classmethod
    def of(cls, model: Model, schema: Schema, roles: SiteRoles) -> _Runs:
        columns, distributions = _whole_domains(schema), {}
        evaluated = partial(_evaluated, model, roles, distributions)
        return cls(schema, roles, columns, TracedProgram.of(evaluated, _theta(roles, 0), columns), distributions)

    def screened(self) -> tuple[bool, list[ArrayRead]]:
        """Whether a record is doubtful at all, and the reads beyond an array's end; nearly always nothing is."""
        wanted = list(self.program.outputs.doubtful.values())
        doubtful, beyond = self.program.screened(wanted, _theta(self.roles, 0), self.columns)
        return any(np.any(of_site) for of_site in doubtful), beyond

    @cached_property
    def _compiled(self) -> Any:
        arguments = jnp.zeros(()), _theta(self.roles, 0), self.columns
        return compiled_fast(jax.jit(self.program.moved_by).lower(*arguments))

    def at(self, seed: int, columns: Columns, offset: float = 0.0) -> _Found:
        """What was found at random latents, with an offset to what is read beyond an array's end."""
        return jax.device_get(self._compiled(jnp.asarray(offset), _theta(self.roles, seed), columns))


def _theta(roles: SiteRoles, seed: int) -> Theta:
    rng = np.random.default_rng(seed)
    draws = {name: rng.normal(0.0, _SCALES[seed], shape) for name, shape in roles.latents.items()}
    return {name: jnp.asarray(draw, jnp.result_type(float)) for name, draw in draws.items()}


# -- records ------------------------------------------------------------------------------------------


def _values(column: Column) -> np.ndarray:
    """Values of the public domain as the model sees it."""
    low, high = column.encoded_range
    count = _REAL_VALUES if column.num_values is None else min(int(high) + 1, _MOST_VALUES)
    found = np.linspace(low, high, count)
    return (found if column.num_values is None else np.rint(found)).astype(column.placeholder().dtype)


def _whole_domains(schema: Schema) -> Columns:
    """Records in which every column takes each of its values several times beside others, some of them missing."""
    rng, values = np.random.default_rng(0), {name: _values(column) for name, column in schema.columns.items()}
    size = max(len(found) for found in values.values())
    columns: dict[str, np.ndarray] = {}
    for name, column in schema.columns.items():
        blocks = [rng.permutation(np.resize(values[name], size)) for _ in range(_BLOCKS + 1)]
        columns[name] = np.concatenate(blocks)
        if column.masked:
            observed = (np.arange(len(columns[name])) < _BLOCKS * size) | (rng.random(len(columns[name])) < 0.5)
            columns[name][~observed] = column.placeholder()
            columns[name + OBSERVED_SUFFIX] = observed
    return columns


# -- the program --------------------------------------------------------------------------------------


def _evaluated(
    model: Model, roles: SiteRoles, distributions: dict[str, str], theta: Theta, columns: Mapping[str, Any]
) -> _Found:
    """One run of the model; what its sites' distributions are is written into `distributions`."""
    summing, num_records = PartySums(model), len(next(iter(columns.values())))
    K, sites = roles.num_components, tuple(roles.parties)
    trace = trace_at(summing, theta, roles.component_site, columns, num_records)
    parts = {
        f"party_sum '{name}', part of party '{party}'": jnp.broadcast_to(part, (num_records,))
        for name, of_parties in summing.parts.items()
        for party, part in of_parties.items()
    }
    distributions |= {name: _distribution_in_words(trace[name]["fn"]) for name in sites}
    outside, doubtful = {}, {}
    for name in sites:
        outside[name], doubtful[name] = _outside(trace[name], (K, num_records))
    return _Found(log_densities(trace, sites, K, num_records), outside, doubtful, parts)


def _outside(site: Site, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """`_Found.outside` and `_Found.doubtful`."""
    nowhere, counts = jnp.zeros(shape, bool), _by_record(_mask(site["fn"]), shape)
    if (site["infer"] or {}).get("is_auxiliary"):
        return nowhere, nowhere  # a factor draws nothing
    value = jnp.asarray(site["value"])
    value = value.astype(int) if value.dtype == bool else value
    try:
        support = site["fn"].support
        inside, at_end = _by_record(jnp.asarray(support(value)), shape), _at_end(support, value, shape)
    except Exception:  # a distribution of the user's own may have no support to ask
        return nowhere, counts
    return ~inside & ~at_end & counts, (~inside | at_end) & counts


def _at_end(support: Any, value: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """NumPyro calls the support of a HalfNormal positive, but 0 has a density."""
    ends = [getattr(support, f"{end}_bound", None) for end in ("lower", "upper")]
    at = (_by_record(value == end, shape) for end in ends if end is not None and not support.is_discrete)
    return reduce(jnp.logical_or, at, jnp.zeros(shape, bool))


def _mask(fn: Any) -> jax.Array:
    """Where `handlers.mask` and `Distribution.mask` leave a log density as it is."""
    mask = jnp.ones((), bool)
    while fn is not None:
        if isinstance(fn, dist.MaskedDistribution):
            mask = mask & fn._mask
        fn = getattr(fn, "base_dist", None)
    return mask


def _by_record(array: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """[K, n]; axes of an event behind them are joined by "and"."""
    K, n = shape
    while array.shape not in ((), (1,), (n,), (1, n), (K, n), (K, 1), (1, 1)):
        array = array.all(-1)
    return jnp.broadcast_to(array, shape)


# -- supports -----------------------------------------------------------------------------------------


def _check_supports(runs: _Runs, found: _Found) -> None:
    for site, names in runs.roles.observes.items():
        impossible = _impossible(found, site)
        for name in names if impossible.any() else ():
            for value in _suspected(runs, name, impossible):
                if all(at.all() for at in _where_it_is(runs, site, name, value)):
                    raise ModelContractError(_too_narrow(runs, site, name, value))


def _impossible(found: _Found, site: str) -> np.ndarray:
    """Records that no component can have made, [n]."""
    return np.all(np.asarray(found.outside[site]) | ~np.isfinite(np.asarray(found.log_density[site])), axis=0)


def _suspected(runs: _Runs, name: str, impossible: np.ndarray) -> list[Any]:
    """Values of a column of which no record is possible, the first few."""
    column, observed = runs.columns[name], runs.columns.get(name + OBSERVED_SUFFIX, True)
    values = (value for value in _values(runs.schema.columns[name]) if impossible[(column == value) & observed].all())
    return [value for _, value in zip(range(_MOST_CONFIRMED), values, strict=False)]


def _where_it_is(runs: _Runs, site: str, name: str, value: Any) -> Iterator[np.ndarray]:
    """Which records are impossible when all have this value of the column, at other latents each time."""
    for seed in range(len(_SCALES)):
        others = stand_in_columns(runs.schema, len(runs.columns[name]), seed)
        columns = (others, runs.columns)[seed % 2]
        observed = (
            {name + OBSERVED_SUFFIX: np.ones(len(columns[name]), bool)} if name + OBSERVED_SUFFIX in columns else {}
        )
        yield _impossible(runs.at(seed, {**columns, name: np.full_like(columns[name], value), **observed}), site)


def _too_narrow(runs: _Runs, site: str, name: str, value: Any) -> str:
    column = runs.schema.columns[name]
    wider = _WIDER[column.kind].format(column.encoded_range[1] + 1)
    return (
        f"site '{site}' of party '{runs.roles.parties[site]}' gives {_in_words(column, value)} of column '{name}' no "
        f"probability, whatever the latents are: it draws from {runs.distributions[site]}, and the column's public "
        f"domain, as the model sees it, is {_domain_in_words(column)}. {wider}, "
        "narrow the column in the schema, or leave such records out of the site by numpyro.handlers.mask"
    )


_WIDER = {
    "categorical": "Give it a distribution over all codes, as dist.Categorical with {:.0f} probabilities",
    "binary": "Give it a distribution over all codes, as dist.Bernoulli, or dist.Categorical with {:.0f} probabilities",
    "count": "Give it a distribution over all of them, as dist.Poisson or dist.NegativeBinomial2",
    "real": "Give it a distribution over all of them, as dist.Beta or dist.Normal",
}


def _in_words(column: Column, value: Any) -> str:
    if column.num_values is None:
        low, *_, high = _values(column)
        return {low: "the lower end", high: "the upper end"}.get(value, "numbers inside the range")
    is_missing = value == column.num_values
    return f"{'the value' if column.kind == 'count' else 'code'} {value}{' (a missing value)' if is_missing else ''}"


def _domain_in_words(column: Column) -> str:
    """As the model sees it, and in the table's units."""
    if column.num_values is None:
        return f"all numbers between 0 and 1 ({column.describe()})"
    what = "whole numbers" if column.kind == "count" else "codes"
    return f"{what} 0 to {column.encoded_range[1]:.0f} ({column.describe()})"


def _distribution_in_words(fn: Any) -> str:
    """Its name and support, as "Categorical, with support 0 to 2"."""
    while isinstance(fn, dist.ExpandedDistribution | dist.MaskedDistribution | dist.Independent):
        fn = fn.base_dist
    name = type(fn).__name__.removesuffix("Probs").removesuffix("Logits")
    try:
        return f"{name}, with support {_support_in_words(fn.support)}"
    except Exception:  # bounds that latents give are unknown while it is traced, and a user's own may have none
        return name


def _support_in_words(support: Any) -> str:
    ends = [getattr(support, f"{end}_bound", None) for end in ("lower", "upper")]
    low, high = ("" if end is None else f"{float(np.max(end)):g}" for end in ends)
    if high:
        return f"{low or 0} to {high}"
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(support).__name__)
    return {"boolean": "0 and 1"}.get(kind.strip("_ "), kind.strip("_ "))


# -- arrays -------------------------------------------------------------------------------------------


def _check_reads(runs: _Runs, found: _Found, beyond: list[ArrayRead]) -> None:
    """Refuses a log density that changes with what is read beyond an array's end, as no entry is there."""
    if not beyond:
        return
    moved = runs.at(0, runs.columns, offset=1.0)
    for part, values in found.parts.items():
        party = part.rpartition("'")[0].rpartition("'")[2]
        _check_unmoved(
            runs, part, list(runs.schema.parties[party].columns), np.not_equal(values, moved.parts[part]), beyond
        )
    for site, values in found.log_density.items():
        same = np.isclose(np.asarray(values), moved.log_density[site], rtol=0, atol=0, equal_nan=True)
        what = f"site '{site}' of party '{runs.roles.parties[site]}'"
        _check_unmoved(runs, what, runs.roles.reads[site], np.asarray(~same.all(0)), beyond)


def _check_unmoved(runs: _Runs, what: str, names: Iterable[str], moved: np.ndarray, beyond: list[ArrayRead]) -> None:
    if not moved.any():
        return
    read, name, first = _blamed(runs, names, moved, beyond)
    sizes = " x ".join(map(str, read.sizes))
    line = f" (indexed at {read.line}: {read.line.text})" if read.line else ""
    by = (
        ""
        if name is None
        else (
            f" from code {first} of column '{name}' on, which has codes 0 to "
            f"{runs.schema.columns[name].encoded_range[1]:.0f} ({runs.schema.columns[name].describe()})"
        )
    )
    raise ModelContractError(
        f"{what} reads beyond the end of an array of {sizes}{by}{line}; jax would take the last entry without a word. "
        "Make the array as long as the column has codes, or say what is meant: jnp.take(..., mode='clip')"
    )


def _blamed(
    runs: _Runs, names: Iterable[str], moved: np.ndarray, beyond: list[ArrayRead]
) -> tuple[ArrayRead, str | None, int]:
    """An array that was read beyond its end, the column whose larger codes are the records that moved, and the first.

    None where the index is made of more than one column.
    """
    for name in names:
        values = runs.columns.get(name, np.zeros(0))
        if values.dtype.kind == "i" and moved.any() and (moved == (values >= values[moved].min())).all():
            first = int(values[moved].min())
            return next((read for read in beyond if first in read.sizes), beyond[0]), name, first
    return beyond[0], None, 0
