"""The secure sum between holders: its result, what anybody sees of it, what it costs, and what it is not for."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.secure import problems
from tests.transport.wires import wired
from vertinumpyro.core.errors import BackendError
from vertinumpyro.secure import CrossProducts, FixedPoint, VectorSum
from vertinumpyro.secure.dca import SecureAggregation
from vertinumpyro.transport import Communicator

EDGE = np.array([2**63 - 1, -(2**63), 0, 1, -1], np.int64)


def at_every_holder(count, use):
    """What `use(end, rank)` gives, each holder a thread."""
    links = [{} for _ in range(count)]
    for i in range(count):
        for j in range(i):
            links[i][j], links[j][i] = wired(f"holder {i}", f"holder {j}", 30.0)
    with ThreadPoolExecutor(count) as pool:
        return list(
            pool.map(
                lambda rank: use(SecureAggregation().end(Communicator(rank, count, links[rank], 30.0), count), rank),
                range(count),
            )
        )  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 5])
def test_everybody_gets_the_sum_and_sends_nothing_else(count):
    rng = np.random.default_rng(0)
    vectors = rng.integers(-(2**63), 2**63, (count, 5)) + EDGE
    noise = rng.integers(-100, 100, (count, 5))
    sent = {}

    def use(end, rank):
        with end.before_opening(lambda message: sent.__setitem__(rank, np.frombuffer(message, "<i8"))):
            return end.noisy_sum(vectors[rank], noise[rank])

    expected = (vectors + noise).sum(axis=0)
    assert all(np.array_equal(found, expected) for found in at_every_holder(count, use))
    assert np.array_equal(sum(sent.values()), expected)
    assert not any(np.array_equal(sent[rank], vectors[rank] + noise[rank]) for rank in range(count))


def test_messages_are_uniform_whatever_they_hide_also_to_a_coalition():
    """Of three holders one knows its own keys; the other two still share one."""
    size, messages = 20_000, {}

    def use(end, rank):
        with end.before_opening(lambda message: messages.__setitem__(rank, np.frombuffer(message, "<i8"))):
            return end.noisy_sum(np.full(size, 7, np.int64), np.zeros(size, np.int64))

    at_every_holder(3, use)
    pair = messages[0] + messages[1]  # their common key cancels: 14 and what the third one knows
    for words in (*messages.values(), pair):
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 400  # chi square of 255 degrees: mean 255, sd 23
    assert len(np.unique(messages[0])) == size


def test_a_message_is_sent_again_as_it_was():
    kept = {}

    def use(end, rank):
        with end.before_opening(lambda message: kept.__setitem__(rank, message)):
            first = end.noisy_sum(np.array([rank], np.int64), np.zeros(1, np.int64))
        return first, end.open(kept[rank])

    assert [(first.tolist(), again.tolist()) for first, again in at_every_holder(3, use)] == [([3], [3])] * 3


def test_other_protocols_are_refused_and_public_numbers_are_compared():
    def products(end, rank):
        with pytest.raises(BackendError, match="parties with columns"):
            end.noisy_cross_products(np.ones((4, 1), np.int64), (1, 1), np.zeros(1, np.int64))

    at_every_holder(2, products)

    def other_size(end, rank):
        with pytest.raises(BackendError, match="differ"):
            end.noisy_sum(np.zeros(2 + rank, np.int64), np.zeros(2 + rank, np.int64))

    at_every_holder(2, other_size)


def test_a_sum_takes_one_round_and_a_word_a_value():
    cost = SecureAggregation().cost(VectorSum(num_parties=3, num_values=1000))
    assert cost.traffic.rounds == 2  # the public numbers' digests, and the sum
    assert 2 * 8000 < cost.traffic.bytes_sent < 2 * 8200
    assert cost.dealer_traffic.bytes_received == 0
    with pytest.raises(BackendError, match="parties with columns"):
        SecureAggregation().cost(CrossProducts(num_records=5, widths=(1, 1)))
    assert SecureAggregation().missing() is None
    assert SecureAggregation().helpers(3) == []


def test_it_says_what_it_is():
    info = SecureAggregation().info()
    assert (info.name, info.dealer, info.unproven) == ("dca", "none", ())
    assert SecureAggregation().grid_bits(problems.shape_of()) == FixedPoint().grid_bits(problems.shape_of())
