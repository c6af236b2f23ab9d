"""Margins without the engine, against the joint distribution written out."""

import itertools

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.factor_engine import JunctionTree

SIZES = {"a": 2, "b": 3, "c": 2, "d": 3, "e": 2, "f": 2}
CLIQUES = (("a", "b"), ("c", "b"), ("d", "c"), ("c", "e"), ("f",))  # a chain with a branch, and a column apart


@pytest.fixture(scope="module")
def joint():
    rng = np.random.default_rng(0)
    table = np.ones(tuple(SIZES.values()))
    for clique in CLIQUES:
        factor = rng.random([SIZES[n] if n in clique else 1 for n in SIZES])
        table = table * np.where(factor < 0.1, 0.0, factor)
    return table / table.sum()


def margin(joint, columns):
    names = list(SIZES)
    found = joint.sum(axis=tuple(i for i, name in enumerate(names) if name not in columns))
    kept = [name for name in names if name in columns]
    return np.transpose(found, [kept.index(name) for name in columns])


def test_every_margin_up_to_three_columns(joint):
    tree = JunctionTree(CLIQUES, tuple(margin(joint, clique) for clique in CLIQUES))
    for count in (1, 2, 3):
        for columns in itertools.permutations(SIZES, count):
            found = tree.project(columns)
            np.testing.assert_allclose(found.datavector(flatten=False), margin(joint, columns), atol=1e-12)
            assert found.datavector().ndim == 1


def test_however_many_cliques_lie_between_two_columns():
    rng, names = np.random.default_rng(1), [f"c{i}" for i in range(200)]
    steps = [rng.dirichlet(np.ones(3), size=3) for _ in names[1:]]
    tables, mass = [], np.full(3, 1 / 3)
    for step in steps:
        tables.append(mass[:, None] * step)
        mass = tables[-1].sum(axis=0)
    tree = JunctionTree(tuple(itertools.pairwise(names)), tuple(tables))
    between = tables[3].sum(axis=1)[:, None] * np.linalg.multi_dot(steps[3:150])
    np.testing.assert_allclose(tree.project(("c3", "c150")).values, between, atol=1e-12)
    with pytest.raises(ArgumentError, match="52"):
        tree.project(names[:60])
