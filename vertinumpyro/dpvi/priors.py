"""A model's prior as what is Gaussian of it, or is taken to be: public, and found from its density and its draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer.initialization import init_to_sample

from vertinumpyro.core import compat
from vertinumpyro.model import SplitModel

_PRIOR_DRAWS = 128


class NormalPrior(NamedTuple):
    """A Gaussian prior's precision `[d, d]` and linear term `[d]`."""

    precision: Any
    linear: Any


def gaussian_prior(split: SplitModel) -> NormalPrior | None:
    """The prior as a Gaussian; None where it is none, as its Hessian at two places says."""
    if "gaussian prior" not in split.compiled:
        split.compiled["gaussian prior"] = _found_prior(split.log_prior, split.num_parameters)
    return split.compiled["gaussian prior"]


def _found_prior(log_prior: Callable[[jax.Array], jax.Array], size: int) -> NormalPrior | None:
    places = np.random.default_rng(9).normal(size=(2, size))
    hessian, gradient = jax.jit(jax.hessian(log_prior)), jax.jit(jax.grad(log_prior))
    one, other = (-np.asarray(hessian(jnp.asarray(place)), np.float64) for place in places)
    if not _is_constant(one, other):
        return None
    return NormalPrior(one, np.asarray(gradient(jnp.zeros(size)), np.float64))


def _is_constant(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two precisions of a density at two places are one Gaussian's."""
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6) and np.linalg.eigvalsh(one)[0] > 0)


def normal_given_rest(split: SplitModel) -> bool:
    """Whether the prior of what parts read is Gaussian given the rest, if there is one, as its Hessian says."""
    read, rng = split.read, np.random.default_rng(10)
    if len(read) == split.num_parameters:
        return False
    hessian, square = jax.jit(jax.hessian(split.log_prior)), np.ix_(read, read)
    for place in rng.normal(size=(2, split.num_parameters)):
        moved = place.copy()
        moved[read] = rng.normal(size=len(read))
        one, other = (-np.asarray(hessian(jnp.asarray(at)), np.float64)[square] for at in (place, moved))
        if not _is_constant(one, other):
            return False
    return True


def usual_prior(split: SplitModel, places: np.ndarray) -> NormalPrior:
    """The prior of some latents of flat theta; where it is not Gaussian, of independent ones as far spread as it is."""
    if (prior := gaussian_prior(split)) is not None:
        covariance = np.linalg.inv(prior.precision)
        middle = covariance @ prior.linear
    else:
        middle, spread = middle_and_spread(split)
        covariance = np.diag(spread**2)
    precision = np.linalg.inv(covariance[np.ix_(places, places)])
    return NormalPrior(precision, precision @ middle[places])


def apart_from_prior(split: SplitModel, precision: Any, linear: Any) -> np.ndarray:
    """Each number's estimate by a likelihood alone less the prior's, over the standard deviation of both `[theta]`.

    0 for what no part reads.

    :param precision, linear: of the likelihood, exp(linear'theta - theta' precision theta / 2).
    """
    read, found = split.read, np.zeros(split.num_parameters)
    prior, said = usual_prior(split, read), np.asarray(precision)[np.ix_(read, read)]
    said = said + 1e-9 * max(np.trace(said), 1.0) * np.eye(len(read))  # of what the likelihood says nothing
    own, other = np.linalg.inv(said), np.linalg.inv(prior.precision)
    between = own @ np.asarray(linear)[read] - other @ prior.linear
    found[read] = between / np.sqrt(np.maximum(np.diag(own), 0.0) + np.diag(other))
    return found


def drawn_prior(split: SplitModel) -> tuple[np.ndarray, np.ndarray]:
    """Draws of all latents from the prior `[128, theta]`, and its precision `[theta, theta]`: of one that is not
    Gaussian, that of independent latents as far spread as the draws."""
    if (prior := gaussian_prior(split)) is not None:
        root = np.linalg.cholesky(np.linalg.inv(prior.precision))
        normal = np.random.default_rng(12).normal(size=(_PRIOR_DRAWS, split.num_parameters))
        return np.linalg.solve(prior.precision, prior.linear) + normal @ root.T, prior.precision
    return prior_draws(split), np.diag(middle_and_spread(split)[1] ** -2.0)


def drawn_precisions(split: SplitModel, draws: np.ndarray) -> np.ndarray:
    """The prior's precision `[k, theta, theta]` at some draws, given there what no part reads."""
    _, precision = drawn_prior(split)
    if gaussian_prior(split) is not None or not normal_given_rest(split):
        return np.broadcast_to(precision, (len(draws), *precision.shape))
    return -np.asarray(jax.jit(jax.vmap(jax.hessian(split.log_prior)))(jnp.asarray(draws)), np.float64)


def prior_draws(split: SplitModel) -> np.ndarray:
    """Flat theta `[128, theta]`, the same for the same model."""
    if "prior draws" not in split.compiled:
        keys = jax.random.split(compat.random_key(11), _PRIOR_DRAWS)
        split.compiled["prior draws"] = np.stack([np.asarray(split.init(init_to_sample, key)) for key in keys])
    return split.compiled["prior draws"]


def middle_and_spread(split: SplitModel) -> tuple[np.ndarray, np.ndarray]:
    """The median of each number of flat theta, and half of what the middle two thirds of its draws take."""
    low, middle, high = np.quantile(prior_draws(split), [0.16, 0.5, 0.84], axis=0)
    return middle, (high - low) / 2 + 1e-6


def prior_stddev(split: SplitModel) -> np.ndarray:
    """The prior's standard deviation of each number of flat theta."""
    return np.sqrt(np.diag(np.linalg.inv(drawn_prior(split)[1])))
