"""Comparisons, conjunctions and selections on shares: right for every input and number of parties, and uniform."""

import itertools

import numpy as np
import pytest

from tests.secure.problems import looks_uniform
from tests.secure.thread_group import ThreadGroup
from vertinumpyro.secure.crypten import comparison
from vertinumpyro.secure.crypten.number_formats import Bits, packed, plane_words, unpacked

each_number_of_parties = pytest.mark.parametrize("num_parties", [1, 2, 3, 5])


def bits_of(found):
    """The bits that all parties' shares make."""
    return unpacked(np.bitwise_xor.reduce([bits.planes for bits in found]), found[0].shape)


def shared_bits(bits, party):
    """Shares of public bits, for a test: party 0 has them."""
    planes = packed(bits.reshape(1, -1))[0]
    return Bits(planes if party.rank == 0 else np.zeros_like(planes), bits.shape)


@each_number_of_parties
@pytest.mark.parametrize("bits", [1, 5, 6, 7, 34, 36, 37, 61, 62])
def test_below_is_exact_to_the_last_bit_of_its_range(num_parties, bits):
    ends = np.array([0, 1, -1, 2**bits - 1, -(2**bits), 2 ** (bits - 1), -(2 ** (bits - 1))])
    x = np.concatenate([ends, np.random.default_rng(0).integers(-(2**bits), 2**bits, 200)])[:, None]
    group = ThreadGroup(num_parties)
    found = group.run(lambda party, x: comparison.below(party, x, bits), x)
    np.testing.assert_array_equal(bits_of(found)[..., 0], x < 0)
    assert group.rounds == 1 + (bits > 6) + (bits > 36)


@each_number_of_parties
def test_one_opening_serves_many_thresholds(num_parties):
    thresholds = [1 << j for j in range(30, 62)]
    around = np.array([t + d for t in thresholds for d in (-1, 0, 1)]).reshape(-1, 4)
    group = ThreadGroup(num_parties)
    found = group.run(lambda party, x: comparison.below(party, x, 62, thresholds), around)
    np.testing.assert_array_equal(bits_of(found), around[..., None] < thresholds)
    assert group.rounds == 3


@each_number_of_parties
@pytest.mark.parametrize("num_components", [1, 2, 3, 4, 5, 6, 8, 20, 26, 75])
def test_the_largest_of_any_number_and_ties(num_parties, num_components):
    rng = np.random.default_rng(num_components)
    x = rng.integers(-(2**32), 2**32, (num_components, 40))
    x[:, :10] = rng.integers(-1, 2, (num_components, 10))
    x[:, 10] = -7
    group = ThreadGroup(num_parties)
    found = group.run(lambda party, x: comparison.largest(party, x, 34), x)
    np.testing.assert_array_equal(sum(found), x.max(axis=0))
    assert group.rounds <= 4 * np.ceil(np.log(num_components) / np.log(5) - 1e-9)


@each_number_of_parties
def test_bits_become_integers_and_select_numbers(num_parties):
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2, (7, 11)).astype(np.uint8)
    x = rng.integers(-(2**63), 2**63, (7, 11))
    group = ThreadGroup(num_parties)
    found = group.run(lambda party: comparison.as_integers(party, shared_bits(bits, party)))
    np.testing.assert_array_equal(sum(found), bits)
    found = group.run(lambda party, x: comparison.selected(party, shared_bits(bits, party), x), x)
    np.testing.assert_array_equal(sum(found), bits * x)
    assert group.rounds == 1
    turned = group.run(lambda party: comparison.complement(party, shared_bits(bits, party)))
    np.testing.assert_array_equal(bits_of(turned), 1 - bits)


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 200])
def test_packing_keeps_every_bit(size):
    bits = np.random.default_rng(size).integers(0, 2, (3, size)).astype(np.uint8)
    planes = packed(bits)
    assert planes.shape == (3, plane_words(size))
    np.testing.assert_array_equal([unpacked(row, (size,)) for row in planes], bits)
    np.testing.assert_array_equal(Bits(packed(bits.reshape(1, -1))[0], bits.shape).rows(), planes)


@pytest.mark.parametrize("value", [0, -1, 2**33])
def test_what_is_opened_is_uniform_whatever_is_compared(value):
    x = np.full((5, 4_000), value)
    group = ThreadGroup(2)
    group.run(lambda party, x: comparison.largest(party, x, 34), x)
    first = group.seen
    group.run(lambda party, x: comparison.largest(party, x, 34), x)
    assert len(first) > 100_000
    assert looks_uniform(first)
    assert looks_uniform(first ^ group.seen)
    assert not looks_uniform(first & 0xFE)  # the check sees one wrong bit


def test_both_outcomes_look_the_same_to_a_party():
    """The joint law of a comparison's opened bits, on as many records as show a dependence of a hundredth."""
    laws = []
    for value in (-3, 3):
        group = ThreadGroup(2)
        group.run(lambda party, x: comparison.below(party, x, 12), np.full((60_000, 1), value))
        first, second = group.seen[: 2 * 60_000].reshape(-1, 2), group.seen[2 * 60_000 :]
        planes = [unpacked(row.view("<i8"), (60_000,)) for row in second.reshape(-1, 8 * plane_words(60_000))]
        columns = [*np.unpackbits(first, axis=1, bitorder="little")[:, :13].T, *planes]
        laws.append([(a ^ b).mean() for a, b in itertools.combinations(columns, 2)])
    assert np.abs(np.array(laws) - 0.5).max() < 6 * 0.5 / np.sqrt(60_000)
