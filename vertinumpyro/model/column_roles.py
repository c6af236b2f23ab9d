"""Which columns a model models, which it only reads, and which it leaves out: what a synthetic table can hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.primitives import Messenger

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.enumeration import Site, start_value
from vertinumpyro.model.party_plate import PARTY
from vertinumpyro.model.provenance import Reads

__all__ = [
    "ColumnRoles",
    "DrawnAt",
    "ObservedValues",
    "check_masks",
    "column_roles",
    "covariates_of",
    "observed_values",
]

# Half of float32's digits: exp(log x) is still x.
_TOLERANCE = 1e-3

Columns = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class DrawnAt:
    """Where a column stands among the sites of a draw, as `numpyro.infer.Predictive` returns them.

    :ivar site: a sample site that observes the column, or a deterministic site computed from such sites.
    :ivar index: place on the site's last axis, for a site that observes several columns as one vector.
    """

    site: str
    index: int | None = None

    def of(self, samples: Mapping[str, Any]) -> Any:
        """The column's part of `samples[site]`."""
        return samples[self.site] if self.index is None else samples[self.site][..., self.index]


class ColumnRoles(NamedTuple):
    """Every column of the schema is in one of these, the masks aside; `ModelStructure` says what each means."""

    modelled_columns: Mapping[str, DrawnAt]
    modelled_masks: Mapping[str, str]
    undrawable_columns: Mapping[str, str]
    covariates: tuple[str, ...]
    unused_columns: tuple[str, ...]


class ObservedValues(NamedTuple):
    """Values of record-level sites, and the stand-in columns that they must equal to be those columns."""

    sites: Columns
    columns: Columns


def column_roles(
    columns: Sequence[str],
    reads: Reads,
    observed: Mapping[str, str | None],
    factors: Sequence[str],
    values: Callable[[], ObservedValues],
) -> ColumnRoles:
    """Sort the schema's columns by what the model does with them.

    :param columns: names, in the schema's order.
    :param observed: the parties' observed sites, and the column or mask that is the very object observed, if one is.
    :param factors: those of them that `numpyro.factor` made: a density without a draw.
    :param values: called where a site observes something that was computed from columns.
    """
    of_value = {
        site: reads.distribution_columns[site] if site in factors else reads.value_columns[site] for site in observed
    }
    observing = {column: [site for site in observed if column in of_value[site]] for column in columns}
    modelled = {column: DrawnAt(site) for site, column in reversed(list(observed.items())) if column is not None}
    masks = {
        column: modelled[column + OBSERVED_SUFFIX].site for column in columns if column + OBSERVED_SUFFIX in modelled
    }
    computed = [column for column in columns if column not in modelled and set(observing[column]) - set(factors)]
    if computed:
        found = values()
        drawn = {column: _drawn_at(column, found) for column in computed}
        modelled |= {column: at for column, at in drawn.items() if at is not None}
    read = {column for site in observed for column in covariates_of(site, reads)}
    rest = [column for column in columns if column not in modelled and not observing[column]]
    return ColumnRoles(
        modelled_columns={column: modelled[column] for column in columns if column in modelled},
        modelled_masks={column: site for column, site in masks.items() if column in modelled},
        undrawable_columns={c: sites[0] for c, sites in observing.items() if sites and c not in modelled},
        covariates=tuple(column for column in rest if column in read),
        unused_columns=tuple(column for column in rest if column not in read),
    )


def covariates_of(site: str, reads: Reads) -> tuple[str, ...]:
    """Columns that the site's distribution reads; the mask of a column that the site itself observes is not one."""
    own = {column + OBSERVED_SUFFIX for column in reads.value_columns[site]}
    return tuple(sorted({column.removesuffix(OBSERVED_SUFFIX) for column in reads.distribution_columns[site] - own}))


def check_masks(readers: Mapping[str, Collection[str]], values: Mapping[str, Collection[str]], schema: Schema) -> None:
    """Refuses a site, or a part of a `party_sum`, that reads a masked column and not where it is missing.

    There the column holds a placeholder, the same for every table, which the site would take for a value.

    :param readers: the columns that each of them reads, by what it is in words.
    :param values: those of which it observes the value.
    :raises ModelContractError: names the site or the sum, the column, and the line to write.
    """
    for what, columns in readers.items():
        for column in columns:
            mask = column + OBSERVED_SUFFIX
            if column in schema.columns and schema.columns[column].masked and mask not in columns:
                raise ModelContractError(_without_mask(what, column, mask, column in values.get(what, ())))


def _without_mask(what: str, column: str, mask: str, is_observed: bool) -> str:
    line = f'`with numpyro.handlers.mask(mask=data["{mask}"]):`'
    instead = f'`jnp.where(data["{mask}"], data["{column}"], 0.5)`'
    fix = f"put the site under {line}" if is_observed else f"write {instead}, or put the site under {line}"
    return (
        f"{what} reads column '{column}', which may be missing, and not its mask: where it is missing it holds a "
        f"placeholder, which would be learned as a value; {fix}. Or choose another rule in the schema: missing = "
        '"forbid" where the tables are complete, "category" for codes'
    )


def observed_values(model: Model, columns: Columns, others: Columns, num_records: int) -> ObservedValues:
    """The record-level values of a run on `columns` in which every party's site has the value of a run on `others`.

    So a deterministic site has the value of a column of `others` where it is computed from what the sites
    drew, and not where it repeats the data.

    :param columns: stand-ins [num_records]; `others` are further ones.
    """

    def run(data: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, jax.Array]:
        started = handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=start_value)
        trace = handlers.trace(_Observe(started, observed)).get_trace(data, num_records)
        values = {name: jnp.asarray(site["value"]) for name, site in trace.items() if _is_candidate(site)}
        return {name: value for name, value in values.items() if value.shape[:1] == (num_records,)}

    at_others = jax.jit(run)(others, {})
    return ObservedValues({name: np.asarray(value) for name, value in jax.jit(run)(columns, at_others).items()}, others)


def _is_candidate(site: Site) -> bool:
    return site["type"] == "deterministic" or (site["type"] == "sample" and PARTY in (site["infer"] or {}))


class _Observe(Messenger):
    """Sets the parties' observed sites to other values than the data's."""

    def __init__(self, fn: Model, values: Mapping[str, Any]) -> None:
        super().__init__(fn)
        self._values = values

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "sample" and msg["name"] in self._values:
            msg["value"] = self._values[msg["name"]]


def _drawn_at(column: str, values: ObservedValues) -> DrawnAt | None:
    """The site whose value is the column, its namesake first."""
    stand_in = values.columns[column]
    for site in sorted(values.sites, key=lambda name: name != column):
        value = values.sites[site]
        if value.ndim == 1 and np.allclose(value, stand_in, rtol=_TOLERANCE, atol=_TOLERANCE):
            return DrawnAt(site)
        for index in range(value.shape[-1] if value.ndim == 2 else 0):
            if np.allclose(value[:, index], stand_in, rtol=_TOLERANCE, atol=_TOLERANCE):
                return DrawnAt(site, index)
    return None
