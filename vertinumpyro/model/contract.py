"""What a model must look like to be split between parties, checked before anything is computed or spent.

The contract: global latents theta; at most one discrete record-level latent z; every observed site inside a
`party_plate`, one value per record, and depending on that record and that party's columns only, given theta and
z. Where parties' contributions are added up by `party_sum`, `summed_outcome` has what else must hold. The number of
records may size the plates and nothing else: the split evaluates records one by one. All checks
trace or run the model on stand-in columns drawn from the public schema, so nothing here has seen a record.

Refuses a model in which a record's log density depends on the other records, or anything on how many there are.

The parties evaluate records one by one, so such a model would be fitted to another posterior than its own,
finite and without a word. That a record's log density reads no other record is shown from the model's operations
(`record_dependence`), whatever the values are: a mean of records is refused also where it matters to a rare record
alone. Numbers at random latents on stand-in records are compared besides: they find what depends on how many records
there are, and stand in for the operations that have no rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.domain_support import SiteRoles, check_domains
from vertinumpyro.model.dummy_data import (
    NUM_RECORDS,
    StandInRuns,
    check_signature,
    errors_on_stand_ins,
    stand_in_columns,
)
from vertinumpyro.model.mixture import is_mixture_of
from vertinumpyro.model.party_plate import MOST_COMPONENTS, RECORDS_PLATE, is_records
from vertinumpyro.model.party_sums import SummedOutcome, check_sums, summed_outcomes, with_parts
from vertinumpyro.model.record_dependence import reads_others, written_at
from vertinumpyro.model.site_trace import (
    DrawnAt,
    ObservedValues,
    Reads,
    SiteFacts,
    TracedModel,
    check_masks,
    column_roles,
    covariates_of,
    observed_values,
    provenance,
    traced,
)

# Standard deviations of the random latents: near 0 and far.
_SCALES = (0.1, 0.5, 1.0)

# What the prior is compared at: one record, as the parties evaluate the model, and a great many.
_NUMBERS = (1, 1009)

# Relative to the log density (or to 1), in double and in single precision. One program does the same arithmetic on a
# record whatever stands beside it.
_SAME_PROGRAM = {True: 1e-9, False: 1e-5}
# Two programs may round everything differently. 1e-4 leaves room for 12 of double precision's 16 digits to be lost,
# or for a part that the model computes in single precision.
_TWO_PROGRAMS = {True: 1e-4, False: 1e-2}

_INSTEAD = (
    "Use each record's own columns, and in place of what is computed from all records a public number from the "
    "schema, such as a centre and a scale from a column's bounds, in model_kwargs"
)
_SIZES_ONLY = (
    "num_records may size plates and nothing else; pass a public number in model_kwargs, which is the same "
    "wherever the model is evaluated"
)


def check_records_are_independent(runs: StandInRuns, parties: Mapping[str, str]) -> None:
    """Compare records with other records beside them, and with each one alone; and the prior at two numbers of records.

    :param parties: the party of each observed site.
    :raises ModelContractError: names the first site that differs, what makes it differ, and what to write.
    """
    _check_globals(runs)
    for name, found in runs.dependence().items():
        if reads_others(found, NUM_RECORDS):
            where = "records change places" if found.origin is None else written_at(found.origin)
            raise ModelContractError(_mixes_records(name, parties.get(name), where))
    for seed, scale in enumerate(_SCALES):
        theta = runs.theta(seed, scale)
        columns, others = runs.columns(2 * seed), runs.columns(2 * seed + 1)
        stays = np.random.default_rng(seed).permutation(NUM_RECORDS) % 2 == 0
        mixed = {name: np.where(stays, column, others[name]) for name, column in columns.items()}
        first, second, both = (runs.together(theta, data) for data in (columns, others, mixed))
        alone = runs.alone(theta, columns)
        for name in runs.of_records:
            if _differ(both[name], np.where(stays, first[name], second[name]), _SAME_PROGRAM[runs.in_double]):
                raise ModelContractError(_mixes_records(name, parties.get(name), None))
            if _differ(first[name], alone[name], _TWO_PROGRAMS[runs.in_double]):
                raise ModelContractError(_counts_records(name, parties.get(name)))


def _check_globals(runs: StandInRuns) -> None:
    """The prior at two numbers of records: the same program, or else the same numbers."""
    (text, few), (other_text, many) = (runs.globals_at(num_records) for num_records in _NUMBERS)
    for seed, scale in enumerate(_SCALES if text != other_text else ()):
        expected, found = (at(runs.theta(seed, scale)) for at in (few, many))
        for name, numbers in found.items():
            if any(_differ(*pair, _TWO_PROGRAMS[runs.in_double]) for pair in zip(numbers, expected[name], strict=True)):
                what = "the prior of" if len(numbers) > 1 else "the log density of the public site"
                raise ModelContractError(f"{what} '{name}' changes with num_records. {_SIZES_ONLY}")


def _mixes_records(name: str, party: str | None, where: str | None) -> str:
    by = "" if where is None else f" ({where})"
    return (
        f"site '{name}'{'' if party is None else f' of party {party!r}'}: its log density for a record changes when "
        f"other records are there{by}, but the parties evaluate records one by one. {_INSTEAD}"
    )


def _counts_records(name: str, party: str | None) -> str:
    what = (
        f"the prior of the component '{name}'"
        if party is None
        else f"site '{name}' of party '{party}': its log density"
    )
    return (
        f"{what} changes with num_records, or with a record's place among the others, but the parties evaluate "
        f"records one by one. {_SIZES_ONLY}"
    )


def _differ(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two arrays differ by more than rounding; the same NaN or infinity in both is no difference."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= tolerance * np.maximum(1.0, np.minimum(np.abs(a), np.abs(b)))
    return not np.all((a == b) | (np.isnan(a) & np.isnan(b)) | (close & np.isfinite(a) & np.isfinite(b)))


_NUM_STAND_INS = 2
_MANY_STAND_INS = 1009
# So many that two columns of two categories are never alike by chance.
_NUM_VALUES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """What the checks found out about a model. All of it is public.

    Every column of the schema is in exactly one of `modelled_columns`, `undrawable_columns`, `covariates` and
    `unused_columns`, each in the schema's order.

    :ivar latents: unconstrained shape of each global latent, sorted by name.
    :ivar component_site: the record-level discrete latent, or None (then there is one component).
    :ivar num_components: size K of its support.
    :ivar party_sites: observed sites of each party.
    :ivar party_latents: global latents that each party's sites read, derived from provenance.
    :ivar site_latents: global latents that each observed site reads.
    :ivar site_columns: columns that each observed site reads.
    :ivar component_latents: global latents that the prior of the component site reads.
    :ivar modelled_columns: columns that the model draws, and the site (and the place on its last axis) that draws
        each: an observed site whose obs is the column, or a deterministic site computed from one.
    :ivar modelled_masks: of these, columns for which the model also draws where they are missing, and the site that
        does it: its obs is the column's mask.
    :ivar complete_columns: of these, columns whose missing values the schema wants to see again (missing = "category"),
        and whose mask the model does not draw.
    :ivar undrawable_columns: columns that are modelled without being drawn, and the site that does it: its obs is
        computed from the column (log x), or it is a `numpyro.factor`.
    :ivar covariates: columns that some site's distribution reads, and no site models.
    :ivar unused_columns: columns that no site reads.
    :ivar site_covariates: columns that each observed site's distribution reads, other than the mask of a column that
        it observes. They must be known before the site can be drawn, modelled ones too.
    :ivar summed: the sites that depend on a `party_sum`, where the model has some; each counts as reading what its sum
        is made of, and a party's latents are those of its parts.
    :ivar derived: deterministic sites that follow from the latents alone, as one that `handlers.reparam` makes.
    """

    latents: Mapping[str, tuple[int, ...]]
    component_site: str | None
    num_components: int
    party_sites: Mapping[str, tuple[str, ...]]
    party_latents: Mapping[str, tuple[str, ...]]
    site_latents: Mapping[str, tuple[str, ...]]
    site_columns: Mapping[str, tuple[str, ...]]
    component_latents: tuple[str, ...]
    modelled_columns: Mapping[str, DrawnAt]
    modelled_masks: Mapping[str, str]
    complete_columns: tuple[str, ...]
    undrawable_columns: Mapping[str, str]
    covariates: tuple[str, ...]
    unused_columns: tuple[str, ...]
    site_covariates: Mapping[str, tuple[str, ...]]
    summed: tuple[SummedOutcome, ...] = ()
    derived: tuple[str, ...] = ()

    def is_observed_at(self, column: str, site: str) -> bool:
        """Whether a site that reads a column observes it, or something that is computed from it."""
        at = self.modelled_columns.get(column)
        return column not in self.site_covariates[site] or (at is not None and at.site == site)


def inspect_model(model: Model, schema: Schema, model_kwargs: Mapping[str, Any] | None = None) -> ModelStructure:
    """Check the contract and derive which party and which component read which parameter.

    :raises ModelContractError: names the site (and the parties) and says what to change.
    """
    with errors_on_stand_ins():
        return inspected(model, schema, model_kwargs or {})[0]


def inspected(model: Model, schema: Schema, model_kwargs: Mapping[str, Any]) -> tuple[ModelStructure, StandInRuns]:
    """`inspect_model`, with the model's programs on stand-ins; call it under `errors_on_stand_ins`."""
    check_signature(model, model_kwargs)
    given, model = model, partial(model, **model_kwargs)
    structure = _structure(model, schema)
    parties = {site: party for party, names in structure.party_sites.items() for site in names}
    component = [] if structure.component_site is None else [structure.component_site]
    runs = StandInRuns(
        model=model,
        schema=schema,
        latents=structure.latents,
        component_site=structure.component_site,
        num_components=structure.num_components,
        of_records=(*parties, *component),
    ).compiled()
    check_records_are_independent(runs, parties)
    if not is_mixture_of(given, schema):
        roles = _roles(structure, parties)
        check_masks(_readers(structure), {f"site '{site}'": names for site, names in roles.observes.items()}, schema)
        check_domains(model, schema, roles)
    return structure, runs


