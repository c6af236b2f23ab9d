"""Steps of DPVI: what the parties would share, added up in integers, for every value of a record."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sensitivity_parts.marked_noise import Audit, Draws, Sums
from sensitivity_parts.small_tables import (
    ADD_REMOVE,
    COLUMNS,
    DELTA,
    NUM_RECORDS,
    PARTIES,
    PLACES,
    SCHEMA,
    Record,
    beside,
    held_of,
    table_of,
)

from vertinumpyro.core import compat
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI
from vertinumpyro.dpvi.horizontal import ClientSteps, HorizontalDataset, HorizontalDPVI
from vertinumpyro.dpvi.posterior import state_leaves
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.privacy import Batches
from vertinumpyro.secure import fixed_point
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_encoding import without_tables
from vertinumpyro.secure.number_formats import EXP_BITS
from vertinumpyro.session import PartyComputation


def regression(outcome: str) -> Callable[..., None]:
    """ "smoker" or "age" of the clinic by all other columns."""
    observed = {"logistic": "smoker", "linear": "age"}[outcome]

    def model(data: Any, num_records: int) -> None:
        parts: dict[str, Any] = {}
        for party, columns in COLUMNS.items():
            for name, column in columns.items():
                if name != observed:
                    size = column.num_categories if column.kind == "categorical" else 1
                    w: Any = numpyro.sample(f"{name}_w", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
                    parts[party] = parts.get(party, 0.0) + (w[data[name]] if size > 1 else w[0] * data[name])
        eta = party_sum("eta", parts)
        law = dist.Bernoulli(logits=eta) if outcome == "logistic" else dist.Normal(eta, 0.3)
        with party_plate("clinic", num_records):
            numpyro.sample(observed, law, obs=data[observed])

    return model


class _EnteredError(Exception):
    """A step that ends where its numbers would enter the protocol."""


def entering(
    work: PartyComputation, rank: int, rows: np.ndarray, mask: np.ndarray, state: Any, protocol: str
) -> tuple[Any, ...]:
    """What a work hands to a protocol for a batch, its noise share last."""

    def entered(*given: Any) -> Any:
        raise _EnteredError(*(list(one) if isinstance(one, Iterator) else one for one in given))

    end = mock.Mock(spec=PartyProtocol, rank=rank)
    getattr(end, protocol).side_effect = entered
    try:
        work.iterate(end, Batches(rows.astype(np.int32)[None], mask[None]), state)
    except _EnteredError as found:
        return found.args
    raise AssertionError("the step entered no protocol")


_ring_sum = jax.jit(fixed_point.ring_sum, static_argnums=0)


def added_up(given: Sequence[tuple[Any, ...]]) -> np.ndarray:
    """The integers of a step, from what the parties would share."""
    shape, layout, _, prior, mask, _ = given[0]
    own = [without_tables(layout, number, blocks[0]) for number, (_, _, blocks, *_) in enumerate(given)]
    with compat.x64():
        inputs = fixed_point.Encoded(
            tuple(_in_ring(shape, numbers) for numbers in (*(one.log_density for one in own), prior.log_weights)),
            tuple(jnp.asarray(one.plated.transpose(1, 0, 2)) for one in own),
            tuple(jnp.asarray(one.shared.reshape(mask.size, shape.num_components, -1)) for one in own),
            tuple(() for _ in own),
            jnp.asarray(prior.scores),
        )
        return np.asarray(_ring_sum(shape, inputs, jnp.asarray(mask[0])))


def _in_ring(shape: Any, numbers: np.ndarray) -> jax.Array:
    """A party's own numbers are encoded as CrypTen's weights are; in one process weights are finer."""
    own = np.arange(numbers.shape[-1]) >= shape.link.sums_of(shape.num_components)
    return jnp.asarray(np.where(own, numbers << (EXP_FRACTIONAL_BITS - EXP_BITS), numbers))


def states(first: Any, quick: bool) -> list[dict[str, np.ndarray]]:
    """The first state, and others whose locations are far out."""
    out, rng = [], np.random.default_rng(2)
    for spread in (0.0, 1.0) if quick else (0.0, 1.0, 3.0):
        params = {
            name: leaf + spread * rng.normal(size=leaf.shape).astype(leaf.dtype) if name.endswith("loc") else leaf
            for name, leaf in first.params.items()
        }
        out.append(state_leaves(first._replace(params=params)))
    return out


Step = Callable[[np.ndarray, np.ndarray, Any], tuple[np.ndarray, Mapping[str, np.ndarray]]]
"""From rows [n], mask [n] and a state to integers [D] and each party's noise share [D]."""


