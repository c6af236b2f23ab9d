"""Small products have one thread, whoever else multiplies, and everybody's setting comes back."""

import threading

import numpy as np
import pytest

from vertinumpyro.core import row_blocks as blas_threads
from vertinumpyro.core.row_blocks import ring_product, threads_for

BLAS = blas_threads._controller()
pytestmark = pytest.mark.skipif(not BLAS.lib_controllers, reason="NumPy's BLAS has no threads that can be set")


def threads():
    return {one["num_threads"] for one in BLAS.info()}


@pytest.fixture(autouse=True)
def two_threads():
    with BLAS.limit(limits=2):
        assert threads() == {2}
        yield
        assert threads() == {2}


def test_small_products_have_one_thread_and_large_ones_are_left_alone():
    with threads_for(10**6):
        assert threads() == {1}
    assert threads() == {2}
    with threads_for(10**9):
        assert threads() == {2}


def test_the_setting_comes_back_after_a_failure():
    with pytest.raises(ZeroDivisionError), threads_for(1):
        raise ZeroDivisionError
    assert threads() == {2}


def test_a_second_thread_leaves_the_setting_to_the_first():
    def other():
        with threads_for(1), threads_for(1):
            pass

    with threads_for(1):
        started = threading.Thread(target=other)
        started.start()
        started.join()
        assert threads() == {1}
    assert threads() == {2}


def test_a_ring_product_has_one_thread():
    seen = []
    multiplied = np.ndarray.astype

    class Watched(np.ndarray):
        def astype(self, *args, **kwargs):
            seen.append(threads())
            return multiplied(self, *args, **kwargs)

    a = np.arange(12).reshape(6, 2).view(Watched)
    np.testing.assert_array_equal(ring_product(a, a), np.asarray(a).T @ np.asarray(a))
    assert seen
    assert all(one == {1} for one in seen)
