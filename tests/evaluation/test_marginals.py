import itertools
import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.conftest import draw_table
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.data import BinaryColumn, CategoricalColumn, IntegerColumn, PartySchema, Schema
from vertinumpyro.evaluation import (
    cross_party_pairs,
    cross_party_tvd,
    k_way_tvd,
    one_way_tvd,
    pairwise_tvd,
    r_score,
    r_scores,
    tvd_floor,
    within_party_pairs,
    within_party_tvd,
)
from vertinumpyro.evaluation.marginals import DEFAULT_MAX_BINS


def brute_force(real, synthetic, schema, names) -> float:
    def shares(table):
        codes = [schema.columns[n].discretise(table[n], DEFAULT_MAX_BINS).codes for n in names]
        return Counter(zip(*(c.tolist() for c in codes), strict=True))

    p, q = shares(real), shares(synthetic)
    return 0.5 * sum(abs(p[c] / len(real) - q[c] / len(synthetic)) for c in p.keys() | q.keys())


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_k_way_tvd_equals_brute_force(real, synthetic, schema, k):
    result = k_way_tvd(real, synthetic, schema, k, rng=0)
    assert result.marginals == tuple(itertools.combinations(schema.columns, k))
    expected = [brute_force(real, synthetic, schema, names) for names in result.marginals]
    np.testing.assert_allclose(result.tvd, expected, atol=1e-12)
    assert result.mean == pytest.approx(np.mean(expected))
    assert not result.is_dp
    assert "not DP" in repr(result)


def test_tvd_is_zero_for_a_shuffled_copy_and_one_for_disjoint_tables(real, schema):
    assert k_way_tvd(real, real.sample(frac=1, random_state=0), schema, 3, rng=0).mean == 0
    low, high = real.assign(visits=0), real.assign(visits=9)
    result = k_way_tvd(low, high, schema, 2, rng=0)
    touched = np.array(["visits" in names for names in result.marginals])
    np.testing.assert_allclose(result.tvd[touched], 1.0)
    assert (result.tvd <= 1).all()


def test_tvd_is_symmetric_and_grows_with_the_marginal(real, synthetic, schema):
    there, back = (k_way_tvd(a, b, schema, 3, rng=0) for a, b in ((real, synthetic), (synthetic, real)))
    np.testing.assert_allclose(there.tvd, back.tvd)
    matrix = pairwise_tvd(real, synthetic, schema)
    for names, tvd in zip(there.marginals, there.tvd, strict=True):
        assert all(matrix.at[a, b] <= tvd + 1e-12 for a, b in itertools.combinations(names, 2))


def test_marginals_are_drawn_without_repetition_from_the_seed(real, synthetic, schema):
    first, again, other = (k_way_tvd(real, synthetic, schema, 2, num_marginals=6, rng=s) for s in (3, 3, 4))
    assert first.marginals == again.marginals
    assert first.marginals != other.marginals
    assert len(set(first.marginals)) == 6
    assert first.worst(2)[0][1] == first.tvd.max()


def test_domains_beyond_int64_are_counted_exactly():
    wide = CategoricalColumn(categories=tuple(range(1000)))
    schema = Schema({"p": PartySchema({f"c{i}": wide for i in range(25)})})  # 10^75 cells
    rng = np.random.default_rng(0)
    base = pd.DataFrame(rng.integers(1000, size=(50, 25)), columns=list(schema.columns))
    changed = base.copy()
    changed.iloc[:10, 0] = (changed.iloc[:10, 0] + 1) % 1000
    assert k_way_tvd(base, changed, schema, 25, rng=0).mean == pytest.approx(0.2)


def test_floor_compares_the_same_marginals_and_falls_with_rows(real, synthetic, schema):
    small, large = (tvd_floor(real, schema, 2, num_synthetic=n, num_marginals=4, rng=5) for n in (50, 50_000))
    assert small.marginals == k_way_tvd(real, synthetic, schema, 2, num_marginals=4, rng=5).marginals
    assert 0 < large.mean < 0.05 < small.mean < 1


