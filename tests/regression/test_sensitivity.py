"""The stated sensitivities against brute force over all pairs of records, and hypothesis over the rest."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertinumpyro.privacy import NeighbouringRelation
from vertinumpyro.regression.features import (
    GroupCounts,
    _l1_with_changed,
    l1_sensitivity,
    l2_sensitivity,
    paper_sensitivity,
)

REPLACE, ADD_REMOVE = NeighbouringRelation.REPLACE, NeighbouringRelation.ADD_REMOVE
CASES = [(0, 0, 1), (0, 1, 1), (0, 2, 1), (0, 0, 3), (1, 1, 0), (1, 0, 2), (2, 1, 0), (2, 1, 1), (3, 0, 1), (2, 2, 0)]


def released(groups, blocks):
    """What one record adds, in units where squares count half (L1) or by their root (L2)."""
    v = np.concatenate([[1.0], *groups])
    shapes = ["sign", *(shape for shape, block in zip(blocks, groups, strict=True) for _ in block)]
    owner = np.repeat(np.arange(len(groups) + 1), [1, *(len(block) for block in groups)])
    i, j = np.triu_indices(len(v), 1)
    distinct = owner[i] != owner[j]
    squares = np.array([v[k] ** 2 for k in range(len(v)) if shapes[k] == "scalar"])
    return (v[i] * v[j])[distinct], squares


def values(shape, step):
    if shape == "one_hot":
        return [np.array([1.0, 0.0]), np.array([0.0, 1.0])]
    return [np.array([x]) for x in ((-1.0, 1.0) if shape == "sign" else np.arange(-1, 1 + step, step))]


def distances(case, fixed=()):
    """All (L1, squared L2) distances of two records, and all norms of one."""
    shapes = ["one_hot"] * case[0] + ["sign"] * case[1] + ["scalar"] * case[2]
    step = 0.5 if case[2] > 1 else 0.25
    records = list(itertools.product(*(values(shape, step) for shape in shapes)))
    parts = [released(record, shapes) for record in records]
    rows = np.array([np.r_[products, squares / 2] for products, squares in parts])
    roots = np.array([np.r_[products, squares / math.sqrt(2)] for products, squares in parts])
    same = np.array([np.concatenate([[0.0], *(record[k] for k in fixed)]) for record in records])
    pairs = [(a, b) for a, b in itertools.combinations(range(len(records)), 2) if np.array_equal(same[a], same[b])]
    a, b = np.array(pairs).T
    replace = np.abs(rows[a] - rows[b]).sum(1).max(), np.square(roots[a] - roots[b]).sum(1).max()
    single = np.abs(rows).sum(1).max(), np.square(roots).sum(1).max()
    return replace, single


def best_distance(counts):
    """The D at which the bound is attained, with the t that maximises it."""
    t = max(range(counts.one_hot + 1), key=lambda t: _l1_with_changed(counts, t))
    m = 1 + counts.sign + counts.scalar
    return min(m + counts.one_hot - t, 2 * (counts.sign + counts.scalar))


@pytest.mark.parametrize("case", CASES)
def test_bounds_hold_and_are_tight_by_brute_force(case):
    counts = GroupCounts(one_hot=case[0], sign=case[1], scalar=case[2])
    (l1, l2), (norm1, norm2) = distances(case)
    assert l1 <= l1_sensitivity(counts, REPLACE) <= l1 + 0.5
    if best_distance(counts) % 2 == 0:
        assert l1_sensitivity(counts, REPLACE) == l1
    assert l2_sensitivity(counts, REPLACE) ** 2 == pytest.approx(l2)
    assert l1_sensitivity(counts, ADD_REMOVE) == pytest.approx(norm1)
    assert l2_sensitivity(counts, ADD_REMOVE) ** 2 == pytest.approx(norm2)


PARTIAL = [
    ((1, 1, 1), (0,), (0, 1, 1)),
    ((2, 1, 0), (2,), (2, 0, 0)),
    ((1, 0, 2), (1,), (1, 0, 1)),
    ((1, 1, 1), (0, 1), (0, 0, 1)),
]


@pytest.mark.parametrize(("case", "fixed", "free"), PARTIAL)
def test_bounds_for_one_partys_columns(case, fixed, free):
    changing = GroupCounts(one_hot=free[0], sign=free[1], scalar=free[2])
    counts = GroupCounts(one_hot=case[0], sign=case[1], scalar=case[2], changing=changing)
    (l1, l2), _ = distances(case, fixed)
    assert l1 <= l1_sensitivity(counts, REPLACE) <= l1 + 0.5
    assert l2_sensitivity(counts, REPLACE) ** 2 == pytest.approx(l2)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_pair_of_records_exceeds_the_bounds(data):
    case = [data.draw(st.integers(0, 3)) for _ in range(3)]
    shapes = ["one_hot"] * case[0] + ["sign"] * case[1] + ["scalar"] * case[2]
    draw = {"one_hot": st.integers(0, 2).map(lambda k: np.eye(3)[k]), "sign": st.sampled_from([-1.0, 1.0]).map(
        lambda x: np.array([x])), "scalar": st.floats(-1, 1).map(lambda x: np.array([x]))}  # fmt: skip
    v, w = ([data.draw(draw[shape]) for shape in shapes] for _ in range(2))
    (p, s), (q, t) = released(v, shapes), released(w, shapes)
    counts = GroupCounts(one_hot=case[0], sign=case[1], scalar=case[2])
    slack = 1e-9
    assert np.abs(p - q).sum() + np.abs(s - t).sum() / 2 <= l1_sensitivity(counts, REPLACE) + slack
    assert np.square(p - q).sum() + np.square(s - t).sum() / 2 <= l2_sensitivity(counts, REPLACE) ** 2 + slack


def test_scalars_alone_give_the_formula_sheets_square():
    """Half of (1 + d)² for d scalars with the label, since off-diagonal products are released once."""
    for d in range(2, 9):
        counts = GroupCounts(one_hot=0, sign=0, scalar=d)
        assert l1_sensitivity(counts, REPLACE) == pytest.approx((d + 1) ** 2 / 2)
        assert l2_sensitivity(counts, REPLACE) ** 2 == pytest.approx((d + 1) ** 2 - (d + 1) % 2)


@pytest.mark.parametrize(("logistic", "expected"), [(True, 3**2 / 4 + 3), (False, 2 * (1 + 6 + 9))])
def test_the_papers_sensitivity(logistic, expected):
    assert paper_sensitivity(3, logistic) == expected


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_papers_sensitivity_is_valid_for_its_coefficients(d):
    """Eqs. 2 and 4 by brute force: both exceed what a record can do, and by the factors of the formula sheet."""
    xs = [np.array(x) for x in itertools.product((-1.0, 0.0, 1.0), repeat=d)]
    linear = [np.r_[y * y, -2 * y * x, np.outer(x, x).ravel()] for x in xs for y in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    logistic = [np.r_[(0.5 - y) * x, np.outer(x, x).ravel() / 8] for x in xs for y in (0.0, 1.0)]
    largest = [max(np.abs(a - b).sum() for a in rows for b in rows) for rows in (linear, logistic)]
    assert largest[0] == (1 + d) ** 2 == paper_sensitivity(d, False) / 2
    assert largest[1] < paper_sensitivity(d, True)
