"""What a model must look like to be split between parties, checked before anything is computed or spent.

The contract: global latents theta; at most one discrete record-level latent z; every observed site inside a
`party_plate`, one value per record, and depending on that party's columns only, given theta and z. The number
of records may size the plates and nothing else: the split evaluates records one by one. All checks trace the
model on stand-in columns drawn from the public schema, so nothing here has seen a record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import Distribution, biject_to
from numpyro.infer.initialization import init_to_uniform

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.enumeration import Site, is_discrete
from vertinumpyro.model.party_plate import PARTY, RECORDS_PLATE
from vertinumpyro.model.provenance import provenance, traced_without_python_values

__all__ = ["ModelStructure", "inspect_model", "stand_in_columns"]

_NUM_STAND_INS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """What the checks found out about a model. All of it is public.

    latents:           unconstrained shape of each global latent, sorted by name.
    component_site:    the record-level discrete latent, or None (then there is one component).
    num_components:    size K of its support.
    party_sites:       observed sites of each party.
    party_latents:     global latents that each party's sites read, derived from provenance.
    site_latents:      global latents that each observed site reads.
    site_columns:      columns that each observed site reads.
    component_latents: global latents that the prior of the component site reads.
    """

    latents: Mapping[str, tuple[int, ...]]
    component_site: str | None
    num_components: int
    party_sites: Mapping[str, tuple[str, ...]]
    party_latents: Mapping[str, tuple[str, ...]]
    site_latents: Mapping[str, tuple[str, ...]]
    site_columns: Mapping[str, tuple[str, ...]]
    component_latents: tuple[str, ...]


def stand_in_columns(schema: Schema, num_records: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Valid columns drawn from the schema's public domains: what a party sees in place of another's data."""
    rng = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {}
    for name, column in schema.columns.items():
        columns[name] = column.example(num_records, rng)
        if column.missing == "mask":
            columns[f"{name}{OBSERVED_SUFFIX}"] = np.ones(num_records, bool)
    return columns


@dataclasses.dataclass(frozen=True)
class _SiteFacts:
    """The static facts of a traced site that the checks read."""

    type: str
    is_observed: bool
    is_discrete: bool
    plates: tuple[str, ...]
    is_scaled: bool
    party: str | None
    density_shape: tuple[int, ...]
    support_size: int
    unconstrained_shape: tuple[int, ...]

    @property
    def in_records(self) -> bool:
        return RECORDS_PLATE in self.plates

    @property
    def is_latent(self) -> bool:
        return self.type == "sample" and not self.is_observed


def inspect_model(model: Model, schema: Schema, model_kwargs: Mapping[str, Any] | None = None) -> ModelStructure:
    """Check the contract and derive which party and which component read which parameter.

    :raises ModelContractError: names the site (and the parties) and says what to change.
    """
    model = partial(model, **(model_kwargs or {}))
    columns = stand_in_columns(schema, _NUM_STAND_INS)
    sites = _site_facts(model, columns)
    _check_site_types(sites)
    component_site = _component_site(sites)
    party_sites = _party_sites(sites, schema)
    latents = _latent_shapes(sites)
    data_reads, latent_reads = provenance(model, latents, component_site, columns, _NUM_STAND_INS)
    _check_data_reads(data_reads, sites, schema)
    return ModelStructure(
        latents=latents,
        component_site=component_site,
        num_components=sites[component_site].support_size if component_site else 1,
        party_sites=party_sites,
        party_latents={
            party: tuple(sorted(set().union(*(latent_reads[site] for site in names))))
            for party, names in party_sites.items()
        },
        site_latents={site: tuple(sorted(latent_reads[site])) for names in party_sites.values() for site in names},
        site_columns={site: tuple(sorted(data_reads[site])) for names in party_sites.values() for site in names},
        component_latents=tuple(sorted(latent_reads[component_site])) if component_site else (),
    )


def _site_facts(model: Model, columns: Mapping[str, np.ndarray]) -> dict[str, _SiteFacts]:
    """Trace the model abstractly: nothing is compiled or drawn."""
    facts: dict[str, _SiteFacts] = {}
    arrays = _KnownColumns({name: jnp.asarray(column) for name, column in columns.items()})
    started = handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=_start)

    def run() -> None:
        trace = handlers.trace(started).get_trace(arrays, _NUM_STAND_INS)
        facts.update({name: _facts_of(site) for name, site in trace.items()})

    with traced_without_python_values():
        jax.eval_shape(run)
    return facts


def _start(site: Site) -> Any:
    """A value for a continuous latent, so that priors which cannot be drawn from (improper ones) work."""
    continuous = site["type"] == "sample" and not is_discrete(site["fn"])
    return init_to_uniform(site) if continuous else None


class _KnownColumns(dict[str, jax.Array]):
    """The stand-in columns; asking for any other is an error that names it."""

    def __missing__(self, name: str) -> Any:
        raise ModelContractError(f"the model reads column '{name}', which the schema does not list")


