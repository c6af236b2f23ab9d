"""A NumPyro model split between parties: who computes what, and where each number goes in theta."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.distributions import biject_to

from vertinumpyro.core import compat
from vertinumpyro.core.types import ComponentPrior, Contribution, Model, Theta
from vertinumpyro.data import Schema
from vertinumpyro.model import scores
from vertinumpyro.model.contract import ModelStructure, inspected
from vertinumpyro.model.dummy_data import errors_on_stand_ins, stand_in_columns
from vertinumpyro.model.enumeration import constrain, log_densities, log_density_of, log_jacobian, trace_at
from vertinumpyro.model.mixture import is_mixture_of, mixture_model, settings_of
from vertinumpyro.model.outcomes import NegativeBinomial, Poisson
from vertinumpyro.model.party_sums import PartLatents, Standardisation, part_contribution, part_inputs, parts_at
from vertinumpyro.model.scores import SiteGroup, plated_sites, site_groups
from vertinumpyro.model.user_code import public_state, require_names

_NUM_TRACED = 2
_MOST_SCORES = 4_000_000
_MOST_MIXTURES = 8  # that are kept with their programs, whoever asked for them last


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitModel:
    """A model that met the contract, with functions of (flat unconstrained theta, a party's columns).

    The released vector has one coordinate for every parameter of the component's prior, then for every
    party its plated scores [K, d] and its shared scores [s], flattened. A parameter that two parties read
    therefore has two coordinates: each is clipped and noised, and `gather` adds them up afterwards but for those that
    are noise alone, which is post-processing. No party needs another party's scores for the norm.

    :ivar groups: per party, its observed sites in groups that share no latent.
    :ivar plated: per party, its component-plated latents, group by group, and the axis of the component.
    :ivar shared: per party, its latents that several components read, group by group.
    :ivar standardisation: of a `party_sum`'s scores; None where they are released as they are.
    """

    model: Model
    schema: Schema
    structure: ModelStructure
    groups: Mapping[str, tuple[SiteGroup, ...]]
    plated: Mapping[str, Mapping[str, int]]
    shared: Mapping[str, tuple[str, ...]]
    standardisation: Standardisation | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The fields; compiled programs are made again."""
        require_names("posterior's model", {"model": self.model})
        return public_state(self)

    def __deepcopy__(self, memo: Any) -> SplitModel:
        """Itself: nothing of it changes, and its programs are worth sharing."""
        return self

    # -- layout -----------------------------------------------------------------------------------

    @property
    def parties(self) -> tuple[str, ...]:
        """Parties in the schema's order."""
        return tuple(self.structure.party_sites)

    @property
    def num_components(self) -> int:
        """K; of a model without a discrete latent the number of its outcomes, or 1."""
        return len(self.structure.summed) or self.structure.num_components

    @property
    def _num_sums(self) -> int:
        """Numbers that all parties add up for a record: of a model without a discrete latent."""
        return sum(summed.outcome.num_sums for summed in self.structure.summed) or 1

    @cached_property
    def _positions(self) -> dict[str, np.ndarray]:
        """For each latent site, where its entries stand in flat theta (sites sorted by name)."""
        positions, start = {}, 0
        for name, shape in self.structure.latents.items():
            size = int(np.prod(shape, dtype=int))
            positions[name] = np.arange(start, start + size).reshape(shape)
            start += size
        return positions

    @property
    def names(self) -> list[str]:
        """What each number of flat theta is called, as `slopes[3]`."""
        found = [(name, place) for name, own in self._positions.items() for place in np.ndindex(own.shape)]
        return [f"{name}[{','.join(map(str, place))}]" if place else name for name, place in found]

    @property
    def num_parameters(self) -> int:
        """Length of flat theta."""
        return sum(position.size for position in self._positions.values())

    @cached_property
    def gather_index(self) -> np.ndarray:
        """For each released coordinate, its place in flat theta; of one that is noise alone, `num_parameters`."""
        K = self.num_components
        blocks = [self._positions[name].ravel() for name in self.structure.component_latents]
        for party in self.parties:
            plated = self.plated[party].items()
            rows = [np.moveaxis(self._positions[name], axis, 0).reshape(K, -1) for name, axis in plated]
            rows += self._rows_of_outcomes(party)
            blocks += [np.concatenate(rows, axis=1).ravel()] if rows else []
            blocks += [np.where(self._idle[party], self.num_parameters, self._shared_places(party))]
        return np.concatenate(blocks)

    def _shared_places(self, party: str) -> np.ndarray:
        """In flat theta, of the latents that several components read."""
        return np.concatenate([np.zeros(0, int), *(self._positions[name].ravel() for name in self.shared[party])])

    @cached_property
    def _idle(self) -> dict[str, np.ndarray]:
        """Of each party's shared scores, those that are 0 whatever its records, where another party's are not.

        As of a vector of slopes of which each party reads its own: what is released of the others is noise alone.
        """
        places = {party: self._shared_places(party) for party in self.parties}
        readers = np.bincount(np.concatenate(list(places.values())), minlength=self.num_parameters)
        if not self.structure.summed or readers.max(initial=0) < 2:
            return {party: np.zeros(len(own), bool) for party, own in places.items()}
        moved = {party: self._moved(party) for party in self.parties}
        movers = np.bincount(np.concatenate([places[p][moved[p]] for p in self.parties]), minlength=self.num_parameters)
        return {party: ~moved[party] & (movers[own] > 0) for party, own in places.items()}

    def _moved(self, party: str) -> np.ndarray:
        """Which of a party's shared scores are not 0 for all of many stand-ins."""
        return (self._tried_scores(party) != 0).any(axis=(0, 1))

    def numeric(self, party: str) -> np.ndarray:
        """The numbers of a `party_sum`'s scores at a party that take more than two values, as indicators do not."""
        return np.flatnonzero(self._num_values_of(party) > 2)

    def constant(self, party: str) -> np.ndarray:
        """The number of a score at the party that is the same for all records, as an intercept's, where one is."""
        return np.flatnonzero(self._num_values_of(party) == 1)[:1]

    def _num_values_of(self, party: str) -> np.ndarray:
        """Of each score, 0 of one that is 0 always, and 3 of more than two."""
        if (key := f"values of scores of {party}") not in self.compiled:
            tried = np.sort(self._tried_scores(party)[:, 0], axis=0)
            largest = np.abs(tried).max(axis=0, initial=0.0)
            steps = (np.diff(tried, axis=0) > 1e-5 * largest).sum(0)
            self.compiled[key] = np.where(largest > 0, np.minimum(1 + steps, 3), 0)
        return self.compiled[key]

    def _tried_scores(self, party: str) -> np.ndarray:
        """A party's shared scores of many stand-ins."""
        number = min(max(64, 40 * self.num_parameters), max(64, _MOST_SCORES // self.num_parameters))
        flat = np.random.default_rng(13).normal(size=self.num_parameters)
        with jax.ensure_compile_time_eval():  # also where a step is traced
            drawn = stand_in_columns(self.schema.restrict(party), number, seed=14, observed_fraction=0.5)
            own = {name: jnp.asarray(column) for name, column in drawn.items()}
            return np.asarray(jax.jit(partial(self.contribution, party))(jnp.asarray(flat, float), own).shared_scores)

    @cached_property
    def read(self) -> np.ndarray:
        """The places in flat theta of latents that some party's part reads."""
        return np.setdiff1d(self.gather_index, self.num_parameters)

    def _rows_of_outcomes(self, party: str) -> list[np.ndarray]:
        """The same of the latents that one outcome alone reads; `num_parameters`, no place, where others have more."""
        own = PartLatents.of(self.structure.summed, party).own if self.structure.summed else ()
        rows = [np.concatenate([[], *(self._positions[name].ravel() for name in names)]).astype(int) for names in own]
        longest = max((len(row) for row in rows), default=0)
        padded = [np.pad(row, (0, longest - len(row)), constant_values=self.num_parameters) for row in rows]
        return [np.stack(padded)] if longest else []

    @property
    def num_values(self) -> int:
        """Length D of the released vector."""
        return len(self.gather_index)

    def gather(self, released: Float[Array, " D"], back: Any = None) -> Float[Array, " theta"]:
        """The released vector as a gradient with respect to flat theta; a parameter's coordinates add up.

        :param back: from sums of whitened scores to those of scores `[theta, theta]`; None where they are not whitened.
        """
        found = jnp.zeros(self.num_parameters, released.dtype).at[self.gather_index].add(released, mode="drop")
        found = found if back is None else back @ found
        if self.standardisation is None:
            return found
        scales = jnp.asarray(np.diag(self.to_standardised), found.dtype)
        return scales * found + jnp.asarray(self.centre, found.dtype) * found[self.intercept]

    @cached_property
    def gather_matrix(self) -> np.ndarray:
        """How a parameter's coordinates add up, as zeros and ones `[theta, D]`."""
        return np.asarray(self.gather_index == np.arange(self.num_parameters)[:, None], np.float64)

    @property
    def intercept(self) -> int:
        """The place in flat theta of what standardised scores are moved by; the first where none is moved."""
        known = self.standardisation
        return 0 if known is None or known.intercept < 0 else int(self.gather_index[known.intercept])

    @cached_property
    def centre(self) -> np.ndarray:
        """What is taken off the derivative of the predictor by each number of flat theta `[theta]`."""
        found = self.standardisation
        return np.zeros(self.num_parameters) if found is None else self.gather_matrix @ np.asarray(found.centres)

    @cached_property
    def to_standardised(self) -> np.ndarray:
        """W `[theta, theta]`: W theta are the coefficients of standardised scores, of which the noise is alike.

        The intercept's is the predictor where every score is its centre. Gradients by theta are W' times those by it.
        """
        scales = np.ones(self.num_parameters + 1)
        if self.standardisation is not None:
            scales[self.gather_index] = self.standardisation.scales
        found = np.diag(scales[:-1])
        found[self.intercept] += self.centre
        return found

    @cached_property
    def from_standardised(self) -> np.ndarray:
        """Its inverse `[theta, theta]`."""
        return np.linalg.inv(self.to_standardised)

    def flatten(self, theta: Theta) -> Float[Array, " theta"]:
        """Unconstrained sites as flat theta."""
        return jnp.concatenate([jnp.ravel(theta[name]) for name in self._positions])

    def unflatten(self, flat: Float[Array | np.ndarray, " theta"]) -> dict[str, Any]:
        """Flat theta as a dictionary of unconstrained sites."""
        return {
            name: flat[position.flat[0] : position.flat[0] + position.size].reshape(position.shape)
            for name, position in self._positions.items()
        }

    # -- public functions of theta ----------------------------------------------------------------

    def log_prior(self, flat: Float[Array, " theta"], *, on_supports: bool = False) -> jax.Array:
        """log p(theta) + log |det d theta / d unconstrained|: the density of the unconstrained latents.

        :param on_supports: log p(theta) alone, the density of the latents on their own supports.
        """
        theta = self.unflatten(flat)
        site = self.structure.component_site
        trace = trace_at(self.model, theta, site, self.stand_ins(1), 1)
        observed_by_parties = {name for names in self.structure.party_sites.values() for name in names}
        total = jnp.zeros(()) if on_supports else log_jacobian(trace, theta)
        for name, traced in trace.items():
            if traced["type"] == "sample" and name != site and name not in observed_by_parties:
                total = total + jnp.sum(traced["fn"].log_prob(traced["value"]))
        return total

    def component_prior(self, flat: Float[Array, " theta"]) -> ComponentPrior:
        """log pi_k [K] and its scores [K, d0] with respect to the sites that it reads."""
        names, theta = self.structure.component_latents, self.unflatten(flat)
        nothing = jnp.zeros((self.num_components, 0), flat.dtype)
        if not names:
            return ComponentPrior(self._log_weights(theta, {}), nothing)

        def log_weights(part: Theta) -> tuple[jax.Array, jax.Array]:
            found = self._log_weights({**theta, **part}, {})
            return found, found

        jacobians, found = jax.jacrev(log_weights, has_aux=True)({name: theta[name] for name in names})
        rows = [jacobians[name].reshape(self.num_components, -1) for name in names]
        return ComponentPrior(found, jnp.concatenate([nothing, *rows], axis=1))

    def log_weights(self, values: Mapping[str, jax.Array]) -> Float[Array, " Z"]:
        """`ComponentPrior.log_weights` alone, given all global latents on their own supports."""
        return self._log_weights({}, values)

    def _log_weights(self, theta: Theta, known: Theta) -> jax.Array:
        """At unconstrained latents and such as are known on their own supports."""
        site = self.structure.component_site
        if site is None:
            return jnp.zeros(self._num_sums, jnp.result_type(*theta.values(), *known.values()))
        trace = trace_at(self.model, theta, site, self.stand_ins(1), 1, known=known)
        return trace[site]["fn"].log_prob(trace[site]["value"]).reshape(self.num_components)

    def init(self, init_loc_fn: Callable[..., Any], rng_key: jax.Array) -> Float[Array, " theta"]:
        """Flat theta at a NumPyro init strategy, which sees the model's own sites and supports."""
        if init_loc_fn not in self._compiled_inits:
            run = partial(self._flat_where, substitute_fn=init_loc_fn)
            self._compiled_inits[init_loc_fn] = compat.compiled_fast(jax.jit(run).lower(rng_key))
        return self._compiled_inits[init_loc_fn](rng_key)

    def unconstrain(self, theta: Mapping[str, Any]) -> Float[Array, " theta"]:
        """Flat theta of all global latents on their own supports: what `constrain` takes back."""
        run = jax.jit(lambda values: self._flat_where(compat.random_key(0), data=values))
        return compat.compiled_fast(run.lower(theta))(theta)

    def _flat_where(self, rng_key: jax.Array, **substituted: Any) -> jax.Array:
        site = self.structure.component_site
        model = handlers.substitute(self.model, data={} if site is None else {site: jnp.zeros(1, int)})
        model = handlers.substitute(handlers.seed(model, rng_key), **substituted)
        trace = handlers.trace(model).get_trace(self.stand_ins(1), 1)
        sites = {name: trace[name] for name in self.structure.latents}
        return self.flatten({n: biject_to(s["fn"].support).inv(s["value"]) for n, s in sites.items()})

    @cached_property
    def compiled(self) -> dict[str, Any]:
        """Compiled programs of whoever works with this model, by their names: all posteriors of it share them."""
        return {}

    @cached_property
    def _compiled_inits(self) -> dict[Callable[..., Any], Callable[..., jax.Array]]:
        """`init` for each strategy, compiled once."""
        return {}

    def constrain(self, flat: Float[Array, " theta"]) -> Mapping[str, jax.Array]:
        """The global latents on their own supports."""
        site = self.structure.component_site
        return constrain(self.model, self.unflatten(flat), site, self.stand_ins(1), 1)

    def with_derived(self, flat: Float[Array, " theta"], num_records: int) -> Mapping[str, jax.Array]:
        """`constrain`, and behind the latents the deterministic sites that follow from them.

        :param num_records: N, which such a site may read.
        """
        values, structure = self.constrain(flat), self.structure
        if not structure.derived:
            return values
        columns = {name: jnp.zeros((num_records,), column.dtype) for name, column in self.stand_ins(1).items()}
        trace = trace_at(self.model, {}, structure.component_site, columns, num_records, known=values)
        return {**values, **{name: jnp.asarray(trace[name]["value"]) for name in structure.derived}}

    # -- a party's own computation ----------------------------------------------------------------

    def contribution(self, party: str, flat: Float[Array, " theta"], columns: Mapping[str, Any]) -> Contribution:
        """What `party` computes on its own columns, each [n]; see `core.types.Contribution`."""
        theta = self.unflatten(flat)
        if summed := self.structure.summed:
            found = part_contribution(self.model, summed, party, theta, columns, self.stand_ins(1))
            return found if self.standardisation is None else self._standardised(party, found)
        values = self.constrain(flat)

        def of_group(group: SiteGroup) -> Contribution:
            of_others = {name: value for name, value in values.items() if name not in group.latents}
            log_density = partial(self._log_density_of_record, group.sites, of_others)
            plated = {name: axis for name, axis in self.plated[party].items() if name in group.latents}
            shared = tuple(name for name in self.shared[party] if name in group.latents)
            rows, codes = group.rows(columns)
            found = scores.contribution(log_density, theta, plated, shared, rows)
            return scores.looked_up(found, codes) if group.is_table else found

        length = len(next(iter(columns.values())))
        nothing = scores.empty(length, self.num_components, flat.dtype)
        return scores.combined([nothing, *(of_group(group) for group in self.groups[party])])

    def _standardised(self, party: str, found: Contribution) -> Contribution:
        """With a party's scores moved and scaled."""
        (summed,), known = self.structure.summed, self.standardisation
        assert known is not None
        starts = np.cumsum([0, *(len(self._shared_places(name)) for name in self.parties)])
        own = slice(*starts[self.parties.index(party) :][:2])
        centres, scales = (jnp.asarray(of_all[own], found.shared_scores.dtype) for of_all in known[:2])
        return found._replace(shared_scores=(found.shared_scores - summed.outcome.unit * centres) / scales)

    def reaching(self, party: str, found: Contribution, reach: Float[Array, ""]) -> Contribution:
        """With the link's numbers as `Outcome.reaching` has them, at the outcome's party."""
        (summed,) = self.structure.summed
        if party != summed.party:
            return found
        return found._replace(log_density=summed.outcome.reaching(found.log_density, reach))

    def whitened(
        self, party: str, found: Contribution, whitening: Float[Array, "theta theta"], bound: Float[Array, ""]
    ) -> Contribution:
        """With a `party_sum`'s numeric scores x as W'(x - m), scaled down to a bound; what is not finite is 0.

        Or all of a record would be so. The intercept's row of the matrix has -m'W.
        """
        (summed,), numbers, places = self.structure.summed, self.numeric(party), self._shared_places(party)
        of = np.concatenate([numbers, self.constant(party)])
        own = found.shared_scores[..., of]
        matrix = whitening[np.ix_(places[of], places[numbers])].astype(own.dtype)
        own = jnp.where(jnp.isfinite(own), own, 0.0) @ matrix
        length = jnp.linalg.norm(own, axis=-1, keepdims=True) / (summed.outcome.unit * bound.astype(own.dtype))
        own = own / jnp.maximum(length, 1.0)
        return found._replace(shared_scores=found.shared_scores.at[..., numbers].set(own))

    def places_of(self, party: str, numbers: np.ndarray) -> np.ndarray:
        """In flat theta, of a party's shared scores."""
        return self._shared_places(party)[numbers]

    def log_density(self, party: str, flat: Float[Array, " theta"], columns: Mapping[str, Any]) -> Float[Array, "n Z"]:
        """`Contribution.log_density` without the scores."""
        if summed := self.structure.summed:
            return part_inputs(self.model, summed, party, self.unflatten(flat), columns, self.stand_ins(1))
        values = self.constrain(flat)

        def of_group(group: SiteGroup) -> jax.Array:
            of_record = partial(self._log_density_of_record, group.sites, values, {})
            rows, codes = group.rows(columns)
            return jax.vmap(of_record)(rows)[codes]

        length = len(next(iter(columns.values())))
        nothing = jnp.zeros((length, self.num_components), flat.dtype)
        return sum((of_group(group) for group in self.groups[party]), start=nothing)

    def _log_density_of_record(
        self, sites: tuple[str, ...], known: Theta, theta: Theta, row: Mapping[str, Any]
    ) -> jax.Array:
        """Sum of one party's observed sites [K]; other parties' columns are stand-ins that nothing reads.

        :param known: latents on their own supports; all others are unconstrained, in theta.
        """
        columns = {**self.stand_ins(1), **{name: value[None] for name, value in row.items()}}
        trace = trace_at(self.model, theta, self.structure.component_site, columns, 1, known=known)
        found = log_densities(trace, sites, self.num_components, 1)
        return sum(found.values(), start=jnp.zeros((self.num_components, 1)))[:, 0]

    def stand_ins(self, num_records: int) -> dict[str, jax.Array]:
        """Valid public columns of every party, to trace the model on."""
        if num_records not in self._stand_ins:
            self._stand_ins[num_records] = stand_in_columns(self.schema, num_records)
        return {name: jnp.asarray(column) for name, column in self._stand_ins[num_records].items()}

    @cached_property
    def _stand_ins(self) -> dict[int, Mapping[str, np.ndarray]]:
        """Drawn once for each number of records: every trace of a density asks for them."""
        return {}


def split_model(model: Model, schema: Schema, model_kwargs: Mapping[str, Any] | None = None) -> SplitModel:
    """Check the contract, find the component-plated parameters, and return the split model.

    The library's own mixture is a function of its settings alone, so one of the same settings is traced and compiled
    once in a process, whoever asks.

    :raises ModelContractError: if the model cannot be split. Where the model itself raised, the message quotes
        its exception, which has seen stand-in records and no table.
    """
    if is_mixture_of(model, schema) and not model_kwargs:
        return _split_mixture(schema, *settings_of(model), compat.user_has_x64())
    return _split(model, schema, model_kwargs or {})


@lru_cache(maxsize=_MOST_MIXTURES)
def _split_mixture(schema: Schema, num_components: int, shape_rate: float, x64: bool) -> SplitModel:
    """`mixture_model`'s, the same object for the same settings.

    :param x64: whether jax computes in double precision, for which programs are others.
    """
    return _split(mixture_model(schema, num_components, shape_rate=shape_rate), schema, {})


def _split(model: Model, schema: Schema, model_kwargs: Mapping[str, Any]) -> SplitModel:
    with errors_on_stand_ins():
        structure, runs = inspected(model, schema, model_kwargs)
        if structure.summed:
            return _traced(_split_sum(partial(model, **model_kwargs), schema, structure))
        groups = {party: _groups(structure, schema, party) for party in structure.party_sites}
        read = {party: tuple(name for group in groups[party] for name in group.latents) for party in groups}
        plated = plated_sites(runs, structure, read)
        shared = {party: tuple(name for name in read[party] if name not in plated[party]) for party in groups}
        whole = partial(model, **model_kwargs)
        split = SplitModel(model=whole, schema=schema, structure=structure, groups=groups, plated=plated, shared=shared)
        return split if is_mixture_of(model, schema) else _traced(split)


def _traced(split: SplitModel) -> SplitModel:
    """The model, after tracing its whole density's derivative once: what it raises only there would end a fit."""

    def density(flat: jax.Array) -> jax.Array:
        theta, columns = split.unflatten(flat), split.stand_ins(_NUM_TRACED)
        trace = trace_at(split.model, theta, split.structure.component_site, columns, _NUM_TRACED)
        densities = (log_density_of(name, site) for name, site in trace.items() if site["type"] == "sample")
        return sum((jnp.sum(one) for one in densities), start=log_jacobian(trace, theta))

    jax.eval_shape(jax.grad(density), jax.ShapeDtypeStruct((split.num_parameters,), jnp.result_type(float)))
    return split


def _split_sum(model: Model, schema: Schema, structure: ModelStructure) -> SplitModel:
    """Of a model with `party_sum`s: what a party's parts read is its own, and outcomes stand for components.

    Of several, latents that one outcome alone reads are plated, as `PartLatents` says, and have no axis for it.
    """
    nothing = dict.fromkeys(structure.party_sites, ())
    return SplitModel(
        model=model,
        schema=schema,
        structure=structure,
        groups=nothing,
        plated={party: {} for party in structure.party_sites},
        shared={party: PartLatents.of(structure.summed, party).shared for party in structure.party_sites},
    )


def _groups(structure: ModelStructure, schema: Schema, party: str) -> tuple[SiteGroup, ...]:
    return site_groups(structure.party_sites[party], structure.site_latents, structure.site_columns, schema)


# -- what parts are made of ------------------------------------------------------------------------------


def scores_of(split: SplitModel, party: str) -> Callable[[Any, Mapping[str, Any]], jax.Array]:
    """From flat theta and the party's columns [n] to its derivatives of the predictor [n, d], compiled once."""
    (summed,) = split.structure.summed
    unit = summed.outcome.unit

    def derivatives(flat: jax.Array, columns: Mapping[str, Any]) -> jax.Array:
        return split.contribution(party, flat, columns).shared_scores[:, 0] / unit

    key = f"scores of {party}"
    if key not in split.compiled:
        split.compiled[key] = jax.jit(derivatives)
    return split.compiled[key]


def stand_in_scores(split: SplitModel, num_records: int, seed: int) -> list[np.ndarray]:
    """Each party's scores of stand-in records, of which no column depends on another `[n, d]`."""
    zeros, found = jnp.zeros(split.num_parameters), []
    for place, party in enumerate(split.parties):
        own = stand_in_columns(split.schema.restrict(party), num_records, seed=seed + place, observed_fraction=0.5)
        columns = {name: jnp.asarray(column) for name, column in own.items()}
        found.append(np.asarray(scores_of(split, party)(zeros, columns), np.float64))
    return found


# -- what parts add without a coefficient --------------------------------------------------------------

_OFFSETS_TRIED, _OUTERMOST = 1024, 0.01
_LONGEST_TIMES = 100.0
_NOTHING = 1e-4


class Offset(NamedTuple):
    """Of one party's part: where its offsets lie, and half of how far they reach; 0 where they are all alike."""

    middle: float = 0.0
    half: float = 0.0

    def scaled(self, offsets: Any) -> np.ndarray:
        """U `[n, 1]`, or `[n, 0]` where there is nothing to know."""
        if not self.half:
            return np.zeros((len(offsets), 0))
        return np.clip((np.asarray(offsets, np.float64) - self.middle) / self.half, -1.0, 1.0)[:, None]


def offsets_at(split: SplitModel, party: str) -> Callable[[Mapping[str, Any]], jax.Array]:
    """From the party's columns [n] to what its part is where all latents are 0 [n], compiled once."""
    key = f"offsets of {party}"
    if key not in split.compiled:
        zeros = split.constrain(jnp.zeros(split.num_parameters))

        def added(columns: Mapping[str, Any]) -> jax.Array:
            return parts_at(split.model, split.structure.summed, party, zeros, columns, split.stand_ins(1))[:, 0]

        split.compiled[key] = jax.jit(added)
    return split.compiled[key]


def public_offsets(split: SplitModel) -> tuple[Offset, ...]:
    """Each party's, by its public domains; () where no part has any."""
    if "public offsets" not in split.compiled:
        found = tuple(_of_stand_ins(split, party) for party in split.parties)
        split.compiled["public offsets"] = found if any(offset != Offset() for offset in found) else ()
    return split.compiled["public offsets"]


def may_be_times(split: SplitModel) -> bool:
    """Whether the outcome is whether an event was seen: what is added to its predictor may be the time until then,
    which is no column that the outcome follows from."""
    (summed,) = split.structure.summed
    return isinstance(summed.outcome, Poisson) and summed.outcome.events


def _of_stand_ins(split: SplitModel, party: str) -> Offset:
    columns = stand_in_columns(split.schema.restrict(party), _OFFSETS_TRIED, seed=15, observed_fraction=0.5)
    found = np.asarray(offsets_at(split, party)({name: jnp.asarray(column) for name, column in columns.items()}))
    low, high = np.quantile(found.astype(np.float64), [_OUTERMOST, 1 - _OUTERMOST])
    if max(abs(low), abs(high)) <= _NOTHING:
        return Offset()
    (summed,) = split.structure.summed
    if isinstance(summed.outcome, Poisson | NegativeBinomial):
        low = max(low, high - math.log(_LONGEST_TIMES))
    half = (high - low) / 2
    return Offset(_rounded((low + high) / 2), _rounded(half) if half > _NOTHING else 0.0)


def _rounded(number: float) -> float:
    """To what machines agree on."""
    return float(f"{number:.4g}")
