"""The static facts of a model's sites and plates, found by tracing it abstractly on dummy columns: what each of them
reads, which columns the model models, only reads or leaves out, and so what a synthetic table can hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to
from numpyro.ops.provenance import eval_provenance
from numpyro.primitives import _PYRO_STACK, Messenger

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model, Theta
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.enumeration import Site, is_discrete, log_density_of, start_value, trace_at
from vertinumpyro.model.party_plate import PARTY, PartySums, is_records
from vertinumpyro.model.user_code import text_of, where


@dataclasses.dataclass(frozen=True)
class SiteFacts:
    """What the checks read of a site.

    :ivar observes: the column that is the very object observed, if one is.
    """

    type: str
    is_observed: bool
    is_discrete: bool
    plates: tuple[str, ...]
    is_scaled: bool
    party: str | None
    observes: str | None
    is_factor: bool
    density_shape: tuple[int, ...]
    support_size: int
    unconstrained_shape: tuple[int, ...]

    @property
    def in_records(self) -> bool:
        """Whether there is one of it for each record."""
        return any(map(is_records, self.plates))

    @property
    def is_latent(self) -> bool:
        """Whether it is a sample site without data."""
        return self.type == "sample" and not self.is_observed


@dataclasses.dataclass(frozen=True)
class TracedModel:
    """A model's sites on `num_records` records, its plates' sizes, and what the model raised, if it did.

    A model that raised has no sites here, but the plates that it had opened.

    :ivar sums: the shape of every party's part of each `party_sum`.
    :ivar handled: what handlers within the model did to its sites.
    """

    num_records: int
    sites: Mapping[str, SiteFacts]
    plates: Mapping[str, int]
    error: Exception | None
    sums: Mapping[str, Mapping[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    handled: Handled = dataclasses.field(default_factory=lambda: Handled())


class Handled(Messenger):
    """What NumPyro's handlers within a model did that would be without a word: set beside the model, it looks at sites.

    :ivar substituted: latents that were given a value and stay latents, which inference overrides.
    :ivar draws: whether the model draws from a key at no site of its own, and so another number at each seed.
    :ivar collapsed: whether it sums out latents by itself.
    """

    def __init__(self, fn: Model | None = None) -> None:
        super().__init__(fn)
        self.substituted: set[str] = set()
        self.draws = self.collapsed = False

    def process_message(self, msg: Site) -> None:
        """Looks at a site before the library's handlers do."""
        self.collapsed |= any(isinstance(handler, handlers.collapse) for handler in _PYRO_STACK)
        if msg["type"] == "prng_key":
            self.draws |= msg["value"] is None
        elif msg["type"] == "control_flow":
            given = [of for kind, of in msg["kwargs"]["substitute_stack"] if kind != "condition"]
            self.substituted.update(name for of in given if isinstance(of, Mapping) for name in of)
        elif msg["type"] == "sample" and not msg["is_observed"] and not msg.get("_control_flow_done"):
            self.substituted.update([] if msg["value"] is None else [msg["name"]])


def traced(model: Model, columns: Mapping[str, np.ndarray], num_records: int, *, densities: bool = True) -> TracedModel:
    """Trace the model abstractly: nothing is compiled or drawn.

    :param densities: whether anybody asks for `SiteFacts.density_shape`, which costs as much as the rest.
    """
    sites: dict[str, SiteFacts] = {}
    plates: dict[str, int] = {}
    handled = Handled(model)
    sums = PartySums(handled)
    recorder = handlers.trace(handlers.substitute(handlers.seed(sums, rng_seed=0), substitute_fn=start_value))

    def run(columns: Mapping[str, Any]) -> None:
        try:
            recorder.get_trace(_KnownColumns(columns), num_records)
        finally:
            plates.update({n: site["args"][0] for n, site in recorder.trace.items() if site["type"] == "plate"})
        sites.update({name: _facts_of(site, columns, densities) for name, site in recorder.trace.items()})

    try:
        jax.eval_shape(run, {name: jnp.asarray(column) for name, column in columns.items()})
    except Exception as error:  # the caller knows more of the model, and raises it
        return TracedModel(num_records, {}, plates, error, handled=handled)
    shapes = {name: {party: part.shape for party, part in parts.items()} for name, parts in sums.parts.items()}
    return TracedModel(num_records, sites, plates, None, shapes, handled)


class _KnownColumns(dict[str, Any]):
    """The stand-in columns; asking for any other is an error that names it."""

    def __missing__(self, name: str) -> Any:
        raise ModelContractError(f"the model reads column '{name}', which the schema does not list")


def _facts_of(site: Site, columns: Mapping[str, Any], densities: bool) -> SiteFacts:
    is_sample = site["type"] == "sample"
    discrete = is_sample and is_discrete(site["fn"])
    latent = is_sample and not site["is_observed"]
    infer = site.get("infer") or {}
    return SiteFacts(
        type=site["type"],
        is_observed=is_sample and site["is_observed"],
        is_discrete=discrete,
        plates=tuple(frame.name for frame in site.get("cond_indep_stack") or ()),
        is_scaled=is_sample and site.get("scale") is not None,
        party=infer.get(PARTY),
        observes=next((name for name, column in columns.items() if column is site["value"]), None),
        is_factor=is_sample and bool(infer.get("is_auxiliary")),
        density_shape=log_density_of(site["name"], site).shape if is_sample and densities else (),
        support_size=_support_size(site["fn"]) if latent and discrete else 0,
        unconstrained_shape=biject_to(site["fn"].support).inv(site["value"]).shape if latent and not discrete else (),
    )


