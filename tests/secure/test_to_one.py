"""Sums and bands for one party alone: what it gets, and what the others send."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.secure.thread_group import ThreadGroup, ThreadParty
from vertinumpyro.core.errors import ArgumentError
from vertinumpyro.secure import Crypten
from vertinumpyro.secure.keystream import KEY_BYTES, KeyStream, derived_key, sum_to_one
from vertinumpyro.transport import SocketLink
from vertinumpyro.transport.links import HEADER_BYTES

LOW, HIGH = -(2**63), 2**63 - 1


class Heard:
    """A link that keeps every message."""

    def __init__(self, link):
        self._link, self.heard, self.said = link, [], []

    def transfer(self, outgoing, expected):
        transfer = self._link.transfer(outgoing, expected)
        self.heard.append(transfer)
        self.said.append(bytes(outgoing))
        return transfer

    def __getattr__(self, name):
        return getattr(self._link, name)


def wired(num_parties):
    """Every party's links to the others."""
    links = [{} for _ in range(num_parties)]
    for i in range(num_parties):
        for j in range(i):
            ends = socket.socketpair()
            links[i][j], links[j][i] = (Heard(SocketLink(end, "another", 20.0)) for end in ends)
    return links


@pytest.mark.parametrize("num_parties", [2, 3, 5])
def test_one_party_gets_the_sum_and_the_others_nothing_but_keys(num_parties):
    rng, links, receiver = np.random.default_rng(0), wired(num_parties), num_parties - 1
    vectors = rng.integers(LOW, HIGH, (num_parties, 40))
    with ThreadPoolExecutor(num_parties) as pool:
        found = list(pool.map(lambda p: sum_to_one(links[p], p, receiver, vectors[p]), range(num_parties)))
    np.testing.assert_array_equal(found[receiver], vectors.sum(axis=0))
    assert [value for p, value in enumerate(found) if p != receiver] == [None] * (num_parties - 1)
    for p in range(num_parties):
        for other, link in links[p].items():
            heard = [bytes(transfer.incoming) for transfer in link.heard]
            assert len(heard[0]) == KEY_BYTES
            if p != receiver:
                assert heard[1:] == ([b""] if other == receiver else [])
                continue
            theirs, own = (KeyStream(derived_key(key, "reveal")) for key in (heard[0], link.said[0]))
            unmasked = np.frombuffer(heard[1], "<i8") - theirs.words((40,)) + own.words((40,))  # by all that p knows
            assert np.all(unmasked == vectors[other]) if num_parties == 2 else np.all(unmasked != vectors[other])
    sent = links[0][receiver].traffic
    assert sent.rounds == 2
    assert sent.bytes_sent == 2 * HEADER_BYTES + KEY_BYTES + 8 * 40


def test_what_is_no_vector_and_who_is_no_party_is_refused():
    for vector, receiver, message in [
        (np.zeros(3), 0, "int64"),
        (np.zeros((3, 1), np.int64), 0, "int64"),
        (np.zeros(3, np.int64), 2, "receiver=2"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            sum_to_one({}, 0, receiver, vector)


@pytest.mark.skipif(Crypten().missing() is not None, reason=str(Crypten().missing()))
@pytest.mark.parametrize("num_parties", [2, 3])
def test_bands_are_exact_on_shares(num_parties, monkeypatch):
    from vertinumpyro.secure.crypten import comparison

    monkeypatch.setattr(comparison, "_AT_A_TIME", 100)
    thresholds = [-(2**40), -1, 0, 0, 2**35]
    edges = np.array([t + step for t in thresholds for step in (-1, 0, 1)])
    x = np.concatenate([edges, np.random.default_rng(0).integers(-(2**41), 2**41, 80)])
    monkeypatch.setattr(ThreadParty, "begin", lambda party, program: None, raising=False)
    group = ThreadGroup(num_parties)
    shares = group.run(lambda party, share: comparison.bands(party, share, thresholds, 43), x)
    np.testing.assert_array_equal(np.sum(shares, axis=0), np.searchsorted(thresholds, x, side="right"))
    assert group.rounds == 4 * 5
