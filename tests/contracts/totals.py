"""The exact sums that every party's `PartyComputation` adds up, for records that stand in one pool: noise is zero.

A total is a function of record numbers [n] of the pool, and of which of them are chosen [n], to all integers that the
work's releases add up over the chosen ones. Steps compute the others too, and mask them.
"""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from tests.contracts.record_tables import COLUMNS, PARTIES, Table, dealt, drawn, taken
from vertinumpyro.core import compat, row_blocks
from vertinumpyro.core.ring import EXP_FRACTIONAL_BITS
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import BinaryColumn, Column, PartySchema, RealColumn, Schema, TableFacts, VerticalDataset
from vertinumpyro.dpvi import DPVI, second_moments
from vertinumpyro.dpvi.horizontal import ClientSteps, HolderWork, HorizontalDPVI
from vertinumpyro.dpvi.outcome_tables import EventTimes
from vertinumpyro.dpvi.party_steps import StepsWork
from vertinumpyro.dpvi.second_moments import MomentsPlan, widths_of
from vertinumpyro.model import party_plate, party_sum
from vertinumpyro.model.split import public_offsets
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.contingency import exact_tables, fine_tables
from vertinumpyro.mrf.releases import ACROSS, OWN, TRIPLES, TablesWork
from vertinumpyro.privacy import Batches, NoiseSource, PoissonSampling
from vertinumpyro.regression import BayesianLinearRegression, VerticalLogisticRegression
from vertinumpyro.regression import noisy_moments as objective
from vertinumpyro.regression.bayesian_linear import StatisticsWork, feature_columns
from vertinumpyro.regression.features import FeatureGroup
from vertinumpyro.regression.functional_plan import FunctionalMechanismPlan
from vertinumpyro.secure import fixed_point
from vertinumpyro.secure.between_processes import PartyProtocol
from vertinumpyro.secure.input_encoding import PartyInputs, without_tables
from vertinumpyro.secure.number_formats import EXP_BITS
from vertinumpyro.session import Multiply, PartyComputation, Publish, ReleaseRequest, Sum

NUM_RECORDS = 12
POOL = 4 * NUM_RECORDS  # the first are the table's; the others replace them
TARGET = RealColumn(bounds=(-1, 1))
CLASSES = BinaryColumn()

Total = Callable[[np.ndarray, np.ndarray], np.ndarray]
Asked = Sequence[ReleaseRequest]
"""What a work is asked for."""


