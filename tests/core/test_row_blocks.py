"""Products are exact modulo 2^64 in every kind of arithmetic, and alike wherever blocks of rows are cut."""

import numpy as np
import pytest

from vertinumpyro.core import row_blocks
from vertinumpyro.core.row_blocks import (
    OneHot,
    RowBlocks,
    as_blocks,
    pair_products,
    products,
    ring_product,
    rows_at_a_time,
    slices,
)


def exact(a, b):
    """Modulo 2^64, as representatives in [-2^63, 2^63)."""
    total = a.astype(object).T @ b.astype(object)
    return ((total + 2**63) % 2**64 - 2**63).astype(np.int64)


@pytest.fixture
def few_rows(monkeypatch):
    """Blocks of 64 rows."""
    monkeypatch.setattr(row_blocks, "ROWS", 64)
    assert rows_at_a_time(3) == 64


@pytest.mark.parametrize("largest", [1, 2**9, 2**10, 2**23, 2**24, 2**62])  # at edges of float32, float64 and limbs
@pytest.mark.parametrize("num_rows", [0, 1, 63, 64, 65, 300])
def test_products_are_exact_in_every_arithmetic(few_rows, largest, num_rows):
    rng = np.random.default_rng(0)
    matrices = [rng.choice(np.array([-largest, largest, largest - 1, 0]), (num_rows, width)) for width in (2, 1, 3)]
    matrices.append(np.full((num_rows, 1), largest))
    found = products(matrices)
    expected = [exact(matrices[i], matrices[j]) for i in range(4) for j in range(i + 1, 4)]
    assert [f.dtype for f in found] == [np.int64] * 6
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f, e)


def test_blocks_are_made_once_each_and_their_units_multiplied_back(few_rows):
    matrix, seen = np.random.default_rng(1).integers(-3, 4, (150, 2)), []

    def made(block):
        seen.append(tuple(block["row"][[0, -1]]))
        return matrix[block["row"]].astype(np.float32)

    blocks = RowBlocks((150, 2), 3, {"row": np.arange(150)}, made, bits=6)
    own, other = products([blocks, matrix], [(0, 0), (1, 0)])
    assert seen == [(0, 63), (64, 127), (128, 149)]
    np.testing.assert_array_equal(own, (matrix.T @ matrix) << 12)
    np.testing.assert_array_equal(other, (matrix.T @ matrix) << 6)
    np.testing.assert_array_equal(np.ascontiguousarray(blocks, np.int64), matrix << 6)


def test_one_hot_factors_are_counted_as_they_are_multiplied(few_rows):
    rng, sizes = np.random.default_rng(2), [(2, 3), (1, 4, 2), ()]
    codes = [[rng.integers(0, size, 150) for size in own] for own in sizes]
    none = np.zeros((150, 0), int)
    whole = [
        np.concatenate([none, *(np.eye(size, dtype=int)[c] for size, c in zip(own, held, strict=True))], axis=1)
        for own, held in zip(sizes, codes, strict=True)
    ]
    counted = [
        RowBlocks(
            shape=whole[number].shape,
            largest=1,
            columns={str(place): codes for place, codes in enumerate(held)} | {"row": np.arange(150)},
            make=lambda block: pytest.fail("made"),
            bits=6,
            one_hot=OneHot(sizes[number], lambda block: list(block.values())[:-1]),
        )
        for number, held in enumerate(codes)
    ]
    for found, expected in zip(products(counted), products([m << 6 for m in whole]), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_widest_factors_take_fewer_rows_at_a_time_and_slices_cover_all():
    assert [rows_at_a_time(width) for width in (0, 100, 2**14, 2**30)] == [2**15, 2**15, 2**9, 2**6]
    assert [rows_at_a_time(width, 2**16) for width in (0, 100, 200)] == [2**16, 2**16, 2**15]
    assert [(s.start, s.stop) for s in slices(5, 2)] == [(0, 2), (2, 4), (4, 5)]
    assert as_blocks(np.array([[-5], [4]])).largest == 5
    assert as_blocks(np.zeros((0, 2), np.int64)).shape == (0, 2)


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
        np.testing.assert_array_equal(ring_product(a, b), exact(a, b))


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