def _roles(structure: ModelStructure, parties: Mapping[str, str]) -> SiteRoles:
    reads = {
        s: tuple(n for n in names if not n.endswith(OBSERVED_SUFFIX)) for s, names in structure.site_columns.items()
    }
    return SiteRoles(
        latents=structure.latents,
        component_site=structure.component_site,
        num_components=structure.num_components,
        parties=parties,
        observes={site: tuple(n for n in reads[site] if structure.is_observed_at(n, site)) for site in parties},
        reads=reads,
    )


def _readers(structure: ModelStructure) -> dict[str, tuple[str, ...]]:
    """All columns that a part of a sum or a site reads, masks too; a site of a sum as the model has it, parts aside."""
    parts = {
        f"the part of party '{party}' of party_sum '{found.sum_name}'": columns
        for found in structure.summed
        for party, columns in found.columns.items()
    }
    return {**parts, **{f"site '{site}'": columns for site, columns in structure.site_columns.items()}}


def _structure(model: Model, schema: Schema) -> ModelStructure:
    """The checks that need no numbers."""
    columns = stand_in_columns(schema, _NUM_STAND_INS)
    few = _sites(model, schema)
    sites = few.sites
    component_site = _component_site(sites)
    check_sums(few, component_site, schema)
    num_components = sites[component_site].support_size if component_site else 1
    if num_components > MOST_COMPONENTS:
        raise ModelContractError(
            f"the discrete latent '{component_site}' has {num_components} values; use at most {MOST_COMPONENTS}"
        )
    party_sites = _party_sites(sites, schema)
    _check_draws(few)
    latents = _latent_shapes(sites)
    reads = provenance(model, latents, component_site, columns, _NUM_STAND_INS, few.sums)
    _check_data_reads(reads.columns, sites, schema)
    summed = summed_outcomes(model, schema, tuple(few.sums), reads, sites)
    reads = with_parts(reads, summed)
    observed = [site for names in party_sites.values() for site in names]
    roles = column_roles(
        list(schema.columns),
        reads,
        {site: sites[site].observes for site in observed},
        [site for site in observed if sites[site].is_factor],
        partial(_values, model, schema),
    )
    _check_masks(roles.modelled_masks, reads)
    wanted = [name for name, column in schema.columns.items() if column.mask_is_learned]
    return ModelStructure(
        latents=latents,
        component_site=component_site,
        num_components=num_components,
        party_sites=party_sites,
        party_latents={
            party: tuple(sorted(set().union(*(reads.latents[site] for site in names))))
            if not summed
            else tuple(sorted(set().union(*(outcome.latents.get(party, ()) for outcome in summed))))
            for party, names in party_sites.items()
        },
        site_latents={site: tuple(sorted(reads.latents[site])) for site in observed},
        site_columns={site: tuple(sorted(reads.columns[site])) for site in observed},
        component_latents=tuple(sorted(reads.latents[component_site])) if component_site else (),
        site_covariates={site: covariates_of(site, reads) for site in observed},
        summed=summed,
        derived=reads.derived,
        complete_columns=tuple(c for c in wanted if c in roles.modelled_columns and c not in roles.modelled_masks),
        **roles._asdict(),
    )


