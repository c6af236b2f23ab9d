import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.core.rng import InsecureSeededSource
from vertinumpyro.data import BinnedColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.mrf import VertiMRF, preflight
from vertinumpyro.mrf.forecast import Held, forecast_pairs, held
from vertinumpyro.mrf.measurements import MEDIUM, Measurement, dependence, one_way, shrunk, significance
from vertinumpyro.mrf.table_selection import merged

N = 10_000


def noisy(columns, probs, stddev, rng):
    table = N * np.asarray(probs)
    return Measurement(columns=columns, values=table + rng.normal(0, stddev, table.shape), stddev=stddev)


def joint(rng, *sizes):
    table = rng.random(sizes)
    return table / table.sum()


def released(stand_in, correlation, bins, rng):
    """Tables of a normal distribution whose pairs have this correlation, with a release's noise."""
    tables = []
    for m in (m for m in merged(stand_in.measurements) if len(m.columns) == 2):
        x = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], N)
        counts = np.histogram2d(*(norm.cdf(x).T), bins=bins, range=[[0, 1], [0, 1]])[0]
        tables.append(noisy(m.columns, counts / N, m.stddev, rng))
    return dataclasses.replace(stand_in, measurements=tuple(tables))


def evenly_binned(num_columns, bins):
    columns = {f"x{i}": BinnedColumn(bounds=(0, 1), bins=bins) for i in range(num_columns)}
    return Schema({"p": PartySchema(columns)})


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 100.0])
def test_a_pair_is_held_where_an_association_of_medium_size_would_be_seen(epsilon):
    """Whether there is one or not: as many as show it where all pairs have it, and the plan foresees them."""
    rng, system, schema = np.random.default_rng(0), VertiMRF(), evenly_binned(10, 6)
    stand_in = system.stand_in(schema, system.plan(TableFacts(schema, N), epsilon=epsilon))
    foreseen = forecast_pairs(schema, stand_in).expected
    assert foreseen.num_pairs == 45
    assert foreseen.num_showing is None  # only records know
    none, all_of_them = (held(released(stand_in, 2 * np.sin(np.pi * size / 6), 6, rng)) for size in (0.0, MEDIUM))
    assert none.num_showing <= 1  # with hardly any noise too: a sample's chance dependence is none
    spread = 3 * np.sqrt(foreseen.num_held * (1 - foreseen.num_held / 45)) + 1
    for found in (none, all_of_them):
        assert found.num_held == pytest.approx(foreseen.num_held, rel=0.02, abs=0.1)
    assert abs(all_of_them.num_showing - foreseen.num_held) < spread


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_an_earlier_release_foresees_which_of_its_own_pairs_show_an_association_and_of_new_columns(correlation):
    """Of columns in other cells and at another budget; a fifth one is new."""
    system, rng = VertiMRF(), np.random.default_rng(0)
    schemas = [evenly_binned(4, 6), evenly_binned(5, 8)]
    before, after = (
        system.stand_in(schema, system.plan(TableFacts(schema, N), epsilon=epsilon))
        for schema, epsilon in zip(schemas, (1.0, 2.0), strict=True)
    )
    found = forecast_pairs(schemas[1], after, released(before, correlation, 6, rng))
    counted = held(released(after, correlation, 8, rng)).num_showing
    assert abs(found.expected.num_showing - counted) < 2.5
    assert found.fewest <= found.expected.num_showing <= found.most
    assert "as the earlier release has their dependence" in found.words
    singles = dataclasses.replace(before, measurements=tuple(m for m in before.measurements if len(m.columns) == 1))
    with pytest.raises(ArgumentError, match=r"earlier: .* no tables of two columns"):
        forecast_pairs(schemas[1], after, singles)


def test_records_foresee_which_pairs_show_an_association():
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal(np.zeros(3), [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]], N)
    table = pd.DataFrame(norm.cdf(x), columns=["a", "b", "c"])
    binned = BinnedColumn(bounds=(0, 1), bins=6)
    schema = Schema({"p": PartySchema({"c": binned, "a": binned}), "q": PartySchema({"b": binned})})
    dataset, system = VerticalDataset.from_pooled(schema, table), VertiMRF()
    found = system.forecast_by_records(dataset, system.plan(dataset, epsilon=0.2))
    by_names = {frozenset(pair): chance for pair, chance in found.items()}
    assert by_names[frozenset("ab")] > 0.99
    assert max(by_names[frozenset("ac")], by_names[frozenset("bc")]) < 0.01


def test_coarser_cells_are_named_where_they_would_hold_more():
    schema = Schema({"p": PartySchema({f"x{i}": BinnedColumn(bounds=(0, 1), bins=16) for i in range(12)})})
    system = VertiMRF()
    few = system.forecast(schema, system.plan(TableFacts(schema, 3_000), epsilon=1.0))
    assert "max_cells = " in few.words
    assert "or fewer for ." not in few.words  # all have as many
    assert few.is_little
    many = system.forecast(schema, system.plan(TableFacts(schema, 90_000), epsilon=10.0))
    assert not many.remedy
    assert many.expected.num_held > few.expected.num_held


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Held(8, 253, 3), "holds 8 of 253 pairs of columns, so it is of little use for relations: "),
        (Held(3, 3, 0), "holds all 3 pairs of columns: each would show an association of 0.3"),
        (Held(46.2, 78, 15), "noise would hide it in the other 32. 15 pairs show one"),
        (Held(46, 78, 1), "1 pair shows one"),
    ],
)
def test_the_verdict_says_what_would_be_seen_and_what_is(found, says):
    assert says in found.verdict


