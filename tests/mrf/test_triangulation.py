"""Clique trees: what they must be, and as few cells as the engine's own."""

import itertools
import random

import pytest

from vertinumpyro.mrf.triangulation import clique_tree, tree_cells


def graph(seed):
    rng = random.Random(seed)
    sizes = {f"c{i}": rng.randint(2, 17) for i in range(rng.randint(2, 12))}
    widths = [1, 2, 2, 2, min(3, len(sizes))]
    sets = [tuple(rng.sample(list(sizes), rng.choice(widths))) for _ in range(rng.randint(1, 2 * len(sizes)))]
    return sizes, sets


def depth(tree):
    found = [0]
    for parent in tree.parents[1:]:
        found.append(found[parent] + 1)
    return max(found)


@pytest.mark.parametrize("seed", range(40))
def test_cliques_hold_every_set_and_share_with_earlier_ones_what_their_parent_has(seed):
    sizes, sets = graph(seed)
    tree = clique_tree(sizes, sets)
    assert all(any(set(names) <= set(clique) for clique in tree.cliques) for names in sets)
    assert not any(set(a) <= set(b) for a, b in itertools.permutations(tree.cliques, 2))
    seen = set()
    for place, clique in enumerate(tree.cliques):
        assert tree.parents[place] < place
        assert seen & set(clique) == set(tree.separator(place))
        seen |= set(clique)
    assert seen == set(sizes)


def test_no_more_cells_than_the_engine_takes():
    mbi = pytest.importorskip("mbi")
    ours = theirs = 0
    for seed in range(100):
        sizes, sets = graph(seed)
        domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
        ours += tree_cells(sizes, sets)
        theirs += sum(domain.size(c) for c in mbi.junction_tree.make_junction_tree(domain, sets)[0].nodes)
    assert ours <= theirs


def test_a_thousand_columns_keep_the_tables_that_they_have():
    sizes = {f"c{i}": (2, 17, 5)[i % 3] for i in range(1000)}
    label, *others = sizes
    star, chain = [(label, name) for name in others], list(itertools.pairwise(others))
    assert depth(clique_tree(sizes, star)) == 1
    for sets in (star, chain, [*star, *chain]):
        wanted = [(label, *pair) for pair in chain] if len(sets) > 1000 else sets
        cliques = clique_tree(sizes, sets).cliques
        assert {frozenset(c) for c in cliques if len(c) > 1} == {frozenset(c) for c in wanted}


def test_chains_that_share_a_column_or_none_lie_side_by_side():
    sizes = dict.fromkeys([f"c{i}" for i in range(401)], 3)
    label, *others = sizes
    chains = [*itertools.pairwise(others[:200]), *itertools.pairwise(others[200:])]
    assert depth(clique_tree(sizes, chains)) <= 101
    assert depth(clique_tree(sizes, [*chains, *((label, name) for name in others)])) <= 101