def _check_masks(masks: Mapping[str, str], reads: Reads) -> None:
    """Whether a value is missing may depend on much, but not on that value: where it is missing, nothing is there."""
    for column, site in masks.items():
        if column in reads.distribution_columns[site]:
            raise ModelContractError(
                f"site '{site}' draws whether '{column}' is missing, and its distribution reads '{column}' itself, of "
                "which missing records hold a placeholder; let it depend on the component or on other columns"
            )


def _values(model: Model, schema: Schema) -> ObservedValues:
    columns, others = (stand_in_columns(schema, _NUM_VALUES, seed) for seed in (1, 2))
    return observed_values(model, columns, others, _NUM_VALUES)


def _sites(model: Model, schema: Schema) -> TracedModel:
    """Sites and sums; refuses a model that has others, or other plates or latents, on another number of records."""
    few = traced(model, stand_in_columns(schema, _NUM_STAND_INS), _NUM_STAND_INS)
    more = traced(model, stand_in_columns(schema, _MANY_STAND_INS), _MANY_STAND_INS, densities=False)
    _check_plates(few, more)
    _check_handled(few)
    if few.error is not None:
        raise few.error
    _check_site_types(few.sites)
    _check_same_sites(few, more)
    return few


def _check_plates(few: TracedModel, more: TracedModel) -> None:
    for plate, size in few.plates.items():
        if not is_records(plate) and more.plates.get(plate, size) != size:
            inside = [name for name, site in few.sites.items() if plate in site.plates]
            raise ModelContractError(
                f"the size of plate '{plate}'{f' around {inside}' if inside else ''} changes with num_records; if it "
                f"holds the records, rename it to "
                f"'{RECORDS_PLATE}' around the record-level latent, and observe each party's columns under "
                "`with party_plate(<party>, num_records):` alone"
            )
    for plate, size in few.plates.items():
        if is_records(plate) and size != few.num_records:
            raise ModelContractError(
                f"the plate '{plate}' (or a party_plate) has size {size} for {few.num_records} stand-in records; "
                "write party_plate(<party>, num_records)"
            )