@dataclasses.dataclass(frozen=True)
class Case:
    """The columns that a method takes, which work adds them up, and its total over a pool."""

    work: type[PartyComputation]
    schema: Schema
    total: Callable[[Schema, Table], Total]

    def over(self, seed: int) -> Total:
        tables = [drawn(self.schema, NUM_RECORDS, seed + i) for i in range(POOL // NUM_RECORDS)]
        parties = self.schema.parties
        pool = {p: {name: np.concatenate([t[p][name] for t in tables]) for name in tables[0][p]} for p in parties}
        dataset = VerticalDataset(self.schema, pool)
        return self.total(self.schema, {party: dataset.arrays(party) for party in parties})


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw of noise is zero, wherever it is called."""
    draws = {
        "sample_discrete_gaussian": lambda variance, size, source: np.zeros(size, np.int64),
        "draw_noise_share": lambda variance, size, source: np.zeros(size, np.int64),
        "sample_laplace_shares": lambda scale, shares, size, source: np.zeros(size, np.int64),
    }
    for module in [module for name, module in sys.modules.items() if name.startswith("vertinumpyro.")]:
        for name, draw in draws.items():
            if name in vars(module):
                monkeypatch.setattr(module, name, draw)


# -- releases that are made once -------------------------------------------------------------------------


def once(works: Callable[[Table], Sequence[PartyComputation]], asked: Asked, pool: Table) -> Total:
    """Works of the chosen records alone: these integers do not depend on how many there are."""

    def total(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        made = works(chosen_of(pool, rows[chosen]))
        found = [np.asarray(part).ravel() for one in asked for part in _released(made, one)]
        return np.concatenate(found)

    return total


def chosen_of(pool: Table, rows: np.ndarray) -> Table:
    return {party: {name: array[rows] for name, array in own.items()} for party, own in pool.items()}


def _released(works: Sequence[PartyComputation], request: ReleaseRequest) -> list[np.ndarray]:
    if isinstance(request, Publish):
        return [array for work in works for array in work.publish(request).arrays.values()]
    if isinstance(request, Sum):
        return [np.sum([work.summand(request) for work in works], axis=0)]
    assert isinstance(request, Multiply)
    return row_blocks.products([work.factor(request) for work in works])


def works_of(method: Any, facts: TableFacts, plan: Any) -> Callable[[Table], list[PartyComputation]]:
    return lambda table: [method.work(facts, p, own, plan, InsecureSeededSource(0)) for p, own in table.items()]


def tables_total(asked: Asked, workload: Any, schema: Schema, pool: Table) -> Total:
    mrf, facts = VertiMRF(workload=workload), TableFacts(schema, NUM_RECORDS)
    return once(works_of(mrf, facts, mrf.plan(facts, epsilon=1.0, delta=0.01)), asked, pool)


def triples_total(schema: Schema, pool: Table) -> Total:
    """Neighbours of each party as one column, with a column of the other: every column is in a compound, and alone."""
    mrf, facts = VertiMRF(max_cells=3, triples=False), TableFacts(schema, NUM_RECORDS)
    one, other = (list(part.columns) for part in schema.parties.values())
    chosen = [[*one[i : i + 2], other[i % len(other)]] for i in range(0, len(one) - 1, 2)]
    chosen += [[one[i % len(one)], *other[i : i + 2]] for i in range(0, len(other) - 1, 2)]
    plan = mrf.plan(facts, epsilon=1.0, delta=0.01)
    plan = dataclasses.replace(plan, num_triples=len(chosen), first_share=0.5)
    asked = Multiply(2, TRIPLES, {"release": 1, "triples": chosen})
    works = works_of(mrf, facts, plan)
    works(pool)[0].check(asked)
    return once(works, [asked], pool)


def own_tables_total(schema: Schema, pool: Table) -> Total:
    """All pairs of each party's columns, some triples, and the finer histograms: a plan chooses among them."""
    columns = VertiMRF().columns(schema)

    def total(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        found = []
        for party, arrays in chosen_of(pool, rows[chosen]).items():
            own = [column for column in columns if column.party == party]
            pairs = list(itertools.combinations(range(len(own)), 2))
            triples = list(itertools.combinations(range(len(own)), 3))[::17]
            found += exact_tables(own, arrays, pairs + triples) + fine_tables(own, arrays)
        return np.concatenate([table.ravel() for table in found])

    return total


def functional_total(label: str, schema: Schema, pool: Table) -> Total:
    plan = FunctionalMechanismPlan.of(
        schema, label, num_records=NUM_RECORDS, model="linear", epsilon=1.0, delta=0.01, expand=["integer_forbid"]
    )
    asked = [Publish(0, objective.OWN), Multiply(1, objective.ACROSS)]
    return once(works_of(VerticalLogisticRegression(), TableFacts(schema, NUM_RECORDS), plan), asked, pool)


def statistics_total(schema: Schema, pool: Table) -> Total:
    """Of holders of whole records: one has all of them, as sums over holders add up anyway."""
    system = BayesianLinearRegression(target="y")
    facts = TableFacts(schema, NUM_RECORDS, holders=PARTIES)
    bounds = {"bounds": np.linspace(0.3, 2, len(schema.columns)).tolist()}
    asked = [Sum(step, name, bounds) for step, name in enumerate(("moments", "statistics"))]
    return once(works_of(system, facts, system.plan(facts)), asked, pool)


def moments_total(schema: Schema, pool: Table, events: EventTimes | None = None, exposure: str | None = None) -> Total:
    split = DPVI(regression(schema, exposure)).split(schema)
    offsets = public_offsets(split) if exposure else ()
    plan = MomentsPlan(
        noise_multiplier=1.0, num_records=NUM_RECORDS, parties=split.parties, widths=widths_of(split, offsets),
        offsets=offsets,
        clip_parts=(2, 3), radius=2.0, delta=0.01, noise=NoiseSource(num_parties=2),
        cells=() if events is None else events.cells(schema),
    )  # fmt: skip
    asked = [Publish(0, second_moments.OWN), Multiply(1, second_moments.ACROSS)]

    def works(table: Table) -> list[PartyComputation]:
        source = InsecureSeededSource(0)
        return [second_moments.MomentsWork(split, plan, p, own, source, events) for p, own in table.items()]

    return once(works, asked, pool)


# -- steps -----------------------------------------------------------------------------------------------


def regression(schema: Schema, exposure: str | None = None) -> Callable[..., None]:
    """A logistic regression on all columns but "y", codes by coefficients of their own; one without, if it is named."""

    def model(data: Any, num_records: int) -> None:
        parts: dict[str, Any] = dict.fromkeys(PARTIES, 0.0)
        for party, name, column in ((p, n, c) for p, part in schema.parties.items() for n, c in part.columns.items()):
            if name == exposure:
                parts[party] = parts[party] + jnp.log1p(data[name])
            elif name != "y":
                size = column.num_categories if column.kind == "categorical" else 1
                w: Any = numpyro.sample(f"{name}_w", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
                parts[party] = parts[party] + (w[data[name]] if size > 1 else w[0] * data[name])
        with party_plate(PARTIES[0], num_records):
            numpyro.sample("y", dist.Bernoulli(logits=party_sum("eta", parts)), obs=data["y"])

    return model


class _EnteredError(Exception):
    """A step that ends where its numbers would enter the protocol."""


def entering(work: PartyComputation, rows: np.ndarray, chosen: np.ndarray, protocol: str) -> tuple[Any, ...]:
    """What a work hands to a protocol for a batch, in the place of a step."""

    def captured(*given: Any) -> Any:
        raise _EnteredError(*(list(one) if isinstance(one, Iterator) else one for one in given))

    end = mock.Mock(spec=PartyProtocol, rank=PARTIES.index(getattr(work, "_party", PARTIES[0])))
    getattr(end, protocol).side_effect = captured
    with pytest.raises(_EnteredError) as found:
        work.iterate(end, Batches(rows.astype(np.int32)[None], chosen[None]), {})
    return found.value.args


def batches() -> PoissonSampling:
    return PoissonSampling(sampling_prob=NUM_RECORDS / POOL, num_steps=1, max_batch_size=NUM_RECORDS)


def steps_total(dpvi: DPVI, settings: Mapping[str, Any], schema: Schema, pool: Table) -> Total:
    """What the parties' shares add up to when their processes make a step."""
    facts = TableFacts(schema, POOL)
    plan = dpvi.plan(facts, sampling=batches(), noise_multiplier=1.0, delta=0.01, **settings)
    works = works_of(dpvi, facts, plan)(pool)

    def total(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        given = [entering(work, rows, chosen, "clipped_noisy_sum") for work in works]
        shape, layout, _, prior, mask, _ = given[0]
        blocks = zip(*(own for _, _, own, *_ in given), strict=True)
        sums = [_added_up(shape, layout, own, prior, kept) for own, kept in zip(blocks, mask, strict=True)]
        return np.sum(sums, axis=0)

    return total


def _added_up(shape: Any, layout: Any, parties: Sequence[PartyInputs], prior: Any, mask: np.ndarray) -> np.ndarray:
    own = [without_tables(layout, number, inputs) for number, inputs in enumerate(parties)]
    n, K = mask.size, shape.num_components
    with compat.x64():
        inputs = fixed_point.Encoded(
            tuple(_in_ring(shape, numbers) for numbers in (*(one.log_density for one in own), prior.log_weights)),
            tuple(jnp.asarray(one.plated.transpose(1, 0, 2)) for one in own),
            tuple(jnp.asarray(one.shared.reshape(n, K, -1)) for one in own),
            tuple(() for _ in own),
            jnp.asarray(prior.scores),
        )
        return np.asarray(_ring_sum(shape, inputs, jnp.asarray(mask)))


def _in_ring(shape: Any, numbers: np.ndarray) -> jax.Array:
    """A party's own numbers are encoded as CrypTen's weights are; in one process weights are finer."""
    own = np.arange(numbers.shape[-1]) >= shape.link.sums_of(shape.num_components)
    return jnp.asarray(np.where(own, numbers << (EXP_FRACTIONAL_BITS - EXP_BITS), numbers))


_ring_sum = jax.jit(fixed_point.ring_sum, static_argnums=0)


def in_process_total(dpvi: DPVI, schema: Schema, pool: Table) -> Total:
    """The same step in one process: the arithmetic of the jitted scan."""
    dataset = VerticalDataset(schema, pool)
    plan = dpvi.plan(dataset, sampling=batches(), noise_multiplier=1.0, delta=0.01)
    kernel, state = dpvi.kernel(dataset, plan, compat.random_key(0))
    columns = {party: {name: jnp.asarray(a) for name, a in own.items()} for party, own in pool.items()}

    @jax.jit
    def summed(rows: jax.Array, chosen: jax.Array) -> jax.Array:
        local, prior = (compat.at_precision(kernel.user_x64, f) for f in (kernel.local, kernel.component_prior))
        return fixed_point.clipped_sum(kernel.shape, local(state, columns, rows), prior(state), chosen)

    def total(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        with compat.x64():
            return np.asarray(summed(rows.astype(np.int32), chosen))

    return total


def holder_total(schema: Schema, pool: Table) -> Total:
    system = HorizontalDPVI(DPVI(num_components=2))
    facts = TableFacts(schema, POOL, holders=PARTIES)
    plan = system.plan(facts, noise_multiplier=1.0, delta=0.01, batch_size=NUM_RECORDS, num_steps=1)
    (work,) = works_of(system, facts, plan)(pool)
    return lambda rows, chosen: entering(work, rows, chosen, "noisy_sum")[0]


def clients_total(schema: Schema, pool: Table) -> Total:
    """The vectors of clients with a record each."""
    system, facts = HorizontalDPVI(DPVI(num_components=2)), TableFacts(schema, POOL, holders=PARTIES)
    plan = system.plan(facts, noise_multiplier=1.0, delta=0.01, batch_size=NUM_RECORDS, num_steps=1)
    kernel, state = system.kernel(facts, plan, compat.random_key(0))
    clients = ClientSteps(kernel, VerticalDataset(schema, pool), None)
    return lambda rows, chosen: clients.vectors(state, Batches(rows.astype(np.int32)[None], chosen[None])).sum(0)


# -- all of them -----------------------------------------------------------------------------------------


def _functional() -> Schema:
    return dealt(taken(COLUMNS, lambda column: FeatureGroup.of("", "", column, expand=False)) | {"y": TARGET})


def _linear() -> Schema:
    def take(column: Column) -> None:
        feature_columns(Schema({"a": PartySchema({"x": column, "y": TARGET})}), "y")

    return dealt(taken(COLUMNS, take) | {"y": TARGET}, ["table"])


def _complete() -> Schema:
    """Of a regression: every type without missing values, and with a code for them."""
    chosen = ("real", "atoms", "groups", "count", "category", "binary", "days")
    columns = {name: COLUMNS[f"{name}_forbid"] for name in chosen}
    return dealt({"y": CLASSES, **columns, "level": COLUMNS["category_category"]})


def _mixed(names: Collection[str], parties: Sequence[str] = PARTIES) -> Schema:
    """Of a mixture: columns under one rule for missing values each, all rules among them."""
    rules = {"real": "mask", "atoms": "category", "groups": "forbid", "count": "mask", "category": "category",
             "binary": "mask", "days": "forbid"}  # fmt: skip
    return dealt({name: COLUMNS[f"{name}_{rules[name]}"] for name in names}, parties)


_KINDS = ("real", "atoms", "count", "binary")
_TYPES = (*_KINDS, "groups", "category", "days")


@functools.cache
def _survival() -> Schema:
    """Whether an event was seen, and when, at one party; a number at the other."""
    own, other = {"y": CLASSES, "time": RealColumn(bounds=(0, 4))}, {"x": TARGET}
    return Schema({PARTIES[0]: PartySchema(own), PARTIES[1]: PartySchema(other)})


def cases() -> dict[str, Case]:
    """Every work of the library, with the columns that its method takes."""
    everything, functional, complete_ = dealt(COLUMNS), _functional(), _complete()
    mixed, one = _mixed(_TYPES), _mixed(_KINDS, ["t"])
    named = [tuple(everything.parties[p].columns)[i : i + 2] for p in PARTIES for i in range(0, 18, 2)]
    across = list(zip(*(part.columns for part in everything.parties.values()), strict=True))
    mixture, linear = DPVI(num_components=2, warm_start=False), DPVI(regression(complete_), warm_start=False)
    local = {"clip": "local", "residual_bound": 0.3, "clip_norm": 0.5}
    blocks = dataclasses.replace(linear, block_size=5)
    partial = functools.partial
    return {
        "tables across parties": Case(
            TablesWork, everything, partial(tables_total, [Multiply(1, ACROSS, {"release": 0})], None)
        ),
        "own tables of a workload": Case(
            TablesWork, everything, partial(tables_total, [Publish(0, OWN)], [*named, *across])
        ),
        "tables of three columns": Case(TablesWork, everything, triples_total),
        "own tables": Case(TablesWork, everything, own_tables_total),
        "functional mechanism": Case(objective.MomentsWork, functional, partial(functional_total, "y")),
        "linear regression of holders": Case(StatisticsWork, _linear(), statistics_total),
        "second moments": Case(second_moments.MomentsWork, complete_, moments_total),
        "second moments, and when events were": Case(
            second_moments.MomentsWork, _survival(), partial(moments_total, events=EventTimes("y", "time", ""))
        ),
        "second moments, and of an offset": Case(
            second_moments.MomentsWork, _survival(), partial(moments_total, exposure="time")
        ),
        "steps of a mixture": Case(StepsWork, mixed, partial(steps_total, mixture, {"clip_norm": 2.0})),
        "steps of a mixture, in process": Case(StepsWork, _mixed(_KINDS), partial(in_process_total, mixture)),
        "steps of a regression": Case(
            StepsWork, complete_, partial(steps_total, linear, {"clip": "joint", "clip_norm": 0.5})
        ),
        "steps of a regression, clipped by parties": Case(StepsWork, complete_, partial(steps_total, linear, local)),
        "steps of a regression, in blocks": Case(StepsWork, complete_, partial(steps_total, blocks, local)),
        "steps of holders": Case(HolderWork, one, holder_total),
        "steps of clients": Case(HolderWork, one, clients_total),
    }
