import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinnedColumn, PartySchema, Schema, TableFacts, VerticalDataset
from vertinumpyro.mrf import VertiMRF
from vertinumpyro.mrf.forecast import USUAL, Held, forecast_pairs, held
from vertinumpyro.mrf.measurements import Measurement, dependence, one_way, shrunk, significance
from vertinumpyro.mrf.table_selection import merged

N = 10_000


def noisy(columns, probs, stddev, rng):
    table = N * np.asarray(probs)
    return Measurement(columns=columns, values=table + rng.normal(0, stddev, table.shape), stddev=stddev)


def joint(rng, *sizes):
    table = rng.random(sizes)
    return table / table.sum()


@pytest.mark.parametrize("num_columns", [4, 10])
def test_the_pairs_that_a_release_will_hold_are_foreseen_where_columns_depend_as_is_usual(num_columns):
    """By the released tables of a normal distribution whose pairs have the usual correlations."""
    rng, names = np.random.default_rng(num_columns), [f"x{i}" for i in range(num_columns)]
    schema = Schema({"p": PartySchema({name: BinnedColumn(bounds=(0, 1), bins=6) for name in names})})
    system, pairs = VertiMRF(), [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    stand_in = system.stand_in(schema, system.plan(TableFacts(schema, N), epsilon=1.0))
    found = forecast_pairs(schema, stand_in)
    assert found.expected.num_pairs == len(pairs)
    tables = []
    for m in (m for m in merged(stand_in.measurements) if len(m.columns) == 2):
        correlation = rng.choice(USUAL)
        x = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], N)
        counts = np.histogram2d(*(norm.cdf(x).T), bins=6, range=[[0, 1], [0, 1]])[0]
        tables.append(noisy(m.columns, counts / N, m.stddev, rng))
    counted = held(dataclasses.replace(stand_in, measurements=tuple(tables)))
    spread = np.sqrt(found.expected.num_held * (1 - found.expected.num_held / len(pairs)))
    assert abs(counted.num_held - found.expected.num_held) < 3 * spread + 1
    assert all(0 < smallest <= 1 for smallest in found.smallest.values())


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_an_earlier_release_foresees_its_own_pairs_and_those_of_new_columns(correlation):
    """Of columns that depend as no usual ones do, in other cells and at another budget; a fifth one is new."""
    system, rng = VertiMRF(), np.random.default_rng(0)
    schemas = [
        Schema({"p": PartySchema({f"x{i}": BinnedColumn(bounds=(0, 1), bins=bins) for i in range(number)})})
        for bins, number in ((6, 4), (8, 5))
    ]
    before, after = (
        system.stand_in(schema, system.plan(TableFacts(schema, N), epsilon=epsilon))
        for schema, epsilon in zip(schemas, (1.0, 2.0), strict=True)
    )

    def released(stand_in, bins):
        tables = []
        for m in (m for m in merged(stand_in.measurements) if len(m.columns) == 2):
            x = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], N)
            counts = np.histogram2d(*(norm.cdf(x).T), bins=bins, range=[[0, 1], [0, 1]])[0]
            tables.append(noisy(m.columns, counts / N, m.stddev, rng))
        return dataclasses.replace(stand_in, measurements=tuple(tables))

    found = forecast_pairs(schemas[1], after, released(before, 6))
    counted = held(released(after, 8)).num_held
    usual = forecast_pairs(schemas[1], after).expected.num_held
    assert abs(found.expected.num_held - counted) < 0.5 * abs(usual - counted)
    assert found.weak <= found.expected.num_held <= found.close
    assert "as the earlier release has their dependence" in found.words
    singles = dataclasses.replace(before, measurements=tuple(m for m in before.measurements if len(m.columns) == 1))
    with pytest.raises(ArgumentError, match=r"earlier: .* no tables of two columns"):
        forecast_pairs(schemas[1], after, singles)


def test_records_foresee_what_their_release_holds():
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
    assert "of little use for relations" in Held(8, 253).verdict
    assert Held(3, 3).verdict == "holds all 3 pairs of columns"
    many = system.forecast(schema, system.plan(TableFacts(schema, 90_000), epsilon=10.0))
    assert not many.remedy
    assert many.expected.num_held > few.expected.num_held


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
