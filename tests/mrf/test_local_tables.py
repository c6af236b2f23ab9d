"""A party's own tables: pairs where noise leaves something of them, single columns in the place of the others."""

import jax
import numpy as np
import pytest

from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.data import CategoricalColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.evaluation import k_way_tvd
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.field import has_engine
from vertinumpyro.mrf.forecast import held, single_tables
from vertinumpyro.mrf.local_tables import LocalBudget, LocalTables, measure_locally
from vertinumpyro.privacy import NeighbouringRelation

SIZES = (2, 3, 12, 15)


def columns_of(sizes=SIZES):
    columns = {f"c{i}": CategoricalColumn(categories=tuple(range(size))) for i, size in enumerate(sizes)}
    return Schema({"clinic": PartySchema(columns)})


def measured(num_records: int, mu: float, sizes: tuple[int, ...] = SIZES) -> LocalTables:
    rng, schema = np.random.default_rng(0), columns_of(sizes)
    arrays = {f"c{i}": rng.integers(size, size=num_records) for i, size in enumerate(sizes)}
    budget = LocalBudget(mu=mu, recovery_share=0.0, num_records=num_records, relation=NeighbouringRelation.REPLACE)
    return measure_locally(cell_columns(schema), arrays, budget, SystemRandomSource())


def names(found: LocalTables) -> set[tuple[str, ...]]:
    return {m.columns for m in found.measurements}


def test_with_many_records_every_pair_has_a_table():
    assert {m for m in names(measured(100_000, 1.0)) if len(m) == 2} == {
        (f"c{i}", f"c{j}") for i in range(4) for j in range(i + 1, 4)
    }
    assert not {m for m in names(measured(100_000, 1.0)) if len(m) == 1}


def test_where_noise_would_drown_single_columns_they_take_the_place_of_pairs():
    """But for a pair of so few cells that its columns' counts are hardly noisier in it."""
    assert names(measured(300, 0.1)) == {("c0", "c1"), ("c2",), ("c3",)}


def test_of_wide_columns_those_pairs_are_kept_that_may_show_a_large_association():
    found = names(measured(1000, 0.3, (2, 4, 30, 40)))
    assert ("c2", "c3") not in found
    assert {("c0", "c1"), ("c3",)} <= found


@pytest.mark.parametrize(("num_records", "mu"), [(300, 0.1), (1000, 0.4), (100_000, 1.0)])
def test_all_that_is_released_costs_the_budget_at_most(num_records, mu):
    """Under replace a table moves by √2, so k of them with a standard deviation each cost 2 Σ 1/σ² of μ²."""
    found = measured(num_records, mu)
    assert sum(2 / m.stddev**2 for m in found.measurements) <= mu**2 * (1 + 1e-9)


def test_single_columns_are_better_known_than_by_pairs_that_say_nothing(monkeypatch):
    few = single_tables(measured(300, 0.1).measurements, 300)
    monkeypatch.setattr("vertinumpyro.mrf.local_tables.cells_that_show", lambda *_: np.inf)
    pairs = single_tables(measured(300, 0.1).measurements, 300)
    assert few["c3"].stddev < 0.7 * pairs["c3"].stddev


@pytest.mark.skipif(not has_engine(), reason="the engine mbi 2 needs jax 0.9: extra `mrf`")
@pytest.mark.promise
def test_a_twin_of_few_records_has_its_single_columns(monkeypatch):
    rng = np.random.default_rng(0)
    schema = columns_of((2, *[12] * 5))
    shares = rng.dirichlet(np.full(12, 0.5), size=5)
    drawn = {"c0": rng.integers(2, size=400)} | {f"c{i + 1}": rng.choice(12, 400, p=p) for i, p in enumerate(shares)}
    data, errors = VerticalDataset.from_pooled(schema, drawn), []
    system = VertiMRF()
    plan = system.plan(TableFacts(schema, 400), epsilon=0.5)
    for _ in range(2):
        posterior = system.fit(data, system.plan(data, epsilon=0.5), insecure_seed=0)
        twin = posterior.sample_synthetic(rng_key=jax.random.key(0))
        errors.append(k_way_tvd(data.to_frame(), twin, schema, 1, rng=0).mean)
        monkeypatch.setattr("vertinumpyro.mrf.local_tables.cells_that_show", lambda *_: np.inf)
    assert plan.worst.epsilon <= 0.5
    assert errors[0] < 0.85 * errors[1]


def test_pairs_without_a_table_count_as_not_held():
    schema, system = columns_of(), VertiMRF()
    facts = TableFacts(schema, 300)
    plan = system.plan(facts, epsilon=0.2)
    foreseen = system.forecast(schema, plan)
    assert foreseen.expected.num_pairs == 6
    assert len(foreseen.smallest) == 6
    assert foreseen.smallest["c2", "c3"] == 1.0
    assert held(system.stand_in(schema, plan)).num_pairs == 6