def test_pairwise_matrix_is_symmetric_with_one_way_on_the_diagonal(real, synthetic, schema):
    matrix = pairwise_tvd(real, synthetic[list(reversed(synthetic.columns))], schema)
    assert list(matrix.index) == list(matrix.columns) == list(schema.columns)
    np.testing.assert_array_equal(matrix, matrix.T)
    for a, b in itertools.product(schema.columns, repeat=2):
        names = (a,) if a == b else (a, b)
        assert matrix.at[a, b] == pytest.approx(brute_force(real, synthetic, schema, names), abs=1e-12)
    assert one_way_tvd(matrix, schema) == pytest.approx(np.diag(matrix).mean())


def test_pairs_split_into_cross_party_and_within_party(schema):
    across, within = cross_party_pairs(schema), within_party_pairs(schema)
    assert set(across) == {(a, b) for a in ("age", "ward") for b in ("visits", "claim", "cost")}
    assert set(across) | set(within) == set(itertools.combinations(schema.columns, 2))
    assert not set(across) & set(within)


def test_cross_party_mean_sees_broken_dependence_and_the_within_party_mean_does_not(schema):
    real = draw_table(4000, 1)
    apart = real.copy()
    for name in ("visits", "claim", "cost"):
        apart[name] = np.roll(real[name].to_numpy(), 7)
    matrix = pairwise_tvd(real, apart, schema)
    assert within_party_tvd(matrix, schema) == pytest.approx(0, abs=1e-12)
    assert cross_party_tvd(matrix, schema) > 0.05
    assert math.isnan(cross_party_tvd(matrix, schema.restrict("clinic")))


def test_r_score_against_its_definition():
    columns = {"x": IntegerColumn(bounds=(0, 1)), "y": BinaryColumn()}
    schema = Schema({"p": PartySchema(columns)})
    product = pd.DataFrame({"x": [0, 0, 1, 1] * 3, "y": [0, 1] * 6})
    assert r_score(product, "x", "y", schema) == pytest.approx(0, abs=1e-12)
    equal = pd.DataFrame({"x": [0, 1] * 4, "y": [0, 1] * 4})  # |1/2 - 1/4| in each of four cells, halved
    assert r_score(equal, "x", "y", schema) == pytest.approx(0.5)


def test_r_scores_agree_with_dense_tables(real, schema):
    matrix = r_scores(real, schema)
    assert np.isnan(np.diag(matrix)).all()
    for a, b in itertools.combinations(schema.columns, 2):
        (x, m), (y, n) = (schema.columns[c].discretise(real[c], DEFAULT_MAX_BINS) for c in (a, b))
        joint = np.zeros((m, n))
        np.add.at(joint, (x, y), 1 / len(real))
        expected = 0.5 * np.abs(joint - np.outer(joint.sum(1), joint.sum(0))).sum()
        assert matrix.at[a, b] == matrix.at[b, a] == pytest.approx(expected)
        assert matrix.at[a, b] == pytest.approx(r_score(real, a, b, schema))


def test_errors_name_the_argument(real, synthetic, schema):
    matrix = pairwise_tvd(real, synthetic, schema)
    cases = [
        ("real lacks", lambda: pairwise_tvd(real.drop(columns="age"), synthetic, schema)),
        (r"synthetic lacks .*'cost'", lambda: pairwise_tvd(real, synthetic.drop(columns="cost"), schema)),
        ("synthetic has no rows", lambda: k_way_tvd(real, synthetic[:0], schema, 2, rng=0)),
        ("k must be", lambda: k_way_tvd(real, synthetic, schema, 6, rng=0)),
        ("k must be", lambda: k_way_tvd(real, synthetic, schema, 0, rng=0)),
        ("num_marginals", lambda: k_way_tvd(real, synthetic, schema, 2, num_marginals=0, rng=0)),
        ("max_bins", lambda: pairwise_tvd(real, synthetic, schema, max_bins=0)),
        ("num_synthetic", lambda: tvd_floor(real, schema, 2, num_synthetic=0, rng=0)),
        ("real has no rows", lambda: tvd_floor(real[:0], schema, 2, rng=0)),
        ("b='nobody'", lambda: r_score(real, "age", "nobody", schema)),
        ("a and b", lambda: r_score(real, "age", "age", schema)),
        ("matrix lacks", lambda: cross_party_tvd(matrix.drop(index="age"), schema)),
    ]
    for pattern, call in cases:
        with pytest.raises(ArgumentError, match=pattern):
            call()
