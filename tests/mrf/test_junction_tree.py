"""Margins without the engine, against the joint distribution written out."""

import itertools

import numpy as np
import pytest

from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.mrf.junction_tree import JunctionTree

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


def test_a_long_way_between_two_columns_says_so():
    names = [f"c{i}" for i in range(60)]
    cliques = tuple(itertools.pairwise(names))
    tree = JunctionTree(cliques, (np.full((2, 2), 0.25),) * len(cliques))
    np.testing.assert_allclose(tree.project(("c3", "c40")).values, 0.25)
    with pytest.raises(ArgumentError, match="52 columns"):
        tree.project(("c0", "c59"))
