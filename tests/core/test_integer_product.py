"""Products in float64 are exact where the check says so, and the check refuses one more bit."""

import numpy as np
import pytest

from vertinumpyro.core.integer_product import exact_in_float64, integer_product


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
