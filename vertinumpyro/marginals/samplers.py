"""Samplers of the posterior given released tables: of the tables' law by NumPyro's SVI and NUTS, in coordinates in
which it is about standard normal; of few records, exactly, by data augmentation: the records are latent, too.

The tables' law (`table_likelihood`) takes counts of N records to be normal, which few records are not. In `Augmented`
nothing is approximated: a Gibbs sampler (Ju, Awan, Gong and Rao, "Data augmentation MCMC for Bayesian inference from
privatized data", 2022) goes in turn through

1. every record, for which another one is drawn from the model at theta, its component and its place in every block of
   columns, and taken with probability min(1, ratio of the noise's densities): it changes a few cells by one, so at a
   small epsilon nearly all are taken;
2. theta given the records, by NUTS: of these only the counts of places by component matter.

Both leave the posterior of theta and records given the tables as it is. Records' places are the points of the public
grids of `expected_tables`, of which every table's cells are functions.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.diagnostics import split_gelman_rubin
from numpyro.infer import NUTS, SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoMultivariateNormal

from vertinumpyro.core.errors import ArgumentError, InferenceWarning
from vertinumpyro.marginals.table_likelihood import Law, ReleasedCells, TableLikelihood

MOST_RECORDS = 2000
"""Beyond, counts are as good as normal, and a sweep takes long."""

_SWEEPS = 5  # of a draw
_LEAST = 1e-30


@final
class Counts(NamedTuple):
    """All that theta's density reads of the records: how many are of each component, and at each place by component."""

    components: jax.Array
    places: tuple[jax.Array, ...]


def check_few(num_records: int) -> None:
    """Refuses more records than `MOST_RECORDS`.

    :raises ArgumentError: there are more.
    """
    if num_records > MOST_RECORDS:
        raise ArgumentError(
            f'method="augmentation" samples each of {num_records:,} records, and is for at most {MOST_RECORDS:,}; the '
            'counts of more are as good as normal: give method="nuts"'
        )


