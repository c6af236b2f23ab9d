import warnings

import numpy as np
import pytest

from tests.strict_warnings import warnings_are_errors
from vertinumpyro.core import rng
from vertinumpyro.core.errors import ArgumentError


def seeded(seed=0):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rng.InsecureRandomnessWarning)
        return rng.InsecureSeededSource(insecure_seed=seed)


class Scripted(rng.RandomSource):
    secure = False

    def __init__(self, *arrays):
        self._arrays = list(arrays)

    def random_bytes(self, num_bytes):
        return self.uint64(1).tobytes()[:num_bytes]

    def uint64(self, size):
        array = np.asarray(self._arrays.pop(0), dtype=np.uint64)
        assert array.size == size
        return array

    def spawn(self, num_sources):
        raise NotImplementedError


@pytest.mark.parametrize("source", [rng.SystemRandomSource(), seeded()], ids=["system", "seeded"])
@pytest.mark.parametrize("size", [0, 1, 3, 8, 17])
def test_sizes_and_types(source, size):
    assert len(source.random_bytes(size)) == size
    words = source.uint64(size)
    assert words.shape == (size,)
    assert words.dtype == np.uint64


def test_system_source_is_secure_and_fresh():
    source = rng.SystemRandomSource()
    assert source.secure
    assert source.random_bytes(32) != source.random_bytes(32)
    assert len(source.spawn(3)) == 3


def test_bits_are_balanced():
    # 64 bit positions of 2^14 words, each within 6.5 standard deviations: false failure 64·8e-11 = 5e-9.
    for source in (rng.SystemRandomSource(), seeded(3)):
        words = source.uint64(2**14)
        ones = [int(((words >> np.uint64(b)) & np.uint64(1)).sum()) for b in range(64)]
        assert max(abs(one - 2**13) for one in ones) <= 6.5 * 64


def test_seeded_source_warns_and_names_its_argument():
    with pytest.warns(rng.InsecureRandomnessWarning, match="insecure_seed") as caught:
        source = rng.InsecureSeededSource(insecure_seed=5)
    assert len(caught) == 1
    assert not source.secure
    with warnings_are_errors():
        source.uint64(4)
        source.spawn(2)


def test_seeded_source_is_deterministic_across_numpy_versions():
    first, second = seeded(5), seeded(5)
    np.testing.assert_array_equal(first.uint64(10), second.uint64(10))
    assert first.random_bytes(9) == second.random_bytes(9)
    # Pinned: a change here silently unpairs every paired benchmark.
    assert seeded(0).uint64(2).tolist() == [259491006799949737, 4754966410622352325]


def test_spawned_sources_differ():
    parent = seeded(5)
    children = (*parent.spawn(2), *parent.spawn(1))
    streams = [tuple(child.uint64(4).tolist()) for child in (*children, seeded(5))]
    assert len(set(streams)) == 4
    again = seeded(5).spawn(2)
    assert tuple(again[1].uint64(4).tolist()) == streams[1]


def test_repr_hides_the_seed():
    text = repr(seeded(987654321))
    assert "987654321" not in text
    assert repr(rng.SystemRandomSource()) == "SystemRandomSource()"


@pytest.mark.parametrize("seed", [-1, 1.5, True, None])
def test_bad_seed(seed):
    with pytest.raises(ArgumentError, match="insecure_seed"):
        rng.InsecureSeededSource(seed)


def test_negative_sizes_are_refused():
    with pytest.raises(ArgumentError, match="size"):
        rng.SystemRandomSource().uint64(-1)
    with pytest.raises(ArgumentError, match="num_bytes"):
        seeded().random_bytes(-1)


def test_permutation_redraws_when_keys_repeat():
    source = Scripted([7, 7, 1], [30, 10, 20])
    assert rng.random_permutation(3, source).tolist() == [1, 2, 0]


def test_permutation_is_uniform():
    # Chi-square over the 24 orders of 4; false-failure rate 1e-6 (the seed is fixed besides).
    source = seeded(11)
    counts: dict = {}
    for _ in range(4800):
        order = tuple(rng.random_permutation(4, source).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    statistic = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert statistic < 75.6  # chi2(23).isf(1.5e-7)
    assert sorted(rng.random_permutation(0, source)) == []
