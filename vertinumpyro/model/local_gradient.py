"""One party's part of the log density and its scores, vectorised over a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vertinumpyro.core.types import Contribution, ScoreTable, Theta

__all__ = ["LogDensity", "combined", "contribution", "empty", "looked_up"]

LogDensity = Callable[[Theta, Mapping[str, Any]], Float[Array, " K"]]
"""log density of one record's columns at one party under each component, given the latents."""


def contribution(
    log_density: LogDensity,
    theta: Theta,
    plated: Mapping[str, int],
    shared: tuple[str, ...],
    columns: Mapping[str, Any],
) -> Contribution:
    """The party's log densities [n, K] and scores [n, K, d], [n, K, s] on a batch of its own columns.

    A component-plated parameter theta_k enters l_nk only, so one reverse pass over sum_k l_nk gives the
    scores of all components at once: [n, K, d] and never the [n, K, K d] Jacobian. If a parameter were
    wrongly called plated, the scores would be another vector than the gradient, but clip and noise would
    still be computed from the very vector that is released, so privacy never rests on this structure.

    :param plated: sites with one slice per component, and the axis of the component in each.
    :param shared: sites that several components read.
    :param columns: the party's columns, each [n].
    """
    plated_theta = {name: theta[name] for name in plated}
    shared_theta = {name: theta[name] for name in shared}

    def of_record(row: Mapping[str, jax.Array]) -> Contribution:
        def summed(plated_theta: Theta) -> tuple[jax.Array, jax.Array]:
            values = log_density({**theta, **plated_theta}, row)
            return values.sum(), values

        def of_shared(shared_theta: Theta) -> jax.Array:
            return log_density({**theta, **shared_theta}, row)

        gradients, values = jax.grad(summed, has_aux=True)(plated_theta)
        jacobians = jax.jacrev(of_shared)(shared_theta) if shared else {}
        num_components = values.shape[0]
        plated_rows = [
            jnp.moveaxis(gradients[name], axis, 0).reshape(num_components, -1) for name, axis in plated.items()
        ]
        shared_rows = [jacobians[name].reshape(num_components, -1) for name in shared]
        return Contribution(values, _concatenate(plated_rows, values), _concatenate(shared_rows, values))

    return jax.vmap(of_record)(columns)


def empty(num_records: int, num_components: int, dtype: Any) -> Contribution:
    """The contribution of no site at all."""
    zeros = jnp.zeros((num_records, num_components), dtype)
    return Contribution(zeros, zeros[..., None][..., :0], zeros[..., None][..., :0])


def looked_up(rows: Contribution, codes: Int[Array, " n"]) -> Contribution:
    """The records' contribution from one that was evaluated on a column's values; plated scores stay a table."""
    nothing = rows.plated_scores[..., :0][codes]
    table = ScoreTable(rows.plated_scores, codes)
    return Contribution(rows.log_density[codes], nothing, rows.shared_scores[codes], (table,))


def combined(groups: Sequence[Contribution]) -> Contribution:
    """The contribution of all groups together: log densities add up, scores stand side by side."""
    return Contribution(
        sum((group.log_density for group in groups[1:]), start=groups[0].log_density),
        jnp.concatenate([group.plated_scores for group in groups], axis=-1),
        jnp.concatenate([group.shared_scores for group in groups], axis=-1),
        tuple(table for group in groups for table in group.tables),
    )


def _concatenate(blocks: list[jax.Array], like: jax.Array) -> jax.Array:
    """Blocks [K, d_i] side by side; [K, 0] where there are none."""
    return jnp.concatenate([jnp.zeros((like.shape[0], 0), like.dtype), *blocks], axis=-1)
