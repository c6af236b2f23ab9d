"""The posterior of the tables' law, by NumPyro's SVI and NUTS, in coordinates in which it is about standard normal."""

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

from vertinumpyro.core.errors import InferenceWarning
from vertinumpyro.marginals.augmentation import Augmented
from vertinumpyro.marginals.table_likelihood import Law, TableLikelihood

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
