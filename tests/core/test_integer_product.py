"""Products in float64 are exact where the check says so, and the check refuses one more bit; products of any words."""

import numpy as np
import pytest

from vertinumpyro.core.integer_product import exact_in_float64, integer_product, pair_products, ring_product


@pytest.mark.parametrize("shape", [(1, 2, 3), (4096, 2, 3), (4097, 3, 1), (10_000, 4, 4)])
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_agrees_with_exact_integers(shape, dtype):
    rng = np.random.default_rng(0)
    a = rng.integers(-(2**14), 2**14, (shape[0], shape[1])).astype(dtype, order="F")
    b = rng.integers(-(2**14), 2**14, (shape[0], shape[2])).astype(dtype)
    assert np.array_equal(integer_product(a, b), a.astype(np.int64).T @ b.astype(np.int64))
    assert np.array_equal(integer_product(a, a), a.astype(np.int64).T @ a.astype(np.int64))


def test_the_largest_sums_are_exact_and_larger_ones_refused():
    a, b = np.full((2, 1), 2**26), np.full((2, 1), 2**26)
    assert exact_in_float64(a, b)
    assert integer_product(a, b).item() == 2**53
    assert not exact_in_float64(a, b + 1)
    assert not exact_in_float64(np.array([[-(2**62)]]), np.array([[2]]))


def test_no_records_have_no_products():
    empty = np.zeros((0, 2), np.int64)
    assert exact_in_float64(empty, empty)
    assert integer_product(empty, empty).tolist() == [[0, 0], [0, 0]]


def wrapped(integers):
    """Representatives in [-2^63, 2^63)."""
    return ((integers + 2**63) % 2**64 - 2**63).astype(np.int64)


@pytest.mark.parametrize("shape", [(1, 2, 3), (1024, 2, 2), (1025, 3, 1), (2500, 0, 2), (0, 2, 2)])
def test_a_product_of_any_words_is_exact_modulo_2_64(shape):
    rng = np.random.default_rng(0)
    n, da, db = shape
    edges = np.array([-(2**63), 2**63 - 1, 2**21, 2**21 - 1, -(2**21), 2**43 - 2**21, -1, 0])
    for draw in (
        lambda size: rng.integers(-(2**63), 2**63 - 1, size),
        lambda size: rng.choice(edges, size),
        lambda size: np.full(size, -(2**21)),  # the largest limbs, all of one sign
        lambda size: np.full(size, -(2**63)),
    ):
        a, b = draw((n, da)), draw((n, db))
        np.testing.assert_array_equal(ring_product(a, b), wrapped(a.astype(object).T @ b.astype(object)))


def test_products_of_all_pairs_stand_in_the_order_of_combinations():
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-9, 9, (7, width)) for width in (2, 1, 3))
    expected = np.concatenate([(x.T @ y).ravel() for x, y in ((a, b), (a, c), (b, c))])
    np.testing.assert_array_equal(pair_products([a, b, c]), expected)
    assert pair_products([a]).shape == (0,)