@final
class Augmented:
    """The sampler for one kind of release; compiled once.

    :param of: its tables under the model.
    :param num_records: N.
    """

    def __init__(self, of: TableLikelihood, num_records: int) -> None:
        self._of, self._num_records, self._size = of, num_records, of.split.num_parameters
        self._cells = of.tables.cells_of_points()
        start = init_to_value(values={"eta": jnp.zeros(self._size)})
        self._kernel = NUTS(self._model, init_strategy=start)

    def sample(self, law: Law, rng_key: jax.Array, num_samples: int) -> jax.Array:
        """Draws of eta [num_samples, d], theta = centre + scale @ eta, after half as many of warm-up.

        :raises ArgumentError: values are missing of which the model does not speak.
        """
        if not law.cells.modelled.all():
            raise ArgumentError(
                'method="augmentation": values may be missing by a mask that the model does not observe; observe it, '
                'or give method="nuts"'
            )
        return self._sampled(law, rng_key, num_samples)

    # -- theta given the records -------------------------------------------------------------------

    def _model(self, law: Law, counts: Counts) -> None:
        eta = jnp.asarray(numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([self._size]).to_event(1)))
        flat = self._theta(law, eta)
        with handlers.block():  # the user's own sites are no sites of this program
            log_weights, log_masses = self._log_probs(flat)
            log_density = jnp.vdot(counts.components, log_weights) + self._of.split.log_prior(flat)
            log_density += sum(jnp.vdot(*pair) for pair in zip(counts.places, log_masses, strict=True))
        numpyro.factor("records", log_density + 0.5 * jnp.sum(eta**2))

    def _theta(self, law: Law, eta: jax.Array) -> jax.Array:
        return jnp.asarray(law.centre) + jnp.asarray(law.scale, eta.dtype) @ eta

    def _log_probs(self, flat: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        """log pi [K], and log P(point | z = k) [K, G] of every block."""
        values = self._of.split.constrain(flat)
        masses = self._of.tables.masses(values)
        return self._of.split.log_weights(values), [jnp.log(jnp.maximum(mass, _LEAST)) for mass in masses]

    # -- the records given theta ----------------------------------------------------------------------

    def _drawn(self, flat: jax.Array, rng_key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Components [n] and places [n, blocks] of records of the model."""
        log_weights, log_masses = self._log_probs(flat)
        z_key, *keys = jax.random.split(rng_key, 1 + len(log_masses))
        z = jax.random.categorical(z_key, log_weights, shape=(self._num_records,))
        places = [jax.random.categorical(key, mass[z]) for key, mass in zip(keys, log_masses, strict=True)]
        return z, jnp.stack(places, axis=1)

    def _cells_of(self, places: jax.Array) -> jax.Array:
        """The cell of each record in every table [n, tables]: a sum of what its place in each block adds."""
        of_blocks = [jnp.asarray(table)[:, places[:, block]] for block, table in enumerate(self._cells)]
        return sum(of_blocks[1:], start=of_blocks[0]).T

    def _swept(
        self, cells: ReleasedCells, z: jax.Array, places: jax.Array, flat: jax.Array, rng_key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The records after one offer to each of them."""
        draw_key, take_key = jax.random.split(rng_key)
        offered_z, offered = self._drawn(flat, draw_key)
        of_now, of_offered = self._cells_of(places), self._cells_of(offered)
        precision = jnp.asarray(cells.stddev, flat.dtype) ** -2
        left = jnp.asarray(cells.counts, flat.dtype).at[of_now].add(-1.0)

        def offer(left: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            now, then, log_uniform = one
            # of the squares of what is left: +1 at the cell that the record leaves, -1 at the one that it enters
            gain = (left[then] - left[now] - 1) * jnp.where(now == then, 0.0, precision[now])
            taken = log_uniform < gain.sum()
            step = taken.astype(left.dtype)
            return left.at[now].add(step).at[then].add(-step), taken

        log_uniform = jnp.log(jax.random.uniform(take_key, (self._num_records,), flat.dtype, _LEAST))
        _, taken = jax.lax.scan(offer, left, (of_now, of_offered, log_uniform))
        return jnp.where(taken, offered_z, z), jnp.where(taken[:, None], offered, places)

    def _counts(self, z: jax.Array, places: jax.Array, dtype: Any) -> Counts:
        num_components = self._of.split.num_components
        of_blocks = [
            jnp.zeros((num_components, table.shape[1]), dtype).at[z, places[:, block]].add(1.0)
            for block, table in enumerate(self._cells)
        ]
        return Counts(jnp.zeros(num_components, dtype).at[z].add(1.0), tuple(of_blocks))

    # -- both in turn ------------------------------------------------------------------------------------

    @cached_property
    def _sampled(self) -> Any:
        def sampled(law: Law, rng_key: jax.Array, num_samples: int) -> jax.Array:
            draw_key, init_key, sweep_key = jax.random.split(rng_key, 3)
            centre, warm_up = jnp.asarray(law.centre), num_samples // 2 * _SWEEPS
            z, places = self._drawn(centre, draw_key)
            first = self._counts(z, places, centre.dtype)
            state = self._kernel.init(init_key, warm_up, init_params=None, model_args=(law, first), model_kwargs={})

            def sweep(carry: tuple[Any, jax.Array, jax.Array], key: jax.Array) -> tuple[Any, jax.Array]:
                state, z, places = carry
                z, places = self._swept(law.cells, z, places, self._theta(law, state.z["eta"]), key)
                counts = self._counts(z, places, centre.dtype)
                potential: Any = self._kernel._potential_fn_gen  # of other records than the last step's
                energy, gradient = jax.value_and_grad(potential(law, counts))(state.z)
                state = state._replace(potential_energy=energy, z_grad=gradient)
                state = self._kernel.sample(state, (law, counts), {})
                return (state, z, places), state.z["eta"]

            keys = jax.random.split(sweep_key, warm_up + num_samples * _SWEEPS)
            etas = jax.lax.scan(sweep, (state, z, places), keys)[1][warm_up:]
            return etas[_SWEEPS - 1 :: _SWEEPS]

        return jax.jit(sampled, static_argnames="num_samples")


_MOST_FULL_RANK = 200
STEPS, _RATE, PARTICLES = 2000, 0.01, 8
_LARGEST_R_HAT = 1.05


class Draws(NamedTuple):
    """Of flat theta, [draws, theta], and their centre [theta]."""

    draws: jax.Array
    centre: jax.Array


@final
class Whitened:
    """theta = centre + scale @ eta, with eta about standard normal; compiled once for all releases of a kind."""

    def __init__(self, of: TableLikelihood, num_records: int) -> None:
        self.of, self._size, self._num_records = of, of.split.num_parameters, num_records
        start = init_to_value(values={"eta": jnp.zeros(self._size)})
        family = AutoMultivariateNormal if self._size <= _MOST_FULL_RANK else AutoDiagonalNormal
        self._start, self._guide = start, family(self._model, init_loc_fn=start, init_scale=1.0)
        self._svi = SVI(self._model, self._guide, numpyro.optim.Adam(_RATE), Trace_ELBO(num_particles=PARTICLES))

    def _model(self, law: Law) -> None:
        eta = jnp.asarray(numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([self._size]).to_event(1)))
        flat = _theta(law, eta)
        with handlers.block():  # the user's own sites are no sites of this program
            log_density = self.of.log_likelihood(flat, law) + self.of.split.log_prior(flat)
        numpyro.factor("law", log_density + 0.5 * jnp.sum(eta**2))

    def svi(self, law: Law, rng_key: jax.Array, num_samples: int) -> Draws:
        """A Normal fitted by SVI: full rank up to 200 parameters, a mean field of these coordinates beyond."""
        fit_key, draw_key = jax.random.split(rng_key)
        etas, middle = self._fitted(law, fit_key, draw_key, num_samples)
        return Draws(_theta(law, etas), _theta(law, middle))

    @cached_property
    def _fitted(self) -> Any:
        def fitted(law: Law, fit_key: jax.Array, draw_key: jax.Array, num_samples: int) -> tuple[jax.Array, jax.Array]:
            def step(state: Any, _: None) -> tuple[Any, None]:
                return self._svi.stable_update(state, law)[0], None

            state, _ = jax.lax.scan(step, self._svi.init(fit_key, law), None, length=STEPS)
            params = self._svi.get_params(state)
            drawn = self._guide.sample_posterior(draw_key, params, sample_shape=(num_samples,))["eta"]
            return drawn, self._guide.median(params)["eta"]

        return jax.jit(fitted, static_argnames="num_samples")

    def nuts(self, law: Law, rng_key: jax.Array, num_samples: int) -> Draws:
        """A chain, after half as many steps of warm-up; warns where its halves differ."""
        return self._chain(law, self._sampled(law, rng_key, num_samples))

    def _chain(self, law: Law, etas: jax.Array) -> Draws:
        worst = float(np.max(split_gelman_rubin(np.asarray(etas)[None])))
        if worst > _LARGEST_R_HAT:
            warnings.warn(
                f"the chain has not converged: R-hat is {worst:.2f}. Raise num_samples, or take method='svi'",
                InferenceWarning,
                stacklevel=5,
            )
        draws = _theta(law, etas)
        return Draws(draws, draws.mean(0))

    def augmented(self, law: Law, rng_key: jax.Array, num_samples: int) -> Draws:
        """As `nuts`, of the exact posterior, with latent records."""
        return self._chain(law, self._augmentation.sample(law, rng_key, num_samples))

    @cached_property
    def _augmentation(self) -> Augmented:
        return Augmented(self.of, self._num_records)

    @cached_property
    def _sampled(self) -> Any:
        """`numpyro.infer.MCMC` compiles a chain anew for every release; this is its kernel in one program."""

        def sampled(law: Law, rng_key: jax.Array, num_samples: int) -> jax.Array:
            kernel = NUTS(self._model, init_strategy=self._start)
            state = kernel.init(rng_key, num_samples // 2, init_params=None, model_args=(law,), model_kwargs={})

            def step(state: Any, _: None) -> tuple[Any, jax.Array]:
                state = kernel.sample(state, (law,), {})
                return state, state.z["eta"]

            steps = num_samples // 2 + num_samples
            return jax.lax.scan(step, state, None, length=steps)[1][num_samples // 2 :]

        return jax.jit(sampled, static_argnames="num_samples")


def _theta(law: Law, eta: jax.Array) -> jax.Array:
    """Flat theta, one or [draws, theta]."""
    return jnp.asarray(law.centre) + eta @ jnp.asarray(law.scale, eta.dtype).T