def test_one_way_weighs_by_variance():
    rng = np.random.default_rng(0)
    truth = joint(rng, 3, 10)
    exact = Measurement(columns=("a",), values=N * truth.sum(1), stddev=1e-3)
    found = one_way("a", [noisy(("a", "b"), truth, 100.0, rng), exact], N)
    np.testing.assert_allclose(found.values, exact.values, atol=0.1)
    assert found.stddev == pytest.approx(1e-3, rel=1e-3)


def test_dependence_sees_through_noise():
    rng = np.random.default_rng(0)
    independent = np.outer([0.3, 0.7], [0.2, 0.5, 0.3])
    dependent = independent + 0.1 * np.array([[1, -1, 0], [-1, 1, 0]])
    nothing = [dependence(noisy(("a", "b"), independent, 200.0, rng), N) for _ in range(200)]
    assert abs(np.mean(nothing)) < 0.01
    assert dependence(noisy(("a", "b"), dependent, 1e-6, rng), N) == pytest.approx(0.2, abs=1e-4)


def test_significance_counts_the_noise_s_standard_deviations():
    """About standard normal where columns are independent, whatever the number of cells; larger the surer."""
    rng = np.random.default_rng(0)
    for shape in ((2, 2), (5, 20)):
        truth = np.outer(joint(rng, shape[0]), joint(rng, shape[1]))
        singles = {"a": N * truth.sum(1), "b": N * truth.sum(0)}
        found = [significance(noisy(("a", "b"), truth, 50.0, rng), singles) for _ in range(400)]
        assert abs(np.mean(found)) < 0.25  # five standard errors
        assert 0.8 < np.std(found) < 1.25
    apart = np.array([[0.5, 0.0], [0.0, 0.5]])
    singles = {"a": N * apart.sum(1), "b": N * apart.sum(0)}
    sure, less = (significance(noisy(("a", "b"), apart, s, rng), singles) for s in (50.0, 500.0))
    assert sure > 10 * less > 100


@pytest.mark.parametrize("shape", [(2, 2), (2, 6), (5, 20)])
def test_a_table_is_drawn_towards_independence_as_far_as_its_noise_asks_for(shape):
    """Of independent columns the error falls, of dependent ones it does not rise, whatever the noise."""
    rng = np.random.default_rng(0)
    independent = np.outer(joint(rng, shape[0]), joint(rng, shape[1]))
    for truth, most in ((independent, 0.8), (0.5 * independent + 0.5 * joint(rng, *shape), 1.0)):
        singles = {"a": noisy(("a",), truth.sum(1), 0.0, rng), "b": noisy(("b",), truth.sum(0), 0.0, rng)}
        for stddev in (20.0, 200.0):
            tables = [noisy(("a", "b"), truth, stddev, rng) for _ in range(100)]
            errors = [
                [((m.values - N * truth) ** 2).sum() for m in (table, shrunk(table, singles))] for table in tables
            ]
            before, after = np.mean(errors, axis=0)
            assert after < most * before
    exact = noisy(("a", "b", "c"), joint(rng, 2, 3, 4), 5.0, rng)
    assert shrunk(exact, {}) is exact


@pytest.mark.filterwarnings("ignore::vertinumpyro.core.rng.InsecureRandomnessWarning")
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_a_plan_says_how_much_of_rank_correlations_a_twin_will_keep(epsilon, monkeypatch):
    """As tables that are drawn towards independence have it, whose values lie evenly within cells."""
    monkeypatch.setattr(preflight, "SystemRandomSource", lambda: InsecureSeededSource(0))  # of the stand-ins' noise
    rng, system, bins = np.random.default_rng(0), VertiMRF(), 6
    schema = evenly_binned(10, bins)
    plan = system.plan(TableFacts(schema, N), epsilon=epsilon)
    stand_in, found = system.stand_in(schema, plan), system.forecast(schema, plan)
    ranks = (np.arange(bins) + 0.5) / bins - 0.5
    for size, foreseen in found.kept.items():
        tables = merged(released(stand_in, 2 * np.sin(np.pi * size / 6), bins, rng).measurements)
        single = Measurement(columns=("x",), values=np.full(bins, N / bins), stddev=1.0)
        drawn = [shrunk(m, dict.fromkeys(m.columns, single)).values / N for m in tables]
        correlations = np.array([12 * ranks @ table @ ranks for table in drawn])
        assert np.clip(correlations / size, 0, 1).mean() == pytest.approx(foreseen, abs=0.06)
    assert "% if it is 0.1, " in found.words
    assert ("times the ε or the records" in found.words) == (found.times > 1)


def test_what_would_keep_more_of_small_correlations_does():
    system, schema = VertiMRF(), evenly_binned(2, 6)  # so that more records do not buy tables of three columns
    once = system.forecast(schema, system.plan(TableFacts(schema, N), epsilon=0.1, delta=1e-5))
    assert once.kept[0.1] < 0.6
    enough = system.forecast(schema, system.plan(TableFacts(schema, round(N * once.times)), epsilon=0.1, delta=1e-5))
    assert enough.kept[0.1] == pytest.approx(0.6, abs=0.02)
    assert enough.times == pytest.approx(1, abs=0.05)
    coarse = evenly_binned(4, 2)
    never = system.forecast(coarse, system.plan(TableFacts(coarse, N), epsilon=0.5))
    assert "would take finer cells" in never.words
