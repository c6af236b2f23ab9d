"""Rounds of local refinement: what a gap may move by, what the rounds cost, what they measure."""

import itertools
import math

import numpy as np
import pytest

from tests.mrf.conftest import NUM_RECORDS, SCHEMA
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import SystemRandomSource
from vertinumpyro.mrf import MRFPlan, VertiMRF
from vertinumpyro.mrf.cells import cell_columns
from vertinumpyro.mrf.graphical_model import GraphicalModel
from vertinumpyro.mrf.local_budget import LocalBudget
from vertinumpyro.mrf.local_model import measure_locally
from vertinumpyro.mrf.refinement import candidate_sets, gaps
from vertinumpyro.mrf.release import GRID_BITS, Measurement, TableRelease, count_table
from vertinumpyro.privacy import NeighbouringRelation, NoiseSource

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE
SIZES = (2, 2, 2)
SETS = [(0, 1), (0, 2), (1, 2), (0, 1, 2)]
BUDGET = LocalBudget(
    mu=0.8, recovery_share=0.1, num_records=NUM_RECORDS, relation=REPLACE, refinement_rounds=2, refinement_share=0.3
)


def gaps_of(records, expected):
    exact = [count_table([np.array(records)[:, i] for i in s], [SIZES[i] for i in s]) for s in SETS]
    return gaps(expected, exact)


def largest_move(relation):
    """Over all tables of three records, all their neighbours, and many models."""
    rng = np.random.default_rng(0)
    domain = list(itertools.product(*map(range, SIZES)))
    tables = list(itertools.combinations_with_replacement(domain, 3))
    worst = 0.0
    for _ in range(5):
        expected = [rng.integers(0, 4, [SIZES[i] for i in s]) for s in SETS]
        found = {t: gaps_of(t, expected) for t in tables}
        if relation is REPLACE:
            moves = ((t, tuple(sorted((*t[:i], r, *t[i + 1 :])))) for t in tables for i in range(3) for r in domain)
            distances = (np.linalg.norm(found[a] - found[b]) for a, b in moves)
        else:
            fewer = ((t, (*t[:i], *t[i + 1 :])) for t in tables for i in range(3))
            distances = (np.linalg.norm(found[t] - gaps_of(left, expected)) for t, left in fewer)
        worst = max(worst, *distances)
    return worst


@pytest.mark.parametrize(("relation", "bound"), [(REPLACE, 2 * math.sqrt(4)), (ADD_REMOVE, math.sqrt(4))])
def test_one_record_moves_the_gaps_by_what_the_release_accounts_for(relation, bound):
    """The bound is reached, so the release is neither too cheap nor too dear."""
    moved = largest_move(relation)
    assert moved == pytest.approx(bound)
    budget = LocalBudget(mu=0.8, recovery_share=0.0, num_records=100, relation=relation)
    release = budget.gap_release(len(SETS), 0.25)
    assert moved / release.stddev <= 0.4
    assert moved / release.stddev == pytest.approx(0.4, rel=1e-5)


def test_gaps_are_integers_so_they_lie_on_the_grid():
    found = gaps([np.array([[3, 0], [1, 5]])], [np.array([[1, 1], [1, 9]])])
    assert found.dtype == np.int64
    assert found.tolist() == [7]
    release = BUDGET.gap_release(1, 0.5)
    (noisy,) = release.noisy([(("gaps",), found)], SystemRandomSource())
    assert (noisy.values * 2**GRID_BITS) % 1 == 0


class Spent:
    """Every release of a party's work, and what went into the models."""

    def __init__(self, monkeypatch, dataset, budget, party="insurer"):
        self.releases: list[TableRelease] = []
        self.fitted: list[list[Measurement]] = []
        original = TableRelease.noisy

        def noisy(release, tables, source):
            self.releases.append(release)
            return original(release, tables, source)

        monkeypatch.setattr(TableRelease, "noisy", noisy)
        self.columns = [c for c in cell_columns(SCHEMA, max_cells=6) if c.party == party]
        source = SystemRandomSource()
        self.tables = measure_locally(self.columns, dataset.arrays(party), budget, source, self.estimate)

    def estimate(self, columns, tables):
        assert list(columns) == self.columns
        self.fitted.append(list(tables))
        names = tuple(c.name for c in columns)
        shape = tuple(c.num_cells for c in columns)
        return GraphicalModel((names,), (np.full(shape, 1 / math.prod(shape)),), None)


