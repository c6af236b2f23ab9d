"""NumPyro's transforms of latents to their supports; that of simplices compiles in a fraction of the time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import IndependentTransform, StickBreakingTransform
from numpyro.distributions.util import clamp_probs

__all__ = ["transform_to"]

_MOST_MULTIPLIED = 512
"""Sticks whose logarithms are added up by a matrix of so many squared; a scan of more is compiled step by step."""


def transform_to(support: Any) -> Any:
    """`numpyro.distributions.biject_to`: the same maps, up to rounding."""
    return _cheaper(biject_to(support))


def _cheaper(transform: Any) -> Any:
    if type(transform) is StickBreakingTransform:
        return _StickBreaking()
    if type(transform) is IndependentTransform:
        return IndependentTransform(_cheaper(transform.base_transform), transform.reinterpreted_batch_ndims)
    return transform


class _StickBreaking(StickBreakingTransform):
    """y_k = z_k prod_(j < k) (1 - z_j), the product as exp of one matrix product.

    NumPyro's product over the sticks is a scan of log2 K levels of slices. They and their derivatives are most of what
    is compiled for a model of simplices.
    """

    def __call__(self, x: jax.Array) -> jax.Array:
        """The simplex [..., K] at x [..., K - 1]."""
        count = x.shape[-1]
        share = clamp_probs(jax.nn.sigmoid(x - jnp.log(count - jnp.arange(count))))
        logs = jnp.log1p(-share)
        if count > _MOST_MULTIPLIED:
            left = jnp.cumsum(logs, axis=-1)
        else:
            up_to = jnp.triu(jnp.ones((count, count), x.dtype))
            left = jnp.dot(logs, up_to, precision=jax.lax.Precision.HIGHEST)
        edge = [(0, 0)] * (x.ndim - 1)
        taken = jnp.pad(share, [*edge, (0, 1)], constant_values=1.0)
        return taken * jnp.exp(jnp.pad(left, [*edge, (1, 0)]))