def _facts_of(site: Site) -> _SiteFacts:
    is_sample = site["type"] == "sample"
    discrete = is_sample and is_discrete(site["fn"])
    latent = is_sample and not site["is_observed"]
    return _SiteFacts(
        type=site["type"],
        is_observed=is_sample and site["is_observed"],
        is_discrete=discrete,
        plates=tuple(frame.name for frame in site.get("cond_indep_stack") or ()),
        is_scaled=is_sample and site.get("scale") is not None,
        party=((site.get("infer") or {}).get(PARTY)),
        density_shape=site["fn"].log_prob(site["value"]).shape if is_sample else (),
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


def _check_site_types(sites: Mapping[str, _SiteFacts]) -> None:
    for name, site in sites.items():
        if site.type in ("mutable", "param"):
            raise ModelContractError(
                f"site '{name}' is a numpyro {site.type}; the model may hold sample and deterministic sites "
                f"only (give '{name}' a prior, or pass it as a constant in model_kwargs)"
            )
        if site.is_scaled:
            raise ModelContractError(
                f"the log density of site '{name}'{_of_party(site)} is scaled, by handlers.scale or by a "
                "plate's subsample_size; the split subsamples the records by itself, so drop both"
            )
        if site.in_records and site.type == "sample":
            _check_one_value_per_record(name, site)


def _check_one_value_per_record(name: str, site: _SiteFacts) -> None:
    inner = [plate for plate in site.plates if plate != RECORDS_PLATE]
    if inner:
        raise ModelContractError(
            f"site '{name}'{_of_party(site)} is in the plates {inner} besides '{RECORDS_PLATE}'; a record's "
            "site has one log density, so use .to_event(...) instead of a plate"
        )
    if site.density_shape != (_NUM_STAND_INS,):
        raise ModelContractError(
            f"site '{name}'{_of_party(site)} has log densities of shape {site.density_shape} for "
            f"{_NUM_STAND_INS} records; a record's site has one log density (use .to_event(...) for vectors)"
        )


def _of_party(site: _SiteFacts) -> str:
    return "" if site.party is None else f" of party '{site.party}'"


def _component_site(sites: Mapping[str, _SiteFacts]) -> str | None:
    """The one discrete record-level latent; refuses every latent that would make the split wrong."""
    latents = {name: site for name, site in sites.items() if site.is_latent}
    for name, site in latents.items():
        if site.is_discrete and not site.in_records:
            raise ModelContractError(
                f"discrete latent '{name}' is outside the '{RECORDS_PLATE}' plate; only a record-level "
                "discrete latent can be summed out"
            )
        if site.in_records and not site.is_discrete:
            raise ModelContractError(
                f"latent '{name}'{_of_party(site)} is continuous and record-level; integrate it out of the "
                "observed sites' distributions, or make it global (and if it is data, give the site obs=...)"
            )
        if site.is_discrete and site.support_size == 0:
            raise ModelContractError(
                f"discrete latent '{name}' has no finite support that NumPyro can enumerate; use a Categorical"
            )
    found = [name for name, site in latents.items() if site.in_records]
    if len(found) > 1:
        raise ModelContractError(
            f"discrete latents {found} are both record-level; the model may have one (combine them into one "
            "Categorical over the product of their supports)"
        )
    return found[0] if found else None


def _party_sites(sites: Mapping[str, _SiteFacts], schema: Schema) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {party: [] for party in schema.parties}
    for name, site in sites.items():
        if not site.is_observed:
            continue
        if site.party is None and site.in_records:
            raise ModelContractError(
                f"observed site '{name}' is in no party_plate; put it under "
                f"`with party_plate(<party>, num_records):` with one of {list(schema.parties)}"
            )
        if site.party is None:
            continue  # a public factor of the prior
        if site.party not in found:
            raise ModelContractError(
                f"site '{name}' is in party_plate('{site.party}'), but the schema has no such party (it has "
                f"{list(schema.parties)})"
            )
        found[site.party].append(name)
    if not any(found.values()):
        raise ModelContractError("the model has no observed site inside a party_plate")
    return {party: tuple(names) for party, names in found.items()}


def _latent_shapes(sites: Mapping[str, _SiteFacts]) -> dict[str, tuple[int, ...]]:
    """Unconstrained shapes of the global latents, sorted by name."""
    latents = sorted(name for name, site in sites.items() if site.is_latent and not site.in_records)
    if not latents:
        raise ModelContractError("the model has no global latent, so there is nothing to learn")
    return {name: sites[name].unconstrained_shape for name in latents}


def _check_data_reads(reads: Mapping[str, frozenset[str]], sites: Mapping[str, _SiteFacts], schema: Schema) -> None:
    for name, columns in reads.items():
        owners = {column: schema.party_of(column.removesuffix(OBSERVED_SUFFIX)) for column in sorted(columns)}
        site = sites[name]
        for column, owner in owners.items():
            if site.is_latent:
                raise ModelContractError(
                    f"latent '{name}' reads column '{column}' of party '{owner}'; latents and their priors "
                    "must not depend on the data"
                )
            if site.party is None:
                raise ModelContractError(
                    f"site '{name}' reads column '{column}' of party '{owner}', but it is in no party_plate; "
                    f"put it under `with party_plate('{owner}', num_records):`"
                )
            if owner != site.party:
                raise ModelContractError(
                    f"site '{name}' of party '{site.party}' reads column '{column}' of party '{owner}'; "
                    "given the latents a site may read its own party's columns only"
                )
