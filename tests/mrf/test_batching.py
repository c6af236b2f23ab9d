import itertools

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from vertinumpyro.core import compat
from vertinumpyro.mrf import factor_engine as batching
from vertinumpyro.mrf.factor_engine import FactorEngine, TablesOf, batched, matrix_of
from vertinumpyro.mrf.field import require_engine
from vertinumpyro.mrf.measurements import Measurement

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 2}


def tables(num_columns, stddevs=(4.0, 9.0)):
    """Noisy tables of all sets of so many columns, with two levels of noise."""
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.full(96, 2.0)).reshape(tuple(SIZES.values())) * 500
    made = []
    for i, chosen in enumerate(itertools.combinations(SIZES, num_columns)):
        exact = joint.sum(tuple(axis for axis, name in enumerate(SIZES) if name not in chosen))
        values = exact + rng.normal(0, stddevs[i % 2], exact.shape)
        made.append(Measurement(columns=chosen, values=values, stddev=stddevs[i % 2]))
    return made


def test_a_matrix_reads_every_table_off_its_margin():
    margin = np.random.default_rng(0).random((3, 2, 4))
    query = TablesOf((("a", 3), ("b", 2), ("c", 4)), (("c", "a"), ("b",)))
    expected = np.concatenate([margin.sum(1).T.ravel(), margin.sum((0, 2))])
    np.testing.assert_allclose(matrix_of(query) @ margin.ravel(), expected)
    assert query.op_norm_sq() >= np.linalg.norm(matrix_of(query), 2) ** 2 - 1e-9


@pytest.mark.parametrize("table", [("a", "b", "c"), ("c", "a", "b")])
def test_a_table_that_is_its_margin_needs_no_matrix(table, monkeypatch):
    monkeypatch.setattr(batching, "matrix_of", None)
    margin = np.random.default_rng(0).random((3, 2, 4))
    mbi = require_engine()
    query = TablesOf((("a", 3), ("b", 2), ("c", 4)), (table,))
    with compat.x64():
        found = query(mbi.Factor(mbi.Domain(("a", "b", "c"), (3, 2, 4)), jnp.asarray(margin)))
    np.testing.assert_array_equal(found, margin.transpose(["abc".index(name) for name in table]).ravel())
    assert query.num_entries == 0
    assert TablesOf(query.columns, (("a", "b"), ("c",))).num_entries == (6 + 4) * 24


def test_matrices_stay_within_their_limit_together(monkeypatch):
    """Wide tables, and more of them than matrices may hold; the field is the same."""
    made = tables(2)
    free = batched(SIZES, made, [tuple(SIZES)])
    most = sum(batch.query.num_entries for batch in free) // 3
    monkeypatch.setattr(batching, "_MOST_ENTRIES", most)
    tight = batched(SIZES, made, [tuple(SIZES)])
    assert 0 < sum(batch.query.num_entries for batch in tight) <= most
    assert sorted(m.columns for batch in tight for m in batch.measurements) == sorted(m.columns for m in made)
    wide = {"a": 200, "b": 200, "c": 200}
    pairs = [Measurement(columns=c, values=np.zeros((200, 200)), stddev=1.0) for c in itertools.combinations(wide, 2)]
    assert [batch.query.num_entries for batch in batched(wide, pairs, [("a", "b", "c")])] == [0, 0, 0]


@pytest.mark.parametrize("num_columns", [2, 3])
def test_every_table_is_in_one_batch_within_its_clique(num_columns):
    made = tables(num_columns)
    batches = batched(SIZES, made, [("a", "b", "c", "d", "e")])
    assert len(batches) == 2
    assert sorted(m.columns for batch in batches for m in batch.measurements) == sorted(m.columns for m in made)
    assert all({m.stddev for m in batch.measurements} == {batch.stddev} for batch in batches)
    apart = batched(SIZES, [m for m in made if set(m.columns) <= set("abc")], [("a", "b", "c"), ("c", "d", "e")])
    assert all(set(batch.columns) <= set("abc") for batch in apart)


@pytest.mark.parametrize("num_columns", [1, 2, 3])
def test_the_path_is_that_of_the_tables_one_by_one(num_columns):
    """Far from the end of it."""
    made = tables(num_columns)
    mbi = require_engine()
    with compat.x64():
        domain = mbi.Domain(tuple(SIZES), tuple(SIZES.values()))
        single = [mbi.LinearMeasurement(m.values.ravel(), m.columns, m.stddev) for m in made]
        together, apart = (
            mbi.estimation.MirrorDescent().estimate(domain, tables, known_total=500.0, iters=200)
            for tables in (FactorEngine(mbi, SIZES, made, 500.0).loss(made), single)
        )
        for m in made:
            found, exact = (np.asarray(model.project(m.columns).datavector()) / 500 for model in (together, apart))
            np.testing.assert_allclose(found, exact, atol=2e-3)
