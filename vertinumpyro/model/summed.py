"""What a party computes of a `party_sum`: its part on its own columns, and the part's derivatives by its latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vertinumpyro.core.types import Contribution, Theta
from vertinumpyro.model.enumeration import trace_at
from vertinumpyro.model.local_gradient import empty
from vertinumpyro.model.party_sum import PartySums
from vertinumpyro.model.summed_outcome import SummedOutcome

__all__ = ["part_contribution", "part_inputs"]

Columns = Mapping[str, Any]


def part_contribution(
    model: Callable[..., Any], summed: SummedOutcome, party: str, theta: Theta, own: Columns, stand_ins: Columns
) -> Contribution:
    """A party's numbers for the outcome's link [n, S] or, at the outcome's party, [n, S + O], and its scores [n, 1, s].

    The scores are the outcome's `unit` times the derivatives of the party's part.

    :param own: the party's columns [n].
    :param stand_ins: every party's columns [1], which nothing of this party's part reads.
    """
    names = summed.latents.get(party, ())

    def of_record(row: Columns) -> tuple[jax.Array, jax.Array]:
        columns = {**stand_ins, **{name: value[None] for name, value in row.items()}}

        def predictor(part: Theta) -> tuple[jax.Array, jax.Array]:
            eta, value = _run(model, summed, party, {**theta, **part}, columns)
            return eta, _inputs(summed, party, eta, value)

        gradients, inputs = jax.grad(predictor, has_aux=True)({name: theta[name] for name in names})
        return inputs, jnp.concatenate([jnp.zeros(0), *(jnp.ravel(gradients[name]) for name in names)])

    inputs, scores = jax.vmap(of_record)(own)
    nothing = empty(len(inputs), 1, scores.dtype)
    return nothing._replace(log_density=inputs, shared_scores=summed.outcome.unit * scores[:, None, :])


def part_inputs(
    model: Callable[..., Any], summed: SummedOutcome, party: str, theta: Theta, own: Columns, stand_ins: Columns
) -> Float[Array, "n Z"]:
    """The same without the scores."""

    def of_record(row: Columns) -> jax.Array:
        columns = {**stand_ins, **{name: value[None] for name, value in row.items()}}
        return _inputs(summed, party, *_run(model, summed, party, theta, columns))

    return jax.vmap(of_record)(own)


def _run(
    model: Callable[..., Any], summed: SummedOutcome, party: str, theta: Theta, columns: Columns
) -> tuple[jax.Array, jax.Array]:
    """The party's part of one record, and the outcome's value, a stand-in's at other parties."""
    run = PartySums(model)
    trace = trace_at(run, theta, None, columns, 1)
    part = run.parts[summed.sum_name].get(party, jnp.zeros(1))
    return jnp.reshape(part, ()).astype(float), jnp.asarray(trace[summed.site]["value"])[0]


def _inputs(summed: SummedOutcome, party: str, eta: jax.Array, value: jax.Array) -> jax.Array:
    offsets, own = summed.outcome.offsets(value), summed.outcome.own(value)
    sums = jnp.broadcast_to(summed.outcome.scale * eta, offsets.shape)
    return jnp.concatenate([sums - offsets, own]) if party == summed.party else sums
