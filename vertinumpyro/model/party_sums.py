"""What a model with `party_sum`s must look like, parts of their own party and for each sum one site that observes it;
and what a party computes of them on its own columns, with the derivatives by its latents.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers

from vertinumpyro.core import compat
from vertinumpyro.core.errors import ModelContractError
from vertinumpyro.core.types import MOST_OUTCOMES, Contribution, Model, Theta
from vertinumpyro.data import OBSERVED_SUFFIX, Schema
from vertinumpyro.model.dummy_data import stand_in_columns
from vertinumpyro.model.enumeration import start_value, trace_at
from vertinumpyro.model.outcomes import OUTCOMES, Outcome, elsewhere, outcomes_of
from vertinumpyro.model.party_plate import PartySums
from vertinumpyro.model.site_trace import Reads, SiteFacts, TracedModel

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
    observed: the column that the site observes; None where it is a function of columns.
    """

    sum_name: str
    site: str
    party: str
    latents: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, tuple[str, ...]]
    outcome: Outcome
    observed: str | None = None


def check_sums(few: TracedModel, component_site: str | None, schema: Schema) -> None:
    """Refuses too many sums, some beside a discrete latent, and parts of nobody or of other shapes.

    :raises ModelContractError: names the sum, the party and the fix.
    """
    if len(few.sums) > MOST_OUTCOMES:
        raise ModelContractError(
            f"the model has {len(few.sums)} party_sums, {sorted(few.sums)}, and a fit takes {MOST_OUTCOMES} at most; "
            "fit two models"
        )
    for name, parts in few.sums.items():
        if component_site is not None:
            raise ModelContractError(
                f"the model has the party_sum '{name}' and the discrete latent '{component_site}'; a fit takes one of "
                "them, so drop the latent or write each party's own observed sites"
            )
        for party, shape in parts.items():
            _check_part(name, party, shape, few.num_records, schema)


def _check_part(name: str, party: str, shape: tuple[int, ...], num_records: int, schema: Schema) -> None:
    if party not in schema.parties:
        raise ModelContractError(
            f"party_sum '{name}' has a part of '{party}', but the schema has no such party (it has "
            f"{list(schema.parties)})"
        )
    if shape not in ((), (num_records,)):
        raise ModelContractError(
            f"party_sum '{name}': the part of party '{party}' has shape {shape} for {num_records} records; it "
            "is one number for each record, as x @ w with x [num_records, d] and w [d]"
        )


def summed_outcomes(
    model: Model, schema: Schema, names: Sequence[str], reads: Reads, sites: Mapping[str, SiteFacts]
) -> tuple[SummedOutcome, ...]:
    """For each sum the site that depends on it, and what it is; none where there is no sum.

    :param reads: with every sum as an input of its own.
    :raises ModelContractError: names the sum, the party, the site and the fix.
    """
    if not names:
        return ()
    _check_parts(reads, schema)
    _check_sites(names, reads, sites)
    return tuple(_summed_outcome(model, schema, name, reads, sites) for name in names)


def _summed_outcome(
    model: Model, schema: Schema, name: str, reads: Reads, sites: Mapping[str, SiteFacts]
) -> SummedOutcome:
    (site,) = (site for site, sums in reads.sums.items() if name in sums)
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
        observed=sites[site].observes,
    )


def with_parts(reads: Reads, summed: Sequence[SummedOutcome]) -> Reads:
    """Reads in which each site also reads what its sum is made of, as it does on pooled data."""

    def more(
        of_sites: Mapping[str, frozenset[str]], parts: Callable[[SummedOutcome], Mapping[str, tuple[str, ...]]]
    ) -> dict[str, frozenset[str]]:
        new = {found.site: of_sites[found.site].union(*parts(found).values()) for found in summed}
        return {**of_sites, **new}

    return reads._replace(
        columns=more(reads.columns, lambda found: found.columns),
        distribution_columns=more(reads.distribution_columns, lambda found: found.columns),
        latents=more(reads.latents, lambda found: found.latents),
    )


def _check_parts(reads: Reads, schema: Schema) -> None:
    for (name, party), columns in reads.part_columns.items():
        for column in sorted(columns):
            owner = schema.party_of(column.removesuffix(OBSERVED_SUFFIX))
            if owner != party:
                raise ModelContractError(
                    f"party_sum '{name}': the part of party '{party}' reads column '{column}' of party '{owner}'; a "
                    f"part reads its own party's columns only, so move the term to the part of '{owner}'"
                )
    for (name, party), others in reads.part_sums.items():
        if others:
            raise ModelContractError(
                f"party_sum '{name}': the part of party '{party}' reads party_sum '{min(others)}', which no party "
                f"knows; write the terms of '{min(others)}' into each party's part of '{name}'"
            )


