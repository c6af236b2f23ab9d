"""Messages along a laid out tree, and the paths of mirror descent, against the engine's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mbi", reason="the engine mbi 2 needs jax 0.9: extra `mrf`, current lane only")

from vertinumpyro.core import compat
from vertinumpyro.mrf import field as graphical_model
from vertinumpyro.mrf import tree_engine
from vertinumpyro.mrf.field import fit_graphical_model, require_engine
from vertinumpyro.mrf.measurements import Measurement
from vertinumpyro.mrf.tree_engine import TreeEngine, tree_marginals

SIZES = {"a": 3, "b": 2, "c": 4, "d": 2, "e": 9, "f": 2, "g": 3, "alone": 2}
PAIRS = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("d", "e"), ("c", "f"), ("g",)]  # a triangle, branches, parts
NUM_RECORDS = 5000


def tables(sets=PAIRS, sizes=SIZES, stddev=10.0):
    rng = np.random.default_rng(0)
    made = []
    for names in sets:
        shape = tuple(sizes[name] for name in names)
        exact = NUM_RECORDS * rng.dirichlet(np.full(np.prod(shape), 2.0)).reshape(shape)
        made.append(Measurement(columns=names, values=exact + stddev * rng.standard_normal(shape), stddev=stddev))
    return made


def singles(sizes=SIZES):
    return [
        Measurement(columns=(name,), values=NUM_RECORDS * np.arange(1, n + 1) / (n * (n + 1) / 2), stddev=5.0)
        for name, n in sizes.items()
    ]


def test_marginals_are_the_engines():
    mbi = require_engine()
    with compat.x64():
        engine = TreeEngine(mbi, SIZES, tables(), NUM_RECORDS)
        domain = mbi.Domain(tuple(SIZES), tuple(SIZES.values()))
        rng = np.random.default_rng(1)
        logs = [3 * rng.standard_normal(cells.shape) for cells in engine.layout.cells]
        flat = np.zeros(engine.layout.length)
        for cells, values in zip(engine.layout.cells, logs, strict=True):
            flat[cells] = values
        start = engine.begin(None, ())
        ((key, factor),) = start.tables.items()
        given = type(start)(start.domain, start.cliques, {key: type(factor)(factor.domain, jnp.asarray(flat))})
        found = np.asarray(tree_marginals(given, 7.0, constraints=(engine._index,)).tables[key].values)
        factors = {c: mbi.Factor(domain.project(c), v) for c, v in zip(engine.tree.cliques, logs, strict=True)}
        exact = mbi.marginal_oracles.message_passing_stable(mbi.CliqueVector(domain, tuple(factors), factors), 7.0)
    for clique, cells in zip(engine.tree.cliques, engine.layout.cells, strict=True):
        np.testing.assert_allclose(found[cells], exact.project(clique).values, atol=1e-12)
    outside = np.setdiff1d(np.arange(engine.layout.length), np.concatenate([c.ravel() for c in engine.layout.cells]))
    assert not found[outside].any()


def test_the_field_is_the_engines(monkeypatch):
    made, known = tables(), singles()
    theirs = fit_graphical_model(SIZES, made, NUM_RECORDS, singles=known)
    monkeypatch.setattr(graphical_model, "FEW_COLUMNS", 0)
    ours = fit_graphical_model(SIZES, made, NUM_RECORDS, singles=known)
    for columns in [*PAIRS, ("a", "f"), ("e", "a"), ("alone", "b")]:
        np.testing.assert_allclose(ours.marginal(columns), theirs.marginal(columns), atol=1e-5)


def test_what_is_compiled_does_not_grow_with_columns():
    """Equal numbers of equations for the whole of an oracle's call."""

    def equations(num_columns):
        sizes = {f"c{i}": (2, 5, 12)[i % 3] for i in range(num_columns)}
        label, *others = sizes
        sets = [*((label, name) for name in others), *itertools.pairwise(others)]
        with compat.x64():
            engine = TreeEngine(require_engine(), sizes, tables(sets, sizes), NUM_RECORDS)
            start = engine.begin(None, singles(sizes))
            program = jax.make_jaxpr(lambda *a: tree_engine.tree_marginals(a[0], 1.0, constraints=a[1]))
            assert sum(cells.size for cells in engine.layout.cells) > 15 * num_columns
            return str(program(start, (engine._index,))).count(" = ")

    assert equations(400) == equations(100)
