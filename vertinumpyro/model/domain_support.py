"""Refuses a model that cannot speak of every value in its columns' public domains.

A distribution of three categories for a column of four codes, or three coefficients for them, raises nothing in jax:
the last code is taken for the one before, and the fit ends with a wrong model. So the sites are evaluated on stand-in
records in which every column takes its whole public domain. Refused is what is wrong whatever the latents and the other
columns are: a value outside the support of the site that draws it, or of probability zero, and a log density that
depends on what lies beyond the end of an array. Records that a mask takes out do not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from vertinumpyro.core.compat import compiled_fast
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model, Theta
from vertinumpyro.data import OBSERVED_SUFFIX, Column, Schema
from vertinumpyro.model.array_reads import ArrayRead, TracedProgram
from vertinumpyro.model.enumeration import Site, log_densities, trace_at
from vertinumpyro.model.party_sum import PartySums
from vertinumpyro.model.stand_ins import stand_in_columns

__all__ = ["SiteRoles", "check_domains"]

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