def _check_sites(names: Sequence[str], reads: Reads, sites: Mapping[str, SiteFacts]) -> None:
    """Every sum has one observed site of a party, which reads no other sum, and there is no site besides."""
    for site, sums in reads.sums.items():
        _check_site(site, sorted(sums), sorted(reads.value_sums[site]), sites[site])
    for name in names:
        reading = [site for site, sums in reads.sums.items() if name in sums]
        if not reading:
            raise ModelContractError(
                f"no observed site reads party_sum '{name}'; observe the outcome's column with it, as "
                "numpyro.sample('y', dist.Bernoulli(logits=eta), obs=data['y']) under its party's party_plate"
            )
        if len(reading) > 1:
            raise ModelContractError(
                f"sites {sorted(reading)} read party_sum '{name}', and each observed site needs a sum of its own; call "
                "party_sum once for each, by other names, and give it the same parts where the predictor is the same"
            )
    observed = [site for site, facts in sites.items() if facts.is_observed and facts.party is not None]
    others = sorted(site for site in observed if not reads.sums[site])
    if others:
        raise ModelContractError(
            f"the model has the party_sums {sorted(names)} and observes {others} besides, which read none; give each "
            f"a sum of its own, if of one part, as party_sum('{others[0]}', {{'{sites[others[0]].party}': ...}}), or "
            "fit another model"
        )


def _check_site(site: str, sums: Sequence[str], of_value: Sequence[str], facts: SiteFacts) -> None:
    if not sums:
        return
    if facts.is_latent:
        raise ModelContractError(
            f"latent '{site}' reads party_sum '{sums[0]}'; latents and their priors must not depend on the data"
        )
    if of_value:
        raise ModelContractError(
            f"site '{site}' observes a value that is computed from party_sum '{of_value[0]}'; observe a column, and "
            "let the distribution read the sum"
        )
    if facts.party is None or facts.is_factor:
        where = "is a numpyro.factor" if facts.is_factor else "is in no party_plate"
        raise ModelContractError(
            f"site '{site}' reads party_sum '{sums[0]}' and {where}; observe the outcome's column under "
            "`with party_plate(<its party>, num_records):`"
        )
    if len(sums) > 1:
        raise ModelContractError(
            f"site '{site}' of party '{facts.party}' reads the party_sums {list(sums)}, and no secure step combines "
            "two; add their parts up, party by party, in one party_sum"
        )


