"""What a party computes of `party_sum`s: its parts on its own columns, and the parts' derivatives by its latents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vertinumpyro.core.types import Contribution, Theta
from vertinumpyro.model.enumeration import trace_at
from vertinumpyro.model.party_sum import PartySums
from vertinumpyro.model.summed_outcome import SummedOutcome

__all__ = ["PartLatents", "part_contribution", "part_inputs"]

Columns = Mapping[str, Any]


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