def audit_steps(
    draws: Draws, plan: Any, step: Step, starts: Sequence[Any], values: Sequence[Record], noisy: Sequence[str],
    held: Mapping[str, Any],
) -> Audit:  # fmt: skip
    """The pool has the other records first, then one of each value."""
    absent, releases = plan.relation is ADD_REMOVE, []
    for place, state in itertools.product(PLACES, starts):
        rows = np.insert(np.arange(NUM_RECORDS - 1), place, NUM_RECORDS - 1)
        everyone = np.ones(NUM_RECORDS, bool)
        sums = [step(np.where(rows == NUM_RECORDS - 1, rows + i, rows), everyone, state)[0] for i in range(len(values))]
        if absent:
            sums.append(step(rows, rows < NUM_RECORDS - 1, state)[0])
        with draws.marked():
            noise = {party: draws.noise(share) for party, share in step(rows, everyone, state)[1].items()}
        releases.append([Sums(np.stack(sums), noise)])
    return Audit(plan, releases, held, noisy, len(values) if absent else None)


def dpvi(draws: Draws, values: Sequence[Record], quick: bool, system: DPVI, **settings: Any) -> Audit:
    facts = TableFacts(SCHEMA, NUM_RECORDS)
    plan = system.plan(
        facts, noise_multiplier=2.0, delta=DELTA, batch_size=NUM_RECORDS, num_steps=1,
        **{"clip_norm": 0.2, **settings},
    )  # fmt: skip
    pool = table_of(SCHEMA, [*beside(values), *values])
    works = {p: system.work(facts, p, own, plan, InsecureSeededSource(0)) for p, own in pool.items()}

    def step(rows: np.ndarray, mask: np.ndarray, state: Any) -> Any:
        given = [entering(w, i, rows, mask, state, "clipped_noisy_sum") for i, w in enumerate(works.values())]
        return added_up(given), {party: one[-1] for party, one in zip(works, given, strict=True)}

    _, first = system.kernel(facts, plan, compat.random_key(0))
    return audit_steps(draws, plan, step, states(first, quick), values, PARTIES, held_of(values))


def dpvi_of_holders(draws: Draws, values: Sequence[Record], quick: bool) -> Audit:
    """Each holder's records are whole; the one whose record changes has all records here, the other the same four."""
    schema, holders = Schema({"table": PartySchema(dict(SCHEMA.columns))}), ("a", "b")
    system, facts = HorizontalDPVI(mixture()), TableFacts(schema, NUM_RECORDS, holders=holders)
    plan = system.plan(facts, noise_multiplier=2.0, delta=DELTA, batch_size=NUM_RECORDS, num_steps=1, clip_norm=0.2)
    pool = table_of(schema, [*beside(values), *values])["table"]
    works = {h: system.work(facts, h, pool, plan, InsecureSeededSource(0)) for h in holders}

    def step(rows: np.ndarray, mask: np.ndarray, state: Any) -> Any:
        whole, share = entering(works["a"], 0, rows, mask, state, "noisy_sum")
        return whole, dict.fromkeys(holders, share)

    _, first = system.kernel(facts, plan, compat.random_key(0))
    return audit_steps(draws, plan, step, states(first, quick), values, holders, {})


def dpvi_of_clients(draws: Draws, values: Sequence[Record], quick: bool) -> Audit:
    """A client for each record, all of them in the batch and adding noise."""
    pool = VerticalDataset(SCHEMA, table_of(SCHEMA, [*beside(values), *values]))
    system, records = HorizontalDPVI(mixture()), HorizontalDataset(pool.take(np.arange(NUM_RECORDS)))
    plan = system.plan(records, noise_multiplier=2.0, delta=DELTA, batch_size=NUM_RECORDS, num_steps=1, clip_norm=0.2)
    kernel, first = system.kernel(records, plan, compat.random_key(0))
    clients, names = ClientSteps(kernel, pool, None), [f"client {i}" for i in range(NUM_RECORDS)]
    structure = jax.tree_util.tree_structure(first)

    def step(rows: np.ndarray, mask: np.ndarray, leaves: Any) -> Any:
        state = jax.tree_util.tree_unflatten(structure, [jnp.asarray(leaf) for leaf in leaves.values()])
        vectors = clients.vectors(state, Batches(rows.astype(np.int32)[None], mask[None]))
        shares = plan.draw_noise_shares(vectors.shape[1], InsecureSeededSource(0))
        return vectors.sum(axis=0), dict(zip(names, shares, strict=True))

    return audit_steps(draws, plan, step, states(first, quick), values, names, {})


def mixture() -> DPVI:
    return DPVI(num_components=2, warm_start=False)