def _check_reads_the_sum_alone(name: str, site: str, party: str, reads: Reads) -> None:
    latents = sorted(reads.latents[site])
    if latents:
        raise ModelContractError(
            f"site '{site}' of party '{party}' reads latents {latents} besides party_sum '{name}'; what belongs to the "
            f"predictor goes into the sum's part of '{party}', and any other parameter, as a scale, must be a public "
            "number; MarginalGLM learns a normal's scale, a count's and an amount's concentration, and a share of zeros"
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
            f"put what they add into the sum's part of '{party}', of a factor of a rate, as an exposure, the logarithm"
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
        "parts" + (f"; {fix}" if (fix := elsewhere(type(tried.fn).__name__)) else "")
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


Columns = Mapping[str, Any]


class Standardisation(NamedTuple):
    """Public numbers by which scores of a model with one `party_sum` are moved and scaled before they are clipped.

    A score is the derivative x of the predictor by a coefficient, released is the sum of r (x - centre) / scale, r a
    record's residual. With an intercept, whose x is one number c for every record, the sum of r x is scale times that,
    and centre times the intercept's own, over c: so nothing is lost, and whichever way a model reads its numbers, a
    record says as much of them under the same bound.

    centres: of each released number; of the intercept 0.
    scales: of each, the same for all of one latent; of the intercept c.
    intercept: its place among the released numbers; -1 where there is none, and then no score is moved.
    """

    centres: tuple[float, ...]
    scales: tuple[float, ...]
    intercept: int


class PartLatents(NamedTuple):
    """The latents that a party's parts read.

    own:    for each outcome the latents that no other outcome's part reads: plated, so that no product is made with
        another outcome's residual. None where only one outcome has such, for which that saves nothing.
    shared: all others.
    """

    own: tuple[tuple[str, ...], ...]
    shared: tuple[str, ...]

    @classmethod
    def of(cls, summed: Sequence[SummedOutcome], party: str) -> PartLatents:
        """Of a party, sorted by name."""
        read = [outcome.latents.get(party, ()) for outcome in summed]
        times = Counter(name for names in read for name in names)
        own = tuple(tuple(name for name in names if times[name] == 1) for names in read)
        own = own if sum(map(bool, own)) > 1 else ((),) * len(own)
        return cls(own, tuple(sorted(times.keys() - {name for names in own for name in names})))

    @property
    def names(self) -> list[str]:
        """All of them."""
        return sorted({*self.shared, *(name for names in self.own for name in names)})


def part_contribution(
    model: Callable[..., Any],
    summed: Sequence[SummedOutcome],
    party: str,
    theta: Theta,
    own: Columns,
    stand_ins: Columns,
) -> Contribution:
    """A party's numbers for the outcomes' link, and its scores: [n, K, d] by each outcome's own latents, [n, K, s].

    The numbers are those of every sum, and behind them the own ones of outcomes that are this party's. The scores are
    each outcome's `unit` times the derivatives of the party's part, by its own latents with zeros behind them up to d.

    :param own: the party's columns [n].
    :param stand_ins: every party's columns [1], which nothing of this party's parts reads.
    """
    latents, units = PartLatents.of(summed, party), jnp.asarray([outcome.outcome.unit for outcome in summed])[:, None]

    def of_record(row: Columns) -> tuple[jax.Array, jax.Array, jax.Array]:
        columns = {**stand_ins, **{name: value[None] for name, value in row.items()}}

        def predictors(part: Theta) -> tuple[jax.Array, jax.Array]:
            found = _run(model, summed, party, {**theta, **part}, columns)
            return jnp.stack([eta for eta, _ in found]), _inputs(summed, party, found)

        if not latents.names:
            return predictors({})[1], jnp.zeros((len(summed), 0)), jnp.zeros((len(summed), 0))
        jacobians, inputs = jax.jacrev(predictors, has_aux=True)({name: theta[name] for name in latents.names})
        return (inputs, *_scores(jacobians, latents))

    inputs, plated, shared = jax.vmap(of_record)(own)
    units = units.astype(shared.dtype)
    return Contribution(inputs, units * plated, units * shared)


def _scores(jacobians: Mapping[str, jax.Array], latents: PartLatents) -> tuple[jax.Array, jax.Array]:
    """Derivatives [K, d] of each outcome's part by its own latents, and [K, s] by the shared ones."""
    nothing = jnp.zeros(0)
    rows = [
        jnp.concatenate([nothing, *(jnp.ravel(jacobians[name][outcome]) for name in names)])
        for outcome, names in enumerate(latents.own)
    ]
    longest = max(len(row) for row in rows)
    plated = jnp.stack([jnp.pad(row, (0, longest - len(row))) for row in rows])
    shared = [jnp.reshape(jacobians[name], (len(rows), -1)) for name in latents.shared]
    return plated, jnp.concatenate([jnp.zeros((len(rows), 0)), *shared], axis=1)


def part_inputs(
    model: Callable[..., Any],
    summed: Sequence[SummedOutcome],
    party: str,
    theta: Theta,
    own: Columns,
    stand_ins: Columns,
) -> Float[Array, "n Z"]:
    """The same without the scores."""

    def of_record(row: Columns) -> jax.Array:
        columns = {**stand_ins, **{name: value[None] for name, value in row.items()}}
        return _inputs(summed, party, _run(model, summed, party, theta, columns))

    return jax.vmap(of_record)(own)


def parts_at(
    model: Callable[..., Any], summed: Sequence[SummedOutcome], party: str, theta: Theta, own: Columns,
    stand_ins: Columns,
) -> Float[Array, "n O"]:  # fmt: skip
    """A party's part of each outcome's predictor, as at zeros what it adds without a latent.

    :param own, stand_ins: as in `part_contribution`.
    """

    def of_record(row: Columns) -> jax.Array:
        found = _run(model, summed, party, theta, {**stand_ins, **{name: value[None] for name, value in row.items()}})
        return jnp.stack([eta for eta, _ in found])

    return jax.vmap(of_record)(own)


def _run(
    model: Callable[..., Any], summed: Sequence[SummedOutcome], party: str, theta: Theta, columns: Columns
) -> list[tuple[jax.Array, jax.Array]]:
    """For each outcome the party's part of one record, and the outcome's value, a stand-in's at other parties."""
    run = PartySums(model)
    trace = trace_at(run, theta, None, columns, 1)
    parts = [run.parts[outcome.sum_name].get(party, jnp.zeros(1)) for outcome in summed]
    values = [jnp.asarray(trace[outcome.site]["value"])[0] for outcome in summed]
    return [(jnp.reshape(part, ()).astype(float), value) for part, value in zip(parts, values, strict=True)]


def _inputs(summed: Sequence[SummedOutcome], party: str, found: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
    sums, own = [], []
    for outcome, (eta, value) in zip(summed, found, strict=True):
        offsets = outcome.outcome.offsets(value)
        contributed = jnp.broadcast_to(outcome.outcome.scale * eta, offsets.shape)
        sums.append(contributed - offsets if party == outcome.party else contributed)
        own += [outcome.outcome.own(value)] if party == outcome.party else []
    return jnp.concatenate([*sums, *own])