def _check_handled(few: TracedModel) -> None:
    if few.handled.collapsed:
        raise ModelContractError(
            "the model is under handlers.collapse; leave it out: a record-level discrete latent is summed out by "
            "itself, and for conjugate latents write the distribution that is left"
        )
    latents = {name for name, site in few.sites.items() if site.is_latent}
    for name in sorted(few.handled.substituted & latents):
        raise ModelContractError(
            f"latent '{name}' has its value from handlers.substitute or handlers.replay, which inference overrides; to "
            f"fix it write handlers.condition(model, data={{'{name}': ...}}), and to start there init_to_value"
        )


def _check_draws(few: TracedModel) -> None:
    if few.handled.draws:
        raise ModelContractError(
            "the model draws a random number that is no site of it, by numpyro.prng_key() or at a latent that "
            "handlers.block hides: each party and each step would have another; let the latent be seen, fix it by "
            "handlers.condition, or give a key of your own, as handlers.seed(model, 0)"
        )


def _check_same_sites(few: TracedModel, more: TracedModel) -> None:
    if more.error is not None:
        raise more.error
    for name in sorted(few.sites.keys() ^ more.sites.keys()):
        raise ModelContractError(
            f"whether there is a site '{name}' depends on num_records; in place of a site for each record write one "
            "site under `with party_plate(<party>, num_records):`, whose obs is the column"
        )
    for name, site in few.sites.items():
        other = more.sites[name]
        if site.is_latent and not site.in_records and site.unconstrained_shape != other.unconstrained_shape:
            raise ModelContractError(
                f"the shape of latent '{name}' changes with num_records; a latent is global, and what each record "
                "has of its own must be integrated out of the observed sites' distributions"
            )
        if site.support_size != other.support_size:
            raise ModelContractError(
                f"the number of values of discrete latent '{name}' changes with num_records; pass it in model_kwargs"
            )


