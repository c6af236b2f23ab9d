"""What a model with a `party_sum` must look like: one sum, parts of their own party, one observed site that reads it.

The site's density is given by the sum and by its own value alone, so that the gradient is one residual times scores
that never leave their party. Which residual is found out by comparing derivatives, so a site may be written in any way
that comes to the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import Model
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.enumeration import start_value
from vertinumpyro.model.outcomes import OUTCOMES, Outcome, outcomes_of
from vertinumpyro.model.party_sum import PartySums
from vertinumpyro.model.provenance import Reads
from vertinumpyro.model.site_facts import SiteFacts, TracedModel
from vertinumpyro.model.stand_ins import stand_in_columns

__all__ = ["SummedOutcome", "check_sums", "summed_outcome", "with_parts"]

_NUM_TRIED = 256
_LARGEST_TRIED = 6.0  # of eta, in the outcome's own scale
_TOLERANCE = 1e-4  # of the residual's unit; single precision keeps three digits more


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummedOutcome:
    """The observed site that depends on a `party_sum`. All of it is public.

    sum_name: of the sum.
    site:     the observed site, and `party` whose it is.
    latents:  global latents that each contributing party's part reads.
    columns:  columns that each of these parts reads.
    outcome:  the site's distribution, given the sum.
    """

    sum_name: str
    site: str
    party: str
    latents: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, tuple[str, ...]]
    outcome: Outcome


def check_sums(few: TracedModel, component_site: str | None, schema: Schema) -> str | None:
    """The name of the model's one sum; None where it has none.

    :raises ModelContractError: it has several, one beside a discrete latent, or one with parts of other shapes.
    """
    if not few.sums:
        return None
    if len(few.sums) > 1:
        raise ModelContractError(
            f"the model has the party_sums {sorted(few.sums)}, and a fit takes one; fit a model for each outcome"
        )
    ((name, parts),) = few.sums.items()
    if component_site is not None:
        raise ModelContractError(
            f"the model has the party_sum '{name}' and the discrete latent '{component_site}'; a fit takes one of "
            "them, so drop the latent or write each party's own observed sites"
        )
    for party, shape in parts.items():
        if party not in schema.parties:
            raise ModelContractError(
                f"party_sum '{name}' has a part of '{party}', but the schema has no such party (it has "
                f"{list(schema.parties)})"
            )
        if shape not in ((), (few.num_records,)):
            raise ModelContractError(
                f"party_sum '{name}': the part of party '{party}' has shape {shape} for {few.num_records} records; it "
                "is one number for each record, as x @ w with x [num_records, d] and w [d]"
            )
    return name


def summed_outcome(
    model: Model, schema: Schema, name: str, reads: Reads, sites: Mapping[str, SiteFacts]
) -> SummedOutcome:
    """The site that depends on the sum, and what it is.

    :param reads: with the sum as an input of its own.
    :raises ModelContractError: names the sum, the party, the site and the fix.
    """
    _check_parts(name, reads, schema)
    site = _site_of(name, reads, sites)
    party = sites[site].party
    assert party is not None  # else it is in no party_plate, which was refused
    _check_reads_the_sum_alone(name, site, party, reads)
    parts = [of_party for of_sum, of_party in reads.part_latents if of_sum == name]
    return SummedOutcome(
        sum_name=name,
        site=site,
        party=party,
        latents={p: tuple(sorted(reads.part_latents[name, p])) for p in parts},
        columns={p: tuple(sorted(reads.part_columns[name, p])) for p in parts},
        outcome=_outcome(model, schema, name, sites[site], site),
    )


def with_parts(reads: Reads, found: SummedOutcome) -> Reads:
    """Reads in which the site also reads what the sum is made of, as it does on pooled data."""
    columns = frozenset().union(*(set(own) for own in found.columns.values()))
    latents = frozenset().union(*(set(own) for own in found.latents.values()))

    def more(of_sites: Mapping[str, frozenset[str]], new: frozenset[str]) -> dict[str, frozenset[str]]:
        return {**of_sites, found.site: of_sites[found.site] | new}

    return reads._replace(
        columns=more(reads.columns, columns),
        distribution_columns=more(reads.distribution_columns, columns),
        latents=more(reads.latents, latents),
    )


def _check_parts(name: str, reads: Reads, schema: Schema) -> None:
    for (_, party), columns in reads.part_columns.items():
        for column in sorted(columns):
            owner = schema.party_of(column.removesuffix(OBSERVED_SUFFIX))
            if owner != party:
                raise ModelContractError(
                    f"party_sum '{name}': the part of party '{party}' reads column '{column}' of party '{owner}'; a "
                    f"part reads its own party's columns only, so move the term to the part of '{owner}'"
                )


def _site_of(name: str, reads: Reads, sites: Mapping[str, SiteFacts]) -> str:
    """The one observed site of the parties, which reads the sum."""
    for site, sums in reads.sums.items():
        if sums and sites[site].is_latent:
            raise ModelContractError(
                f"latent '{site}' reads party_sum '{name}'; latents and their priors must not depend on the data"
            )
        if reads.value_sums[site]:
            raise ModelContractError(
                f"site '{site}' observes a value that is computed from party_sum '{name}'; observe a column, and let "
                "the distribution read the sum"
            )
    reading = [site for site, sums in reads.sums.items() if sums]
    observed = [site for site, facts in sites.items() if facts.is_observed and facts.party is not None]
    if not reading:
        raise ModelContractError(
            f"no observed site reads party_sum '{name}'; observe the outcome's column with it, as "
            "numpyro.sample('y', dist.Bernoulli(logits=eta), obs=data['y']) under its party's party_plate"
        )
    others = [site for site in (*observed, *reading) if site != reading[0]]
    if others:
        raise ModelContractError(
            f"site '{reading[0]}' reads party_sum '{name}', and the model observes {sorted(set(others))} besides; a "
            "model with a party_sum observes one site: fit a model for each outcome"
        )
    facts = sites[reading[0]]
    if facts.party is None or facts.is_factor:
        where = "is a numpyro.factor" if facts.is_factor else "is in no party_plate"
        raise ModelContractError(
            f"site '{reading[0]}' reads party_sum '{name}' and {where}; observe the outcome's column under "
            "`with party_plate(<its party>, num_records):`"
        )
    return reading[0]


def _check_reads_the_sum_alone(name: str, site: str, party: str, reads: Reads) -> None:
    latents = sorted(reads.latents[site])
    if latents:
        raise ModelContractError(
            f"site '{site}' of party '{party}' reads latents {latents} besides party_sum '{name}'; what belongs to the "
            f"predictor goes into the sum's part of '{party}', and any other parameter, as a scale, must be a public "
            "number"
        )
    columns = sorted(reads.distribution_columns[site])
    masks = [column for column in columns if column.endswith(OBSERVED_SUFFIX)]
    if masks:
        raise ModelContractError(
            f"site '{site}' of party '{party}' is masked by {masks}, but a record whose outcome is missing would still "
            "send the other parties' scores; leave such records out of the data set"
        )
    if columns:
        raise ModelContractError(
            f"the distribution of site '{site}' of party '{party}' reads columns {columns} besides party_sum '{name}'; "
            f"put what they add into the sum's part of '{party}'"
        )


def _outcome(model: Model, schema: Schema, name: str, facts: SiteFacts, site: str) -> Outcome:
    """Which outcome has the site's derivative by the sum, at stand-in records and random values of the sum."""
    largest = None if facts.observes is None else schema.columns[facts.observes].encoded_range[1]
    with compat.precision(True):
        tried = _Tried.create(model, schema, name, site)
        for outcome in outcomes_of(tried.fn, largest):
            if tried.is_derivative_of(outcome):
                return outcome
    written = ", ".join(kind.instead for kind in OUTCOMES)
    raise ModelContractError(
        f"site '{site}' of party '{facts.party}' reads party_sum '{name}' in a way that no secure step computes "
        f"({type(tried.fn).__name__}); write one of {written} with eta the very sum, and factors or offsets inside its "
        "parts"
    )


