"""Seeds that all parties toss: nobody chooses them, and everybody draws alike."""

import threading

import numpy as np
import pytest

from vertinumpyro.core.errors import BackendError
from vertinumpyro.privacy import PoissonSampling
from vertinumpyro.session.reveal_once import SEED_BYTES, SharedRandomSource, toss_coins


class Table:
    """P parties in threads who show each other messages, in rounds; `spoil` may change what one of them shows."""

    def __init__(self, num_parties, spoil=lambda rank, round_, message: message):
        self.barrier = threading.Barrier(num_parties)
        self.spoil, self.shown = spoil, [{} for _ in range(num_parties)]
        self.rounds = [0] * num_parties

    def all_gather(self, rank):
        def exchange(message, size):
            assert len(message) == size
            round_ = self.rounds[rank]
            self.rounds[rank] += 1
            self.shown[rank][round_] = self.spoil(rank, round_, message)
            self.barrier.wait()
            return [shown[round_] for shown in self.shown]

        return exchange


def tossed(num_parties, **kwargs):
    table, found = Table(num_parties, **kwargs), [None] * num_parties

    def run(rank):
        try:
            found[rank] = toss_coins(table.all_gather(rank), rank)
        except BackendError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num_parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("num_parties", [2, 3])
def test_all_parties_draw_the_same_batches_and_never_the_same_twice(num_parties):
    sampling = PoissonSampling.for_batch_size(20, 500, 6)
    first = [sampling.start(500, source).next(6) for source in tossed(num_parties)]
    for batches in first[1:]:
        np.testing.assert_array_equal(batches.indices, first[0].indices)
        np.testing.assert_array_equal(batches.mask, first[0].mask)
    other = sampling.start(500, tossed(num_parties)[0]).next(6)
    assert not np.array_equal(other.indices, first[0].indices)


def test_a_party_that_shows_another_seed_is_caught_by_all():
    def spoil(rank, round_, message):
        return bytes(SEED_BYTES) if (rank, round_) == (1, 1) else message

    found = tossed(3, spoil=spoil)
    assert all(isinstance(error, BackendError) and "party 1 showed another seed" in str(error) for error in found)


def test_a_party_cannot_repeat_anothers_commitment_as_its_own():
    """It would know a part of the key to be as it likes; a commitment holds for its own party alone."""
    with pytest.raises(BackendError, match="party 1 showed another seed"):
        toss_coins(lambda message, size: [message, message], 0)


def test_the_stream_is_uniform_and_its_children_are_others():
    source = SharedRandomSource(bytes(32))
    words = source.uint64(4096)
    ones = np.unpackbits(words.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(words.size * 64)
    first, second = SharedRandomSource(bytes(32)).spawn(2)
    assert first.random_bytes(16) != second.random_bytes(16)
    assert first.random_bytes(16) != SharedRandomSource(bytes(32)).random_bytes(16)
