"""What a party computes of `party_sum`s: its parts on its own columns, and the parts' derivatives by its latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    model: Callable[..., Any],
    summed: Sequence[SummedOutcome],
    party: str,
    theta: Theta,
    own: Columns,
    stand_ins: Columns,
) -> Contribution:
    """A party's numbers for the outcomes' link, and its scores [n, K, s] of K outcomes by all latents of its parts.

    The numbers are those of every sum, and behind them the own ones of outcomes that are this party's. The scores are
    each outcome's `unit` times the derivatives of the party's part, 0 by latents that only another part reads.

    :param own: the party's columns [n].
    :param stand_ins: every party's columns [1], which nothing of this party's parts reads.
    """
    names = sorted({name for outcome in summed for name in outcome.latents.get(party, ())})
    units = jnp.asarray([outcome.outcome.unit for outcome in summed])[:, None]

    def of_record(row: Columns) -> tuple[jax.Array, jax.Array]:
        columns = {**stand_ins, **{name: value[None] for name, value in row.items()}}

        def predictors(part: Theta) -> tuple[jax.Array, jax.Array]:
            found = _run(model, summed, party, {**theta, **part}, columns)
            return jnp.stack([eta for eta, _ in found]), _inputs(summed, party, found)

        if not names:
            return predictors({})[1], jnp.zeros((len(summed), 0))
        jacobians, inputs = jax.jacrev(predictors, has_aux=True)({name: theta[name] for name in names})
        rows = [jnp.reshape(jacobians[name], (len(summed), -1)) for name in names]
        return inputs, jnp.concatenate(rows, axis=1)

    inputs, scores = jax.vmap(of_record)(own)
    nothing = empty(len(inputs), len(summed), scores.dtype)
    return nothing._replace(log_density=inputs, shared_scores=units.astype(scores.dtype) * scores)


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
