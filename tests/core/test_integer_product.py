"""Products of any words are exact modulo 2^64."""

import numpy as np
import pytest

from vertinumpyro.core import row_blocks
from vertinumpyro.core.row_blocks import pair_products, ring_product


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


@pytest.mark.parametrize("num_records", [0, 1, 1024, 1025, 5000])
@pytest.mark.parametrize("num_cores", [1, 3, 64])
def test_threads_give_the_same_product(num_records, num_cores, monkeypatch):
    monkeypatch.setattr(row_blocks, "_WORTH_THREADS", 0)
    monkeypatch.setattr(row_blocks.os, "cpu_count", lambda: num_cores)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**63), 2**63 - 1, (num_records, width)) for width in (3, 4))
    np.testing.assert_array_equal(ring_product(a, b), a.T @ b)  # NumPy's own wraps around


def test_products_of_all_pairs_stand_in_the_order_of_combinations():
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-9, 9, (7, width)) for width in (2, 1, 3))
    expected = np.concatenate([(x.T @ y).ravel() for x, y in ((a, b), (a, c), (b, c))])
    np.testing.assert_array_equal(pair_products([a, b, c]), expected)
    assert pair_products([a]).shape == (0,)