@pytest.mark.parametrize("relation", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("party", ["clinic", "insurer"])
def test_all_releases_of_a_party_are_its_budget(monkeypatch, dataset, relation, party):
    budget = LocalBudget(
        mu=0.8,
        recovery_share=0.1,
        num_records=NUM_RECORDS,
        relation=relation,
        refinement_rounds=2,
        refinement_share=0.3,
    )
    spent = Spent(monkeypatch, dataset, budget, party)
    assert math.sqrt(sum(r.mu**2 for r in spent.releases)) == pytest.approx(budget.mu)
    rounds = sum(r.mu**2 for r in spent.releases[-4:])  # gaps and tables of each
    assert rounds == pytest.approx(0.3 * 0.9 * 0.8**2)
    assert len(spent.fitted) == 2


def test_rounds_look_at_released_tables_and_measure_what_the_model_misses(monkeypatch, dataset):
    """The model is uniform; the columns' skewed and dependent sets have the largest gaps."""
    spent = Spent(monkeypatch, dataset, BUDGET)
    first, second = spent.fitted
    measured = list(spent.tables.measurements)
    assert first == measured[: len(first)]
    assert second == measured[: len(second)]
    assert len(first) < len(second) < len(measured)
    assert all(set(m.columns) <= {c.name for c in spent.columns} for m in measured)
    again = [m.columns for m in measured[len(first) :]]
    assert len(again) == 2 * 4
    assert all(2 <= len(columns) <= 4 for columns in again)
    # far from uniform: visits are mostly few, and income follows illness; the number of children is uniform
    assert sum("visits" in columns for columns in again) >= 6


def test_without_rounds_nothing_is_refined(monkeypatch, dataset):
    budget = LocalBudget(mu=0.8, recovery_share=0.1, num_records=NUM_RECORDS, relation=REPLACE)
    spent = Spent(monkeypatch, dataset, budget)
    assert not spent.fitted
    assert math.sqrt(sum(r.mu**2 for r in spent.releases)) == pytest.approx(budget.mu)


def test_candidates_are_useful_strong_and_of_every_width():
    columns = list(cell_columns(SCHEMA, max_cells=6))
    names = [c.name for c in columns]
    strong = (names[1], names[2])
    tables = []
    for a, b in itertools.combinations(columns, 2):
        values = np.full((a.num_cells, b.num_cells), NUM_RECORDS / (a.num_cells * b.num_cells))
        if (a.name, b.name) == strong:
            values[0, 0] += NUM_RECORDS / 4
        tables.append(Measurement(columns=(a.name, b.name), values=values, stddev=1.0))
    found = candidate_sets(columns, tables, NUM_RECORDS, stddev=1.0)
    assert found[0] == strong
    assert all(set(strong) <= set(s) for s in found[:3])
    assert [len(s) for s in found[:6]] == [2, 3, 4, 2, 3, 4]
    sizes = {c.name: c.num_cells for c in columns}
    assert all(math.prod(sizes[n] for n in s) < NUM_RECORDS / (6 * math.sqrt(2 / math.pi)) for s in found)
    everything_too_fine = candidate_sets(columns, tables, NUM_RECORDS, stddev=1e6)
    assert everything_too_fine == list(itertools.combinations(names, 2))


def test_a_plan_with_rounds_costs_the_same(dataset):
    pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")
    system = VertiMRF(max_cells=6, iterations=30, clique_limit=3_000, refinement_rounds=1)
    plan = system.plan(dataset, epsilon=2.0, refinement_share=0.25)
    plain = VertiMRF(max_cells=6).plan(dataset, epsilon=2.0)
    assert (plain.refinement_rounds, plain.refinement_share) == (0, 0.0)
    assert (plan.refinement_rounds, plan.refinement_share) == (1, 0.25)
    assert plan.noise_multiplier == plain.noise_multiplier
    assert plan.num_steps == plain.num_steps
    assert [row.epsilon for row in plan.adversaries] == [row.epsilon for row in plain.adversaries]
    assert MRFPlan.from_dict(plan.to_dict()) == plan
    with pytest.raises(ArgumentError, match="refinement_rounds"):
        VertiMRF(max_cells=6).fit(dataset, plan)
    more = system.fit(dataset, plan).measurements
    own = [m.columns for m in more if len({SCHEMA.party_of(n) for n in m.columns}) == 1]
    assert len(own) > len(set(own)) or any(len(columns) > 3 for columns in own)


@pytest.mark.parametrize(
    "changes",
    [
        {"refinement_rounds": -1},
        {"refinement_rounds": 1},
        {"refinement_share": 0.2},
        {"refinement_rounds": 1, "refinement_share": 1.0},
        {"refinement_rounds": 1, "refinement_share": -0.1},
    ],
)
def test_bad_settings(changes):
    with pytest.raises(ArgumentError, match="refinement"):
        MRFPlan(
            noise_multiplier=5.0,
            num_records=1000,
            parties=("a", "b"),
            num_columns=(3, 3),
            num_binned=(0, 0),
            delta=1e-5,
            noise=NoiseSource(num_parties=2),
            **changes,
        )


def test_a_negative_number_of_rounds_is_refused_by_the_system():
    with pytest.raises(ArgumentError, match="refinement_rounds"):
        VertiMRF(refinement_rounds=-1)