@dataclasses.dataclass(frozen=True)
class _Tried:
    """The site's distribution and its log density as a function of the sum."""

    fn: Any
    value: jax.Array
    log_prob: Any

    @classmethod
    def create(cls, model: Model, schema: Schema, name: str, site: str) -> _Tried:
        columns = stand_in_columns(schema, _NUM_TRIED, seed=3)

        def at(eta: jax.Array) -> Any:
            run = PartySums(model, {name: eta})
            started = handlers.substitute(handlers.seed(run, rng_seed=0), substitute_fn=start_value)
            return handlers.trace(started).get_trace(columns, _NUM_TRIED)[site]

        found = at(jnp.zeros(_NUM_TRIED))

        def log_prob(eta: jax.Array) -> jax.Array:
            traced = at(eta)
            return traced["fn"].log_prob(traced["value"]).sum()

        return cls(found["fn"], jnp.asarray(found["value"]), log_prob)

    def is_derivative_of(self, outcome: Outcome) -> bool:
        """Whether the model's own derivative is the outcome's residual, to single precision."""
        eta = jnp.asarray(np.random.default_rng(4).uniform(-_LARGEST_TRIED, _LARGEST_TRIED, _NUM_TRIED)) / outcome.scale
        own, expected = jax.grad(self.log_prob)(eta), outcome.residual(eta, self.value)
        return bool(jnp.all(jnp.abs(own - expected) <= _TOLERANCE * (1 + jnp.abs(expected))))