def _support_size(distribution: Distribution) -> int:
    """Number of values that NumPyro can enumerate; 0 where it cannot."""
    if not distribution.has_enumerate_support:
        return 0
    try:
        return int(distribution.enumerate_support(expand=False).shape[0])
    except (NotImplementedError, jax.errors.ConcretizationTypeError):
        return 0


SiteReads = Mapping[str, frozenset[str]]
"""For each sample site, names of the columns or of the latents that something of it depends on."""

PartReads = Mapping[tuple[str, str], frozenset[str]]
"""The same for each part of a `party_sum`, by the names of the sum and of the party."""


# What of a site is asked for, in the order in which `_parts` computes it.
_PARTS = ("value", "density", "distribution")


class Reads(NamedTuple):
    """What each sample site depends on.

    columns:              columns that its log density or its value reads.
    value_columns:        columns that its value reads: the observation.
    distribution_columns: columns that its distribution reads, mask included: the covariates.
    latents:              global latents that its log density or its value reads.
    sums:                 each `party_sum` that its log density or its value reads; what the sum is made of is not
        counted as read by the site.
    value_sums:           those that its value reads.
    part_columns:         columns that each part of a sum reads, by the names of the sum and of the party.
    part_latents:         global latents that it reads.
    part_sums:            other sums that it reads.
    derived:              deterministic sites that read latents, and neither columns, sums nor the component.
    """

    columns: SiteReads
    value_columns: SiteReads
    distribution_columns: SiteReads
    latents: SiteReads
    sums: SiteReads
    value_sums: SiteReads
    part_columns: PartReads
    part_latents: PartReads
    part_sums: PartReads
    derived: tuple[str, ...]


def provenance(
    model: Model,
    latents: Mapping[str, tuple[int, ...]],
    component_site: str | None,
    columns: Mapping[str, np.ndarray],
    num_records: int,
    sums: Iterable[str] = (),
) -> Reads:
    """Who reads what, from tracing the model with its component enumerated.

    :param latents: unconstrained shape of each global latent.
    :param sums: names of the model's party_sums, each of which holds one number for each record.
    :raises ModelContractError: if the model cannot be traced with the component enumerated.
    """

    def run(columns: Mapping[str, Any], theta: Theta, totals: Mapping[str, jax.Array], component: Theta) -> Any:
        summing = PartySums(model, totals)
        trace = trace_at(summing, theta, component_site, columns, num_records, shift=component["z"])
        sites = {name: _parts(site) for name, site in trace.items() if site["type"] == "sample"}
        derived = {name: {"value": site["value"]} for name, site in trace.items() if site["type"] == "deterministic"}
        parts = {(name, party): {"part": part} for name, of in summing.parts.items() for party, part in of.items()}
        return sites, parts, derived

    inputs = {
        "columns": {name: jnp.asarray(column) for name, column in columns.items()},
        "latents": {name: jnp.zeros(shape) for name, shape in latents.items()},
        "sums": {name: jnp.zeros(num_records) for name in sums},
        "component": {"z": jnp.zeros((), int)},
    }
    try:
        sites, parts, derived = _reads(run, inputs)
    except (TypeError, ValueError) as error:
        if isinstance(error, ModelContractError) or component_site is None:
            raise
        raise ModelContractError(
            f"the model raises {type(error).__name__}{where(error)} when its component '{component_site}' is "
            f"enumerated as an array [K, 1] ({text_of(error)}); index parameters by the component, as in a[z], and let "
            "the other axes broadcast"
        ) from error

    def only(found: Mapping[Any, Any], kind: str, *parts: str) -> dict[Any, frozenset[str]]:
        return {
            site: frozenset(name for part in parts for of_kind, name in of_site[part] if of_kind == kind)
            for site, of_site in found.items()
        }

    return Reads(
        columns=only(sites, "columns", *_PARTS),
        value_columns=only(sites, "columns", "value"),
        distribution_columns=only(sites, "columns", "distribution"),
        latents=only(sites, "latents", *_PARTS),
        sums=only(sites, "sums", *_PARTS),
        value_sums=only(sites, "sums", "value"),
        part_columns=only(parts, "columns", "part"),
        part_latents=only(parts, "latents", "part"),
        part_sums=only(parts, "sums", "part"),
        derived=tuple(name for name, of in derived.items() if {kind for kind, _ in of["value"]} == {"latents"}),
    )


def _parts(site: Site) -> dict[str, Any]:
    fn, value = site["fn"], site["value"]
    without_data = fn.log_prob(jnp.ones_like(value)) if site["is_observed"] else ()
    return dict(zip(_PARTS, (value, log_density_of(site["name"], site), without_data), strict=True))


def _reads(
    outcomes: Callable[..., Any], inputs: Mapping[str, Mapping[str, jax.Array]]
) -> list[dict[Any, dict[str, frozenset[tuple[str, str]]]]]:
    """For each site, and each part of a sum, and for each piece of it, the inputs (kind, name) that it depends on."""
    # Keywords of `eval_provenance` may not be called as its own parameter, so each name gets a prefix.
    prefixed = {f"{kind}:{name}": array for kind, of_kind in inputs.items() for name, array in of_kind.items()}
    found = eval_provenance(
        lambda **kw: outcomes(*({name: kw[f"{kind}:{name}"] for name in inputs[kind]} for kind in inputs)),
        **prefixed,
    )

    def names(of_part: Any) -> frozenset[tuple[str, str]]:
        sets = jax.tree_util.tree_leaves(of_part, is_leaf=lambda leaf: isinstance(leaf, frozenset))
        pairs = (name.partition(":") for name in frozenset().union(*sets))
        return frozenset((kind, name) for kind, _, name in pairs)

    return [{site: {part: names(of) for part, of in parts.items()} for site, parts in kind.items()} for kind in found]


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