def _check_site_types(sites: Mapping[str, SiteFacts]) -> None:
    for name, site in sites.items():
        if site.type in ("mutable", "param"):
            raise ModelContractError(
                f"site '{name}' is a numpyro {site.type}; the model may hold sample and deterministic sites "
                f"only (give '{name}' a prior, as handlers.lift does, or pass it as a constant in model_kwargs; for "
                "LocScaleReparam() write LocScaleReparam(0))"
            )
        if site.is_scaled:
            raise ModelContractError(
                f"the log density of site '{name}'{_of_party(site)} is scaled, by handlers.scale or by a "
                "plate's subsample_size; the split subsamples the records by itself, so drop both"
            )
        if site.in_records and site.type == "sample":
            _check_one_value_per_record(name, site)


def _check_one_value_per_record(name: str, site: SiteFacts) -> None:
    inner = [plate for plate in site.plates if not is_records(plate)]
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


def _of_party(site: SiteFacts) -> str:
    return "" if site.party is None else f" of party '{site.party}'"


def _component_site(sites: Mapping[str, SiteFacts]) -> str | None:
    """The one discrete record-level latent; refuses every latent that would make the split wrong."""
    latents = {name: site for name, site in sites.items() if site.is_latent}
    for name, site in latents.items():
        if site.is_discrete and not site.in_records:
            raise ModelContractError(
                f"discrete latent '{name}' is outside the '{RECORDS_PLATE}' plate; only a record-level "
                "discrete latent can be summed out"
            )
        if site.in_records and f"{name.removesuffix('_unobserved')}_observed" in sites.keys() - {name}:
            raise ModelContractError(
                f"site '{name.removesuffix('_unobserved')}'{_of_party(site)} has obs_mask, which makes a latent of "
                "each missing value; write `with handlers.mask(mask=...):` around the site, without obs_mask"
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


def _party_sites(sites: Mapping[str, SiteFacts], schema: Schema) -> dict[str, tuple[str, ...]]:
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


def _latent_shapes(sites: Mapping[str, SiteFacts]) -> dict[str, tuple[int, ...]]:
    """Unconstrained shapes of the global latents, sorted by name."""
    latents = sorted(name for name, site in sites.items() if site.is_latent and not site.in_records)
    if not latents:
        raise ModelContractError("the model has no global latent, so there is nothing to learn")
    return {name: sites[name].unconstrained_shape for name in latents}


def _check_data_reads(reads: Mapping[str, frozenset[str]], sites: Mapping[str, SiteFacts], schema: Schema) -> None:
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
