"""What the split must equal, computed without it: NumPyro's own densities and transforms."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import logsumexp, softmax
from numpyro import handlers
from numpyro.contrib.funsor import config_enumerate, enum
from numpyro.infer.util import constrain_fn, potential_energy

from vertinumpyro.core.types import Model, Theta
from vertinumpyro.model import SplitModel


def constrained(model: Model, theta: Theta, data: Mapping[str, Any], num_records: int) -> dict[str, jax.Array]:
    """NumPyro's own constrained values of unconstrained latents."""
    return constrain_fn(handlers.seed(model, 0), (data, num_records), {}, theta)


def pooled_log_density(model: Model, theta: Theta, data: Mapping[str, Any], num_records: int) -> jax.Array:
    """log p(theta) + log |Jacobian| + sum_n log p(x_n | theta), with z summed out by funsor."""
    enumerated = enum(config_enumerate(handlers.seed(model, 0)), first_available_dim=-2)
    return -potential_energy(enumerated, (data, num_records), {}, dict(theta), enum=True)


def log_prior(model: Model, theta: Theta, data: Mapping[str, Any], hidden: list[str]) -> jax.Array:
    """NumPyro's potential, negated, of the model without its record-level sites."""
    latents_only = handlers.block(handlers.seed(model, 0), hide=hidden)
    return -potential_energy(latents_only, (data, len(next(iter(data.values())))), {}, dict(theta))


def own_columns(split: SplitModel, party: str, data: Mapping[str, Any]) -> dict[str, jax.Array]:
    own = split.schema.column_names(party)
    return {name: jnp.asarray(c) for name, c in data.items() if name.removesuffix("_observed") in own}


def assembled(split: SplitModel, flat: jax.Array, data: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
    """Log densities [n] and per-record gradients [n, theta], from what the parties compute alone.

    Responsibilities times scores, laid out as the released vector and gathered into flat theta.
    """
    contributions = [split.contribution(p, flat, own_columns(split, p, data)).without_tables() for p in split.parties]
    prior = split.component_prior(flat)
    joint = prior.log_weights + sum(c.log_density for c in contributions)
    weights = softmax(joint, axis=1)
    blocks = [weights @ prior.scores]
    for c in contributions:
        blocks.append((weights[:, :, None] * c.plated_scores).reshape(len(weights), -1))
        blocks.append(jnp.einsum("nk,nks->ns", weights, c.shared_scores))
    return logsumexp(joint, axis=1), jax.vmap(split.gather)(jnp.concatenate(blocks, axis=1))


def random_theta(split: SplitModel, seed: int) -> jax.Array:
    draws = np.random.default_rng(seed).normal(0.0, 0.7, split.num_parameters)
    return jnp.asarray(draws, jnp.float32)
